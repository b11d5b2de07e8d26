//! A master that servers can be announced to.

use std::fmt;

use crate::client::place::{Kind, Place};
use crate::protocols::{bloodmasters, iceball, netpanzer};

#[derive(Clone, Debug)]
pub struct Master {
    pub(super) place: Place,
    pub(super) door: Door,
    /// Its host and port.
    pub(super) authority: String,
}

/// What it listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Door {
    /// Datagrams, with a handshake.
    Iceball,
    /// A message over TCP, for any game.
    NetPanzer,
    /// A GET.
    Bloodmasters,
    /// A POST, for any game that a Rallypoint can query.
    Api,
}

impl Master {
    /// A master to which this game can be announced.
    pub fn of(place: Place, game: &str) -> Result<Master, String> {
        let door = match place.kind {
            Kind::Rallypoint => Some(Door::Api),
            Kind::Game(card) if card.name == netpanzer::NAME => Some(Door::NetPanzer),
            Kind::Game(card) if card.name == iceball::NAME => Some(Door::Iceball).filter(|_| game == card.name),
            Kind::Page(card) if card.name == bloodmasters::NAME => {
                Some(Door::Bloodmasters).filter(|_| game == card.name)
            }
            Kind::Game(_) | Kind::Page(_) => None,
        };
        let door = door.ok_or_else(|| {
            format!(
                "{game} servers cannot be announced to `{place}`; netpanzer:// and http:// (a Rallypoint) take any game, \
                 iceball:// and bloodmasters+http:// their own"
            )
        })?;
        let authority = place.authority(place.master_port()?);
        Ok(Master { place, door, authority })
    }

    pub fn is_iceball(&self) -> bool {
        self.door == Door::Iceball
    }
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.place.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_what() {
        let of = |text: &str, game: &str| {
            let master = Master::of(text.parse().unwrap(), game)?;
            Ok::<_, String>((master.door, master.authority))
        };
        for (text, game, door, authority) in [
            ("iceball://play.example", "iceball", Door::Iceball, "play.example:27790"),
            ("iceball://[::1]:1", "iceball", Door::Iceball, "[::1]:1"),
            ("netpanzer://127.0.0.1", "hyperbol", Door::NetPanzer, "127.0.0.1:28900"),
            ("bloodmasters+http://h/list.php", "bloodmasters", Door::Bloodmasters, "h:80"),
            ("http://h:8080", "anything", Door::Api, "h:8080"),
        ] {
            assert_eq!(of(text, game), Ok((door, authority.to_string())));
        }
        for (text, game) in [
            ("iceball://h", "netpanzer"),
            ("bloodmasters+http://h", "iceball"),
            ("iceball+http://h", "iceball"),
            ("hyperbol://h", "hyperbol"),
        ] {
            let error = of(text, game).unwrap_err();
            assert!(error.contains(&format!("{game} servers cannot be announced to `{text}`")), "{error}");
        }
    }
}
