//! The master's rules for a netPanzer connection.
//!
//! | request | answer |
//! |---|---|
//! | good heartbeat; any quit with a port, known or not | `\final\` |
//! | heartbeat without gamename (checked first), without port, with a bad port | `\error\…\final\` |
//! | heartbeat of a game that announces itself through its own protocol only | `\error\…\final\` |
//! | heartbeat or quit of gamename=master without or with a wrong password | `\error\…\final\` |
//! | list | `\ip\A.B.C.D\port\N` for each, then `\final\`; without gamename `\error\…\final\` |
//! | a list with a filter, when the client's network has asked for too much, or too many others wait | `\error\…\final\`, and the connection is closed |
//! | anything else | `\error\Unknown request\final\` |
//! | HTTP | the same, and the connection is closed |
//! | a bare `\final\`, or the end | nothing, and the connection is closed |
//!
//! After `list` and unknown requests the connection stays open; after `heartbeat` and `quit` it is closed. Requests may be
//! pipelined: they are answered in order, and further ones are read when the earlier answers are written. A first token
//! `gamename` is GameSpy's form: it is skipped, the list that follows has that form, and the connection is closed.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use subtle::ConstantTimeEq;

use super::list::{Form, List, Wanted};
use super::wire::{Request, RequestReader, TooMuch};
use crate::model::{Address, GAME_BYTES_MAX, HeartbeatKeys, MASTER};
use crate::protocols::network::Own;
use crate::protocols::{Heartbeat, Next, Output, Session, SessionInput, StreamRules, Verdict, card};
use crate::registry::recent::Recent;
use crate::text;

/// Error texts of the original, exactly as deployed programs expect them.
const NO_GAMENAME: &str = "no gamename specified";
const NO_PORT: &str = "no port specified";
pub(super) const NO_PASSWORD: &str = "passwort missing for master update";
pub(super) const WRONG_PASSWORD: &str = "wrong password for master update";
const NO_LIST_GAMENAME: &str = "missing gamename in list query";
const NO_QUIT_PORT: &str = "missing port in quit message";
const UNKNOWN: &str = "Unknown request";
/// Our own, for errors to which the original does not answer.
const BAD_PORT: &str = "port must be a number from 1 to 65535";
pub(super) const NO_NETWORK: &str = "this master is in no master network";
const OWN_ADDRESS: &str = "this is the address of this master itself";
const BAD_GAMENAME: &str = "gamename must be plain text of at most 64 bytes";

/// Answers to pipelined requests are gathered up to this many parts, which leave with one system call; further requests wait
/// until these are written.
const GATHERED_PARTS: usize = 32;

/// The operator's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether a server has to answer its game's query before it is listed.
    pub verify: bool,
    /// The password of the network of masters; empty: there is none.
    pub password: String,
    /// This master's address as others see it, if they connect to a different one.
    pub public: Option<Address>,
}

pub struct Rules {
    shared: Arc<Shared>,
}

struct Shared {
    settings: Settings,
    own: Own,
    /// Recent requests. Unfiltered lists of games with a card are kept apart from all others, whose number is unlimited.
    common: Recent<Wanted>,
    rare: Recent<Wanted>,
}

impl Rules {
    pub fn new(settings: Settings, own: Own) -> Rules {
        let (common, rare) = (Recent::default(), Recent::default());
        Rules { shared: Arc::new(Shared { settings, own, common, rare }) }
    }
}

impl StreamRules for Rules {
    fn open(&self, peer: SocketAddr, local: SocketAddr, _random: u32) -> Box<dyn Session> {
        Box::new(Conversation {
            shared: self.shared.clone(),
            peer,
            local,
            reader: RequestReader::default(),
            form: Form::Plain,
            lists: 0,
            lists_rare: 0,
        })
    }
}

struct Conversation {
    shared: Arc<Shared>,
    peer: SocketAddr,
    local: SocketAddr,
    reader: RequestReader,
    form: Form,
    lists: u64,
    lists_rare: u64,
}

