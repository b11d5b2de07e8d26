//! The Quake III family's section of the configuration.

use std::net::SocketAddr;

use super::challenge::Challenges;
use super::list::Lists;
use super::tags::{NAME_BYTES_MAX, TAGS_MAX, Tag, Tags};
use super::wire::GAME_BYTES_MAX;
use super::{DATAGRAM_BYTES_MAX, NAME, serve};
use crate::model::{Address, NamedServer};
use crate::protocols::section::{Configured, Cookies, Derived, Listener, Transport, overrides};
use crate::protocols::{DatagramRules, game, is_unnamed};
use crate::settings::{Item, Key, Problem};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub listen: Vec<SocketAddr>,
    pub life_ms: u64,
    /// The operator's tags, beside the built-in ones.
    pub tags: Vec<Tag>,
    pub servers: Vec<NamedServer>,
    lists: Derived<Lists>,
}

impl Settings {
    /// All tags that are served.
    pub fn all_tags(&self) -> Tags {
        Tags::with(&self.tags)
    }
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    fn listeners(&self) -> Vec<Listener<'_>> {
        let transport = Transport::Datagrams { bytes_max: DATAGRAM_BYTES_MAX };
        vec![Listener { key: "listen", addresses: &self.listen, transport }]
    }

    fn datagrams(&self, cookies: Cookies) -> Option<Box<dyn DatagramRules>> {
        let lists = self.lists.get(|| Lists::new(self.all_tags()));
        Some(Box::new(serve::Rules {
            tags: self.all_tags(),
            life_ms: self.life_ms,
            challenges: Challenges::new(&cookies.keys),
            time: cookies.time,
            lists,
        }))
    }

    fn named_servers(&self) -> &[NamedServer] {
        &self.servers
    }

    fn life_max_ms(&self) -> u64 {
        self.life_ms
    }

    fn keep_life(&mut self, from: &Settings) {
        self.life_ms = from.life_ms;
    }
}

const KEYS: &[Key<Settings>] = &[
    Key {
        name: "listen",
        doc: "UDP for game servers and game clients.",
        default: "[\"0.0.0.0:27950\", \"[::]:27950\"]",
        example: "",
        set: |settings, item| {
            settings.listen = item.listen()?;
            Ok(())
        },
    },
    Key {
        name: "life",
        doc: "How long a server stays listed after its last heartbeat. Games send one every two to five minutes.",
        default: "\"15m\"",
        example: "",
        set: |settings, item| {
            settings.life_ms = item.duration_ms(1_000, 86_400_000)?;
            Ok(())
        },
    },
    Key {
        name: "tags",
        doc: "More tags of heartbeats, beside DarkPlaces, QuakeArena-1, Wolfenstein-1 and EnemyTerritory-1. `game` is the name\n\
              of the game that a tag stands for; without it, servers must name their game themselves. `protocols` are the\n\
              numbers that mean this game when a client names none, `dead` is the tag of servers that go away, and with\n\
              `lists_all` lists always include empty and full servers.",
        default: "[]",
        example: "[[quake3.tags]]\ntag = \"Unvanquished\"\ngame = \"unv\"\nprotocols = [86]\ndead = \"Unvanquished-dead\"",
        set: |settings, item| {
            settings.tags = item.list("a list of tables: write [[quake3.tags]]", |table| tag(&table))?;
            if settings.all_tags().all().count() >= TAGS_MAX {
                return Err((None, format!("must be fewer than {TAGS_MAX}, with the built-in ones")));
            }
            settings.lists = Derived::default();
            check_tags(&settings.tags, &settings.all_tags()).map_err(|reason| (None, reason))
        },
    },
    Key {
        name: "servers",
        doc: "Servers that need not announce themselves: queried within seconds, listed while they answer. `game` is the\n\
              gamename; `official` and `priority` (higher comes first) can only be set here.",
        default: "[]",
        example: "[[quake3.servers]]\naddress = \"203.0.113.5:27960\"\ngame = \"Quake3Arena\"\nofficial = true\npriority = 10",
        set: |settings, item| {
            settings.servers = item.list("a list of tables: write [[quake3.servers]]", |table| named_server(&table))?;
            Ok(())
        },
    },
];

fn tag(table: &Item<'_>) -> Result<Tag, Problem> {
    table.only(&["tag", "game", "protocols", "dead", "lists_all"])?;
    let numbers = |item: &Item<'_>| {
        item.list("a list of numbers like [68, 71]", |item| Ok(item.integer(i32::MIN.into(), i32::MAX.into())? as i32))
    };
    Ok(Tag {
        name: table.required("tag", |item| word(item, NAME_BYTES_MAX))?,
        game: table.optional("game", game_name)?,
        protocols: table.optional("protocols", numbers)?.unwrap_or_default(),
        dead: table.optional("dead", |item| word(item, NAME_BYTES_MAX))?,
        lists_all: table.optional("lists_all", Item::boolean)?.unwrap_or(false),
    })
}

