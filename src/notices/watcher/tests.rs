use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::model::{Facts, Fields, Proof};

const QUIET_MS: u64 = 300_000;
/// Longer than changes are gathered.
const SOON_MS: u64 = GATHER_MS + 500;

fn at(mono_ms: u64) -> Now {
    Now { mono_ms, unix_ms: 1_700_000_000_000 + mono_ms }
}

fn wants() -> Wants {
    Wants { on: Event::ALL.to_vec(), games: Vec::new(), servers: Vec::new(), quiet_ms: QUIET_MS, flood_per_second: 100 }
}

fn server_of(game: Game, port: u16, players: u16) -> Arc<Server> {
    let facts = Facts { name: format!("s{port}").into(), players_current: Some(players), ..Facts::default() };
    let address = Address::new([203, 0, 113, 5].into(), port).unwrap();
    Arc::new(Server::new(address, game, Proof::Query, at(u64::from(port)).unix_ms, &facts))
}

fn server(port: u16, players: u16) -> Arc<Server> {
    server_of(Game::Own("iceball"), port, players)
}

fn changed(before: &Arc<Server>, now: &Arc<Server>) -> Delta {
    Delta::Changed { now: now.clone(), before: before.clone(), fields: Fields::between(before, now) }
}

/// A watcher, the list that it watches, and all that it tells.
struct World {
    watcher: Watcher,
    listed: RefCell<HashSet<Address>>,
    cluster: Option<(bool, i64)>,
    refused: u64,
}

impl World {
    fn new(wants: Wants, listed: &[Arc<Server>]) -> World {
        let watcher = Watcher::new(wants, listed.iter().map(|server| &**server), at(0));
        let listed = listed.iter().map(|server| server.address).collect();
        World { watcher, listed: RefCell::new(listed), cluster: None, refused: 0 }
    }

    fn change(&mut self, deltas: &[Delta], now_ms: u64) {
        for delta in deltas {
            let address = delta.server().address;
            match delta {
                Delta::Removed(_) => self.listed.borrow_mut().remove(&address),
                _ => self.listed.borrow_mut().insert(address),
            };
        }
        self.watcher.changed(deltas, at(now_ms));
    }

    fn due(&mut self, now_ms: u64) -> Vec<What> {
        let refused = [("announcements", self.refused), ("tls", 0)];
        let networks = || vec!["203.0.113.0/24".to_string()];
        let state = NodeState { cluster: self.cluster, refused: &refused, networks: &networks };
        let listed = self.listed.borrow();
        let due = self.watcher.due(&state, |address, _| listed.contains(&address), at(now_ms));
        due.into_iter().map(|notice| notice.what).collect()
    }

    /// What is told between two times, looked for every half second.
    fn told(&mut self, from_ms: u64, to_ms: u64) -> Vec<What> {
        (from_ms..=to_ms).step_by(500).flat_map(|now_ms| self.due(now_ms)).collect()
    }
}

fn came(server: &Server) -> What {
    What::Came(Row::new(server))
}

fn gone(server: &Server) -> What {
    What::Went(Row::new(server))
}

#[test]
fn a_server_that_comes_is_told_and_one_that_goes_after_the_quiet_time() {
    let (old, new) = (server(1, 0), server(2, 0));
    let mut world = World::new(wants(), std::slice::from_ref(&old));
    assert_eq!(world.told(0, 10_000), [], "what was listed at the start is no news");
    world.change(&[Delta::Added(new.clone()), Delta::Proven(old.clone())], 10_000);
    assert_eq!(world.told(10_000, 20_000), [came(&new)]);
    world.change(&[Delta::Removed(old.clone())], 20_000);
    assert_eq!(world.told(20_000, 20_000 + QUIET_MS - 500), []);
    assert_eq!(world.told(20_000 + QUIET_MS, 25_000 + QUIET_MS), [gone(&old)]);
    assert_eq!(world.told(25_000 + QUIET_MS, 30_000 + 3 * QUIET_MS), [], "once");
}

#[test]
fn a_server_that_is_back_within_the_quiet_time_has_not_gone() {
    let it = server(1, 0);
    let mut world = World::new(wants(), std::slice::from_ref(&it));
    for round in 0..10 {
        let now_ms = round * (QUIET_MS - 1_000);
        world.change(&[Delta::Removed(it.clone())], now_ms);
        assert_eq!(world.told(now_ms, now_ms + QUIET_MS - 2_000), []);
        world.change(&[Delta::Added(it.clone())], now_ms + QUIET_MS - 1_500);
    }
    assert_eq!(world.told(10 * QUIET_MS, 12 * QUIET_MS), []);
    // Another game at the same address is another server.
    let other = server_of(Game::Own("netpanzer"), 1, 0);
    world.change(&[Delta::Removed(it.clone()), Delta::Added(other.clone())], 12 * QUIET_MS);
    assert_eq!(world.told(12 * QUIET_MS, 12 * QUIET_MS + SOON_MS), [came(&other)]);
}

