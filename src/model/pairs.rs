//! Names and values in one piece of memory: a server has a dozen of them, and each announcement brings them again.

use std::fmt;

use serde::ser::{Serialize, Serializer};

use super::Address;

/// Pairs of byte strings, in their order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pairs {
    /// Each name and each value with its length in front: a byte up to 127, else two with the highest bit set.
    pub(super) bytes: Vec<u8>,
}

impl Pairs {
    const PART_BYTES_MAX: usize = 0x7fff;

    const fn new() -> Pairs {
        Pairs { bytes: Vec::new() }
    }

    /// With room for so many bytes of names and values.
    pub fn with_room(bytes: usize) -> Pairs {
        Pairs { bytes: Vec::with_capacity(bytes) }
    }

    /// With exactly the memory that these need.
    pub fn exactly<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone) -> Pairs {
        let sizes = pairs.clone().map(|(name, value)| packed_size(name) + packed_size(value));
        let mut made = Pairs::with_room(sizes.sum());
        pairs.for_each(|(name, value)| made.push(name, value));
        made
    }

    /// A pair with a part of more than 32,767 bytes is left out.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        if name.len().max(value.len()) <= Pairs::PART_BYTES_MAX {
            self.push_part(name);
            self.push_part(value);
        }
    }

    fn push_part(&mut self, part: &[u8]) {
        let [high, low] = (part.len() as u16).to_be_bytes(); // checked by `push`
        if part.len() < 0x80 {
            self.bytes.push(low);
        } else {
            self.bytes.extend([high | 0x80, low]);
        }
        self.bytes.extend(part);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let (name, value, after) = first_pair(rest)?;
            rest = after;
            Some((name, value))
        })
    }

    /// The first value of this name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        let mut rest = &self.bytes[..];
        loop {
            let (found, value, after) = first_pair(rest)?;
            if found == name {
                return Some(value);
            }
            rest = after;
        }
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Gives back the room that is not used.
    fn fitted(mut self) -> Pairs {
        self.bytes.shrink_to_fit();
        self
    }
}

fn packed_size(part: &[u8]) -> usize {
    part.len() + if part.len() < 0x80 { 1 } else { 2 }
}

/// A name, its value, and what is behind them.
fn first_pair(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (name, rest) = first_part(bytes)?;
    let (value, rest) = first_part(rest)?;
    Some((name, value, rest))
}

fn first_part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    match bytes {
        [size @ 0..0x80, rest @ ..] => rest.split_at_checked(usize::from(*size)),
        [high, low, rest @ ..] => rest.split_at_checked(usize::from(high & 0x7f) << 8 | usize::from(*low)),
        _ => None,
    }
}

impl<N: AsRef<[u8]>, V: AsRef<[u8]>> FromIterator<(N, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Pairs {
        let mut made = Pairs::new();
        pairs.into_iter().for_each(|(name, value)| made.push(name.as_ref(), value.as_ref()));
        made.fitted()
    }
}

impl fmt::Debug for Pairs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(name, value)| (name.escape_ascii(), value.escape_ascii()))).finish()
    }
}

/// The keys of a heartbeat, byte for byte: lists are filtered by them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatKeys(pub Pairs);

impl HeartbeatKeys {
    /// The keys of a server that was announced in another way: those that every heartbeat has.
    pub fn of(game: &str, address: Address) -> HeartbeatKeys {
        HeartbeatKeys::exactly(&[
            (b"gamename", game.as_bytes()),
            (b"port", itoa::Buffer::new().format(address.port()).as_bytes()),
        ])
    }

    /// With exactly the memory that these need.
    pub fn exactly(pairs: &[(&[u8], &[u8])]) -> HeartbeatKeys {
        HeartbeatKeys(Pairs::exactly(pairs.iter().copied()))
    }

    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        self.0.get(key)
    }
}

/// What a server says of its game beyond the facts: names and values, in its order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct GameRules(pub(super) Pairs);

impl GameRules {
    pub const fn new() -> GameRules {
        GameRules(Pairs::new())
    }

    /// With room for so many bytes of names and values.
    pub fn with_room(bytes: usize) -> GameRules {
        GameRules(Pairs::with_room(bytes))
    }