impl Session for Conversation {
    fn on(&mut self, input: SessionInput<'_>, out: &mut Vec<Output>) -> Next {
        match input {
            SessionInput::Opened => Next::Read,
            SessionInput::Bytes(bytes) => self.read(bytes, out),
            SessionInput::Ended => match self.reader.end().map(|request| self.answer(request, out)) {
                None | Some(Next::Read) => Next::Close,
                Some(next) => next,
            },
            SessionInput::Verdict(verdict) => {
                match verdict {
                    Verdict::Listed => out.push(Output::text(br"\final\")),
                    Verdict::Refused(reason) | Verdict::TryLater { reason, .. } => error(&reason, out),
                }
                Next::Close
            }
        }
    }

    fn refused(&self, reason: &str) -> Option<Bytes> {
        Some(error_text(reason))
    }

    fn lists(&self) -> u64 {
        self.lists
    }
}

impl Conversation {
    /// Answers requests in order until the input is used up, a request ends the session, or there is enough to write first. A
    /// rare list is always enough: it may be long, and few clients share it.
    fn read(&mut self, bytes: &[u8], out: &mut Vec<Output>) -> Next {
        let (mut taken, parts_before, rare_before) = (0, out.len(), self.lists_rare);
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            if out.len() >= parts_before + GATHERED_PARTS || self.lists_rare > rare_before {
                return Next::Write { taken };
            }
            let (took, request) = self.reader.read(rest);
            taken += took;
            let Some(request) = request else { continue };
            match self.answer(request, out) {
                Next::Read => {}
                next => return next,
            }
        }
        Next::Read
    }

    fn answer(&mut self, request: Result<Request, TooMuch>, out: &mut Vec<Output>) -> Next {
        let request = match request {
            Ok(request) => request,
            Err(too_much) => return refuse(&too_much.to_string(), out),
        };
        match request.kind.as_slice() {
            b"" => Next::Close,
            b"gamename" => {
                self.form = Form::GameSpy;
                Next::Read
            }
            b"list" => self.list(&request, out),
            b"heartbeat" => self.heartbeat(&request, out),
            b"quit" => self.quit(&request, out),
            kind if is_http(kind) => refuse(UNKNOWN, out),
            _ => {
                error(UNKNOWN, out);
                Next::Read
            }
        }
    }

    fn list(&mut self, request: &Request, out: &mut Vec<Output>) -> Next {
        let Some(game) = request.get(b"gamename") else {
            error(NO_LIST_GAMENAME, out);
            return Next::Read;
        };
        let name = text::clean(game);
        let is_common = request.pairs.len() == 1 && card(&name).is_some();
        let wanted = Wanted {
            game: name.into_owned(),
            form: self.form,
            filter: request.pairs.clone(),
            own: if game == MASTER.as_bytes() { self.own_address() } else { None },
        };
        let shared = &self.shared;
        let lists = if is_common { &shared.common } else { &shared.rare };
        out.push(Output::List(
            lists.get(wanted, |wanted| Arc::new(List { wanted, own: shared.own.clone(), is_common })),
        ));
        out.push(Output::text(br"\final\"));
        self.lists += 1;
        self.lists_rare += u64::from(!is_common);
        if self.form == Form::GameSpy { Next::Close } else { Next::Read }
    }

    /// This master's address for this client.
    fn own_address(&self) -> Option<Address> {
        self.shared.settings.public.or_else(|| Address::new(self.local.ip(), self.local.port()))
    }

    fn heartbeat(&self, request: &Request, out: &mut Vec<Output>) -> Next {
        let Some(name) = request.get(b"gamename") else { return refuse(NO_GAMENAME, out) };
        let Some(port) = request.get(b"port") else { return refuse(NO_PORT, out) };
        let name = match str::from_utf8(name) {
            Ok(name) if name.len() <= GAME_BYTES_MAX && text::clean(name.as_bytes()) == name => name,
            _ => return refuse(BAD_GAMENAME, out),
        };
        if name == MASTER
            && let Err(reason) = self.check_password(request)
        {
            return refuse(reason, out);
        }
        let Some(address) = self.address(port) else { return refuse(BAD_PORT, out) };
        if name == MASTER && (self.shared.own.contains(address) || Some(address) == self.own_address()) {
            return refuse(OWN_ADDRESS, out);
        }
        match Heartbeat::new(address, None, name, kept(request)) {
            Ok(heartbeat) => {
                let verify = heartbeat.verify && self.shared.settings.verify;
                Next::Announce(Heartbeat { verify, ..heartbeat })
            }
            Err(reason) => refuse(&reason, out),
        }
    }

    fn quit(&self, request: &Request, out: &mut Vec<Output>) -> Next {
        let Some(port) = request.get(b"port") else { return refuse(NO_QUIT_PORT, out) };
        let master = request.get(b"gamename") == Some(MASTER.as_bytes());
        if master && let Err(reason) = self.check_password(request) {
            return refuse(reason, out);
        }
        let Some(address) = self.address(port) else { return refuse(BAD_PORT, out) };
        out.push(Output::text(br"\final\"));
        Next::Quit { address, master }
    }

    fn check_password(&self, request: &Request) -> Result<(), &'static str> {
        let expected = self.shared.settings.password.as_bytes();
        let given = request.get(b"password").ok_or(NO_PASSWORD)?;
        if expected.is_empty() {
            return Err(NO_NETWORK);
        }
        if bool::from(given.ct_eq(expected)) { Ok(()) } else { Err(WRONG_PASSWORD) }
    }

    /// The connection's own address, and a port written in digits.
    fn address(&self, port: &[u8]) -> Option<Address> {
        let digits = str::from_utf8(port).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
        Address::new(self.peer.ip(), digits.parse().ok()?)
    }
}

/// The keys as sent, without the password.
fn kept(request: &Request) -> HeartbeatKeys {
    let pairs = request.pairs.iter().filter(|(key, _)| key != b"password");
    HeartbeatKeys(pairs.map(|(key, value)| (key, value)).collect())
}

/// Whether a message begins like an HTTP request, such as `GET /`. Any web page can make a browser send one to this port, with a
/// heartbeat in the path or the body; that is not an announcement by the browser's user.
fn is_http(kind: &[u8]) -> bool {
    let method = kind.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    method > 0 && kind.get(method..).is_some_and(|rest| rest.starts_with(b" "))
}

fn refuse(reason: &str, out: &mut Vec<Output>) -> Next {
    error(reason, out);
    Next::Close
}

fn error(reason: &str, out: &mut Vec<Output>) {
    out.push(Output::Bytes(error_text(reason)));
}

fn error_text(reason: &str) -> Bytes {
    // A separator in the text would end it early.
    format!(r"\error\{}\final\", reason.replace('\\', "/")).into()
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { verify: true, password: String::new(), public: None }
    }
}

#[cfg(test)]
mod tests;
