//! Events of the Quake III family's datagrams. The protocol has no error replies, so this is where server owners learn what is
//! wrong.

use super::settings::Settings;
use crate::protocols::event::{AcceptedEvents, Event, EventKind, Severity, Text, own};
use crate::protocols::section::Section;

pub static ALL: [&EventKind; 17] = [
    &GETINFO_SENT,
    &INFO_ACCEPTED,
    &INFO_REPEATED,
    &NO_TAG,
    &UNKNOWN_TAG,
    &DEAD_TAG,
    &BAD_REQUEST,
    &NO_CHALLENGE,
    &CHALLENGE_FORGED,
    &CHALLENGE_OLD,
    &NO_PROTOCOL,
    &NO_MAX_CLIENTS,
    &NO_CLIENTS,
    &NO_GAME_NAME,
    &BAD_GAME_NAME,
    &OTHER_GAME,
    &BAD_GAME_TYPE,
];

pub const ACCEPTED_EVENTS: AcceptedEvents = AcceptedEvents { listed: &INFO_ACCEPTED, repeated: &INFO_REPEATED };

pub static GETINFO_SENT: EventKind = EventKind {
    number: own(0),
    label: "getinfo_sent",
    severity: Severity::Step,
    text: |_, _| "A heartbeat arrived, and getinfo was sent to verify its sender.".into(),
    advice: Some(|_, _| {
        "The server did not answer getinfo. Let UDP from this master through the firewall to the port that the game is \
         played on. The heartbeat must come from that port, too: NAT must not change it."
            .into()
    }),
    ..EventKind::DROPPED
};

pub static INFO_ACCEPTED: EventKind = EventKind {
    number: own(1),
    label: "info_accepted",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "The server answered getinfo: its address is verified.".into(),
    ..EventKind::DROPPED
};

/// A valid answer that is not newer than the last one: nothing changed.
pub static INFO_REPEATED: EventKind = EventKind {
    number: own(2),
    label: "info_repeated",
    severity: Severity::Good,
    sender_proven: Some(true),
    text: |_, _| "The server answered getinfo again and said nothing new; it was ignored.".into(),
    ..EventKind::DROPPED
};

pub static NO_TAG: EventKind = EventKind {
    number: own(3),
    label: "dropped_no_tag",
    text: |_, _| "A heartbeat arrived without a tag.".into(),
    advice: TAG_ADVICE,
    ..EventKind::DROPPED
};

/// Its values are the first eight bytes of the tag.
pub static UNKNOWN_TAG: EventKind = EventKind {
    number: own(4),
    label: "dropped_unknown_tag",
    text: |_, values| {
        format!("A heartbeat arrived with a tag that this master does not know, {}.", start(values)).into()
    },
    advice: TAG_ADVICE,
    ..EventKind::DROPPED
};

/// Anyone can send this, so it ends nothing.
pub static DEAD_TAG: EventKind = EventKind {
    number: own(5),
    label: "dropped_dead_tag",
    severity: Severity::Step,
    text: |_, _| "The server announced that it goes away. It stays listed until it no longer answers.".into(),
    ..EventKind::DROPPED
};

pub static BAD_REQUEST: EventKind = EventKind {
    number: own(6),
    label: "dropped_bad_request",
    severity: Severity::Step,
    text: |_, _| "A client asked for a list without a protocol number, or with a game's name that is too long.".into(),
    ..EventKind::DROPPED
};

pub static NO_CHALLENGE: EventKind = EventKind {
    number: own(7),
    label: "dropped_no_challenge",
    text: |_, _| "An infoResponse arrived without a challenge.".into(),
    advice: CHALLENGE_ADVICE,
    ..EventKind::DROPPED
};

pub static CHALLENGE_FORGED: EventKind = EventKind {
    number: own(8),
    label: "dropped_challenge_forged",
    text: |_, _| "An infoResponse arrived with a challenge that was not sent to this address and port.".into(),
    advice: CHALLENGE_ADVICE,
    ..EventKind::DROPPED
};

pub static CHALLENGE_OLD: EventKind = EventKind {
    number: own(9),
    label: "dropped_challenge_old",
    sender_proven: Some(true),
    text: |_, _| "An infoResponse arrived more than a minute after its getinfo.".into(),
    advice: Some(|_, _| {
        "The server answers getinfo too late: look at its load and its network. It is listed when it answers in time."
            .into()
    }),
    ..EventKind::DROPPED
};

pub static NO_PROTOCOL: EventKind = EventKind {
    number: own(10),
    label: "refused_no_protocol",
    text: |_, _| "The server's infoResponse has no protocol, or one that is not a whole number.".into(),
    advice: Some(|_, _| "Lists are made by protocol number: let the server say `protocol` in its infoResponse.".into()),
    ..REFUSED
};

pub static NO_MAX_CLIENTS: EventKind = EventKind {
    number: own(11),
    label: "refused_no_sv_maxclients",
    text: |_, _| "The server's infoResponse has no sv_maxclients, or one that is not above 0.".into(),
    advice: Some(|_, _| "Set sv_maxclients to the number of players that the server takes.".into()),
    ..REFUSED
};

