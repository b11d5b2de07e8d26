//! The whole master in virtual time: the program's own rules, guard, registry, asker, prober, sessions, hub and store, with a
//! simulated network in the place of sockets and simulated game servers of all protocols around it. Datagrams are lost, late,
//! reordered and duplicated; clocks are set; forgers send what they like from any address; masters restart from their file, and
//! in some worlds three of them are a cluster.
//!
//! The invariants:
//!
//! 1. Nothing is listed whose address has not proven itself within its life.
//! 2. An honest, reachable server that announces itself is listed: within ten seconds where nothing is lost, also during floods
//!    and steps of the clock. Where datagrams are lost: within ten seconds of the next announcement after the loss.
//! 3. A server that quits, dies or falls silent leaves the list within its bound: one that falls silent after the rounds that it
//!    may miss, or as long as it goes on announcing itself, but no later than the grace after its last answer.
//! 4. Listed facts are those that the server at that address said, never a forger's. (The exception that SECURITY.md names needs
//!    a guessed port and a lost answer; a world with both is the only one where it is allowed.)
//! 5. Limits per address and network hold, and forged announcements leave no entry behind.
//! 6. A list in each protocol's own form decodes to a view that was in force.
//! 7. No reply takes more than 6/5 of the bytes of the datagram that it answers, headers included; what goes to an address and a
//!    network that have proven nothing keeps within the budgets.
//! 8. The prober never asks such an address.
//! 9. After a restart, what lives is listed again.
//! 10. Serials increase by one, each delta fits the view that it changes, and together they lead to the newest view.
//! 11. The nodes of a cluster converge: 2 and 3 hold at every node that has reached the store, whichever node a server announced
//!     itself to.
//!
//! `scripts/simulate` runs many worlds; a world follows from its seed alone. `cargo test` runs some, and all seeds that ever
//! found a bug.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod game;
mod node;
mod plan;
mod random;
mod world;

use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plan::Plan;
use world::Counts;

/// Seeds that once found a bug, and how long each has to run. 22: a query that was begun before a server came back removed it.
const REGRESSION_SEEDS: &[(u64, u64)] = &[(22, 5_200_000)];
/// The same for clusters whose clocks are set while they run, every twenty minutes. 1003: a node whose clock was set back no
/// longer told the others of heartbeats.
const JUMPING_CLUSTERS: &[(u64, u64)] = &[(1003, 3_000_000)];

/// How much of a world runs in `cargo test`.
const SHORT_MS: u64 = 20 * 60_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// Runs a world. A failure names the seed.
fn run(plan: Plan) -> Counts {
    let seed = plan.seed;
    let result = catch_unwind(AssertUnwindSafe(|| world::run(plan.clone())));
    result.unwrap_or_else(|_| panic!("seed {seed} failed: scripts/simulate --seed {seed} repeats it ({plan:?})"))
}

fn short(seed: u64) -> Plan {
    let plan = Plan::new(seed);
    Plan { duration_ms: plan.duration_ms.min(SHORT_MS), games: plan.games.min(300), ..plan }
}

#[test]
fn no_world_breaks_an_invariant() {
    if number("SIMULATE_HOURS").is_some() || number("SIMULATE_SEED").is_some() {
        return;
    }
    let long = REGRESSION_SEEDS.iter().map(|&(seed, duration_ms)| Plan { duration_ms, ..Plan::new(seed) });
    let jumping = JUMPING_CLUSTERS.iter().map(|&(seed, duration_ms)| Plan {
        duration_ms,
        jump_every_ms: Some(20 * 60_000),
        ..Plan::new(seed)
    });
    let plans: Vec<Plan> = jumping.chain(long).chain((1..=10).map(short)).collect();
    // Each thread takes the next world.
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Counts::default()));
    let work = || {
        while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            let counts = run(plan.clone());
            all.lock().unwrap().add(&counts);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let all = all.into_inner().unwrap();
    assert!(all.lists > 0 && all.forged > 0 && all.restored > 0 && all.questions > 0 && all.jumps > 0, "{all:?}");
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let plan = || Plan { duration_ms: SHORT_MS, games: 10, ..Plan::new(3) };
    assert_eq!(run(plan()).digest, run(plan()).digest);
}

/// The long run of `scripts/simulate`.
#[test]
fn hours_of_worlds() {
    if let Some(seed) = number("SIMULATE_SEED") {
        println!("{:?}", Plan::new(seed));
        println!("{:?}", run(Plan::new(seed)));
        return;
    }
    let Some(hours) = number("SIMULATE_HOURS") else { return };
    let first = number("SIMULATE_FROM").unwrap_or(1);
    let mut all = Counts::default();
    for seed in first.. {
        let counts = run(Plan::new(seed));
        all.add(&counts);
        println!("seed {seed}: {:.1} h, {} events; {:.0} h in all", counts.hours(), counts.events, all.hours());
        if all.hours() >= hours as f64 {
            break;
        }
    }
    println!("{all:?}");
}
