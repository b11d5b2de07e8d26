//! A game server's side of the handshake: its announcement, and the cookie sent back.

use super::wire::{Announcement, FromMaster, HANDSHAKE, HEARTBEAT_VERSION, Version};
use crate::model::{Address, Facts, VersionText};
use crate::protocols::{Fault, fault, pick};

/// As the game itself does: so many announcements a second apart, and the next burst so long after this one began.
pub const BURST: u32 = 5;
pub const BURST_GAP_MS: u64 = 1_000;
pub const BURST_EVERY_MS: u64 = 40_000;

/// The announcement of a server. Without a version of its own, it speaks as the current game.
pub fn announcement(of: &Facts<'_>, at: Address) -> Vec<u8> {
    let announcement = Announcement {
        version: of.version.parse().unwrap_or(CURRENT),
        port: at.port(),
        players_current: of.players_current.unwrap_or(0),
        players_max: of.players_max.unwrap_or(0),
        name: of.name.as_bytes(),
        mode: of.mode.as_bytes(),
        map: of.map.as_bytes(),
    };
    announcement.emit(HEARTBEAT_VERSION).to_vec()
}

/// What to answer to a master, or why it wants no more announcements like this.
pub fn answer(master: &[u8]) -> Result<Vec<u8>, Fault> {
    match FromMaster::parse(master).map_err(|_| fault("not what a master answers"))? {
        FromMaster::Accepted { cookie } => Ok([&HANDSHAKE, cookie].concat()),
        FromMaster::BadVersion { heartbeat_version, version } => {
            Err(fault(format_args!("it wants version {version}, heartbeat {heartbeat_version}")))
        }
        FromMaster::BadFormat => Err(fault("it does not understand the announcement")),
    }
}

/// What the current game sends, 0.2.1-37.
const CURRENT: Version = Version(0x0080_8025);

pub fn pretend(number: usize) -> Facts<'static> {
    let players_max = [16, 32, 64].into_iter().cycle().nth(number % 3).unwrap_or(64);
    Facts {
        name: format!("Glacier {}", number + 1).into(),
        mode: pick(&["ctf", "tdm", "dm", "build"], number).into(),
        map: pick(&["mesa.vxl", "nucflag.icemap", "ctfbase.vxl"], number).into(),
        version: VersionText::from("0.2.1-37").unwrap_or_default(),
        players_current: Some((number * 5 % (players_max + 1)) as u16),
        players_max: Some(players_max as u16),
        ..Facts::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::iceball::wire::BODY;

    #[test]
    fn announces_what_it_is() {
        let facts = pretend(3);
        let bytes = announcement(&facts, "203.0.113.5:20737".parse().unwrap());
        let read = Announcement::parse_body(&bytes[BODY..]).unwrap();
        assert_eq!((read.name, read.mode, read.port), (&b"Glacier 4"[..], &b"build"[..], 20737));
        assert_eq!(read.version.to_string(), "0.2.1-37");
    }

    #[test]
    fn echoes_the_cookie_and_explains_refusals() {
        assert_eq!(answer(b"MSOK\0\xffcookie"), Ok(b"HSHK\0\xffcookie".to_vec()));
        assert_eq!(answer(b"BADV\x02\0\0\x80\x80\0").unwrap_err().as_str(), "it wants version 0.2.1, heartbeat 2");
        assert!(answer(b"BADF").is_err() && answer(b"what").is_err() && answer(b"").is_err());
    }
}
