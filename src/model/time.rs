//! Times by the clocks of a node and of a cluster.

/// The current time by the hub's clock. Rules and the registry receive it; they never read a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Milliseconds of the monotonic clock, which lives are measured with.
    pub mono_ms: u64,
    /// Milliseconds since 1970, UTC, for people and other nodes.
    pub unix_ms: u64,
}

/// The time that all nodes of a cluster share, as its offset from this node's monotonic clock, so that setting the time of
/// day does not move it. Without a cluster, it is this node's time of day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedTime {
    pub ahead_of_mono_ms: Option<i64>,
}

impl SharedTime {
    /// Milliseconds since 1970 by the shared clock.
    pub fn unix_ms(self, now: Now) -> u64 {
        self.ahead_of_mono_ms.map_or(now.unix_ms, |ahead_ms| now.mono_ms.saturating_add_signed(ahead_ms))
    }

    /// What has to be added to this node's time of day to get the shared time.
    pub fn offset_ms(self, now: Now) -> i64 {
        (self.unix_ms(now) as i64).saturating_sub(now.unix_ms as i64)
    }
}
