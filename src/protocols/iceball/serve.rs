//! The master's rules for Iceball's datagrams.
//!
//! | what arrives | answer |
//! |---|---|
//! | under 4 bytes, unknown magic; `1CEB` and under 10 bytes | nothing |
//! | 10 bytes or more, a version that is not accepted | `BADV` + the expected versions |
//! | an accepted version, not 86 bytes | `BADF` |
//! | an accepted version, 86 bytes | `MSOK` + a cookie that carries the announcement |
//! | `HSHK` + anything | nothing; with a good cookie, the server is listed |
//!
//! A game that gets one `BADV` or `BADF` sends nothing to any master for 30 minutes, so these complaints are sent only when
//! they are due. A forged datagram can cause one, so none is sent to an IP address (IPv6 /64) where a living server has returned
//! its cookie. These rules do not see the list: they mark an answer as a complaint, and the caller withholds it.

use std::net::SocketAddr;

use super::wire::{self, Announcement, FromMaster, ToMaster, Version, WireError};
use super::{LIFE_MS, NAME, events};
use crate::cookie::Keys;
use crate::model::{Address, Announce, Change, Facts, Game, Now, Proof, SharedTime};
use crate::protocols::event::{self, AcceptedEvents};
use crate::protocols::{Context, DatagramRules, Effect, Reply, bound_facts};
use crate::text;

/// Longer than every valid datagram: a datagram that fills the buffer is too long.
pub const DATAGRAM_BYTES_MAX: usize = 512;

/// The operator's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub heartbeat_version: u16,
    pub version: Version,
    pub life_ms: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { heartbeat_version: wire::HEARTBEAT_VERSION, version: Version(0x0080_8023), life_ms: LIFE_MS }
    }
}

#[derive(Clone, Copy)]
pub struct Rules {
    pub settings: Settings,
    pub keys: Keys,
    /// The clock of cookies, shared by all nodes: a handshake may end at another node.
    pub time: SharedTime,
}

impl DatagramRules for Rules {
    fn datagram<'a>(&self, at: &Context<'_>, from: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a> {
        if let Some(event) = event::bad_source(from) {
            return Effect::Dropped(event);
        }
        match ToMaster::parse(bytes) {
            Ok(ToMaster::Announce { heartbeat_version, version, whole }) => {
                self.announce(at.now, from, heartbeat_version, version, whole, reply)
            }
            Ok(ToMaster::Handshake { cookie }) => self.handshake(at.now, from, cookie),
            Err(WireError::TooShort) => Effect::Dropped(event::TOO_SHORT.event()),
            Err(WireError::UnknownMagic) => Effect::Dropped(event::UNKNOWN_MESSAGE.event()),
        }
    }

    fn accepted_events(&self) -> AcceptedEvents {
        events::ACCEPTED_EVENTS
    }
}

