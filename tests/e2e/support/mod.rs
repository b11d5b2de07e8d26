//! Starts the real program, and talks to it as its clients do.

pub mod attackers;
pub mod chromium;
pub mod commands;
// Shared with the checks of the repository; not everything is needed here.
#[allow(dead_code)]
pub mod documents;
pub mod history;
// The load generator of the benchmarks; not everything is needed here.
#[allow(dead_code)]
#[path = "../../../benches/speed/load.rs"]
pub mod load;
pub mod machines;
pub mod nats;
pub mod netpanzer;
pub mod programs;
pub mod pty;

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for a condition before it fails. What works is never as slow, not even beside many busy processes.
pub const LIMIT: Duration = Duration::from_secs(120);

/// How many lines of each server's log a failed test shows.
const LAST_LINES: usize = 40;

/// Every key of the configuration that names a listener's addresses, as `rallypoint config` prints them: `web.listen`,
/// `iceball.client_listen`. A new protocol's listeners are among them without a change here; those with TLS need a
/// certificate and are not.
pub static LISTENERS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let printed = command().arg("config").output().unwrap().stdout;
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in String::from_utf8(printed).unwrap().lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.into();
        } else if let Some((key, _)) =
            line.split_once(" = ").filter(|(key, _)| key.ends_with("listen") && *key != "tls_listen")
        {
            keys.push(format!("{section}.{key}"));
        }
    }
    assert!(keys.len() >= 5, "{keys:?}");
    keys
});

/// Waits until `look` returns something.
pub fn until<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    until_within(LIMIT, what, look)
}

/// The same with another limit. This is the only place in all tests that sleeps; `tests/repository/house.rs` checks that. It
/// looks less and less often, because looking takes time from what it waits for.
pub fn until_within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "waited too long for: {what}");
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_millis(100));
    }
}

pub fn command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rallypoint"))
}

/// Something that `scripts/tools` installs, such as `nats/bin/nats-server`.
pub fn tool(path: &str) -> PathBuf {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools").join(path);
    assert!(tool.exists(), "{} is missing: scripts/test installs it", tool.display());
    tool
}

/// A temporary folder, removed when the test ends.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("rallypoint-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A copy of a program that can be started at once. Another program makes it: whatever a test beside this one starts has
    /// our open files for a moment, and a file that is open for writing cannot be started.
    pub fn program(&self, from: impl AsRef<Path>, name: &str) -> PathBuf {
        let path = self.0.join(name);
        let status = Command::new("install").args(["-D", "-m", "755"]).arg(from.as_ref()).arg(&path).status().unwrap();
        assert!(status.success(), "{status}");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a program writes, in a file without a name. What it wrote before it answered is there when its answer is: a thread that
/// reads a pipe may be late.
pub struct Log(File);

impl Log {
    pub fn new() -> Log {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("rallypoint-{}-log-{number}", std::process::id()));
        let file = File::options().read(true).append(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        Log(file)
    }

    /// The end that the program writes to.
    pub fn end(&self) -> Stdio {
        self.0.try_clone().unwrap().into()
    }

    /// All whole lines.
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().unwrap().len() as usize];
        self.0.read_exact_at(&mut bytes, 0).unwrap();
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1));
        String::from_utf8(bytes).unwrap()
    }
}

/// A running `rallypoint serve`. It is killed when the test ends.
pub struct Server {
    child: Child,
    log: Log,
    /// In the order of the configuration.
    listening: HashMap<String, Vec<SocketAddr>>,
}

impl Server {
    /// Starts with every listener on loopback, on a port that the system chooses; `set` overrides this.
    pub fn start(set: &[&str]) -> Server {
        Server::start_with(&[], set)
    }

    pub fn start_with(arguments: &[&str], set: &[&str]) -> Server {
        Server::start_as(command(), arguments, set)
    }

    /// Starts it from a shell, after these commands.
    pub fn start_after(shell: &str, set: &[&str]) -> Server {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_rallypoint")]);
        Server::start_as(command, &[], set)
    }

    pub fn start_as(command: Command, arguments: &[&str], set: &[&str]) -> Server {
        let listen: Vec<String> = LISTENERS.iter().map(|key| format!("{key}=127.0.0.1:0")).collect();
        let set: Vec<&str> = listen.iter().map(String::as_str).chain(set.iter().copied()).collect();
        Server::start_on_defaults(command, arguments, &set)
    }

    /// Starts with the default addresses: only for tests in their own network namespace.
    pub fn start_on_defaults(mut command: Command, arguments: &[&str], set: &[&str]) -> Server {
        command.arg("serve").args(arguments);
        // Nothing on disk, unless a test names a folder.
        command.args(["--set", "data_dir="]);
        for assignment in set {
            command.args(["--set", assignment]);
        }
        let log = Log::new();
        let child = command.stdin(Stdio::null()).stderr(log.end()).spawn().unwrap();
        let mut server = Server { child, log, listening: HashMap::new() };
        server.wait_for_log("is ready");
        for line in server.log().lines() {
            if let Some((before, address)) = line.split_once(": listening on ") {
                let key = before.rsplit(' ').next().unwrap().to_string();
                server.listening.entry(key).or_default().push(address.trim().parse().unwrap());
            }
        }
        server
    }

    pub fn log(&self) -> String {
        self.log.text()
    }

