//! Events of datagrams, which the metrics count and the doctor explains.
//!
//! A protocol has its own kinds of events on its card. The kinds of all datagram protocols are [`SHARED`].

use std::borrow::Cow;
use std::fmt;
use std::net::SocketAddr;

use super::is_one_host;
use super::section::Section;
use crate::cookie;

/// A kind of event.
pub struct EventKind {
    /// Its index among the counters of its protocol, so that counting needs no search: below `SHARED_MAX` for [`SHARED`],
    /// from [`own`] for a protocol's own kinds.
    pub number: u8,
    /// Its name in the metrics and in the doctor's JSON. Kinds with the same label are counted together.
    pub label: &'static str,
    pub severity: Severity,
    /// For a complaint, a reply after which a game stops announcing itself. The request may be forged, so the reply is withheld
    /// if a living server at that address has returned a cookie. The event is then recorded as this kind.
    pub withheld: Option<&'static EventKind>,
    /// Whether the datagram certainly came from its source address. None if nothing was received.
    pub sender_proven: Option<bool>,
    /// What happened, for the server's owner.
    pub text: Text,
    /// What the owner can do, if this is the last event of a server that is not listed.
    pub advice: Option<Text>,
}

/// A text from the protocol's settings and the event's values.
pub type Text = fn(&dyn Section, [u32; 2]) -> Cow<'static, str>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// A step of an exchange, or a datagram without consequences: explains a missing server only if nothing else does.
    Step,
    /// Everything is fine.
    Good,
    /// Why a server may not be listed. Kept longer than the others.
    Problem,
}

/// An event of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: &'static EventKind,
    /// The announced port; 0 if the datagram has none.
    pub port: u16,
    /// Values for the kind's texts.
    pub values: [u32; 2],
}

impl Event {
    pub fn on_port(self, port: u16) -> Event {
        Event { port, ..self }
    }

    pub fn with(self, values: [u32; 2]) -> Event {
        Event { values, ..self }
    }

    /// Whether the reply stops a game from announcing itself.
    pub fn is_complaint(&self) -> bool {
        self.kind.withheld.is_some()
    }

    /// The same event with its reply withheld.
    pub fn withheld(self) -> Event {
        Event { kind: self.kind.withheld.unwrap_or(self.kind), ..self }
    }
}

/// Why this cannot be a game server's source address, if so.
pub fn bad_source(from: SocketAddr) -> Option<Event> {
    if from.port() == 0 {
        return Some(SOURCE_PORT_0.event());
    }
    (!is_one_host(from.ip())).then(|| SOURCE_ADDRESS.event())
}

/// A cookie that was not accepted.
pub fn bad_cookie(refusal: cookie::Refusal) -> Event {
    let kind = match refusal {
        cookie::Refusal::Short => &COOKIE_SHORT,
        cookie::Refusal::UnknownKey => &COOKIE_UNKNOWN_KEY,
        cookie::Refusal::Forged => &COOKIE_FORGED,
        cookie::Refusal::Old => &COOKIE_OLD,
    };
    kind.event()
}

/// The kinds of events of announcements that the registry has accepted.
#[derive(Clone, Copy, Debug)]
pub struct AcceptedEvents {
    pub listed: &'static EventKind,
    /// A valid proof that is not newer than the last one: nothing changed.
    pub repeated: &'static EventKind,
}

impl EventKind {
    /// A datagram that is ignored. Other kinds are defined as differences from this one.
    pub const DROPPED: EventKind = EventKind {
        number: 0,
        label: "",
        severity: Severity::Problem,
        withheld: None,
        sender_proven: Some(false),
        text: |_, _| "".into(),
        advice: None,
    };

    pub const fn event(&'static self) -> Event {
        Event { kind: self, port: 0, values: [0; 2] }
    }
}

/// Labels are unique within a protocol; a test checks this.
impl PartialEq for EventKind {
    fn eq(&self, other: &EventKind) -> bool {
        self.label == other.label
    }
}

impl Eq for EventKind {}

impl fmt::Debug for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label)
    }
}

/// Numbers below this one are for [`SHARED`].
const SHARED_MAX: u8 = 24;
/// All numbers are below this one.
pub const NUMBERS: usize = 64;

/// The number of a protocol's own kind: 0, 1, 2, …
pub const fn own(index: u8) -> u8 {
    SHARED_MAX + index
}

/// The events of all datagram protocols.
pub static SHARED: [&EventKind; 11] = [
    &TOO_SHORT,
    &UNKNOWN_MESSAGE,
    &SOURCE_PORT_0,
    &ANNOUNCED_PORT_0,
    &SOURCE_ADDRESS,
    &COOKIE_CONTENT,
    &COOKIE_SHORT,
    &COOKIE_UNKNOWN_KEY,
    &COOKIE_FORGED,
    &COOKIE_OLD,
    &TOO_MANY,
];

const NO_MESSAGE: Text = |_, _| "A datagram arrived that is not a message of the game that this port is for.".into();
const PORT_0: Text = |_, _| "Ignored an announcement with port 0, which is not a valid port.".into();
const FOREIGN_COOKIE: Text = |_, _| "A cookie came back that was not sent to this address and port.".into();
const COOKIE_ADVICE: Option<Text> = Some(|_, _| {
    "A cookie came back too late, or from another address or port than it was sent to. NAT can cause this: let the server \
     keep one address and port towards this master."
        .into()
});

