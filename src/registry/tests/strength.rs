//! A weaker proof never replaces, changes, extends or ends a live stronger one.

use super::*;
use crate::model::{Gone, RemoteServer, RemoteState, VersionText};

fn connected(address: Address, game: &'static str, ms: u64) -> Announce<'static> {
    Announce {
        address,
        game: Game::Own(game),
        proof: Proof::Connection,
        proven_at_ms: T + ms,
        life_ms: 720_000,
        asked: false,
        rtt_us: None,
        keys: Some(keys("1")),
        facts: Facts::default(),
    }
}

fn remote(announce: Announce<'static>, stronger_gone_ms: Option<u64>) -> Change<'static> {
    let (first_seen_ms, last_seen_ms) = (announce.proven_at_ms, announce.proven_at_ms);
    let listed = RemoteServer {
        silence: Default::default(),
        announce,
        node: 9,
        first_seen_ms,
        last_seen_ms,
        via: None,
        stronger_gone_ms,
    };
    Change::Merge(Box::new(RemoteState::Listed(listed)))
}

fn remote_gone(address: Address, ms: u64, game_ms: Option<u64>, quit: bool) -> Change<'static> {
    let game_at_ms = game_ms.map_or(0, |ms| T + ms);
    Change::Merge(Box::new(RemoteState::Gone(Gone { address, at_ms: T + ms, game_at_ms, quit, foreign: true })))
}

fn restored(proof: Proof, game: &'static str, ms: u64) -> Change<'static> {
    let mut server = Server::new(address(1, 1), Game::Own(game), proof, T + ms, &Facts::default());
    server.life_ms = 720_000;
    Change::Restore { server: Arc::new(server), ends_at_ms: T + ms + 720_000, grace_ms: 0, behind_ms: 0, ask_in_ms: 0 }
}

const REFUSED: Outcome = Outcome::Refused(Refusal::StrongerProof);

#[test]
fn a_connection_neither_clears_nor_extends_nor_ends_a_server_proven_by_a_cookie() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 20737);
    registry.apply(&announce(server, 0, 7), at(0));
    let before = only(&mut registry);
    for game in ["one", "other"] {
        assert_eq!(registry.apply(&Change::Announce(connected(server, game, 1_000)), at(1_000)), REFUSED);
    }
    assert_eq!(registry.apply(&heartbeat(server, "1"), at(1_000)), Outcome::Refused(Refusal::NotListed));
    assert_eq!(
        registry.apply(&Change::Quit { address: server, master: false, proven: false }, at(1_000)),
        Outcome::Stale
    );
    assert_eq!(registry.apply(&remote(connected(server, "other", 2_000), None), at(2_000)), Outcome::Stale);
    assert_eq!(registry.apply(&remote_gone(server, 2_000, None, true), at(2_000)), Outcome::Stale);
    assert!(!registry.is_dirty());
    assert!(Arc::ptr_eq(registry.listed(server).unwrap(), &before));
    // The end of its life has not changed. From then on, even before it is expired, its place is free.
    assert_eq!(registry.apply(&Change::Announce(connected(server, "other", 119_999)), at(119_999)), REFUSED);
    assert_eq!(registry.apply(&Change::Announce(connected(server, "other", 120_000)), at(120_000)), Outcome::Changed);
}

#[test]
fn a_server_that_no_longer_answers_gives_up_its_place() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&asked(server, 0), at(0));
    assert_eq!(registry.apply(&Change::Announce(connected(server, "other", 10)), at(10)), REFUSED);
    for _ in 0..3 {
        registry.apply(&miss(server), at(90_000));
    }
    assert_eq!(registry.apply(&Change::Announce(connected(server, "other", 95_000)), at(95_000)), Outcome::Changed);
    // Its record tells other nodes that the stronger proof has ended, so an older copy of that one is ignored.
    let known = registry.local_state(server, at(95_000));
    let Some(merge::LocalState::Listed { stronger_gone_ms, .. }) = known else { panic!("{known:?}") };
    assert_eq!(stronger_gone_ms, Some(T + 90_000));
    let Change::Announce(old) = asked(server, 80_000) else { unreachable!() };
    assert_eq!(registry.apply(&remote(old, None), at(96_000)), Outcome::Stale);
    assert_eq!(registry.listed(server).unwrap().game.name(), "other");

    let mut elsewhere = Registry::new(SETTINGS, at(0));
    elsewhere.apply(&asked(server, 80_000), at(80_000));
    let newer = remote(connected(server, "other", 95_000), stronger_gone_ms);
    assert_eq!(elsewhere.apply(&newer, at(96_000)), Outcome::Changed);
    assert_eq!(elsewhere.listed(server).unwrap().verified_by, Proof::Connection);
    // But it does not replace a proof that is newer than the removal.
    let mut elsewhere = Registry::new(SETTINGS, at(0));
    elsewhere.apply(&asked(server, 91_000), at(91_000));
    assert_eq!(elsewhere.apply(&newer, at(96_000)), Outcome::Stale);
    assert_eq!(elsewhere.listed(server).unwrap().verified_by, Proof::Query);
}

