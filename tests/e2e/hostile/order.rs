//! What a few networks claim for many servers does not push everybody else down: in the API, on the page, and in a list over UDP
//! that is cut short.

use std::net::{Ipv4Addr, UdpSocket};
use std::ops::Range;

use rallypoint::protocols::xash3d::packets;
use serde_json::Value;

use crate::support::load::{self, Content, Dialect, Drive, Texts, Visit};
use crate::support::*;

/// Servers with so many players, each address in a network of its own: 127.NETWORKS.N.1.
fn announce(server: &Server, socket: &UdpSocket, networks: u8, numbers: Range<u8>, players: u16) {
    let content = Content { texts: Texts::Typical, players, changing: 1 };
    let ip = |number: u8| Ipv4Addr::from([127, networks, number, 1]).to_bits() - load::FIRST;
    let visits = numbers.map(|number| Visit { ip: ip(number), ports: 0..1 });
    let master = server.address("xash3d.listen");
    Drive { socket, dialect: Dialect::Xash, master, hold: None, is_gentle: true }.run(content, visits);
}

/// Announces them until the list has so many servers: a lost answer shows only there.
fn until_listed(server: &Server, count: usize, announce: impl Fn()) {
    until(&format!("{count} servers"), || {
        announce();
        let total = || server.json("/api/v1/servers?limit=1")["total"].as_u64().unwrap();
        let mut before = total();
        until("no more to come", || {
            let now = total();
            (now >= count as u64 || std::mem::replace(&mut before, now) == now).then_some(())
        });
        (before >= count as u64 || total() >= count as u64).then_some(())
    });
}

/// The addresses of a list of the API, page by page.
fn listed(server: &Server, parameters: &str) -> Vec<String> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = server.json(&format!("/api/v1/servers?limit=70{parameters}{after}"));
        all.extend(page["servers"].as_array().unwrap().iter().map(|row| row["endpoint"].as_str().unwrap().to_string()));
        match &page["next"] {
            Value::String(next) => after = format!("&after={next}"),
            _ => return all,
        }
    }
}

/// The first list over UDP that has fewer servers than there are. No packet is the last of a list that is cut short: the next list,
/// with another key, begins when it is over.
fn short_list_over_udp(server: &Server, count: usize) -> Vec<String> {
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    let mut list = Vec::new();
    for key in 1u32.. {
        let request = format!("0.0.0.0:0\0\\gamedir\\valve\\key\\{key:x}\0");
        client.send_to(&[b"1\xff", request.as_bytes()].concat(), server.address("xash3d.listen")).unwrap();
        loop {
            let mut buffer = [0; 2_048];
            let size = client.recv(&mut buffer).unwrap();
            let servers = |key| {
                let packet = packets::decode(&buffer[..size], key)?;
                Some(packet.servers.iter().map(ToString::to_string).collect::<Vec<_>>())
            };
            match servers(key) {
                Some(next) if key == 1 || list.len() == count => {
                    list = next;
                    break;
                }
                Some(_) => return list,
                None => list.extend(servers(key - 1).unwrap()),
            }
        }
    }
    unreachable!()
}

#[test]
fn servers_of_thirteen_addresses_do_not_stand_above_all_others() {
    let server = Server::start(&["probe.every=10m"]);
    let real = UdpSocket::bind("0.0.0.0:0").unwrap();
    until_listed(&server, 60, || {
        for (numbers, players) in [(0..20, 3), (20..40, 20), (40..60, 11)] {
            announce(&server, &real, 16, numbers, players);
        }
    });
    let is_real = |address: &String| address.starts_with("127.16.");
    // Nobody attacks: the order is that of players.
    assert_eq!(listed(&server, ""), listed(&server, "&sort=players"));

    let attackers: Vec<_> = (0..32).map(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).collect();
    until_listed(&server, 60 + 13 * 32, || {
        attackers.iter().for_each(|attacker| announce(&server, attacker, 128, 0..13, 63));
    });
    let by_players = listed(&server, "&sort=players");
    assert_eq!(by_players.iter().position(is_real), Some(13 * 32), "what was asked for is what comes");
    let expected_real: Vec<_> = by_players.iter().filter(|it| is_real(it)).cloned().collect();
    let fair = listed(&server, "");
    assert_eq!(fair.iter().position(is_real), Some(13));
    assert_eq!(fair[13..73], expected_real, "all of them, by players");
    let mut all = fair.clone();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 60 + 13 * 32, "each server is on one page");
    assert_eq!(listed(&server, "&game=xash3d"), fair);

    let page = server.get("/");
    assert_eq!(page.text().matches("data-address=\"127.16.").count(), 60, "{}", page.text());
    let next =
        page.text().split("rel=\"next\" href=\"").nth(1).unwrap().split('"').next().unwrap().replace("&amp;", "&");
    assert_eq!(server.get(&next).text().matches("data-address=\"127.16.").count(), 0);
    let frame = server.get("/embed?limit=20");
    assert!(frame.text().contains("127.16."), "{}", frame.text());

    // Over UDP, lists get shorter as a client's budget runs low.
    let short = short_list_over_udp(&server, 60 + 13 * 32);
    let shown = short.len().min(73);
    assert!(shown > 60 && short.len() < 60 + 13 * 32, "{}", short.len());
    assert_eq!(short.iter().take(13).filter(|it| is_real(it)).count(), 0);
    assert!(short[13..shown].iter().all(is_real), "{short:?}");
}
