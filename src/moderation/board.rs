//! The statements and the configuration's own bans and patterns, shared by all rooms. Behind a lock, which the hot path never
//! takes: it reads the [`Rules`] that follow.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use tokio::sync::watch;

use super::pattern::Name;
use super::{Full, Pattern, Rules, Statement, Statements, Subject};
use crate::model::Address;

/// What the configuration says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FromConfig {
    pub bans: Vec<IpNet>,
    pub hidden_names: Vec<Pattern>,
}

/// A decision in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub subject: Subject,
    /// None: the configuration's.
    pub statement: Option<Statement>,
}

impl Decision {
    pub fn ends_at_ms(&self) -> Option<u64> {
        self.statement.as_ref().and_then(|statement| statement.ends_at_ms)
    }

    /// Empty if none was given.
    pub fn reason(&self) -> &str {
        self.statement.as_ref().map_or("", |statement| &statement.reason)
    }
}

pub struct Board {
    state: Mutex<State>,
    /// Counts the changes of the statements, for the store and the cluster.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    statements: Statements,
    configured: FromConfig,
}

impl State {
    /// Everything in effect, the configuration's first, which has no statement. Of too many patterns, the newest.
    fn in_effect(&self, now_ms: u64) -> impl Iterator<Item = (Cow<'_, Subject>, Option<&Statement>)> {
        let bans = self.configured.bans.iter().map(|net| Subject::Network(*net));
        let hidden = self.configured.hidden_names.iter().cloned().map(Subject::Name);
        let configured = bans.chain(hidden).map(|subject| (Cow::Owned(subject), None));
        let excess = self.statements.excess_patterns(now_ms);
        let live = self.statements.live(now_ms).filter(move |stated| !excess.contains(&stated.subject));
        configured.chain(live.map(|stated| (Cow::Borrowed(&stated.subject), Some(stated))))
    }
}

