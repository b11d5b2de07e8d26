//! What servers report about themselves.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::Arc;

use arrayvec::ArrayString;

use super::server::cut;
use super::{Address, GameRules, Texts, is_invisible};

/// A version as text. Often formatted from packed numbers, so it owns its text, without an allocation.
pub type VersionText = ArrayString<32>;

/// What a server reports about itself, borrowed from the message. An empty text means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The gamename, if the protocol carries several games and the message says which.
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
    /// The value of one of the server's rules.
    pub fn rule(&self, name: &str) -> Option<&str> {
        self.details.as_deref()?.rules.get(name)
    }

    /// The name as listed: an invisible name is replaced by the address. An empty one stays unknown.
    pub(super) fn shown_name<'a>(&'a self, address: Address, buffer: &'a mut ArrayString<64>) -> &'a str {
        let is_invisible = !self.name.is_empty() && !self.has_visible_name();
        if is_invisible && write!(buffer, "{address}").is_ok() { buffer } else { &self.name }
    }

    pub fn has_visible_name(&self) -> bool {
        !self.name.chars().all(is_blank)
    }

    /// The number of players as listed: at most the server's maximum, if it is known.
    pub fn shown_players(&self) -> Option<u16> {
        let most = self.players_max.filter(|most| *most > 0).unwrap_or(u16::MAX);
        self.players_current.map(|players| players.min(most))
    }

    /// Applies the bounds on texts. Those of the details have their own: [`Details::bounded`].
    pub fn bounded(mut self) -> Self {
        for text in [&mut self.name, &mut self.mode, &mut self.map] {
            if text.len() > Texts::BYTES_MAX {
                *text = Cow::Owned(cut(text, Texts::BYTES_MAX).to_string()); // without the room of the long one
            }
        }
        self
    }

    /// The same facts, independent of the message.
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

/// What a game's query reports beyond the facts that all games have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    pub players: Vec<Player>,
    pub rules: GameRules,
}

impl Details {
    pub const PLAYERS_MAX: usize = 256;
    pub const RULES_MAX: usize = 256;
    /// All names and values together, whatever the game allows.
    pub const BYTES_MAX: usize = 16 << 10;

    /// The players, if known: a game with players that names none does not report them.
    pub fn known_players(&self, players_current: Option<u16>) -> Option<&[Player]> {
        Some(&*self.players).filter(|players| !players.is_empty() || players_current == Some(0))
    }

    /// Applies the bounds of all games, and keeps the first of several rules with the same name.
    pub fn bounded(&self) -> Details {
        self.within(Details::PLAYERS_MAX, Details::BYTES_MAX)
    }

    /// The same with the bounds of a game.
    pub fn within(&self, players_max: usize, bytes_max: usize) -> Details {
        let mut room = bytes_max;
        let mut fits = |player: &&Player| room.checked_sub(player.text_bytes()).map(|left| room = left).is_some();
        let players =
            self.players.iter().take(players_max.min(Details::PLAYERS_MAX)).filter(&mut fits).cloned().collect();
        Details { players, rules: self.rules.bounded(Details::RULES_MAX, room) }
    }

    /// Whether these bounds leave everything as it is.
    pub fn is_within(&self, players_max: usize, bytes_max: usize) -> bool {
        let players: usize = self.players.iter().map(Player::text_bytes).sum();
        self.players.len() <= players_max && players + self.rules.text_bytes() <= bytes_max
    }
}

/// A player. Absent fields are not reported by the game.
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

impl Player {
    fn text_bytes(&self) -> usize {
        self.name.len() + self.team.as_ref().map_or(0, |team| team.len())
    }
}

/// Whether a character is blank: white space, or nothing that anybody sees.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || c == '\u{2800}' || is_invisible(c)
}
