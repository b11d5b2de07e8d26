//! How a player joins a server. The command is made here, from the game and the address, by the game's own protocol: nothing that
//! a master sends is ever run.

use crate::cli::words;
use crate::client::Found;
use crate::model::{Proof, Server};
use crate::protocols::join::Join;
use crate::protocols::own_card;

pub fn join(found: &Found) -> Join {
    let server = || Server::new(found.address, found.game.clone(), Proof::Query, 0, &found.facts);
    own_card(&found.game).map(|card| (card.join)(&server())).unwrap_or_default()
}

/// The words of the command that joins, if one is known.
pub fn command(found: &Found) -> Option<Vec<String>> {
    words::split(&join(found).command?).ok().filter(|words| !words.is_empty())
}

/// What to copy: a link, or a command, or at least the address.
pub fn how(found: &Found) -> String {
    let Join { link, command } = join(found);
    link.or(command).unwrap_or_else(|| found.address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Facts;
    use crate::protocols::{CARDS, game};

    #[test]
    fn commands_have_the_address_and_nothing_of_a_strangers_text() {
        let evil = "x; touch owned $(id) `id` \" ' -game \u{1b}]52;c;AA\u{7}";
        let mut known = 0;
        for card in CARDS {
            for name in [card.name, "Quake3Arena", "Xonotic", evil] {
                let Some(game) = game(card.name, name) else { continue };
                for (text, address) in [(evil, "203.0.113.5:3030"), ("cstrike", "[2001:db8::7]:20005")] {
                    let facts = Facts { name: text.into(), mode: text.into(), map: text.into(), ..Facts::default() };
                    let found = Found { facts, ..Found::new(game.clone(), address.parse().unwrap()) };
                    let copied = how(&found);
                    assert!(copied.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{copied:?}");
                    let port = found.address.port().to_string();
                    assert!(copied.contains(&port), "{copied}");
                    let Some(words) = command(&found) else { continue };
                    known += 1;
                    assert!(!words.concat().contains([';', '$', '`', '"', '\'']), "{words:?}");
                    assert!(words.iter().any(|word| word.contains(&port)), "{words:?}");
                    assert!(words[0].chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{words:?}");
                }
            }
        }
        assert!(known >= 10, "{known}");
    }

    #[test]
    fn a_quoted_argument_is_one_word() {
        let of = |protocol: &str| {
            let game = game(protocol, protocol).unwrap();
            command(&Found::new(game, "203.0.113.5:8303".parse().unwrap()))
        };
        assert_eq!(of("ddnet").unwrap(), ["DDNet", "connect 203.0.113.5:8303"]);
        assert_eq!(of("netpanzer").unwrap(), ["netpanzer", "--connect=203.0.113.5:8303"]);
        assert_eq!(of("hyperbol"), None);
    }
}