#[test]
fn a_weaker_proof_of_the_millisecond_in_which_the_stronger_one_ended_counts_on_all_nodes() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&announce(server, 0, 7), at(0));
    registry.apply(&remote(connected(server, "other", 1_000), Some(T + 1_000)), at(1_000));
    assert_eq!(only(&mut registry).game.name(), "other");
    assert_eq!(
        registry.apply(&remote(asked_announce(server, 1_000), None), at(1_000)),
        Outcome::Stale,
        "it ended then"
    );
}

#[test]
fn a_stronger_proof_that_has_ended_does_not_stay_in_the_store() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    registry.apply(&remote(connected(server, "other", 1_000), Some(T + 500)), at(1_000));
    let known = registry.local_state(server, at(1_000)).unwrap();
    for (ms, is_ahead) in [(400, true), (500, true), (600, false)] {
        let Change::Merge(late) = remote(asked_announce(server, ms), None) else { unreachable!() };
        assert_eq!(known.is_ahead_of(&late), is_ahead, "{ms}");
    }
}

fn asked_announce(address: Address, ms: u64) -> Announce<'static> {
    let Change::Announce(announce) = asked(address, ms) else { unreachable!() };
    announce
}

#[test]
fn a_stronger_proof_takes_the_place_of_a_weaker_one_even_if_it_is_older() {
    let server = address(1, 1);
    let weak = || {
        let mut registry = Registry::new(SETTINGS, at(0));
        registry.apply(&Change::Announce(connected(server, "other", 5_000)), at(5_000));
        registry
    };
    let Change::Announce(strong) = announce(server, 4_000, 7) else { unreachable!() };
    for change in [Change::Announce(strong.clone()), remote(strong, None), restored(Proof::Cookie, "one", 4_000)] {
        let mut registry = weak();
        assert!(matches!(registry.apply(&change, at(6_000)), Outcome::Changed | Outcome::Added), "{change:?}");
        let listed = registry.listed(server).unwrap();
        assert_eq!((listed.verified_by, listed.game.name()), (Proof::Cookie, "one"));
    }
    // A node that reads the weaker one puts the stronger one again.
    let mut registry = Registry::new(SETTINGS, at(0));
    registry.apply(&announce(server, 0, 7), at(0));
    let known = registry.local_state(server, at(6_000)).unwrap();
    let Change::Merge(weaker) = remote(connected(server, "other", 5_000), None) else { unreachable!() };
    assert!(known.is_ahead_of(&weaker));
    let Change::Merge(gone) = remote_gone(server, 5_000, None, true) else { unreachable!() };
    assert!(known.is_ahead_of(&gone));
}

