//! A master that accepts announcements.

use std::fmt;

use super::api;
use crate::client::target::{Kind, Target};
use crate::protocols::announce::{AnnounceMethod, HttpAnnounce, Offer, StartAnnouncer, StreamAnnounce};
use crate::protocols::{CARDS, Card, Games, card};

/// Concurrent announcements. Pending datagrams cost a master nothing, but masters limit the connections per address.
const DATAGRAMS_AT_ONCE: usize = 1000;
const CONNECTIONS_AT_ONCE: usize = 8;

#[derive(Clone)]
pub struct Master {
    pub(super) target: Target,
    pub(super) form: Form,
    /// `host:port`.
    pub(super) authority: String,
}

/// How announcements are sent to it.
#[derive(Clone, Copy)]
pub(super) enum Form {
    Http(HttpAnnounce),
    Stream(&'static dyn StreamAnnounce),
    Datagrams(StartAnnouncer),
}

impl Master {
    /// The error says why this game cannot be announced there.
    pub fn of(target: Target, game: &str) -> Result<Master, String> {
        let cannot = |why| format!("{game} servers cannot be announced to `{target}`; {why}");
        let form = form(target.kind, game).map_err(cannot)?;
        let authority = target.authority(target.master_port()?);
        Ok(Master { target, form, authority })
    }

    /// Whether this offer can be announced there; the error says why not.
    pub fn check(&self, offer: &Offer) -> Result<(), String> {
        match self.form {
            Form::Datagrams(start) => start(0, offer).map(drop),
            Form::Http(_) | Form::Stream(_) => Ok(()),
        }
    }

    /// Whether its list shows the announced facts rather than the game's answers to queries.
    pub fn lists_what_is_announced(&self) -> bool {
        matches!(self.target.kind, Kind::Game(Card { query: None, .. }))
    }

    /// How many announcements may be in progress at once.
    pub fn at_once(&self) -> usize {
        match self.form {
            Form::Datagrams(_) => DATAGRAMS_AT_ONCE,
            Form::Http(_) | Form::Stream(_) => CONNECTIONS_AT_ONCE,
        }
    }

    /// The protocol's title.
    pub(super) fn title(&self) -> &'static str {
        match self.target.kind {
            Kind::Game(card) | Kind::Page(card) => card.title,
            Kind::Dialect(dialect) => dialect.name,
            Kind::Rallypoint => "Rallypoint",
        }
    }
}

fn form(kind: Kind, game: &str) -> Result<Form, String> {
    if let Kind::Game(card) | Kind::Page(card) = kind
        && let Some(advice) = card.announce.only_itself()
    {
        return Err(format!("only the game itself can announce there: {advice}"));
    }
    let form = match kind {
        Kind::Rallypoint => Some((Form::Http(api::ANNOUNCE), true)),
        Kind::Game(card) => match card.announce {
            AnnounceMethod::Stream { rules, .. } => Some((Form::Stream(rules), accepts(card, game))),
            AnnounceMethod::Datagrams { start, .. } => Some((Form::Datagrams(start), accepts(card, game))),
            _ => None,
        },
        Kind::Dialect(_) => None,
        Kind::Page(card) => match card.announce {
            AnnounceMethod::Http(http) => Some((Form::Http(http), accepts(card, game))),
            _ => None,
        },
    };
    match form {
        Some((form, true)) => Ok(form),
        _ => Err(alternatives(game)),
    }
}

/// The masters to which this game can be announced instead.
fn alternatives(game: &str) -> String {
    let mut any: Vec<_> = CARDS.iter().filter(|card| accepts_any(card)).filter_map(scheme).collect();
    any.push("http://".into());
    let any = format!("{} (a Rallypoint) accept any game", any.join(" and "));
    let own: Vec<_> = CARDS.iter().filter(|card| !accepts_any(card)).filter_map(scheme).collect();
    let own = format!("{any}, {} only their own", own.join(" and "));
    match card(game).and_then(|card| card.announce.only_itself()) {
        Some(advice) => format!("{own}; its own masters accept only the game itself: {advice}"),
        None => own,
    }
}

fn accepts_any(card: &Card) -> bool {
    card.games == Games::Any
}

fn accepts(card: &Card, game: &str) -> bool {
    accepts_any(card) || game == card.name
}

/// The scheme of the protocol's masters, if they accept announcements from a program other than the game.
pub fn scheme(card: &Card) -> Option<String> {
    match card.announce {
        AnnounceMethod::Http(_) => Some(format!("{}+http://", card.name)),
        AnnounceMethod::Stream { .. } | AnnounceMethod::Datagrams { .. } => Some(format!("{}://", card.name)),
        AnnounceMethod::OwnPort { .. } | AnnounceMethod::Challenged(_) | AnnounceMethod::None => None,
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_master_accepts_which_game() {
        let of = |text: &str, game: &str| {
            let master = Master::of(text.parse().unwrap(), game)?;
            let form = match master.form {
                Form::Http(HttpAnnounce { post: None, .. }) => "GET",
                Form::Http(_) => "POST",
                Form::Stream(_) => "stream",
                Form::Datagrams(_) => "datagrams",
            };
            Ok::<_, String>((form, master.authority))
        };
        for (text, game, form, authority) in [
            ("iceball://play.example", "iceball", "datagrams", "play.example:27790"),
            ("iceball://[::1]:1", "iceball", "datagrams", "[::1]:1"),
            ("netpanzer://127.0.0.1", "hyperbol", "stream", "127.0.0.1:28900"),
            ("bloodmasters+http://h/list.php", "bloodmasters", "GET", "h:80"),
            ("http://h:8080", "anything", "POST", "h:8080"),
        ] {
            assert_eq!(of(text, game), Ok((form, authority.to_string())));
        }
        for (text, game) in [
            ("iceball://h", "netpanzer"),
            ("bloodmasters+http://h", "iceball"),
            ("iceball+http://h", "iceball"),
            ("hyperbol://h", "hyperbol"),
        ] {
            let error = of(text, game).unwrap_err();
            assert_eq!(
                error,
                format!(
                    "{game} servers cannot be announced to `{text}`; netpanzer:// and http:// (a Rallypoint) accept any \
                     game, iceball:// and bloodmasters+http:// and luanti+http:// only their own"
                )
            );
        }
    }
}
