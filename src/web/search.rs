//! Text to search in: what people can search for, in lower case, prepared once per change.
//!
//! It is made in blocks of neighbouring servers. A later view shares all blocks whose texts have not changed, so that a change of
//! one server prepares a few dozen, not all. Nothing is prepared before the first search, and it is dropped when nobody
//! has searched for a while: with a million servers it takes some 100 MB.

use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memchr::memmem::Finder;

use crate::model::Server;
use crate::registry::servers::OfBlock;
use crate::registry::view::View;

/// Ends each text. It cannot be typed, because it is in no UTF-8 text: what is searched for never spans two texts.
const END: u8 = 0xff;
/// How long the text is kept after a search.
const KEPT: Duration = Duration::from_secs(60);

/// The texts of a server, in this order. The address is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Name,
    Map,
    Mode,
    Version,
}

#[derive(Default)]
pub struct Search {
    last: Mutex<Option<Last>>,
}

struct Last {
    serial: u64,
    prepared: Arc<Prepared>,
    used: Instant,
}

/// The text of one view.
pub struct Prepared {
    blocks: Vec<Arc<Block>>,
}

struct Block {
    serial: u64,
    text: Box<[u8]>,
    /// Where each server's text ends.
    ends: Box<[u32]>,
}

impl Search {
    /// The text of a view. Others who need it meanwhile wait, instead of preparing it as well.
    pub fn prepared(&self, view: &View) -> Arc<Prepared> {
        let mut last = self.last();
        let known = last.take();
        let prepared = match known {
            Some(known) if known.serial == view.serial => known.prepared,
            known => Arc::new(Prepared::of(view, known.as_ref().map(|known| &*known.prepared))),
        };
        *last = Some(Last { serial: view.serial, prepared: prepared.clone(), used: Instant::now() });
        prepared
    }

    /// Frees the text if nobody has searched for a while.
    pub fn forget_unused(&self, now: Instant) {
        let mut last = self.last();
        if last.as_ref().is_some_and(|last| now.saturating_duration_since(last.used) >= KEPT) {
            *last = None;
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prepared {
    fn of(view: &View, before: Option<&Prepared>) -> Prepared {
        let known = |number: usize| before.and_then(|before| before.blocks.get(number));
        let block = |(number, (serial, servers)): (usize, (u64, OfBlock<'_>))| {
            let same = known(number).filter(|known| known.serial == serial);
            same.cloned().unwrap_or_else(|| Arc::new(Block::of(serial, servers)))
        };
        Prepared { blocks: view.blocks().enumerate().map(block).collect() }
    }

    /// All servers of the view, each with its text.
    pub fn all<'a, 'v: 'a>(&'a self, view: &'v View) -> impl Iterator<Item = (&'v Arc<Server>, &'a [u8])> {
        self.blocks.iter().zip(view.blocks()).flat_map(|(block, (_, servers))| servers.zip(block.texts()))
    }

    /// The servers with this text, which has to be in lower case, in one of theirs.
    pub fn find<'a, 'v: 'a>(
        &'a self,
        view: &'v View,
        wanted: &'a Finder<'a>,
    ) -> impl Iterator<Item = (&'v Arc<Server>, &'a [u8])> {
        self.blocks.iter().zip(view.blocks()).flat_map(|(block, (_, mut servers))| {
            let mut passed = 0;
            block.find(wanted).filter_map(move |number| {
                let server = servers.nth(number.checked_sub(passed)?)?;
                passed = number + 1;
                Some((server, block.text_of(number)))
            })
        })
    }
}

/// Whether one of the texts of a server has this, which has to be in lower case.
pub fn has(server: &Server, wanted: &Finder<'_>) -> bool {
    let mut text = Vec::new();
    push_texts(server, &mut text);
    wanted.find(&text).is_some()
}

/// One of the texts of a server.
pub fn part(text: &[u8], part: Part) -> &[u8] {
    text.split(|byte| *byte == END).nth(part as usize).unwrap_or_default()
}

impl Block {
    fn of(serial: u64, servers: OfBlock<'_>) -> Block {
        let (mut text, mut ends) = (Vec::new(), Vec::new());
        for server in servers {
            push_texts(server, &mut text);
            ends.push(text.len() as u32); // some 64 servers of a few KiB at most
        }
        Block { serial, text: text.into(), ends: ends.into() }
    }

    fn text_of(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        let end = self.ends.get(number).copied().unwrap_or(start);
        self.text.get(start as usize..end as usize).unwrap_or_default()
    }

    fn texts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len()).map(|number| self.text_of(number))
    }

    /// The numbers of the servers in whose text this is found, in order.
    fn find<'a>(&'a self, wanted: &'a Finder<'a>) -> impl Iterator<Item = usize> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let at = from + wanted.find(self.text.get(from..)?)?;
            let number = self.ends.partition_point(|end| *end as usize <= at);
            from = *self.ends.get(number)? as usize; // once per server
            Some(number)
        })
    }
}

/// All texts of a server, each with its end.
fn push_texts(server: &Server, into: &mut Vec<u8>) {
    let texts = &server.texts;
    for part in [texts.name(), texts.map(), texts.mode(), texts.version()] {
        push_lower(part, into);
        into.push(END);
    }
    let _ = write!(into, "{}", server.address); // a Vec takes everything
    into.push(END);
}

fn push_lower(text: &str, into: &mut Vec<u8>) {
    if text.is_ascii() {
        into.extend(text.bytes().map(|byte| byte.to_ascii_lowercase()));
    } else {
        into.extend_from_slice(text.to_lowercase().as_bytes());
    }
}
