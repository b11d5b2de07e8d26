//! A game server's heartbeat. The master lists the port that it comes from, so only the game itself can send it.

use super::tags::Tags;
use super::wire::HEADER;
use crate::model::Facts;

/// ioquake3's pace; DarkPlaces sends one every 120 s.
pub const EVERY_MS: u64 = 300_000;

/// The tag of games that have none of their own.
const ANY_GAME: &str = "DarkPlaces";

/// What an owner does instead of announcing it with another program.
pub const ADVICE: &str = "set sv_master1 (or sv_master2, and so on) in the game to the master's address, for ioquake3 and its \
                          relatives with `+set dedicated 2`, for DarkPlaces with `+sv_public 1`";

/// The heartbeat of a server of this game.
pub fn heartbeat(of: &Facts<'_>) -> Vec<u8> {
    let tags = Tags::default();
    let tag = tags.all().find(|tag| tag.game.as_deref().is_some_and(|game| *game == *of.game));
    let name = tag.map_or(ANY_GAME, |tag| &tag.name);
    [&HEADER[..], b"heartbeat ", name.as_bytes(), b"\n"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;

    #[test]
    fn heartbeats_as_real_servers_send_them() {
        let of = |game: &'static str| heartbeat(&Facts { game: game.into(), ..Facts::default() });
        assert_eq!(of("Quake3Arena"), hex("ffffffff686561727462656174205175616b654172656e612d310a"));
        assert_eq!(of("Xonotic"), hex("ffffffff686561727462656174204461726b506c616365730a"));
        assert_eq!(of("et"), b"\xff\xff\xff\xffheartbeat EnemyTerritory-1\n");
    }
}