impl Rules {
    fn announce<'a>(
        &self,
        now: Now,
        from: SocketAddr,
        heartbeat_version: u16,
        version: Version,
        whole: &'a [u8],
        reply: &mut Reply,
    ) -> Effect<'a> {
        let Settings { heartbeat_version: expected_heartbeat, version: expected, .. } = self.settings;
        let body = whole.get(wire::BODY..).unwrap_or_default();
        let announcement = Announcement::parse_body(body);
        if heartbeat_version != expected_heartbeat || !version.plays_with(expected) {
            FromMaster::BadVersion { heartbeat_version: expected_heartbeat, version: expected }.emit(reply);
            // 0 if the announcement is too short to have a port.
            let port = announcement.map_or(0, |announcement| announcement.port);
            let event = events::BAD_VERSION.event().with([heartbeat_version.into(), version.0]);
            return Effect::Answered(event.on_port(port));
        }
        let Some(announcement) = announcement else {
            FromMaster::BadFormat.emit(reply);
            return Effect::Answered(events::BAD_FORMAT.event().with([whole.len() as u32, 0]));
        };
        if announcement.port == 0 {
            return Effect::Dropped(event::ANNOUNCED_PORT_0.event());
        }
        // The cookie is sealed in place after the magic: 4 + 17 + 80 bytes in answer to 86.
        FromMaster::Accepted { cookie: &[] }.emit(reply);
        self.keys.seal(self.time.unix_ms(now), from, body, reply);
        Effect::Answered(events::COOKIE_SENT.event().on_port(announcement.port))
    }

    fn handshake<'a>(&self, now: Now, from: SocketAddr, cookie: &'a [u8]) -> Effect<'a> {
        let shared_ms = self.time.unix_ms(now);
        let opened = match self.keys.open(shared_ms, from, cookie) {
            Ok(opened) => opened,
            Err(refusal) => return Effect::Dropped(event::bad_cookie(refusal)),
        };
        let Some(announcement) = Announcement::parse_body(opened.content) else {
            return Effect::Dropped(event::COOKIE_CONTENT.event());
        };
        let Some(address) = Address::new(from.ip(), announcement.port) else {
            return Effect::Dropped(event::ANNOUNCED_PORT_0.event());
        };
        let here = |ms: u64| ms.saturating_add_signed(-self.time.offset_ms(now));
        let mut facts = Facts {
            name: text::clean(announcement.name),
            mode: text::clean(announcement.mode),
            map: text::clean(announcement.map),
            version: announcement.version.text(),
            players_current: Some(announcement.players_current),
            players_max: Some(announcement.players_max),
            ..Facts::default()
        };
        bound_facts(&Game::Own(NAME), &mut facts);
        Effect::Change(Change::Announce(Announce {
            address,
            game: Game::Own(NAME),
            proof: Proof::Cookie,
            proven_at_ms: here(opened.sealed_at_ms),
            life_ms: self.settings.life_ms,
            asked: false,
            rtt_us: None,
            keys: None,
            facts,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cookie;
    use crate::protocols::event::EventKind;
    use crate::registry::view::View;
    use proptest::prelude::*;
    use std::net::IpAddr;
    use std::sync::LazyLock;

    const T: Now = Now { mono_ms: 1_000, unix_ms: 1_760_000_000_000 };

    fn later(ms: u64) -> Now {
        Now { mono_ms: T.mono_ms + ms, unix_ms: T.unix_ms + ms }
    }

    fn at(now: Now) -> Context<'static> {
        static VIEW: LazyLock<View> = LazyLock::new(|| View::new(0, 0, Vec::new()));
        Context { now, view: &VIEW }
    }

    fn rules() -> Rules {
        Rules {
            settings: Settings::default(),
            keys: Keys::new([[4; 16], [5; 16], [6; 16]]),
            time: SharedTime::default(),
        }
    }

    fn game() -> SocketAddr {
        "203.0.113.5:40000".parse().unwrap()
    }

    fn announcement(version: u32, port: u16) -> Vec<u8> {
        let announcement = Announcement {
            version: Version(version),
            port,
            players_current: 3,
            players_max: 64,
            name: b"A \x1b[1mbold\xff name",
            mode: b"ctf",
            map: "mesa é".as_bytes(),
        };
        announcement.emit(2).to_vec()
    }

    fn answer(rules: &Rules, now: Now, from: SocketAddr, bytes: &[u8]) -> Vec<u8> {
        let mut reply = Reply::new();
        rules.datagram(&at(now), from, bytes, &mut reply);
        reply.to_vec()
    }

    fn handshake_for(rules: &Rules, now: Now, bytes: &[u8]) -> Vec<u8> {
        let reply = answer(rules, now, game(), bytes);
        assert_eq!(reply[..4], wire::ACCEPTED);
        [&wire::HANDSHAKE, &reply[4..]].concat()
    }

    fn refusal(rules: &Rules, now: Now, from: SocketAddr, bytes: &[u8]) -> &'static EventKind {
        let mut reply = Reply::new();
        let effect = rules.datagram(&at(now), from, bytes, &mut reply);
        assert!(reply.is_empty());
        match effect {
            Effect::Dropped(event) => event.kind,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_table_of_answers() {
        let rules = rules();
        let good = announcement(0x0080_8025, 20737);
        let bad_version = [0x42, 0x41, 0x44, 0x56, 2, 0, 0x23, 0x80, 0x80, 0];
        let with_heartbeat = |version: u8| {
            let mut bytes = good.clone();
            bytes[4] = version;
            bytes
        };
        let silent: &[&[u8]] =
            &[b"", b"1", b"1CE", b"1CEB", b"1CEB\x02\0\0\0\0", b"XXXXXXXXXXXXXXX", b"HSHK", b"HSHKx", &[0; 2000]];
        for bytes in silent {
            assert_eq!(answer(&rules, T, game(), bytes), b"", "{bytes:?}");
        }
        for version in [0x0080_8400, 0x0080_0000, 0x0081_0000, 0x0880_8000, 0] {
            assert_eq!(answer(&rules, T, game(), &announcement(version, 1)), bad_version);
            assert_eq!(answer(&rules, T, game(), &announcement(version, 1)[..10]), bad_version);
        }
        assert_eq!(answer(&rules, T, game(), &with_heartbeat(1)), bad_version);
        assert_eq!(answer(&rules, T, game(), &with_heartbeat(3)), bad_version);
        for len in 10..86 {
            assert_eq!(answer(&rules, T, game(), &good[..len]), b"BADF", "length {len}");
        }
        assert_eq!(answer(&rules, T, game(), &[&good[..], b"\0"].concat()), b"BADF");
        let accepted = answer(&rules, T, game(), &good);
        assert_eq!(accepted[..4], *b"MSOK");
        assert!(accepted.len() * 10 <= good.len() * 12, "{} bytes for {}", accepted.len(), good.len());
    }

    #[test]
    fn port_0_is_dropped_at_either_end() {
        let rules = rules();
        let from_0 = "203.0.113.5:0".parse().unwrap();
        assert_eq!(refusal(&rules, T, from_0, &announcement(0x0080_8025, 20737)), &event::SOURCE_PORT_0);
        assert_eq!(refusal(&rules, T, game(), &announcement(0x0080_8025, 0)), &event::ANNOUNCED_PORT_0);
        for address in ["0.0.0.0:1", "255.255.255.255:1", "224.0.0.1:1", "[ff02::1]:1", "[::]:1"] {
            let from = address.parse().unwrap();
            assert_eq!(refusal(&rules, T, from, &announcement(0x0080_8025, 1)), &event::SOURCE_ADDRESS);
        }
    }

    #[test]
    fn a_handshake_proves_the_address_with_clean_text() {
        let rules = rules();
        let handshake = handshake_for(&rules, T, &announcement(0x0080_8025, 20737));
        let mut reply = Reply::new();
        let Effect::Change(Change::Announce(change)) = rules.datagram(&at(later(80)), game(), &handshake, &mut reply)
        else {
            panic!("no change")
        };
        assert!(reply.is_empty(), "a handshake is never answered");
        assert_eq!(change.address, "203.0.113.5:20737".parse().unwrap());
        assert_eq!((change.proven_at_ms, change.life_ms), (T.unix_ms, 120_000));
        assert_eq!(change.facts.name, "A [1mbold\u{fffd} name");
        assert_eq!((&*change.facts.map, &*change.facts.version), ("mesa é", "0.2.1-37"));
        assert_eq!(change.facts.mode, "ctf");
        assert_eq!((change.facts.players_current, change.facts.players_max), (Some(3), Some(64)));
    }

    #[test]
    fn no_handshake_brings_more_players_than_the_game_allows() {
        let rules = rules();
        let mut crowded = announcement(0x0080_8025, 20737);
        crowded[12..16].copy_from_slice(&[0xff; 4]);
        let handshake = handshake_for(&rules, T, &crowded);
        let mut reply = Reply::new();
        let Effect::Change(Change::Announce(change)) = rules.datagram(&at(later(80)), game(), &handshake, &mut reply)
        else {
            panic!("no change")
        };
        assert_eq!((change.facts.players_current, change.facts.players_max), (Some(512), Some(512)));
    }

    #[test]
    fn forged_foreign_and_old_cookies_are_refused() {
        let rules = rules();
        let handshake = handshake_for(&rules, T, &announcement(0x0080_8025, 20737));
        let mut forged = handshake.clone();
        forged[30] ^= 1;
        assert_eq!(refusal(&rules, T, game(), &forged), &event::COOKIE_FORGED);
        let foreign = "203.0.113.6:40000".parse().unwrap();
        assert_eq!(refusal(&rules, T, foreign, &handshake), &event::COOKIE_FORGED);
        let old = later(cookie::AGE_MAX_MS + 1);
        assert_eq!(refusal(&rules, old, game(), &handshake), &event::COOKIE_OLD);
        let other = Rules { keys: Keys::new([[7; 16], [8; 16], [9; 16]]), ..rules };
        assert_eq!(refusal(&other, T, game(), &handshake), &event::COOKIE_FORGED);
    }

    /// A node in a cluster with the right time, whose own time of day is off by `off_ms`. Its monotonic clock started at T.
    fn node(off_ms: i64) -> (Rules, impl Fn(u64) -> Now) {
        let time = SharedTime { ahead_of_mono_ms: Some(T.unix_ms as i64) };
        let now = move |ms: u64| Now { mono_ms: ms, unix_ms: (T.unix_ms + ms).saturating_add_signed(off_ms) };
        (Rules { time, ..rules() }, now)
    }

    #[test]
    fn a_handshake_ends_at_a_node_whose_clock_differs_by_an_hour() {
        for (first_ms, second_ms) in [(0, 3_600_000), (3_600_000, 0), (-2_500, 2_500), (2_500, -2_500)] {
            let ((first, first_now), (second, second_now)) = (node(first_ms), node(second_ms));
            let handshake = handshake_for(&first, first_now(5_000), &announcement(0x0080_8025, 20737));
            let mut reply = Reply::new();
            let effect = second.datagram(&at(second_now(5_080)), game(), &handshake, &mut reply);
            let Effect::Change(Change::Announce(change)) = effect else {
                panic!("{first_ms}, {second_ms}: {effect:?}")
            };
            assert_eq!(change.proven_at_ms, second_now(5_000).unix_ms, "in the second node's own time");
            let old = second_now(5_000 + cookie::AGE_MAX_MS + 1);
            assert_eq!(refusal(&second, old, game(), &handshake), &event::COOKIE_OLD);
        }
    }

    proptest! {
        #[test]
        fn anything_gets_a_small_answer_or_silence(bytes: Vec<u8>, magic: bool, ip: u32, port: u16) {
            let rules = rules();
            let from = SocketAddr::new(IpAddr::V4(ip.into()), port);
            let bytes = if magic { [&b"1CEB\x02\0\x25\x80\x80\0"[..], &bytes].concat() } else { bytes };
            let reply = answer(&rules, T, from, &bytes);
            prop_assert!(reply.len() * 10 <= bytes.len().max(1) * 12);
        }
    }
}
