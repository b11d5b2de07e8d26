//! Reads infoResponse and statusResponse: the checks that a master makes, and the facts that are shown.
//!
//! Names are shown without colour codes; the rules keep them as the server wrote them. `clients` counts bots,
//! `players_current` does not.

use std::borrow::Cow;
use std::sync::Arc;

use super::wire::{GAME_BYTES_MAX, InfoIndex, PlayerLine, StatusResponse, integer, without_colours};
use crate::model::{Details, Facts, GameRules, Player, Server, VersionText};
use crate::protocols::join::Join;
use crate::text;

/// dpmaster keeps a game type of at most this length.
pub const GAME_TYPE_BYTES_MAX: usize = 31;
/// The game type of a server that names none.
const GAME_TYPE: &[u8] = b"0";

/// The values of an infoResponse that lists are filtered by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listing<'a> {
    /// None if the server did not send one; old servers do not.
    pub game: Option<&'a [u8]>,
    pub protocol: i32,
    pub game_type: &'a [u8],
}

/// Why a server cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlistable {
    Protocol,
    MaxClients,
    Clients,
    GameName,
    GameType,
}

impl<'a> Listing<'a> {
    /// dpmaster's checks of an infoResponse, in the same order, except for the challenge.
    pub fn of(info: &InfoIndex<'a>) -> Result<Listing<'a>, Unlistable> {
        let protocol = info.get(b"protocol").and_then(integer).ok_or(Unlistable::Protocol)?;
        info.count(b"sv_maxclients").filter(|most| *most > 0).ok_or(Unlistable::MaxClients)?;
        info.count(b"clients").ok_or(Unlistable::Clients)?;
        let is_word = |word: &&[u8]| !word.iter().any(u8::is_ascii_whitespace);
        let said = |key: &[u8]| info.get(key).filter(|value| !value.is_empty());
        let game = said(b"gamename");
        if game.is_some_and(|game| game.len() > GAME_BYTES_MAX || !is_word(&game)) {
            return Err(Unlistable::GameName);
        }
        let game_type = said(b"gametype").unwrap_or(GAME_TYPE);
        if game_type.len() > GAME_TYPE_BYTES_MAX || !is_word(&game_type) {
            return Err(Unlistable::GameType);
        }
        Ok(Listing { game, protocol, game_type })
    }
}

/// The facts of an infoResponse.
pub fn facts<'a>(info: &InfoIndex<'a>, with_details: bool) -> Facts<'a> {
    let game = text::clean(info.get(b"gamename").unwrap_or_default());
    let clients = info.count(b"clients").unwrap_or(0);
    Facts { game, ..facts_with(info, clients, None, with_details.then(Vec::new)) }
}

/// The facts of a statusResponse. Its `gamename` is a folder of the game's files, never the game.
pub fn status_facts<'a>(info: &InfoIndex<'a>, status: &StatusResponse<'a>, with_details: bool) -> Facts<'a> {
    let clients = info.count(b"clients");
    // Without details, lines of players are of use only where nothing else says how many are people.
    if let Some(clients) = clients.filter(|_| !with_details && people(info, 0).is_some()) {
        return facts_with(info, clients, None, None);
    }
    let mut players = with_details.then(Vec::new);
    let (mut lines, mut humans) = (0, 0);
    for line in status.players().take(Details::PLAYERS_MAX) {
        lines += 1;
        humans += u16::from(line.ping != Some(0)); // engines give bots no ping
        if let Some(players) = &mut players {
            players.push(player(&line));
        }
    }
    facts_with(info, clients.unwrap_or(lines), Some(humans), players)
}

/// How many of so many clients are people, if the server says so.
fn people(info: &InfoIndex<'_>, clients: u16) -> Option<u16> {
    info.count(b"g_humanplayers").or_else(|| info.count(b"bots").map(|bots| clients.saturating_sub(bots)))
}

/// With details if there are players.
fn facts_with<'a>(info: &InfoIndex<'a>, clients: u16, humans: Option<u16>, players: Option<Vec<Player>>) -> Facts<'a> {
    let get = |keys: &[&str]| text::clean(keys.iter().find_map(|key| info.get(key.as_bytes())).unwrap_or_default());
    // DarkPlaces games put their mode and version in front of this: "dm:0.8.6:P105:…".
    let mut state = info.get(b"qcstatus").unwrap_or_default().split(|&byte| byte == b':');
    let (state_mode, state_version) = (state.next().unwrap_or_default(), state.next().unwrap_or_default());
    let mode = get(&["gametype", "g_gametype"]);
    let version = info.get(b"version").or(Some(state_version).filter(|version| !version.is_empty()));
    let details = players.map(|players| {
        let mut rules = GameRules::with_room(info.size() + "clients00000".len());
        rules.push("clients", itoa::Buffer::new().format(clients));
        for (key, value) in info.pairs().filter(|(key, _)| !TOLD.contains(key)) {
            rules.push(&text::clean(key), &text::clean(value));
        }
        Arc::new(Details { players, rules }.bounded())
    });
    Facts {
        name: without_colours(get(&["hostname", "sv_hostname"])),
        mode: if mode.is_empty() { text::clean(state_mode) } else { mode },
        map: without_colours(get(&["mapname"])),
        version: version.map_or_else(VersionText::new, text::version),
        players_current: Some(people(info, clients).or(humans).unwrap_or(clients)),
        players_max: info.count(b"sv_maxclients"),
        password: info.get(b"g_needpass").map(|value| value != b"0"),
        details,
        ..Facts::default()
    }
}

