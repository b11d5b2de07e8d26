//! An announcement: one object in JSON. Every value that is used has exactly the type that the game's own menu expects, because
//! one row with a wrong one ends the menu of every player.

use serde_json::{Map, Number, Value};

use super::{ANNOUNCE_PATH, LIST_PATH};
use crate::model::{Details, Facts, GameRules, Player};
use crate::protocols::Verdict;
use crate::protocols::announce::{HttpAnnounce, HttpBody, Offer, reason};
use crate::text;

/// The game's own interval.
pub const EVERY_MS: u64 = 300_000;

/// Values that a server says of itself in its rules, by their type. The order is that of the rules.
pub const FLAGS: [&str; 6] = ["dedicated", "creative", "damage", "pvp", "rollback", "can_see_far_names"];
pub const NUMBERS: [&str; 4] = ["proto_min", "proto_max", "uptime", "game_time"];
/// Rules that only a start has: an update keeps them.
pub const FROM_START: [&str; 5] = ["dedicated", "rollback", "can_see_far_names", "privs", "mods"];

/// What an announcement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start,
    Update,
    Delete,
}

/// What is wrong with an announcement, in the words of the original list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    Json,
    Object,
    Action,
    Schema,
    Values,
    Port,
}

impl Wrong {
    pub fn words(self) -> &'static str {
        match self {
            Wrong::Json => "Unable to process JSON data.",
            Wrong::Object => "JSON data is not an object.",
            Wrong::Action => "Invalid action field.",
            Wrong::Schema => "JSON data does not conform to schema.",
            Wrong::Values => "Incorrect JSON data.",
            Wrong::Port => "The port must be a number from 1 to 65535.",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    pub action: Action,
    pub port: u16,
    /// The name that the server wants to be listed under; empty: its address.
    pub address: String,
    /// None for a delete.
    pub server: Option<ServerSays>,
}

/// What a server says of itself, checked and cleaned.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSays {
    pub name: String,
    pub description: String,
    pub version: String,
    pub gameid: String,
    pub mapgen: Option<String>,
    pub privs: Option<String>,
    pub url: Option<String>,
    pub clients: u16,
    pub clients_max: u16,
    pub clients_list: Option<Vec<String>>,
    pub mods: Option<Vec<String>>,
    /// In the order of [`NUMBERS`].
    pub numbers: [u64; NUMBERS.len()],
    pub lag: Option<f64>,
    pub password: Option<bool>,
    /// In the order of [`FLAGS`].
    pub flags: [Option<bool>; FLAGS.len()],
}

impl Announcement {
    pub fn parse(json: &[u8]) -> Result<Announcement, Wrong> {
        let value: Value = serde_json::from_slice(json).map_err(|_| Wrong::Json)?;
        let Value::Object(object) = value else { return Err(Wrong::Object) };
        let action = match object.get("action").and_then(Value::as_str) {
            Some("start") => Action::Start,
            Some("update") => Action::Update,
            Some("delete") => Action::Delete,
            _ => return Err(Wrong::Action),
        };
        let port = integer(&object, "port")?.unwrap_or(30_000);
        let port = u16::try_from(port).ok().filter(|port| *port > 0).ok_or(Wrong::Port)?;
        let address = text_of(&object, "address")?.unwrap_or_default().trim().to_string();
        let server = match action {
            Action::Delete => None,
            Action::Start | Action::Update => Some(ServerSays::parse(&object)?),
        };
        Ok(Announcement { action, port, address, server })
    }

    /// The same as a server posts it.
    pub fn emit(&self) -> String {
        let mut object = Map::new();
        let action = match self.action {
            Action::Start => "start",
            Action::Update => "update",
            Action::Delete => "delete",
        };
        object.insert("action".into(), action.into());
        object.insert("port".into(), self.port.into());
        object.insert("address".into(), self.address.as_str().into());
        if let Some(server) = &self.server {
            server.emit(&mut object);
        }
        Value::Object(object).to_string()
    }
}

