//! /master.json with 100 servers over keep-alive connections, compared with nginx serving the same bytes from a file.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::iceball::{fill, start};
use crate::load::Texts;
use crate::report::Report;
use crate::support::{self, Folder, until};

const SERVERS: u32 = 100;
const CONNECTIONS: usize = 8;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1500);

pub fn run() {
    let server = start();
    fill(&server, 0..SERVERS, 1, Texts::Typical);
    let address = server.address("web.listen");
    let list = server.get("/master.json");
    println!("{SERVERS} servers, {} bytes; {CONNECTIONS} keep-alive connections", list.body.len());

    let known = format!("If-None-Match: {}\r\n", list.header("Etag").unwrap());
    let again = support::get(address, "/master.json", &known);
    assert_eq!((again.status(), again.body.len()), (304, 0), "{}", again.head);
    println!("304 without a body for a matching ETag: yes");

    let Some(nginx) = Nginx::start(&list.body) else {
        println!("nginx is not installed (Debian package `nginx`): nothing to compare with");
        println!("{:.0} requests/s", rate(address, "", 200));
        return;
    };
    let nginx_list = support::get(nginx.address, "/master.json", "");
    assert_eq!(nginx_list.body, list.body);
    let nginx_known = format!("If-None-Match: {}\r\n", nginx_list.header("ETag").unwrap());

    for (what, status, ours, theirs, target) in
        [("the whole list", 200, "", "", Some(0.8)), ("304", 304, known.as_str(), nginx_known.as_str(), None)]
    {
        let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            their_rates.push(rate(nginx.address, theirs, status));
            our_rates.push(rate(address, ours, status));
        }
        let report = Report::new(what, "requests/s", &our_rates).beside("nginx", &their_rates);
        match target {
            Some(target) => _ = report.at_least(target),
            None => report.untargeted(),
        }
    }
}

/// Requests answered per second.
fn rate(address: SocketAddr, headers: &str, status: u16) -> f64 {
    let request = format!("GET /master.json HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let connection = || scope.spawn(|| request_until(&stop, support::connect(address), request.as_bytes(), status));
        let threads: Vec<_> = (0..CONNECTIONS).map(|_| connection()).collect();
        let start = Instant::now();
        std::thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let answered: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        answered as f64 / start.elapsed().as_secs_f64()
    })
}

/// Sends one request after another, each after the complete answer to the last. Returns the number of answers.
fn request_until(stop: &AtomicBool, mut stream: TcpStream, request: &[u8], status: u16) -> u64 {
    let _ = stream.set_nodelay(true);
    let expected = format!("HTTP/1.1 {status} ");
    let mut buffer = vec![0; 1 << 20];
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(request).unwrap();
        let (mut filled, mut whole) = (0, None);
        while whole.is_none_or(|whole| filled < whole) {
            let size = stream.read(&mut buffer[filled..]).unwrap();
            assert_ne!(size, 0, "the connection was closed after {answered} answers");
            filled += size;
            whole = whole.or_else(|| answer_size(&buffer[..filled], status));
        }
        assert_eq!(whole, Some(filled));
        assert!(buffer.starts_with(expected.as_bytes()));
        answered += 1;
    }
    answered
}

/// The size of the complete answer, once its head has arrived.
fn answer_size(start: &[u8], status: u16) -> Option<usize> {
    let head = start.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    if status == 304 {
        return Some(head); // it has no body, whatever its Content-Length
    }
    let text = std::str::from_utf8(&start[..head]).unwrap();
    let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: ")).unwrap();
    Some(head + length.parse::<usize>().unwrap())
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
