//! How a server was proven, and how much that shows.

/// How a listed server was proven to be where it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A cookie sent to its address came back.
    Cookie,
    /// It answered its game's own query with our nonce.
    Query,
    /// Only its TCP connection vouches for the address: its game cannot be queried.
    Connection,
    /// The operator's configuration names it.
    Config,
}

/// How much a proof shows, weakest first. A weaker proof never replaces, edits, prolongs or ends a stronger one that
/// lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Someone at the IP address opened a connection. Nothing shows that a game is there.
    Address,
    /// The game sent back what was sent to it, or the operator vouches for it.
    Game,
}

impl Proof {
    pub fn strength(self) -> Strength {
        match self {
            Proof::Connection => Strength::Address,
            Proof::Cookie | Proof::Query | Proof::Config => Strength::Game,
        }
    }

    pub fn is_weaker_than(self, other: Proof) -> bool {
        self.strength() < other.strength()
    }

    pub const ALL: [Proof; 4] = [Proof::Cookie, Proof::Query, Proof::Connection, Proof::Config];

    /// The proof of this name.
    pub fn named(name: &str) -> Option<Proof> {
        Proof::ALL.into_iter().find(|proof| proof.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Proof::Cookie => "cookie",
            Proof::Query => "query",
            Proof::Connection => "connection",
            Proof::Config => "config",
        }
    }
}
