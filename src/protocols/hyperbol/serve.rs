//! The master's rules for a Hyperbol connection: the master sends a greeting with a random key, the client returns the key
//! with a filter, the master sends all records and closes. A wrong key gets no list. The client has 5 seconds.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;

use super::NAME;
use super::wire::{Greeting, LIST_REQUEST_SIZE, ListRecord, ListRequest};
use crate::protocols::{Next, Output, Session, SessionInput, StreamRules};
use crate::registry::view::{Body, Renderer, View};

const PATIENCE_MS: u64 = 5_000;
/// The players in the greeting.
const PLAYERS_BYTES: usize = 4;

pub struct Rules {
    lists: Arc<Lists>,
}

/// The renderers, shared by all connections.
struct Lists {
    players: Arc<dyn Renderer>,
    official: Arc<dyn Renderer>,
    all: Arc<dyn Renderer>,
}

impl Rules {
    pub fn new() -> Rules {
        let list = |unofficial_too| Arc::new(Records { unofficial_too });
        Rules { lists: Arc::new(Lists { players: Arc::new(Players), official: list(false), all: list(true) }) }
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules::new()
    }
}

impl StreamRules for Rules {
    fn open(&self, _peer: SocketAddr, _local: SocketAddr, random: u32) -> Box<dyn Session> {
        Box::new(Conversation { lists: self.lists.clone(), key: random, request: Vec::new(), given: 0 })
    }

    fn patience_ms(&self) -> Option<u64> {
        Some(PATIENCE_MS)
    }
}

struct Conversation {
    lists: Arc<Lists>,
    key: u32,
    request: Vec<u8>,
    given: u64,
}

impl Session for Conversation {
    fn on(&mut self, input: SessionInput<'_>, out: &mut Vec<Output>) -> Next {
        match input {
            SessionInput::Opened => {
                // The last field, the number of players, is rendered like a list.
                let greeting = Greeting { key: self.key, players_total: 0 }.emit();
                let (before, _players) = greeting.split_last_chunk::<PLAYERS_BYTES>().unwrap_or((&[], &[0; 4]));
                out.push(Output::Bytes(Bytes::copy_from_slice(before)));
                out.push(Output::List(self.lists.players.clone()));
                Next::Read
            }
            SessionInput::Bytes(bytes) => {
                let missing = LIST_REQUEST_SIZE.saturating_sub(self.request.len());
                self.request.extend(bytes.iter().take(missing));
                match ListRequest::parse(&self.request) {
                    Ok(request) => {
                        self.list(request, out);
                        Next::Close
                    }
                    Err(_) => Next::Read, // not complete yet
                }
            }
            SessionInput::Ended | SessionInput::Verdict(_) => Next::Close,
        }
    }

    fn lists(&self) -> u64 {
        self.given
    }
}

impl Conversation {
    fn list(&mut self, request: ListRequest, out: &mut Vec<Output>) {
        if request.key == self.key {
            let list = if request.wants_unofficial() { &self.lists.all } else { &self.lists.official };
            out.push(Output::List(list.clone()));
            self.given += 1;
        }
    }
}

/// The total number of players, as the last four bytes of the greeting.
struct Players;

impl Renderer for Players {
    fn render(&self, view: &View) -> Body {
        let players = view.of_protocol(NAME).filter_map(|server| server.players_current).map(u32::from);
        players.fold(0, u32::saturating_add).to_le_bytes().to_vec().into()
    }

    fn version(&self, view: &View) -> u64 {
        view.facts_serial(NAME)
    }
}

struct Records {
    unofficial_too: bool,
}

impl Renderer for Records {
    /// Most recently proven first. IPv6 servers are left out: the format has no room for them.
    fn render(&self, view: &View) -> Body {
        let mut servers: Vec<_> =
            view.of_protocol(NAME).filter(|server| self.unofficial_too || server.overrides.flavor != 0).collect();
        servers.sort_by_key(|server| std::cmp::Reverse(server.proven_at_ms));
        let records =
            servers.into_iter().filter_map(|server| ListRecord::new(server.address, server.overrides.flavor).ok());
        records.flat_map(|record| record.emit()).collect::<Vec<u8>>().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Overrides, Proof, Server};
    use crate::protocols::hyperbol::wire::parse_list;

