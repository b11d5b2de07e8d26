//! TCP conversations with the master's rules, with a filled list. The result is the same however the input is split, its
//! size is bounded by the input's, and every conversation ends.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use super::tape::Tape;
use super::world::{CONFIG, VIEW};
use rallypoint::model::Address;
use rallypoint::protocols::section::LocalAddresses;
use rallypoint::protocols::{Next, Output, Session, SessionInput, StreamRules, Verdict};
use rallypoint::registry::view::Renderer;

/// What the program reads at once.
const READ_BYTES: usize = 4096;
/// The shortest request for a list.
const LIST_REQUEST_BYTES_MIN: usize = 8;
/// An error is at most so much longer than its request, and the last one before the connection is closed by so much.
const ANSWER_FACTOR: usize = 5;
const ANSWER_BYTES_MAX: usize = 600;
/// Lists to render: the others are the same few.
const RENDERED_MAX: usize = 2;

static RULES: LazyLock<Vec<Box<dyn StreamRules>>> = LazyLock::new(|| {
    CONFIG.sections().filter_map(|(_, section)| section.streams(&LocalAddresses::default())).collect()
});

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let rules = tape.choice(&RULES);
    let (random, sizes, refused) = (u32::from(tape.number()), [tape.byte(), tape.byte(), tape.byte()], tape.flag());
    let bytes = tape.rest();
    let verdict = if refused { Verdict::Refused(r"no \ way".into()) } else { Verdict::Listed };
    let whole = talk(&**rules, random, &verdict, bytes.chunks(READ_BYTES));
    let mut rest = bytes;
    let split = sizes.iter().cycle().map_while(|&size| {
        let (piece, behind) = rest.split_at(usize::from(size).clamp(1, 64).min(rest.len()));
        rest = behind;
        (!piece.is_empty()).then_some(piece)
    });
    let pieces = talk(&**rules, random, &verdict, split);
    assert_eq!(whole.bytes, pieces.bytes);
    assert_eq!(whole.end, pieces.end);
    assert_eq!(whole.lists.len(), pieces.lists.len());
    for (one, other) in whole.lists.iter().zip(&pieces.lists) {
        assert!(Arc::ptr_eq(one, other) || one.render(&VIEW) == other.render(&VIEW), "the lists differ");
    }

    assert!(whole.bytes.len() <= ANSWER_FACTOR * bytes.len() + ANSWER_BYTES_MAX, "{} bytes", whole.bytes.len());
    assert!(whole.lists.len() <= bytes.len() / LIST_REQUEST_BYTES_MIN + 1, "{} lists", whole.lists.len());
    for list in whole.lists.iter().take(RENDERED_MAX) {
        list.render(&VIEW);
    }
}

/// All that came of a conversation.
#[derive(Default)]
struct Talk {
    bytes: Vec<u8>,
    /// Where the lists are in the bytes does not matter: their number does.
    lists: Vec<Arc<dyn Renderer>>,
    end: Option<String>,
}

fn talk<'a>(
    rules: &dyn StreamRules,
    random: u32,
    verdict: &Verdict,
    mut pieces: impl Iterator<Item = &'a [u8]>,
) -> Talk {
    let peer: SocketAddr = ([203, 0, 113, 5], 40_000).into();
    let mut session = rules.open(peer, ([192, 0, 2, 1], 28_900).into(), random);
    let (mut talk, mut out) = (Talk::default(), Vec::new());
    let mut next = session.on(SessionInput::Opened, &mut out);
    let (mut piece, mut ended): (&[u8], bool) = (b"", false);
    loop {
        let wrote = talk.take(&mut out);
        next = match next {
            Next::Read => {
                assert!(!ended, "it waits for input after the end");
                piece = pieces.next().unwrap_or_default();
                ended = piece.is_empty();
                session.on(if ended { SessionInput::Ended } else { SessionInput::Bytes(piece) }, &mut out)
            }
            Next::Write { taken } => {
                assert!(wrote && taken > 0, "it makes no progress");
                piece = piece.get(taken..).expect("no more than it got");
                session.on(SessionInput::Bytes(piece), &mut out)
            }
            Next::Announce(heartbeat) => {
                check(heartbeat.address, peer);
                talk.end = Some(format!("{heartbeat:?}"));
                last(&mut *session, verdict, &mut out);
                Next::Close
            }
            Next::Quit { address, master } => {
                check(address, peer);
                talk.end = Some(format!("quit {address} {master}"));
                return talk;
            }
            Next::Close => return talk,
        };
    }
}

/// The answer to an announcement is the last one.
fn last(session: &mut dyn Session, verdict: &Verdict, out: &mut Vec<Output>) {
    let next = session.on(SessionInput::Verdict(verdict.clone()), out);
    assert!(matches!(next, Next::Close), "{next:?} after a verdict");
}

/// Nobody announces or withdraws a server at another address.
fn check(address: Address, peer: SocketAddr) {
    assert_eq!(address.ip(), peer.ip());
}

impl Talk {
    /// True if there was anything to write.
    fn take(&mut self, out: &mut Vec<Output>) -> bool {
        let wrote = !out.is_empty();
        for part in out.drain(..) {
            match part {
                Output::Bytes(bytes) => self.bytes.extend_from_slice(&bytes),
                Output::List(list) => self.lists.push(list),
            }
        }
        wrote
    }
}
