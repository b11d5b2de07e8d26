//! Notices as the bodies of requests: plain JSON, and Discord's form. Texts of game servers are clean ([`crate::text`]), and
//! escaped here for what reads them.

use serde_json::{Map, Value, json};

use super::notice::{Marks, Notice, Row, What, cut};
use super::queue::Batch;
use super::settings::{Form, Sender};
use crate::times::rfc3339;

/// Discord refuses longer messages. It counts characters; this counts units of UTF-16, of which there are no fewer.
const DISCORD_UNITS_MAX: usize = 2_000;
/// What a message may have besides its notices: who sends it, and how many were dropped.
const DISCORD_FRAME_UNITS: usize = 300;
/// Upper bounds on texts in a line for Discord, in characters, so that every line fits.
const DISCORD_TEXT_CHARS_MAX: usize = 60;
/// Discord: no previews of links.
const SUPPRESS_EMBEDS: u64 = 1 << 2;

const PLAIN: Marks = Marks { text: |text| text.into(), subject: |text| text.into(), address: |address| address.into() };
const DISCORD: Marks = Marks {
    text: |text| escaped(cut(text, DISCORD_TEXT_CHARS_MAX)),
    subject: |text| format!("**{}**", escaped(cut(text, DISCORD_TEXT_CHARS_MAX))),
    address: |address| format!("`{address}`"),
};

impl Form {
    /// How many of these notices go into one request.
    pub fn fit(self, notices: &[Notice]) -> usize {
        let mut room = DISCORD_UNITS_MAX - DISCORD_FRAME_UNITS;
        let mut fits = |notice: &Notice| {
            let units = line(notice).encode_utf16().count() + 1;
            room.checked_sub(units).map(|left| room = left).is_some()
        };
        match self {
            Form::Json => notices.len(),
            Form::Discord => notices.iter().take_while(|notice| fits(notice)).count(),
        }
    }

    /// The body of a request. `id` identifies the batch, so that a receiver can tell a second try from news.
    pub fn body(self, batch: &Batch, id: &str, sender: &Sender) -> Vec<u8> {
        let body = match self {
            Form::Json => json_body(batch, id, sender),
            Form::Discord => discord_body(batch, sender),
        };
        body.to_string().into_bytes()
    }
}

fn json_body(batch: &Batch, id: &str, sender: &Sender) -> Value {
    let mut body = Map::from_iter([("id".to_string(), json!(id)), ("master".to_string(), json!(sender.title))]);
    if !sender.node.is_empty() {
        body.insert("node".into(), json!(sender.node));
    }
    if batch.dropped > 0 {
        body.insert("dropped".into(), json!(batch.dropped));
    }
    body.insert("notices".into(), batch.notices.iter().map(json_notice).collect());
    Value::Object(body)
}

fn json_notice(notice: &Notice) -> Value {
    let mut json = json!({
        "event": notice.event(),
        "at": rfc3339(notice.at_ms / 1_000),
        "text": notice.words(&PLAIN),
    });
    let more = match &notice.what {
        What::Came(row) | What::Went(row) => json!({ "server": server(row) }),
        What::Players(count, row) => json!({ "game": row.game, "players": count, "server": server(row) }),
        What::Many(_, count, games) => {
            let games: Map<String, Value> = games.iter().map(|(game, count)| (game.clone(), json!(count))).collect();
            json!({ "count": count, "games": games })
        }
        What::Alone(reason) => json!({ "state": "begun", "reason": reason.name() }),
        What::NotAlone => json!({ "state": "over" }),
        What::Flood(refusals) => {
            let budgets = refusals.budgets.iter().map(|(name, count)| (name.to_string(), json!(count)));
            json!({
                "state": "begun",
                "refused_per_second": refusals.per_second,
                "budgets": budgets.collect::<Map<String, Value>>(),
                "networks": refusals.networks,
            })
        }
        What::FloodOver(refused) => json!({ "state": "over", "refused": refused }),
        What::Test => json!({}),
    };
    if let (Value::Object(json), Value::Object(more)) = (&mut json, more) {
        json.extend(more);
    }
    json
}