    fn view() -> View {
        let server = |address: &str, flavor: u8, players: u16, proven_at_ms: u64| {
            let facts = Facts { players_current: Some(players), ..Facts::default() };
            let game = Game::Own(NAME);
            let server = Server::new(address.parse().unwrap(), game, Proof::Query, proven_at_ms, &facts);
            Arc::new(Server { overrides: Overrides { flavor, ..Overrides::default() }, ..server })
        };
        View::new(
            1,
            0,
            vec![
                server("76.168.185.136:12133", 0, 30, 1),
                server("76.168.185.136:12129", 1, 7, 2),
                server("[2001:db8::1]:5", 7, 5, 3),
            ],
        )
    }

    fn talk(pieces: &[&[u8]]) -> (Vec<Vec<u8>>, Next) {
        let peer = "198.51.100.1:40000".parse().unwrap();
        let mut session = Rules::new().open(peer, peer, 0x1bad_b002);
        let (view, mut out) = (view(), Vec::new());
        let mut next = session.on(SessionInput::Opened, &mut out);
        for piece in pieces {
            if matches!(next, Next::Read) {
                next = session.on(SessionInput::Bytes(piece), &mut out);
            }
        }
        // The greeting and the players behind it are one message.
        let mut parts: Vec<_> = out.iter().map(|part| part.bytes(&view).to_vec()).collect();
        let players = parts.remove(1);
        parts[0].extend(players);
        (parts, next)
    }

    fn listed(filter: u8) -> Vec<(String, u8)> {
        let request = ListRequest { key: 0x1bad_b002, filter: [filter, 0, 0, 0] }.emit();
        let (out, next) = talk(&[&request]);
        assert!(matches!(next, Next::Close));
        let records = parse_list(&out[1]).unwrap().map(Result::unwrap);
        records.map(|record| (record.address().to_string(), record.flavor())).collect()
    }

    #[test]
    fn greets_in_one_piece_with_the_key_and_all_players() {
        let (out, next) = talk(&[]);
        assert_eq!(out, [b"HBSL\x02\xb0\xad\x1b\x2a\0\0\0".to_vec()]);
        assert!(matches!(next, Next::Read));
    }

    #[test]
    fn lists_by_the_filter_bit_and_nothing_else() {
        let official = ("76.168.185.136:12129".to_string(), 1);
        let unofficial = ("76.168.185.136:12133".to_string(), 0);
        assert_eq!(listed(0xff), [official.clone(), unofficial.clone()]);
        assert_eq!(listed(0x10), [official.clone(), unofficial]);
        assert_eq!(listed(0xef), std::slice::from_ref(&official));
        assert_eq!(listed(0), [official]);
    }

    #[test]
    fn a_client_has_five_seconds_and_its_list_is_counted() {
        let peer = "198.51.100.1:40000".parse().unwrap();
        assert_eq!(Rules::new().patience_ms(), Some(5_000));
        for (key, lists) in [(1, 0), (7, 1)] {
            let mut session = Rules::new().open(peer, peer, 7);
            assert_eq!(session.lists(), 0);
            session.on(SessionInput::Bytes(&ListRequest { key, filter: [0; 4] }.emit()), &mut Vec::new());
            assert_eq!(session.lists(), lists);
            assert_eq!(session.refused("busy"), None, "the protocol has no words for it");
        }
    }

    #[test]
    fn a_wrong_key_gets_no_list_and_bytes_may_come_one_by_one() {
        let wrong = ListRequest { key: 1, filter: [255, 0, 0, 0] }.emit();
        let (out, next) = talk(&[&wrong]);
        assert!(out.len() == 1 && matches!(next, Next::Close));
        let right = ListRequest { key: 0x1bad_b002, filter: [255, 0, 0, 0] }.emit();
        let single: Vec<&[u8]> = right.chunks(1).collect();
        let (whole, _) = talk(&[&right]);
        assert_eq!(talk(&single).0, whole);
        let (out, next) = talk(&single[..7]);
        assert!(out.len() == 1 && matches!(next, Next::Read));
        let long = [&right[..], &[0; 5000]].concat();
        assert_eq!(talk(&[&long]).0, whole);
    }
}