pub static TOO_SHORT: EventKind =
    EventKind { number: 0, label: "dropped_too_short", text: NO_MESSAGE, ..EventKind::DROPPED };
pub static UNKNOWN_MESSAGE: EventKind =
    EventKind { number: 1, label: "dropped_unknown_magic", text: NO_MESSAGE, ..EventKind::DROPPED };
pub static SOURCE_PORT_0: EventKind =
    EventKind { number: 2, label: "dropped_source_port_0", text: PORT_0, ..EventKind::DROPPED };
pub static ANNOUNCED_PORT_0: EventKind =
    EventKind { number: 3, label: "dropped_announced_port_0", text: PORT_0, ..EventKind::DROPPED };
/// The source address is not that of a single host.
pub static SOURCE_ADDRESS: EventKind = EventKind {
    number: 4,
    label: "dropped_source_address",
    text: |_, _| "Ignored a datagram from an address that does not belong to a single host.".into(),
    ..EventKind::DROPPED
};
/// The cookie is valid, but its content is not an announcement.
pub static COOKIE_CONTENT: EventKind = EventKind {
    number: 5,
    label: "dropped_cookie_content",
    text: |_, _| "A cookie came back that does not contain an announcement.".into(),
    ..EventKind::DROPPED
};
/// The address has no budget left for the reply.
pub static TOO_MANY: EventKind = EventKind {
    number: 10,
    label: "dropped_too_many",
    text: |_, _| "Ignored an announcement: too many arrive from this address at once.".into(),
    advice: Some(|_, _| {
        "Too many announcements arrive from this address. Where nobody forges them, ask the operator of this master to \
         allow more servers there."
            .into()
    }),
    ..EventKind::DROPPED
};
pub static COOKIE_SHORT: EventKind = EventKind {
    number: 6,
    label: "dropped_cookie_short",
    text: FOREIGN_COOKIE,
    advice: COOKIE_ADVICE,
    ..EventKind::DROPPED
};
pub static COOKIE_UNKNOWN_KEY: EventKind = EventKind {
    number: 7,
    label: "dropped_cookie_unknown_key",
    text: FOREIGN_COOKIE,
    advice: COOKIE_ADVICE,
    ..EventKind::DROPPED
};
pub static COOKIE_FORGED: EventKind = EventKind {
    number: 8,
    label: "dropped_cookie_forged",
    text: FOREIGN_COOKIE,
    advice: COOKIE_ADVICE,
    ..EventKind::DROPPED
};
pub static COOKIE_OLD: EventKind = EventKind {
    number: 9,
    label: "dropped_cookie_old",
    text: |_, _| "A cookie came back too late.".into(),
    advice: COOKIE_ADVICE,
    ..EventKind::DROPPED
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::CARDS;
    use std::collections::HashSet;

    #[test]
    fn only_a_complaint_can_be_withheld() {
        const QUIET: EventKind = EventKind { label: "quiet", ..EventKind::DROPPED };
        const LOUD: EventKind = EventKind { label: "loud", withheld: Some(&QUIET), ..EventKind::DROPPED };
        let (quiet, loud) = (const { &QUIET }.event().on_port(7), const { &LOUD }.event().on_port(7));
        assert!(loud.is_complaint() && !quiet.is_complaint());
        assert_ne!(loud.kind, quiet.kind);
        assert_eq!(format!("{:?} {:?}", loud.kind, quiet.kind), "loud quiet");
        let withheld = loud.withheld();
        assert_eq!((withheld.kind, withheld.port), (&QUIET, 7));
        assert_eq!(quiet.withheld().kind, &QUIET);
    }

    #[test]
    fn numbers_and_labels_are_unique_and_every_kind_can_be_explained() {
        assert!(SHARED.iter().all(|kind| kind.number < SHARED_MAX));
        for card in CARDS {
            let section = (card.section)();
            assert!(card.events.iter().all(|kind| (own(0)..NUMBERS as u8).contains(&kind.number)), "{}", card.name);
            let kinds: Vec<_> = SHARED.iter().chain(card.events).collect();
            let numbers: HashSet<_> = kinds.iter().map(|kind| kind.number).collect();
            let labels: HashSet<_> = kinds.iter().map(|kind| kind.label).collect();
            assert_eq!((numbers.len(), labels.len()), (kinds.len(), kinds.len()), "{}", card.name);
            for kind in &kinds {
                let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
                assert!(!kind.label.is_empty() && kind.label.bytes().all(is_plain), "{kind:?}");
                if let Some(withheld) = kind.withheld {
                    assert!(kinds.contains(&&withheld), "{withheld:?} is not on the card");
                    assert!(withheld.severity == Severity::Step && withheld.withheld.is_none(), "{withheld:?}");
                }
                for values in [[0; 2], [u32::MAX; 2]] {
                    for text in [Some(kind.text), kind.advice].into_iter().flatten() {
                        let text = text(&*section, values);
                        assert!(text.ends_with('.') && text.starts_with(char::is_uppercase), "{kind:?}: {text}");
                    }
                }
            }
        }
    }

    #[test]
    fn sources_that_are_not_game_servers() {
        for (from, kind) in [
            ("203.0.113.5:0", Some(&SOURCE_PORT_0)),
            ("224.0.0.1:1", Some(&SOURCE_ADDRESS)),
            ("[::]:1", Some(&SOURCE_ADDRESS)),
            ("203.0.113.5:1", None),
        ] {
            assert_eq!(bad_source(from.parse().unwrap()).map(|event| event.kind), kind, "{from}");
        }
    }
}
