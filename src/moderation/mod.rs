//! What the operator decides while the program runs: networks that are banned, servers and names that are kept off the list.
//!
//! Each decision is a [`Statement`] about a subject, with a time, an end and a reason. The newest statement about a subject
//! counts, whichever node it was made at and in whatever order they arrive; an end of a ban is a statement, too, so that the
//! ban does not come back from a node that has not heard of it. `board` holds the statements for all rooms, [`rules`] is what
//! follows from them at a moment, [`pattern`] matches names, also those written with look-alikes. No socket and no clock: times are arguments.

#[cfg(feature = "program")]
pub mod board;
mod lookalikes;
pub mod pattern;
pub mod rules;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::model::Address;
use crate::times::rfc3339;
#[cfg(feature = "program")]
pub use board::Board;
pub use pattern::Pattern;
pub use rules::{Rules, Withheld};

/// Upper bound on the statements that are kept.
pub const STATEMENTS_MAX: usize = 10_000;
/// Upper bound on the patterns in use: every new name is compared with each.
pub const PATTERNS_MAX: usize = 256;
/// Upper bound on a reason.
pub const REASON_BYTES_MAX: usize = 200;
/// How long the cluster keeps a statement after its end. A node that was away for longer can bring back what it ended.
pub const KEPT_MS: u64 = 30 * 86_400_000;
/// The end of the year 9999. Files and other nodes may say anything; later times are refused.
pub const TIME_MS_MAX: u64 = 253_402_300_799_999;

/// What a statement is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// Banned: no answers, no connections, none of its servers on the list.
    Network(IpNet),
    /// Off the list, but not banned.
    Server(Address),
    /// Servers with such a name are off the list.
    Name(Pattern),
}

impl Subject {
    /// The kinds, as in files and messages.
    pub const KINDS: [&str; 3] = ["ban", "unlist", "hide"];

    /// A network or a single address, as typed.
    pub fn network(text: &str) -> Result<Subject, String> {
        let wrong = || format!("`{text}` is not an address or network like 203.0.113.7 or 198.51.100.0/24");
        let net = match text.parse::<IpAddr>() {
            Ok(ip) => ip.to_canonical().into(),
            Err(_) => canonical(text.parse().map_err(|_| wrong())?),
        };
        if net.prefix_len() == 0 {
            return Err(format!("`{text}` is everybody"));
        }
        Ok(Subject::Network(net))
    }

    pub fn server(text: &str) -> Result<Subject, String> {
        text.parse().map(Subject::Server)
    }

    pub fn name(text: &str) -> Result<Subject, String> {
        text.parse().map(Subject::Name).map_err(|why| format!("`{text}` cannot be a pattern: {why}"))
    }

    pub fn of_kind(kind: &str, text: &str) -> Result<Subject, String> {
        match kind {
            "ban" => Subject::network(text),
            "unlist" => Subject::server(text),
            "hide" => Subject::name(text),
            _ => Err(format!("`{kind}` is not one of {}", Subject::KINDS.join(", "))),
        }
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Subject::Network(_) => "ban",
            Subject::Server(_) => "unlist",
            Subject::Name(_) => "hide",
        }
    }

    /// The command that ends it.
    pub fn opposite(&self) -> &'static str {
        match self {
            Subject::Network(_) => "unban",
            Subject::Server(_) => "relist",
            Subject::Name(_) => "unhide",
        }
    }

    /// What is banned, unlisted or hidden.
    pub fn text(&self) -> String {
        match self {
            Subject::Network(net) if net.prefix_len() == net.max_prefix_len() => net.addr().to_string(),
            Subject::Network(net) => net.to_string(),
            Subject::Server(address) => address.to_string(),
            Subject::Name(pattern) => pattern.to_string(),
        }
    }
}

/// The network without its host bits; a network of IPv4-mapped addresses as one of IPv4.
pub fn canonical(net: IpNet) -> IpNet {
    let ipv4 = match net.network().to_canonical() {
        IpAddr::V4(ip) => net.prefix_len().checked_sub(96).and_then(|bits| Ipv4Net::new(ip, bits).ok()),
        IpAddr::V6(_) => None,
    };
    match (net, ipv4) {
        (IpNet::V6(_), Some(ipv4)) => ipv4.into(),
        (net, _) => net.trunc(),
    }
}

