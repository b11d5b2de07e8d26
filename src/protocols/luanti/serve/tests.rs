//! The answers to announcements, as the original list gives them.

use super::*;
use crate::cookie::Keys;
use crate::model::{Now, Proof, SharedTime};
use crate::protocols::luanti::announce::EXAMPLE;
use crate::protocols::section::{Cookies, Surroundings};
use serde_json::{Map, Value, json};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 5));

struct World {
    known: Option<Arc<Server>>,
    is_listed: bool,
    failure: Option<Failure>,
}

const EMPTY: World = World { known: None, is_listed: false, failure: None };

impl World {
    fn post(&self, content_type: &'static str, body: &[u8]) -> PostEffect {
        self.post_from(PEER, content_type, body)
    }

    fn post_from(&self, peer: IpAddr, content_type: &'static str, body: &[u8]) -> PostEffect {
        let known = |address| self.known.clone().filter(|server| server.address == address);
        let at = PostContext {
            now: Now { unix_ms: 1_000_000, mono_ms: 1_000 },
            cookies: Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() },
            listed: &|address| known(address).filter(|_| self.is_listed),
            known: &known,
            failure: &|_| self.failure.clone(),
        };
        let header = |name| (name == "content-type").then_some(content_type);
        Announce { is_on: true }.post(&at, &Post { peer, header: &header, body })
    }

    /// An announcement with some values changed; null removes one.
    fn announce(&self, changes: Value) -> PostEffect {
        self.announce_from(PEER, changes)
    }

    fn announce_from(&self, peer: IpAddr, changes: Value) -> PostEffect {
        let mut object: Map<String, Value> = serde_json::from_slice(EXAMPLE).unwrap();
        for (key, value) in changes.as_object().unwrap().clone() {
            if value.is_null() { drop(object.remove(&key)) } else { drop(object.insert(key, value)) }
        }
        let json = Value::Object(object).to_string();
        let form = url::form_urlencoded::Serializer::new(String::new()).append_pair("json", &json).finish();
        self.post_from(peer, "application/x-www-form-urlencoded", form.as_bytes())
    }
}

/// Status and text of an answer that is given at once.
fn answer(effect: PostEffect) -> (u16, String) {
    let answer = match effect {
        PostEffect::Answer(answer)
        | PostEffect::Refused { answer, .. }
        | PostEffect::File { answer, .. }
        | PostEffect::Quit { answer, .. } => answer,
        PostEffect::Proven { .. } | PostEffect::Challenged { .. } => panic!("no secrets here"),
    };
    (answer.status, answer.body.trim_end().to_string())
}

fn filed(effect: PostEffect) -> (Heartbeat, Option<Named>) {
    match effect {
        PostEffect::File { heartbeat, .. } => {
            let name = heartbeat.name.clone();
            (*heartbeat, name)
        }
        other => panic!("{:?}", answer(other)),
    }
}

fn listed(facts: &Facts<'_>) -> World {
    let address = Address::new(PEER, 30_000).unwrap();
    let server = Server::new(address, Game::Own(NAME), Proof::Query, 0, facts);
    World { known: Some(Arc::new(server)), is_listed: true, failure: None }
}