pub static NO_CLIENTS: EventKind = EventKind {
    number: own(12),
    label: "refused_no_clients",
    text: |_, _| "The server's infoResponse does not say how many clients it has.".into(),
    advice: Some(|_, _| "Let the server say `clients` in its infoResponse, 0 if nobody plays.".into()),
    ..REFUSED
};

pub static NO_GAME_NAME: EventKind = EventKind {
    number: own(13),
    label: "refused_no_gamename",
    text: |section, values| {
        format!("The server's infoResponse has no gamename, which its tag {} requires.", tag(section, values)).into()
    },
    advice: Some(|_, _| "Let the server say `gamename` in its infoResponse; in ioquake3 that is com_gamename.".into()),
    ..REFUSED
};

pub static BAD_GAME_NAME: EventKind = EventKind {
    number: own(14),
    label: "refused_bad_gamename",
    text: |_, _| {
        "The server's gamename cannot be listed: it has blanks, more than 63 bytes or other characters than a name has, or \
         it is the name of another protocol."
            .into()
    },
    advice: Some(|_, _| "Give the game a name of up to 63 characters without blanks.".into()),
    ..REFUSED
};

/// Its first value is the number of the tag.
pub static OTHER_GAME: EventKind = EventKind {
    number: own(15),
    label: "refused_other_game",
    text: |section, values| {
        format!("The server's gamename is not the game of its tag {}.", tag(section, values)).into()
    },
    advice: Some(|section, values| {
        let game = tags(section).by_number(values[0] as u8).and_then(|tag| tag.game.clone());
        format!(
            "Servers with this tag are listed as {}. Other games announce themselves with the tag DarkPlaces, or with one \
             that the operator adds to quake3.tags.",
            game.as_deref().unwrap_or("their gamename")
        )
        .into()
    }),
    ..REFUSED
};

pub static BAD_GAME_TYPE: EventKind = EventKind {
    number: own(16),
    label: "refused_bad_gametype",
    text: |_, _| "The server's gametype has blanks, or more than 31 bytes.".into(),
    advice: Some(|_, _| "Give the game type a name of up to 31 characters without blanks, or leave it out.".into()),
    ..REFUSED
};

/// An infoResponse with a valid challenge: its sender is proven.
const REFUSED: EventKind = EventKind { sender_proven: Some(true), ..EventKind::DROPPED };

const TAG_ADVICE: Option<Text> = Some(|section, _| {
    let names: Vec<String> = tags(section).all().map(|tag| tag.name.to_string()).collect();
    format!("This master knows the tags {}. Its operator can add more under quake3.tags.", names.join(", ")).into()
});

const CHALLENGE_ADVICE: Option<Text> = Some(|_, _| {
    "The answer to getinfo must come from the address and port that the heartbeat came from, with the challenge unchanged. \
     NAT can cause this: let the server keep one address and port towards this master."
        .into()
});

/// An unknown tag, as far as there is room for it.
pub fn unknown_tag(name: &[u8]) -> Event {
    let mut start = [0; 8];
    for (to, from) in start.iter_mut().zip(name) {
        *to = *from;
    }
    let [a, b, c, d, e, f, g, h] = start;
    UNKNOWN_TAG.event().with([u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h])])
}

fn start([first, second]: [u32; 2]) -> String {
    let bytes = [first.to_be_bytes(), second.to_be_bytes()].concat();
    let name: String = bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
    let name: String = name.chars().map(|c| if c.is_ascii_graphic() { c } else { '.' }).collect();
    if name.len() < bytes.len() { format!("`{name}`") } else { format!("one that begins with `{name}`") }
}

fn tags(section: &dyn Section) -> super::tags::Tags {
    section.as_any().downcast_ref::<Settings>().map(Settings::all_tags).unwrap_or_default()
}

fn tag(section: &dyn Section, [number, _]: [u32; 2]) -> String {
    let tags = tags(section);
    u8::try_from(number).ok().and_then(|number| tags.by_number(number)).map_or("?".into(), |tag| tag.name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::section::defaults;

    #[test]
    fn owners_read_what_to_do() {
        let section = defaults::<Settings>();
        let text = |event: Event| (event.kind.text)(&*section, event.values).into_owned();
        assert!(text(unknown_tag(b"Nope")).contains("`Nope`"));
        assert!(text(unknown_tag(b"Tremulous-1")).contains("begins with `Tremulou`"));
        assert!(text(unknown_tag(b"\xff\x1b[")).contains("`..[`"));
        let other = OTHER_GAME.event().with([1, 0]);
        assert!(text(other).contains("QuakeArena-1"));
        let advice = |event: Event| event.kind.advice.unwrap()(&*section, event.values).into_owned();
        assert!(advice(other).contains("Quake3Arena") && advice(unknown_tag(b"x")).contains("EnemyTerritory-1"));
    }
}
