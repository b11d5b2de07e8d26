//! Silence that somebody else causes: a forger asks game servers in the master's name until they do not answer it any more, because
//! they limit their answers per address, as ioquake3 does.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rallypoint::model::Address;
use rallypoint::protocols::quake3::{announce, answer};
use serde_json::Value;

use crate::support::attackers::forged_queries;
use crate::support::commands::listed;
use crate::support::*;

/// The answers that an address gets at once, and how soon the next one: ioquake3's limit.
const BURST: u32 = 10;
const PERIOD: Duration = Duration::from_secs(1);
/// Forged queries a second: one in a thousand of the master's own is answered by chance.
const FORGED: u32 = 1_000;
/// How often a game announces itself at first, and while somebody forges queries. The longer interval is what the master gets
/// used to, so that a busy machine may delay the others.
const SELDOM: Duration = Duration::from_secs(6);
const OFTEN: Duration = Duration::from_millis(300);

/// A game server of the Quake III family that limits its answers per address.
struct Limited {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    stop: AtomicBool,
    often: AtomicBool,
    /// Its answers to what the master asks because of an announcement.
    proofs: AtomicU64,
}

impl Limited {
    fn start(server: &Server, number: usize) -> Limited {
        let master = server.address("quake3.listen");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(OFTEN / 3)).unwrap();
        let address = socket.local_addr().unwrap();
        let shared = Arc::new(Shared { stop: false.into(), often: false.into(), proofs: 0.into() });
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || run(&socket, master, number, &shared)
        });
        Limited { address, shared, thread: Some(thread) }
    }

    fn announces_often(&self, often: bool) {
        self.shared.often.store(often, Ordering::Relaxed);
    }

    fn row(&self, server: &Server) -> Option<Value> {
        listed(server).into_iter().find(|row| row["endpoint"] == self.address.to_string())
    }

    /// Whether it is listed, and as one that does not answer.
    fn state(&self, server: &Server) -> Option<bool> {
        Some(self.row(server)?["unanswered_since"].is_string())
    }

    /// Waits until the master knows how often it announces itself.
    fn until_known(&self, server: &Server) {
        until("two announcements", || (self.shared.proofs.load(Ordering::Relaxed) >= 2).then_some(()));
        until("it to be listed", || self.state(server));
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            assert!(thread.join().is_ok() || std::thread::panicking(), "a game failed");
        }
    }
}

/// What an address has used, as of a time.
struct Bucket {
    level: u32,
    since: Instant,
}

impl Bucket {
    fn grants(&mut self, now: Instant) -> bool {
        let drained = ((now - self.since).as_millis() / PERIOD.as_millis()) as u32;
        self.level = self.level.saturating_sub(drained);
        self.since += PERIOD * drained;
        let is_granted = self.level < BURST;
        self.level += u32::from(is_granted);
        is_granted
    }
}

fn run(socket: &UdpSocket, master: SocketAddr, number: usize, shared: &Shared) {
    let facts = answer::pretend(number);
    let local = socket.local_addr().unwrap();
    let own = Address::new(local.ip(), local.port()).unwrap();
    let mut buckets: HashMap<IpAddr, Bucket> = HashMap::new();
    let (mut announced, mut buffer) = (None, [0; 2048]);
    while !shared.stop.load(Ordering::Relaxed) {
        let every = if shared.often.load(Ordering::Relaxed) { OFTEN } else { SELDOM };
        if announced.is_none_or(|at| Instant::now() >= at + every) {
            announced = Some(Instant::now());
            socket.send_to(&announce::heartbeat(&facts), master).unwrap();
        }
        let Ok((size, from)) = socket.recv_from(&mut buffer) else { continue };
        let now = Instant::now();
        let bucket = buckets.entry(from.ip()).or_insert(Bucket { level: 0, since: now });
        if !bucket.grants(now) {
            continue;
        }
        for bytes in answer::answer(&facts, own, &buffer[..size]) {
            let _ = socket.send_to(&bytes, from); // the forger does not listen
            shared.proofs.fetch_add(u64::from(from == master), Ordering::Relaxed);
        }
    }
}

fn start(more: &[&str]) -> Server {
    Server::start(&[&["probe.every=1s"], more].concat())
}

