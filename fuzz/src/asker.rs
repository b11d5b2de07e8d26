//! The asker as a state machine: questions, answers of all kinds from everywhere, and time. Nobody is proven without the
//! nonce of a question that was sent to that address, back on the lane it was sent from; where the game returns none, without
//! an answer on that lane. What is in flight is bounded, and every query ends.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::LazyLock;

use super::tape::Tape;
use super::world;
use rallypoint::asker::{Asker, Failure, Finished, Lane, Settings};
use rallypoint::model::Address;
use rallypoint::protocols::{Ask, CARDS, Card, ProvenBy, Question};

const SETTINGS: Settings =
    Settings { tries: 3, try_us: 900_000, all_us: 5_000_000, per_second: 200, per_ip_per_second: 20 };
const STEPS_MAX: usize = 64;
const LANES: usize = 3;
/// In this time every query has ended, whatever the limits.
const END_US: u64 = 120_000_000;

static ASKED: LazyLock<Vec<&'static Card>> =
    LazyLock::new(|| CARDS.iter().filter(|card| card.query.is_some()).collect());

/// A question that was sent.
struct Sent {
    address: Address,
    lane: Lane,
    question: Question,
    /// The number of the query that it belongs to.
    query: u64,
}

#[derive(Default)]
struct World {
    now_us: u64,
    /// The queries in flight: the game, the number of the query, and whether somebody has seen its nonce.
    asked: HashMap<Address, (&'static str, u64, bool)>,
    sent: Vec<Sent>,
    queries: u64,
}

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    let mut asker: Asker<u64> = Asker::new(SETTINGS, [9; 16]);
    let mut world = World { now_us: 1_000_000, ..World::default() };
    for _ in 0..STEPS_MAX {
        if tape.is_empty() {
            break;
        }
        step(&mut asker, &mut world, &mut tape);
        assert_eq!(asker.in_flight(), world.asked.len());
        assert!(asker.fresh() <= asker.in_flight());
    }
    let end_us = world.now_us + END_US;
    while world.now_us < end_us && !world.asked.is_empty() {
        world.now_us += 500_000;
        run_clock(&mut asker, &mut world);
        while asker.next_question(world.now_us, 0).is_some() {}
    }
    assert!(world.asked.is_empty() && asker.in_flight() == 0, "a query never ends");
    assert_eq!(asker.fresh(), 0);
}

fn address(number: usize) -> Address {
    let ip = [203, 0, 113, 5 + (number / 3) as u8].into();
    Address::new(ip, 20_000 + (number % 3) as u16).expect("a port")
}

fn step(asker: &mut Asker<u64>, world: &mut World, tape: &mut Tape<'_>) {
    match tape.below(8) {
        0 => {
            let (address, card) = (address(tape.below(6)), *tape.choice(&ASKED));
            let (Some(query), ask) = (card.query, if tape.flag() { Ask::Facts } else { Ask::Proof }) else { return };
            world.queries += 1;
            let is_new = asker.ask(address, query, ask, world.queries).is_ok();
            assert_eq!(is_new, !world.asked.contains_key(&address), "one query for each address");
            if is_new {
                world.asked.insert(address, (card.name, world.queries, false));
            }
        }
        1 | 2 => {
            let lane = tape.below(LANES) as Lane;
            if let Some((address, question)) = asker.next_question(world.now_us, lane) {
                let &(_, query, _) = world.asked.get(&address).expect("a question only to who is asked");
                world.sent.push(Sent { address, lane, question, query });
            }
        }
        3..=5 => answer(asker, world, tape),
        6 => {
            // Anything at all, from anywhere: it proves nothing.
            let (from, lane) = (address(tape.below(6)).socket(), tape.below(LANES) as Lane);
            hear(asker, world, lane, from, tape.bytes());
        }
        _ => {
            world.now_us += tape.ms() * 1_000;
            run_clock(asker, world);
        }
    }
}

/// The game answers a question, now or long after it was asked, or somebody changes its answer.
fn answer(asker: &mut Asker<u64>, world: &mut World, tape: &mut Tape<'_>) {
    let (number, facts, other_lane, other_port) = (tape.byte(), tape.below(4), tape.byte(), tape.byte());
    let (bit, which) = (usize::from(tape.number()), tape.below(2));
    let Some(sent) = number.checked_rem(world.sent.len() as u8).and_then(|at| world.sent.get(usize::from(at))) else {
        return;
    };
    let Some(card) = ASKED.iter().find(|card| world.asked.get(&sent.address).is_some_and(|asked| asked.0 == card.name))
    else {
        return;
    };
    let answers = card.answer.expect("an answer")(&(card.pretend)(facts), sent.address, &sent.question);
    let Some(mut bytes) = answers.into_iter().nth(which) else { return };
    if bit > 0 {
        world::flip(&mut bytes, bit);
    }
    let lane = if other_lane & 7 == 7 { (sent.lane + 1) % LANES as Lane } else { sent.lane };
    let from = if other_port & 7 == 7 { address(5) } else { sent.address };
    if let Some(asked) = world.asked.get_mut(&from)
        && (from, lane, asked.1) == (sent.address, sent.lane, sent.query)
    {
        asked.2 = true;
    }
    hear(asker, world, lane, from.socket(), &bytes);
}

fn hear(asker: &mut Asker<u64>, world: &mut World, lane: Lane, from: SocketAddr, bytes: &[u8]) {
    world.has_heard(lane, from);
    if let Some(finished) = asker.heard(world.now_us, lane, from, bytes) {
        world.end(finished);
    }
    while let Some((lane, address, _)) = asker.next_farewell() {
        assert!(world.sent.iter().any(|sent| sent.lane == lane && sent.address == address), "nobody asked there");
    }
}

fn run_clock(asker: &mut Asker<u64>, world: &mut World) {
    while let Some(finished) = asker.timed_out(world.now_us) {
        world.end(finished);
    }
    assert!(asker.next_timeout_us().is_none_or(|due_us| due_us > world.now_us), "a timeout is overdue");
}

impl World {
    /// Where a game returns no nonce, any answer on the lane that asked is good enough.
    fn has_heard(&mut self, lane: Lane, from: SocketAddr) {
        let Some(asked) = Address::new(from.ip(), from.port()).and_then(|from| self.asked.get_mut(&from)) else {
            return;
        };
        let query = ASKED.iter().find(|card| card.name == asked.0).and_then(|card| card.query);
        if query.is_some_and(|query| query.proven_by() == ProvenBy::Port) {
            asked.2 |= self.sent.iter().any(|sent| sent.lane == lane && sent.query == asked.1);
        }
    }

    fn end(&mut self, finished: Finished<u64>) {
        let (_, query, has_nonce) = self.asked.remove(&finished.address).expect("one end for each query");
        assert_eq!(finished.tag, query);
        match finished.result {
            Ok(_) => assert!(has_nonce, "{} is proven without its nonce", finished.address),
            Err(Failure::Silent | Failure::Bad(_)) => {}
        }
    }
}
