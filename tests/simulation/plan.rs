//! What a world is like: everything follows from its seed.

use std::time::Duration;

use rallypoint::config::Config;

use crate::random::Rng;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
/// Worlds from this seed on are sparse and long.
const SPARSE_FROM: u64 = 10_000;

#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub duration_ms: u64,
    /// Honest game servers, and those that lie.
    pub games: usize,
    pub liars: usize,
    /// How long a game server usually stays as it is.
    pub churn_ms: u64,
    pub facts_every_ms: u64,
    /// The network, for datagrams.
    pub loss_percent: u64,
    pub duplicate_percent: u64,
    /// How many come out of order.
    pub late_percent: u64,
    pub delay_ms: u64,
    /// Mean time between forged datagrams; None: there are none.
    pub spoof_every_ms: Option<u64>,
    /// Whether forgers flood from time to time.
    pub floods: bool,
    /// Whether forgers guess the ports of questions.
    pub guesses: bool,
    pub nodes: usize,
    pub store_every_ms: Option<u64>,
    /// Mean time between restarts, and between steps of the clock.
    pub restart_every_ms: Option<u64>,
    pub jump_every_ms: Option<u64>,
    pub list_every_ms: u64,
    pub ask_every_ms: u64,
    pub misses: u8,
    pub servers_per_ip_max: u32,
    pub servers_max: usize,
    /// Whether all liars are at one address, more of them than are allowed there.
    pub is_greedy: bool,
    /// How often an idle master looks at what has expired, and what is due.
    pub tick_ms: u64,
}

impl Plan {
    /// Most worlds are small and long; one in thirty has thousands of game servers.
    pub fn new(seed: u64) -> Plan {
        let mut rng = Rng::new(seed);
        if seed % 30 == 7 {
            return Plan::crowd(seed, &mut rng);
        }
        // In some worlds, liars at one address want more than it may have.
        let is_greedy = seed % 7 == 6;
        let is_calm = rng.one_in(2);
        let has_store = rng.one_in(2);
        let spoofs = rng.percent(70);
        let guesses = spoofs && rng.one_in(3);
        let plan = Plan {
            seed,
            duration_ms: rng.between(4, 12) * HOUR_MS,
            games: rng.between(3, 24) as usize,
            liars: if is_greedy { 12 } else { rng.below(3) as usize },
            churn_ms: *rng.pick(&[10 * MINUTE_MS, HOUR_MS, 4 * HOUR_MS]),
            facts_every_ms: *rng.pick(&[MINUTE_MS, 10 * MINUTE_MS, HOUR_MS]),
            loss_percent: if is_calm { 0 } else { rng.between(1, 10) },
            duplicate_percent: *rng.pick(&[0, 1, 10]),
            late_percent: *rng.pick(&[0, 2, 20]),
            delay_ms: *rng.pick(&[20, 100, 300]),
            spoof_every_ms: spoofs.then(|| *rng.pick(&[2_000, 10_000, 60_000])),
            floods: spoofs && rng.one_in(2),
            guesses,
            nodes: if seed % 5 == 3 { 3 } else { 1 },
            store_every_ms: has_store.then(|| *rng.pick(&[500, 2_000, 5_000])),
            restart_every_ms: rng.one_in(2).then(|| *rng.pick(&[30 * MINUTE_MS, 2 * HOUR_MS])),
            jump_every_ms: rng.one_in(2).then(|| *rng.pick(&[20 * MINUTE_MS, 2 * HOUR_MS])),
            list_every_ms: *rng.pick(&[30_000, 5 * MINUTE_MS]),
            ask_every_ms: *rng.pick(&[30_000, 60_000, 180_000]),
            misses: rng.between(1, 3) as u8,
            servers_per_ip_max: if is_greedy { 4 } else { rng.between(4, 32) as u32 },
            servers_max: 2_000_000,
            is_greedy,
            tick_ms: 500,
        };
        // docs/reliability.md says what is still open where the clocks of a cluster are set while it runs.
        let plan = if plan.nodes > 1 { Plan { jump_every_ms: None, ..plan } } else { plan };
        if seed < SPARSE_FROM { plan } else { plan.sparse(&mut rng) }
    }

    /// Few game servers for days.
    fn sparse(self, rng: &mut Rng) -> Plan {
        Plan {
            duration_ms: rng.between(24, 96) * HOUR_MS,
            games: rng.between(2, 6) as usize,
            liars: self.liars.min(1),
            facts_every_ms: HOUR_MS,
            churn_ms: self.churn_ms.max(HOUR_MS),
            spoof_every_ms: self.spoof_every_ms.map(|_| MINUTE_MS),
            store_every_ms: self.store_every_ms.map(|_| 30_000),
            list_every_ms: 5 * MINUTE_MS,
            ask_every_ms: 180_000,
            is_greedy: false,
            tick_ms: 2_000,
            ..self
        }
    }

    /// Thousands of game servers for a short time.
    fn crowd(seed: u64, rng: &mut Rng) -> Plan {
        Plan {
            nodes: 1,
            duration_ms: rng.between(10, 20) * MINUTE_MS,
            games: rng.between(1_000, 4_000) as usize,
            liars: 20,
            spoof_every_ms: Some(100),
            floods: true,
            list_every_ms: 30_000,
            ask_every_ms: 30_000,
            store_every_ms: Some(2_000),
            restart_every_ms: Some(8 * MINUTE_MS),
            jump_every_ms: Some(10 * MINUTE_MS),
            servers_per_ip_max: 32,
            ..Plan::new(seed + 1)
        }
        .with_seed(seed)
    }

    fn with_seed(self, seed: u64) -> Plan {
        Plan { seed, ..self }
    }

    /// No datagram is lost.
    pub fn is_calm(&self) -> bool {
        self.loss_percent == 0
    }

    /// Each datagram arrives once, and in order.
    pub fn is_perfect(&self) -> bool {
        self.is_calm() && self.duplicate_percent == 0 && self.late_percent == 0 && !self.guesses && self.nodes == 1
    }

    /// How long a server that announces itself may be silent.
    pub fn grace_ms(&self) -> u64 {
        [10 * MINUTE_MS, 2 * MINUTE_MS, 0][self.seed as usize % 3]
    }

    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.probe.every = Duration::from_millis(self.ask_every_ms);
        config.probe.misses = self.misses;
        config.probe.grace = Duration::from_millis(self.grace_ms());
        config.guard.servers_per_ip_max = self.servers_per_ip_max;
        config.guard.servers_max = self.servers_max;
        config
    }
}
