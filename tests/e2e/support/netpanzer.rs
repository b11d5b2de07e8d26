//! A simulated netPanzer game, and requests to a master as its games and clients send them.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::*;

type Meanwhile = Arc<Mutex<Option<Box<dyn Fn(&BTreeSet<u16>) + Send>>>>;

/// A simulated netPanzer game, which answers its query while `alive` is set.
pub struct Tank {
    pub port: u16,
    pub alive: Arc<AtomicBool>,
    pub players: Arc<AtomicUsize>,
    pub honest: Arc<AtomicBool>,
    /// A second status, sent with each answer.
    pub forged: Arc<Mutex<Option<String>>>,
    /// Called with the ports that it was queried from earlier, before it answers.
    pub meanwhile: Meanwhile,
    asked_from: Arc<Mutex<Vec<u16>>>,
}

impl Tank {
    pub fn new() -> Tank {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let tank = Tank {
            port: socket.local_addr().unwrap().port(),
            alive: Arc::new(AtomicBool::new(true)),
            players: Arc::new(AtomicUsize::new(1)),
            honest: Arc::new(AtomicBool::new(true)),
            forged: Arc::default(),
            meanwhile: Arc::default(),
            asked_from: Arc::default(),
        };
        let (alive, players, honest) = (tank.alive.clone(), tank.players.clone(), tank.honest.clone());
        let (forged, meanwhile, asked_from) = (tank.forged.clone(), tank.meanwhile.clone(), tank.asked_from.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 500];
            // This thread ends with the test's process.
            while let Ok((size, from)) = socket.recv_from(&mut buffer) {
                if let Some(act) = &*meanwhile.lock().unwrap() {
                    act(&asked_from.lock().unwrap().iter().copied().collect());
                }
                asked_from.lock().unwrap().push(from.port());
                if !alive.load(Ordering::Relaxed) {
                    continue;
                }
                let players = players.load(Ordering::Relaxed);
                let players_max = players.max(8);
                let named: String = (0..players)
                    .map(|at| format!(r"player_{at}\Driver of tank number {at}\kills_{at}\1\deaths_{at}\2\score_{at}\3\flag_{at}\4\"))
                    .collect();
                let status = format!(
                    r"gamename\netpanzer\protocol\1122\hostname\Tank <1>\gameversion\0.8.7\mapname\Two clans\password\n\numplayers\{players}\maxplayers\{players_max}\gamestyle\Objective\{named}final\"
                );
                let mut answers = netpanzer_answers(&buffer[..size], status.as_bytes());
                if !honest.load(Ordering::Relaxed) {
                    answers[0] = b"00000000".to_vec();
                }
                if answers.len() > 1 {
                    answers.extend(forged.lock().unwrap().clone().map(String::into_bytes));
                }
                for answer in answers {
                    socket.send_to(&answer, from).unwrap();
                }
            }
        });
        tank
    }

    /// The source ports of the queries it received, in order.
    pub fn asked_from(&self) -> Vec<u16> {
        self.asked_from.lock().unwrap().clone()
    }

    pub fn heartbeat(&self, server: &Server) -> String {
        say(server, &format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", self.port))
    }

    pub fn entry(&self) -> String {
        format!(r"\ip\127.0.0.1\port\{}", self.port)
    }
}

pub fn say(server: &Server, request: &str) -> String {
    say_to(server.address("netpanzer.listen"), request)
}

pub fn say_to(master: SocketAddr, request: &str) -> String {
    let mut stream = connect(master);
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

pub fn list(server: &Server, game: &str) -> String {
    say(server, &format!(r"\list\gamename\{game}\final\"))
}
