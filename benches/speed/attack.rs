//! Attacks by one address, or by many, on a master with 100,000 servers of which 1,000 are real, and what others notice of them.
//! With `RALLYPOINT_BASELINE=/path/to/rallypoint`, the same attacks on another build, in the same run.
//!
//! `tests/e2e/hostile/attacks.rs` checks the same without a clock.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::attackers::{
    ATTACKERS, PATHS, REAL, Real, SETTINGS, changing_servers, fill, forged_announcements, is_listed, many_networks,
    never_readers, newcomer, other_gets, other_gets_netpanzer_list, unfinished_requests,
};
use crate::load::FIRST_PORT;
use crate::measure::cpu;
use crate::report::verdict;
use crate::support::{Server, command};

/// How long each attack lasts.
const ROUND: Duration = Duration::from_secs(8);
const NEWCOMERS: u8 = 4;
/// Four servers each make the list long.
const IPS: u32 = 25_000;

pub fn run() {
    let baseline = std::env::var("RALLYPOINT_BASELINE").ok();
    let builds = baseline.iter().map(|path| ("baseline", Command::new(path)));
    for (name, program) in builds.chain([("this build", command())]) {
        println!("{name}");
        let server = Server::start_as(program, &[], SETTINGS);
        fill(&server, IPS);
        let real = Real::new(REAL);
        real.renew(&server, 3, "before");
        let mut others = Others { server: &server, real, round: 0, network: 0 };
        others.notice("no attack");
        for (what, start, _) in ATTACKERS {
            let (before, spent, began) = (server.memory_kib(), cpu(server.id()), Instant::now());
            let attack = start(&server, None);
            std::thread::sleep(ROUND / 4);
            others.notice(what);
            let took = began.elapsed().as_secs_f64();
            println!(
                "  {what}: {:.0} a second done, {:.0} refused; {:.0} % of a core; {} MiB before, {} MiB then",
                attack.done() as f64 / took,
                attack.refused() as f64 / took,
                (cpu(server.id()) - spent).as_secs_f64() / took * 100.0,
                before >> 10,
                server.memory_kib() >> 10
            );
        }
    }
    limited(768, false);
    limited(1_024, true);
}

/// Memory that the defaults need, under a limit, while clients in many networks hold all they can.
fn limited(mib: u64, is_long: bool) {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let limits = format!("ulimit -d {}; ulimit -n $(ulimit -H -n); export MALLOC_MMAP_THRESHOLD_=131072", mib << 10);
    let server = Server::start_after(&limits, &[SETTINGS, &["guard.idle_timeout=1h"]].concat());
    let real = Real::new(REAL);
    if is_long {
        fill(&server, IPS);
    }
    real.renew(&server, 3, "before");
    let attacks = [
        forged_announcements(&server, Some(20_000)),
        changing_servers(&server),
        unfinished_requests(&server, 7_500),
        never_readers(&server, many_networks),
    ];
    let (started, mut most) = (Instant::now(), 0);
    while started.elapsed() < ROUND * 3 {
        std::thread::sleep(Duration::from_millis(100));
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
        let data = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("it lives");
        most = most.max(data.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10);
    }
    let held = server.get("/metrics");
    let held = held.text().lines().find_map(|line| line.strip_prefix("rallypoint_lists_held_bytes "));
    let held = held.unwrap().parse::<u64>().unwrap() >> 20;
    let what = format!("  {} listed, a limit of {mib} MiB, {held} MiB in lists: MiB used", listed(&server));
    println!("  {} lists were asked for and not read", attacks[3].done());
    verdict(&what, most as f64, Real::listed(&server, 3) == REAL as usize, "it serves on, and all real servers stay");
}

fn listed(server: &Server) -> u64 {
    server.json("/readyz")["servers"].as_u64().unwrap()
}

/// Everybody but the attacker.
struct Others<'a> {
    server: &'a Server,
    real: Real,
    round: u8,
    network: u8,
}

impl Others<'_> {
    fn notice(&mut self, what: &str) {
        self.round += 1;
        let players = 3 + u16::from(self.round);
        let renewed = std::thread::scope(|scope| {
            let renewed = scope.spawn(|| renew(self.server, &self.real, players));
            lists(self.server, &mut self.network, what);
            renewed.join().unwrap()
        });
        let share = renewed as f64 / f64::from(REAL);
        verdict(&format!("  {what}: real servers kept and renewed, share"), share, share == 1.0, "all");
        self.newcomers(what);
    }

    /// How long it takes until a server that nobody knows is listed: the longest of some.
    fn newcomers(&mut self, what: &str) {
        let longest = (0..NEWCOMERS).map(|number| {
            let began = Instant::now();
            let address = newcomer(self.server, self.round * 10 + number);
            while !is_listed(self.server, address) && began.elapsed() < ROUND {
                std::thread::sleep(Duration::from_millis(5));
            }
            began.elapsed()
        });
        let longest = longest.max().unwrap_or_default().as_secs_f64();
        verdict(
            &format!("  {what}: a newcomer is listed after, s (longest of {NEWCOMERS})"),
            longest,
            longest <= 1.0,
            "at most 1",
        );
    }
}

/// Each path in turn, by clients of many networks: 95th percentiles.
fn lists(server: &Server, network: &mut u8, what: &str) {
    let names: Vec<&str> = PATHS.iter().copied().chain(["a netPanzer list"]).collect();
    let mut times = vec![Vec::new(); names.len()];
    let (mut refused, started) = (BTreeMap::<&str, u32>::new(), Instant::now());
    while started.elapsed() < ROUND {
        for (number, times) in times.iter_mut().enumerate() {
            *network = (*network + 1) % 250;
            let began = Instant::now();
            let is_answered = match PATHS.get(number) {
                Some(path) => other_gets(server, *network, path) == 200,
                None => other_gets_netpanzer_list(server, *network, FIRST_PORT),
            };
            times.push(began.elapsed());
            if !is_answered {
                *refused.entry(names[number]).or_default() += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for (name, mut times) in names.iter().zip(times) {
        times.sort_unstable();
        let p95 = times[times.len() * 95 / 100].as_secs_f64() * 1e3;
        let name = format!("  {what}: {name} for others, ms (95th percentile of {})", times.len());
        verdict(&name, p95, p95 <= 250.0, "at most 250");
    }
    if !refused.is_empty() {
        println!("  {what}: not answered: {refused:?}");
    }
    let refused: u32 = refused.values().sum();
    verdict(&format!("  {what}: requests of others that were not answered"), refused.into(), refused == 0, "none");
}

/// How many real servers are listed with their new state in the end.
fn renew(server: &Server, real: &Real, players: u16) -> usize {
    let started = Instant::now();
    loop {
        real.announce(server, players);
        std::thread::sleep(Duration::from_millis(500));
        let renewed = Real::listed(server, players);
        if renewed == REAL as usize || started.elapsed() > ROUND {
            return renewed;
        }
    }
}
