//! Changes to the registry, made by the operator, by servers and by other nodes.

use std::sync::Arc;

use super::{Address, Facts, Game, HeartbeatKeys, Origin, Proof, Server, Silence, Strength};

/// Attributes of a server that only the operator can set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub official: bool,
    /// Lists are sorted by priority, highest first.
    pub priority: i32,
    /// The kind of official server, in games that have several kinds; 0 is unofficial.
    pub flavor: u8,
}

/// A server that the operator names in the configuration. No other game is listed at its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedServer {
    pub address: Address,
    pub game: Game,
    pub overrides: Overrides,
    /// It need not announce itself: it is queried, and listed while it answers.
    pub asked: bool,
}

/// A server was announced and its address proven.
#[derive(Clone, Debug)]
pub struct Announce<'a> {
    pub address: Address,
    pub game: Game,
    pub proof: Proof,
    /// When the proof began (for a cookie: when it was sent). An older proof never overwrites a newer one, and the life counts
    /// from this time, so a replay prolongs nothing.
    pub proven_at_ms: u64,
    pub life_ms: u64,
    /// Whether it is queried regularly from now on.
    pub asked: bool,
    pub rtt_us: Option<u32>,
    pub keys: Option<Arc<HeartbeatKeys>>,
    pub facts: Facts<'a>,
}

/// A server that another master lists has answered our query.
#[derive(Clone, Debug)]
pub struct Mirrored<'a> {
    pub address: Address,
    pub game: Game,
    /// The master that lists it.
    pub via: Arc<Origin>,
    pub rtt_us: u32,
    pub facts: Facts<'a>,
}

/// What another node knows about an address, converted to this node's time.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are listed servers, and a change boxes the whole")]
pub enum RemoteState<'a> {
    Listed(RemoteServer<'a>),
    Gone(Gone),
}

impl RemoteState<'_> {
    pub fn address(&self) -> Address {
        match self {
            RemoteState::Listed(listed) => listed.announce.address,
            RemoteState::Gone(gone) => gone.address,
        }
    }
}

/// A server that another node lists. The life in `announce` is the rest of it.
#[derive(Clone, Debug)]
pub struct RemoteServer<'a> {
    pub announce: Announce<'a>,
    /// The master that names it, if it did not announce itself.
    pub via: Option<Arc<Origin>>,
    /// The node that has the proof.
    pub node: u8,
    /// What follows from its not answering since that proof.
    pub silence: Silence,
    pub first_seen_ms: u64,
    pub last_seen_ms: u64,
    /// For a proof of the address alone: when a stronger one was removed at this address, if one was. A node that still has the
    /// stronger one learns from this that it has ended.
    pub stronger_gone_ms: Option<u64>,
}

impl RemoteServer<'_> {
    pub fn strength(&self) -> Strength {
        Strength::of(self.announce.proof, self.via.is_some())
    }
}

/// A server was removed from the list. This overrides all proofs that are not newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub address: Address,
    /// Ends weak proofs (of the address alone, and of mirrored servers) up to this time.
    pub at_ms: u64,
    /// Ends proofs of the game up to this time, at most `at_ms`; 0 if no such proof was removed.
    pub game_at_ms: u64,
    /// The server quit; otherwise it stopped answering, and its record is kept until its life ends.
    pub quit: bool,
    /// Whether this came from another node.
    pub foreign: bool,
}

impl Gone {
    /// Proofs of this strength up to this time are over; 0 if none is.
    pub fn at_ms_for(&self, strength: Strength) -> u64 {
        if strength.is_weak() { self.at_ms } else { self.game_at_ms }
    }

    pub fn ends(&self, strength: Strength, proven_at_ms: u64) -> bool {
        proven_at_ms <= self.at_ms_for(strength)
    }
}

/// A change to the registry. There is no other way to alter it.
#[derive(Clone, Debug)]
pub enum Change<'a> {
    Announce(Announce<'a>),
    /// Lists a server that another master named, unless it announces itself here. Boxed, so that the changes that datagrams
    /// cause stay small.
    Mirror(Box<Mirrored<'a>>),
    /// A heartbeat of a listed server: starts its life again and replaces its heartbeat keys.
    Heartbeat {
        address: Address,
        game: Game,
        life_ms: u64,
        keys: Arc<HeartbeatKeys>,
    },
    /// A server of this protocol announces itself from the port that is listed, and has proven nothing by it: the datagram may
    /// be forged. One that does not answer may stay for a while because of it.
    Announcing {
        address: Address,
        protocol: &'static str,
    },
    /// A server answered its query. Without facts, it is only known to be alive.
    Answer {
        address: Address,
        game: Game,
        rtt_us: u32,
        facts: Option<Facts<'a>>,
        /// Identifies the answer with its facts: an equal one says the same again. 0: nothing does.
        digest: u64,
    },
    /// A server did not answer its query in this round.
    Miss {
        address: Address,
        game: Game,
        /// Its newest proof when it was asked. If there is a newer one by now, the miss does not count: the server came back
        /// in between. None: it counts in any case.
        proven_at_ms: Option<u64>,
    },
    /// A server said over a connection that it stops. Only servers that announced themselves with heartbeats are removed, unless
    /// it has shown that it is the one that is listed, and masters only if `master` is set.
    Quit {
        address: Address,
        master: bool,
        proven: bool,
    },
    /// Lists a server from before a restart again, for the rest of its life.
    Restore {
        server: Arc<Server>,
        /// When its life ends according to the file, by the clock that it was written with.
        ends_at_ms: u64,
        /// Added to its life on this node only, because the file may lack its last heartbeats.
        grace_ms: u64,
        /// How far that clock was behind the time that the nodes share.
        behind_ms: i64,
        /// When to query it, if its game can be queried.
        ask_in_ms: u64,
    },
    /// A record of another node. Boxed, so that the changes that datagrams cause stay small.
    Merge(Box<RemoteState<'a>>),
    /// All servers that the operator names. They replace the earlier ones.
    NamedServers(Arc<[NamedServer]>),
}