impl ServerSays {
    fn parse(object: &Map<String, Value>) -> Result<ServerSays, Wrong> {
        let text = |key: &str| text_of(object, key)?.map(clean).ok_or(Wrong::Schema);
        let optional = |key: &str| Ok(text_of(object, key)?.map(clean));
        let number = |key: &str| {
            let number = integer(object, key)?.ok_or(Wrong::Schema)?;
            u64::try_from(number).map_err(|_| Wrong::Values)
        };
        let mut numbers = [0; NUMBERS.len()];
        for (to, key) in numbers.iter_mut().zip(NUMBERS) {
            *to = number(key)?;
        }
        let [proto_min, proto_max, ..] = numbers;
        let mut flags = [None; FLAGS.len()];
        for (to, key) in flags.iter_mut().zip(FLAGS) {
            *to = flag(object, key)?;
        }
        let clients_list = texts(object, "clients_list")?.map(names).transpose()?;
        let clients = number("clients")?;
        let lag = match object.get("lag") {
            None | Some(Value::Null) => None,
            Some(Value::Number(lag)) if lag.is_f64() => lag.as_f64(),
            Some(_) => return Err(Wrong::Schema),
        };
        if proto_min > proto_max || lag.is_some_and(|lag| lag < 0.0) {
            return Err(Wrong::Values);
        }
        let clients = clients_list.as_ref().map_or(clients, |list| list.len() as u64);
        Ok(ServerSays {
            name: text("name")?,
            description: text("description")?,
            version: word(&text("version")?),
            gameid: word(&text("gameid")?),
            mapgen: optional("mapgen")?.map(|text| word(&text)),
            privs: optional("privs")?.map(|text| word(&text)),
            url: optional("url")?.filter(|url| is_link(url)),
            clients: clients.min(u16::MAX.into()) as u16,
            clients_max: number("clients_max")?.min(u16::MAX.into()) as u16,
            clients_list,
            mods: texts(object, "mods")?.map(names).transpose()?,
            numbers,
            lag,
            password: flag(object, "password")?,
            flags,
        })
    }

    fn emit(&self, object: &mut Map<String, Value>) {
        let mut put = |key: &str, value: Option<Value>| {
            if let Some(value) = value {
                object.insert(key.into(), value);
            }
        };
        put("name", Some(self.name.as_str().into()));
        put("description", Some(self.description.as_str().into()));
        put("version", Some(self.version.as_str().into()));
        put("gameid", Some(self.gameid.as_str().into()));
        put("mapgen", self.mapgen.clone().map(Value::from));
        put("privs", self.privs.clone().map(Value::from));
        put("url", self.url.clone().map(Value::from));
        put("clients", Some(self.clients.into()));
        put("clients_max", Some(self.clients_max.into()));
        put("clients_list", self.clients_list.clone().map(Value::from));
        put("mods", self.mods.clone().map(Value::from));
        put("lag", self.lag.and_then(Number::from_f64).map(Value::Number));
        put("password", self.password.map(Value::from));
        NUMBERS.iter().zip(self.numbers).for_each(|(key, number)| put(key, Some(number.into())));
        FLAGS.iter().zip(self.flags).for_each(|(key, flag)| put(key, flag.map(Value::from)));
    }

    pub fn uptime(&self) -> u64 {
        let [_, _, uptime, _] = self.numbers;
        uptime
    }

