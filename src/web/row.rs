//! A server as the pages show it.

use std::cmp::Reverse;

use serde::Serialize;
use url::form_urlencoded;

use super::json::rfc3339;
use super::plots::Small;
use crate::geo::{self, countries};
use crate::model::{GameRules, Origin, Player, Server};
use crate::protocols::{card, own_card};

/// The variables of a template, documented in `assets/index.html`.
#[derive(Default, Serialize)]
pub struct Row<'a> {
    game: &'a str,
    game_title: &'a str,
    name: &'a str,
    address: String,
    /// Its own page.
    page: String,
    link: Option<String>,
    command: Option<String>,
    command_windows: Option<String>,
    /// `empty`, `some` or `full`.
    level: &'static str,
    mode: &'a str,
    map: &'a str,
    version: &'a str,
    players_current: Option<u16>,
    players_max: Option<u16>,
    password: bool,
    official: bool,
    verified_by: &'static str,
    via: Option<&'a str>,
    unanswered_since: Option<String>,
    country: Option<&'static str>,
    country_name: Option<&'static str>,
    flag: String,
    proven_at: String,
    first_seen: String,
    last_seen: String,
    rtt: Option<String>,
    player_columns: Vec<&'static str>,
    player_rows: Vec<Vec<String>>,
    rules: &'a GameRules,
    day: String,
    week: String,
    week_plot: String,
    /// Links to the server in the API and to the doctor's page.
    api: String,
    doctor: String,
}

impl<'a> Row<'a> {
    pub fn new(server: &'a Server, small: Option<&Small>) -> Row<'a> {
        let game = server.game.name();
        let card = card(game);
        let address = server.address.to_string();
        let details = server.details.as_deref();
        let (player_columns, player_rows) = player_table(details.map(|d| d.players.as_slice()).unwrap_or_default());
        let place = format!("{}/{}", encoded(game), encoded(&address));
        let api = format!("/api/v1/servers/{place}");
        let country = geo::country(server.address.ip());
        let join = own_card(&server.game).map(|card| (card.join)(server)).unwrap_or_default();
        Row {
            game,
            game_title: card.map_or(game, |card| card.title),
            name: server.texts.name(),
            page: format!("/servers/{place}"),
            link: join.link,
            command_windows: join.command.as_deref().map(for_windows),
            command: join.command,
            level: level(server.players_current, server.players_max),
            mode: server.texts.mode(),
            map: server.texts.map(),
            version: server.texts.version(),
            players_current: server.players_current,
            players_max: server.players_max,
            password: server.password == Some(true),
            official: server.overrides.official,
            verified_by: server.verified_by.name(),
            via: server.via.as_deref().map(Origin::name),
            unanswered_since: server.is_unanswered().then(|| rfc3339(server.proven_at_ms)),
            country,
            country_name: country.and_then(countries::name),
            flag: country.map(countries::flag).unwrap_or_default(),
            proven_at: rfc3339(server.proven_at_ms),
            first_seen: rfc3339(server.first_seen_ms),
            last_seen: rfc3339(server.last_seen_ms.max(server.proven_at_ms)),
            rtt: server.rtt_us.map(|us| round_trip(us.get())),
            player_columns,
            player_rows,
            rules: server.rules(),
            day: small.map(|small| small.day.clone()).unwrap_or_default(),
            week: small.map(|small| small.week.clone()).unwrap_or_default(),
            week_plot: format!("{api}/history.svg?range=7d"),
            api,
            doctor: format!("/doctor?game={}&address={}", encoded(game), encoded(&address)),
            address,
        }
    }
}

/// How full a server is.
fn level(players: Option<u16>, size: Option<u16>) -> &'static str {
    match (players.unwrap_or(0), size) {
        (0, _) => "empty",
        (players, Some(size)) if players >= size => "full",
        _ => "some",
    }
}

/// A command line as Windows wants it: its programs end in `.exe`.
fn for_windows(command: &str) -> String {
    match command.split_once(' ') {
        Some((program, rest)) => format!("{program}.exe {rest}"),
        None => format!("{command}.exe"),
    }
}

/// Text as a part of a path or of a query. A query may also have a `+` for a space, a path may not.
pub fn encoded(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}

fn round_trip(us: u32) -> String {
    let ms = f64::from(us) / 1000.0;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}

/// A column of the players' table: its title, and a player's value.
type PlayerColumn = (&'static str, fn(&Player) -> Option<String>);

const PLAYER_COLUMNS: [PlayerColumn; 7] = [
    ("Player", |player| Some(player.name.to_string())),
    ("Team", |player| Some(if player.spectator == Some(true) { "spectator" } else { player.team.as_deref()? }.into())),
    ("Score", |player| Some(player.score?.to_string())),
    ("Points", |player| Some(player.points?.to_string())),
    ("Kills", |player| Some(player.kills?.to_string())),
    ("Deaths", |player| Some(player.deaths?.to_string())),
    ("Ping", |player| Some(player.ping?.to_string())),
];

/// The players, with the columns that at least one of them has a value for.
/// The best come first, spectators last.
fn player_table(players: &[Player]) -> (Vec<&'static str>, Vec<Vec<String>>) {
    let mut players: Vec<&Player> = players.iter().collect();
    let rank = |player: &Player| player.score.or(player.points).or(player.kills).map(i64::from);
    players.sort_by_key(|player| (player.spectator == Some(true), Reverse(rank(player))));
    let has = |column: &&PlayerColumn| players.iter().any(|player| (column.1)(player).is_some());
    let columns: Vec<&PlayerColumn> = PLAYER_COLUMNS.iter().filter(has).collect();
    let cells = |player: &Player| columns.iter().map(|column| (column.1)(player).unwrap_or_default()).collect();
    (columns.iter().map(|column| column.0).collect(), players.into_iter().map(cells).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn players_have_only_the_columns_that_their_game_tells() {
        let player = |name: &str, team, ping| Player { name: name.into(), team, ping, ..Player::default() };
        let two = [player("Ann", Some("red".into()), None), player("Bob", None, Some(50))];
        let (columns, rows) = player_table(&two);
        assert_eq!(columns, ["Player", "Team", "Ping"]);
        assert_eq!(rows, [["Ann", "red", ""], ["Bob", "", "50"]]);
        assert_eq!(player_table(&[]), (vec![], vec![]));
        let scored = |name: &str, score, spectator| Player {
            name: name.into(),
            score: Some(score),
            spectator: Some(spectator),
            ..Player::default()
        };
        let (_, rows) = player_table(&[scored("c", 1, false), scored("d", 99, true), scored("a", 7, false)]);
        assert_eq!(rows.iter().map(|row| row[0].as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);
    }

    #[test]
    fn bars_and_command_lines() {
        assert_eq!([level(None, Some(8)), level(Some(0), None), level(Some(3), Some(0))], ["empty", "empty", "full"]);
        assert_eq!([level(Some(7), Some(8)), level(Some(8), Some(8)), level(Some(8), None)], ["some", "full", "some"]);
        assert_eq!([for_windows("tanks --join x"), for_windows("tanks")], ["tanks.exe --join x", "tanks.exe"]);
    }
}
