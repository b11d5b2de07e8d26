//! A simulated game server, honest or not: the other side of each protocol, as its card describes it.

use rallypoint::model::{Address, Facts};
use rallypoint::protocols::announce::{AnnounceMethod, Announcer, Offer};
use rallypoint::protocols::{Ask, Card, Heard, Question};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Up,
    /// It neither hears nor says anything.
    Silent,
    Gone,
}

pub struct Game {
    pub card: &'static Card,
    pub address: Address,
    pub facts: Facts<'static>,
    /// The number that its facts were made from.
    pub number: usize,
    pub state: State,
    /// It says something else each time, and sometimes nonsense.
    pub is_liar: bool,
    /// The node that it announces itself to.
    pub node: usize,
    /// Goes up with each change of state: what was planned before is void.
    pub generation: u64,
    pub announcer: Option<Box<dyn Announcer>>,
    /// The newest token that a master has sent to its port.
    pub token: Option<String>,
    /// When it has to be listed, as long as it is up.
    pub due_ms: u64,
    /// When it last sent something that can prove its address, and when it last announced itself.
    pub proof_ms: Option<u64>,
    pub announced_ms: Option<u64>,
    /// The longest interval between two announcements.
    pub gap_ms: u64,
    /// The same, while its master was running.
    pub reached_ms: Option<u64>,
    /// When it last came up or changed its facts.
    pub up_ms: u64,
    pub changed_ms: u64,
    /// When it said that it quits, if it has not announced itself since.
    pub quit_ms: Option<u64>,
    /// When its state or its facts last changed.
    pub ended_ms: u64,
    /// When a datagram from it or to it was last lost.
    pub lost_ms: Option<u64>,
}

impl Game {
    pub fn announces(&mut self, ms: u64) {
        let gap_ms = self.announced_ms.replace(ms).map_or(0, |before_ms| ms - before_ms);
        self.gap_ms = self.gap_ms.max(gap_ms);
    }

    pub fn offer(&self) -> Offer {
        let game = if self.facts.game.is_empty() { self.card.name.to_string() } else { self.facts.game.to_string() };
        Offer { game, port: self.address.port(), facts: self.facts.clone() }
    }

    /// Whether its answers to queries have its facts; otherwise its announcements do.
    pub fn describes_itself(&self) -> bool {
        if !self.is_queried() {
            return false;
        }
        let (Some(query), Some(answer)) = (self.card.query, self.card.answer) else { return false };
        let mut question = Question::new();
        query.ask(Ask::Proof, 1, &mut question);
        let answers = answer(&self.facts, self.address, &question);
        !answers.first().is_some_and(|bytes| query.hear(bytes) == Ok(Heard::Alive))
    }

    /// Whether the master keeps asking it. One that returns tokens says everything with them.
    pub fn is_queried(&self) -> bool {
        self.card.query.is_some() && !matches!(self.card.announce, AnnounceMethod::Challenged(_))
    }
}
