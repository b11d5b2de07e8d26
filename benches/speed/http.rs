//! Lists over 32 keep-alive connections, compared with nginx, which sends the same bytes from a file with `sendfile`: of 16 kB,
//! of 150 kB, and 304 for clients that have the list; the same beside 1,000 idle readers of events.
//!
//! Both are asked by the same few threads, which throw away what they read, so that the asking costs little. On a machine
//! with few cores they still take some of what the servers could use: compare the processor time per request, too.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::Pid;

use crate::iceball::{fill, start};
use crate::load::Texts;
use crate::measure::cpu;
use crate::report::Report;
use crate::support::{self, Folder, Server, until};

const CONNECTIONS: usize = 32;
/// Threads that ask.
const ASKING: usize = 2;
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(1000);
const EVENT_READERS: usize = 1_000;
const READERS_PER_IP: usize = 20;
const PATH: &str = "/master.json";

pub fn run() {
    // A connection is two descriptors: one here, one in the server, which takes over the limit.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most.min(65_536), most).unwrap();
    compare("a list of 16 kB", 100, true, 1.0);
    compare("a list of 150 kB", 935, false, 0.9);
}

/// Compares lists of so many servers, and a known one if wanted.
fn compare(what: &str, servers: u32, with_known: bool, target: f64) {
    let server = start();
    fill(&server, 0..servers, 1, Texts::Typical);
    let list = server.get(PATH);
    println!("{servers} servers, {} bytes; {CONNECTIONS} keep-alive connections", list.body.len());
    let address = server.address("web.listen");
    let Some(nginx) = Nginx::start(&list.body) else {
        println!("nginx is not installed (Debian package `nginx`): nothing to compare with");
        return;
    };
    let asked = |etag: &str, address| {
        let list = support::get(address, PATH, "");
        format!("If-None-Match: {}\r\n", list.header(etag).unwrap())
    };
    let (known, known_to_nginx) = (asked("Etag", address), asked("ETag", nginx.address));
    let ours = Side { address, processes: vec![server.id()] };
    let theirs = Side { address: nginx.address, processes: nginx.processes() };
    let round = |what: &str| {
        ratio(what, (&ours, ""), (&theirs, ""), (200, &list.body), target);
        if with_known {
            ratio(&format!("{what}, 304"), (&ours, &known), (&theirs, &known_to_nginx), (304, b""), 1.0);
        }
    };
    round(what);
    let _readers = event_readers(&server);
    round(&format!("{what}, beside {EVENT_READERS} readers of events"));
}

/// A server that is asked.
struct Side {
    address: SocketAddr,
    processes: Vec<u32>,
}

/// Measures both in turn.
fn ratio(
    what: &str,
    (ours, our_headers): (&Side, &str),
    (theirs, their_headers): (&Side, &str),
    (status, body): (u16, &[u8]),
    target: f64,
) {
    let (mut our_rates, mut their_rates, mut our_costs, mut their_costs) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        for (side, headers, rates, costs) in [
            (theirs, their_headers, &mut their_rates, &mut their_costs),
            (ours, our_headers, &mut our_rates, &mut our_costs),
        ] {
            let measured = measure(side, headers, status, body);
            rates.push(measured.0);
            costs.push(measured.1);
        }
    }
    Report::new(what, "requests/s", &our_rates).beside("nginx", &their_rates).at_least(target);
    let cost = format!("{what}: processor time");
    Report::new(&cost, "us/request", &our_costs).beside("nginx", &their_costs).untargeted();
}

/// Requests answered per second, and the microseconds of the server's processor time that each took.
fn measure(side: &Side, headers: &str, status: u16, body: &[u8]) -> (f64, f64) {
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    let used = || side.processes.iter().map(|pid| cpu(*pid)).sum::<Duration>();
    let stop = AtomicBool::new(false);
    let connect = || -> Vec<Connection> {
        let connections = CONNECTIONS / ASKING;
        (0..connections).map(|_| Connection::new(side.address, request.as_bytes(), status, body)).collect()
    };
    let all: Vec<_> = (0..ASKING).map(|_| connect()).collect();
    std::thread::scope(|scope| {
        let (start, before) = (Instant::now(), used());
        let threads: Vec<_> =
            all.into_iter().map(|some| scope.spawn(|| ask_until(&stop, some, request.as_bytes()))).collect();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let answered = threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>() as f64;
        (answered / start.elapsed().as_secs_f64(), (used() - before).as_micros() as f64 / answered)
    })
}