    pub fn wait_for_log(&mut self, text: &str) {
        until(&format!("`{text}` in the log"), || {
            let log = self.log();
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("ended with {status} before `{text}`:\n{log}");
            }
            log.contains(text).then_some(())
        });
    }

    /// The first address of a listener.
    pub fn address(&self, key: &str) -> SocketAddr {
        let first = self.listening.get(key).and_then(|addresses| addresses.first());
        *first.unwrap_or_else(|| panic!("{key} is not listening:\n{}", self.log()))
    }

    /// Every listener with its addresses.
    pub fn listening(&self) -> &HashMap<String, Vec<SocketAddr>> {
        &self.listening
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits for the end; returns its status and its whole log.
    pub fn end(mut self) -> (ExitStatus, String) {
        let status = until("the program to end", || self.child.try_wait().unwrap());
        (status, self.log())
    }

    pub fn get(&self, path: &str) -> Response {
        get(self.address("web.listen"), path, "")
    }

    pub fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_slice(&self.get(path).body).unwrap()
    }

    /// The value of a metric without labels.
    pub fn figure(&self, name: &str) -> f64 {
        let response = self.get("/metrics");
        let metrics = response.text();
        let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {metrics}")).parse().unwrap()
    }

    /// The rows of /master.json.
    pub fn listed(&self) -> Vec<serde_json::Value> {
        self.json("/master.json")["servers"].as_array().unwrap().clone()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().rev().take(LAST_LINES).collect();
            let last: String = lines.iter().rev().flat_map(|line| [line, "\n"]).collect();
            eprintln!("the last log lines of {}:\n{last}", self.id());
        }
    }
}

/// An HTTP response, byte for byte.
#[derive(Debug)]
pub struct Response {
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// A header; the case of its name matters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Connects from another loopback address: another host to the master.
pub fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(from.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Sends bytes and reads until the other side closes.
pub fn exchange(address: SocketAddr, request: &[u8]) -> Vec<u8> {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

pub fn split(answer: &[u8]) -> Response {
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head in {:?}", String::from_utf8_lossy(answer)));
    Response { head: String::from_utf8(answer[..end].to_vec()).unwrap(), body: answer[end + 4..].to_vec() }
}

/// A GET request; `headers` are complete lines with their line ends.
pub fn get(address: SocketAddr, path: &str, headers: &str) -> Response {
    request(address, "GET", path, headers)
}

pub fn request(address: SocketAddr, method: &str, path: &str, headers: &str) -> Response {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n");
    split(&exchange(address, request.as_bytes()))
}

/// A simulated Iceball server.
pub struct Game {
    pub socket: UdpSocket,
    pub master: SocketAddr,
}

impl Game {
    pub fn new(master: SocketAddr) -> Game {
        Game::on(master, "127.0.0.1".parse().unwrap())
    }

    /// On another loopback address: another host to the master.
    pub fn on(master: SocketAddr, ip: IpAddr) -> Game {
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Game { socket, master }
    }

    pub fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, self.master).unwrap();
    }

    pub fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 2048];
        let (size, from) = self.socket.recv_from(&mut buffer).expect("an answer");
        assert_eq!(from, self.master);
        buffer[..size].to_vec()
    }

    pub fn ask(&self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes);
        self.receive()
    }

    /// Checks that earlier datagrams got no answer: sends one that is always answered, and whose answer has to be the first.
    /// Datagrams from one sender stay in order, because they reach one socket.
    pub fn nothing_came_back(&self) {
        self.socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        // Retried: after a flood, a datagram may be lost.
        until("the answer that always comes", || {
            self.send(&announcement(b"always answered", 9, 0));
            let mut buffer = [0; 2048];
            let answer = self.socket.recv_from(&mut buffer).ok().map(|(size, _)| buffer[..size].to_vec())?;
            assert_eq!(answer.len(), 101, "another answer came first: {answer:?}");
            Some(())
        });
        // Discard the answers to retries.
        self.socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        while self.socket.recv(&mut [0; 2048]).is_ok() {}
        self.socket.set_read_timeout(Some(LIMIT)).unwrap();
    }

    /// The cookie for an announcement.
    pub fn cookie(&self, announcement: &[u8]) -> Vec<u8> {
        let answer = self.ask(announcement);
        assert_eq!(answer[..4], *b"MSOK");
        answer[4..].to_vec()
    }

    pub fn handshake(&self, cookie: &[u8]) {
        self.send(&[b"HSHK", cookie].concat());
    }

    pub fn announce(&self, announcement: &[u8]) {
        self.handshake(&self.cookie(announcement));
    }
}

/// The answers of netPanzer's server: one datagram per command, in order, and nothing after the status.
pub fn netpanzer_answers(question: &[u8], status: &[u8]) -> Vec<Vec<u8>> {
    let mut answers = Vec::new();
    let mut tokens = question.split(|&byte| byte == b'\\').filter(|token| !token.is_empty());
    while let Some(token) = tokens.next() {
        match token {
            b"echo" => answers.extend(tokens.next().map(<[u8]>::to_vec)),
            b"status" => return [answers, vec![status.to_vec()]].concat(),
            _ => {}
        }
    }
    answers
}

/// An announcement, encoded here by hand so that the codec is not tested with itself.
pub fn announcement(name: &[u8], port: u16, players: u16) -> Vec<u8> {
    let mut bytes = b"1CEB\x02\0\x25\x80\x80\0".to_vec();
    bytes.extend(port.to_le_bytes());
    bytes.extend(players.to_le_bytes());
    bytes.extend(64u16.to_le_bytes());
    for (text, size) in [(name, 30), (b"ctf", 10), (b"mesa.vxl", 30)] {
        let mut field = text.to_vec();
        field.resize(size, 0);
        bytes.extend(field);
    }
    assert_eq!(bytes.len(), 86);
    bytes
}

/// A free port below the system's ephemeral range, for programs that have to know each other's port before either has started.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 20_000 + (std::process::id() as u16).wrapping_mul(61).wrapping_add(step) % 12_000;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return port;
        }
    }
}