#[test]
fn the_posts_of_a_real_server() {
    let golden: Value = serde_json::from_str(include_str!("../../../../tests/data/luanti.json")).unwrap();
    let post = |world: &World, name: &str| {
        let whole = golden[name].as_str().unwrap().to_string().leak();
        let (head, body) = whole.split_once("\r\n\r\n").unwrap();
        let content_type = head.lines().find_map(|line| line.strip_prefix("Content-Type: ")).unwrap();
        world.post(content_type, body.as_bytes())
    };
    let (heartbeat, name) = filed(post(&EMPTY, "announce_start_from_real_server"));
    assert_eq!((heartbeat.address.to_string().as_str(), name), ("203.0.113.5:30000", None));
    let facts = heartbeat.said.unwrap();
    assert_eq!((&*facts.name, &*facts.mode, &*facts.map), ("Loopback \"Test\" é", "minetest_game", "v7"));
    let running = listed(&facts);
    let (heartbeat, _) = filed(post(&running, "announce_update_from_real_server"));
    let facts = heartbeat.said.unwrap();
    assert_eq!((facts.rule("lag"), facts.rule("uptime")), (Some("0.0909000039100647"), Some("300")));
    assert!(facts.rule("mods").unwrap().starts_with("beds,binoculars,"), "kept from the start");
    let effect = post(&running, "announce_delete_from_real_server");
    assert!(matches!(&effect, PostEffect::Quit { address, .. } if *address == heartbeat.address));
    assert_eq!(answer(effect), (200, "Removed from server list.".into()));
    assert_eq!(answer(post(&EMPTY, "announce_delete_from_real_server")), (200, "Server to remove not found.".into()));
}

#[test]
fn every_mistake_has_its_answer() {
    let form = "application/x-www-form-urlencoded";
    for (body, status, text) in [
        ("", 400, "The request needs a form with the field `json`."),
        ("json=%7B", 400, "Unable to process JSON data."),
        ("json=[]", 400, "JSON data is not an object."),
        ("json=%7B%7D", 400, "Invalid action field."),
    ] {
        assert_eq!(answer(EMPTY.post(form, body.as_bytes())), (status, text.into()), "{body}");
    }
    let long = format!("json={}", "é".repeat(9_197));
    assert_eq!(answer(EMPTY.post(form, long.as_bytes())), (413, "JSON data is too big (9197).".into()));
    let longest = format!("json={}", "é".repeat(8_192));
    assert_eq!(answer(EMPTY.post(form, longest.as_bytes())), (400, "Unable to process JSON data.".into()));
    for (changes, text) in [
        (json!({"name": 7}), "JSON data does not conform to schema."),
        (json!({"clients": -1, "clients_list": null}), "Incorrect JSON data."),
        (json!({"port": 70_000}), "The port must be a number from 1 to 65535."),
    ] {
        assert_eq!(answer(EMPTY.announce(changes.clone())), (400, text.into()), "{changes}");
    }
    let off = Announce { is_on: false };
    assert_eq!(off.decided(&Verdict::TryLater { reason: "later".into(), after_s: 7 }).retry_after_s, Some(7));
    assert_eq!(answer(EMPTY.announce(json!({}))), (202, "Request has been filed.".into()), "an update is a start, too");
}

#[test]
fn what_went_wrong_before_is_told() {
    let failed = |kind, text: &str| World { failure: Some(Failure { kind, text: text.into() }), ..EMPTY };
    let error = "Request has been filed, but the previous one encountered an error:\n";
    for kind in [FailureKind::Silent, FailureKind::Error] {
        let (status, text) = answer(failed(kind, "no answer").announce(json!({})));
        assert_eq!((status, text), (409, format!("{error}no answer")));
    }
    let (_, text) = answer(failed(FailureKind::Warning, "a name").announce(json!({})));
    assert_eq!(text, "Request has been filed, but there is a warning from the previous one:\na name");
    // A game that listens on IPv4 only, and posts over IPv6, has one more thing to look at.
    let v6: IpAddr = "2001:db8::1".parse().unwrap();
    let (_, text) = answer(failed(FailureKind::Silent, "no answer").announce_from(v6, json!({})));
    assert!(text.starts_with(&format!("{error}no answer\nThe announcement came over IPv6")), "{text}");
    assert!(text.contains("ipv6_server = true"), "{text}");
    let (_, text) = answer(failed(FailureKind::Error, "full").announce_from(v6, json!({})));
    assert_eq!(text, format!("{error}full"));
}

