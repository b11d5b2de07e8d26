//! Messages of `list` and `query` about servers that did not answer: the first ones by address, the others counted by
//! reason. JSON, CSV and XML have them all.

use std::collections::BTreeMap;

use crate::client::Found;

/// More would push the list itself off the screen.
const NAMED_MAX: usize = 20;
/// Reasons with their own count.
const REASONS_MAX: usize = 5;

/// The messages, one per line.
pub fn lines(found: &[Found]) -> Vec<String> {
    let failed: Vec<_> = found.iter().filter_map(|server| Some((server, server.failure()?))).collect();
    let (named, rest) = failed.split_at(failed.len().min(NAMED_MAX));
    let mut lines: Vec<String> = named.iter().map(|(server, why)| format!("{}: {why}", server.url())).collect();
    if rest.is_empty() {
        return lines;
    }
    let mut counts = BTreeMap::new();
    for (_, why) in rest {
        // The rest may differ for each server.
        *counts.entry(why.split(':').next().unwrap_or_default()).or_insert(0usize) += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut reasons: Vec<_> = counts.iter().take(REASONS_MAX).map(|(why, count)| format!("{count} {why}")).collect();
    let others: usize = counts.iter().skip(REASONS_MAX).map(|(_, count)| count).sum();
    if others > 0 {
        reasons.push(format!("{others} for other reasons"));
    }
    lines.push(format!("and {} more: {}", rest.len(), reasons.join(", ")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::State;
    use crate::model::Game;

    fn server(port: u16, why: &str) -> Found {
        let address = format!("203.0.113.5:{port}").parse().unwrap();
        Found { state: State::Failed(why.into()), ..Found::new(Game::Own("netpanzer"), address) }
    }

    #[test]
    fn a_few_are_named_and_thousands_are_counted() {
        let few: Vec<_> = (1..=20).map(|port| server(port, "no answer")).collect();
        assert_eq!(lines(&few).len(), 20);
        assert_eq!(lines(&few)[19], "netpanzer://203.0.113.5:20: no answer");
        let many: Vec<_> = (1..=6_609)
            .map(|port| match port {
                0..=6_000 => server(port, "no answer"),
                6_001..=6_600 => server(port, &format!("bad answer: {port} bytes")),
                _ => server(port, &format!("reason {port}")),
            })
            .collect();
        let lines = lines(&many);
        assert_eq!(lines.len(), 21);
        assert_eq!(
            lines[20],
            "and 6589 more: 5980 no answer, 600 bad answer, 1 reason 6601, 1 reason 6602, 1 reason 6603, \
             6 for other reasons"
        );
    }
}