#[test]
fn a_server_that_is_listed_after_all_has_not_gone() {
    let it = server(1, 0);
    let mut world = World::new(wants(), &[]);
    world.change(&[Delta::Removed(it.clone())], 0);
    world.listed.borrow_mut().insert(it.address); // its return was missed
    assert_eq!(world.told(0, 2 * QUIET_MS), []);
}

#[test]
fn what_other_nodes_had_before_the_start_is_no_news() {
    let mut known = Server::clone(&server(1, 5));
    known.first_seen_ms = at(0).unix_ms - 1;
    let (known, new) = (Arc::new(known), server(2, 0));
    let mut world = World::new(wants(), &[]);
    world.change(&[Delta::Added(known.clone()), Delta::Added(new.clone())], 5_000);
    assert_eq!(world.told(5_000, 20_000), [came(&new)]);
    // Later it is: it was away.
    let mut world = World::new(wants(), &[]);
    world.change(&[Delta::Added(known.clone())], START_MS);
    assert_eq!(world.told(START_MS, START_MS + SOON_MS), [came(&known), What::Players(5, Row::new(&known))]);
}

#[test]
fn a_game_has_players_again_when_nobody_played_for_the_quiet_time() {
    let (none, one, many) = (server(1, 0), server(1, 1), server(1, 9));
    let mut world = World::new(wants(), std::slice::from_ref(&none));
    world.change(&[changed(&none, &one)], 1_000);
    assert_eq!(world.told(1_000, 5_000), [What::Players(1, Row::new(&one))]);
    world.change(&[changed(&one, &many)], 5_000);
    // Another server of the game is no news, nor is a short break.
    world.change(&[Delta::Added(server(2, 3))], 5_500);
    assert_eq!(world.told(6_000, 10_000), [came(&server(2, 3))]);
    world.change(&[changed(&many, &none), Delta::Removed(server(2, 3))], 10_000);
    world.change(&[changed(&none, &one)], 10_000 + QUIET_MS - 1);
    assert_eq!(world.told(10_000, 10_000 + QUIET_MS - 500), []);
    world.change(&[changed(&one, &none)], 1_000_000);
    assert_eq!(world.told(900_000, 1_000_000 + QUIET_MS), [gone(&server(2, 3))]);
    world.change(&[changed(&none, &many)], 1_000_000 + QUIET_MS);
    assert_eq!(world.told(1_000_000 + QUIET_MS, 1_010_000 + QUIET_MS), [What::Players(9, Row::new(&many))]);
    assert_eq!(world.watcher.players.len(), 1);
}

#[test]
fn players_are_counted_anew_after_changes_were_missed() {
    let (one, none) = (server(1, 1), server(1, 0));
    let mut world = World::new(wants(), std::slice::from_ref(&one));
    world.watcher.recount(std::iter::once(&*none));
    assert_eq!(world.told(0, SOON_MS), []);
    world.change(&[changed(&none, &one)], 5_000);
    assert_eq!(world.told(5_000, 10_000), [What::Players(1, Row::new(&one))]);
}

#[test]
fn many_changes_are_one_notice_and_a_minute_later_the_next() {
    let mut world = World::new(wants(), &[]);
    let some: Vec<Delta> = (1..=MANY as u16).map(|port| Delta::Added(server(port, 0))).collect();
    world.change(&some, 0);
    assert_eq!(world.told(0, 5_000).len(), MANY);
    // One more in the same minute.
    world.change(&[Delta::Added(server(1_000, 0))], 5_000);
    assert_eq!(world.told(5_000, 10_000), [What::Many(Event::Came, 1, vec![("iceball".into(), 1)])]);
    // A network is lost. Nothing is told one by one, and nothing twice a minute.
    let all: Vec<Delta> = (1..=10_000).map(|port| Delta::Removed(server(port, 0))).collect();
    world.change(&all, 100_000);
    let told = world.told(100_000, 150_000);
    let most = 10_000 - GONE_MAX as u64;
    assert_eq!(told, [What::Many(Event::Went, most, vec![("iceball".into(), most)])], "those beyond the bound");
    let told = world.told(150_000, 200_000 + QUIET_MS);
    assert_eq!(told, [What::Many(Event::Went, GONE_MAX as u64, vec![("iceball".into(), GONE_MAX as u64)])]);
    // Single ones are told again after a minute without.
    world.change(&[Delta::Added(server(7, 0))], 700_000);
    assert_eq!(world.told(700_000, 710_000), [came(&server(7, 0))]);
}