    /// As facts. What only the master knows of the server is in `more`; an update keeps what only a start says from `before`.
    pub fn facts(&self, before: Option<&Facts<'_>>, more: &GameRules) -> Facts<'static> {
        let mut rules = GameRules::new();
        let mut put = |key: &str, value: Option<String>| {
            if let Some(value) = value.filter(|value| !value.is_empty()) {
                rules.push(key, &value);
            }
        };
        put("description", Some(self.description.clone()));
        put("url", self.url.clone());
        for (key, flag) in FLAGS.iter().zip(self.flags) {
            put(key, flag.map(|flag| flag.to_string()));
        }
        put("privs", self.privs.clone());
        for (key, number) in NUMBERS.iter().zip(self.numbers) {
            put(key, Some(number.to_string()));
        }
        put("lag", self.lag.map(|lag| lag.to_string()));
        more.iter().for_each(|(key, value)| put(key, Some(value.into())));
        // The longest comes last: it is what is left out if there is too much.
        put("mods", self.mods.as_ref().map(|mods| mods.join(",")));
        let kept = |key: &str| before.and_then(|before| before.rule(key)).filter(|_| !self.says(key));
        FROM_START.iter().for_each(|key| {
            if let Some(value) = kept(key) {
                rules.push(key, value);
            }
        });
        let player = |name: &String| Player { name: name.as_str().into(), ..Player::default() };
        let players = self.clients_list.iter().flatten().map(player).collect();
        let map = self.mapgen.clone().or_else(|| before.map(|before| before.map.to_string())).unwrap_or_default();
        Facts {
            name: self.name.clone().into(),
            mode: self.gameid.clone().into(),
            map: map.into(),
            version: text::version(self.version.as_bytes()),
            players_current: Some(self.clients),
            players_max: Some(self.clients_max),
            password: self.password,
            details: Some(Details { players, rules }.bounded().into()),
            ..Facts::default()
        }
    }

    /// Whether it says something that only a start has.
    fn says(&self, key: &str) -> bool {
        match key {
            "privs" => self.privs.is_some(),
            "mods" => self.mods.is_some(),
            _ => FLAGS.iter().zip(self.flags).any(|(flag, value)| *flag == key && value.is_some()),
        }
    }

    /// What a program says that announces a server it does not know from within.
    pub fn of(facts: &Facts<'_>) -> ServerSays {
        let number =
            |key: &str, otherwise: u64| facts.rule(key).and_then(|text| text.parse().ok()).unwrap_or(otherwise);
        let flag = |key: &str| facts.rule(key).and_then(|text| text.parse().ok());
        let list = |text: &str| text.split(',').filter(|part| !part.is_empty()).map(str::to_string).collect();
        let players = facts.details.as_deref().and_then(|details| details.known_players(facts.players_current));
        let (name, version) = (facts.name.to_string(), facts.version.as_str());
        ServerSays {
            name,
            description: facts.rule("description").unwrap_or_default().into(),
            version: word(version),
            gameid: word(&facts.mode),
            mapgen: Some(word(&facts.map)).filter(|map| !map.is_empty()),
            privs: facts.rule("privs").map(word),
            url: facts.rule("url").map(str::to_string),
            clients: facts.players_current.unwrap_or(0),
            clients_max: facts.players_max.unwrap_or(0),
            clients_list: players.map(|players| players.iter().map(|player| player.name.to_string()).collect()),
            mods: facts.rule("mods").map(list),
            // Protocols of the versions that are in use.
            numbers: [number("proto_min", 37), number("proto_max", 50), number("uptime", 0), number("game_time", 0)],
            lag: facts.rule("lag").and_then(|text| text.parse().ok()),
            password: facts.password,
            flags: FLAGS.map(flag),
        }
    }
}

fn clean(text: &str) -> String {
    text::clean(text.as_bytes()).into_owned()
}

/// Without blanks and quotes.
fn word(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace() && *c != '\'').collect()
}

fn is_link(url: &str) -> bool {
    let is_http = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
    is_http && !url.contains(char::is_whitespace)
}

/// Names of mods or players, sorted, each once.
fn names(list: Vec<String>) -> Result<Vec<String>, Wrong> {
    let is_bad = |name: &String| name.is_empty() || name.contains([' ', '\'', '"', ',']);
    if list.iter().any(is_bad) {
        return Err(Wrong::Values);
    }
    let mut names: Vec<String> = list.iter().map(|name| clean(name)).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

fn text_of<'a>(object: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Wrong> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Wrong::Schema),
    }
}

/// An integer, or one as text, as old servers send it.
fn integer(object: &Map<String, Value>, key: &str) -> Result<Option<i64>, Wrong> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::Number(number)) if number.is_i64() => Ok(number.as_i64()),
        // Beyond all that is in use, and a number nevertheless.
        Some(Value::Number(number)) if number.is_u64() => Ok(Some(i64::MAX)),
        Some(Value::String(text)) => text.trim().parse().map(Some).map_err(|_| Wrong::Schema),
        Some(_) => Err(Wrong::Schema),
    }
}

/// A boolean, or one as text, as old servers send it.
fn flag(object: &Map<String, Value>, key: &str) -> Result<Option<bool>, Wrong> {
    match object.get(key) {
        None => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(Value::String(text)) => match text.to_ascii_lowercase().as_str() {
            "true" | "1" => Ok(Some(true)),
            "false" | "0" | "" => Ok(Some(false)),
            _ => Err(Wrong::Schema),
        },
        Some(_) => Err(Wrong::Schema),
    }
}

fn texts(object: &Map<String, Value>, key: &str) -> Result<Option<Vec<String>>, Wrong> {
    let text = |value: &Value| value.as_str().map(str::to_string).ok_or(Wrong::Schema);
    match object.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => list.iter().map(text).collect::<Result<_, _>>().map(Some),
        Some(_) => Err(Wrong::Schema),
    }
}

/// What `rallypoint announce` posts.
pub const ANNOUNCE: HttpAnnounce = HttpAnnounce {
    path: |given, _| path(given),
    post: Some(HttpBody { content_type: "application/x-www-form-urlencoded", body }),
    verdict,
    help: "a Luanti list, whose address is the game's serverlist_url",
};

