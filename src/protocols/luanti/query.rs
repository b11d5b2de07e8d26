//! The probe: it shows that a Luanti server answers, and nothing else. What there is to know of the server, it has posted.

use super::wire;
use crate::protocols::{Ask, Fault, Heard, ProvenBy, Query, Question, fault};

pub struct GameQuery;

impl Query for GameQuery {
    fn ask(&self, _ask: Ask, _nonce: u32, question: &mut Question) {
        question.extend(wire::PROBE);
    }

    fn hear<'a>(&self, bytes: &'a [u8]) -> Result<Heard<'a>, Fault> {
        match wire::given_id(bytes) {
            Some(_) => Ok(Heard::Alive),
            None => Err(fault("this is not a Luanti server's greeting")),
        }
    }

    /// Nothing in the answer is ours.
    fn proven_by(&self) -> ProvenBy {
        ProvenBy::Port
    }

    /// Without it the game keeps a place for us, and sends two hundred more packets.
    fn farewell(&self, answer: &[u8], last: &mut Question) {
        if let Some(id) = wire::given_id(answer) {
            last.extend(wire::disconnect(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_greeting_is_answered_with_a_farewell_to_the_same_id() {
        let mut question = Question::new();
        GameQuery.ask(Ask::Proof, 7, &mut question);
        assert_eq!(question[..], wire::PROBE);
        assert_eq!(GameQuery.hear(&wire::answer(0x1234)), Ok(Heard::Alive));
        assert!(GameQuery.hear(b"hello").unwrap_err().contains("greeting"));
        let mut last = Question::new();
        GameQuery.farewell(b"hello", &mut last);
        assert!(last.is_empty());
        GameQuery.farewell(&wire::answer(0x1234), &mut last);
        assert_eq!(last[..], [0x4f, 0x45, 0x74, 3, 0x12, 0x34, 0, 0, 3]);
    }
}
