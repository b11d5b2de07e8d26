//! netPanzer's lists of servers: of any game, filtered by any key, most recently proven first, so that the game's browser
//! shows servers that are certainly alive before those that may be gone.

use std::cmp::Reverse;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::wire;
use crate::model::{Address, MASTER, Server};
use crate::protocols::network::Own;
use crate::registry::view::{Body, Renderer, View};

/// The format of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `\ip\A.B.C.D\port\N`, for the game.
    Plain,
    /// `\ip\A.B.C.D:N` behind a prelude, for qstat and old browsers.
    GameSpy,
}

/// The prelude that qstat expects: `\basic\\secure\` and six characters, which it does not check.
const PRELUDE: &[u8] = br"\basic\\secure\RALLYP";

/// A request for a list, with filters in the client's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub game: String,
    pub form: Form,
    /// Keys and values that a server's heartbeat must have.
    pub filter: Vec<(Vec<u8>, Vec<u8>)>,
    /// The answering master's address for this client, in a list of masters. The list ends with it.
    pub own: Option<Address>,
}

/// A list, without the `\final\`.
pub struct List {
    pub wanted: Wanted,
    /// All addresses of the answering master, so that a list that ends with it has it only once.
    pub own: Own,
    /// Whether it is the whole list of a game with a card.
    pub is_common: bool,
}

impl Renderer for List {
    fn render(&self, view: &View) -> Body {
        let Wanted { game, form, filter, own } = &self.wanted;
        let is_own = |address| own.is_some_and(|own| address == own || self.own.contains(address));
        let is_wanted = |server: &Server| matches(server, filter) && !is_own(server.address);
        let mut list = servers(view, game, *form, is_wanted);
        if let Some((ip, port)) = own.and_then(|own| Some((own.ipv4()?, own.port()))) {
            emit(ip, port, *form, &mut list);
        }
        list.into()
    }

    fn is_common(&self) -> bool {
        self.is_common
    }
}

/// The wanted servers of a game, without the `\final\`.
fn servers(view: &View, game: &str, form: Form, wanted: impl Fn(&Server) -> bool) -> Vec<u8> {
    // A game of another protocol may have the name of masters.
    let is_it = |server: &Server| server.game.is_master() == (game == MASTER);
    let mut found: Vec<&Arc<Server>> = view.of_game(game).filter(|server| is_it(server) && wanted(server)).collect();
    found.sort_by_key(|server| Reverse(server.proven_at_ms));
    let mut out = if form == Form::GameSpy { PRELUDE.to_vec() } else { Vec::new() };
    for server in found {
        // The protocol knows IPv4 only.
        let Some(ip) = server.address.ipv4() else { continue };
        emit(ip, server.address.port(), form, &mut out);
    }
    out
}

/// One server of a list.
fn emit(ip: Ipv4Addr, port: u16, form: Form, out: &mut Vec<u8>) {
    match form {
        Form::Plain => wire::emit_server(ip, port, out),
        Form::GameSpy => drop(write!(out, r"\ip\{ip}:{port}")),
    }
}

/// Whether a server has all of these keys and values. A missing key is no match. A server that was announced through another
/// protocol has only its game and its port.
fn matches(server: &Server, filter: &[(Vec<u8>, Vec<u8>)]) -> bool {
    filter.iter().all(|(key, wanted)| match (&server.keys, key.as_slice()) {
        // A server of a family may have been announced before it said which game it is.
        (_, b"gamename") => server.game.name().as_bytes() == wanted.as_slice(),
        (Some(keys), key) => keys.get(key) == Some(wanted.as_slice()),
        (None, b"port") => server.address.port().to_string().as_bytes() == wanted.as_slice(),
        (None, _) => false,
    })
}
