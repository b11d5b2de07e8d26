//! The master's rules for datagrams of the Quake III family.
//!
//! | what arrives | answer |
//! |---|---|
//! | `heartbeat TAG` with a known tag | `getinfo CHALLENGE`; nothing is stored |
//! | any other heartbeat | nothing |
//! | `infoResponse` with our challenge that passes dpmaster's checks | nothing; the server is listed |
//! | any other infoResponse | nothing; an earlier record stays until its life ends |
//! | `getservers`, `getserversExt` | the list, as much of it as the budget grants |
//! | anything else | nothing |
//!
//! Mistakes get no answer, as on dpmaster; [`events`] says what the doctor knows of them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::challenge::{Challenges, Refusal};
use super::info::{self, Listing, Unlistable};
use super::list::{GAME_KEY, GAME_TYPE_KEY, Lists, PROTOCOL_KEY, TAG_KEY};
use super::packets::END;
use super::tags::{Tag, Tags};
use super::wire::{self, HEADER, InfoString, ToMaster, WireError};
use super::{NAME, events};
use crate::model::{Address, Announce, Change, Game, HeartbeatKeys, Now, Proof, SharedTime};
use crate::protocols::event::{self, AcceptedEvents, Event};
use crate::protocols::{Context, DatagramRules, Effect, ListRequest, Reply, bound_facts, game};
use crate::registry::view::Renderer;

pub struct Rules {
    pub tags: Tags,
    pub life_ms: u64,
    pub challenges: Challenges,
    /// What challenges are stamped with: a handshake may end at another node.
    pub time: SharedTime,
    pub lists: Arc<Lists>,
}

impl DatagramRules for Rules {
    fn datagram<'a>(&self, at: &Context<'_>, from: SocketAddr, bytes: &'a [u8], reply: &mut Reply) -> Effect<'a> {
        if let Some(event) = event::bad_source(from) {
            return Effect::Dropped(event);
        }
        let dropped = match ToMaster::parse(bytes) {
            Ok(ToMaster::Heartbeat { tag }) => return self.heartbeat(at.now, from, tag, reply),
            Ok(ToMaster::List(request)) => return Effect::List(self.lists.canonical(&request)),
            Ok(ToMaster::InfoResponse(info)) => match self.info_response(at.now, from, &info) {
                Ok(announce) => return Effect::Change(Change::Announce(announce)),
                Err(event) => event,
            },
            Err(WireError::NoHeader) if bytes.len() <= HEADER.len() => event::TOO_SHORT.event(),
            Err(WireError::NoHeader | WireError::UnknownCommand) => event::UNKNOWN_MESSAGE.event(),
            Err(WireError::NoTag) => events::NO_TAG.event(),
            Err(WireError::NoProtocol | WireError::BadGame) => events::BAD_REQUEST.event(),
        };
        Effect::Dropped(dropped.on_port(from.port()))
    }

    fn accepted_events(&self) -> AcceptedEvents {
        events::ACCEPTED_EVENTS
    }

    fn list(&self, request: &ListRequest) -> Option<Arc<dyn Renderer>> {
        Some(self.lists.renderer(request))
    }

    fn last_packet(&self) -> (&'static [u8], &'static [u8]) {
        (b"\\", END)
    }
}

impl Rules {
    fn heartbeat<'a>(&self, now: Now, from: SocketAddr, name: &[u8], reply: &mut Reply) -> Effect<'a> {
        let Some((number, tag)) = self.tags.find(name) else {
            let is_dead = self.tags.is_dead(name);
            let event = if is_dead { events::DEAD_TAG.event() } else { events::unknown_tag(name) };
            return Effect::Dropped(event.on_port(from.port()));
        };
        let challenge = self.challenges.make(self.time.unix_ms(now), from, number, tag);
        wire::ask("getinfo", &challenge, reply);
        let event = events::GETINFO_SENT.event().on_port(from.port());
        match Address::new(from.ip(), from.port()) {
            Some(address) => Effect::Announced(event, Change::Announcing { address, protocol: NAME }),
            None => Effect::Answered(event),
        }
    }

    fn info_response<'a>(&self, now: Now, from: SocketAddr, info: &InfoString<'a>) -> Result<Announce<'a>, Event> {
        let info = &info.index();
        let challenge = info.get(b"challenge").ok_or(events::NO_CHALLENGE.event())?;
        let opened = self.challenges.open(self.time.unix_ms(now), from, &self.tags, challenge);
        let opened = opened.map_err(|refusal| match refusal {
            Refusal::Forged => events::CHALLENGE_FORGED.event(),
            Refusal::Old => events::CHALLENGE_OLD.event(),
        })?;
        let listing = Listing::of(info).map_err(|reason| match reason {
            Unlistable::Protocol => events::NO_PROTOCOL.event(),
            Unlistable::MaxClients => events::NO_MAX_CLIENTS.event(),
            Unlistable::Clients => events::NO_CLIENTS.event(),
            Unlistable::GameName => events::BAD_GAME_NAME.event(),
            Unlistable::GameType => events::BAD_GAME_TYPE.event(),
        })?;
        let game = self.game(opened.tag, listing.game)?;
        let address = Address::new(from.ip(), from.port()).ok_or(event::SOURCE_PORT_0.event())?;
        let mut facts = info::facts(info, true);
        bound_facts(&game, &mut facts);
        Ok(Announce {
            address,
            keys: Some(Arc::new(keys(&game, address, opened.tag, &listing))),
            game,
            proof: Proof::Query,
            proven_at_ms: opened.made_at_ms.saturating_add_signed(-self.time.offset_ms(now)),
            life_ms: self.life_ms,
            asked: true,
            rtt_us: None,
            facts,
        })
    }

    /// Which game a server is of: what it says, where its tag allows that, or what its tag stands for.
    fn game(&self, tag: &Tag, said: Option<&[u8]>) -> Result<Game, Event> {
        let number = self.tags.find(tag.name.as_bytes()).map_or(0, |(number, _)| number);
        let name = match (&tag.game, said) {
            (None, None) => return Err(events::NO_GAME_NAME.event().with([number.into(), 0])),
            (Some(game), Some(said)) if game.as_bytes() != said => {
                return Err(events::OTHER_GAME.event().with([number.into(), 0]));
            }
            (Some(game), _) => Some(&**game),
            (None, Some(said)) => str::from_utf8(said).ok(),
        };
        name.and_then(|name| game(NAME, name)).ok_or(events::BAD_GAME_NAME.event())
    }
}

/// What lists are filtered by.
fn keys(game: &Game, address: Address, tag: &Tag, listing: &Listing<'_>) -> HeartbeatKeys {
    let (mut port, mut protocol) = (itoa::Buffer::new(), itoa::Buffer::new());
    HeartbeatKeys::exactly(&[
        (GAME_KEY, game.name().as_bytes()),
        (b"port", port.format(address.port()).as_bytes()),
        (PROTOCOL_KEY, protocol.format(listing.protocol).as_bytes()),
        (GAME_TYPE_KEY, listing.game_type),
        (TAG_KEY, tag.name.as_bytes()),
    ])
}

#[cfg(test)]
mod tests;
