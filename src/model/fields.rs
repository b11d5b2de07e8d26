//! Which fields of a listed server differ between two of its states.

use std::ops::{BitOr, BitOrAssign};
use std::sync::Arc;

use super::Server;

/// A set of fields, as readers of the list know them. The times at which a server was seen and the length of its round trip
/// are not among them: they move with every proof, and say nothing new about the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields(u32);

impl Fields {
    pub const NONE: Fields = Fields(0);
    pub const NAME: Fields = Fields(1);
    pub const MODE: Fields = Fields(1 << 1);
    pub const MAP: Fields = Fields(1 << 2);
    pub const VERSION: Fields = Fields(1 << 3);
    pub const PLAYERS_CURRENT: Fields = Fields(1 << 4);
    pub const PLAYERS_MAX: Fields = Fields(1 << 5);
    pub const PASSWORD: Fields = Fields(1 << 6);
    pub const OFFICIAL: Fields = Fields(1 << 7);
    pub const PRIORITY: Fields = Fields(1 << 8);
    pub const FLAVOR: Fields = Fields(1 << 9);
    pub const VERIFIED_BY: Fields = Fields(1 << 10);
    pub const VIA: Fields = Fields(1 << 11);
    pub const FIRST_SEEN: Fields = Fields(1 << 12);
    /// Whether the round trip is known, not how long it is.
    pub const HAS_RTT: Fields = Fields(1 << 13);
    pub const PLAYERS: Fields = Fields(1 << 14);
    pub const RULES: Fields = Fields(1 << 15);
    /// The game and its protocol. They never differ between two states of a server: another game is another server.
    pub const GAME: Fields = Fields(1 << 16);
    /// How to join it, which follows from the game and, in some, from the mode.
    pub const JOIN: Fields = Fields(1 << 17);
    /// Whether its owner states all this.
    pub const STATED: Fields = Fields(1 << 18);
    /// Whether it no longer answers.
    pub const UNANSWERED: Fields = Fields(1 << 19);
    /// Everything, for a reader that may not know the server.
    pub const ALL: Fields = Fields(u32::MAX);
    /// What a list of many servers does without.
    pub const DETAILS: Fields = Fields(Fields::PLAYERS.0 | Fields::RULES.0);

    /// The fields that differ between two states of a server.
    pub fn between(before: &Server, after: &Server) -> Fields {
        let mut fields = Fields::NONE;
        let mut note = |field: Fields, differs: bool| fields |= if differs { field } else { Fields::NONE };
        if before.texts != after.texts {
            let (before, after) = (&before.texts, &after.texts);
            note(Fields::NAME, before.name() != after.name());
            note(Fields::MODE | Fields::JOIN, before.mode() != after.mode());
            note(Fields::MAP, before.map() != after.map());
            note(Fields::VERSION, before.version() != after.version());
        }
        note(Fields::PLAYERS_CURRENT, before.players_current != after.players_current);
        note(Fields::PLAYERS_MAX, before.players_max != after.players_max);
        note(Fields::PASSWORD, before.password != after.password);
        note(Fields::OFFICIAL, before.overrides.official != after.overrides.official);
        note(Fields::PRIORITY, before.overrides.priority != after.overrides.priority);
        note(Fields::FLAVOR, before.overrides.flavor != after.overrides.flavor);
        note(Fields::VERIFIED_BY, before.verified_by != after.verified_by);
        note(Fields::STATED, before.is_stated() != after.is_stated());
        note(Fields::VIA, before.via != after.via);
        note(Fields::UNANSWERED, before.is_unanswered() != after.is_unanswered());
        note(Fields::FIRST_SEEN, before.first_seen_ms != after.first_seen_ms);
        note(Fields::HAS_RTT, before.rtt_us.is_some() != after.rtt_us.is_some());
        note(Fields::PLAYERS, before.known_players() != after.known_players());
        let is_shared = match (&before.details, &after.details) {
            (Some(before), Some(after)) => Arc::ptr_eq(before, after),
            (before, after) => before.is_none() && after.is_none(),
        };
        note(Fields::RULES, !is_shared && before.rules() != after.rules());
        fields
    }

