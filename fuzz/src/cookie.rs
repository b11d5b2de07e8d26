//! Cookies and signatures. An honest one is accepted within its life by all nodes that share the keys. Any changed bit,
//! another address, a wrong time or a key that no longer counts makes it worthless.

use std::net::SocketAddr;

use super::tape::Tape;
use super::world::{self, START};
use arrayvec::ArrayVec;
use rallypoint::cookie::{AGE_MAX_MS, Keys, OVERHEAD, Opened};

const ROOM: usize = 128;
const SKEW_MAX_MS: u64 = 2_000;

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let keys = world::keys();
    let peers: [SocketAddr; 4] = [
        ([203, 0, 113, 5], 40_000).into(),
        ([203, 0, 113, 5], 40_001).into(),
        ([203, 0, 113, 6], 40_000).into(),
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 5], 40_000).into(),
    ];
    let (to, from) = (*tape.choice(&peers), *tape.choice(&peers));
    let (sealed_ms, opened_ms) = (START.unix_ms + tape.ms(), START.unix_ms + tape.ms());
    let (turns, adopted, bit) = (tape.below(4), tape.flag(), usize::from(tape.number()));
    let content = tape.rest();

    assert!(keys.open(opened_ms, from, content).is_err(), "somebody made up a cookie");
    let mut cookie = ArrayVec::<u8, ROOM>::new();
    let fits = keys.seal(sealed_ms, to, content, &mut cookie);
    assert_eq!(fits, content.len() + OVERHEAD <= ROOM);
    assert_eq!(cookie.len(), if fits { content.len() + OVERHEAD } else { 0 });
    let mut signature: [u8; 13] = keys.sign(to, content);
    let is_changed = bit > 0;
    if is_changed {
        world::flip(&mut cookie, bit);
        world::flip(&mut signature, bit);
    }
    let now = turned(keys, turns, adopted);
    let is_known = turns < 2;
    let is_signed = now.is_signed(from, content, &signature);
    assert_eq!(is_signed, from == to && is_known && !is_changed, "the signature");
    assert!(!now.for_purpose(b"another").is_signed(from, content, &signature));

    let in_time = opened_ms + SKEW_MAX_MS >= sealed_ms && opened_ms <= sealed_ms + AGE_MAX_MS;
    let opened = now.open(opened_ms, from, &cookie);
    if fits && from == to && is_known && !is_changed && in_time {
        assert_eq!(opened, Ok(Opened { sealed_at_ms: sealed_ms, content }));
    } else {
        assert!(opened.is_err(), "{opened:?}");
    }
}

/// The keys after so many rotations, or as another node that had its own adopted them.
fn turned(keys: Keys, turns: usize, adopted: bool) -> Keys {
    let turned = [[7; 16], [8; 16], [9; 16]].iter().take(turns).fold(keys, |keys, secret| keys.rotated(*secret));
    if adopted { turned.instead_of(&Keys::new([[4; 16], [5; 16], [6; 16]])) } else { turned }
}