/// Tags that would quietly do something else than they say.
fn check_tags(added: &[Tag], all: &Tags) -> Result<(), String> {
    for tag in added {
        let name = &tag.name;
        if added.iter().filter(|other| other.name == *name).count() > 1 {
            return Err(format!("has the tag {name} twice"));
        }
        if tag.game.is_none() && (tag.lists_all || !tag.protocols.is_empty()) {
            return Err(format!("the tag {name} needs a `game` for its `protocols` or `lists_all`"));
        }
        if let Some(dead) = &tag.dead
            && all.find(dead.as_bytes()).is_some()
        {
            return Err(format!("the tag {dead} cannot be `tag` and `dead` at once"));
        }
        let is_taken =
            |(game, number): &(&str, i32)| tag.protocols.contains(number) && tag.game.as_deref() != Some(game);
        if let Some((game, number)) = all.lists().find(is_taken) {
            return Err(format!("protocol {number} of the tag {name} already means {game}"));
        }
    }
    Ok(())
}

/// The name of a game that this protocol can carry.
fn game_name(item: &Item<'_>) -> Result<Box<str>, Problem> {
    let name = word(item, GAME_BYTES_MAX)?;
    match game(NAME, &name).filter(|game| !is_unnamed(game)) {
        Some(_) => Ok(name),
        None => Err((None, format!("must be a game's name, not a protocol's name like {name}"))),
    }
}

/// A text without blanks, as it stands in messages.
fn word(item: &Item<'_>, bytes_max: usize) -> Result<Box<str>, Problem> {
    let text = item.text()?;
    let is_word = !text.is_empty() && text.len() <= bytes_max && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_plain = is_word && !text.contains(['\\', '"']);
    if is_plain {
        Ok(text.into())
    } else {
        Err((None, format!("must be a name of 1 to {bytes_max} characters without blanks")))
    }
}

fn named_server(table: &Item<'_>) -> Result<NamedServer, Problem> {
    table.only(&["address", "game", "official", "priority"])?;
    let address: Address = table.required("address", |item| item.parsed("an address like \"203.0.113.5:27960\""))?;
    let name = table.required("game", game_name)?;
    let game = game(NAME, &name).ok_or_else(|| (None, "`game` is not the name of a game".into()))?;
    Ok(NamedServer { address, game, overrides: overrides(table)?, asked: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Overrides;
    use crate::protocols::section::{Section, defaults};
    use toml::de::DeValue;

    fn set(key: &str, value: &str) -> Result<Settings, String> {
        let mut section: Box<dyn Section> = defaults::<Settings>();
        let value = DeValue::parse(value).unwrap();
        section.set(key, &Item::new(value.get_ref())).unwrap().map_err(|(_, reason)| reason)?;
        Ok(section.as_any().downcast_ref::<Settings>().unwrap().clone())
    }

    #[test]
    fn tags_are_open() {
        let settings =
            set("tags", r#"[{ tag = "Own-1", game = "own", protocols = [7], dead = "OwnDead-1" }]"#).unwrap();
        let tags = settings.all_tags();
        assert_eq!(tags.find(b"Own-1").unwrap().1.game.as_deref(), Some("own"));
        assert!(tags.is_dead(b"OwnDead-1") && tags.game_of(7) == Some("own") && tags.find(b"DarkPlaces").is_some());
        let replaced =
            r#"[{ tag = "QuakeArena-1", game = "b", protocols = [68] }, { tag = "c", game = "b", protocols = [68] }]"#;
        assert_eq!(set("tags", replaced).unwrap().all_tags().game_of(68), Some("b"));
        for bad in [
            r#"[{ game = "own" }]"#,
            r#"[{ tag = "a b" }]"#,
            r#"[{ tag = "" }]"#,
            r#"[{ tag = "a\\b" }]"#,
            r#"[{ tag = "a", protocols = ["x"] }]"#,
            r#"[{ tag = "a", games = "b" }]"#,
            r#"[{ tag = "a", game = "iceball" }]"#,
            r#"[{ tag = "a" }, { tag = "a", game = "b" }]"#,
            r#"[{ tag = "a", protocols = [7] }]"#,
            r#"[{ tag = "a", lists_all = true }]"#,
            r#"[{ tag = "a", dead = "a" }]"#,
            r#"[{ tag = "a", dead = "DarkPlaces" }]"#,
            r#"[{ tag = "a", game = "b", protocols = [68] }]"#,
        ] {
            assert!(set("tags", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn servers_of_the_operator() {
        let settings =
            set("servers", r#"[{ address = "203.0.113.5:27960", game = "Xonotic", official = true, priority = 3 }]"#)
                .unwrap();
        let server = &settings.servers[0];
        assert_eq!((server.game.protocol(), server.game.name(), server.asked), (NAME, "Xonotic", true));
        assert_eq!(server.overrides, Overrides { official: true, priority: 3, flavor: 0 });
        assert!(set("servers", r#"[{ address = "203.0.113.5:27960" }]"#).unwrap_err().contains("game"));
        for protocol in ["iceball", NAME] {
            let server = format!(r#"[{{ address = "203.0.113.5:27960", game = "{protocol}" }}]"#);
            assert!(
                set("servers", &server).unwrap_err().contains("protocol's name"),
                "{protocol} is no game of the family"
            );
        }
    }
}
