//! How a server was verified, and how strong that proof is.

/// How a listed server's address was verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A cookie sent to its address came back.
    Cookie,
    /// It answered its game's query with our nonce.
    Query,
    /// It has only its TCP connection: its game cannot be queried.
    Connection,
    /// The operator's configuration names it.
    Config,
}

/// The strength of a proof, weakest first. A weaker proof never replaces, edits, prolongs or ends a stronger one while that
/// one is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strength {
    /// Someone at the IP address opened a connection. This does not show that a game runs there.
    Address,
    /// The game returned our cookie or nonce, or the operator vouches for it.
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
