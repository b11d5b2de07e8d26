//! The events of Iceball's datagrams.

use super::serve;
use super::settings::Settings;
use super::wire::{ANNOUNCEMENT_SIZE, Version};
use crate::protocols::event::{AcceptedEvents, EventKind, Severity, Text, own};
use crate::protocols::section::Section;

pub static ALL: [&EventKind; 7] = [
    &COOKIE_SENT,
    &COOKIE_RETURNED,
    &COOKIE_REPEATED,
    &BAD_VERSION,
    &BAD_VERSION_UNANSWERED,
    &BAD_FORMAT,
    &BAD_FORMAT_UNANSWERED,
];

pub const ACCEPTED_EVENTS: AcceptedEvents = AcceptedEvents { listed: &COOKIE_RETURNED, repeated: &COOKIE_REPEATED };

pub static COOKIE_SENT: EventKind = EventKind {
    number: own(0),
    label: "cookie_sent",
    severity: Severity::Step,
    text: |_, _| "An announcement arrived, and a cookie was sent to verify its sender.".into(),
    advice: Some(|_, _| {
        "The cookie did not come back: it did not reach the server, or the server did not return it. Let UDP replies from \
         this master through the firewall, to the port that the server announces itself from."
            .into()
    }),
    ..EventKind::DROPPED
};

pub static COOKIE_RETURNED: EventKind = EventKind {
    number: own(1),
    label: "cookie_returned",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "The server returned the cookie: its address is verified.".into(),
    ..EventKind::DROPPED
};

/// A valid cookie that is not newer than the last one: nothing changed.
pub static COOKIE_REPEATED: EventKind = EventKind {
    number: own(2),
    label: "cookie_repeated",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "The server returned a cookie that is not newer than the last one; it was ignored.".into(),
    ..EventKind::DROPPED
};

/// Values: the heartbeat's version and the game's.
pub static BAD_VERSION: EventKind = EventKind {
    number: own(3),
    label: "bad_version",
    withheld: Some(&BAD_VERSION_UNANSWERED),
    text: |section, values| (version_text(section, values) + ANSWERED).into(),
    advice: VERSION_ADVICE,
    ..EventKind::DROPPED
};

pub static BAD_VERSION_UNANSWERED: EventKind = EventKind {
    number: own(4),
    label: "bad_version_unanswered",
    severity: Severity::Step,
    text: |section, values| (version_text(section, values) + WITHHELD).into(),
    advice: VERSION_ADVICE,
    ..EventKind::DROPPED
};

/// First value: the datagram's length.
pub static BAD_FORMAT: EventKind = EventKind {
    number: own(5),
    label: "bad_format",
    withheld: Some(&BAD_FORMAT_UNANSWERED),
    text: |_, values| (format_text(values) + ANSWERED).into(),
    advice: FORMAT_ADVICE,
    ..EventKind::DROPPED
};

pub static BAD_FORMAT_UNANSWERED: EventKind = EventKind {
    number: own(6),
    label: "bad_format_unanswered",
    severity: Severity::Step,
    text: |_, values| (format_text(values) + WITHHELD).into(),
    advice: FORMAT_ADVICE,
    ..EventKind::DROPPED
};

const VERSION_ADVICE: Option<Text> = Some(|section, _| {
    format!(
        "This master lists version {}. If it was your server, update it, or ask the operator. It announces itself again \
         after half an hour.",
        rules(section).version
    )
    .into()
});

const FORMAT_ADVICE: Option<Text> = Some(|_, _| {
    format!(
        "If it was your server, the program that announces it is broken: an announcement has {ANNOUNCEMENT_SIZE} bytes. It \
         announces itself again after half an hour."
    )
    .into()
});

const ANSWERED: &str = " The sender was informed. Its address is not verified, so the datagram may be forged.";
const WITHHELD: &str =
    " No reply was sent: a server at this address is verified, so the datagram may be forged to silence it.";

fn version_text(section: &dyn Section, [heartbeat_version, version]: [u32; 2]) -> String {
    let rules = rules(section);
    format!(
        "An announcement arrived with version {} (heartbeat {heartbeat_version}); expected is {} (heartbeat {}).",
        Version(version),
        rules.version,
        rules.heartbeat_version
    )
}

fn format_text([length, _]: [u32; 2]) -> String {
    format!("An announcement arrived with {length} bytes instead of {ANNOUNCEMENT_SIZE}.")
}

fn rules(section: &dyn Section) -> serve::Settings {
    section.as_any().downcast_ref().map(|settings: &Settings| settings.rules).unwrap_or_default()
}
