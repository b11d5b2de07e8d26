//! What servers say of themselves.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use arrayvec::ArrayString;

use super::Address;

/// A version in text. Versions are often made from packed numbers, so this owns its text, without an allocation.
pub type VersionText = ArrayString<32>;

/// What a server says of itself, borrowed from the message that said it. An empty text means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The gamename, where the protocol carries several games and the message says which.
    pub game: Cow<'a, str>,
    pub name: Cow<'a, str>,
    pub mode: Cow<'a, str>,
    pub map: Cow<'a, str>,
    pub version: VersionText,
    pub players_current: Option<u16>,
    pub players_max: Option<u16>,
    pub password: Option<bool>,
    pub details: Option<Arc<Details>>,
}

impl Facts<'_> {
    /// What the server says of one of its rules.
    pub fn rule(&self, name: &str) -> Option<&str> {
        let rules = self.details.as_deref().map_or(&[][..], |details| &details.rules);
        rules.iter().find(|(found, _)| **found == *name).map(|(_, value)| &**value)
    }

    /// The name as it is listed: a name that nobody could see gives way to the address. An empty one stays unknown.
    pub(super) fn shown_name<'a>(&'a self, address: Address, buffer: &'a mut ArrayString<64>) -> &'a str {
        let is_invisible = !self.name.is_empty() && !self.has_visible_name();
        if is_invisible && write!(buffer, "{address}").is_ok() { buffer } else { &self.name }
    }

    pub fn has_visible_name(&self) -> bool {
        !self.name.chars().all(is_blank)
    }

    /// How many play, as it is listed: not more than the server has room for, where it says so.
    pub fn shown_players(&self) -> Option<u16> {
        let most = self.players_max.filter(|most| *most > 0).unwrap_or(u16::MAX);
        self.players_current.map(|players| players.min(most))
    }

    /// The same facts, kept beyond the message that said them.
    pub fn into_owned(self) -> Facts<'static> {
        Facts {
            game: Cow::Owned(self.game.into_owned()),
            name: Cow::Owned(self.name.into_owned()),
            mode: Cow::Owned(self.mode.into_owned()),
            map: Cow::Owned(self.map.into_owned()),
            version: self.version,
            players_current: self.players_current,
            players_max: self.players_max,
            password: self.password,
            details: self.details,
        }
    }
}

/// What a game's query tells beyond the facts that all games have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub players: Vec<Player>,
    /// Name and value, in the order in which the server told them.
    pub rules: Vec<(Box<str>, Box<str>)>,
}

impl Details {
    pub const PLAYERS_MAX: usize = 256;
    pub const RULES_MAX: usize = 256;
    /// All names and values together.
    pub const BYTES_MAX: usize = 16 << 10;

    /// Who plays, if that is known: where somebody does and nobody is named, the game does not tell.
    pub fn known_players(&self, players_current: Option<u16>) -> Option<&[Player]> {
        Some(&*self.players).filter(|players| !players.is_empty() || players_current == Some(0))
    }

    /// What is kept of what a server tells: of a rule that is told twice the first, and not more than anybody reads.
    pub fn bounded(mut self) -> Details {
        let mut room = Details::BYTES_MAX;
        let mut fits = |size: usize| room.checked_sub(size).map(|left| room = left).is_some();
        self.players.truncate(Details::PLAYERS_MAX);
        self.players.retain(|player| fits(player.name.len() + player.team.as_ref().map_or(0, |team| team.len())));
        self.rules.truncate(Details::RULES_MAX);
        let mut rules: Vec<(Box<str>, Box<str>)> = Vec::with_capacity(self.rules.len());
        for (name, value) in self.rules {
            if !rules.iter().any(|(known, _)| *known == name) && fits(name.len() + value.len()) {
                rules.push((name, value));
            }
        }
        Details { players: self.players, rules }
    }
}

/// One who plays. Absent means that the game does not tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct Player {
    #[schema(value_type = String)]
    pub name: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub team: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spectator: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub points: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kills: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deaths: Option<i32>,
}

/// The keys that a heartbeat sent, kept byte for byte: lists are filtered by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatKeys(pub Vec<HeartbeatKey>);

/// A key and its value.
pub type HeartbeatKey = (Box<[u8]>, Box<[u8]>);

impl HeartbeatKeys {
    /// The keys of a server that announced itself in another way: what every heartbeat has.
    pub fn of(game: &str, address: Address) -> HeartbeatKeys {
        let key = |key: &str, value: &str| (key.as_bytes().into(), value.as_bytes().into());
        HeartbeatKeys(vec![key("gamename", game), key("port", &address.port().to_string())])
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.iter().find(|(found, _)| **found == *key).map(|(_, value)| &**value)
    }
}

/// Whether a character leaves no mark on a page: white space, and what Unicode has that is as wide as nothing or empty.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{e0000}'..='\u{e0fff}')
}