#[test]
fn only_what_is_wanted_is_told() {
    let chess = server_of(Game::carried("netpanzer", "Chess"), 1, 2);
    let ice = server(2, 2);
    let master = server_of(Game::master("netpanzer"), 3, 0);
    let all = [chess.clone(), ice.clone(), master].map(Delta::Added);
    let told = |wants: Wants| {
        let mut world = World::new(wants, &[]);
        world.change(&all, 0);
        world.told(0, SOON_MS)
    };
    let on = vec![Event::Came];
    assert_eq!(told(Wants { on: on.clone(), ..wants() }), [came(&chess), came(&ice)]);
    assert_eq!(told(Wants { on: on.clone(), games: vec!["chess".into()], ..wants() }), [came(&chess)]);
    assert_eq!(told(Wants { on: on.clone(), games: vec!["netpanzer".into()], ..wants() }), [came(&chess)]);
    assert_eq!(told(Wants { on, servers: vec![ice.address], ..wants() }), [came(&ice)]);
    let players = told(Wants { on: vec![Event::Players], games: vec!["iceball".into()], ..wants() });
    assert_eq!(players, [What::Players(2, Row::new(&ice))]);
    assert_eq!(told(Wants { on: vec![Event::Went, Event::Flood], ..wants() }), []);
}

#[test]
fn a_node_that_is_alone_for_a_while_is_told_and_when_it_is_not() {
    let mut world = World::new(wants(), &[]);
    world.cluster = Some((false, 1));
    assert_eq!(world.told(0, ALONE_MS - 500), [], "it has just started");
    world.cluster = Some((true, 3));
    assert_eq!(world.told(ALONE_MS, 60_000), []);
    world.cluster = Some((false, 1));
    assert_eq!(world.told(60_000, 60_000 + ALONE_MS), [What::Alone(Reason::Nats)]);
    assert_eq!(world.told(100_000, 1_000_000), [], "once");
    world.cluster = Some((true, 3));
    assert_eq!(world.told(1_000_000, 1_000_000 + ALONE_MS - 500), []);
    assert_eq!(world.told(1_000_000 + ALONE_MS, 1_100_000), [What::NotAlone]);
    world.cluster = Some((true, 1));
    assert_eq!(world.told(1_100_000, 1_200_000), [What::Alone(Reason::Nodes)]);
    let mut without = World::new(wants(), &[]);
    assert_eq!(without.told(0, 1_000_000), []);
    let mut hasty = World::new(Wants { quiet_ms: 0, ..wants() }, &[]);
    hasty.cluster = Some((false, 1));
    assert_eq!(hasty.told(0, ALONE_MS - 500), [], "nobody is connected from the first moment on");
}

#[test]
fn a_flood_begins_with_many_refusals_and_ends_when_they_have_stopped() {
    let mut world = World::new(wants(), &[]);
    world.refused = 5_000;
    assert_eq!(world.told(0, 20_000), [], "what was refused before is no flood");
    world.refused += 999;
    assert_eq!(world.told(20_000, 40_000), [], "a little");
    world.refused += 1_000;
    let refusals =
        Refusals { per_second: 100, budgets: vec![("announcements", 1_000)], networks: vec!["203.0.113.0/24".into()] };
    assert_eq!(world.told(40_000, 45_000), [What::Flood(refusals)]);
    world.refused += 50_000;
    assert_eq!(world.told(45_500, 100_000), [], "it goes on");
    assert_eq!(world.told(100_500, 130_000), [What::FloodOver(51_000)]);
    // New budgets count from zero.
    world.refused = 0;
    assert_eq!(world.told(130_500, 200_000), []);
}

proptest! {
    /// Whatever the list does: of each kind there are at most [`MANY`] notices and one summary in a minute, and memory is
    /// bounded.
    #[test]
    fn notices_are_bounded(
        steps in prop::collection::vec((0..60u16, 0..4u16, 0..30_000u64, 1..60u16), 1..60),
        quiet_ms in 0..200_000u64,
    ) {
        let mut world = World::new(Wants { quiet_ms, ..wants() }, &[]);
        let mut list: HashMap<u16, Arc<Server>> = HashMap::new();
        let (mut now_ms, mut told_ms) = (0, Vec::new());
        for (port, players, pause_ms, count) in steps {
            for port in port..port + count {
                let after = server(port + 1, players);
                let delta = match (list.remove(&port), players) {
                    (Some(before), 0) => Delta::Removed(before),
                    (Some(before), _) => {
                        list.insert(port, after.clone());
                        changed(&before, &after)
                    }
                    (None, _) => {
                        list.insert(port, after.clone());
                        Delta::Added(after)
                    }
                };
                world.change(&[delta], now_ms);
            }
            let end_ms = now_ms + pause_ms;
            while now_ms < end_ms {
                let due = world.due(now_ms);
                let events = due.iter().map(|what| Notice { at_ms: 0, what: what.clone() }.event());
                told_ms.extend(events.map(|event| (event, now_ms)));
                now_ms += 500;
            }
            prop_assert!(world.watcher.gone.len() <= GONE_MAX && world.watcher.players.len() <= 1);
        }
        for event in Event::ALL {
            let times: Vec<u64> = told_ms.iter().filter(|(told, _)| *told == event.name()).map(|(_, at_ms)| *at_ms).collect();
            for (number, at_ms) in times.iter().enumerate() {
                let in_a_minute = times.iter().skip(number).filter(|later| **later < at_ms + MINUTE_MS).count();
                prop_assert!(in_a_minute <= MANY + 1, "{} {in_a_minute}", event.name());
            }
        }
    }
}
