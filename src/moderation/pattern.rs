//! Patterns of names: `*` is any text, `?` is any character. Case does not matter, nor do characters that nobody sees, marks on
//! letters, and how else (`lookalikes.rs`) a letter can be written so that it looks the same.

use std::fmt;
use std::str::FromStr;

use super::lookalikes::{Readings, accepted, fold, letters, readings};
use crate::model::is_invisible;

/// Upper bound on the characters of a pattern, stars not counted.
const CHARACTERS_MAX: usize = 64;

/// A pattern as it was typed, in lower case and without repeated stars, so that equal patterns are equal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(Box<str>);

impl Pattern {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The pattern as a matcher. One pass over a name is enough: bit i of a state says that the name so far can match the
    /// first i characters of the pattern, so the time is linear in the name's length whatever the pattern is.
    pub fn matcher(&self) -> Matcher {
        let mut matcher = Matcher { literals: Vec::new(), any: 0, stars: 0, end: 1 };
        for piece in pieces(&self.0) {
            match piece {
                Piece::Star => {
                    matcher.stars |= matcher.end;
                    continue;
                }
                Piece::Any => matcher.any |= matcher.end,
                Piece::Letter(c) => accepted(c).into_iter().for_each(|reading| matcher.accept(reading)),
            }
            matcher.end <<= 1;
        }
        matcher.literals.sort_unstable();
        matcher
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        let mut folded = String::new();
        let visible: String = text.chars().filter(|c| !is_invisible(*c)).collect();
        for c in visible.trim().chars().map(fold) {
            if c.is_control() {
                return Err("it has a control character".into());
            }
            if !(c == '*' && folded.ends_with('*')) {
                folded.push(c);
            }
        }
        let is_star = |piece: &Piece| *piece == Piece::Star;
        match pieces(&folded).filter(|piece| !is_star(piece)).count() {
            0 if folded.contains('*') => Err("it matches every name".into()),
            0 => Err("it is empty".into()),
            1..=CHARACTERS_MAX => Ok(Pattern(folded.into())),
            _ => Err(format!("it is longer than {CHARACTERS_MAX} characters")),
        }
    }
}

/// What a pattern consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Star,
    Any,
    Letter(char),
}

fn pieces(pattern: &str) -> impl Iterator<Item = Piece> {
    pattern.chars().flat_map(letters_of)
}