/// The path of the announcement, next to that of the list.
fn path(given: &str) -> String {
    let base = given.split('?').next().unwrap_or_default().trim_end_matches('/');
    let base = base.strip_suffix(LIST_PATH).or_else(|| base.strip_suffix(ANNOUNCE_PATH)).unwrap_or(base);
    format!("{base}{ANNOUNCE_PATH}")
}

fn body(offer: &Offer) -> Vec<u8> {
    // A start could not be told from a restart, so that the server's history would begin again each time.
    let says = ServerSays::of(&offer.facts);
    let action = if says.uptime() == 0 { Action::Start } else { Action::Update };
    let announcement = Announcement { action, port: offer.port, address: String::new(), server: Some(says) };
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("json", &announcement.emit()).finish().into_bytes()
}

fn verdict(status: u16, body: &[u8]) -> Verdict {
    let text = reason(body);
    match status {
        200..=299 => Verdict::Listed,
        // Filed, too: the last time there was a problem.
        409 => Verdict::Refused(text),
        _ => Verdict::Refused(format!("HTTP status {status}: {text}")),
    }
}

/// As a real server sends it.
pub const EXAMPLE: &[u8] = br#"{"action":"update","address":"","clients":1,"clients_list":["celeron55"],"clients_max":15,"creative":false,"damage":true,"description":"A test; with & ampersand","game_time":300,"gameid":"minetest_game","lag":0.0909,"name":"Loopback","password":false,"port":30000,"proto_max":41,"proto_min":37,"pvp":true,"uptime":300,"url":"https://example.org/","version":"5.6.1"}"#;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// An announcement with some values changed; null removes one.
    fn changed(changes: Value) -> Result<Announcement, Wrong> {
        let mut object: Map<String, Value> = serde_json::from_slice(EXAMPLE).unwrap();
        for (key, value) in changes.as_object().unwrap().clone() {
            if value.is_null() { drop(object.remove(&key)) } else { drop(object.insert(key, value)) }
        }
        Announcement::parse(Value::Object(object).to_string().as_bytes())
    }

    fn says(changes: Value) -> ServerSays {
        changed(changes).unwrap().server.unwrap()
    }

    #[test]
    fn types_are_checked_and_old_servers_texts_are_taken() {
        for (changes, wrong) in [
            (json!({"action": null}), Wrong::Action),
            (json!({"action": "stop"}), Wrong::Action),
            (json!({"name": null}), Wrong::Schema),
            (json!({"name": 7}), Wrong::Schema),
            (json!({"clients": "x"}), Wrong::Schema),
            (json!({"clients": 1.5}), Wrong::Schema),
            (json!({"lag": 1}), Wrong::Schema),
            (json!({"mods": ["a", 7]}), Wrong::Schema),
            (json!({"address": 5}), Wrong::Schema),
            (json!({"port": "abc"}), Wrong::Schema),
            (json!({"pvp": 1}), Wrong::Schema),
            (json!({"port": 70_000}), Wrong::Port),
            (json!({"port": 0}), Wrong::Port),
            (json!({"port": 1.5}), Wrong::Schema),
            (json!({"clients_max": -1}), Wrong::Values),
            (json!({"lag": -0.5}), Wrong::Values),
            (json!({"proto_min": 50}), Wrong::Values),
            (json!({"mods": ["a b"]}), Wrong::Values),
            (json!({"clients_list": ["a'b"]}), Wrong::Values),
        ] {
            assert_eq!(changed(changes.clone()), Err(wrong), "{changes}");
        }
        for bad in [&b""[..], b"{", b"\xff"] {
            assert_eq!(Announcement::parse(bad), Err(Wrong::Json));
        }
        assert_eq!(Announcement::parse(b"[]"), Err(Wrong::Object));
        let old = changed(json!({"port": "30001", "clients_max": "20", "pvp": "true", "damage": "0"})).unwrap();
        let server = old.server.unwrap();
        assert_eq!(
            (old.port, server.clients_max, server.flags[3], server.flags[2]),
            (30_001, 20, Some(true), Some(false))
        );
        assert_eq!(changed(json!({"port": null})).unwrap().port, 30_000);
        let delete = Announcement::parse(br#"{"action":"delete","address":"","port":30000}"#).unwrap();
        assert_eq!((delete.action, delete.server), (Action::Delete, None));
    }

    #[test]
    fn the_least_and_the_most_that_is_right() {
        assert_eq!(says(json!({"proto_min": 41, "lag": 0.0})).numbers[..2], [41, 41]);
        assert_eq!(says(json!({"clients_max": u64::MAX})).clients_max, u16::MAX);
    }

    #[test]
    fn values_are_cleaned_as_the_original_list_cleans_them() {
        let server = says(json!({
            "clients": 9, "clients_list": ["b", "a", "b"], "mods": ["z", "y", "z"], "privs": "interact, shout",
            "gameid": "my 'game'", "url": "javascript:alert(1)", "name": "a\u{1b}[31mb", "clients_max": 1_000_000,
        }));
        assert_eq!(server.clients_list.as_deref(), Some(&["a".to_string(), "b".into()][..]));
        assert_eq!((server.clients, server.clients_max), (2, u16::MAX));
        assert_eq!(server.mods.as_deref(), Some(&["y".to_string(), "z".into()][..]));
        assert_eq!((server.privs.as_deref(), &*server.gameid, server.url), (Some("interact,shout"), "mygame", None));
        assert_eq!(server.name, "a[31mb");
    }

    #[test]
    fn an_update_keeps_what_only_a_start_says() {
        let start = says(json!({"dedicated": true, "mods": ["a", "b"], "privs": "shout", "mapgen": "v7"}));
        let before = start.facts(None, &GameRules::new());
        let after = says(json!({"creative": true})).facts(Some(&before), &[("clients_top", "4")].into());
        for (rule, value) in
            [("dedicated", "true"), ("mods", "a,b"), ("privs", "shout"), ("creative", "true"), ("clients_top", "4")]
        {
            assert_eq!(after.rule(rule), Some(value), "{rule}");
        }
        assert_eq!((&*after.map, &*after.mode, after.players_current), ("v7", "minetest_game", Some(1)));
        let of_after = ServerSays::of(&after);
        assert_eq!(
            (of_after.facts(None, &GameRules::new()).rule("mods"), of_after.mapgen.as_deref()),
            (Some("a,b"), Some("v7"))
        );
        assert_eq!(ServerSays::of(&Facts::default()).mapgen, None);
    }

    #[test]
    fn what_is_said_again_is_there_once() {
        let before = says(json!({"dedicated": true, "mods": ["a"], "privs": "shout"})).facts(None, &GameRules::new());
        let changes = json!({"dedicated": false, "mods": ["b"], "privs": "fly", "clients_list": ["ann", "bob"]});
        let after = says(changes).facts(Some(&before), &GameRules::new());
        let details = after.details.as_ref().unwrap();
        for (key, value) in [("dedicated", "false"), ("mods", "b"), ("privs", "fly")] {
            let said: Vec<_> = details.rules.iter().filter(|(found, _)| *found == key).map(|(_, said)| said).collect();
            assert_eq!(said, [value], "{key}");
        }
        let names: Vec<_> = details.players.iter().map(|player| &*player.name).collect();
        assert_eq!(names, ["ann", "bob"]);
        let none = says(json!({"mods": [], "privs": ""})).facts(Some(&before), &GameRules::new());
        assert_eq!(["mods", "privs", "dedicated"].map(|rule| none.rule(rule)), [None, None, Some("true")]);
    }

    #[test]
    fn the_tool_posts_a_start_for_a_server_of_unknown_age_and_an_update_otherwise() {
        let posted = |uptime: &str| {
            let rules = [("uptime", uptime)].into();
            let details = Some(Details { players: Vec::new(), rules }.into());
            let facts = Facts { name: "Näme & more".into(), details, ..Facts::default() };
            let form = body(&Offer { game: "luanti".into(), port: 30_001, facts });
            Announcement::parse(super::super::form::json(None, &form).unwrap().as_bytes()).unwrap()
        };
        let start = posted("0");
        assert_eq!((start.action, start.port, start.address.as_str()), (Action::Start, 30_001, ""));
        assert_eq!(start.server.unwrap().name, "Näme & more");
        assert_eq!(posted("5").action, Action::Update);
    }

    #[test]
    fn announcements_go_next_to_the_list() {
        for (given, expected) in [
            ("", "/announce"),
            ("/", "/announce"),
            ("/list", "/announce"),
            ("/x/list?a", "/x/announce"),
            ("/announce", "/announce"),
        ] {
            assert_eq!(path(given), expected, "{given}");
        }
        assert_eq!(verdict(202, b"Request has been filed."), Verdict::Listed);
        assert_eq!(verdict(409, b"no answer\n"), Verdict::Refused("no answer".into()));
        assert_eq!(verdict(400, b"Incorrect"), Verdict::Refused("HTTP status 400: Incorrect".into()));
    }
}
