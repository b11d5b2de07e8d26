//! The ceiling on memory: however much servers say of themselves, the program stays within it, and so it does after a restart from
//! the file that they filled.

use std::path::Path;
use std::sync::Arc;

use rallypoint::hub::Hub;
use rallypoint::model::{Address, Change, Details, Facts, Game, Player, Proof, Server as Known};
use rallypoint::protocols::{CARDS, Card, bound_facts};
use rallypoint::registry;
use rallypoint::store::{Store, history};

use crate::support::attackers::*;
use crate::support::*;

/// Every list that names servers, as clients ask for it.
const LISTS: &[&str] = &[
    "/",
    "/master.json",
    "/bloodmasterslist.php",
    "/list",
    "/ddnet/15/servers.json",
    "/api/v1/servers?limit=1000",
    "/api/v1/servers?limit=1000&details=true",
    "/api/v1/servers?limit=1000&sort=name&q=a",
];
/// How many fat servers of each protocol are in the file: more than there is memory for.
const OF_EACH: u16 = 600;

/// A server that says as much as its game may.
fn fattest(card: &'static Card, number: u16, now_ms: u64) -> Known {
    let [high, low] = number.to_be_bytes();
    let at = CARDS.iter().position(|other| other.name == card.name).unwrap() as u8;
    let address = Address::new([20 + at, high, low, 1].into(), card.game_port).unwrap();
    let long = |seed: usize, length: usize| {
        format!("{number}-{seed}-").repeat(length / 4).chars().take(length).collect::<String>()
    };
    let players = (0..256).map(|player| Player { name: long(player, 24).into(), ..Player::default() });
    let details = Details {
        players: players.collect(),
        rules: (0..200).map(|rule| (format!("rule {rule}"), long(rule, 100))).collect(),
    };
    let game = Game::Own(card.name);
    let mut facts = Facts { name: long(0, 60).into(), details: Some(Arc::new(details)), ..Facts::default() };
    bound_facts(&game, &mut facts);
    Known { life_ms: 3_600_000, ..Known::new(address, game, Proof::Cookie, now_ms, &facts) }
}

/// A file with fat servers of every protocol.
fn fill_file(folder: &Path) {
    let hub = Arc::new(Hub::new(registry::Settings::UNBOUNDED));
    let mut store = Store::open(folder, history::Settings { every_s: 3_600, bytes_max: 0 }).unwrap();
    store.start(&hub).unwrap();
    let now = hub.clock.now();
    let fat = CARDS.iter().flat_map(|card| (0..OF_EACH).map(|number| fattest(card, number, now.unix_ms)));
    for server in fat {
        let ends_at_ms = now.unix_ms + u64::from(server.life_ms);
        let change =
            Change::Restore { server: Arc::new(server), ends_at_ms, grace_ms: 0, behind_ms: 0, ask_in_ms: 3_600_000 };
        hub.apply([&change], now, |_, outcome| assert_eq!(outcome, registry::Outcome::Added));
    }
    hub.publish(hub.clock.now());
    store.stop();
}

/// All lists are answered, in every encoding, and the program still runs.
fn lists_are_answered(server: &Server) {
    let web = server.address("web.listen");
    for encoding in ["identity", "gzip", "br", "zstd"] {
        for path in LISTS {
            let answer = get(web, path, &format!("Accept-Encoding: {encoding}\r\n"));
            assert_eq!(answer.status(), 200, "{path} as {encoding}: {}", server.log());
        }
    }
    assert_eq!(server.get("/healthz").status(), 200);
    assert!(!server.log().contains("panic"), "{}", server.log());
}

#[test]
fn fat_servers_of_every_protocol_stay_within_the_ceiling_before_and_after_a_restart() {
    let folder = Folder::new("fat");
    let data = folder.path().join("data");
    fill_file(&data);
    let in_data = format!("data_dir={}", data.display());
    // The largest first: each leaves a file that is too much for the next.
    for limit_mib in [768u64, 512, 256] {
        let limits = format!("ulimit -d {}; export MALLOC_MMAP_THRESHOLD_=131072", limit_mib << 10);
        let start = || Server::start_after(&limits, &[&in_data, "probe.every=15m", "guard.exempt=127.0.0.1/32"]);
        let server = start();
        let restored = server.figure("rallypoint_servers_bytes");
        assert!(restored > 0.0);
        lists_are_answered(&server);
        // They are of one provider's network. Once it holds the most, it makes room for its own newcomers only.
        let accepted = fat_servers(&server, 40);
        assert!(limit_mib < 768 || accepted > 200, "{limit_mib} MiB: {accepted} accepted");
        lists_are_answered(&server);
        let address = newcomer(&server, (limit_mib / 256) as u8);
        until("a newcomer with little to say to be listed", || is_listed(&server, address).then_some(()));
        let ceiling = (limit_mib << 20) as f64 / 2.0 / 8.0;
        let held = server.figure("rallypoint_servers_bytes");
        assert!(held <= ceiling && held > ceiling / 2.0, "{limit_mib} MiB: {held} of {ceiling}");
        server.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(server.end().0.success());
        let server = start();
        assert!(server.json("/readyz")["servers"].as_u64().unwrap() > 0);
        lists_are_answered(&server);
        server.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(server.end().0.success());
    }
}