/// Only `*` and `?` themselves have a meaning, not what is taken apart into them.
fn letters_of(c: char) -> impl Iterator<Item = Piece> {
    letters(c).into_iter().map(move |letter| match c {
        '*' => Piece::Star,
        '?' => Piece::Any,
        _ => Piece::Letter(letter),
    })
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// See [`Pattern::matcher`]. Bit i belongs to the pattern's i-th character, or to the place before it.
#[derive(Clone, Debug)]
pub struct Matcher {
    /// Where each literal character stands; sorted.
    literals: Vec<(char, u128)>,
    /// Where a `?` stands.
    any: u128,
    /// The places with a `*`.
    stars: u128,
    /// The place after the last character.
    end: u128,
}

/// A name as patterns read it: made once for all patterns.
pub struct Name(Vec<Readings>);

impl Name {
    pub fn new(name: &str) -> Name {
        Name(name.chars().flat_map(letters).map(readings).collect())
    }
}

impl Matcher {
    /// Accepts a character at the place that the pattern has come to.
    fn accept(&mut self, reading: char) {
        match self.literals.iter_mut().find(|(literal, _)| *literal == reading) {
            Some((_, places)) => *places |= self.end,
            None => self.literals.push((reading, self.end)),
        }
    }

    /// The places that accept a character.
    fn places_of(&self, reading: char) -> u128 {
        let literal = self.literals.binary_search_by_key(&reading, |(literal, _)| *literal).ok();
        literal.and_then(|at| self.literals.get(at)).map_or(0, |(_, places)| *places)
    }

    pub fn matches(&self, Name(name): &Name) -> bool {
        let mut places = 1;
        for [own, second, third] in name {
            let mut accepted = self.any | self.places_of(*own);
            if second != own || third != own {
                accepted |= self.places_of(*second) | self.places_of(*third);
            }
            places = (places & accepted) << 1 | places & self.stars;
            if places == 0 {
                return false;
            }
        }
        places & self.end != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matcher().matches(&Name::new(name))
    }

    #[test]
    fn stars_question_marks_and_case() {
        for (pattern, name) in [
            ("spam", "Spam"),
            ("SPAM*", "spam server"),
            ("*spam*", "the SPAM server"),
            ("*spam*", "spam"),
            ("s?am", "SÄAM"),
            ("????", "日本日本"),
            ("*a*b*c*", "xxaxxbxxcxx"),
            ("*ÄRGER*", "viel ärger hier"),
            ("***x", "aax"),
            ("a*a*a", "aaa"),
            ("spam", "s\u{200b}p\u{200c}a\u{200d}m\u{2060}"),
            ("spam", "\u{ad}sp\u{feff}am\u{fe0f}"),
            ("sp\u{200b}am", "spam"),
            ("????", "s\u{200b}pam"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("spam", "spam "),
            ("spam", ""),
            ("spam*", "no spam"),
            ("????", "abc"),
            ("????", "abcde"),
            ("*a*b*c*", "cba"),
            ("a*a*a", "aa"),
            ("*x", "xa"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches(&"?".repeat(64), &"x".repeat(64)) && !matches(&"?".repeat(64), &"x".repeat(65)));
    }

    #[test]
    fn look_alikes_match_and_what_only_resembles_does_not() {
        for name in [
            "casino",
            "CASINO",
            "ｃａｓｉｎｏ", // full width
            "ｃＡsｉＮｏ",
            "саѕіпо", // Cyrillic
            "ϲαѕιηο", // Greek, with one Cyrillic
            "ᴄᴀꜱɪɴᴏ", // small capitals
            "𝐜𝐚𝐬𝐢𝐧𝐨", // mathematical
            "𝔠𝔞𝔰𝔦𝔫𝔬",
            "ⓒⓐⓢⓘⓝⓞ",
            "🅒🅐🅢🅘🅝🅞",
            "🅲🅰🆂🅸🅽🅾",
            "🇨🇦🇸🇮🇳🇴",
            "càsíñö",
            "c\u{335}a\u{335}s\u{335}i\u{335}n\u{335}o\u{335}",
            "c\u{30d}\u{311}a\u{e34}sin\u{20dd}o",
            "cas1no".replace('1', "і").as_str(),
            "casin0",
            "cɑsinø",
            "c\u{200b}a\u{2060}s\u{fe0f}i\u{ad}no",
        ] {
            assert!(matches("*casino*", &format!("the {name} server")), "{name}");
            assert!(matches("cas?no", name) && matches("??????", name), "{name}");
        }
        for name in ["cashino", "casin", "cosine", "oasis"] {
            assert!(!matches("casino", name), "{name}");
        }
        for (pattern, name) in [
            ("lol", "IoI"),
            ("lol", "1o|"),
            ("*100*", "IOO% free"),
            ("*100*", "1ОO"),
            ("спам", "cпaм"),
            ("нет", "HET"),
            ("ärger", "ARGER"),
            ("fi*", "ﬁsh"),
            ("＊", "*"),
            ("한국", "한국"),
            ("??", "한국"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*10*", "hello"), ("*10*", "igloo"), ("＊", "x"), ("0", "o"), ("*я*", "n"), ("한국", "한굴")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn equal_patterns_are_equal_and_bad_ones_are_refused() {
        let parsed = |text: &str| text.parse::<Pattern>();
        assert_eq!(parsed(" Spam** "), parsed("spam*"));
        assert_eq!(parsed(" \u{200b} Sp\u{ad}am*\u{2060}*\u{feff}"), parsed("spam*"));
        for (text, why) in [
            ("", "it is empty"),
            ("  ", "it is empty"),
            ("**", "it matches every name"),
            ("*\u{200b}*", "it matches every name"),
            ("*\u{301}*", "it matches every name"),
            ("\u{301}", "it is empty"),
            (&"\u{fdfa}".repeat(4), "it is longer than 64 characters"),
            ("\u{200b}", "it is empty"),
            ("a\nb", "it has a control character"),
            (&"x".repeat(65), "it is longer than 64 characters"),
        ] {
            assert_eq!(parsed(text), Err(why.into()), "{text}");
        }
        assert!(parsed(&"x*".repeat(64)).is_ok(), "stars are free");
    }

    /// The definition of a match, in exponential time.
    fn defined(pattern: &[char], name: &[char]) -> bool {
        match (pattern.split_first(), name.split_first()) {
            (None, None) => true,
            (Some(('*', rest)), _) => {
                defined(rest, name) || name.split_first().is_some_and(|(_, after)| defined(pattern, after))
            }
            (Some((c, rest)), Some((of_name, after))) => (*c == '?' || c == of_name) && defined(rest, after),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn a_match_is_what_the_definition_says(pattern in "[ab?*]{1,9}", name in "[abc]{0,9}") {
            if let Ok(parsed) = pattern.parse::<Pattern>() {
                let [pattern, letters]: [Vec<char>; 2] = [&pattern, &name].map(|text| text.chars().collect());
                prop_assert_eq!(parsed.matcher().matches(&Name::new(&name)), defined(&pattern, &letters));
            }
        }

        #[test]
        fn any_text_is_a_pattern_or_an_error(text: String, name: String) {
            if let Ok(pattern) = text.parse::<Pattern>() {
                pattern.matcher().matches(&Name::new(&name));
                let again = pattern.as_str().parse::<Pattern>();
                prop_assert_eq!(again, Ok(pattern));
            }
        }
    }
}
