//! The tags of heartbeats: which game a server is of when its infoResponse does not say so, and which protocol numbers mean
//! which game in a `getservers` without a name. Operators can add tags.
//!
//! | tag | game | protocols | dead tag |
//! |---|---|---|---|
//! | `DarkPlaces` | any; infoResponse must have a `gamename` | any | |
//! | `QuakeArena-1` | `Quake3Arena` (also OpenArena) | 66 67 68 | |
//! | `Wolfenstein-1` | `wolfmp` | 50 59 60 | `WolfFlatline-1` |
//! | `EnemyTerritory-1` | `et`; lists always include empty and full servers | 72 80 83 84 | `ETFlatline-1` |
//!
//! A dead tag says that a server shuts down. Anyone can send one, so it changes nothing.

/// The longest name of a tag.
pub const NAME_BYTES_MAX: usize = 64;
/// A challenge has one byte for the number of its tag.
pub const TAGS_MAX: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    pub name: Box<str>,
    /// None: any game, by the `gamename` of its infoResponse.
    pub game: Option<Box<str>>,
    /// The protocol numbers that mean this game in a request that names none.
    pub protocols: Vec<i32>,
    /// What its servers send instead when they go away.
    pub dead: Option<Box<str>>,
    /// Lists of this game always include empty and full servers.
    pub lists_all: bool,
}

/// The tags that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tags(Vec<Tag>);

impl Default for Tags {
    fn default() -> Tags {
        let tag = |name: &str, game: Option<&str>, protocols: &[i32], dead: Option<&str>, lists_all| Tag {
            name: name.into(),
            game: game.map(Into::into),
            protocols: protocols.to_vec(),
            dead: dead.map(Into::into),
            lists_all,
        };
        Tags(vec![
            tag("DarkPlaces", None, &[], None, false),
            tag("QuakeArena-1", Some("Quake3Arena"), &[66, 67, 68], None, false),
            tag("Wolfenstein-1", Some("wolfmp"), &[50, 59, 60], Some("WolfFlatline-1"), false),
            tag("EnemyTerritory-1", Some("et"), &[72, 80, 83, 84], Some("ETFlatline-1"), true),
        ])
    }
}

impl Tags {
    /// Exactly these tags; of too many, the first.
    pub fn new(tags: impl IntoIterator<Item = Tag>) -> Tags {
        Tags(tags.into_iter().take(TAGS_MAX).collect())
    }

    /// The built-in tags and the operator's; an operator's tag replaces a built-in one of the same name.
    pub fn with(added: &[Tag]) -> Tags {
        let Tags(mut tags) = Tags::default();
        for tag in added {
            match tags.iter_mut().find(|known| known.name == tag.name) {
                Some(known) => *known = tag.clone(),
                None => tags.push(tag.clone()),
            }
        }
        Tags::new(tags)
    }

    pub fn all(&self) -> impl Iterator<Item = &Tag> {
        self.0.iter()
    }

    /// The tag of a heartbeat, and its number.
    pub fn find(&self, name: &[u8]) -> Option<(u8, &Tag)> {
        (0..=u8::MAX).zip(&self.0).find(|(_, tag)| tag.name.as_bytes() == name)
    }

    pub fn by_number(&self, number: u8) -> Option<&Tag> {
        self.0.get(usize::from(number))
    }

    /// Whether servers that go away send this.
    pub fn is_dead(&self, name: &[u8]) -> bool {
        self.0.iter().filter_map(|tag| tag.dead.as_ref()).any(|dead| dead.as_bytes() == name)
    }

    /// The game that a protocol number means where a request names none.
    pub fn game_of(&self, protocol: i32) -> Option<&str> {
        self.0.iter().find(|tag| tag.protocols.contains(&protocol)).and_then(|tag| tag.game.as_deref())
    }

    /// Whether lists of this game always include empty and full servers.
    pub fn lists_all(&self, game: &[u8]) -> bool {
        self.0.iter().any(|tag| tag.lists_all && tag.game.as_ref().is_some_and(|of| of.as_bytes() == game))
    }

    /// Every game and protocol number of the table.
    pub fn lists(&self) -> impl Iterator<Item = (&str, i32)> {
        let named = self.0.iter().filter_map(|tag| Some((tag.game.as_deref()?, &tag.protocols)));
        named.flat_map(|(game, protocols)| protocols.iter().map(move |protocol| (game, *protocol)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table() {
        let tags = Tags::default();
        assert_eq!(tags.find(b"QuakeArena-1").unwrap().1.game.as_deref(), Some("Quake3Arena"));
        assert_eq!(tags.find(b"DarkPlaces").unwrap().1.game, None);
        for unknown in [&b""[..], b"quakearena-1", b"Nope", b"ETFlatline-1", b"DarkPlaces "] {
            assert_eq!(tags.find(unknown), None);
        }
        assert!(tags.is_dead(b"ETFlatline-1") && tags.is_dead(b"WolfFlatline-1") && !tags.is_dead(b"DarkPlaces"));
        for (protocol, game) in
            [(68, Some("Quake3Arena")), (60, Some("wolfmp")), (84, Some("et")), (71, None), (3, None)]
        {
            assert_eq!(tags.game_of(protocol), game);
        }
        assert!(tags.lists_all(b"et") && !tags.lists_all(b"Quake3Arena") && !tags.lists_all(b"ET"));
        assert_eq!(tags.lists().count(), 10);
    }

    #[test]
    fn tags_of_the_operator() {
        let own = Tag {
            name: "Own-1".into(),
            game: Some("own".into()),
            protocols: vec![7],
            dead: Some("OwnDead-1".into()),
            lists_all: false,
        };
        let other = Tag { name: "QuakeArena-1".into(), protocols: vec![68, 71], ..own.clone() };
        let tags = Tags::with(&[own.clone(), other.clone()]);
        assert_eq!(tags.all().count(), 5);
        assert_eq!(tags.find(b"Own-1"), Some((4, &own)));
        assert_eq!(tags.find(b"QuakeArena-1"), Some((1, &other)), "it replaces the built-in one");
        assert!(tags.is_dead(b"OwnDead-1"));
        assert_eq!((tags.game_of(7), tags.game_of(66)), (Some("own"), None));
        let many = (0..300).map(|number| Tag { name: format!("{number}").into(), ..own.clone() });
        assert_eq!(Tags::new(many).all().count(), TAGS_MAX);
    }
}
