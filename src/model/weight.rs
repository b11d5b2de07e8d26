//! How many bytes the registry keeps for a server. The figure depends on the server alone, so that what was added for it can be
//! subtracted when it goes. It is an upper estimate: what several servers may share counts for each of them.

use super::{Details, Game, HeartbeatKeys, Player, Server, Texts};

/// The counts of an `Arc`.
const ARC_BYTES: usize = 16;
/// What an entry costs beside its [`Server`]: its slot (64 bytes), its places in the address index, in the counts of its prefixes,
/// in both wheels and in two views, and the room that these keep for growth.
const ENTRY_BYTES: usize = 192;

/// What an allocation of this size takes: glibc adds 8 bytes, rounds up to 16, and gives 32 at least.
const fn allocated(bytes: usize) -> usize {
    match bytes {
        0 => 0,
        1..=24 => 32,
        _ => (bytes + 8).next_multiple_of(16),
    }
}

impl Server {
    /// All that the registry keeps for this server.
    pub fn bytes(&self) -> usize {
        let details = self.details.as_ref().map_or(0, |details| shared::<Details>() + details.heap_bytes());
        let keys = self.keys.as_ref().map_or(0, |keys| shared::<HeartbeatKeys>() + keys.heap_bytes());
        ENTRY_BYTES + shared::<Server>() + self.game.heap_bytes() + self.texts.heap_bytes() + details + keys
    }
}

/// A value in an `Arc`.
const fn shared<T>() -> usize {
    allocated(ARC_BYTES + size_of::<T>())
}

impl Game {
    fn heap_bytes(&self) -> usize {
        match self {
            Game::Own(_) => 0,
            Game::Carried(carried) => shared::<super::Carried>() + allocated(carried.name.len()),
        }
    }
}

impl Texts {
    /// Beyond the struct itself.
    pub fn heap_bytes(&self) -> usize {
        allocated(self.all.len())
    }
}

impl Details {
    /// Players and rules, beyond the struct itself.
    pub fn heap_bytes(&self) -> usize {
        let places = allocated(self.players.capacity() * size_of::<Player>());
        let players: usize = self.players.iter().map(Player::heap_bytes).sum();
        places + players + self.rules.heap_bytes()
    }
}

impl Player {
    fn heap_bytes(&self) -> usize {
        allocated(self.name.len()) + self.team.as_ref().map_or(0, |team| allocated(team.len()))
    }
}

impl super::GameRules {
    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl HeartbeatKeys {
    /// Beyond the struct itself.
    pub fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

impl super::Pairs {
    fn heap_bytes(&self) -> usize {
        allocated(self.bytes.capacity())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Facts, GameRules, Proof};

    fn server(game: Game, facts: &Facts<'_>) -> Server {
        Server::new("203.0.113.5:20737".parse().unwrap(), game, Proof::Cookie, 0, facts)
    }

    #[test]
    fn a_bare_server_is_its_entry_and_its_struct() {
        assert_eq!(server(Game::Own("tanks"), &Facts::default()).bytes(), ENTRY_BYTES + 160);
        let named = Facts { name: "x".repeat(40).into(), map: "y".repeat(20).into(), ..Facts::default() };
        assert_eq!(server(Game::Own("tanks"), &named).bytes(), ENTRY_BYTES + 160 + 80, "both in one allocation");
    }

    /// What strangers say is counted, wherever they say it.
    #[test]
    fn every_text_counts() {
        const LONG: usize = 1_000;
        let long = "x".repeat(LONG);
        let bare = server(Game::Own("tanks"), &Facts::default());
        let with = |details: Details| {
            server(Game::Own("tanks"), &Facts { details: Some(Arc::new(details)), ..Facts::default() })
        };
        let player = |name: &str, team: Option<String>| Player {
            name: name.into(),
            team: team.map(Into::into),
            ..Player::default()
        };
        let of_player = |player: Player| with(Details { players: vec![player], ..Details::default() });
        let keys = Arc::new(HeartbeatKeys::exactly(&[(b"key", long.as_bytes())]));
        for (what, fat) in [
            ("name", server(Game::Own("tanks"), &Facts { name: long.as_str().into(), ..Facts::default() })),
            ("mode", server(Game::Own("tanks"), &Facts { mode: long.as_str().into(), ..Facts::default() })),
            ("game", server(Game::carried("tanks", &long), &Facts::default())),
            ("player", of_player(player(&long, None))),
            ("team", of_player(player("", Some(long.clone())))),
            ("rule", with(Details { rules: GameRules::from([("rule", &*long)]), ..Details::default() })),
            ("keys", Server { keys: Some(keys), ..bare.clone() }),
        ] {
            let more = fat.bytes() - bare.bytes();
            assert!((LONG..LONG + 300).contains(&more), "{what}: {more}");
        }
        let many = with(Details { players: vec![Player::default(); 100], ..Details::default() });
        assert!(many.bytes() - bare.bytes() >= 100 * size_of::<Player>(), "a player without a name has a place");
    }

    #[test]
    fn allocations_are_rounded_as_glibc_does() {
        for (asked, taken) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64), (152, 160), (1_000, 1_008)] {
            assert_eq!(allocated(asked), taken, "{asked}");
        }
    }
}
