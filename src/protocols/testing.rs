//! Sample games for the tests of other rooms, by what they do instead of by their names.

use super::{iceball, netpanzer};

/// A game whose servers are proven by a cookie.
pub const BY_COOKIE: &str = iceball::NAME;
/// A game whose servers are proven by its query.
pub const BY_QUERY: &str = netpanzer::NAME;

/// A game that is asked with one datagram and answers with one.
pub mod one_step {
    use crate::protocols::{Query, Question, hyperbol};

    pub const QUERY: &dyn Query = &hyperbol::query::GameQuery;
    /// The server's name in [`answer`].
    pub const TITLE: &str = "Veks California DM";

    /// The right answer to a question.
    pub fn answer(question: &Question) -> Vec<u8> {
        let sample = (hyperbol::CARD.samples)().into_iter().find(|sample| sample.len() == 229).unwrap();
        let mut info = hyperbol::wire::Info::parse(&sample).unwrap();
        info.echo = hyperbol::wire::Query::parse(question).unwrap().echo;
        info.emit().to_vec()
    }
}

/// A game that proves itself with a short answer and describes itself with a long one, which carries no nonce.
pub mod two_steps {
    use crate::protocols::{Query, netpanzer};

    pub const QUERY: &dyn Query = &netpanzer::query::GameQuery;

    /// The short answer: the token in `\echo\TOKEN\` or `\echo\TOKEN\status\`.
    pub fn token(question: &[u8]) -> Vec<u8> {
        question.strip_prefix(br"\echo\").unwrap()[..8].to_vec()
    }

    pub fn asks_for_status(question: &[u8]) -> bool {
        question.ends_with(br"\status\")
    }

    /// The long answer of a server that is called "A server".
    pub fn status() -> Vec<u8> {
        (netpanzer::CARD.samples)().pop().unwrap()
    }

    /// A long answer that somebody else made up.
    pub fn forged() -> Vec<u8> {
        br"gamename\netpanzer\hostname\Forged\mapname\Nowhere\numplayers\99\maxplayers\99\final\".to_vec()
    }
}
