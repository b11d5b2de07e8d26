//! Announcements over HTTP: Luanti's, whose game the master then asks, and DDNet's, which return a token that the master sends
//! to the game's port. Compared with bare threads that exchange the same bytes. The originals are in no package.

use std::collections::HashMap;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nix::libc;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, setsockopt, sockopt};
use rallypoint::protocols::announce::{AnnounceMethod, HttpBody, Offer, Registration};
use rallypoint::protocols::{self, Card, Verdict, luanti};

use crate::exchange::{listed, settle};
use crate::load::{self, FIRST};
use crate::measure::cpu;
use crate::peer::{self, Peer};
use crate::report::Report;
use crate::support::{Response, Server, connect_from, split, until};

/// The argument that makes this program the bare threads.
pub const ARGUMENT: &str = "serve-posts";
const SERVERS: u32 = 6_000;
const ROUNDS: usize = 5;
/// Servers that announce themselves at once. Some answers come only when the server is published.
const THREADS: u32 = 128;
const BATCH: usize = 64;
/// If a token takes longer, it was lost.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run() {
    for name in ["luanti", "ddnet"] {
        compare(protocols::card(name).unwrap());
    }
}

fn compare(card: &'static Card) {
    let limits = ["guard.max_servers_per_ip=65535", "guard.exempt=127.0.0.0/8", "probe.every=15m"];
    let server = Server::start(&limits);
    let games = Games::start(card);
    let ours = server.address("web.listen");
    let answers = announce_all(&games, ours);
    until("all to be listed", || (listed(&server) == SERVERS).then_some(()));
    let bare = Peer::start(&[ARGUMENT, card.name, &games.port.to_string()], &answers);
    let (mut our_costs, mut their_costs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        their_costs.push(cost(&games, bare.address, bare.id()));
        our_costs.push(cost(&games, ours, server.id()));
    }
    assert_eq!(listed(&server), SERVERS);
    let name = format!("{}: announcement over HTTP and its proof", card.title);
    Report::new(&name, "µs", &our_costs).servers(SERVERS).beside("bare threads", &their_costs).untargeted();
}

/// Microseconds of processor time per announcement.
fn cost(games: &Games, master: SocketAddr, pid: u32) -> f64 {
    let before = cpu(pid);
    announce_all(games, master);
    settle(pid);
    (cpu(pid) - before).as_secs_f64() * 1e6 / f64::from(SERVERS)
}

/// Every server announces itself. Returns the answers to the last one's posts.
fn announce_all(games: &Games, master: SocketAddr) -> Vec<Vec<u8>> {
    let next = AtomicU32::new(0);
    let last = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some(ip) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|ip| *ip < SERVERS) {
                    let answers = games.announce(ip, master);
                    *last.lock().unwrap() = answers;
                }
            });
        }
    });
    last.into_inner().unwrap()
}

/// Simulated games, each at its own address, all on one socket.
struct Games {
    card: &'static Card,
    port: u16,
    /// Tokens that the master has sent, by the number of their game.
    tokens: Arc<(Mutex<HashMap<u32, String>>, Condvar)>,
}

impl Games {
    fn start(card: &'static Card) -> Games {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        socket2::SockRef::from(&socket).set_recv_buffer_size(4 << 20).unwrap();
        let games = Games { card, port: socket.local_addr().unwrap().port(), tokens: Arc::default() };
        let tokens = games.tokens.clone();
        // Until the benchmark ends.
        std::thread::spawn(move || answer(card, &socket, &tokens));
        games
    }

    /// One announcement. Returns the answers to its posts.
    fn announce(&self, ip: u32, master: SocketAddr) -> Vec<Vec<u8>> {
        let facts = (self.card.pretend)(ip as usize);
        let offer = Offer { game: self.card.name.into(), port: self.port, facts };
        match &self.card.announce {
            AnnounceMethod::Http(http) => {
                let path = (http.path)("", &offer);
                let answer = post(ip, master, &path, &[], http.post.as_ref().unwrap(), &offer);
                assert_eq!((http.verdict)(answer.status(), &answer.body), Verdict::Listed, "{}", answer.text());
                vec![whole(&answer)]
            }
            AnnounceMethod::Challenged(challenged) => {
                let (path, id) = ((challenged.path)(""), u128::from(ip));
                let mut game = Registration { offer: &offer, id, serial: 1, token: None };
                let first = post(ip, master, &path, &(challenged.headers)(&game), &challenged.post, &offer);
                assert_eq!((challenged.verdict)(first.status(), &first.body), None, "{}", first.text());
                let token = self.token(ip);
                game.token = Some(&token);
                let second = post(ip, master, &path, &(challenged.headers)(&game), &challenged.post, &offer);
                let verdict = (challenged.verdict)(second.status(), &second.body);
                assert_eq!(verdict, Some(Verdict::Listed), "{}", second.text());
                vec![whole(&first), whole(&second)]
            }
            _ => panic!("{} does not post", self.card.name),
        }
    }

