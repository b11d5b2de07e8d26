//! Patterns of names: `*` is any text, `?` is any character. Case does not matter, nor do characters that nobody sees.

use std::fmt;
use std::str::FromStr;

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
        for c in self.0.chars() {
            match c {
                '*' => {
                    matcher.stars |= matcher.end;
                    continue;
                }
                '?' => matcher.any |= matcher.end,
                c => match matcher.literals.iter_mut().find(|(literal, _)| *literal == c) {
                    Some((_, places)) => *places |= matcher.end,
                    None => matcher.literals.push((c, matcher.end)),
                },
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
        if folded.chars().filter(|c| *c != '*').count() > CHARACTERS_MAX {
            return Err(format!("it is longer than {CHARACTERS_MAX} characters"));
        }
        match folded.as_str() {
            "" => Err("it is empty".into()),
            "*" => Err("it matches every name".into()),
            _ => Ok(Pattern(folded.into())),
        }
    }
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

impl Matcher {
    pub fn matches(&self, name: &str) -> bool {
        let mut places = 1;
        for c in name.chars().filter(|c| !is_invisible(*c)).map(fold) {
            let literal = self.literals.binary_search_by_key(&c, |(literal, _)| *literal).ok();
            let accepted = self.any | literal.and_then(|at| self.literals.get(at)).map_or(0, |(_, places)| *places);
            places = (places & accepted) << 1 | places & self.stars;
            if places == 0 {
                return false;
            }
        }
        places & self.end != 0
    }
}

/// Whether a character shows nothing, so that a name looks the same without it: Unicode's Default_Ignorable_Code_Point.
fn is_invisible(c: char) -> bool {
    !c.is_ascii()
        && matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// A character without its case. One character always, so that a `?` is one character.
fn fold(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matcher().matches(name)
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
    fn equal_patterns_are_equal_and_bad_ones_are_refused() {
        let parsed = |text: &str| text.parse::<Pattern>();
        assert_eq!(parsed(" Spam** "), parsed("spam*"));
        assert_eq!(parsed(" \u{200b} Sp\u{ad}am*\u{2060}*\u{feff}"), parsed("spam*"));
        for (text, why) in [
            ("", "it is empty"),
            ("  ", "it is empty"),
            ("**", "it matches every name"),
            ("*\u{200b}*", "it matches every name"),
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
                prop_assert_eq!(parsed.matcher().matches(&name), defined(&pattern, &letters));
            }
        }

        #[test]
        fn any_text_is_a_pattern_or_an_error(text: String, name: String) {
            if let Ok(pattern) = text.parse::<Pattern>() {
                pattern.matcher().matches(&name);
                let again = pattern.as_str().parse::<Pattern>();
                prop_assert_eq!(again, Ok(pattern));
            }
        }
    }
}