#[derive(Clone, Debug)]
enum Act {
    Announce { proof: Proof, game: &'static str, age_ms: u64 },
    RemoteState { proof: Proof, game: &'static str, age_ms: u64 },
    Restore { proof: Proof, game: &'static str, age_ms: u64 },
    Gone { age_ms: u64, strong: bool, quit: bool },
    Heartbeat { game: &'static str },
    Answer { game: &'static str },
    Miss { game: &'static str },
    Quit,
    Wait { ms: u64 },
}

fn act() -> impl Strategy<Value = Act> {
    let proof = prop_oneof![2 => Just(Proof::Connection), 1 => Just(Proof::Query), 1 => Just(Proof::Cookie)];
    let game = prop_oneof![Just("one"), Just("other")];
    let proven = (proof, game.clone(), 0..3_000u64);
    prop_oneof![
        4 => proven.clone().prop_map(|(proof, game, age_ms)| Act::Announce { proof, game, age_ms }),
        4 => proven.clone().prop_map(|(proof, game, age_ms)| Act::RemoteState { proof, game, age_ms }),
        1 => proven.prop_map(|(proof, game, age_ms)| Act::Restore { proof, game, age_ms }),
        2 => (0..3_000u64, any::<bool>(), any::<bool>())
            .prop_map(|(age_ms, strong, quit)| Act::Gone { age_ms, strong, quit }),
        2 => game.clone().prop_map(|game| Act::Heartbeat { game }),
        1 => game.clone().prop_map(|game| Act::Answer { game }),
        2 => game.prop_map(|game| Act::Miss { game }),
        2 => Just(Act::Quit),
        3 => (0..90_000u64).prop_map(|ms| Act::Wait { ms }),
    ]
}

impl Act {
    fn change(&self, ms: u64) -> Option<Change<'static>> {
        let server = address(1, 1);
        let announce = |proof, game, age_ms| Announce {
            proof,
            asked: proof == Proof::Query,
            ..connected(server, game, ms - age_ms)
        };
        Some(match *self {
            Act::Announce { proof, game, age_ms } => Change::Announce(announce(proof, game, age_ms)),
            Act::RemoteState { proof, game, age_ms } => remote(announce(proof, game, age_ms), None),
            Act::Restore { proof, game, age_ms } => restored(proof, game, ms - age_ms),
            Act::Gone { age_ms, strong, quit } => remote_gone(server, ms - age_ms, strong.then_some(ms - age_ms), quit),
            Act::Heartbeat { game } => {
                Change::Heartbeat { address: server, game: Game::Own(game), life_ms: 50_000, keys: keys("2") }
            }
            Act::Answer { game } => {
                Change::Answer { address: server, game: Game::Own(game), rtt_us: 1, facts: None, digest: 0 }
            }
            Act::Miss { game } => Change::Miss { address: server, game: Game::Own(game), proven_at_ms: None },
            Act::Quit => Change::Quit { address: server, master: false, proven: false },
            Act::Wait { .. } => return None,
        })
    }

    /// Whether its proof is weaker than the listed one.
    fn is_weaker_than(&self, listed: Proof) -> bool {
        match self {
            Act::Announce { proof, .. } | Act::RemoteState { proof, .. } | Act::Restore { proof, .. } => {
                proof.strength() < listed.strength()
            }
            Act::Gone { strong, .. } => !strong && Proof::Connection.strength() < listed.strength(),
            // They come over a connection, which is how servers that are queried announce themselves.
            Act::Heartbeat { .. } | Act::Quit => listed == Proof::Cookie,
            Act::Answer { .. } | Act::Miss { .. } | Act::Wait { .. } => false,
        }
    }
}

proptest! {
    #[test]
    fn a_weaker_proof_alters_nothing_of_a_living_stronger_one(acts in proptest::collection::vec(act(), 1..60)) {
        let mut registry = Registry::new(SETTINGS, at(0));
        let mut ms = 10_000;
        for act in acts {
            let Some(change) = act.change(ms) else {
                let Act::Wait { ms: wait_ms } = act else { unreachable!() };
                ms += wait_ms;
                if wait_ms % 2 == 0 { // otherwise the end of a life has not been noticed yet
                    while registry.expire(at(ms), 10) {}
                }
                continue;
            };
            let before = registry.address_state(address(1, 1), at(ms));
            registry.apply(&change, at(ms));
            let Some(before) = before.filter(|record| record.listed && record.life_left_ms > 0) else { continue };
            if act.is_weaker_than(before.server.verified_by) {
                let after = registry.address_state(address(1, 1), at(ms)).unwrap();
                prop_assert_eq!(&before.server, &after.server, "{:?}", act);
                let rest = |record: &AddressState| (record.listed, record.misses, record.proven_at_ms, record.life_left_ms);
                prop_assert_eq!(rest(&before), rest(&after), "{:?}", act);
            }
        }
    }
}

#[test]
fn a_cookie_stays_the_proof_of_a_server_that_is_queried_and_its_version_stays_known() {
    let mut registry = Registry::new(SETTINGS, at(0));
    let server = address(1, 1);
    let announced = |ms: u64| {
        let Change::Announce(announce) = announce(server, ms, 1) else { unreachable!() };
        let facts = Facts { version: VersionText::from("0.21").unwrap(), ..Facts::default() };
        Change::Announce(Announce { asked: true, facts, ..announce })
    };
    registry.apply(&announced(0), at(0));
    let mut due = Vec::new();
    registry.due(at(wheel::TICK_MS), 10, &mut due);
    assert_eq!((due.len(), due[0].proven), (1, true), "its name is asked for at once");
    let facts = Facts { name: "named".into(), players_current: Some(3), ..Facts::default() };
    let answer = Change::Answer { address: server, game: Game::Own("one"), rtt_us: 9, facts: Some(facts), digest: 0 };
    drained(&mut registry);
    assert_eq!(registry.apply(&answer, at(1_000)), Outcome::Changed);
    let listed = only(&mut registry);
    assert_eq!((listed.verified_by, listed.proven_at_ms), (Proof::Cookie, T + 1_000));
    assert_eq!((listed.texts.name(), listed.texts.version()), ("named", "0.21"));
    assert!(listed.was_asked());
    assert_eq!(registry.apply(&answer, at(2_000)), Outcome::Refreshed);
    // The next announcement has no name, and takes away none.
    assert_eq!(registry.apply(&announced(60_000), at(60_000)), Outcome::Refreshed);
    let listed = only(&mut registry);
    assert_eq!((listed.texts.name(), listed.players_current, listed.rtt_us.is_some()), ("named", Some(3), true));
    for round in 1..=3 {
        let miss = Change::Miss { address: server, game: Game::Own("one"), proven_at_ms: None };
        registry.apply(&miss, at(60_000 + round * 30_000));
    }
    assert!(matches!(drained(&mut registry).as_slice(), [(_, None)]), "it is gone when it no longer answers");
}
