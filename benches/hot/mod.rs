//! The hot paths of the master, without sockets and without a clock: what `benches/micro` times and `benches/instructions`
//! counts.
//!
//! The table follows from the cards: every protocol's codecs, announcements and lists are in it.

mod lists;
mod master;
mod registry;
// Shared with fuzzing: a configuration, keys, and game servers that do what real ones do.
#[allow(dead_code)]
#[path = "../../fuzz/src/world.rs"]
mod world;

use std::hint::black_box;
use std::net::SocketAddr;

use arrayvec::ArrayVec;
use rallypoint::protocols::{CARDS, Card, REPLY_BYTES_MAX};

/// How many servers there are.
#[derive(Clone, Copy)]
pub struct Scale {
    /// In the registry, one path each.
    pub registered: &'static [usize],
    /// In a protocol's list, one path each.
    pub listed: &'static [usize],
    /// In the list that is searched.
    pub searched: usize,
}

/// One hot path.
pub struct HotPath {
    pub name: String,
    /// Operations in a run.
    pub count: u32,
    make: Box<dyn Fn() -> Box<dyn Work>>,
}

impl HotPath {
    fn new<W: Work + 'static>(name: String, count: u32, make: impl Fn() -> W + 'static) -> HotPath {
        HotPath { name, count, make: Box::new(move || Box::new(make())) }
    }

    pub fn make(&self) -> Box<dyn Work> {
        (self.make)()
    }
}

/// What is measured. It can be repeated endlessly.
pub trait Work {
    /// What has to happen before each run and is not measured.
    fn prepare(&mut self) {}

    fn run(&mut self);
}

impl<F: FnMut()> Work for F {
    fn run(&mut self) {
        self();
    }
}

/// Operations of codecs and cookies in a run: a single one is too short to be measured.
const REPEATED: u32 = 100;

/// All hot paths.
pub fn all(scale: Scale) -> Vec<HotPath> {
    let mut all = Vec::new();
    for card in CARDS {
        decoders(card, &mut all);
        round_trips(card, &mut all);
    }
    cookies(&mut all);
    master::add(scale, &mut all);
    registry::add(scale, &mut all);
    lists::add(scale, &mut all);
    all
}

fn decoders(card: &'static Card, all: &mut Vec<HotPath>) {
    for (&(what, decode), sample) in card.decoders.iter().zip((card.samples)()) {
        assert!(decode(&sample), "{}: {what}", card.name);
        all.push(HotPath::new(format!("decode {} {what}", card.name), REPEATED, move || {
            let sample = sample.clone();
            move || {
                for _ in 0..REPEATED {
                    black_box(decode(black_box(&sample)));
                }
            }
        }));
    }
}

/// Read, written and read again.
fn round_trips(card: &'static Card, all: &mut Vec<HotPath>) {
    for &(what, round_trip) in card.round_trips {
        let Some(sample) = (card.samples)().into_iter().find(|sample| round_trip(sample) == Some(true)) else {
            continue;
        };
        all.push(HotPath::new(format!("encode {} {what}", card.name), REPEATED, move || {
            let sample = sample.clone();
            move || {
                for _ in 0..REPEATED {
                    black_box(round_trip(black_box(&sample)));
                }
            }
        }));
    }
}

fn cookies(all: &mut Vec<HotPath>) {
    let from: SocketAddr = ([203, 0, 113, 5], 20_737).into();
    let content = [7; 80];
    let sealed = move || {
        let mut cookie = ArrayVec::<u8, REPLY_BYTES_MAX>::new();
        assert!(world::keys().seal(world::START.unix_ms, from, black_box(&content), &mut cookie));
        cookie
    };
    all.push(HotPath::new("cookie seal".into(), REPEATED, move || {
        move || (0..REPEATED).for_each(|_| _ = black_box(sealed()))
    }));
    all.push(HotPath::new("cookie open".into(), REPEATED, move || {
        let (keys, cookie) = (world::keys(), sealed());
        move || {
            for _ in 0..REPEATED {
                assert!(black_box(keys.open(world::START.unix_ms, from, black_box(&cookie))).is_ok());
            }
        }
    }));
}
