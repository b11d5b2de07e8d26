//! A master that servers can be announced to.

use std::fmt;

use crate::client::target::{Kind, Target};
use crate::protocols::{bloodmasters, iceball, netpanzer};

#[derive(Clone, Debug)]
pub struct Master {
    pub(super) target: Target,
    pub(super) transport: Transport,
    /// Its host and port.
    pub(super) authority: String,
}

/// What it listens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
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
    pub fn of(target: Target, game: &str) -> Result<Master, String> {
        let transport = match target.kind {
            Kind::Rallypoint => Some(Transport::Api),
            Kind::Game(card) if card.name == netpanzer::NAME => Some(Transport::NetPanzer),
            Kind::Game(card) if card.name == iceball::NAME => Some(Transport::Iceball).filter(|_| game == card.name),
            Kind::Page(card) if card.name == bloodmasters::NAME => {
                Some(Transport::Bloodmasters).filter(|_| game == card.name)
            }
            Kind::Game(_) | Kind::Page(_) => None,
        };
        let transport = transport.ok_or_else(|| {
            format!(
                "{game} servers cannot be announced to `{target}`; netpanzer:// and http:// (a Rallypoint) take any game, \
                 iceball:// and bloodmasters+http:// their own"
            )
        })?;
        let authority = target.authority(target.master_port()?);
        Ok(Master { target, transport, authority })
    }

    pub fn is_iceball(&self) -> bool {
        self.transport == Transport::Iceball
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
    fn who_takes_what() {
        let of = |text: &str, game: &str| {
            let master = Master::of(text.parse().unwrap(), game)?;
            Ok::<_, String>((master.transport, master.authority))
        };
        for (text, game, transport, authority) in [
            ("iceball://play.example", "iceball", Transport::Iceball, "play.example:27790"),
            ("iceball://[::1]:1", "iceball", Transport::Iceball, "[::1]:1"),
            ("netpanzer://127.0.0.1", "hyperbol", Transport::NetPanzer, "127.0.0.1:28900"),
            ("bloodmasters+http://h/list.php", "bloodmasters", Transport::Bloodmasters, "h:80"),
            ("http://h:8080", "anything", Transport::Api, "h:8080"),
        ] {
            assert_eq!(of(text, game), Ok((transport, authority.to_string())));
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
