//! What notices say, and in which words.

use std::fmt::Write;

use crate::model::{Address, Server};
use crate::protocols::card;

/// Upper bounds on the texts of a server in a notice, in characters.
const NAME_CHARS_MAX: usize = 100;
const OTHER_CHARS_MAX: usize = 50;

/// What an address can be told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A server is on the list that was not.
    Came,
    /// A server is no longer on the list.
    Went,
    /// A game that nobody played has players.
    Players,
    /// This node has no connection to the others.
    Alone,
    /// A lot is refused for lack of budget.
    Flood,
}

impl Event {
    pub const ALL: [Event; 5] = [Event::Came, Event::Went, Event::Players, Event::Alone, Event::Flood];

    pub fn name(self) -> &'static str {
        match self {
            Event::Came => "came",
            Event::Went => "went",
            Event::Players => "players",
            Event::Alone => "alone",
            Event::Flood => "flood",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Came(Row),
    Went(Row),
    /// A game has so many players again, the first of them on this server.
    Players(u64, Row),
    /// More servers or games than are named one by one, with how many there are of each game. The games may be incomplete.
    Many(Event, u64, Vec<(String, u64)>),
    Alone(Reason),
    NotAlone,
    Flood(Refusals),
    /// So many were refused while it lasted.
    FloodOver(u64),
    /// The operator tries whether notices arrive.
    Test,
}

/// Why a node is alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    Nats,
    Nodes,
}

impl Reason {
    pub fn name(self) -> &'static str {
        match self {
            Reason::Nats => "nats",
            Reason::Nodes => "nodes",
        }
    }
}

/// What is refused in a flood.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusals {
    pub per_second: u64,
    /// Refusals by budget, without those that refused nothing.
    pub budgets: Vec<(&'static str, u64)>,
    /// The networks that use most of their budgets.
    pub networks: Vec<String>,
}

/// A server at that time, with bounded texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub protocol: &'static str,
    pub game: Box<str>,
    pub address: Address,
    pub name: Box<str>,
    pub mode: Box<str>,
    pub map: Box<str>,
    pub players_current: Option<u16>,
    pub players_max: Option<u16>,
}

impl Row {
    pub fn new(server: &Server) -> Row {
        Row {
            protocol: server.game.protocol(),
            game: server.game.name().into(),
            address: server.address,
            name: cut(server.texts.name(), NAME_CHARS_MAX).into(),
            mode: cut(server.texts.mode(), OTHER_CHARS_MAX).into(),
            map: cut(server.texts.map(), OTHER_CHARS_MAX).into(),
            players_current: server.players_current,
            players_max: server.players_max,
        }
    }

    fn players(&self) -> Option<String> {
        match (self.players_current, self.players_max) {
            (Some(current), Some(most)) => Some(format!("{current} of {most} players")),
            (Some(current), None) => Some(players(current.into())),
            (None, _) => None,
        }
    }
}

/// The first so many characters.
pub fn cut(text: &str, chars_max: usize) -> &str {
    text.char_indices().nth(chars_max).map_or(text, |(end, _)| text.get(..end).unwrap_or(text))
}

/// The name that people know a game by.
fn title(game: &str) -> &str {
    card(game).map_or(game, |card| card.title)
}

fn players(count: u64) -> String {
    if count == 1 { "1 player".into() } else { format!("{count} players") }
}

/// How a form writes texts that came from servers, and addresses.
pub struct Marks {
    pub text: fn(&str) -> String,
    /// The same for what a sentence is about.
    pub subject: fn(&str) -> String,
    pub address: fn(&str) -> String,
}

impl Notice {
    pub fn event(&self) -> &'static str {
        match &self.what {
            What::Came(_) => Event::Came.name(),
            What::Went(_) => Event::Went.name(),
            What::Players(..) => Event::Players.name(),
            What::Many(event, ..) => event.name(),
            What::Alone(_) | What::NotAlone => Event::Alone.name(),
            What::Flood(_) | What::FloodOver(_) => Event::Flood.name(),
            What::Test => "test",
        }
    }

    /// One sentence for people.
    pub fn words(&self, marks: &Marks) -> String {
        match &self.what {
            What::Came(row) => {
                let map = Some(&row.map).filter(|map| !map.is_empty()).map(|map| format!("map {}", (marks.text)(map)));
                let facts: String = row.players().into_iter().chain(map).map(|fact| format!(", {fact}")).collect();
                format!("{} is on the list: {}{facts}", subject(row, marks), place(row, marks))
            }
            What::Went(row) => format!("{} has left the list: {}", subject(row, marks), place(row, marks)),
            What::Players(count, row) => {
                let (game, name) = ((marks.subject)(title(&row.game)), (marks.text)(shown_name(row)));
                let address = (marks.address)(&row.address.to_string());
                format!("{game} has players again: {} on {name} ({address})", players(*count))
            }
            What::Many(event, count, games) => {
                let what = match (event, count) {
                    (Event::Went, 1) => "more server has left the list",
                    (Event::Went, _) => "servers have left the list",
                    (Event::Players, 1) => "more game has players again",
                    (Event::Players, _) => "games have players again",
                    (_, 1) => "more server is new on the list",
                    _ => "servers are new on the list",
                };
                let games = games.iter().map(|(game, count)| format!("{} {count}", (marks.text)(title(game))));
                let games: Vec<String> = games.collect();
                format!("{} {what}: {}", (marks.subject)(&count.to_string()), games.join(", "))
            }
            What::Alone(Reason::Nats) => "This node is alone: it cannot reach NATS, and serves on by itself".into(),
            What::Alone(Reason::Nodes) => "This node is alone: it sees no other node".into(),
            What::NotAlone => "This node is no longer alone".into(),
            What::Flood(refusals) => flood(refusals, marks),
            What::FloodOver(refused) => format!("The flood is over: {refused} requests were refused"),
            What::Test => "This is a test: notices arrive here".into(),
        }
    }
}

fn flood(refusals: &Refusals, marks: &Marks) -> String {
    let mut text = format!("A flood: {} requests a second are refused", refusals.per_second);
    for (number, (budget, _)) in refusals.budgets.iter().enumerate() {
        let _ = write!(text, "{} {budget}", if number == 0 { "; budgets:" } else { "," });
    }
    if !refusals.networks.is_empty() {
        let networks: Vec<String> = refusals.networks.iter().map(|network| (marks.address)(network)).collect();
        let _ = write!(text, "; heaviest networks: {}", networks.join(", "));
    }
    text
}

/// Its name, if it has one.
fn shown_name(row: &Row) -> &str {
    if row.name.is_empty() { "a server" } else { &row.name }
}

fn subject(row: &Row, marks: &Marks) -> String {
    (marks.subject)(shown_name(row))
}

fn place(row: &Row, marks: &Marks) -> String {
    format!("{}, {}", (marks.text)(title(&row.game)), (marks.address)(&row.address.to_string()))
}