/// A decision about a subject. Times are milliseconds since 1970 by the clock that all nodes share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    pub subject: Subject,
    pub at_ms: u64,
    /// None: until another statement. Equal to `at_ms`: this one only ends earlier statements.
    pub ends_at_ms: Option<u64>,
    pub reason: Box<str>,
    /// Who made it.
    pub by: Box<str>,
}

impl Statement {
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.ends_at_ms.is_none_or(|ends_at_ms| ends_at_ms > now_ms) && !self.lifts()
    }

    /// Whether its times can be true.
    pub fn has_valid_times(&self) -> bool {
        self.at_ms.max(self.ends_at_ms.unwrap_or(0)) <= TIME_MS_MAX
    }

    /// Whether it only ends earlier statements.
    pub fn lifts(&self) -> bool {
        self.ends_at_ms == Some(self.at_ms)
    }

    /// Whether it counts instead of another about the same subject. A total order, so that all nodes choose the same.
    pub fn is_newer_than(&self, other: &Statement) -> bool {
        let order = |statement: &Statement| (statement.at_ms, statement.ends_at_ms.unwrap_or(u64::MAX));
        let texts = |statement: &Statement| (statement.reason.clone(), statement.by.clone());
        order(self).cmp(&order(other)).then_with(|| texts(self).cmp(&texts(other))).is_gt()
    }
}

/// For the log: "ban 192.0.2.0/24 until …, reason: …", or "unban 192.0.2.0/24".
impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, text) = (self.subject.kind(), self.subject.text());
        if self.lifts() {
            return write!(f, "{} {text}", self.subject.opposite());
        }
        let until = self.ends_at_ms.map_or("it is lifted".into(), |ends_at_ms| rfc3339(ends_at_ms / 1_000));
        let reason = if self.reason.is_empty() { "none given" } else { &self.reason };
        write!(f, "{kind} {text} until {until}, reason: {reason}")
    }
}

/// Why a statement was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Statements,
    Patterns,
}

/// The newest statement about each subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statements {
    by_subject: BTreeMap<Subject, Statement>,
}

impl Statements {
    /// Takes over a statement of this node's file or of another node, if it is the newest about its subject. Of too many, the
    /// one that ends or ended first makes room. True if anything changed. The order of merging makes no difference, except
    /// that an earlier statement about a subject can come back once the newest had to make room.
    pub fn merge(&mut self, statement: Statement) -> bool {
        self.merge_within(STATEMENTS_MAX, statement)
    }

    fn merge_within(&mut self, statements_max: usize, statement: Statement) -> bool {
        let known = self.by_subject.get(&statement.subject);
        if known.is_some_and(|known| !statement.is_newer_than(known)) {
            return false;
        }
        let subject = statement.subject.clone();
        self.by_subject.insert(subject.clone(), statement);
        if self.by_subject.len() <= statements_max {
            return true;
        }
        let (ends, at) = (|known: &Statement| known.ends_at_ms.unwrap_or(u64::MAX), |known: &Statement| known.at_ms);
        // The map is in the order of the subjects, and of equal ones the first is taken.
        let first = self.by_subject.values().min_by_key(|known| (ends(known), at(known)));
        let Some(first) = first.map(|first| first.subject.clone()) else { return true };
        self.by_subject.remove(&first);
        first != subject
    }

