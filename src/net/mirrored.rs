//! Servers that other masters list: asked by the prober like those that announce themselves, and listed if they answer.

use std::sync::Arc;

use super::announcements::{Announcements, named_by_itself};
use super::prober::Unproven;
use crate::asker::Response;
use crate::model::{Address, Change, Game, Mirrored, Origin};
use crate::protocols::query_of;
use crate::registry::Outcome;

/// The result of asking a server that another master lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It is listed, through this master or by its own announcement.
    Listed,
    /// No answer, or none that is valid.
    Silent,
    /// It cannot be listed: banned, unlisted, the list is full, its game is unknown.
    Refused,
    /// It was not asked: too many others are.
    Busy,
}

impl Announcements {
    /// Asks a server that `via` lists, and lists it if it answers.
    pub async fn mirror(&self, address: Address, game: Game, via: Arc<Origin>) -> Asked {
        let Some(query) = query_of(&game) else { return Asked::Refused };
        if self.guard.bans().contains(address.ip()) {
            return Asked::Refused;
        }
        match self.prover().prove(address, query).await {
            Ok(answer) => self.mirror_answer(address, &game, via, answer),
            Err(Unproven::Asked(_)) => Asked::Silent,
            Err(Unproven::Busy | Unproven::TooMany) => Asked::Busy,
        }
    }

    fn mirror_answer(&self, address: Address, listed_as: &Game, via: Arc<Origin>, answer: Response) -> Asked {
        let facts = answer.facts.unwrap_or_default();
        let Some(game) = named_by_itself(listed_as, &facts) else { return Asked::Refused };
        let mirrored = Mirrored { address, game, via, rtt_us: answer.rtt_us, facts };
        match self.hub.apply_one(&Change::Mirror(Box::new(mirrored)), self.hub.clock.now()) {
            Outcome::Refused(_) => Asked::Refused,
            Outcome::Added | Outcome::Changed | Outcome::Refreshed | Outcome::Stale => Asked::Listed,
        }
    }
}