    /// Waits for the token that the master has sent.
    fn token(&self, ip: u32) -> String {
        let (tokens, came) = &*self.tokens;
        let waiting = |tokens: &mut HashMap<u32, String>| !tokens.contains_key(&ip);
        let (mut tokens, _) = came.wait_timeout_while(tokens.lock().unwrap(), PATIENCE, waiting).unwrap();
        tokens.remove(&ip).expect("a token")
    }
}

/// Receives what the master sends to the games: probes are answered, tokens are kept.
fn answer(card: &Card, socket: &UdpSocket, tokens: &(Mutex<HashMap<u32, String>>, Condvar)) {
    let headers = || MultiHeaders::<SockaddrIn>::preallocate(BATCH, Some(nix::cmsg_space!(libc::in_pktinfo)));
    let (mut receive_headers, mut send_headers) = (headers(), headers());
    let mut buffers = Box::new([[0; 512]; BATCH]);
    loop {
        let mut slices = buffers.each_mut().map(|buffer| [IoSliceMut::new(buffer)]);
        let received =
            recvmmsg(socket.as_raw_fd(), &mut receive_headers, slices.iter_mut(), MsgFlags::MSG_WAITFORONE, None);
        let Ok(received) = received else { continue };
        let received: Vec<_> = received
            .map(|message| (load::destination_of(message.cmsgs().unwrap()), message.address.unwrap(), message.bytes))
            .collect();
        for ((ip, from, size), buffer) in received.into_iter().zip(buffers.iter()) {
            match &card.announce {
                AnnounceMethod::Challenged(challenged) => {
                    let Some(token) = (challenged.token)(u128::from(ip), &buffer[..size]) else { continue };
                    tokens.0.lock().unwrap().insert(ip, token);
                    tokens.1.notify_all();
                }
                _ if buffer[..size] == luanti::wire::PROBE => {
                    let greeting = luanti::wire::answer(ip as u16);
                    load::send(socket, &mut send_headers, from, ip, &[[IoSlice::new(&greeting)]]);
                }
                _ => {}
            }
        }
    }
}

/// A post on its own connection, as games do.
fn post(
    ip: u32,
    master: SocketAddr,
    path: &str,
    headers: &[(&str, String)],
    body: &HttpBody,
    offer: &Offer,
) -> Response {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let content = (body.body)(offer);
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {}\r\n{headers}Content-Length: {}\r\n\r\n",
        body.content_type,
        content.len()
    );
    let mut stream = connect_from(&Ipv4Addr::from(FIRST + ip).to_string(), master);
    stream.write_all(&[head.as_bytes(), &content].concat()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

fn whole(answer: &Response) -> Vec<u8> {
    [answer.head.as_bytes(), b"\r\n\r\n", &answer.body].concat()
}

/// Threads that take posts, send the datagrams that follow from them, and do nothing else. Runs until its parent kills it.
pub fn serve(name: &str, game_port: u16) {
    let answers: Arc<[Vec<u8>]> = peer::messages().into();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap());
    let has_tokens = name == "ddnet";
    for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
        let (listener, socket, answers) = (listener.try_clone().unwrap(), socket.clone(), answers.clone());
        std::thread::spawn(move || {
            for (stream, peer) in std::iter::repeat_with(|| listener.accept()).flatten() {
                take_post(stream, SocketAddr::new(peer.ip(), game_port), &socket, &answers, has_tokens);
            }
        });
    }
    let mut buffer = [0; 512];
    loop {
        // A greeting, which gets its farewell.
        let Ok((size, game)) = socket.recv_from(&mut buffer) else { continue };
        let id = luanti::wire::given_id(&buffer[..size]).unwrap();
        let _ = socket.send_to(&luanti::wire::disconnect(id), game);
    }
}

fn take_post(mut stream: TcpStream, game: SocketAddr, socket: &UdpSocket, answers: &[Vec<u8>], has_tokens: bool) {
    let (mut buffer, mut filled) = ([0; 16 << 10], 0);
    let head = loop {
        filled += match stream.read(&mut buffer[filled..]) {
            Ok(size) if size > 0 => size,
            _ => return,
        };
        let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&buffer[..end]).unwrap();
        let length = value(head, "Content-Length").unwrap().parse::<usize>().unwrap();
        if filled >= end + 4 + length {
            break head;
        }
    };
    let answer = usize::from(has_tokens && value(head, "challenge-token").is_some());
    let _ = stream.write_all(&answers[answer]);
    if !has_tokens {
        let _ = socket.send_to(&luanti::wire::PROBE, game);
    } else if answer == 0 {
        let secret = value(head, "challenge-secret").unwrap();
        let start: [u8; 14] = *b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xffchal";
        let _ = socket.send_to(&[&start, secret.as_bytes(), b"\0", &[b'a'; 64], b"\0"].concat(), game);
    }
}

fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
