//! Events of Xash3D's datagrams. The protocol has no error replies, so this is where server owners learn what is wrong.

use super::settings::Settings;
use super::wire::Version;
use crate::protocols::event::{AcceptedEvents, EventKind, Severity, Text, own};

pub static ALL: [&EventKind; 13] = [
    &CHALLENGE_SENT,
    &ADD_ACCEPTED,
    &ADD_REPEATED,
    &CHALLENGE_LENGTH,
    &NO_PAIRS,
    &BAD_VALUE,
    &NO_CHALLENGE,
    &TOO_LONG,
    &CHALLENGE_FORGED,
    &CHALLENGE_OLD,
    &OLD_VERSION,
    &REMOVE_IGNORED,
    &BAD_QUERY,
];

pub const ACCEPTED_EVENTS: AcceptedEvents = AcceptedEvents { listed: &ADD_ACCEPTED, repeated: &ADD_REPEATED };

pub static CHALLENGE_SENT: EventKind = EventKind {
    number: own(0),
    label: "challenge_sent",
    severity: Severity::Step,
    text: |_, _| "The server asked for a challenge, and it was sent.".into(),
    advice: Some(|_, _| {
        "The server did not return the challenge. Let UDP from this master through the firewall to the port that the game is \
         played on. If the answers take long, raise sv_master_response_timeout."
            .into()
    }),
    ..EventKind::DROPPED
};

pub static ADD_ACCEPTED: EventKind = EventKind {
    number: own(1),
    label: "add_accepted",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "The server returned the challenge: its address is verified.".into(),
    ..EventKind::DROPPED
};

/// A challenge that has been used: nothing changed.
pub static ADD_REPEATED: EventKind = EventKind {
    number: own(2),
    label: "add_repeated",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "An announcement arrived again, with a challenge that was used before; it was ignored.".into(),
    ..EventKind::DROPPED
};

pub static CHALLENGE_LENGTH: EventKind = EventKind {
    number: own(3),
    label: "dropped_challenge_length",
    text: |_, _| "A request for a challenge arrived that is too long or too short.".into(),
    ..EventKind::DROPPED
};

pub static NO_PAIRS: EventKind = EventKind {
    number: own(4),
    label: "dropped_no_pairs",
    text: |_, _| "An announcement arrived that is not made of keys and values, or has a NUL inside.".into(),
    advice: GAME_ADVICE,
    ..EventKind::DROPPED
};

pub static BAD_VALUE: EventKind = EventKind {
    number: own(5),
    label: "dropped_bad_value",
    text: |_, _| "An announcement arrived with a number, flag or region that is not valid.".into(),
    advice: Some(|_, _| {
        "Look at the server's settings: players, max and bots must be 0 to 255, and region 0 to 7 or 255.".into()
    }),
    ..EventKind::DROPPED
};

pub static NO_CHALLENGE: EventKind = EventKind {
    number: own(6),
    label: "dropped_no_challenge",
    text: |_, _| "An announcement arrived without a challenge.".into(),
    advice: GAME_ADVICE,
    ..EventKind::DROPPED
};

pub static TOO_LONG: EventKind = EventKind {
    number: own(7),
    label: "dropped_too_long",
    text: |_, _| "An announcement arrived with a gamedir or map of more than 63 bytes.".into(),
    advice: Some(|_, _| "Give the game's folder and the map names of up to 63 bytes.".into()),
    ..EventKind::DROPPED
};

pub static CHALLENGE_FORGED: EventKind = EventKind {
    number: own(8),
    label: "dropped_challenge_forged",
    text: |_, _| "An announcement arrived with a challenge that was not sent to this address and port.".into(),
    advice: Some(|_, _| {
        "The announcement must come from the address and port that asked for the challenge. NAT can cause this: let the \
         server keep one address and port towards this master."
            .into()
    }),
    ..EventKind::DROPPED
};

pub static CHALLENGE_OLD: EventKind = EventKind {
    number: own(9),
    label: "dropped_challenge_old",
    sender_proven: Some(true),
    text: |_, _| "An announcement arrived more than a minute after its challenge.".into(),
    advice: Some(|_, _| {
        "The server returns challenges too late: look at its load and its network. It is listed when it answers in time."
            .into()
    }),
    ..EventKind::DROPPED
};

/// Its first value is the version.
pub static OLD_VERSION: EventKind = EventKind {
    number: own(10),
    label: "refused_old_version",
    sender_proven: Some(true),
    text: |_, [version, _]| {
        let [_, major, minor, patch] = version.to_be_bytes();
        format!("The server's engine has the version {}, which is too old here.", Version { major, minor, patch })
            .into()
    },
    advice: Some(|section, _| {
        let wanted = section.as_any().downcast_ref::<Settings>().map(|settings| settings.server_version_min);
        format!("Update the engine to {} or newer.", wanted.unwrap_or_default()).into()
    }),
    ..EventKind::DROPPED
};

/// Anyone can send this, so it ends nothing.
pub static REMOVE_IGNORED: EventKind = EventKind {
    number: own(11),
    label: "dropped_remove",
    severity: Severity::Step,
    text: |_, _| "The server announced that it goes away. It stays listed until it no longer answers.".into(),
    ..EventKind::DROPPED
};

pub static BAD_QUERY: EventKind = EventKind {
    number: own(12),
    label: "dropped_bad_query",
    severity: Severity::Step,
    text: |_, _| "A client asked for a list with a region or a filter that is not valid.".into(),
    ..EventKind::DROPPED
};

const GAME_ADVICE: Option<Text> =
    Some(|_, _| "Announcements are sent by the game itself: use a current Xash3D engine.".into());
