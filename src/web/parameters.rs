//! The parameters of a request, each at most once.

use std::borrow::Cow;

use url::form_urlencoded;

use super::filter::Wrong;

/// The longest value of a parameter, in characters.
pub const VALUE_CHARS_MAX: usize = 256;
/// The most parameters: more than any path has.
const COUNT_MAX: usize = 32;

/// A name and its value.
type Pair<'a> = (Cow<'a, str>, Cow<'a, str>);

/// The names and values of a query string. A name that comes twice is an error: nobody could say which one counts.
pub fn once(query: &str) -> Result<Vec<Pair<'_>>, Wrong> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if is_long(&value) {
            return Err(long(&name));
        }
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(Wrong::parameter(&short(&name), "is given twice"));
        }
        if pairs.len() == COUNT_MAX {
            return Err(Wrong::parameter(&short(&name), format!("is one too many: {COUNT_MAX} are the most")));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

/// Whether a value is longer than any that is taken.
pub fn is_long(value: &str) -> bool {
    value.len() > VALUE_CHARS_MAX && value.chars().count() > VALUE_CHARS_MAX
}

pub fn long(name: &str) -> Wrong {
    Wrong::parameter(&short(name), format!("is longer than {VALUE_CHARS_MAX} characters"))
}

/// For a path that takes no parameters.
pub fn none(query: &str) -> Result<(), Wrong> {
    match form_urlencoded::parse(query.as_bytes()).next() {
        Some((name, _)) => Err(Wrong::parameter(&short(&name), "is unknown here; there are no parameters")),
        None => Ok(()),
    }
}

/// Reads a parameter that is true or false. The name alone is true.
pub fn flag(name: &str, value: &str) -> Result<bool, Wrong> {
    match value {
        "" | "1" | "true" | "yes" | "on" => Ok(true),
        "0" | "false" | "no" | "off" => Ok(false),
        other => Err(Wrong::parameter(name, format!("must be true or false, not `{other}`"))),
    }
}

/// A parameter that nobody knows.
pub fn unknown(name: &str, known: &[&str]) -> Wrong {
    let are = if known.len() == 1 { "is" } else { "are" };
    Wrong::parameter(&short(name), format!("is unknown here; known {are} {}", known.join(", ")))
}

/// A name as an error repeats it.
fn short(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(64) {
        Some((end, _)) => Cow::Owned(format!("{}…", name.get(..end).unwrap_or_default())),
        None => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_comes_once() {
        let pairs = once("game=a+b&q=%26").unwrap();
        assert_eq!(pairs, [("game".into(), "a b".into()), ("q".into(), "&".into())]);
        assert_eq!(once("q=1&game=x&q=2").unwrap_err(), Wrong::parameter("q", "is given twice"));
        assert_eq!(once("q&q").unwrap_err(), Wrong::parameter("q", "is given twice"));
    }

    #[test]
    fn values_names_and_their_number_are_bounded() {
        let long = format!("q={}", "x".repeat(VALUE_CHARS_MAX + 1));
        assert_eq!(once(&long).unwrap_err(), Wrong::parameter("q", "is longer than 256 characters"));
        assert!(once(&format!("q={}", "é".repeat(VALUE_CHARS_MAX))).is_ok());
        let many = |count: usize| (0..count).map(|number| format!("p{number}=1")).collect::<Vec<_>>().join("&");
        assert_eq!(once(&many(COUNT_MAX)).unwrap().len(), COUNT_MAX);
        assert_eq!(once(&many(COUNT_MAX + 1)).unwrap_err().parameter.as_deref(), Some("p32"));
        let name = unknown(&"é".repeat(300), &["a"]).parameter.unwrap();
        assert_eq!(name, format!("{}…", "é".repeat(64)));
    }

    #[test]
    fn an_unknown_parameter_is_told_the_known_ones() {
        assert_eq!((none(""), none("a=1").unwrap_err().parameter.as_deref()), (Ok(()), Some("a")));
        assert_eq!(unknown("x", &["a"]).error, "is unknown here; known is a");
        assert_eq!(unknown("x", &["a", "b"]).error, "is unknown here; known are a, b");
    }
}
