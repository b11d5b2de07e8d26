//! `rallypoint query` and qstat, both asking the same 10,000 simulated servers, in alternating rounds. qstat
//! pauses nowhere. Without delay, it asks as many servers at once as made it fastest before; with delay, its default of 20, and
//! only once, because that takes most of a minute.
//!
//! A processor that was idle takes a while to be fast again: that is a small part of qstat's time, and a large part of ours. So a run
//! that counts follows another one of the same program, and the first runs after a pause have rows of their own.

use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::TimeValLike;
use rallypoint::model::Address;
use rallypoint::net::batch::{Inbox, Outbox};
use rallypoint::protocols::{Ask, Card, QUESTION_BYTES_MAX, Question, card};
use socket2::{Domain, Socket, Type};

use crate::answerer::Answerer;
use crate::measure;
use crate::report::Report;
use crate::support::Folder;

const SERVERS: u32 = 10_000;
const ROUNDS: usize = 9;
/// Those of `rallypoint query` beside one run of qstat, when servers take a while to answer.
const ROUNDS_WITH_DELAY: usize = 3;
const DELAY: Duration = Duration::from_millis(30);
/// Between runs that find the machine idle.
const PAUSE: Duration = Duration::from_secs(1);
/// What qstat prints: what else a server says is neither shown nor, where that takes another question, asked for.
const SAME: &[&str] = &["--columns", "address,players,map,ping,name"];
const SAME_OPEN: &[&str] = &["--columns", "address,players,map,ping,name", "--rate", "1000000"];
const ALL_OPEN: &[&str] = &["--rate", "1000000"];
/// Servers in flight of the loop that does nothing else.
const BARE_IN_FLIGHT: usize = 1_500;
/// Servers that qstat asks at once; the first is its default.
const MAXSIM: [&str; 4] = ["20", "100", "400", "900"];

pub fn run() {
    for (name, kind) in [("netpanzer", "NETP"), ("quake3", "Q3S")] {
        let Some(games) = Answerer::start(card(name).unwrap(), SERVERS) else { return };
        let folder = Folder::new("query");
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("qstat"));
        let mut files = [&ours, &theirs].map(|path| std::fs::File::create(path).unwrap());
        for address in games.addresses() {
            writeln!(files[0], "{name}://{address}").unwrap();
            writeln!(files[1], "{kind} {address}").unwrap();
        }
        let bench = Bench { card: card(name).unwrap(), games, ours: &ours, theirs: &theirs };
        bench.run();
    }
}

struct Bench<'a> {
    card: &'static Card,
    games: Answerer,
    ours: &'a Path,
    theirs: &'a Path,
}

/// One run of a program.
#[derive(Clone, Copy)]
struct Run {
    seconds: f64,
    cpu_seconds: f64,
    answered: usize,
}

/// What comes before a run that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    Another,
    Pause,
}

impl Before {
    fn prepare(self, another: impl Fn() -> Run) {
        match self {
            Before::Nothing => {}
            Before::Another => _ = another(),
            Before::Pause => std::thread::sleep(PAUSE),
        }
    }
}

