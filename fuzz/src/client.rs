//! What the client side and the cluster read: typed addresses, files of addresses, records of other nodes, key rings, times.
//! What parses can be written and is then read as the same.

use super::tape::Tape;
use super::world::START;
use rallypoint::client::{Target, addresses};
use rallypoint::cluster::clock::Offset;
use rallypoint::cluster::{keyring, record};
use rallypoint::model::{Address, Change, RemoteState};
use rallypoint::registry::{Registry, Settings};
use rallypoint::times;

const SETTINGS: Settings = Settings { servers_max: 10, servers_per_ip_max: 10, ..Settings::UNBOUNDED };

pub fn run(input: &[u8]) {
    let mut tape = Tape::new(input);
    match tape.below(6) {
        0 => target(&String::from_utf8_lossy(tape.rest())),
        1 => file(&String::from_utf8_lossy(tape.rest())),
        2 => stored_record(tape.rest()),
        3 => key(&String::from_utf8_lossy(tape.rest())),
        4 => {
            let read = keyring::decode(tape.rest());
            let again = read.as_ref().map(keyring::encode);
            let same =
                again.is_none_or(|again| keyring::decode(&again).map(|keys| keyring::encode(&keys)) == Some(again));
            assert!(same, "a key ring changes");
        }
        _ => duration(&String::from_utf8_lossy(tape.rest())),
    }
}

/// An address shows itself as one that means the same.
fn target(text: &str) {
    let Ok(target) = text.parse::<Target>() else { return };
    let shown = target.to_string();
    let again: Target = shown.parse().unwrap_or_else(|error| panic!("{text:?} shows itself as {shown:?}: {error}"));
    assert_eq!((&again.host, again.port, &again.path), (&target.host, target.port, &target.path), "{text:?} {shown:?}");
    assert_eq!(again.to_string(), shown);
    let _ = (target.game_server().is_ok(), target.master_port(), target.page("/x"));
    if let (Some(fetch), Ok((path, query))) = (target.datagram_fetch(), target.path_and_query()) {
        let _ = fetch.requests(&path, query, &[]);
    }
}

fn file(text: &str) {
    let (targets, wrong) = addresses::read(text);
    let lines = text.lines().count();
    assert!(wrong.iter().all(|(line, _)| (1..=lines).contains(line)) && wrong.len() <= lines);
    targets.iter().for_each(|target| super::client::target(&target.to_string()));
}

fn key(text: &str) {
    if let Some(address) = record::address(text) {
        assert_eq!(record::address(&record::key(address)), Some(address));
    }
}

/// A record of another node is merged, and goes on to a third one as the same.
fn stored_record(bytes: &[u8]) {
    let address: Address = "203.0.113.5:20737".parse().expect("an address");
    let Ok(record) = record::decode(address, bytes) else { return };
    let (put_ms, offset) = (record.put_ms, Offset::default());
    let (remote, _) = record.into_local_time(put_ms, offset, START);
    assert_eq!(remote.address(), address);
    let mut registry = Registry::new(SETTINGS, START);
    registry.apply(&Change::Merge(Box::new(remote)), START);
    let Some(state) = registry.local_state(address, START) else { return };
    let sent = record::encode("a node", START.unix_ms, &state, offset);
    assert!(sent.len() <= record::VALUE_BYTES_MAX);
    let read = record::decode(address, &sent).expect("our own record");
    let (remote, _) = read.into_local_time(START.unix_ms, offset, START);
    let mut other = Registry::new(SETTINGS, START);
    other.apply(&Change::Merge(Box::new(remote.clone())), START);
    match (registry.listed(address), &remote) {
        (Some(server), RemoteState::Listed(_)) => {
            let copy = other.listed(address).expect("listed there, too");
            assert!(server.is_the_same_as(copy), "{server:?}\n{copy:?}");
        }
        (listed, remote) => assert!(listed.is_none() && matches!(remote, RemoteState::Gone(_))),
    }
}

fn duration(text: &str) {
    // Beyond some hundred million years, seconds are rounded.
    if let Some(duration) = times::parse_duration(text).filter(|duration| duration.as_secs() < 1 << 52) {
        let shown = times::format_duration(duration);
        let again = times::parse_duration(&shown).unwrap_or_else(|| panic!("{text:?} shows itself as {shown:?}"));
        assert_eq!(times::format_duration(again), shown);
    }
}