/// Keys that the facts contain already, and the challenge, which is ours.
const TOLD: [&[u8]; 6] = [b"challenge", b"clients", b"mapname", b"g_humanplayers", b"sv_maxclients", b"g_needpass"];

fn player(line: &PlayerLine<'_>) -> Player {
    Player {
        name: without_colours(text::clean(line.name)).into(),
        team: line.team.map(|team| Cow::Owned(text::clean(team).into_owned())),
        ping: line.ping,
        score: line.score,
        ..Player::default()
    }
}

/// How players join. The other games of the family have programs and links of their own.
pub fn join(server: &Server) -> Join {
    match server.game.name() {
        "Quake3Arena" => Join::by(Some("quake3://connect/{}"), Some("ioquake3 +connect {}"), server.address),
        "Xonotic" => Join::by(None, Some("xonotic-sdl +connect {}"), server.address),
        _ => Join::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;
    use crate::protocols::quake3::wire::{FromGame, InfoString};

    const OPENARENA: &str = r"\voip\opus\g_needpass\0\pure\1\gametype\0\sv_maxclients\8\g_humanplayers\2\clients\5\mapname\oa_dm1\hostname\Loopback ^1OA\protocol\71\gamename\Quake3Arena\challenge\A_ch4Lleng3";
    const DARKPLACES: &str = r"\gamename\DarkPlaces-Quake\modname\id1\gameversion\0\sv_maxclients\8\clients\3\bots\1\mapname\start\hostname\Loopback DP\protocol\3\challenge\A_ch4Lleng3";

    fn info(text: &str) -> InfoIndex<'_> {
        InfoString::new(text.as_bytes()).index()
    }

    #[test]
    fn what_real_servers_say() {
        let openarena = facts(&info(OPENARENA), true);
        assert_eq!(openarena.game, "Quake3Arena");
        assert_eq!((&*openarena.name, &*openarena.map, &*openarena.mode), ("Loopback OA", "oa_dm1", "0"));
        assert_eq!((openarena.players_current, openarena.players_max), (Some(2), Some(8)), "people, not bots");
        assert_eq!((openarena.rule("clients"), openarena.rule("hostname")), (Some("5"), Some("Loopback ^1OA")));
        assert_eq!((openarena.password, openarena.rule("challenge")), (Some(false), None));
        let darkplaces = facts(&info(DARKPLACES), true);
        assert_eq!((&*darkplaces.name, &*darkplaces.map, &*darkplaces.mode), ("Loopback DP", "start", ""));
        assert_eq!((darkplaces.players_current, darkplaces.password), (Some(2), None));
    }

    #[test]
    fn what_a_real_status_says() {
        let bytes = hex(
            "ffffffff737461747573526573706f6e73650a5c6368616c6c656e67655c58797a5c636f6d5f70726f746f636f6c5c37315c73765f686f73746e616d655c4c6f6f706261636b205e314f415c73765f6d6178636c69656e74735c385c76657273696f6e5c696f713320312e33365c675f67616d65747970655c345c6d61706e616d655c6f615f646d315c67616d656e616d655c626173656f610a30203020225361726765220a37202d313020225e31526564220a",
        );
        let Ok(FromGame::Status(status)) = FromGame::parse(&bytes) else { panic!() };
        let facts = status_facts(&status.info.index(), &status, true);
        assert_eq!((&*facts.name, &*facts.map, &*facts.mode), ("Loopback OA", "oa_dm1", "4"));
        assert_eq!(facts.version.as_str(), "ioq3 1.36");
        assert_eq!((facts.players_current, facts.players_max, facts.rule("clients")), (Some(1), Some(8), Some("2")));
        let players = &facts.details.as_ref().unwrap().players;
        assert_eq!((&*players[0].name, players[0].ping, players[0].score), ("Sarge", Some(0), Some(0)));
        assert_eq!((&*players[1].name, players[1].ping, players[1].score), ("Red", Some(-10), Some(7)));
    }

    #[test]
    fn a_status_of_darkplaces_has_teams_and_a_state() {
        let bytes = b"\xff\xff\xff\xffstatusResponse\n\\gamename\\Xonotic\\modname\\data\\gameversion\\806\\sv_maxclients\\16\\clients\\2\\bots\\1\\mapname\\stormkeep\\hostname\\X\\protocol\\3\\qcstatus\\ctf:0.8.6:P1:S2\\challenge\\0badcafe\\d0_blind_id\\1 x@y\n5 64 5 \"^x0f0Bob\"\nlong 0 14 \"[BOT]Ann\"\n";
        let Ok(FromGame::Status(status)) = FromGame::parse(bytes) else { panic!() };
        assert_eq!(status.info.get(b"challenge"), Some(&b"0badcafe"[..]), "and not what follows it");
        let facts = status_facts(&status.info.index(), &status, true);
        assert_eq!((&*facts.mode, facts.version.as_str(), facts.players_current), ("ctf", "0.8.6", Some(1)));
        let players = &facts.details.as_ref().unwrap().players;
        assert_eq!((&*players[0].name, players[0].team.as_deref(), players[0].score), ("Bob", Some("5"), Some(5)));
        assert_eq!((players[1].team.as_deref(), players[1].score), (Some("14"), None));
    }

    #[test]
    fn players_without_a_ping_are_bots() {
        let bytes = b"\xff\xff\xff\xffstatusResponse\n\\hostname\\X\n1 20 \"a\"\n1 0 \"b\"\n1 -3 \"c\"\n";
        let Ok(FromGame::Status(status)) = FromGame::parse(bytes) else { panic!() };
        let facts = status_facts(&status.info.index(), &status, true);
        assert_eq!((facts.players_current, facts.rule("clients")), (Some(2), Some("3")));
    }

    /// An infoResponse has no lines of players: without `bots` and `g_humanplayers`, all clients count.
    #[test]
    fn an_info_counts_people_as_far_as_it_says() {
        for (said, expected) in [
            (r"\clients\5", 5),
            (r"\clients\5\bots\2", 3),
            (r"\clients\5\bots\9", 0),
            (r"\clients\5\bots\2\g_humanplayers\4", 4),
            (r"\bots\2", 0),
            (r"\hostname\X", 0),
        ] {
            assert_eq!(facts(&info(said), true).players_current, Some(expected), "{said}");
        }
    }

    #[test]
    fn a_status_counts_the_same_people_without_details() {
        for said in [
            r"\hostname\X",
            r"\clients\3",
            r"\clients\7\bots\2",
            r"\bots\1",
            r"\clients\7\bots\2\g_humanplayers\4",
            r"\g_humanplayers\1",
        ] {
            let text = format!("statusResponse\n{said}\n1 20 \"a\"\n1 0 \"b\"\n1 -3 \"c\"\n");
            let bytes = [&[0xff; 4], text.as_bytes()].concat();
            let Ok(FromGame::Status(status)) = FromGame::parse(&bytes) else { panic!() };
            let with = |details| status_facts(&status.info.index(), &status, details);
            let (whole, brief) = (with(true), with(false));
            assert!(whole.details.is_some() && brief.details.is_none());
            assert_eq!(brief, Facts { details: None, ..whole }, "{said}");
        }
    }

    #[test]
    fn dpmasters_checks() {
        fn checked(text: &str) -> Result<(Option<&[u8]>, i32), Unlistable> {
            Listing::of(&info(text)).map(|listing| (listing.game, listing.protocol))
        }
        assert_eq!(checked(OPENARENA), Ok((Some(&b"Quake3Arena"[..]), 71)));
        assert_eq!(checked(r"\protocol\0x47\sv_maxclients\8\clients\0"), Ok((None, 71)), "numbers as C writes them");
        let long = |key: &str, len: usize| format!(r"\protocol\1\sv_maxclients\8\clients\0\{key}\{}", "x".repeat(len));
        assert!(checked(&long("gamename", 63)).is_ok() && checked(&long("gametype", 31)).is_ok());
        for (text, expected) in [
            (r"\sv_maxclients\8\clients\0", Unlistable::Protocol),
            (r"\protocol\x\sv_maxclients\8\clients\0", Unlistable::Protocol),
            (r"\protocol\71x\sv_maxclients\8\clients\0", Unlistable::Protocol),
            (r"\protocol\71\clients\0", Unlistable::MaxClients),
            (r"\protocol\71\sv_maxclients\0\clients\0", Unlistable::MaxClients),
            (r"\protocol\71\sv_maxclients\-3\clients\0", Unlistable::MaxClients),
            (r"\protocol\71\sv_maxclients\8", Unlistable::Clients),
            (r"\protocol\71\sv_maxclients\8\clients\0\gamename\a b", Unlistable::GameName),
            (r"\protocol\71\sv_maxclients\8\clients\0\gametype\a b", Unlistable::GameType),
            (&*long("gamename", 64), Unlistable::GameName),
            (&*long("gametype", 32), Unlistable::GameType),
        ] {
            assert_eq!(checked(text), Err(expected), "{text}");
        }
        assert_eq!(Listing::of(&info(r"\protocol\1\sv_maxclients\8\clients\0")).unwrap().game_type, b"0");
        assert!(checked(&long("gamename", 256)) == Ok((None, 1)), "a value that is too long is as if absent");
    }

    #[test]
    fn text_is_cleaned() {
        let info = InfoString::new(b"\\hostname\\a\x1b[1m^1\xffb\x01\\mapname\\^2m\\sv_maxclients\\1\\clients\\9");
        let facts = facts(&info.index(), true);
        assert_eq!((&*facts.name, &*facts.map), ("a[1m\u{fffd}b", "m"));
        assert_eq!(facts.rule("hostname"), Some("a[1m^1\u{fffd}b"));
    }
}
