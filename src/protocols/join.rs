//! How a player joins a server: a link where the game handles one, and what to type.

use serde::Serialize;
use utoipa::ToSchema;

use crate::model::{Address, Server};

/// The ways to join a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct Join {
    /// A link that the game itself handles, once it is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// A command line that starts the game and joins. The program's name and place can differ from system to system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Join {
    pub fn is_unknown(&self) -> bool {
        *self == Join::default()
    }

    /// By a link and by a command, both with the server's address in the place of `{}`.
    pub fn by(link: Option<&str>, command: Option<&str>, address: Address) -> Join {
        let with = |text: &str| text.replace("{}", &address.to_string());
        Join { link: link.map(with), command: command.map(with) }
    }
}

/// What a server says of itself, if it can stand in a command line as it is: somebody will copy it into a shell.
pub fn plain_word(text: &str) -> Option<&str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    (begins_well && text.len() <= 32 && text.bytes().all(is_plain)).then_some(text)
}

/// For games of which no way is known but to enter the address in the game.
pub fn in_the_game(_: &Server) -> Join {
    Join::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Proof};
    use crate::protocols::{CARDS, game};

    #[test]
    fn only_plain_words_get_into_a_command_line() {
        for text in ["valve", "cs-16", "td_2"] {
            assert_eq!(plain_word(text), Some(text));
        }
        let long = "x".repeat(33);
        for text in ["", "-game", "_x", "a b", "a;b", "$(x)", "é", "a\"", "a`b`", "..", "a/b", &long] {
            assert_eq!(plain_word(text), None, "{text:?}");
        }
    }

    /// Whatever a server says of itself.
    #[test]
    fn links_and_commands_have_the_address_and_nothing_that_a_shell_reads() {
        let evil = "a\"; rm -rf / #$(x)`y`&|<>\\'";
        let address: Address = "[2001:db8::7]:20005".parse().unwrap();
        for card in CARDS {
            for (name, text) in [(card.name, "plain"), (card.name, evil), ("Quake3Arena", evil), (evil, evil)] {
                let Some(game) = game(card.name, name) else { continue };
                let facts = Facts { name: text.into(), mode: text.into(), map: text.into(), ..Facts::default() };
                let join = (card.join)(&Server::new(address, game, Proof::Query, 0, &facts));
                if let Some(link) = &join.link {
                    assert!(link.ends_with("[2001:db8::7]:20005") && link.contains("://"), "{}: {link}", card.name);
                }
                for text in [&join.link, &join.command].into_iter().flatten() {
                    assert!(text.contains("2001:db8::7") && text.contains("20005"), "{}: {text}", card.name);
                    assert!(
                        !text.contains([';', '$', '`', '&', '|', '<', '>', '\\', '\'', '#']),
                        "{}: {text}",
                        card.name
                    );
                }
            }
        }
    }
}
