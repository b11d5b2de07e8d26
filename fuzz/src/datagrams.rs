//! Datagrams to the master's rules, with a filled list. The input is a datagram itself, or changes an honest exchange.
//!
//! Nothing unproven is listed: a change needs what the master sent to that very address and port, unaltered, in time, with a
//! key that still counts. A reply is hardly longer than its datagram. A list in packets is bounded and has its end mark.

use std::net::SocketAddr;

use super::tape::Tape;
use super::world::{self, DATAGRAM_SERVICES, DatagramService, Honest, START, VIEW, later};
use rallypoint::model::{Address, Announce, Change, Now};
use rallypoint::protocols::{Context, DatagramRules, Effect, Fetch, ListRequest, Reply, packets};

/// The header of IPv4 and UDP, which count for what a sender can make of a datagram.
const HEADER_BYTES: usize = 28;
/// Ethernet sends no fewer bytes than these behind the header: a shorter datagram costs as much.
const PAYLOAD_BYTES_MIN: usize = 18;
/// A reply takes at most 1.2 times the bytes of its datagram.
const REPLY_TENTHS_MAX: usize = 12;
/// Every proof counts for this long, and none counts after that.
const YOUNG_MS: u64 = 29_000;
const OLD_MS: u64 = 69_000;
/// A proof that has no room for its time carries it in steps of this length, and then counts from the end of its step.
const STEP_MS: u64 = 8_000;
/// Clocks of nodes may differ.
const SKEW_MS: u64 = 2_100;
const PACKETS_MAX: usize = 256;
const INTRODUCTION_BYTES_MAX: usize = 64;
const PACKET_BYTES_MAX: usize = 1_400;

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let service = tape.choice(&DATAGRAM_SERVICES);
    let from = *tape.choice(&senders());
    let rules = service.rules(0);
    if tape.flag() {
        handshake(service, from, &mut tape);
    } else {
        let change = receive(service, rules, START, from, tape.rest());
        assert!(change.is_none(), "listed without a proof: {change:?}");
    }
}

fn senders() -> [SocketAddr; 8] {
    [
        ([203, 0, 113, 5], 27_960).into(),
        ([203, 0, 113, 5], 27_961).into(),
        ([203, 0, 113, 6], 27_960).into(),
        ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 5], 27_960).into(),
        ([0, 0, 0, 0, 0, 0xffff, 0xcb00, 0x7105], 27_960).into(), // the first, mapped
        ([203, 0, 113, 5], 0).into(),
        ([255, 255, 255, 255], 27_960).into(),
        ([224, 0, 0, 1], 27_960).into(),
    ]
}

/// An exchange that somebody may disturb.
fn handshake(service: &DatagramService, from: SocketAddr, tape: &mut Tape<'_>) {
    let server = Honest::new(service.card, tape.below(64), from);
    let Some(reply) = server.reply(service.rules(0), &VIEW, START) else { return };
    let (to, age_ms, early_ms, turns) = (*tape.choice(&senders()), tape.ms(), tape.ms(), tape.below(3));
    let (changed_reply, changed_proof) = (tape.number(), tape.number());
    let mut received = reply.to_vec();
    if changed_reply > 0 {
        world::flip(&mut received, usize::from(changed_reply));
    }
    let Some(mut proof) = server.answer(&received) else { return };
    // A second change could undo the first.
    if changed_proof > 0 && changed_reply == 0 {
        world::flip(&mut proof, usize::from(changed_proof));
    }
    let (kept, added) = (tape.number(), tape.rest());
    if kept > 0 {
        proof.truncate(usize::from(kept));
    }
    proof.extend(added);

    let now = Now { unix_ms: START.unix_ms + age_ms - early_ms.min(age_ms + START.unix_ms), ..later(age_ms) };
    let age = now.unix_ms.abs_diff(START.unix_ms);
    let (is_early, same_peer) = (now.unix_ms < START.unix_ms, is_same(from, to));
    let change = receive(service, service.rules(turns), now, to, &proof);

    let in_time = if is_early { age <= SKEW_MS } else { age <= OLD_MS };
    let may_count = same_peer && in_time && turns < 2 && changed_reply == 0;
    assert!(may_count || change.is_none(), "listed without a proof: {change:?}");
    let is_whole = changed_proof == 0 && kept == 0 && added.is_empty();
    if may_count && is_whole && !is_early && age <= YOUNG_MS {
        let announce = change.expect("an honest server is listed");
        let (earliest, latest) =
            (START.unix_ms - 99, (START.unix_ms + STEP_MS).min(now.unix_ms.max(START.unix_ms + 99)));
        assert!((earliest..=latest).contains(&announce.proven_at_ms), "proven at {}", announce.proven_at_ms);
    }
}

fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    (one.ip().to_canonical(), one.port()) == (other.ip().to_canonical(), other.port())
}

/// What the rules make of a datagram, with the laws that hold for all of them. Returns what is to be listed.
fn receive<'a>(
    service: &DatagramService,
    rules: &dyn DatagramRules,
    now: Now,
    from: SocketAddr,
    bytes: &'a [u8],
) -> Option<Announce<'a>> {
    let bytes = bytes.get(..service.bytes_max).unwrap_or(bytes);
    let mut reply = Reply::new();
    let effect = rules.datagram(&Context { now, view: &VIEW }, from, bytes, &mut reply);
    let most = (bytes.len().max(PAYLOAD_BYTES_MIN) + HEADER_BYTES) * REPLY_TENTHS_MAX / 10;
    assert!(reply.len() + HEADER_BYTES <= most, "{} bytes for {}", reply.len(), bytes.len());
    assert!(
        reply.is_empty() || matches!(effect, Effect::Answered(_) | Effect::Announced(..)),
        "a reply besides {effect:?}"
    );
    match effect {
        Effect::Announced(_, Change::Announcing { address, .. }) => {
            assert_eq!(address.socket(), from, "an announcement counts for its sender");
            None
        }
        Effect::Announced(_, change) => panic!("{change:?} without a proof"),
        Effect::Answered(_) | Effect::Dropped(_) => None,
        Effect::List(request) => {
            list(service, rules, from, &request);
            None
        }
        Effect::Change(Change::Announce(announce)) => {
            check(service, now, from, &announce);
            Some(announce)
        }
        Effect::Change(other) => panic!("a datagram causes {other:?}"),
    }
}

fn check(service: &DatagramService, now: Now, from: SocketAddr, announce: &Announce<'_>) {
    assert_eq!(announce.address.ip(), from.ip().to_canonical());
    assert_eq!(announce.game.protocol(), service.card.name);
    assert!(announce.life_ms <= service.section.life_max_ms());
    assert!(announce.proven_at_ms <= now.unix_ms + SKEW_MS);
    let facts = &announce.facts;
    for text in [&facts.game, &facts.name, &facts.mode, &facts.map] {
        assert!(!text.chars().any(char::is_control), "{text:?} has control characters");
    }
    for count in [facts.players_current, facts.players_max] {
        assert!(count.is_none_or(|count| count <= service.card.players_most));
    }
}

fn list(service: &DatagramService, rules: &dyn DatagramRules, from: SocketAddr, request: &ListRequest) {
    // The canonical form is a request for the same list.
    let again = rules.datagram(&Context { now: START, view: &VIEW }, from, request, &mut Reply::new());
    assert!(matches!(&again, Effect::List(again) if again == request), "{request:?} becomes {again:?}");
    let list = rules.list(request).expect("a list").render(&VIEW);
    let packets: Vec<&[u8]> = packets::split(list.whole()).collect();
    let (mark, end) = rules.last_packet();
    let (last, others) = packets.split_last().expect("a last packet");
    assert!(packets.len() <= PACKETS_MAX && packets.iter().all(|packet| packet.len() <= PACKET_BYTES_MAX));
    assert!(last.ends_with(end) && others.iter().all(|packet| packet.ends_with(mark)));
    let Fetch::Datagrams(fetch) = &service.card.fetch else { return };
    let is_listed = |address: &Address| VIEW.of_protocol(service.card.name).any(|server| server.address == *address);
    for packet in &packets {
        // A master may speak of itself as if it were a server, which a client asks in its list's place.
        let is_own = || service.card.query.is_some_and(|query| query.hear(packet).is_ok());
        let Some(read) = fetch.read(packet) else {
            assert!(is_own() && packets.len() == 1, "a packet that clients cannot read");
            continue;
        };
        assert!(read.servers.iter().all(is_listed), "{:?} are not all listed", read.servers);
    }
    let echo = rules.echo(request);
    assert!(echo.is_none_or(|echo| packets.iter().all(|packet| packet.len() >= echo.at)), "no place for the echo");
    if let Some(introduction) = rules.introduction(request, from) {
        assert!(introduction.datagram.len() <= INTRODUCTION_BYTES_MAX);
        let told = introduction.servers.render(&VIEW);
        assert!(
            packets::addresses(told.whole()).all(|address| is_listed(&address)),
            "somebody who is not listed is told"
        );
    }
}