#[test]
fn names_are_checked_and_then_looked_up() {
    for (address, expected) in [
        ("", None),
        ("203.0.113.5", None),
        ("2001:db8::1", None),
        ("203.0.113.9", Some("203.0.113.9")),
        ("play.luanti.example", Some("play.luanti.example")),
    ] {
        let (heartbeat, name) = filed(EMPTY.announce(json!({"address": address})));
        assert_eq!(name.as_ref().map(|name| &*name.host), expected, "{address}");
        assert_eq!(heartbeat.address.ip(), PEER, "whatever it names, the sender is probed");
    }
    let longest = "a.".repeat(127) + "b";
    assert_eq!(longest.len(), 255);
    assert!(filed(EMPTY.announce(json!({"address": longest}))).1.is_some());
    let (_, text) = answer(EMPTY.announce(json!({"address": longest + "c"})));
    assert!(text.starts_with("server_address is not a name"), "{text}");
    for bad in [
        "localhost",
        "x.local",
        "a b.org",
        "-a.org",
        "a.org:30000",
        "http://a.org",
        "é.org",
        "play.example.org",
        "game.minetest.net",
        "1.2.3",
        "a.org/x",
        &"a.".repeat(200),
    ] {
        let (status, text) = answer(EMPTY.announce(json!({"address": bad})));
        assert!(status == 400 && text.contains("server_address"), "{bad}: {status} {text}");
    }
}

#[test]
fn players_are_counted_over_the_updates_and_a_restart_counts_anew() {
    let (first, _) = filed(EMPTY.announce(json!({"clients": 4, "clients_list": null, "uptime": 100})));
    let first = first.said.unwrap();
    let world = listed(&first);
    let (second, _) = filed(world.announce(json!({"clients": 2, "clients_list": null, "uptime": 400})));
    let second = second.said.unwrap();
    let rules = |facts: &Facts<'_>| ["clients_top", "pop_v_milli", "updates"].map(|key| number(facts, key));
    assert_eq!((rules(&first), rules(&second)), ([4, 4_000, 1], [4, 3_000, 2]));
    let (third, _) = filed(listed(&second).announce(json!({"clients": 0, "clients_list": null, "uptime": 400})));
    assert_eq!(rules(&third.said.unwrap()), [4, 2_000, 3], "the same uptime again is no less");
    // The announcement of its start got lost: the first update has less uptime than before.
    let (restarted, _) = filed(world.announce(json!({"clients": 3, "clients_list": null, "uptime": 99})));
    assert_eq!(rules(&restarted.said.unwrap()), [3, 3_000, 1]);
    let (again, _) = filed(world.announce(json!({"action": "start", "uptime": 0, "clients": 1, "clients_list": null})));
    assert_eq!(rules(&again.said.unwrap()), [1, 1_000, 1], "a start counts anew");
}

#[test]
fn the_clients_continent_or_null() {
    let page = |is_on| GeoPage { is_on, places: Surroundings::default().places }.get(PEER, "");
    assert!(GeoPage { is_on: true, places: Surroundings::default().places }.is_for_one(), "no cache may keep it");
    let RouteAnswer::Answer(answer) = page(true) else { panic!() };
    assert_eq!((answer.status, &*answer.body), (200, "{\"continent\":null}\n"));
    assert!(matches!(page(false), RouteAnswer::Refused { status: 404, .. }));
}

#[test]
fn a_server_that_was_unlisted_because_it_did_not_answer_keeps_what_it_said() {
    let (start, _) =
        filed(EMPTY.announce(
            json!({"action": "start", "mods": ["beds"], "privs": "shout", "clients": 4, "clients_list": null}),
        ));
    let unlisted = World { is_listed: false, ..listed(&start.said.unwrap()) };
    let (update, _) = filed(unlisted.announce(json!({"clients": 2, "clients_list": null})));
    let facts = update.said.unwrap();
    for (rule, value) in [("mods", "beds"), ("privs", "shout"), ("clients_top", "4"), ("pop_v_milli", "3000")] {
        assert_eq!(facts.rule(rule), Some(value), "{rule}");
    }
    let delete =
        answer(unlisted.post("application/x-www-form-urlencoded", br#"json={"action":"delete","port":30000}"#));
    assert_eq!(delete, (200, "Server to remove not found.".into()));
}
