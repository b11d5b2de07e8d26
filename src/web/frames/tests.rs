//! Frames, and what readers in different forms get of them.

use super::*;

use crate::model::{Details, Facts, Game, Player, Proof};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const RUN: u32 = 7;

fn server(port: u16, game: &'static str, players: u16) -> Arc<Server> {
    let facts = Facts { players_current: Some(players), ..Facts::default() };
    let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
    Arc::new(Server::new(address, Game::Own(game), Proof::Query, 0, &facts))
}

fn batch(serial: u64, deltas: Vec<Delta>) -> Result<Arc<Batch>, RecvError> {
    Ok(Arc::new(Batch { serial, deltas }))
}

fn players(server: Arc<Server>) -> Delta {
    Delta::Changed { now: server.clone(), before: server, fields: Fields::PLAYERS_CURRENT }
}

fn form(game: &str, details: bool) -> Arc<Form> {
    let game = Some(game.to_string()).filter(|game| !game.is_empty());
    filtered(Filter { game, ..Filter::default() }, if details { Columns::ALL } else { Columns::BRIEF })
}

fn filtered(filter: Filter, columns: Columns) -> Arc<Form> {
    Arc::new(Form::new(filter, columns, Pieces::Plain))
}

/// The name and the data of an event.
fn parsed(event: &[u8]) -> (String, Value) {
    let text = std::str::from_utf8(event).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [name, id, data, ""] = lines[..] else { panic!("{text}") };
    let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(id, format!("id: {RUN:08x}-{}", data["serial"]));
    (name.strip_prefix("event: ").unwrap().into(), data)
}

fn told(frame: &Frame, since: u64, form: &Arc<Form>) -> Option<Value> {
    let (name, data) = parsed(&frame.piece(since, 0, form, RUN, &Arc::default()).unwrap()?);
    assert_eq!(name, "delta");
    Some(data)
}

#[test]
fn a_server_that_changes_all_the_time_is_told_once_a_second_with_its_newest_state() {
    let start = Instant::now();
    let at = |ms| start + Duration::from_millis(ms);
    let mut gathered = Gathered::since(0);
    let mut frames = 0;
    for round in 1..=100 {
        gathered.take(batch(round, vec![players(server(1, "tanks", round as u16))]));
        frames += usize::from(gathered.frame(at(round * 100), usize::MAX).is_some());
    }
    assert!((9..=11).contains(&frames), "{frames} in ten seconds");
    assert!(!gathered.is_empty(), "the newest state is still to come");
    let last = gathered.frame(at(11_000), usize::MAX).unwrap();
    assert_eq!(told(&last, 0, &form("", false)).unwrap()["changed"][0]["players_current"], 100);
    assert!(gathered.is_empty() && gathered.frame(at(99_000), usize::MAX).is_none());
    // Another server is told at once.
    gathered.take(batch(101, vec![Delta::Added(server(2, "tanks", 1))]));
    assert_eq!(gathered.frame(at(11_001), usize::MAX).unwrap().before, 100);
    // Something is missing: every reader starts again.
    gathered.take(batch(103, vec![Delta::Removed(server(2, "tanks", 1))]));
    assert_eq!(gathered.frame(at(11_002), usize::MAX).unwrap().before, u64::MAX);
}

#[test]
fn what_is_told_later_than_it_happened_is_news_to_readers_that_have_its_serial() {
    let (start, mut gathered) = (Instant::now(), Gathered::since(0));
    let at = |ms| start + Duration::from_millis(ms);
    gathered.take(batch(1, vec![players(server(1, "tanks", 1))]));
    assert!(gathered.frame(at(0), usize::MAX).is_some());
    gathered.take(batch(2, vec![players(server(1, "tanks", 2)), players(server(2, "tanks", 1))]));
    let other = gathered.frame(at(200), usize::MAX).unwrap();
    assert_eq!((other.before, other.after, other.len()), (1, 2, 1));
    // Nothing else has happened.
    let late = gathered.frame(at(1_000), usize::MAX).unwrap();
    assert_eq!((late.before, late.after, late.len()), (2, 2, 1));
    assert_eq!(
        [1, 2, 3].map(|serial| (other.is_news(serial), late.is_news(serial))),
        [(true, true), (false, true), (false, false)]
    );
    assert_eq!(told(&late, 2, &form("", false)).unwrap()["changed"][0]["players_current"], 2);
}

#[test]
fn a_proof_alone_is_no_news_and_comes_along_with_a_change() {
    let (start, mut gathered) = (Instant::now(), Gathered::since(0));
    let proven = |at_s: u64| {
        let server = Server::clone(&server(1, "tanks", 3));
        Arc::new(Server { proven_at_ms: at_s * 1000, ..server })
    };
    gathered.take(batch(1, vec![Delta::Proven(proven(1))]));
    gathered.take(batch(2, vec![Delta::Changed { now: proven(2), before: proven(1), fields: Fields::NONE }]));
    assert!(gathered.is_empty() && gathered.frame(start, usize::MAX).is_none());
    gathered.take(batch(3, vec![players(proven(3))]));
    gathered.take(batch(4, vec![Delta::Proven(proven(4))]));
    let data = told(&gathered.frame(start, usize::MAX).unwrap(), 0, &form("", false)).unwrap();
    let row = json!({
        "address": "192.0.2.1", "port": 1, "endpoint": "192.0.2.1:1", "players_current": 3,
        "proven_at": "1970-01-01T00:00:04Z", "last_seen": "1970-01-01T00:00:04Z",
    });
    assert_eq!(data, json!({"serial": 4, "changed": [row]}));
}

