//! Keys and values of the configuration. Every part of the program that has settings provides a table of [`Key`]s. Errors
//! tell the operator what to change.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use toml::de::DeValue;

use crate::text::clean;
use crate::times::{format_duration, parse_duration};

/// What is wrong with a value, and the location of the error if it is more precise than the whole value.
pub type Problem = (Option<Range<usize>>, String);

/// One key of the configuration: its name, documentation and default, and how it is stored in the settings `S`.
pub struct Key<S> {
    /// Within its section.
    pub name: &'static str,
    pub doc: &'static str,
    /// The default, as TOML.
    pub default: &'static str,
    /// For lists of tables: what the default file shows instead of the empty list, commented out.
    pub example: &'static str,
    pub set: fn(&mut S, &Item<'_>) -> Result<(), Problem>,
}

/// The texts of a key, for the default file and `--set`.
#[derive(Clone, Copy)]
pub struct KeyText {
    pub name: &'static str,
    pub doc: &'static str,
    pub default: &'static str,
    pub example: &'static str,
}

impl<S> Key<S> {
    pub fn text(&self) -> KeyText {
        KeyText { name: self.name, doc: self.doc, default: self.default, example: self.example }
    }

    /// Sets the default. Cannot fail: a test reads every default of every table.
    pub fn set_default(&self, settings: &mut S) {
        if let Ok(value) = DeValue::parse(self.default) {
            let _ = (self.set)(settings, &Item::new(value.get_ref()));
        }
    }
}

impl KeyText {
    /// The value of `--set KEY=VALUE` as TOML. Texts need no quotes, and lists are comma-separated.
    pub fn toml_for(&self, typed: &str) -> String {
        let quoted = |text: &str| toml::Value::String(text.trim().to_string()).to_string();
        let is_toml = typed.starts_with(['"', '\'', '[']) && DeValue::parse(typed).is_ok();
        match self.default.chars().next() {
            _ if is_toml => typed.to_string(),
            Some('[') => {
                let members: Vec<_> = typed.split(',').filter(|text| !text.trim().is_empty()).map(quoted).collect();
                format!("[{}]", members.join(", "))
            }
            Some('"') => quoted(typed),
            // true, false or a number; anything else becomes a text, which the key then refuses with a clear error.
            _ if DeValue::parse(typed).is_ok() => typed.to_string(),
            _ => quoted(typed),
        }
    }
}

/// A value of the configuration.
#[derive(Clone, Copy)]
pub struct Item<'a> {
    value: &'a DeValue<'a>,
}