impl Default for Board {
    fn default() -> Board {
        Board { state: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl Board {
    pub fn configure(&self, configured: FromConfig) {
        self.state().configured = configured;
    }

    /// Accepts a statement of the operator.
    pub fn add(&self, statement: Statement, now_ms: u64) -> Result<Statement, Full> {
        let added = self.state().statements.add(statement, now_ms)?;
        self.changed();
        Ok(added)
    }

    /// Merges statements of the file or of another node. Returns those that are news.
    pub fn merge(&self, statements: impl IntoIterator<Item = Statement>) -> Vec<Statement> {
        let mut state = self.state();
        let is_news = |statement: &Statement| state.statements.merge(statement.clone());
        let news: Vec<Statement> = statements.into_iter().filter(is_news).collect();
        drop(state);
        if !news.is_empty() {
            self.changed();
        }
        news
    }

    /// How many patterns are not in effect because there are too many.
    pub fn excess_patterns(&self, now_ms: u64) -> usize {
        self.state().statements.excess_patterns(now_ms).len()
    }

    /// The number of changes so far, and a way to wait for the next.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// All statements, ended ones included.
    pub fn statements(&self) -> Statements {
        self.state().statements.clone()
    }

    /// The statement about a subject, if it is in effect.
    pub fn live(&self, subject: &Subject, now_ms: u64) -> Option<Statement> {
        self.state().statements.get(subject).filter(|statement| statement.is_live(now_ms)).cloned()
    }

    /// Whether the configuration says so.
    pub fn is_configured(&self, subject: &Subject) -> bool {
        let state = self.state();
        match subject {
            Subject::Network(net) => state.configured.bans.contains(net),
            Subject::Name(pattern) => state.configured.hidden_names.contains(pattern),
            Subject::Server(_) => false,
        }
    }

    /// Everything in effect, the configuration's first.
    pub fn decisions(&self, now_ms: u64) -> Vec<Decision> {
        let state = self.state();
        let decided = state.in_effect(now_ms);
        decided
            .map(|(subject, stated)| Decision { subject: subject.into_owned(), statement: stated.cloned() })
            .collect()
    }

    /// What follows at this moment, and until when.
    pub fn rules(&self, now_ms: u64) -> (Rules, Option<u64>) {
        let state = self.state();
        let next_end_ms = state.statements.next_end_ms(now_ms);
        (Rules::new(state.in_effect(now_ms).map(|(subject, _)| subject.into_owned())), next_end_ms)
    }

    /// The ban of an address. Of several, the one that ends last.
    pub fn ban_of(&self, ip: IpAddr, now_ms: u64) -> Option<Decision> {
        self.lasting(now_ms, |subject| matches!(subject, Subject::Network(net) if net.contains(&ip)))
    }

    /// Why an address is off the list without being banned.
    pub fn unlisting_of(&self, address: Address, now_ms: u64) -> Option<Decision> {
        self.lasting(now_ms, |subject| *subject == Subject::Server(address))
    }

    /// Why servers of this name are off the list.
    pub fn hiding_of(&self, name: &str, now_ms: u64) -> Option<Decision> {
        let name = Name::new(name);
        self.lasting(now_ms, |subject| matches!(subject, Subject::Name(pattern) if pattern.matcher().matches(&name)))
    }

    /// Of the decisions about a subject, the one that ends last; one with a reason, if several do.
    fn lasting(&self, now_ms: u64, is_about: impl Fn(&Subject) -> bool) -> Option<Decision> {
        let state = self.state();
        let found = state.in_effect(now_ms).filter(|(subject, _)| is_about(subject));
        let lasts = |statement: Option<&Statement>| {
            let ends_at_ms = statement.and_then(|statement| statement.ends_at_ms).unwrap_or(u64::MAX);
            (ends_at_ms, statement.is_some_and(|statement| !statement.reason.is_empty()))
        };
        let longest = found.max_by_key(|(_, statement)| lasts(*statement));
        longest.map(|(subject, statement)| Decision { subject: subject.into_owned(), statement: statement.cloned() })
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moderation::{PATTERNS_MAX, Withheld};

    const T: u64 = 1_760_000_000_000;

    fn statement(kind: &str, text: &str, ends_at_ms: Option<u64>, reason: &str) -> Statement {
        let subject = Subject::of_kind(kind, text).unwrap();
        Statement { subject, at_ms: T, ends_at_ms, reason: reason.into(), by: "".into() }
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    #[test]
    fn statements_and_the_configuration_together_are_the_rules() {
        let board = Board::default();
        let configured =
            FromConfig { bans: vec!["198.51.100.0/24".parse().unwrap()], hidden_names: vec!["*ads*".parse().unwrap()] };
        board.configure(configured);
        board.add(statement("ban", "192.0.2.0/24", Some(T + 500), "flood"), T).unwrap();
        board.add(statement("unlist", "203.0.113.5:7", None, "fake players"), T).unwrap();
        board.add(statement("hide", "*spam*", Some(T + 900), ""), T).unwrap();
        let withheld = |now_ms, text| board.rules(T + now_ms).0.withholds(address(text), "a game", false);
        assert_eq!(withheld(0, "192.0.2.9:1"), Some(Withheld::Banned));
        assert_eq!(withheld(500, "192.0.2.9:1"), None);
        assert_eq!(withheld(500, "198.51.100.1:1"), Some(Withheld::Banned));
        assert_eq!(withheld(0, "203.0.113.5:7"), Some(Withheld::Unlisted));
        assert_eq!(withheld(0, "203.0.113.5:8"), None);
        let other = address("203.0.113.9:1");
        let hides = |now_ms, name| board.rules(T + now_ms).0.withholds(other, name, false) == Some(Withheld::Hidden);
        assert!(hides(0, "my Spam") && !hides(900, "my Spam") && hides(900, "no ADS here") && !hides(0, "a game"));
        assert_eq!(board.rules(T).0.withholds(other, "my spam", true), None, "named in the configuration");
        let (before, after) = (board.rules(T).0, board.rules(T + 500).0);
        assert!(after.since(&before).is_none(), "nothing but an end");
        let new = before.since(&after).unwrap();
        assert_eq!(new.withholds(address("192.0.2.9:1"), "spam", false), Some(Withheld::Banned));
        assert_eq!(new.withholds(address("203.0.113.5:7"), "spam", false), None, "only what is new");
        assert_eq!([0, 500, 900].map(|now_ms| board.rules(T + now_ms).1), [Some(T + 500), Some(T + 900), None]);
    }

    #[test]
    fn too_many_patterns_of_other_nodes_are_not_in_effect() {
        let board = Board::default();
        let hide = |number: u64, at_ms| Statement { at_ms, ..statement("hide", &format!("{number} *"), None, "") };
        board.merge((0..PATTERNS_MAX as u64).map(|number| hide(number, T + number)));
        assert_eq!(board.excess_patterns(T), 0);
        board.merge([hide(1_000, T + 1_000)]);
        assert_eq!((board.excess_patterns(T), board.decisions(T).len()), (1, PATTERNS_MAX));
        let hides = |name| board.rules(T).0.withholds(address("203.0.113.9:1"), name, false).is_some();
        assert!(!hides("0 is the oldest") && hides("1 is not") && hides("1000 is new"));
        assert!(board.hiding_of("0 is the oldest", T).is_none());
        board.configure(FromConfig { bans: Vec::new(), hidden_names: vec!["mine*".parse().unwrap()] });
        assert!(board.hiding_of("mine as well", T).is_some());
    }

    #[test]
    fn the_reason_is_that_of_the_ban_that_ends_last() {
        let board = Board::default();
        let ip = "192.0.2.9".parse().unwrap();
        board.add(statement("ban", "192.0.2.9", Some(T + 100), "short"), T).unwrap();
        board.add(statement("ban", "192.0.2.0/24", Some(T + 500), "long"), T).unwrap();
        let reason = |now_ms| board.ban_of(ip, T + now_ms).map(|ban| (ban.reason().to_string(), ban.ends_at_ms()));
        assert_eq!(reason(0), Some(("long".into(), Some(T + 500))));
        assert_eq!(reason(500), None);
        board.configure(FromConfig { bans: vec!["192.0.2.8/29".parse().unwrap()], hidden_names: Vec::new() });
        assert_eq!(reason(0), Some((String::new(), None)));
        board.add(statement("hide", "a*", None, "why not"), T).unwrap();
        assert_eq!(board.hiding_of("Axel", T).map(|it| it.reason().to_string()), Some("why not".into()));
        assert!(board.hiding_of("Bea", T).is_none());
        let changes = board.changes();
        assert!(board.merge([statement("hide", "a*", None, "why not")]).is_empty(), "known");
        assert!(!changes.has_changed().unwrap());
        assert_eq!(board.merge([statement("unlist", "192.0.2.9:1", None, "")]).len(), 1);
        assert!(changes.has_changed().unwrap());
        assert!(board.unlisting_of(address("192.0.2.9:1"), T).is_some());
    }
}
