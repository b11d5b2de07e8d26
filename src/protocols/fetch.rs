//! How a player's program fetches a master's list, and what it finds there.

use std::fmt;

use super::{Fault, fault};
use crate::model::{Address, Facts};

/// How a player's program fetches a master's list.
pub enum Fetch {
    /// A page of a web server, usually under this path, and how its reader takes so much of it.
    Http { path: &'static str, read: fn(&[u8], Take) -> Result<List, Fault> },
    /// A conversation over TCP.
    Stream(&'static dyn StreamFetch),
    /// Requests and lists in datagrams.
    Datagrams(&'static dyn DatagramFetch),
}

/// A conversation with a master: one request, one list. Everything heard so far comes in each time.
pub trait StreamFetch: Sync {
    /// The request, once enough was heard to make it.
    fn request(&self, heard: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// Whether the list is whole although the master leaves the connection open.
    fn is_whole(&self, heard: &[u8]) -> bool;

    /// Reads the list: all that was heard until it was whole or the connection closed.
    fn read(&self, heard: &[u8]) -> Result<List, Fault>;
}

/// A master that is asked by datagrams and answers each request with a list in packets, which may get lost and come in
/// any order.
pub trait DatagramFetch: Sync {
    /// What may stand behind the host of a master's address, for help texts: `[/GAME]`.
    fn path_help(&self) -> &'static str;

    /// The requests for a master's address, from the path without its slash, the query without its question mark, and the
    /// games that were asked for besides. An error says what is wrong with these.
    fn requests(&self, path: &str, query: &str, games: &[String]) -> Result<Vec<Request>, String>;

    /// Reads a packet; None when it is not one of a list.
    fn read(&self, bytes: &[u8]) -> Option<Packet>;
}

/// A request for a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub bytes: Vec<u8>,
    /// Which game the servers in its list are of; None: the protocol's own.
    pub game: Option<String>,
}

/// A part of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Packet {
    pub servers: Vec<Address>,
    /// Whether the packet says that it is the last one.
    pub end: bool,
}

/// How much of a list is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    pub servers_max: usize,
    /// Without what the master says of its servers.
    pub addresses_only: bool,
}

impl Take {
    pub const ALL: Take = Take { servers_max: usize::MAX, addresses_only: false };
}

impl Default for Take {
    fn default() -> Take {
        Take::ALL
    }
}

/// What a master listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    /// What is added beyond this is dropped.
    take: Take,
    pub servers: Vec<ListEntry>,
    /// Servers that the master lists by a name instead of an address.
    pub named: Vec<ListedName>,
    /// What is wrong with single entries, for the first [`FAULTS_MAX`]; the others are none the worse for it.
    pub faults: Vec<Fault>,
    /// How many entries are wrong.
    pub left_out: usize,
}

/// A list may be nothing but nonsense, and long.
pub const FAULTS_MAX: usize = 100;

impl List {
    /// An empty list, for so much.
    pub fn new(take: Take) -> List {
        List { take, ..List::default() }
    }

    /// A list of entries, each of which may be wrong by itself.
    pub fn of<E: fmt::Display>(entries: impl Iterator<Item = Result<ListEntry, E>>) -> List {
        List::default().with(entries)
    }

    /// The list with these entries, as far as there is room.
    pub fn with<E: fmt::Display>(mut self, mut entries: impl Iterator<Item = Result<ListEntry, E>>) -> List {
        while !self.is_full()
            && let Some(entry) = entries.next()
        {
            self.add(entry);
        }
        self
    }

    /// Nothing more is taken: the rest need not be read.
    pub fn is_full(&self) -> bool {
        self.servers.len() + self.named.len() >= self.take.servers_max
    }

    /// A server that the master lists by a name.
    pub fn add_named(&mut self, host: Box<str>, port: u16, facts: Facts<'static>) {
        if !self.is_full() {
            self.named.push(ListedName { host, port, facts: self.wanted(facts) });
        }
    }

    fn wanted(&self, facts: Facts<'static>) -> Facts<'static> {
        if self.take.addresses_only { Facts::default() } else { facts.bounded() }
    }

    /// One more entry.
    pub fn add(&mut self, entry: Result<ListEntry, impl fmt::Display>) {
        match entry {
            Ok(_) if self.is_full() => {}
            Ok(listed) => self.servers.push(ListEntry { facts: self.wanted(listed.facts), ..listed }),
            Err(error) => {
                self.left_out += 1;
                if self.faults.len() < FAULTS_MAX {
                    self.faults.push(fault(error));
                }
            }
        }
    }
}

/// A server that a master lists by a name instead of an address.
#[derive(Debug, PartialEq, Eq)]
pub struct ListedName {
    pub host: Box<str>,
    pub port: u16,
    pub facts: Facts<'static>,
}

/// A server in a master's list, with what the master says of it.
#[derive(Debug, PartialEq, Eq)]
pub struct ListEntry {
    pub address: Address,
    pub official: Option<bool>,
    pub flavor: Option<u8>,
    pub facts: Facts<'static>,
}

impl ListEntry {
    /// A server of which the master says only where it is.
    pub fn at(address: Address) -> ListEntry {
        ListEntry { address, official: None, flavor: None, facts: Facts::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Texts;

    #[test]
    fn all_bad_entries_are_counted_and_the_first_are_explained() {
        let bad = |number: usize| Err::<ListEntry, _>(format!("bad {number}"));
        let list = List::of((0..FAULTS_MAX + 5).map(bad));
        assert_eq!((list.servers.len(), list.left_out, list.faults.len()), (0, FAULTS_MAX + 5, FAULTS_MAX));
        assert_eq!(&*list.faults[0], "bad 0");
    }

    #[test]
    fn texts_have_a_bound() {
        let long = || "x".repeat(5_000).into();
        let facts = || Facts { name: long(), mode: long(), map: long(), ..Facts::default() };
        let mut list = List::default();
        list.add(Ok::<_, Fault>(ListEntry { facts: facts(), ..ListEntry::at("203.0.113.5:1".parse().unwrap()) }));
        list.add_named("a.example".into(), 1, facts());
        for facts in [&list.servers[0].facts, &list.named[0].facts] {
            assert_eq!([&facts.name, &facts.mode, &facts.map].map(|text| text.len()), [Texts::BYTES_MAX; 3]);
        }
    }
}