impl<'a> Item<'a> {
    pub fn new(value: &'a DeValue<'a>) -> Item<'a> {
        Item { value }
    }

    fn must_be(&self, what: &str) -> Problem {
        let found = match self.value {
            DeValue::String(text) => format!("the text \"{text}\""),
            DeValue::Integer(number) => format!("the number {number}"),
            DeValue::Float(number) => format!("the number {number}"),
            DeValue::Boolean(value) => format!("{value}"),
            DeValue::Datetime(_) => "a date".into(),
            DeValue::Array(_) => "a list".into(),
            DeValue::Table(_) => "a table".into(),
        };
        (None, format!("must be {what}, not {found}"))
    }

    pub fn is_table(&self) -> bool {
        matches!(self.value, DeValue::Table(_))
    }

    pub fn is_list(&self) -> bool {
        matches!(self.value, DeValue::Array(_))
    }

    pub fn text(&self) -> Result<&'a str, Problem> {
        match self.value {
            DeValue::String(text) => Ok(text),
            _ => Err(self.must_be("a text in quotes")),
        }
    }

    /// A name for people: clean, visible, and at most so long.
    pub fn name(&self, bytes_max: usize) -> Result<String, Problem> {
        let name = self.text()?;
        let is_clean = clean(name.as_bytes()) == name && !name.trim().is_empty();
        if is_clean && name.len() <= bytes_max {
            Ok(name.to_string())
        } else {
            Err((None, format!("must be a name of 1 to {bytes_max} characters")))
        }
    }

    pub fn boolean(&self) -> Result<bool, Problem> {
        match self.value {
            DeValue::Boolean(value) => Ok(*value),
            _ => Err(self.must_be("true or false")),
        }
    }

    pub fn integer(&self, min: i64, max: i64) -> Result<i64, Problem> {
        let number = match self.value {
            DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        number
            .filter(|number| (min..=max).contains(number))
            .ok_or_else(|| self.must_be(&format!("a whole number from {min} to {max}")))
    }

    /// A text that `T` can be parsed from.
    pub fn parsed<T: FromStr>(&self, what: &str) -> Result<T, Problem> {
        match self.value {
            DeValue::String(text) => text.parse().map_err(|_| self.must_be(what)),
            _ => Err(self.must_be(what)),
        }
    }

    /// One of several fixed texts, as the value that it stands for.
    pub fn one_of<T: Copy>(&self, choices: &[(&str, T)]) -> Result<T, Problem> {
        let chosen = match self.value {
            DeValue::String(text) => choices.iter().find(|(name, _)| name == text),
            _ => None,
        };
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        chosen.map(|(_, value)| *value).ok_or_else(|| self.must_be(&names.join(" or ")))
    }

    pub fn duration(&self, min: Duration, max: Duration) -> Result<Duration, Problem> {
        let (least, most) = (format_duration(min), format_duration(max));
        let what = format!("a time like \"30s\" or \"5m\", from \"{least}\" to \"{most}\"");
        let time = match self.value {
            DeValue::String(text) => parse_duration(text),
            _ => None,
        };
        time.filter(|time| (min..=max).contains(time)).ok_or_else(|| self.must_be(&what))
    }

    /// A duration in milliseconds.
    pub fn duration_ms(&self, min_ms: u64, max_ms: u64) -> Result<u64, Problem> {
        let duration = self.duration(Duration::from_millis(min_ms), Duration::from_millis(max_ms))?;
        Ok(duration.as_millis() as u64)
    }

    /// A list whose members are read by `read`. A problem is reported at the member's location.
    pub fn list<T>(&self, what: &str, read: impl Fn(Item<'a>) -> Result<T, Problem>) -> Result<Vec<T>, Problem> {
        let DeValue::Array(members) = self.value else { return Err(self.must_be(what)) };
        let member = |member: &'a toml::Spanned<DeValue<'a>>| {
            read(Item::new(member.get_ref())).map_err(|(span, reason)| (Some(span.unwrap_or(member.span())), reason))
        };
        members.iter().map(member).collect()
    }

    /// Addresses to listen on. A bare port means all addresses of both families.
    pub fn listen(&self) -> Result<Vec<SocketAddr>, Problem> {
        let addresses = self.list("a list of addresses like [\"0.0.0.0:8080\", \"[::]:8080\"]", |item| {
            let port = item.text()?.parse::<u16>().ok();
            let both = |port| vec![(Ipv4Addr::UNSPECIFIED, port).into(), (Ipv6Addr::UNSPECIFIED, port).into()];
            let one = || item.parsed("an address and port like \"0.0.0.0:8080\" or \"[::]:8080\"");
            port.map(both).map_or_else(|| Ok(vec![one()?]), Ok)
        })?;
        Ok(addresses.concat())
    }

    /// Refuses a table with an unknown key.
    pub fn only(&self, known: &[&str]) -> Result<(), Problem> {
        let DeValue::Table(table) = self.value else { return Err(self.must_be("a table")) };
        for name in table.keys() {
            if !known.contains(&name.get_ref().as_ref()) {
                let hint = nearest(name.get_ref(), known.to_vec());
                return Err((Some(name.span()), format!("unknown key `{}`{hint}", name.get_ref())));
            }
        }
        Ok(())
    }

    pub fn optional<T>(
        &self,
        name: &str,
        read: impl Fn(&Item<'a>) -> Result<T, Problem>,
    ) -> Result<Option<T>, Problem> {
        let DeValue::Table(table) = self.value else { return Err(self.must_be("a table")) };
        let Some((_, value)) = table.iter().find(|(key, _)| key.get_ref() == name) else { return Ok(None) };
        let located = |(span, reason): Problem| (Some(span.unwrap_or(value.span())), format!("{name} {reason}"));
        read(&Item::new(value.get_ref())).map(Some).map_err(located)
    }

    pub fn required<T>(&self, name: &str, read: impl Fn(&Item<'a>) -> Result<T, Problem>) -> Result<T, Problem> {
        self.optional(name, read)?.ok_or_else(|| (None, format!("`{name}` is missing")))
    }
}

/// "; did you mean `…`?" if a known key is similar enough.
pub fn nearest(unknown: &str, known: Vec<&str>) -> String {
    let last = |path: &str| path.rsplit('.').next().unwrap_or_default().to_string();
    let distance = |known: &&str| {
        let whole = strsim::osa_distance(unknown, known);
        // The right name in the wrong section, or without one, also counts as similar.
        if last(unknown) == last(known) { whole.min(1) } else { whole }
    };
    match known.into_iter().min_by_key(distance) {
        Some(near) if distance(&near) <= (unknown.len() / 3).max(1) => format!("; did you mean `{near}`?"),
        _ => "; `rallypoint config` prints all keys".into(),
    }
}
