//! How a player's program fetches a master's list, and what it finds there.

use std::fmt;

use super::{Fault, fault};
use crate::model::{Address, Facts};

/// How a player's program fetches a master's list.
pub enum Fetch {
    /// A page of a web server, usually under this path.
    Http { path: &'static str, read: fn(&[u8]) -> Result<List, Fault> },
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

/// What a master listed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct List {
    pub servers: Vec<ListEntry>,
    /// Servers that the master lists by a name instead of an address, with their ports and what it says of them.
    pub named: Vec<(Box<str>, u16, Facts<'static>)>,
    /// What is wrong with single entries, for the first [`FAULTS_MAX`]; the others are none the worse for it.
    pub faults: Vec<Fault>,
    /// How many entries are wrong.
    pub left_out: usize,
}

/// A list may be nothing but nonsense, and long.
pub const FAULTS_MAX: usize = 100;

impl List {
    /// A list of entries, each of which may be wrong by itself.
    pub fn of<E: fmt::Display>(entries: impl Iterator<Item = Result<ListEntry, E>>) -> List {
        let mut list = List::default();
        entries.for_each(|entry| list.add(entry));
        list
    }

    /// One more entry.
    pub fn add(&mut self, entry: Result<ListEntry, impl fmt::Display>) {
        match entry {
            Ok(listed) => self.servers.push(listed),
            Err(error) => {
                self.left_out += 1;
                if self.faults.len() < FAULTS_MAX {
                    self.faults.push(fault(error));
                }
            }
        }
    }
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

    #[test]
    fn all_bad_entries_are_counted_and_the_first_are_explained() {
        let bad = |number: usize| Err::<ListEntry, _>(format!("bad {number}"));
        let list = List::of((0..FAULTS_MAX + 5).map(bad));
        assert_eq!((list.servers.len(), list.left_out, list.faults.len()), (0, FAULTS_MAX + 5, FAULTS_MAX));
        assert_eq!(&*list.faults[0], "bad 0");
    }
}
