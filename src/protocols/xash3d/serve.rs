//! The master's rules for Xash3D's datagrams.
//!
//! | what arrives | answer |
//! |---|---|
//! | `q\xff`, alone or with a number | a challenge for this address and port; nothing is stored |
//! | `0\n` + keys with our challenge | nothing; the server is listed |
//! | any other `0\n` | nothing; an earlier record stays until its life ends |
//! | `b\n` | nothing: anyone can send it |
//! | `1` + region + filter | the list, as much of it as the budget grants; servers behind NAT are told of the client |
//! | the same from a client that is too old | a list with one address, which answers `info` with "Update please" |
//! | `info` | "Update please" |
//! | anything else | nothing |
//!
//! Mistakes get no answer, as on xash3d-master; [`events`] says what the doctor knows of them.

use std::net::SocketAddr;
use std::sync::Arc;

use super::challenge::{Challenges, Refusal};
use super::list::Lists;
use super::wire::{self, Add, Flags, ToMaster, Version, Wanted, WireError};
use super::{NAME, NAT_LIFE_MS, events, info, packets};
use crate::model::{Address, Announce, Change, Game, Now, Proof, SharedTime};
use crate::protocols::event::{self, AcceptedEvents, Event};
use crate::protocols::{Context, DatagramRules, Echo, Effect, Introduction, ListRequest, Reply, bound_facts};
use crate::registry::view::Renderer;

pub struct Rules {
    pub life_ms: u64,
    pub server_version_min: Version,
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
            Ok(ToMaster::Challenge { number }) => return self.challenge(at.now, from, number, reply),
            Ok(ToMaster::Query(wanted)) => {
                let ipv6 = from.ip().to_canonical().is_ipv6();
                return Effect::List(self.lists.canonical(&Wanted { ipv6, ..wanted }));
            }
            Ok(ToMaster::Info { protocol }) => {
                let mut request = ListRequest::new();
                wire::ask_info(protocol, &mut request);
                return Effect::List(request);
            }
            Ok(ToMaster::Add(add)) => match self.add(at.now, from, &add) {
                Ok(announce) => return Effect::Change(Change::Announce(announce)),
                Err(event) => event,
            },
            Ok(ToMaster::Remove) => events::REMOVE_IGNORED.event(),
            Err(WireError::UnknownMessage) if bytes.len() < 2 => event::TOO_SHORT.event(),
            Err(WireError::UnknownMessage | WireError::WrongVersion) => event::UNKNOWN_MESSAGE.event(),
            Err(WireError::ChallengeLength) => events::CHALLENGE_LENGTH.event(),
            Err(WireError::NoPairs) => events::NO_PAIRS.event(),
            Err(WireError::BadValue) => events::BAD_VALUE.event(),
            Err(WireError::NoChallenge) => events::NO_CHALLENGE.event(),
            Err(WireError::TooLong) => events::TOO_LONG.event(),
            Err(WireError::BadQuery) => events::BAD_QUERY.event(),
        };
        Effect::Dropped(dropped.on_port(from.port()))
    }

    fn accepted_events(&self) -> AcceptedEvents {
        events::ACCEPTED_EVENTS
    }

    fn list(&self, request: &ListRequest) -> Option<Arc<dyn Renderer>> {
        Some(self.lists.renderer(request))
    }

    fn echo(&self, request: &ListRequest) -> Option<Echo> {
        let Ok(ToMaster::Query(wanted)) = ToMaster::parse(request) else { return None };
        wanted.key.map(packets::echo)
    }

    fn introduction(&self, request: &ListRequest, client: SocketAddr) -> Option<Introduction> {
        let servers = self.lists.behind_nat(request)?;
        let mut datagram = Reply::new();
        wire::connect(SocketAddr::new(client.ip().to_canonical(), client.port()), &mut datagram);
        Some(Introduction { servers, datagram })
    }
}

impl Rules {
    fn challenge<'a>(&self, now: Now, from: SocketAddr, number: Option<u32>, reply: &mut Reply) -> Effect<'a> {
        let challenge = self.challenges.make(self.time.unix_ms(now), from);
        wire::answer_challenge(challenge, number, reply);
        Effect::Answered(events::CHALLENGE_SENT.event().on_port(from.port()))
    }

    fn add<'a>(&self, now: Now, from: SocketAddr, add: &Add<'a>) -> Result<Announce<'a>, Event> {
        let opened = self.challenges.open(self.time.unix_ms(now), from, add.challenge);
        let made_at_ms = opened.map_err(|refusal| match refusal {
            Refusal::Forged => events::CHALLENGE_FORGED.event(),
            Refusal::Old => events::CHALLENGE_OLD.event(),
        })?;
        if add.version < self.server_version_min {
            let Version { major, minor, patch } = add.version;
            return Err(events::OLD_VERSION.event().with([u32::from_be_bytes([0, major, minor, patch]), 0]));
        }
        let game = Game::Own(NAME);
        let address = Address::new(from.ip(), from.port()).ok_or(event::SOURCE_PORT_0.event())?;
        let mut facts = info::announced(add);
        bound_facts(&game, &mut facts);
        let is_behind_nat = add.flags.has(Flags::NAT);
        Ok(Announce {
            address,
            keys: Some(Arc::new(info::keys(address, add))),
            game,
            proof: Proof::Cookie,
            proven_at_ms: made_at_ms.saturating_add_signed(-self.time.offset_ms(now)),
            life_ms: if is_behind_nat { self.life_ms.min(NAT_LIFE_MS) } else { self.life_ms },
            // NAT lets in only what comes from this port, and queries come from others.
            asked: !is_behind_nat,
            rtt_us: None,
            facts,
        })
    }
}

#[cfg(test)]
mod tests;
