//! netPanzer's lists of servers: of any game, filtered by any key, most recently proven first, so that the game's browser
//! meets the living before any that may have died since.

use std::cmp::Reverse;
use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;

use super::wire;
use crate::model::{MASTER, Server};
use crate::registry::view::{Renderer, View};

/// How the servers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `\ip\A.B.C.D\port\N`, for the game.
    Plain,
    /// `\ip\A.B.C.D:N` behind a prelude, for qstat and old browsers.
    GameSpy,
}

/// The prelude that qstat looks for: `\basic\\secure\` and six characters, which nobody checks.
const PRELUDE: &[u8] = br"\basic\\secure\RALLYP";

/// All servers of one game, without the `\final\`.
pub struct GameList {
    pub game: &'static str,
    pub form: Form,
}

impl Renderer for GameList {
    fn render(&self, view: &View) -> Vec<u8> {
        servers(view, self.game, self.form, |_| true)
    }
}

/// The servers of a game that are wanted, without the `\final\`.
pub fn servers(view: &View, game: &str, form: Form, wanted: impl Fn(&Server) -> bool) -> Vec<u8> {
    // A game of another protocol may be called as masters are.
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
pub fn emit(ip: Ipv4Addr, port: u16, form: Form, out: &mut Vec<u8>) {
    match form {
        Form::Plain => wire::emit_server(ip, port, out),
        Form::GameSpy => drop(write!(out, r"\ip\{ip}:{port}")),
    }
}

/// Whether a server has all of these keys and values. A key that it did not send is no match. A server that came through
/// another protocol has only its game and its port.
pub fn matches(server: &Server, filter: &[(&[u8], &[u8])]) -> bool {
    filter.iter().all(|(key, wanted)| match (&server.keys, *key) {
        (Some(keys), key) => keys.get(key) == Some(*wanted),
        (None, b"gamename") => server.game.name().as_bytes() == *wanted,
        (None, b"port") => server.address.port().to_string().as_bytes() == *wanted,
        (None, _) => false,
    })
}
