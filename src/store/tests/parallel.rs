//! A long list is restored by several threads, with the same result as by one.

use std::net::{IpAddr, Ipv6Addr};

use super::*;

/// One of many, in the order of announcement: half of them at IPv6 addresses, between the others in the file.
fn numbered(number: u16) -> Change<'static> {
    let Change::Announce(announce) = announce(1 + number, u64::from(number % 97) * 500, Proof::Cookie) else {
        unreachable!()
    };
    let ip: IpAddr = match number % 2 {
        0 => [32, 1, 13, number as u8].into(),
        _ => Ipv6Addr::from_bits(0x2001_0db8 << 96 | u128::from(number % 256) << 64).into(),
    };
    // Some of them can be queried.
    let rtt_us = number.is_multiple_of(3).then_some(5);
    let address = Address::new(ip, 1 + number).unwrap();
    Change::Announce(Announce { address, rtt_us, ..announce })
}

/// A folder with a long list, in which some rows are invalid.
fn long_list(name: &str) -> Folder {
    let (folder, hub) = (Folder::new(name), large_hub());
    let (mut writer, _) = writer(&folder, &hub);
    let changes: Vec<_> = (0..MANY).map(numbered).collect();
    hub.apply(&changes, hub.clock.now(), |_, _| {});
    hub.publish(hub.clock.now());
    assert_eq!(hub.view().servers.len(), usize::from(MANY));
    writer.turn(true);
    let connection = writer.connection();
    connection.execute("UPDATE servers SET details = '{' WHERE players = 3 AND random() % 50 = 0", []).unwrap();
    // These sort before and after all addresses.
    for address in ["'text'", "7", "x''", "x'ffffffffffffffffffff'"] {
        let copy = format!(
            "INSERT INTO servers SELECT {address}, game, proof, proven_at, first_seen, last_seen, life, rtt_us, name, mode,
             map, version, players, players_max, password, details, keys, protocol, via FROM servers LIMIT 1"
        );
        connection.execute(&copy, []).unwrap();
    }
    folder
}

fn others(folder: &Folder, count: usize) -> Vec<Connection> {
    (0..count).map(|_| sqlite::open_to_read(&folder.file()).unwrap()).collect()
}

#[test]
fn several_threads_restore_what_one_restores() {
    let folder = long_list("parallel");
    let restored = |others_count: usize| {
        let hub = large_hub();
        let connection = sqlite::open_to_read(&folder.file()).unwrap();
        let is_banned = |ip: IpAddr| ip.to_string().ends_with(".76");
        let restored = restore::restore(&connection, others(&folder, others_count), &hub, is_banned).unwrap();
        hub.publish(hub.clock.now());
        let (mut due, mut ends) = (Vec::new(), Vec::new());
        for ms in (0..=3_500).step_by(250) {
            hub.due(later(&hub, ms), 10_000, &mut due);
        }
        // The order of those that are due within one step depends on when that begins.
        due.sort_by_key(|due| due.address);
        hub.lives(0, usize::MAX / 2, hub.clock.now(), &mut ends);
        // Their ends depend on the moment at which they were restored.
        let ends: Vec<_> = ends.into_iter().map(|life| (life.address, life.proven_at_ms)).collect();
        (restored, hub.view().servers.clone(), due, ends)
    };
    let alone = restored(0);
    assert!(alone.0.listed > 4_800 && alone.0.refused > 5 && alone.0.unreadable > 20, "{:?}", alone.0);
    assert_eq!(alone.0.listed + alone.0.refused + alone.0.unreadable, usize::from(MANY) + 4, "each row once");
    assert!(alone.2.len() > 1_000);
    for count in [1, 3] {
        assert!(restored(count) == alone, "{count} other threads");
    }
}

#[test]
fn a_damaged_page_that_any_of_the_threads_reads_is_damage() {
    let folder = long_list("parallel-damage");
    let whole = {
        sqlite::empty_log(&sqlite::open(&folder.file()).unwrap()).unwrap();
        std::fs::read(folder.file()).unwrap()
    };
    let mut found = 0;
    for part in 1..8 {
        let mut bytes = whole.clone();
        let page = whole.len() / 4096 * part / 8 * 4096;
        bytes[page..page + 4096].fill(0xff);
        std::fs::write(folder.file(), bytes).unwrap();
        let connection = sqlite::open_to_read(&folder.file()).unwrap();
        let restored = restore::restore(&connection, others(&folder, 2), &large_hub(), |_| false);
        found += usize::from(restored.is_err_and(|error| sqlite::is_damage(&error)));
    }
    assert!(found >= 5, "of 7 pages, nearly all are the list's: {found}");
}