impl Bench<'_> {
    fn run(&self) {
        let has_qstat =
            Command::new("quakestat").arg("-v").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
        if !has_qstat {
            println!("without a comparison: Debian's package qstat is not installed");
        }
        self.query(ALL_OPEN); // the simulated servers prepare their answers
        let mut slow = None;
        for (name, options, before, delay, target) in [
            ("no delay, --rate 1000000", SAME_OPEN, Before::Another, Duration::ZERO, Some(8.0)),
            ("no delay, --rate 1000000, after a pause", SAME_OPEN, Before::Pause, Duration::ZERO, None),
            ("no delay, --rate 1000000, all columns", ALL_OPEN, Before::Another, Duration::ZERO, None),
            ("no delay", SAME, Before::Another, Duration::ZERO, None),
            ("30 ms, --rate 1000000", SAME_OPEN, Before::Nothing, DELAY, Some(100.0)),
            ("30 ms", SAME, Before::Nothing, DELAY, Some(100.0)),
        ] {
            let is_waiting = !delay.is_zero();
            let rounds = if is_waiting { ROUNDS_WITH_DELAY } else { ROUNDS };
            self.games.set_delay(delay);
            let name = format!("{}, {name}", self.card.title);
            if !has_qstat {
                self.compare(&name, options, before, || None, rounds, target);
            } else if is_waiting {
                let once = *slow.get_or_insert_with(|| self.qstat(MAXSIM[0]));
                self.compare(&name, options, before, || Some(once), rounds, target);
            } else {
                let maxsim = self.best();
                let theirs = || {
                    before.prepare(|| self.qstat(maxsim));
                    Some(self.qstat(maxsim))
                };
                self.compare(&name, options, before, theirs, rounds, target);
            }
        }
    }

    fn compare(
        &self,
        name: &str,
        options: &[&str],
        first: Before,
        qstat: impl Fn() -> Option<Run>,
        rounds: usize,
        target: Option<f64>,
    ) {
        // Without delay, and with the questions that the columns take.
        let asks: Option<&[Ask]> = match options {
            _ if first != Before::Another => None,
            SAME_OPEN => Some(&[Ask::Facts]),
            ALL_OPEN if self.card.query.unwrap().facts_say_all() => Some(&[Ask::Facts]),
            ALL_OPEN => Some(&[Ask::Proof, Ask::Facts]),
            _ => None,
        };
        let (mut ours, mut theirs, mut lost, mut bare) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            first.prepare(|| self.query(options));
            let before = self.lost();
            let run = self.query(options);
            assert_eq!(run.answered, SERVERS as usize, "{name}: not all answered");
            lost.push((self.lost() - before) as f64);
            ours.push(run);
            bare.extend(asks.map(|asks| self.bare(asks)));
            theirs.extend(qstat());
        }
        let rate = |runs: &[Run]| runs.iter().map(|run| f64::from(SERVERS) / run.seconds).collect::<Vec<_>>();
        let cpu = |runs: &[Run]| runs.iter().map(|run| run.cpu_seconds * 1e6 / f64::from(SERVERS)).collect::<Vec<_>>();
        let (rates, cpus) = ((rate(&ours), rate(&theirs)), (cpu(&ours), cpu(&theirs)));
        let cpu_name = format!("{name}: processor time a server");
        let (speed, cost) = (Report::new(name, "servers/s", &rates.0), Report::new(&cpu_name, "µs", &cpus.0));
        let bare = (rate(&bare), cpu(&bare));
        if theirs.is_empty() {
            speed.untargeted();
            return cost.untargeted();
        }
        let (speed, cost) = (speed.beside("qstat", &rates.1), cost.beside("qstat", &cpus.1));
        match target {
            Some(target) => drop(speed.at_least(target)),
            None => speed.untargeted(),
        }
        cost.untargeted();
        if asks.is_some() {
            let name = format!("{name}: a loop that only sends and receives");
            let (speed, cost) = (Report::new(&name, "servers/s", &bare.0), Report::new(&name, "µs a server", &bare.1));
            speed.beside("qstat", &rates.1).untargeted();
            cost.untargeted();
        }
        let found: Vec<_> = theirs.iter().map(|run| run.answered as f64).collect();
        Report::new(&format!("{name}: found by qstat"), "servers", &found).untargeted();
        Report::new(&format!("{name}: answers lost to our own buffers"), "datagrams", &lost).at_most(0.0);
    }

    /// What the system alone takes: a loop that sends the same questions and receives the same answers, in the same batches, and
    /// does nothing with them.
    fn bare(&self, asks: &[Ask]) -> Run {
        let addresses: Vec<SocketAddr> = self.games.addresses().map(SocketAddr::V4).collect();
        let query = self.card.query.unwrap();
        let question = |ask, number| {
            let mut question = Question::new();
            query.ask(ask, number as u32 | 0x1000_0000, &mut question);
            question
        };
        // How many datagrams answer all questions to one server.
        let to = Address::new(addresses[0].ip(), addresses[0].port()).unwrap();
        let answer = |ask: &Ask| (self.card.answer.unwrap())(&(self.card.pretend)(0), to, &question(*ask, 0)).len();
        let answers: usize = asks.iter().map(answer).sum();
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, None).unwrap();
        socket.set_only_v6(false).unwrap();
        socket.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()).unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &(8 << 20)).unwrap();
        let cpu = || {
            let used = getrusage(UsageWho::RUSAGE_THREAD).unwrap();
            (used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64 / 1e6
        };
        let (before, began) = (cpu(), Instant::now());
        let (mut inbox, mut outbox) = (Inbox::new(65_535), Outbox::<QUESTION_BYTES_MAX>::default());
        let mut buffer = vec![0; 65_535];
        let (mut asked, mut heard) = (0, 0);
        while heard < answers * addresses.len() {
            while asked < addresses.len() && answers * asked < heard + answers * BARE_IN_FLIGHT && !outbox.is_full() {
                let SocketAddr::V4(to) = addresses[asked] else { unreachable!() };
                for ask in asks {
                    outbox.push((to.ip().to_ipv6_mapped(), to.port()).into(), question(*ask, asked));
                }
                asked += 1;
            }
            outbox.send(&socket).unwrap();
            if inbox.fill(&socket, true).is_ok() {
                heard += std::iter::from_fn(|| inbox.take(&mut buffer)).count();
            } else {
                let mut ready = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                assert_ne!(poll(&mut ready, 1_000u16), Ok(0), "an answer was lost");
            }
        }
        Run { seconds: began.elapsed().as_secs_f64(), cpu_seconds: cpu() - before, answered: addresses.len() }
    }

    fn query(&self, options: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rallypoint"));
        command.args(["query", "--format", "csv", "--no-header", "--from"]).arg(self.ours).args(options);
        // One line for each server; those that failed have a reason.
        measured(&mut command, |line| !line.contains("no answer") && !line.contains("it answers, but"))
    }

    fn qstat(&self, maxsim: &str) -> Run {
        let mut command = Command::new("quakestat");
        command.args(["-nh", "-u", "-maxsim", maxsim, "-sendinterval", "0", "-f"]).arg(self.theirs);
        measured(&mut command, |_| true)
    }

    /// With how many servers at once qstat is fastest.
    fn best(&self) -> &'static str {
        let seconds = |maxsim: &&str| (self.qstat(maxsim).seconds * 1e6) as u64;
        MAXSIM.into_iter().min_by_key(seconds).unwrap_or(MAXSIM[0])
    }

    /// Datagrams that the system dropped because the buffer of a socket was full: of all sockets but the simulated servers'.
    fn lost(&self) -> u64 {
        let counters = std::fs::read_to_string("/proc/net/snmp").unwrap();
        let mut udp = counters.lines().filter(|line| line.starts_with("Udp:"));
        let (names, values) = (udp.next().unwrap(), udp.next().unwrap());
        let place = names.split_whitespace().position(|name| name == "RcvbufErrors").unwrap();
        let all: u64 = values.split_whitespace().nth(place).unwrap().parse().unwrap();
        all - measure::dropped(self.games.port())
    }
}

/// Runs a program, and counts the lines that it prints.
fn measured(command: &mut Command, counts: impl Fn(&str) -> bool) -> Run {
    let cpu = || {
        let used = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
        (used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64 / 1e6
    };
    let (before, began) = (cpu(), Instant::now());
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    let (seconds, cpu_seconds) = (began.elapsed().as_secs_f64(), cpu() - before);
    let answered = String::from_utf8_lossy(&output.stdout).lines().filter(|line| counts(line)).count();
    Run { seconds, cpu_seconds, answered }
}
