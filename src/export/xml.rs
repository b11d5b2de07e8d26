//! XML in the format of Hyperbol's own script, for all games: root `serverlist` with `localtime` and `gmtime`; one `server`
//! element each with `ip`, `port`, `responding` 0 or 1 and, if responding, `servername`, `gametype`, `playercount`,
//! `maxplayercount`, `mapname`, `version`, `skill`, `flavor`, `ping_milliseconds`.
//!
//! Two additions: `fault`, why a server did not respond, and `via`, the master that named it. Unknown values are omitted, and so is `responding` if the server was
//! not queried.

use jiff::Zoned;
use jiff::tz::TimeZone;
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesEnd, BytesStart, Event};

use crate::client::Found;
use crate::protocols::own_card;

pub fn write(servers: &[Found], now: &Zoned) -> String {
    let mut writer = Writer::new_with_indent(Vec::new(), b' ', 2);
    let mut root = BytesStart::new("serverlist");
    root.push_attribute(("localtime", &*time(now)));
    root.push_attribute(("gmtime", &*time(&now.with_time_zone(TimeZone::UTC))));
    let mut event = |event: Event<'_>| {
        let _ = writer.write_event(event); // writing to memory cannot fail
    };
    event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)));
    event(Event::Start(root));
    servers.iter().for_each(|found| event(Event::Empty(element(found))));
    event(Event::End(BytesEnd::new("serverlist")));
    String::from_utf8(writer.into_inner()).unwrap_or_default() + "\n"
}

/// RFC 3339, to the second.
fn time(at: &Zoned) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

fn element(found: &Found) -> BytesStart<'static> {
    let mut element = BytesStart::new("server");
    // XML has no representation for these characters, not even escaped. Control characters have been removed already.
    let mut set = |name: &str, value: &str| {
        let value = value.replace(['\u{fffe}', '\u{ffff}'], "\u{fffd}");
        element.push_attribute((name, &*value));
    };
    set("ip", &found.address.ip().to_string());
    set("port", &found.address.port().to_string());
    if let Some(responding) = found.responding() {
        set("responding", if responding { "1" } else { "0" });
    }
    if let Some(why) = found.failure() {
        set("fault", why);
    }
    if let Some(via) = &found.via {
        set("via", via);
    }
    let facts = &found.facts;
    if found.responding() == Some(true) {
        set("servername", &facts.name);
        set("gametype", &facts.mode);
        let numbers = [
            ("playercount", facts.players_current.map(u32::from)),
            ("maxplayercount", facts.players_max.map(u32::from)),
        ];
        for (name, number) in numbers {
            number.into_iter().for_each(|number| set(name, &number.to_string()));
        }
        set("mapname", &facts.map);
        set("version", &facts.version);
        for (name, value) in own_card(&found.game).map_or(&[][..], |card| card.xml_attributes) {
            value(facts).into_iter().for_each(|value| set(name, &value));
        }
        let numbers =
            [("flavor", found.flavor.map(u32::from)), ("ping_milliseconds", found.rtt_us.map(|rtt_us| rtt_us / 1000))];
        for (name, number) in numbers {
            number.into_iter().for_each(|number| set(name, &number.to_string()));
        }
    }
    element
}

#[cfg(test)]
mod tests {
    use super::super::tests::servers;
    use super::*;

    #[test]
    fn the_scripts_names_as_another_parser_reads_them() {
        let now: Zoned = "2026-03-01T12:34:56.789+01:00[+01:00]".parse().unwrap();
        let text = write(&servers(), &now);
        let document = roxmltree::Document::parse(&text).unwrap();
        let root = document.root_element();
        assert_eq!(root.tag_name().name(), "serverlist");
        assert_eq!(root.attribute("localtime"), Some("2026-03-01T12:34:56+01:00"));
        assert_eq!(root.attribute("gmtime"), Some("2026-03-01T11:34:56+00:00"));
        let servers: Vec<Vec<(&str, &str)>> = (root.children().filter(|node| node.is_element()))
            .map(|node| node.attributes().map(|attribute| (attribute.name(), attribute.value())).collect())
            .collect();
        assert_eq!(
            servers[0],
            [
                ("ip", "203.0.113.5"),
                ("port", "20200"),
                ("responding", "1"),
                ("servername", "A \"quoted\", <b>&amp;</b> name"),
                ("gametype", "Deathmatch"),
                ("playercount", "3"),
                ("maxplayercount", "8"),
                ("mapname", "a_doommkii.hba"),
                ("version", "1.08b"),
                ("skill", "4"),
                ("flavor", "4"),
                ("ping_milliseconds", "12"),
            ]
        );
        assert_eq!(servers[1], [("ip", "203.0.113.6"), ("port", "20200"), ("responding", "0"), ("fault", "no answer")]);
        assert_eq!(servers[2], [("ip", "2001:db8::1"), ("port", "3030")]);
    }

    #[test]
    fn what_xml_cannot_carry_is_replaced_and_an_empty_list_is_a_list() {
        let mut one = servers();
        one.truncate(1);
        one[0].facts.name = "a\u{ffff}b ünïcödé 日本".into();
        let text = write(&one, &Zoned::now());
        let document = roxmltree::Document::parse(&text).unwrap();
        let server = document.descendants().find(|node| node.has_tag_name("server")).unwrap();
        assert_eq!(server.attribute("servername"), Some("a\u{fffd}b ünïcödé 日本"));
        assert!(roxmltree::Document::parse(&write(&[], &Zoned::now())).is_ok());
    }
}
