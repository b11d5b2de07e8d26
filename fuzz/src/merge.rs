//! Records of other nodes. The same records in any order, some more than once, give the same list. A weaker proof is not
//! kept while a stronger one lives, so all records come once for each strength, as they do from a node that puts them again.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::tape::Tape;
use super::world::START;
use rallypoint::model::{
    Address, Announce, Change, Facts, Game, Gone, Origin, Proof, RemoteServer, RemoteState, Strength,
};
use rallypoint::protocols::CARDS;
use rallypoint::registry::{Registry, Settings};

const SETTINGS: Settings = Settings { servers_max: 10_000, servers_per_ip_max: 100, ..Settings::UNBOUNDED };
const RECORDS_MAX: usize = 8;
const ROUNDS: usize = 3;
/// The records are about two servers.
const SERVERS: usize = 2;

thread_local! {
    /// One node for many inputs, because making one takes long. Each input is about addresses of its own.
    static NODE: RefCell<(Registry, u32)> = RefCell::new((Registry::new(SETTINGS, START), 0));
}
const INPUTS_MAX: u32 = 1 << 8;

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let count = 1 + tape.below(RECORDS_MAX);
    let records: Vec<_> = (0..count).map(|number| record(number as u8, &mut tape)).collect();
    let in_order: Vec<usize> = (0..ROUNDS).flat_map(|_| 0..count).collect();
    let mut shuffled = Vec::new();
    for _ in 0..ROUNDS {
        let mut left: Vec<usize> = (0..count).collect();
        left.extend((0..tape.below(4)).map(|_| tape.below(count)));
        while !left.is_empty() {
            shuffled.push(left.swap_remove(tape.below(left.len())));
        }
    }
    NODE.with_borrow_mut(|(registry, inputs)| {
        if *inputs >= INPUTS_MAX {
            (*registry, *inputs) = (Registry::new(SETTINGS, START), 0);
        }
        *inputs += 1;
        let one = list(registry, &records, &in_order, fresh(2 * *inputs));
        let other = list(registry, &records, &shuffled, fresh(2 * *inputs + 1));
        assert_eq!(one, other, "{in_order:?} and {shuffled:?} of {records:#?}");
    });
}

/// A record about one of the servers, and which one.
fn record(number: u8, tape: &mut Tape<'_>) -> (usize, RemoteState<'static>) {
    let (server, address) = (tape.below(SERVERS), Address::new([203, 0, 113, 5].into(), 1).expect("an address"));
    // A node has one proof of a server in a millisecond, and each record here is another node's.
    let at_ms = START.unix_ms - 1_000 * u64::from(tape.byte() % 16);
    if tape.below(4) == 0 {
        let game_at_ms = if tape.flag() { at_ms } else { 0 };
        let gone = Gone { address, at_ms, game_at_ms, quit: tape.flag(), foreign: true };
        return (server, RemoteState::Gone(gone));
    }
    let proof = *tape.choice(&[Proof::Cookie, Proof::Query, Proof::Connection]);
    let facts = Facts { players_current: Some(number.into()), ..Facts::default() };
    let announce = Announce {
        address,
        game: Game::Own(CARDS[tape.below(2)].name),
        proof,
        proven_at_ms: at_ms,
        life_ms: 1_000 * u64::from(1 + tape.byte() % 16),
        asked: proof == Proof::Query,
        rtt_us: None,
        keys: None,
        facts,
    };
    let last_seen_ms = at_ms.saturating_sub(1_000 * u64::from(tape.byte() % 4));
    let via = (proof == Proof::Query && tape.flag()).then(|| Arc::new(Origin::new("another master")));
    let weak = Strength::of(proof, via.is_some()).is_weak();
    let stronger_gone_ms = (weak && tape.flag()).then(|| at_ms.saturating_sub(1_000 * u64::from(tape.byte() % 4)));
    let node = number + 1;
    let listed = RemoteServer {
        silence: Default::default(),
        announce,
        via,
        node,
        first_seen_ms: last_seen_ms,
        last_seen_ms,
        stronger_gone_ms,
    };
    (server, RemoteState::Listed(listed))
}

/// A server's game, proof and its strength, its time and node, and players.
type Listed = (Game, Proof, Strength, u64, u8, Option<u16>);

/// What a node lists after these records, which are about servers that it has never heard of.
fn list(
    registry: &mut Registry,
    records: &[(usize, RemoteState<'static>)],
    order: &[usize],
    addresses: [Address; SERVERS],
) -> [Option<Listed>; SERVERS] {
    for number in order {
        let (server, mut record) = records[*number].clone();
        match &mut record {
            RemoteState::Listed(listed) => listed.announce.address = addresses[server],
            RemoteState::Gone(gone) => gone.address = addresses[server],
        }
        registry.apply(&Change::Merge(Box::new(record)), START);
    }
    addresses.map(|address| {
        let server = registry.listed(address)?;
        let proof = (server.verified_by, server.strength(), server.proven_at_ms, server.node);
        Some((server.game.clone(), proof.0, proof.1, proof.2, proof.3, server.players_current))
    })
}

/// Addresses that no input has used at this node.
fn fresh(number: u32) -> [Address; SERVERS] {
    [20_001, 20_002].map(|port| Address::new(Ipv4Addr::from_bits(0x0a00_0000 + number).into(), port).expect("a port"))
}
