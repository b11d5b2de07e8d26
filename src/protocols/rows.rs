//! Reads JSON lists, `{"serial": n, "servers": [...], "total": n, "next": "..."}`, row by row: a document needs no more memory than its
//! text and its servers, even a hostile one.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeOwned, DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The longest row. A server with the maximum of players and rules has a tenth of this.
const ROW_BYTES_MAX: usize = 256 << 10;

/// The other fields of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rest {
    pub serial: Option<u64>,
    pub total: Option<usize>,
    pub next: Option<String>,
}

/// Calls `row` with the text of every row, or with what is wrong with it.
pub fn read(json: &[u8], row: impl FnMut(Result<&str, String>)) -> Result<Rest, serde_json::Error> {
    read_named(json, "servers", row)
}

/// The same for a list whose rows are in the field of this name.
pub fn read_named(
    json: &[u8],
    name: &'static str,
    row: impl FnMut(Result<&str, String>),
) -> Result<Rest, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let rest = Document(name, row).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(rest)
}

/// A value if it has this type; None if it has another.
struct Lenient<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Lenient<T>, D::Error> {
        let text = <&RawValue>::deserialize(deserializer)?;
        Ok(Lenient(serde_json::from_str(text.get()).ok()))
    }
}

struct Document<F>(&'static str, F);

impl<'de, F: FnMut(Result<&str, String>)> DeserializeSeed<'de> for Document<F> {
    type Value = Rest;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rest, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: FnMut(Result<&str, String>)> Visitor<'de> for Document<F> {
    type Value = Rest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with servers")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Rest, A::Error> {
        let mut rest = Rest::default();
        let mut found = false;
        while let Some(key) = map.next_key::<Cow<'_, str>>()? {
            match &*key {
                name if name == self.0 && found => return Err(A::Error::duplicate_field(self.0)),
                name if name == self.0 => {
                    map.next_value_seed(Servers(&mut self.1))?;
                    found = true;
                }
                // In other lists these may be something else.
                "serial" => rest.serial = map.next_value::<Lenient<_>>()?.0,
                "total" => rest.total = map.next_value::<Lenient<_>>()?.0,
                "next" => rest.next = map.next_value::<Lenient<_>>()?.0,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if found { Ok(rest) } else { Err(A::Error::missing_field(self.0)) }
    }
}

struct Servers<'a, F>(&'a mut F);

impl<'de, F: FnMut(Result<&str, String>)> DeserializeSeed<'de> for Servers<'_, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(Result<&str, String>)> Visitor<'de> for Servers<'_, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of servers")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut rows: A) -> Result<(), A::Error> {
        while let Some(row) = rows.next_element::<&RawValue>()? {
            match row.get() {
                text if text.len() > ROW_BYTES_MAX => (self.0)(Err(format!("longer than {ROW_BYTES_MAX} bytes"))),
                text => (self.0)(Ok(text)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(json: &str) -> Result<(Vec<String>, Rest), String> {
        let mut rows = Vec::new();
        let rest = read(json.as_bytes(), |row| rows.push(row.map_or_else(|why| why, str::to_string)));
        rest.map(|rest| (rows, rest)).map_err(|error| error.to_string())
    }

    #[test]
    fn rows_and_other_fields_are_read() {
        let (found, rest) = rows(r#"{"x":[{}],"servers":[{"a":1}, 7,null],"next":"n","total":3,"serial":9}"#).unwrap();
        assert_eq!(found, [r#"{"a":1}"#, "7", "null"]);
        assert_eq!(rest, Rest { serial: Some(9), total: Some(3), next: Some("n".into()) });
        let long = format!(r#"{{"servers":["{}",1]}}"#, "x".repeat(ROW_BYTES_MAX));
        assert_eq!(rows(&long).unwrap().0, ["longer than 262144 bytes", "1"]);
        let longest = format!(r#"{{"servers":["{}"]}}"#, "x".repeat(ROW_BYTES_MAX - 2)); // with its quotes
        assert_eq!(rows(&longest).unwrap().0[0].len(), ROW_BYTES_MAX);
    }

    #[test]
    fn documents_that_are_no_list_are_refused() {
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"servers":7}"#,
            r#"{"servers":[1"#,
            r#"{"servers":[]} x"#,
            r#"{"servers":[],"servers":[]}"#,
        ] {
            assert!(rows(bad).is_err(), "{bad}");
        }
    }
}