/// With the names that the API has.
fn server(row: &Row) -> Value {
    let mut server = json!({
        "protocol": row.protocol,
        "game": row.game,
        "address": row.address.ip().to_string(),
        "port": row.address.port(),
        "endpoint": row.address.to_string(),
    });
    let texts = [("name", &row.name), ("mode", &row.mode), ("map", &row.map)];
    let texts = texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(name, text)| (name, json!(text)));
    let counts = [("players_current", row.players_current), ("players_max", row.players_max)];
    let counts = counts.into_iter().filter_map(|(name, count)| Some((name, json!(count?))));
    if let Value::Object(server) = &mut server {
        server.extend(texts.chain(counts).map(|(name, value)| (name.to_string(), value)));
    }
    server
}

fn discord_body(batch: &Batch, sender: &Sender) -> Value {
    let mut lines: Vec<String> = batch.notices.iter().map(line).collect();
    if batch.dropped > 0 {
        lines.insert(0, format!("{} earlier notices were dropped", batch.dropped));
    }
    let node = Some(&*sender.node).filter(|node| !node.is_empty()).map(|node| format!(", node {node}"));
    let from = format!("{}{}", cut(&sender.title, DISCORD_TEXT_CHARS_MAX), node.unwrap_or_default());
    lines.push(format!("-# {}", escaped(&from)));
    // Nobody is notified, whatever a server is called.
    json!({ "content": lines.join("\n"), "allowed_mentions": { "parse": [] }, "flags": SUPPRESS_EMBEDS })
}

/// A notice in one line for Discord, which always fits into a message. With its time, which Discord shows as how long ago it
/// was: a notice may arrive late.
fn line(notice: &Notice) -> String {
    let (words, time) = (notice.words(&DISCORD), format!(" <t:{}:R>", notice.at_ms / 1_000));
    let units_max = DISCORD_UNITS_MAX - DISCORD_FRAME_UNITS - 1 - time.len();
    if words.encode_utf16().count() <= units_max {
        return words + &time;
    }
    // A summary of games with long names. No character has more than two units.
    cut(&words, units_max / 2 - 1).to_string() + "…" + &time
}