#[test]
fn readers_are_told_only_what_concerns_them_and_what_they_do_not_have() {
    let mut gathered = Gathered::since(4);
    gathered.take(batch(5, vec![Delta::Added(server(1, "tanks", 1))]));
    let (now, before) = (server(2, "chess", 1), server(2, "chess", 1));
    gathered.take(batch(6, vec![Delta::Changed { now, before, fields: Fields::RULES }]));
    let frame = gathered.frame(Instant::now(), usize::MAX).unwrap();
    let ports = |since, form: &Arc<Form>| {
        let data = told(&frame, since, form)?;
        let rows = ["removed", "added", "changed"].into_iter().filter_map(|name| data[name].as_array());
        Some(rows.flatten().map(|row| row["port"].as_u64().unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(ports(4, &form("", true)), Some(vec![1, 2]));
    assert_eq!(ports(5, &form("", true)), Some(vec![2]), "the first is in its snapshot");
    assert_eq!(ports(4, &form("", false)), Some(vec![1]));
    assert_eq!(ports(4, &form("chess", true)), Some(vec![2]));
    assert_eq!(ports(4, &form("chess", false)), None);
    // Each piece is made once for all readers of a form.
    let (all, held) = (form("", false), Arc::default());
    let pointer = |form| frame.piece(4, 0, form, RUN, &held).unwrap().unwrap().as_ptr();
    assert_eq!(pointer(&all), pointer(&all));
    assert!(frame.bytes() > 0);
    frame.forget_pieces();
    assert_eq!(frame.bytes(), 0);
    assert!(told(&frame, 4, &all).is_some(), "it is rendered again");
    frame.forget();
    assert_eq!(frame.piece(4, 0, &all, RUN, &held), Err(Forgotten), "and a reader begins again");
    assert_eq!(Frame::joined(&[Arc::new(frame)]).err(), Some(Forgotten));
}

#[test]
fn changes_that_take_too_much_memory_are_not_told_one_by_one() {
    let mut gathered = Gathered::since(1);
    let added: Vec<_> = (1..=100).map(|port| Delta::Added(server(port, "tanks", 0))).collect();
    let bytes: usize = added.iter().map(|delta| delta.server().bytes()).sum();
    gathered.take(batch(2, added.clone()));
    let frame = gathered.frame(Instant::now(), bytes).unwrap();
    assert_eq!((frame.before, frame.len()), (u64::MAX, 0), "readers begin again");
    gathered.take(batch(3, added));
    let later = Instant::now() + Duration::from_secs(2);
    assert_eq!(gathered.frame(later, bytes * 2).unwrap().len(), 100);
}

#[test]
fn servers_come_and_go_with_what_is_wanted() {
    let form = filtered(Filter { not_empty: true, ..Filter::default() }, Columns::BRIEF);
    let mut gathered = Gathered::since(9);
    let change = |port, before, now| {
        let (before, now) = (server(port, "tanks", before), server(port, "tanks", now));
        Delta::Changed { now, before, fields: Fields::PLAYERS_CURRENT }
    };
    gathered
        .take(batch(10, vec![change(1, 0, 2), change(2, 3, 0), change(3, 1, 2), Delta::Added(server(4, "tanks", 0))]));
    gathered.take(batch(11, vec![change(5, 1, 0)]));
    gathered.take(batch(12, vec![change(5, 0, 1), Delta::Removed(server(6, "tanks", 0))]));
    let frame = gathered.frame(Instant::now(), usize::MAX).unwrap();
    let told = |since, begun| {
        let (_, data) = parsed(&frame.piece(since, begun, &form, RUN, &Arc::default()).unwrap().unwrap());
        let ports = |name: &str| {
            let rows = data[name].as_array().cloned().unwrap_or_default();
            rows.iter().map(|row| row["port"].as_u64().unwrap()).collect::<Vec<_>>()
        };
        let whole = data["changed"].as_array().unwrap().iter().filter(|row| row.get("first_seen").is_some()).count();
        (["removed", "added", "changed"].map(ports), whole)
    };
    assert_eq!(told(9, 9), ([vec![2], vec![1], vec![3, 5]], 0));
    // Who may know more or less gets whole rows, and is told what is not wanted now.
    assert_eq!(told(9, 10), ([vec![2, 4, 6], vec![], vec![1, 3, 5]], 3));
    assert_eq!(told(11, 11), ([vec![6], vec![], vec![5]], 1));
}

/// The list of a reader, as the page keeps it.
type List = BTreeMap<String, Map<String, Value>>;

fn key(row: &Value) -> String {
    format!("{}:{}", row["address"], row["port"])
}

fn apply(known: &mut List, event: &[u8]) {
    let (name, data) = parsed(event);
    if name == "snapshot" {
        known.clear();
    }
    let rows = |name: &str| data[name].as_array().cloned().unwrap_or_default();
    for row in rows("removed") {
        known.remove(&key(&row));
    }
    for row in rows("servers").into_iter().chain(rows("added")) {
        known.insert(key(&row), row.as_object().unwrap().clone());
    }
    for patch in rows("changed") {
        let row = known.entry(key(&patch)).or_default();
        for (name, value) in patch.as_object().unwrap() {
            match value {
                Value::Null => drop(row.remove(name)),
                value => drop(row.insert(name.clone(), value.clone())),
            }
        }
    }
}

/// Without what moves with every proof.
fn settled(mut known: List) -> List {
    for row in known.values_mut() {
        row.retain(|name, _| !["proven_at", "last_seen", "rtt_ms"].contains(&name.as_str()));
    }
    known
}

/// A server in one of many states.
fn varied((port, what, players, at_ms): (u16, usize, u16, u64)) -> Arc<Server> {
    let player = Player { name: "Ann".into(), score: Some(at_ms as i32 % 3), ..Player::default() };
    let details = Details { players: vec![player; players.into()], rules: [("a", "b")].into() };
    let facts = Facts {
        players_current: (players > 0).then_some(players),
        map: ["", "hills"][at_ms as usize % 2].into(),
        details: (players != 1).then(|| Arc::new(details)),
        ..Facts::default()
    };
    let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
    let server = Server::new(address, Game::Own(["tanks", "chess"][what % 2]), Proof::Query, at_ms, &facts);
    Arc::new(Server { first_seen_ms: 0, ..server })
}

proptest! {
    /// Servers come, change, are proven and go in any order. Readers begin with a snapshot of any moment, and some get
    /// several frames as one. In the end, all have the same list, whatever they want of it.
    #[test]
    fn every_reader_ends_with_the_true_list(
            steps in proptest::collection::vec((1..4u16, 0..5usize, 0..3u16, 0..400u64), 1..60), joins in 1..5usize,
            details: bool, game in 0..3usize, (not_empty, q, map) in (any::<bool>(), 0..3usize, 0..3usize)) {
        let some = |texts: [&str; 3], which: usize| Some(texts[which].to_string()).filter(|text| !text.is_empty());
        let filter = Filter {
            game: some(["", "tanks", "chess"], game),
            q: some(["", "HILL", "nothing"], q),
            map: some(["", "", "Hills"], map),
            not_empty,
            ..Filter::default()
        };
        let form = filtered(filter, if details { Columns::ALL } else { Columns::BRIEF });
        let search = Search::default();
        let (start, mut gathered, mut time) = (Instant::now(), Gathered::since(0), 0);
        let mut truth: BTreeMap<Address, Arc<Server>> = BTreeMap::new();
        let mut snapshots = vec![(0, form.snapshot(&View::new(0, 0, Vec::new()), &search, &id(RUN, 0)))];
        let mut frames: Vec<Arc<Frame>> = Vec::new();
        for (serial, step) in (1..).zip(steps) {
            let new = varied(step);
            let old = truth.get(&new.address).cloned();
            let deltas = match (old, step.1) {
                (None, _) => vec![Delta::Added(new.clone())],
                (Some(old), 3) => vec![Delta::Removed(old)],
                (Some(old), 4) => vec![Delta::Proven(old)],
                (Some(old), _) if old.game == new.game => {
                    let fields = Fields::between(&old, &new);
                    vec![Delta::Changed { now: new.clone(), before: old, fields }]
                }
                (Some(old), _) => vec![Delta::Removed(old), Delta::Added(new.clone())],
            };
            match deltas.last() {
                Some(Delta::Proven(_)) => {}
                Some(Delta::Removed(_)) => drop(truth.remove(&new.address)),
                _ => drop(truth.insert(new.address, new)),
            }
            gathered.take(batch(serial, deltas));
            let view = View::new(serial, 0, truth.values().cloned().collect());
            snapshots.push((serial, form.snapshot(&view, &Search::default(), &id(RUN, serial))));
            time += step.3;
            frames.extend(gathered.frame(start + Duration::from_millis(time), usize::MAX).map(Arc::new));
        }
        frames.extend(gathered.frame(start + Duration::from_millis(time + 1_000), usize::MAX).map(Arc::new));
        prop_assert!(gathered.is_empty());
        let mut expected = List::new();
        apply(&mut expected, &snapshots.last().unwrap().1.to_vec());
        for (mut serial, snapshot) in snapshots {
            let (mut known, began) = (List::new(), serial);
            apply(&mut known, &snapshot.to_vec());
            let news: Vec<_> = frames.iter().filter(|frame| frame.is_news(serial)).cloned().collect();
            for some in news.chunks(joins) {
                let frame = Frame::joined(some).unwrap();
                if let Ok(Some(piece)) = frame.piece(serial, began, &form, RUN, &Arc::default()) {
                    apply(&mut known, &piece);
                }
                serial = frame.after;
            }
            prop_assert_eq!(settled(known), settled(expected.clone()), "from {}", began);
        }
    }
}
