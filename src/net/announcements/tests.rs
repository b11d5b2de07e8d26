//! Heartbeats: what is verified, what stays, and what is refused.

mod posts;

use super::*;
use crate::budget;
use crate::cookie::Keys;
use crate::metrics::Metrics;
use crate::model::{HeartbeatKeys, SharedTime};
use crate::net::guard;
use crate::net::prober::{self, ProbeSettings, Worker};
use crate::protocols::{self, CARDS, Card};
use crate::registry::Settings;
use tokio::net::UdpSocket;

const STATUS: &[u8] = br"gamename\netpanzer\hostname\A server\final\";
const FORGED: &[u8] = br"gamename\netpanzer\hostname\Forged\final\";

/// Announcements with a running prober.
fn announcements() -> Arc<Announcements> {
    announcements_with(Names::default())
}

fn announcements_with(names: Names) -> Arc<Announcements> {
    let settings = Settings {
        servers_max: 10,
        servers_per_ip_max: 10,
        ask_every_ms: 900_000,
        misses_max: 1,
        ..Settings::UNBOUNDED
    };
    let (hub, ledger) = (Arc::new(Hub::new(settings)), Arc::new(Ledger::new()));
    hub.start().unwrap(); // this thread ends with the test process
    let settings = prober::settings(1_000, 100, Duration::from_secs(30));
    let metrics = Arc::new(Metrics::new());
    let (prober, worker) = Worker::new(hub.clone(), ledger.clone(), metrics, settings, &[], [7; 16]).unwrap();
    let asking = watch::Sender::new(ProbeSettings { settings, exempt: Arc::default() });
    let stop = watch::Sender::new(false);
    tokio::spawn(async move {
        worker.run(asking.subscribe(), stop.subscribe()).await;
        drop((asking, stop));
    });
    let budgets = budget::Settings { servers_per_ip_max: 32, ..budget::Settings::default() };
    let guard = Arc::new(Guard::new(guard::Settings { budgets, ..guard::Settings::default() }));
    let cookies = Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() };
    Arc::new(Announcements { names, ..Announcements::new(hub, guard, prober, ledger, cookies) })
}

fn heartbeat(address: Address) -> Heartbeat {
    Heartbeat {
        address,
        game: Game::Own("netpanzer"),
        life_ms: 60_000,
        verify: true,
        keys: Default::default(),
        said: None,
        name: None,
    }
}

/// A netPanzer game. A forger sends another status with each of its answers.
async fn disputed_game() -> Address {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let local = socket.local_addr().unwrap();
    tokio::spawn(async move {
        let mut buffer = [0; 100];
        while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
            let is_long = buffer[..size].ends_with(br"\status\");
            let answers = [&buffer[6..14], STATUS, FORGED];
            for answer in answers.into_iter().take(if is_long { 3 } else { 1 }) {
                socket.send_to(answer, from).await.unwrap();
            }
        }
    });
    Address::new(local.ip(), local.port()).unwrap()
}

#[tokio::test]
async fn known_facts_stay_while_new_ones_are_disputed() {
    let (announcements, address) = (announcements(), disputed_game().await);
    let now = announcements.hub.clock.now();
    let known = Facts { name: "Known".into(), map: "Duell".into(), players_max: Some(8), ..Facts::default() };
    let announce = Announce {
        address,
        game: Game::Own("netpanzer"),
        proof: Proof::Query,
        proven_at_ms: now.unix_ms,
        life_ms: 60_000,
        asked: false,
        rtt_us: None,
        keys: None,
        facts: known.clone(),
    };
    let changes =
        [Change::Announce(announce), Change::Miss { address, game: Game::Own("netpanzer"), proven_at_ms: None }];
    announcements.hub.apply(&changes, now, |_, _| {});
    assert!(announcements.hub.listed(address).is_none(), "it is off the list, but its record is kept");
    assert_eq!(announcements.announce(heartbeat(address)).await, Verdict::Listed);
    let server = announcements.hub.listed(address).unwrap();
    assert_eq!((server.facts(), server.verified_by), (known, Proof::Query));
    assert!(announcements.ledger.notes(address).iter().any(|note| note.what == What::Disputed));
}

