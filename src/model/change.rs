//! What may be done to the registry: the operator, servers and other nodes.

use std::sync::Arc;

use super::{Address, Facts, Game, HeartbeatKeys, Proof, Server, Strength};

/// The operator's word on a server: what no server may say of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub official: bool,
    /// Lists are sorted by it, highest first.
    pub priority: i32,
    /// What kind of official server it is, in a game that has kinds; 0 is unofficial.
    pub flavor: u8,
}

/// The operator's word on the server of one game at one address. No other game is listed there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedServer {
    pub address: Address,
    pub game: Game,
    pub overrides: Overrides,
    /// It need not announce itself: it is asked by query, and listed while it answers.
    pub asked: bool,
}

/// A server was announced and its address proven.
#[derive(Clone, Debug)]
pub struct Announce<'a> {
    pub address: Address,
    pub game: Game,
    pub proof: Proof,
    /// When the proof was begun (for a cookie: when it was sent). An older one never overwrites a newer one,
    /// and the life time counts from here, so that a replay prolongs nothing.
    pub proven_at_ms: u64,
    pub life_ms: u64,
    /// Whether it is to be asked again and again by its game's query.
    pub asked: bool,
    pub rtt_us: Option<u32>,
    pub keys: Option<Arc<HeartbeatKeys>>,
    pub facts: Facts<'a>,
}

/// What another node told of an address, in this node's own time.
// A change that holds one boxes the whole.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are listed servers, and a change has it in a box")]
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

/// A server that another node lists. The life in `announce` is what is left of it now.
#[derive(Clone, Debug)]
pub struct RemoteServer<'a> {
    pub announce: Announce<'a>,
    /// Who has the proof.
    pub node: u8,
    pub first_seen_ms: u64,
    pub last_seen_ms: u64,
    /// For a proof of an address alone: when a stronger one was removed there, if one was. Without this, a node that
    /// still has the stronger one could not tell that its time is over.
    pub stronger_gone_ms: Option<u64>,
}

/// A server was taken off the list: it wins over proofs that are not newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    pub address: Address,
    /// Ends proofs of the address alone up to this time.
    pub at_ms: u64,
    /// Ends proofs of the game up to this time, `at_ms` at the latest; 0 where nothing that strong was removed.
    pub game_at_ms: u64,
    /// It said so itself; otherwise it no longer answered, and is kept until its life ends.
    pub quit: bool,
    /// Whether this came from another node.
    pub foreign: bool,
}

impl Gone {
    /// Up to when proofs of this kind are over; 0 where they are not.
    pub fn at_ms_for(&self, proof: Proof) -> u64 {
        match proof.strength() {
            Strength::Address => self.at_ms,
            Strength::Game => self.game_at_ms,
        }
    }

    pub fn ends(&self, proof: Proof, proven_at_ms: u64) -> bool {
        proven_at_ms <= self.at_ms_for(proof)
    }
}

/// What may be done to the registry. All doors lead here.
#[derive(Clone, Debug)]
pub enum Change<'a> {
    Announce(Announce<'a>),
    /// A heartbeat of a server that is listed: a new life, and the keys of this heartbeat instead of the last one's.
    Heartbeat {
        address: Address,
        game: Game,
        life_ms: u64,
        keys: Arc<HeartbeatKeys>,
    },
    /// A server that is asked answered. Without facts, it is alive and said nothing more.
    Answer {
        address: Address,
        game: Game,
        rtt_us: u32,
        facts: Option<Facts<'a>>,
    },
    /// A server that is asked did not answer in this round.
    Miss {
        address: Address,
        game: Game,
    },
    /// It says that it is gone, over a connection. Only what came by heartbeat goes, and masters only for masters.
    Quit {
        address: Address,
        master: bool,
    },
    /// A server that was listed before a restart is listed again, for what is left of its life.
    Restore {
        server: Arc<Server>,
        /// When its life ends, as far as the file knows, by the clock that it was written with.
        ends_at_ms: u64,
        /// Listed here for so much longer, because the file may lack the last signs of life. Other nodes never hear of it.
        grace_ms: u64,
        /// What that clock was behind the time that the nodes share.
        behind_ms: i64,
        /// Where it can be asked: how soon.
        ask_in_ms: u64,
    },
    /// What another node told. Boxed, so that the changes of datagrams stay small.
    Merge(Box<RemoteState<'a>>),
    /// The operator's words on servers, all of them; they replace the earlier ones.
    NamedServers(Arc<[NamedServer]>),
}