    /// Accepts a statement of the operator, which counts from now on: clocks of other nodes may have been ahead.
    pub fn add(&mut self, statement: Statement, now_ms: u64) -> Result<Statement, Full> {
        let known = self.by_subject.get(&statement.subject);
        let is_new_pattern =
            matches!(statement.subject, Subject::Name(_)) && !known.is_some_and(|it| it.is_live(now_ms));
        if is_new_pattern && statement.is_live(now_ms) && self.patterns(now_ms).count() >= PATTERNS_MAX {
            return Err(Full::Patterns);
        }
        let after_ms = known.map_or(0, |known| known.at_ms.saturating_add(1));
        let lifts = !statement.is_live(now_ms);
        let at_ms = statement.at_ms.max(after_ms);
        let at_ms = at_ms.saturating_add(u64::from(!lifts && statement.ends_at_ms == Some(at_ms)));
        let ends_at_ms = if lifts { Some(at_ms) } else { statement.ends_at_ms };
        let statement = Statement { at_ms, ends_at_ms, ..statement };
        if known.is_none() && self.by_subject.len() >= STATEMENTS_MAX && !self.forget_one_ended(now_ms) {
            return Err(Full::Statements);
        }
        self.by_subject.insert(statement.subject.clone(), statement.clone());
        Ok(statement)
    }

    /// Makes room by forgetting what ended first. Nothing else is ever forgotten: the time of day may be wrong for a moment.
    fn forget_one_ended(&mut self, now_ms: u64) -> bool {
        let ended = self.by_subject.values().filter(|statement| !statement.is_live(now_ms));
        let first = ended.min_by_key(|statement| statement.ends_at_ms).map(|statement| statement.subject.clone());
        first.is_some_and(|first| self.by_subject.remove(&first).is_some())
    }

    pub fn get(&self, subject: &Subject) -> Option<&Statement> {
        self.by_subject.get(subject)
    }

    /// All, ended ones included, in the order of their subjects.
    pub fn all(&self) -> impl Iterator<Item = &Statement> {
        self.by_subject.values()
    }

    /// Those that are in effect.
    pub fn live(&self, now_ms: u64) -> impl Iterator<Item = &Statement> {
        self.all().filter(move |statement| statement.is_live(now_ms))
    }

    /// Patterns in effect.
    fn patterns(&self, now_ms: u64) -> impl Iterator<Item = &Statement> {
        self.live(now_ms).filter(|statement| matches!(statement.subject, Subject::Name(_)))
    }

    /// The patterns for which there is no room: all but the newest [`PATTERNS_MAX`]. Other nodes may have brought more.
    pub fn excess_patterns(&self, now_ms: u64) -> BTreeSet<&Subject> {
        let mut patterns: Vec<&Statement> = self.patterns(now_ms).collect();
        patterns.sort_by_key(|statement| Reverse(statement.at_ms));
        patterns.iter().skip(PATTERNS_MAX).map(|statement| &statement.subject).collect()
    }