/// A pretend server of a family, which says that it is this game.
async fn server_of(card: &'static Card, game: &'static str) -> Address {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let local = socket.local_addr().unwrap();
    let address = Address::new(local.ip(), local.port()).unwrap();
    let pretend = (card.pretend)(1);
    // The game may be among its rules, too.
    let mut details = pretend.details.as_deref().cloned().unwrap_or_default();
    details.rules = details.rules.iter().filter(|(_, value)| *value != pretend.game).collect();
    let facts = Facts { game: game.into(), details: Some(Arc::new(details)), ..pretend };
    tokio::spawn(async move {
        let mut buffer = [0; 200];
        while let Ok((size, from)) = socket.recv_from(&mut buffer).await {
            for answer in card.answer.unwrap()(&facts, address, &buffer[..size]) {
                socket.send_to(&answer, from).await.unwrap();
            }
        }
    });
    address
}

#[tokio::test]
async fn a_server_of_a_family_says_which_game_it_is() {
    for card in CARDS.iter().filter(|card| card.games == Games::Family) {
        let (announcements, address) = (announcements(), server_of(card, "Tanks").await);
        let heartbeat = |address| Heartbeat::new(address, None, card.name, HeartbeatKeys::default()).unwrap();
        // Whatever the setting is: the answer alone says which game it is.
        let unverified = Heartbeat { verify: false, ..heartbeat(address) };
        assert_eq!(announcements.announce(unverified).await, Verdict::Listed);
        let game = |address| announcements.hub.listed(address).map(|server| server.game.clone());
        assert_eq!(game(address), protocols::game(card.name, "Tanks"));
        assert_eq!(announcements.announce(heartbeat(address)).await, Verdict::Listed, "another heartbeat renews it");
        assert_eq!(game(address), protocols::game(card.name, "Tanks"));
        for bad in ["", CARDS[0].name] {
            let address = server_of(card, bad).await;
            let verdict = announcements.announce(heartbeat(address)).await;
            assert!(matches!(&verdict, Verdict::Refused(reason) if reason.contains("gamename")), "{verdict:?}");
            assert_eq!(game(address), None);
        }
    }
}

/// Other programs at its address can connect from there, and name its port.
#[tokio::test]
async fn a_server_with_its_own_port_is_neither_changed_nor_removed_over_a_connection() {
    for card in CARDS.iter().filter(|card| card.announce.only_itself().is_some()) {
        let keys = |text: &[u8]| HeartbeatKeys([("protocol", text)].into_iter().collect());
        let announcements = announcements();
        let now = announcements.hub.clock.now();
        if card.proof == Proof::Cookie {
            let address = "127.0.0.1:1".parse().unwrap();
            assert!(Heartbeat::new(address, None, card.name, keys(b"1")).is_err(), "a connection proves less");
            let announce = Announce {
                address,
                game: protocols::game(card.name, card.name).unwrap_or(Game::Own(card.name)),
                proof: Proof::Cookie,
                proven_at_ms: now.unix_ms,
                life_ms: 60_000,
                asked: false,
                rtt_us: None,
                keys: None,
                facts: Facts::default(),
            };
            announcements.hub.apply_one(&Change::Announce(announce), now);
            announcements.quit(address, false).await;
            assert!(announcements.hub.listed(address).is_some(), "{}", card.name);
            continue;
        }
        let address = server_of(card, "Tanks").await;
        let announce = Announce {
            address,
            game: protocols::game(card.name, "Tanks").unwrap(),
            proof: Proof::Query,
            proven_at_ms: now.unix_ms,
            life_ms: 60_000,
            asked: true,
            rtt_us: None,
            keys: Some(Arc::new(keys(b"71"))),
            facts: Facts::default(),
        };
        announcements.hub.apply_one(&Change::Announce(announce), now);
        let heartbeat = Heartbeat::new(address, None, card.name, keys(b"1")).unwrap();
        assert_eq!(announcements.announce(heartbeat).await, Verdict::Listed);
        announcements.quit(address, false).await;
        let server = announcements.hub.listed(address).unwrap();
        assert_eq!(server.keys.as_deref(), Some(&keys(b"71")));

        // Where it is new, lists know it by its answer.
        let address = server_of(card, "Tanks").await;
        let heartbeat = Heartbeat::new(address, None, card.name, keys(b"1")).unwrap();
        assert_eq!(announcements.announce(heartbeat).await, Verdict::Listed);
        let server = announcements.hub.listed(address).unwrap();
        assert_eq!(server.keys.as_deref(), Some(&HeartbeatKeys::of(card.name, address)));
    }
}

#[test]
fn only_a_server_of_a_family_may_say_which_game_it_is() {
    let facts = Facts { game: "Tanks".into(), ..Facts::default() };
    for card in CARDS {
        let said = said_game(&Game::Own(card.name), &facts, None).unwrap();
        let expected = if card.games == Games::Family { "Tanks" } else { card.name };
        assert_eq!((said.protocol(), said.name()), (card.name, expected));
    }
}
