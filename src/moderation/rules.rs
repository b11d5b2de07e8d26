//! What follows from the configuration and all statements at a moment: for the guard and the registry.

use std::collections::HashSet;

use ipnet::IpNet;

use super::Subject;
use super::pattern::{Matcher, Name, Pattern};
use crate::model::Address;
use crate::prefix::Networks;

/// Why a server is kept off the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withheld {
    Banned,
    Unlisted,
    Hidden,
}

#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub bans: Networks,
    /// What `bans` was made of; sorted.
    networks: Vec<IpNet>,
    unlisted: HashSet<Address>,
    hidden: Vec<(Pattern, Matcher)>,
}

impl Rules {
    pub fn new(subjects: impl IntoIterator<Item = Subject>) -> Rules {
        let mut rules = Rules::default();
        for subject in subjects {
            match subject {
                Subject::Network(net) => rules.networks.push(net),
                Subject::Server(address) => drop(rules.unlisted.insert(address)),
                Subject::Name(pattern) => {
                    let matcher = pattern.matcher();
                    rules.hidden.push((pattern, matcher));
                }
            }
        }
        rules.networks.sort_unstable();
        rules.bans = Networks::new(&rules.networks);
        rules
    }

    /// What these rules forbid and the earlier ones did not: only this has to be compared with every listed server. None if
    /// there is nothing.
    pub fn since(&self, before: &Rules) -> Option<Rules> {
        let networks = self.networks.iter().filter(|net| before.networks.binary_search(net).is_err());
        let servers = self.unlisted.difference(&before.unlisted);
        let is_new = |pattern: &&Pattern| !before.hidden.iter().any(|(known, _)| known == *pattern);
        let names = self.hidden.iter().map(|(pattern, _)| pattern).filter(is_new);
        let subjects =
            networks.map(|net| Subject::Network(*net)).chain(servers.map(|address| Subject::Server(*address)));
        let new = Rules::new(subjects.chain(names.cloned().map(Subject::Name)));
        (!new.is_empty()).then_some(new)
    }

    /// Whether nothing is kept off the list.
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.unlisted.is_empty() && self.hidden.is_empty()
    }

    /// Whether a server is kept off the list. A server that the configuration names can be banned and unlisted, but its name
    /// hides it from nobody.
    pub fn withholds(&self, address: Address, name: &str, is_named: bool) -> Option<Withheld> {
        if self.bans.contains(address.ip()) {
            return Some(Withheld::Banned);
        }
        if !self.unlisted.is_empty() && self.unlisted.contains(&address) {
            return Some(Withheld::Unlisted);
        }
        if is_named || self.hidden.is_empty() {
            return None;
        }
        let name = Name::new(name);
        self.hidden.iter().any(|(_, pattern)| pattern.matches(&name)).then_some(Withheld::Hidden)
    }
}
