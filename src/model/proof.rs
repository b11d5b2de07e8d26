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
    /// The game returned our nonce, but another master named it: it never announced itself here.
    Mirrored,
    /// The game returned our cookie or nonce, or the operator vouches for it.
    Game,
}

impl Strength {
    /// The strength of a proof of a server that announced itself, or that another master named.
    pub fn of(proof: Proof, is_mirrored: bool) -> Strength {
        match proof.strength() {
            Strength::Game if is_mirrored => Strength::Mirrored,
            strength => strength,
        }
    }

    /// Whether other proofs can be stronger.
    pub fn is_weak(self) -> bool {
        self < Strength::Game
    }
}

impl Proof {
    /// The strength for a server that announced itself.
    pub fn strength(self) -> Strength {
        match self {
            Proof::Connection => Strength::Address,
            Proof::Cookie | Proof::Query | Proof::Config => Strength::Game,
        }
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