#[test]
fn a_server_that_somebody_silences_stays_marked_below_the_others_and_a_dead_one_leaves() {
    let server = start(&[]);
    let (target, dead) = (Limited::start(&server, 0), Limited::start(&server, 1));
    let witness = Limited::start(&server, 2);
    [&target, &dead, &witness].into_iter().for_each(|game| game.until_known(&server));
    assert_eq!(target.state(&server), Some(false));
    let before = target.row(&server).unwrap();

    let attack = forged_queries(target.address, Ipv4Addr::LOCALHOST, FORGED);
    target.announces_often(true);
    let dead_address = dead.address.to_string();
    drop(dead);
    until("the attack", || (attack.done() > u64::from(FORGED)).then_some(()));
    let marked = until("the mark", || target.row(&server).filter(|row| row["unanswered_since"].is_string()));
    for field in ["name", "map", "verified_by", "rules", "first_seen"] {
        assert_eq!(marked[field], before[field], "{field} is what it said last");
    }
    until("the dead one to leave while the other stays", || {
        let all = listed(&server);
        assert!(all.iter().any(|row| row["endpoint"] == target.address.to_string()), "{all:?}");
        all.iter().all(|row| row["endpoint"] != dead_address).then_some(())
    });
    // Both are empty, and only the mark decides.
    until("it to be the last of the list", || {
        let rows = server.json("/api/v1/servers")["servers"].as_array().unwrap().clone();
        (rows.last()?["unanswered_since"].is_string() && rows.len() == 2).then_some(())
    });
    until("the page to say so", || {
        let game = marked["game"].as_str().unwrap();
        let page = server.get(&format!("/servers/{game}/{}", target.address)).text().to_string();
        let since = target.row(&server)?["unanswered_since"].as_str()?.to_string();
        let list = server.get("/").text().matches("data-field=\"unanswered\">announces itself").count();
        (page.contains(&format!("data-field=\"unanswered_since\">{since}")) && list == 1).then_some(())
    });
    until("the doctor to say so", || {
        let says = server.json(&format!("/api/v1/check?game=quake3&address={}", target.address));
        let summary = says["summary"].as_str()?.contains("announces itself and does not answer our queries");
        (summary && says["advice"].as_str()?.contains("in this master's name")).then_some(())
    });
    assert_eq!(witness.state(&server), Some(false), "another one is not silenced");

    target.announces_often(false);
    drop(attack);
    until("it to answer again", || (target.state(&server) == Some(false)).then_some(()));
}

#[test]
fn after_the_grace_a_silent_server_leaves_although_it_announces_itself_and_comes_back_with_an_answer() {
    let server = start(&["probe.grace=15s"]);
    let target = Limited::start(&server, 0);
    target.until_known(&server);
    let attack = forged_queries(target.address, Ipv4Addr::LOCALHOST, FORGED);
    target.announces_often(true);
    until("the mark", || (target.state(&server) == Some(true)).then_some(()));
    until("the end of the grace", || target.state(&server).is_none().then_some(()));
    target.announces_often(false);
    drop(attack);
    until("it to be back", || (target.state(&server) == Some(false)).then_some(()));
}

#[test]
fn without_a_grace_silence_ends_a_listing() {
    let server = start(&["probe.grace=0s"]);
    let target = Limited::start(&server, 0);
    target.until_known(&server);
    target.announces_often(true);
    let _attack = forged_queries(target.address, Ipv4Addr::LOCALHOST, FORGED);
    until("it to leave", || {
        let state = target.state(&server);
        assert_ne!(state, Some(true), "nothing is marked");
        state.is_none().then_some(())
    });
}

/// Whoever forges one of our addresses does not silence the other.
#[test]
fn another_address_of_ours_asks_before_a_server_leaves() {
    for from in ["127.0.0.2", "127.0.0.1,127.0.0.2"] {
        let server = start(&[&format!("probe.from={from}"), "probe.grace=0s"]);
        let target = Limited::start(&server, 0);
        target.until_known(&server);
        target.announces_often(true);
        let attack = forged_queries(target.address, Ipv4Addr::LOCALHOST, FORGED);
        let (mut proven, mut proofs) = (String::new(), 0);
        // Without an answer, it would leave within three rounds.
        until("four newer proofs, of three rounds each at the most", || {
            let row = target.row(&server).unwrap_or_else(|| panic!("it left the list, asked from {from}"));
            assert!(row.get("unanswered_since").is_none(), "{row}");
            let now = row["proven_at"].as_str().unwrap().to_string();
            proofs += u32::from(std::mem::replace(&mut proven, now) != proven);
            (proofs > 4 && attack.done() > 5 * u64::from(FORGED)).then_some(())
        });
    }
}

#[test]
fn an_address_that_is_not_ours_stops_the_start() {
    let output = command().args(["serve", "--set", "probe.from=192.0.2.1", "--set", "data_dir="]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).to_string();
    assert!(!output.status.success() && said.contains("192.0.2.1"), "{said}");
}
