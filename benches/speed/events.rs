//! The event stream: what readers of a list that does not change get, and what many readers of one that does cost.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::iceball::fill;
use crate::load::{self, Content, Texts, Visit};
use crate::measure::cpu;
use crate::report::Report;
use crate::support::{Server, until_within};

/// Servers that are asked and always answer the same.
const UNCHANGING: u32 = 2_000;
/// As many rounds as there are in a minute, each a second instead of five.
const ROUNDS: u64 = 12;
const READERS: u32 = 10_000;
/// Servers of the list that changes, and how many of them change in a second.
const CHANGING: u32 = 2_000;
const CHANGES: u32 = 50;
/// Changes come one by one, not all at once.
const STEPS: u32 = 25;
const FOR: u64 = 10;
const TIMEOUT: Duration = Duration::from_secs(120);

pub fn run() {
    unchanging();
    for encoding in ["zstd", "br", "gzip"] {
        many_readers(encoding);
    }
}

/// Killed when the benchmark ends or panics.
struct Games(Child);

impl Drop for Games {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn unchanging() {
    let server = Server::start(&["probe.every=1s", "guard.max_servers_per_ip=65535"]);
    let master = format!("netpanzer://{}", server.address("netpanzer.listen"));
    let mut games = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
    games.args(["simulate", "netpanzer", "--count", &UNCHANGING.to_string(), "--announce", &master]);
    let games = games.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _games = Games(games);
    let listed = || server.json("/readyz")["servers"].as_u64().unwrap() as u32;
    until_within(TIMEOUT, "all servers", || (listed() == UNCHANGING).then_some(()));
    std::thread::sleep(Duration::from_secs(3)); // each has been asked
    let readers = ["identity", "zstd", "br", "gzip"].map(|encoding| {
        let (stream, snapshot) = reader(server.address("web.listen"), encoding);
        (encoding, stream, snapshot)
    });
    let serial = || server.json("/readyz")["serial"].as_u64().unwrap();
    let before = serial();
    std::thread::sleep(Duration::from_secs(ROUNDS));
    let views = serial() - before;
    println!(
        "{UNCHANGING} servers that do not change, asked {ROUNDS} times, as in a minute when asked every 5 s; {views} views"
    );
    for (encoding, mut stream, snapshot) in readers {
        let kb = drained(&mut stream).len() as f64 / 1000.0;
        let row = [snapshot as f64 / f64::from(UNCHANGING)];
        Report::new(&format!("snapshot, {encoding}"), "bytes a server", &row).servers(UNCHANGING).untargeted();
        let name = format!("servers that do not change, {encoding}");
        Report::new(&name, "kB a minute and reader", &[kb]).servers(UNCHANGING).at_most(200.0);
    }
}

/// A reader that has read its snapshot, and the size of that.
fn reader(address: SocketAddr, encoding: &str) -> (TcpStream, usize) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(request(encoding).as_bytes()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let size = drained(&mut stream).len();
    assert!(size > 10_000, "no snapshot: {size} bytes");
    (stream, size)
}

/// Reads until nothing comes for a second.
fn drained(stream: &mut TcpStream) -> Vec<u8> {
    let (mut buffer, mut all) = (vec![0; 1 << 16], Vec::new());
    while let Ok(size) = stream.read(&mut buffer) {
        assert_ne!(size, 0, "the stream ended");
        all.extend_from_slice(&buffer[..size]);
    }
    all
}

fn request(encoding: &str) -> String {
    format!("GET /api/v1/events HTTP/1.1\r\nHost: bench\r\nAccept-Encoding: {encoding}\r\n\r\n")
}

/// As many readers as descriptors allow, up to the number that is the aim.
fn affordable() -> u32 {
    let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    READERS.min(u32::try_from(soft.saturating_sub(500)).unwrap_or(READERS))
}

fn many_readers(encoding: &'static str) {
    let readers = affordable();
    let server = Server::start(&[
        "iceball.life=1h",
        "guard.max_servers_per_ip=65535",
        "guard.max_connections=1000000",
        "guard.max_connections_per_ip=1000000",
    ]);
    fill(&server, 0..CHANGING, 1, Texts::Typical);
    let memory_before = server.memory_kib();
    let received = Arc::new(AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let address = server.address("web.listen");
    runtime.spawn(connect_all(address, encoding, readers, received.clone()));
    let connected = |count: u32| server.get("/metrics").text().contains(&format!("rallypoint_event_readers {count}\n"));
    until_within(TIMEOUT, "all readers", || connected(readers).then_some(()));
    settled(&received);
    let memory = [(server.memory_kib() - memory_before) as f64 / f64::from(readers)];
    // One more reads everything, so that all changes are known to be told.
    let (mut witness, _) = reader(address, "identity");
    let (mut shares, mut bytes) = (Vec::new(), Vec::new());
    let (mut turn, mut events) = (0, Vec::new());
    witness.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let all_began = Instant::now();
    for _ in 0..FOR {
        let (before, had, began) = (cpu(server.id()), received.load(Ordering::Relaxed), Instant::now());
        for step in 1..=STEPS {
            change(&server, &mut turn, CHANGES / STEPS);
            events.extend(drained(&mut witness));
            std::thread::sleep((Duration::from_secs(1) / STEPS * step).saturating_sub(began.elapsed()));
        }
        let passed = began.elapsed().as_secs_f64();
        shares.push((cpu(server.id()) - before).as_secs_f64() / passed * f64::from(READERS) / f64::from(readers));
        bytes.push((received.load(Ordering::Relaxed) - had) as f64 / f64::from(readers) / passed);
    }
    let passed = all_began.elapsed().as_secs_f64();
    assert!(connected(readers + 1), "some readers were disconnected");
    witness.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    events.extend(drained(&mut witness));
    let count = |what: &str| events.windows(what.len()).filter(|window| *window == what.as_bytes()).count();
    let (told, frames) = (count("\"players_current\":"), count("event: delta\n"));
    assert_eq!(told, turn as usize, "not all changes were told");
    println!(
        "{readers} readers ({encoding}) of {CHANGING} servers; {:.0} changes a second, told in {:.1} events a second",
        told as f64 / passed,
        frames as f64 / passed
    );
    Report::new(&format!("readers, {encoding}"), "KiB of memory each", &memory).untargeted();
    Report::new(&format!("changes, {encoding}"), "bytes a second and reader", &bytes).untargeted();
    Report::new(&format!("{READERS} readers, {encoding}"), "share of a core", &shares).at_most(1.0);
}

/// Some servers announce another number of players.
fn change(server: &Server, turn: &mut u32, count: u32) {
    let content = Content { texts: Texts::Typical, players: (1 + *turn / CHANGING % 60) as u16 * 2, changing: 1 };
    let visits = (*turn..*turn + count).map(|at| Visit { ip: at % CHANGING, ports: 0..1 });
    load::drive(server.address("iceball.listen"), content, None, visits);
    *turn += count;
}

async fn connect_all(address: SocketAddr, encoding: &str, readers: u32, received: Arc<AtomicU64>) {
    for number in 0..readers {
        // Sixteen in a network, as in a school.
        let from = Ipv4Addr::from(u32::from_be_bytes([127, 5, 0, 1]) + number / 16);
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        stream.write_all(request(encoding).as_bytes()).await.unwrap();
        let received = received.clone();
        tokio::spawn(async move {
            let mut buffer = vec![0; 4 << 10];
            while let Ok(size @ 1..) = stream.read(&mut buffer).await {
                received.fetch_add(size as u64, Ordering::Relaxed);
            }
        });
    }
}

/// Waits until all have read their snapshots.
fn settled(received: &AtomicU64) {
    let mut before = 0;
    until_within(TIMEOUT, "the snapshots to be read", || {
        std::thread::sleep(Duration::from_millis(500));
        let now = received.load(Ordering::Relaxed);
        (std::mem::replace(&mut before, now) == now).then_some(())
    });
}