struct Connection {
    stream: TcpStream,
    /// The size of an answer, and how much of it is missing.
    whole: usize,
    missing: usize,
}

impl Connection {
    /// Connects, and checks the first answer. All others have the same size.
    fn new(address: SocketAddr, request: &[u8], status: u16, body: &[u8]) -> Connection {
        let mut stream = support::connect(address);
        let _ = stream.set_nodelay(true);
        stream.write_all(request).unwrap();
        let (mut answer, mut byte) = (Vec::new(), [0]);
        while !answer.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        assert!(answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{}", String::from_utf8_lossy(&answer));
        let mut received = vec![0; body.len()];
        stream.read_exact(&mut received).unwrap();
        assert!(received == body, "another body");
        Connection { stream, whole: answer.len() + body.len(), missing: 0 }
    }

    fn ask(&mut self, request: &[u8]) {
        self.stream.write_all(request).unwrap();
        self.missing = self.whole;
    }

    /// Throws away what there is of the answer.
    fn discard(&mut self, buffer: &mut [u8]) {
        let size = recv(self.stream.as_raw_fd(), buffer, MsgFlags::MSG_TRUNC).unwrap();
        assert!(size > 0 && size <= self.missing, "{size} of {} bytes", self.missing);
        self.missing -= size;
    }
}

/// Asks on each connection after the whole answer to its last request. Returns the number of answers.
fn ask_until(stop: &AtomicBool, mut connections: Vec<Connection>, request: &[u8]) -> u64 {
    let mut buffer = vec![0; 1 << 20];
    connections.iter_mut().for_each(|connection| connection.ask(request));
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let mut fds: Vec<_> =
            connections.iter().map(|connection| PollFd::new(connection.stream.as_fd(), PollFlags::POLLIN)).collect();
        poll(&mut fds, PollTimeout::from(100u8)).unwrap();
        let ready: Vec<bool> = fds.iter().map(|fd| fd.any() == Some(true)).collect();
        for (connection, _) in connections.iter_mut().zip(ready).filter(|(_, is_ready)| *is_ready) {
            connection.discard(&mut buffer);
            if connection.missing == 0 {
                answered += 1;
                connection.ask(request);
            }
        }
    }
    answered
}

/// Clients that follow events, of which there are few.
fn event_readers(server: &Server) -> Vec<TcpStream> {
    let reader = |number: usize| {
        let ip = format!("127.0.9.{}", 1 + number / READERS_PER_IP);
        let mut stream = support::connect_from(&ip, server.address("web.listen"));
        stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut status = [0; 15];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200 OK");
        stream
    };
    (0..EVENT_READERS).map(reader).collect()
}

/// A running nginx with one file, stopped when dropped.
struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: Folder,
}

impl Nginx {
    /// None if it is not installed.
    fn start(file: &[u8]) -> Option<Nginx> {
        let program =
            ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"].iter().find(|at| Path::new(at).exists())?;
        // nginx cannot report which port the system chose, so choose a free one for it.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let folder = Folder::new("nginx");
        let path = folder.write("master.json", std::str::from_utf8(file).unwrap());
        let at = path.parent().unwrap().display();
        let configuration = folder.write("nginx.conf", &configuration(&at.to_string(), address));
        let mut command = Command::new(program);
        command.arg("-c").arg(&configuration).arg("-e").arg(format!("{at}/error.log"));
        let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        until("nginx to listen", || TcpStream::connect(address).ok());
        Some(Nginx { child, address, _folder: folder })
    }

    /// Itself and its workers.
    fn processes(&self) -> Vec<u32> {
        let id = self.child.id();
        let workers = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        workers.split_whitespace().map(|worker| worker.parse().unwrap()).chain([id]).collect()
    }
}

/// Tuned for speed: no log, cached file descriptors, unlimited requests per connection.
fn configuration(at: &str, address: SocketAddr) -> String {
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"];
    let temporary: String = temporary.iter().map(|name| format!("    {name}_temp_path {at}/{name};\n")).collect();
    format!(
        "daemon off;\nworker_processes auto;\npid {at}/nginx.pid;\nevents {{ worker_connections 1024; }}\n\
         http {{\n{temporary}    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    tcp_nodelay on;\n    \
         open_file_cache max=16;\n    keepalive_requests 1000000000;\n    types {{ application/json json; }}\n    \
         server {{ listen {address}; root {at}; }}\n}}\n"
    )
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // With SIGTERM it also stops its workers; SIGKILL would leave them running.
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}