    /// With exactly the memory that these need.
    pub fn exactly<'a>(rules: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> GameRules {
        GameRules(Pairs::exactly(rules.map(|(name, value)| (name.as_bytes(), value.as_bytes()))))
    }

    /// A rule with a part of more than 32,767 bytes is left out.
    pub fn push(&mut self, name: &str, value: &str) {
        self.0.push(name.as_bytes(), value.as_bytes());
    }

    /// The same rules behind this one.
    pub fn behind(&self, name: &str, value: &str) -> GameRules {
        std::iter::once((name, value)).chain(self.iter()).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |part| str::from_utf8(part).unwrap_or_default(); // it was a text when it was put in
        self.0.iter().map(move |(name, value)| (text(name), text(value)))
    }

    /// The first value of this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name.as_bytes()).and_then(|value| str::from_utf8(value).ok())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values together.
    pub(super) fn text_bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// At most so many, the first of each name, as far as they fit into so many bytes of names and values.
    pub(super) fn bounded(&self, rules_max: usize, bytes_max: usize) -> GameRules {
        let mut kept = Pairs::with_room(self.0.bytes.len());
        let mut room = bytes_max;
        for (name, value) in self.0.iter().take(rules_max) {
            let left = room.checked_sub(name.len() + value.len());
            if let Some(left) = left.filter(|_| kept.get(name).is_none()) {
                kept.push(name, value);
                room = left;
            }
        }
        GameRules(kept.fitted())
    }
}

impl<N: AsRef<str>, V: AsRef<str>> FromIterator<(N, V)> for GameRules {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(rules: I) -> GameRules {
        let mut made = GameRules::new();
        rules.into_iter().for_each(|(name, value)| made.push(name.as_ref(), value.as_ref()));
        GameRules(made.0.fitted())
    }
}

impl<const N: usize> From<[(&str, &str); N]> for GameRules {
    fn from(rules: [(&str, &str); N]) -> GameRules {
        GameRules::exactly(rules.into_iter())
    }
}

/// None.
impl Default for &GameRules {
    fn default() -> Self {
        static NONE: GameRules = GameRules::new();
        &NONE
    }
}

impl fmt::Debug for GameRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// A list of pairs.
impl Serialize for GameRules {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pairs_come_back_as_they_were_put(pairs: Vec<(Vec<u8>, Vec<u8>)>, long in 100..400usize) {
            let long = (b"long".to_vec(), vec![7; long]);
            let pairs: Vec<_> = pairs.into_iter().chain([long]).collect();
            let made: Pairs = pairs.iter().map(|(name, value)| (name, value)).collect();
            let back: Vec<_> = made.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
            prop_assert_eq!((made.len(), &back), (pairs.len(), &pairs));
            for (name, _) in &pairs {
                let first = pairs.iter().find(|(found, _)| found == name).map(|(_, value)| &value[..]);
                prop_assert_eq!(made.get(name), first);
            }
        }

        #[test]
        fn rules_are_texts(rules: Vec<(String, String)>) {
            let made: GameRules = rules.iter().map(|(name, value)| (name, value)).collect();
            let back: Vec<_> = made.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            prop_assert_eq!(back, rules);
        }
    }

    #[test]
    fn what_is_too_long_is_left_out_whole() {
        let longest = "x".repeat(0x7fff);
        let rules = GameRules::from([
            ("a", &*longest),
            ("b", &format!("{longest}x")),
            (&format!("{longest}y"), "c"),
            ("d", ""),
        ]);
        let sizes: Vec<_> = rules.iter().map(|(name, value)| (name, value.len())).collect();
        assert_eq!(sizes, [("a", 0x7fff), ("d", 0)]);
    }

    #[test]
    fn bounds_are_kept_and_the_first_of_a_name_counts() {
        let rules = GameRules::from([("a", "1"), ("long", "12345"), ("a", "2"), ("b", "3"), ("c", "4")]);
        let bounded = |rules_max, bytes_max| {
            let rules = rules.bounded(rules_max, bytes_max);
            rules.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(bounded(9, 99), "a=1 long=12345 b=3 c=4");
        assert_eq!(bounded(4, 99), "a=1 long=12345 b=3");
        assert_eq!((&*bounded(9, 8), &*bounded(9, 5), &*bounded(9, 4)), ("a=1 b=3 c=4", "a=1 b=3", "a=1 b=3"));
        assert_eq!(rules.behind("z", "0").iter().next(), Some(("z", "0")));
        assert_eq!(
            (rules.get("a"), rules.get("z"), rules.len(), GameRules::new().is_empty()),
            (Some("1"), None, 5, true)
        );
    }
}