    /// When the next of them ends.
    pub fn next_end_ms(&self, now_ms: u64) -> Option<u64> {
        self.live(now_ms).filter_map(|statement| statement.ends_at_ms).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: u64 = 1_760_000_000_000;

    fn ban(network: &str, at_ms: u64, ends_at_ms: Option<u64>) -> Statement {
        Statement {
            subject: Subject::network(network).unwrap(),
            at_ms: T + at_ms,
            ends_at_ms: ends_at_ms.map(|ms| T + ms),
            reason: "".into(),
            by: "".into(),
        }
    }

    fn live(statements: &Statements, now_ms: u64) -> Vec<String> {
        statements.live(T + now_ms).map(|statement| statement.subject.text()).collect()
    }

    #[test]
    fn subjects_have_one_form() {
        for (typed, text) in [
            ("203.0.113.7", "203.0.113.7"),
            ("203.0.113.7/32", "203.0.113.7"),
            ("203.0.113.7/24", "203.0.113.0/24"),
            ("::ffff:203.0.113.7", "203.0.113.7"),
            ("::ffff:203.0.113.7/120", "203.0.113.0/24"),
            ("2001:db8::1/32", "2001:db8::/32"),
        ] {
            let subject = Subject::network(typed).unwrap();
            assert_eq!(subject.text(), text);
            assert_eq!(Subject::of_kind(subject.kind(), text), Ok(subject));
        }
        for (kind, typed, why) in [
            ("ban", "203.0.113", "is not an address or network like"),
            ("ban", "203.0.113.0/33", "is not an address or network like"),
            ("ban", "0.0.0.0/0", "is everybody"),
            ("ban", "::/0", "is everybody"),
            ("unlist", "203.0.113.7", "is not an address like 203.0.113.5:20737"),
            ("hide", "*", "it matches every name"),
            ("praise", "x", "is not one of ban, unlist, hide"),
        ] {
            let error = Subject::of_kind(kind, typed).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_ban_ends_by_itself_or_by_another_statement() {
        let mut all = Statements::default();
        all.add(ban("192.0.2.1", 0, Some(1_000)), T).unwrap();
        all.add(ban("192.0.2.2", 0, None), T).unwrap();
        assert_eq!((live(&all, 999).len(), all.next_end_ms(T)), (2, Some(T + 1_000)));
        assert_eq!((live(&all, 1_000), all.next_end_ms(T + 1_000)), (vec!["192.0.2.2".into()], None));
        all.add(ban("192.0.2.2", 2_000, Some(2_000)), T + 2_000).unwrap();
        assert!(live(&all, 2_000).is_empty());
        assert!(!all.merge(ban("192.0.2.2", 0, None)), "it does not come back");
        assert!(live(&all, 2_000).is_empty());
        // A clock that was far ahead for a moment ends nothing for good.
        assert!(live(&all, 900 * 86_400_000).is_empty());
        assert_eq!(live(&all, 500), ["192.0.2.1"]);
    }

    #[test]
    fn the_operators_latest_word_counts_although_a_clock_was_ahead() {
        let mut all = Statements::default();
        all.merge(ban("192.0.2.1", 3_600_000, None));
        let lifted = all.add(ban("192.0.2.1", 5, Some(5)), T + 5).unwrap();
        assert_eq!((lifted.at_ms, lifted.ends_at_ms), (T + 3_600_001, Some(T + 3_600_001)));
        assert!(live(&all, 5).is_empty(), "and it ends nothing but earlier statements");
        let again = all.add(ban("192.0.2.1", 10, Some(60_010)), T + 10).unwrap();
        assert_eq!(again.ends_at_ms, Some(T + 60_010));
        assert!(again.is_live(T + 10) && !again.is_live(T + 60_010));
        // As far ahead as can be.
        let [never, end] = [None, Some(u64::MAX)].map(|ends_at_ms| Statement {
            at_ms: u64::MAX,
            ends_at_ms,
            ..ban("192.0.2.2", 0, None)
        });
        assert!(!never.has_valid_times() && !end.has_valid_times() && again.has_valid_times());
        assert!(!Statement { ends_at_ms: Some(TIME_MS_MAX + 1), ..again.clone() }.has_valid_times());
        assert!(Statement { at_ms: TIME_MS_MAX, ends_at_ms: Some(TIME_MS_MAX), ..again }.has_valid_times());
        all.merge(never);
        all.add(ban("192.0.2.2", 5, Some(5)), T + 5).unwrap();
        assert!(!live(&all, 5).contains(&"192.0.2.2".into()));
    }

    #[test]
    fn statements_and_patterns_are_bounded() {
        let numbered = |number: u32, at_ms, ends| ban(&std::net::Ipv4Addr::from(number + 1).to_string(), at_ms, ends);
        let mut all = Statements::default();
        for number in 0..STATEMENTS_MAX as u32 {
            all.add(numbered(number, u64::from(number), None), T).unwrap();
        }
        assert_eq!(all.add(numbered(20_000, 0, None), T), Err(Full::Statements));
        all.add(numbered(7, 8, Some(8)), T + 20_000).unwrap();
        assert!(all.add(numbered(20_000, 20_000, None), T + 20_000).is_ok(), "in place of one that has ended");
        // Other nodes' statements: what ends first makes room, be it older or newer.
        assert!(!all.merge(numbered(40_000, 40_000, Some(50_000))), "all others have no end");
        assert!(all.get(&numbered(0, 0, None).subject).is_some(), "the oldest is in effect");
        all.add(numbered(9, 30_000, Some(60_000)), T + 20_000).unwrap();
        assert!(all.merge(numbered(30_000, 0, None)) && all.get(&numbered(9, 0, None).subject).is_none());
        assert!(all.merge(numbered(30_001, 30_000, None)), "all without an end: the oldest makes room");
        assert_eq!(all.all().count(), STATEMENTS_MAX);
        assert!(
            all.get(&numbered(0, 0, None).subject).is_some() != all.get(&numbered(30_000, 0, None).subject).is_some()
        );

        let hide = |number: usize| Statement {
            subject: Subject::name(&format!("{number}*")).unwrap(),
            ..ban("192.0.2.1", 0, None)
        };
        let mut all = Statements::default();
        (0..PATTERNS_MAX).for_each(|number| drop(all.add(hide(number), T).unwrap()));
        assert_eq!(all.add(hide(PATTERNS_MAX), T), Err(Full::Patterns));
        assert!(all.add(hide(3), T).is_ok(), "a new reason");
        assert!(all.excess_patterns(T).is_empty());
        all.merge(Statement { at_ms: T + 9, ..hide(PATTERNS_MAX) });
        all.merge(Statement { at_ms: T - 9, ..hide(PATTERNS_MAX + 1) });
        all.merge(Statement { at_ms: T - 9, ends_at_ms: Some(T - 5), ..hide(PATTERNS_MAX + 2) });
        let excess: Vec<String> = all.excess_patterns(T).iter().map(|subject| subject.text()).collect();
        assert_eq!(excess.len(), 2, "those in effect");
        assert!(excess.contains(&format!("{}*", PATTERNS_MAX + 1)) && !excess.contains(&format!("{PATTERNS_MAX}*")));
    }

    fn merged<'a>(all: impl IntoIterator<Item = &'a Statement>) -> Statements {
        let mut statements = Statements::default();
        for statement in all {
            statements.merge(statement.clone());
        }
        statements
    }

    prop_compose! {
        fn any_statement()(host in 0..4u8, at_ms in 0..4u64, ends in proptest::option::of(0..6u64), reason in "[ab]") -> Statement {
            Statement { reason: reason.into(), ..ban(&format!("192.0.2.{host}"), at_ms, ends) }
        }
    }

    proptest! {
        /// With one statement about each subject, so that none comes back.
        #[test]
        fn of_too_many_the_same_are_kept_in_any_order_and_those_end_last(
            (all, shuffled) in proptest::collection::btree_map(0..9u8, any_statement(), 0..9).prop_flat_map(|by_host| {
                let all: Vec<Statement> = by_host
                    .into_iter()
                    .map(|(host, it)| Statement { subject: ban(&format!("192.0.2.{host}"), 0, None).subject, ..it })
                    .collect();
                (Just(all.clone()), Just(all).prop_shuffle())
            }),
        ) {
            let [kept, again] = [&all, &shuffled].map(|all| {
                let mut kept = Statements::default();
                for statement in all {
                    kept.merge_within(3, statement.clone());
                }
                kept
            });
            prop_assert_eq!(&kept, &again);
            prop_assert_eq!(kept.all().count(), all.len().min(3));
            let ends = |it: &Statement| it.ends_at_ms.unwrap_or(u64::MAX);
            let first = kept.all().map(ends).min().unwrap_or(0);
            prop_assert!(all.iter().filter(|it| kept.get(&it.subject).is_none()).all(|it| ends(it) <= first));
        }

        #[test]
        fn merging_is_commutative_associative_and_idempotent(
            [a, b, c] in proptest::array::uniform3(proptest::collection::vec(any_statement(), 0..8)),
        ) {
            let union = |x: &Statements, y: &Statements| {
                let mut x = x.clone();
                for statement in y.all() {
                    x.merge(statement.clone());
                }
                x
            };
            let [x, y, z] = [&a, &b, &c].map(merged);
            prop_assert_eq!(union(&x, &y), union(&y, &x));
            prop_assert_eq!(union(&union(&x, &y), &z), union(&x, &union(&y, &z)));
            prop_assert_eq!(union(&x, &x), x.clone());
            prop_assert_eq!(union(&union(&x, &y), &y), union(&x, &y));
            let in_any_order: Vec<_> = c.iter().chain(a.iter().rev()).chain(&b).collect();
            prop_assert_eq!(merged(in_any_order), union(&union(&x, &y), &z));
        }
    }
}
