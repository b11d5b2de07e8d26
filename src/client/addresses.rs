//! Files of game servers, for `query --from`: one or several addresses per line, in our form or in that of qstat's `-f`.
//! Qstat writes the type before the address, `NETP 203.0.113.5:3030`, both in its files and in its output; anything after
//! the address is ignored there. `#` starts a comment.

use std::fmt;
use std::str::FromStr;

use super::Target;
use super::target::GameServer;
use crate::model::Address;
use crate::protocols::{CARDS, DIALECTS};

/// A server in a file.
pub enum Line {
    /// The name of its protocol or dialect, and where it is.
    At(&'static str, Address),
    /// It may have a name that has to be resolved, or be none that can be queried.
    Typed(Box<Target>),
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Line, String> {
        match GameServer::plain(text) {
            Some((name, address)) => Ok(Line::At(name, address)),
            None => Ok(Line::Typed(Box::new(text.parse()?))),
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::At(name, address) => write!(f, "{name}://{address}"),
            Line::Typed(target) => target.fmt(f),
        }
    }
}

/// About how long a line is, and for how many servers room is made at first.
const LINE_BYTES: usize = 24;
const LINES_AT_FIRST: usize = 100_000;

/// The servers in a file, and its invalid lines: line number and reason.
pub fn read(text: &str) -> (Vec<Line>, Vec<(usize, String)>) {
    let mut targets = Vec::with_capacity((text.len() / LINE_BYTES).min(LINES_AT_FIRST));
    let mut wrong = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let line = line.split('#').next().unwrap_or_default();
        if let Err(why) = read_line(line, &mut targets) {
            wrong.push((number, why));
        }
    }
    (targets, wrong)
}

fn read_line(line: &str, targets: &mut Vec<Line>) -> Result<(), String> {
    // As most lines of long files are.
    if let Some((name, address)) = GameServer::plain(line) {
        targets.push(Line::At(name, address));
        return Ok(());
    }
    let mut words = line.split_whitespace();
    let mut is_qstat = false;
    while let Some(word) = words.next() {
        if word.contains("://") {
            targets.push(word.parse()?);
        } else if let Some((kind, rest)) = raw(word) {
            // `qstat -raw`: fields with a separator between them.
            targets.push(server(kind, rest)?);
            return Ok(());
        } else if let Some(scheme) = scheme_of(word) {
            let address = words.next().ok_or_else(|| format!("`{word}` is not followed by an address"))?;
            targets.push(server(scheme, address)?);
            is_qstat = true;
        } else if is_qstat {
            return Ok(()); // the rest is qstat's output about the server
        } else {
            return Err(unknown(word, words.next()));
        }
    }
    Ok(())
}

/// Qstat's type, as in its files or as its command-line option; our own names work, too.
fn scheme_of(word: &str) -> Option<&'static str> {
    let kind = word.strip_prefix('-').unwrap_or(word);
    let is = |name: &&str| name.eq_ignore_ascii_case(kind);
    types().find(|(name, types)| is(name) || types.iter().any(is)).map(|(name, _)| name)
}

/// Schemes of game servers, with qstat's types.
fn types() -> impl Iterator<Item = (&'static str, &'static [&'static str])> {
    let cards = CARDS.iter().map(|card| (card.name, card.qstat_types));
    cards.chain(DIALECTS.iter().map(|dialect| (dialect.name, dialect.qstat_types)))
}

/// The first two fields of a line of `qstat -raw`.
fn raw(word: &str) -> Option<(&'static str, &str)> {
    let sign = word.find(|c: char| c.is_ascii_punctuation() && c != '-')?;
    let (kind, rest) = word.split_at(sign);
    let mut rest = rest.chars();
    let sign = rest.next().filter(|sign| *sign != ':')?;
    Some((scheme_of(kind)?, rest.as_str().split(sign).next().unwrap_or_default()))
}

fn server(scheme: &str, address: &str) -> Result<Line, String> {
    format!("{scheme}://{address}").parse()
}

/// Error for a word that is neither an address nor a type.
fn unknown(word: &str, next: Option<&str>) -> String {
    let is_master = |kind: &&str| {
        let name = kind.strip_suffix('S').unwrap_or(kind);
        word.eq_ignore_ascii_case(&format!("{name}M"))
    };
    if let Some(card) = CARDS.iter().find(|card| card.qstat_types.iter().any(is_master)) {
        return format!("`{word}` is a master: `rallypoint list {}://HOST` shows its servers", card.name);
    }
    let is_type = word.bytes().all(|byte| byte.is_ascii_alphanumeric()) && next.is_some();
    if is_type {
        let known: Vec<_> = types().flat_map(|(_, types)| types).copied().collect();
        return format!("`{word}` servers cannot be queried; of qstat's types, {} can", known.join(", "));
    }
    word.parse::<Target>().err().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<String> {
        let (lines, wrong) = read(text);
        assert_eq!(wrong, [], "{text}");
        lines.iter().map(Line::to_string).collect()
    }

    #[test]
    fn our_lines_and_qstats() {
        assert_eq!(targets("\r\n# nobody\r\n  hyperbol://h # one\r\n"), ["hyperbol://h"]);
        for line in [
            "NETP 127.0.0.1:3030",
            "  netp\t127.0.0.1:3030 # comment",
            "-netp 127.0.0.1:3030",
            "netpanzer 127.0.0.1:3030",
            "netpanzer://127.0.0.1:3030",
            "NETP 127.0.0.1:3030         DOWN",
            "NETP 127.0.0.1:3030      0/ 8 Two clans     12 / 0  A server",
            "NETP,127.0.0.1:3030,A server,Two clans,8,0,12,0",
            "NETP|[::1]:3030|DOWN",
        ] {
            let found = targets(line);
            assert!(
                ["netpanzer://127.0.0.1:3030", "netpanzer://[::1]:3030"].contains(&&*found[0]),
                "{line}: {found:?}"
            );
            assert_eq!(found.len(), 1, "{line}");
        }
        assert_eq!(targets("XONOTICS a\n-woets b:27960"), ["quake3://a", "quake3://b:27960"]);
        assert_eq!(targets("NETP a NETP b:1 hyperbol://c"), ["netpanzer://a", "netpanzer://b:1", "hyperbol://c"]);
    }

    #[test]
    fn an_invalid_line_is_reported_and_the_others_are_read() {
        let (found, wrong) = read(
            "netpanzer://a\n127.0.0.1:3030\nNETP\nNETPM m:28900\nHLS q:27015\nNETP b:x\nXONOTICM m\nnetpanzer://c",
        );
        assert_eq!(found.iter().map(Line::to_string).collect::<Vec<_>>(), ["netpanzer://a", "netpanzer://c"]);
        let says = [
            (2, "write netpanzer://127.0.0.1:3030"),
            (3, "`NETP` is not followed by an address"),
            (4, "`NETPM` is a master: `rallypoint list netpanzer://HOST`"),
            (5, "`HLS` servers cannot be queried; of qstat's types, NETP"),
            (6, "`x` is not a port"),
            (7, "`XONOTICM` is a master: `rallypoint list quake3://HOST`"),
        ];
        assert_eq!(wrong.len(), says.len(), "{wrong:?}");
        for ((number, why), (line, says)) in wrong.iter().zip(says) {
            assert!(*number == line && why.contains(says), "{number}: {why}");
        }
    }
}