    /// Whether some of these are in the set.
    pub fn has(self, some: Fields) -> bool {
        self.0 & some.0 != 0
    }

    pub fn without(self, others: Fields) -> Fields {
        Fields(self.0 & !others.0)
    }
}

impl BitOr for Fields {
    type Output = Fields;

    fn bitor(self, other: Fields) -> Fields {
        Fields(self.0 | other.0)
    }
}

impl BitOrAssign for Fields {
    fn bitor_assign(&mut self, other: Fields) {
        *self = *self | other;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Details, Facts, Game, Overrides, Player, Proof, Silence, round_trip};

    #[test]
    fn each_field_is_noticed_and_times_are_not() {
        let facts = Facts { players_current: Some(1), ..Facts::default() };
        let before = Server::new("203.0.113.5:1".parse().unwrap(), Game::Own("tanks"), Proof::Query, 0, &facts);
        let with = |facts: &Facts<'_>| before.with_facts(facts);
        let known = || Facts { players_current: Some(1), ..Facts::default() };
        let details = |players: &[&str], rules: &[(&str, &str)]| {
            let player = |name: &&str| Player { name: (*name).into(), ..Player::default() };
            let rules = rules.iter().copied().collect();
            Some(Arc::new(Details { players: players.iter().map(player).collect(), rules }))
        };
        let overridden = |official, priority, flavor| Server {
            overrides: Overrides { official, priority, flavor },
            ..before.clone()
        };
        let seen = Server { proven_at_ms: 7, last_seen_ms: 8, life_ms: 9, foreign: true, node: 3, ..before.clone() };
        let timed = Server { rtt_us: Some(round_trip(5)), ..before.clone() };
        assert_eq!(Fields::between(&timed, &Server { rtt_us: Some(round_trip(6)), ..before.clone() }), Fields::NONE);
        for (after, expected) in [
            (seen, Fields::NONE),
            (timed, Fields::HAS_RTT),
            (with(&Facts { name: "n".into(), ..known() }), Fields::NAME),
            (with(&Facts { mode: "n".into(), map: "m".into(), ..known() }), Fields::MODE | Fields::JOIN | Fields::MAP),
            (with(&Facts { players_current: None, ..known() }), Fields::PLAYERS_CURRENT),
            (with(&Facts { players_max: Some(8), ..known() }), Fields::PLAYERS_MAX),
            (with(&Facts { password: Some(false), ..known() }), Fields::PASSWORD),
            (with(&Facts { details: details(&["Ann"], &[]), ..known() }), Fields::PLAYERS),
            (with(&Facts { details: details(&[], &[("a", "b")]), ..known() }), Fields::RULES),
            (with(&Facts { details: details(&[], &[]), ..known() }), Fields::NONE),
            (overridden(true, 0, 0), Fields::OFFICIAL),
            (overridden(false, 1, 0), Fields::PRIORITY),
            (overridden(false, 0, 1), Fields::FLAVOR),
            (Server { verified_by: Proof::Cookie, ..before.clone() }, Fields::VERIFIED_BY),
            (Server { first_seen_ms: 1, ..before.clone() }, Fields::FIRST_SEEN),
            (before.clone().with_silence(Silence::OthersAsk), Fields::NONE),
            (before.clone().with_silence(Silence::Announces), Fields::UNANSWERED),
            (
                Server { verified_by: Proof::Connection, ..before.clone() },
                Fields::VERIFIED_BY | Fields::STATED, // it says how many players it has
            ),
        ] {
            assert_eq!(Fields::between(&before, &after), expected, "{after:?}");
            assert_eq!(Fields::between(&after, &before), expected, "{after:?}");
        }
        assert!(Fields::ALL.has(Fields::DETAILS) && !Fields::ALL.without(Fields::DETAILS).has(Fields::RULES));
    }
}