/// Every character of ASCII that can be part of markup, of a link, a mention or an emoji, is escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            escaped.push('\\');
        }
        escaped.push(if c.is_control() { ' ' } else { c });
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Facts, Game, Proof, Server};
    use crate::notices::notice::{Event, Reason, Refusals};
    use proptest::prelude::*;

    fn row(name: &str) -> Row {
        let facts = Facts {
            name: name.into(),
            map: "mesa.vxl".into(),
            players_current: Some(3),
            players_max: Some(16),
            ..Facts::default()
        };
        Row::new(&Server::new("203.0.113.5:20737".parse().unwrap(), Game::Own("iceball"), Proof::Cookie, 0, &facts))
    }

    fn batch(notices: Vec<What>, dropped: u64) -> Batch {
        let notices = notices.into_iter().map(|what| Notice { at_ms: 1_000, what }).collect();
        Batch { number: 1, notices, dropped }
    }

    fn sender() -> Sender {
        Sender { title: "My games".into(), node: "a".into() }
    }

    fn content(batch: &Batch) -> String {
        let body: Value = serde_json::from_slice(&Form::Discord.body(batch, "x", &sender())).unwrap();
        assert_eq!(body["allowed_mentions"], json!({ "parse": [] }));
        assert_eq!(body["flags"], 4);
        body["content"].as_str().unwrap().to_string()
    }

    #[test]
    fn every_notice_in_json() {
        let refusals = Refusals {
            per_second: 120,
            budgets: vec![("announcements", 1_200)],
            networks: vec!["203.0.113.0/24".into()],
        };
        let what = vec![
            What::Came(row("A \"name\"")),
            What::Went(row("")),
            What::Players(3, row("b")),
            What::Many(Event::Went, 312, vec![("iceball".into(), 300), ("x".into(), 12)]),
            What::Alone(Reason::Nats),
            What::NotAlone,
            What::Flood(refusals),
            What::FloodOver(5_000),
            What::Test,
        ];
        let body: Value = serde_json::from_slice(&Form::Json.body(&batch(what, 2), "f00-1", &sender())).unwrap();
        let mut without_text = body.clone();
        let texts: Vec<String> = without_text["notices"]
            .as_array_mut()
            .unwrap()
            .iter_mut()
            .map(|notice| {
                assert_eq!(notice.as_object_mut().unwrap().remove("at"), Some(json!("1970-01-01T00:00:01Z")));
                notice.as_object_mut().unwrap().remove("text").unwrap().as_str().unwrap().to_string()
            })
            .collect();
        let server = json!({
            "protocol": "iceball", "game": "iceball", "address": "203.0.113.5", "port": 20737,
            "endpoint": "203.0.113.5:20737", "name": "b", "map": "mesa.vxl", "players_current": 3, "players_max": 16,
        });
        let named = |name: &str| {
            let mut server = server.clone();
            server["name"] = json!(name);
            server
        };
        let mut nameless = server.clone();
        nameless.as_object_mut().unwrap().remove("name");
        let expected = json!({ "id": "f00-1", "master": "My games", "node": "a", "dropped": 2, "notices": [
            { "event": "came", "server": named("A \"name\"") },
            { "event": "went", "server": nameless },
            { "event": "players", "game": "iceball", "players": 3, "server": server },
            { "event": "went", "count": 312, "games": { "iceball": 300, "x": 12 } },
            { "event": "alone", "state": "begun", "reason": "nats" },
            { "event": "alone", "state": "over" },
            { "event": "flood", "state": "begun", "refused_per_second": 120, "budgets": { "announcements": 1200 },
              "networks": ["203.0.113.0/24"] },
            { "event": "flood", "state": "over", "refused": 5000 },
            { "event": "test" },
        ] });
        assert_eq!(without_text, expected);
        assert_eq!(
            texts,
            [
                "A \"name\" is on the list: Iceball, 203.0.113.5:20737, 3 of 16 players, map mesa.vxl",
                "a server has left the list: Iceball, 203.0.113.5:20737",
                "Iceball has players again: 3 players on b (203.0.113.5:20737)",
                "312 servers have left the list: Iceball 300, x 12",
                "This node is alone: it cannot reach NATS, and serves on by itself",
                "This node is no longer alone",
                "A flood: 120 requests a second are refused; budgets: announcements; heaviest networks: 203.0.113.0/24",
                "The flood is over: 5000 requests were refused",
                "This is a test: notices arrive here",
            ]
        );
    }

    #[test]
    fn discord_shows_what_servers_are_called_and_does_nothing_else() {
        let hostile = "@everyone <@1> [x](https://evil.example) **_~`|";
        let content = content(&batch(vec![What::Came(row(hostile))], 3));
        let lines: Vec<&str> = content.lines().collect();
        assert_eq!(
            lines,
            [
                "3 earlier notices were dropped",
                r"**\@everyone \<\@1\> \[x\]\(https\:\/\/evil\.example\) \*\*\_\~\`\|** is on the list: Iceball, `203.0.113.5:20737`, 3 of 16 players, map mesa\.vxl <t:1:R>",
                r"-# My games\, node a",
            ]
        );
    }

    #[test]
    fn many_notices_are_several_messages() {
        let long = "#".repeat(100);
        let notices: Vec<Notice> = (0..20).map(|_| Notice { at_ms: 0, what: What::Came(row(&long)) }).collect();
        let fit = Form::Discord.fit(&notices);
        assert!((5..20).contains(&fit), "{fit}");
        assert_eq!((Form::Json.fit(&notices), Form::Discord.fit(&[])), (20, 0));
    }

    fn any_what() -> impl Strategy<Value = What> {
        let games = prop::collection::vec((".{0,64}", any::<u64>()), 0..16);
        prop_oneof![
            ".{0,200}".prop_map(|name| What::Came(row(&name))),
            (any::<u64>(), ".{0,200}").prop_map(|(count, name)| What::Players(count, row(&name))),
            (any::<u64>(), games).prop_map(|(count, games)| What::Many(Event::Came, count, games)),
        ]
    }

    proptest! {
        /// What fits is short enough for Discord, and text of a server makes no markup.
        #[test]
        fn messages_to_discord_are_bounded(what in prop::collection::vec(any_what(), 1..20), dropped: u64) {
            let mut batch = batch(what, dropped);
            let fit = Form::Discord.fit(&batch.notices);
            prop_assert!(fit >= 1);
            batch.notices.truncate(fit);
            let content = content(&batch);
            prop_assert!(content.encode_utf16().count() <= DISCORD_UNITS_MAX);
            prop_assert_eq!(content.lines().count(), fit + 1 + usize::from(dropped > 0));
        }

        #[test]
        fn escaped_text_has_no_bare_punctuation(text in ".*") {
            let escaped = escaped(&text);
            let mut chars = escaped.chars();
            while let Some(c) = chars.next() {
                if c == '\\' {
                    prop_assert!(chars.next().unwrap().is_ascii_punctuation());
                } else {
                    prop_assert!(!c.is_ascii_punctuation() && !c.is_control());
                }
            }
        }
    }
}
