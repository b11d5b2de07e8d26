//! Servers that other masters list: asked by the prober like those that announce themselves, and listed if they answer.

use std::sync::Arc;

use super::announcements::{Announcements, named_by_itself};
use super::prober::Unproven;
use crate::asker::Response;
use crate::model::{Address, Change, Game, Mirrored, Origin};
use crate::protocols::{ProvenBy, Query, query_of};
use crate::registry::Outcome;

/// How many queries in a row have to be answered where nothing of ours returns in an answer ([`ProvenBy::Port`]): nothing but
/// these answers says that the server exists. Each is asked from one of eight ports at random, so that who knows them all
/// succeeds once in 8⁴ times.
const ANSWERS: u32 = 4;
/// After so many queries without that, the server counts as silent.
const QUERIES_MAX: u32 = 8;

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
        match self.answers(address, query).await {
            Ok(answer) => self.mirror_answer(address, &game, via, answer),
            Err(asked) => asked,
        }
    }

    /// Asks a server until it is proven; its last answer.
    async fn answers(&self, address: Address, query: &'static dyn Query) -> Result<Response, Asked> {
        let mut proof = Answers::to(query);
        loop {
            let answer = self.prover().prove(address, query).await;
            if let Some(done) = proof.take(answer) {
                return done;
            }
        }
    }

    fn mirror_answer(&self, address: Address, listed_as: &Game, via: Arc<Origin>, answer: Response) -> Asked {
        let facts = *answer.facts.unwrap_or_default();
        let Some(game) = named_by_itself(listed_as, &facts) else { return Asked::Refused };
        let mirrored = Mirrored { address, game, via, rtt_us: answer.rtt_us, facts };
        match self.hub.apply_one(&Change::Mirror(Box::new(mirrored)), self.hub.clock.now()) {
            Outcome::Refused(_) => Asked::Refused,
            Outcome::Added | Outcome::Changed | Outcome::Refreshed | Outcome::Stale => Asked::Listed,
        }
    }
}

/// What a server has answered so far.
struct Answers {
    proven_by: ProvenBy,
    in_a_row: u32,
    queries: u32,
}

impl Answers {
    fn to(query: &dyn Query) -> Answers {
        Answers { proven_by: query.proven_by(), in_a_row: 0, queries: 0 }
    }

    /// Takes the result of a query; None if another one has to follow.
    ///
    /// Where the port is the only proof, answers have to come one after another, each to the first try, because every try
    /// opens another port to a forger. Who tries several ports is found out: an answer arrives where nobody asked.
    fn take(&mut self, result: Result<Response, Unproven>) -> Option<Result<Response, Asked>> {
        self.queries += 1;
        self.in_a_row = match result {
            Ok(answer) if self.proven_by == ProvenBy::Nonce => return Some(Ok(answer)),
            Ok(answer) if answer.disputed => return Some(Err(Asked::Silent)),
            Ok(answer) if answer.retried => 0,
            Ok(answer) if self.in_a_row + 1 >= ANSWERS => return Some(Ok(answer)),
            Ok(_) => self.in_a_row + 1,
            Err(Unproven::Busy | Unproven::TooMany) => return Some(Err(Asked::Busy)),
            Err(Unproven::Asked(_)) => return Some(Err(Asked::Silent)),
        };
        (self.queries >= QUERIES_MAX).then_some(Err(Asked::Silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::asker::Failure;
    use crate::protocols::CARDS;

    const ANSWER: Response =
        Response { rtt_us: 1, facts: None, fault: None, disputed: false, retried: false, digest: 0 };

    /// How many of these results are taken, and what follows from them.
    fn taken(proven_by: ProvenBy, results: Vec<Result<Response, Unproven>>) -> (usize, Option<Asked>) {
        let mut proof = Answers { proven_by, in_a_row: 0, queries: 0 };
        for (number, result) in results.into_iter().enumerate() {
            if let Some(done) = proof.take(result) {
                return (number + 1, Some(done.map_or_else(|asked| asked, |_| Asked::Listed)));
            }
        }
        (0, None)
    }

    #[test]
    fn where_nothing_of_ours_returns_one_answer_lists_nobody() {
        let answers = |count: usize| (0..count).map(|_| Ok(ANSWER)).collect();
        assert_eq!(taken(ProvenBy::Nonce, answers(1)), (1, Some(Asked::Listed)));
        assert_eq!(taken(ProvenBy::Port, answers(3)), (0, None));
        assert_eq!(taken(ProvenBy::Port, answers(9)), (4, Some(Asked::Listed)));
        let of_both = |by| CARDS.iter().filter_map(|card| card.query).any(|query| Answers::to(query).proven_by == by);
        assert!(of_both(ProvenBy::Nonce) && of_both(ProvenBy::Port));
    }

    #[test]
    fn the_answers_have_to_come_in_a_row_and_to_the_first_try() {
        let retried = || Ok(Response { retried: true, ..ANSWER });
        let ok = || Ok(ANSWER);
        let late = vec![ok(), ok(), ok(), retried(), ok(), ok(), ok(), ok()];
        assert_eq!(taken(ProvenBy::Port, late), (8, Some(Asked::Listed)));
        let never = vec![ok(), ok(), ok(), retried(), ok(), ok(), ok(), retried()];
        assert_eq!(taken(ProvenBy::Port, never), (8, Some(Asked::Silent)));
    }

    #[test]
    fn silence_and_an_answer_where_nobody_asked_end_it() {
        let disputed = || Ok(Response { disputed: true, ..ANSWER });
        let silent = || Err(Unproven::Asked(Failure::Silent));
        for end in [disputed, silent] {
            assert_eq!(taken(ProvenBy::Port, vec![Ok(ANSWER), end()]), (2, Some(Asked::Silent)));
        }
        assert_eq!(taken(ProvenBy::Port, vec![Ok(ANSWER), Err(Unproven::Busy)]), (2, Some(Asked::Busy)));
        // A nonce is not found by trying ports.
        assert_eq!(taken(ProvenBy::Nonce, vec![disputed()]), (1, Some(Asked::Listed)));
    }
}
