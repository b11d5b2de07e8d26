//! The puts that the store has not acknowledged yet. Each has a number, which is the end of the subject that the store replies
//! to: one subscription receives all replies, and a reply is found without a search. No socket, no clock.

use std::collections::VecDeque;

use serde::Deserialize;

use crate::model::Address;

/// A put that waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    pub address: Address,
    /// See [`super::outbox`].
    pub even_if_foreign: bool,
    /// When it was sent, by the monotonic clock.
    pub sent_ms: u64,
}

#[derive(Default)]
pub struct InFlight {
    /// In the order of their numbers; None: replied to.
    puts: VecDeque<Option<Put>>,
    /// The number of the first.
    first: u64,
}

impl InFlight {
    /// Adds a put and returns its number.
    pub fn add(&mut self, put: Put) -> u64 {
        self.puts.push_back(Some(put));
        self.first + self.puts.len() as u64 - 1
    }

    /// The put that a reply is for; None if it was replied to before, or timed out.
    pub fn take(&mut self, number: u64) -> Option<Put> {
        let at = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let put = self.puts.get_mut(at)?.take();
        self.forget_replied();
        put
    }

    /// A put that was sent before this time and has no reply.
    pub fn take_older(&mut self, than_ms: u64) -> Option<Put> {
        self.puts.front().copied().flatten().filter(|put| put.sent_ms < than_ms).and_then(|_| self.take(self.first))
    }

    /// So that the first one always waits.
    fn forget_replied(&mut self) {
        while self.puts.pop_front_if(|put| put.is_none()).is_some() {
            self.first += 1;
        }
    }

    /// How many numbers are in use. Some of them may be of puts that were replied to before an older one.
    pub fn len(&self) -> usize {
        self.puts.len()
    }

    pub fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }
}

/// What matters of the store's reply.
#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    error: Option<ReplyError>,
}

#[derive(Deserialize)]
struct ReplyError {
    #[serde(default)]
    description: String,
    #[serde(default)]
    err_code: u64,
}

/// Whether the store has accepted a record; if not, the reason that it gives.
pub fn accepted(reply: &[u8]) -> Result<(), String> {
    match serde_json::from_slice(reply) {
        Ok(Reply { error: None }) => Ok(()),
        Ok(Reply { error: Some(ReplyError { description, err_code }) }) => Err(format!("{description} ({err_code})")),
        Err(error) => Err(format!("unreadable reply: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(port: u16) -> Put {
        let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
        Put { address, even_if_foreign: false, sent_ms: port.into() }
    }

    #[test]
    fn replies_may_come_in_any_order_and_count_once() {
        let mut in_flight = InFlight::default();
        let numbers: Vec<u64> = (1..=5).map(|port| in_flight.add(put(port))).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        assert_eq!((in_flight.take(1), in_flight.take(1)), (Some(put(2)), None));
        assert_eq!(in_flight.take(5), None, "never sent");
        assert_eq!(in_flight.len(), 5);
        assert_eq!(in_flight.take(0), Some(put(1)));
        assert_eq!(in_flight.len(), 3);
        assert_eq!((in_flight.take(0), in_flight.take(1)), (None, None), "long ago");
        assert_eq!(in_flight.add(put(6)), 5);
        for (number, port) in [(4, 5), (5, 6), (2, 3), (3, 4)] {
            assert_eq!(in_flight.take(number), Some(put(port)));
        }
        assert!(in_flight.is_empty());
        assert_eq!(in_flight.add(put(7)), 6, "a number is never used again");
    }

    #[test]
    fn puts_without_a_reply_time_out_the_oldest_first() {
        let mut in_flight = InFlight::default();
        let numbers: Vec<u64> = (1..=4).map(|port| in_flight.add(put(port))).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
        in_flight.take(1);
        assert_eq!(in_flight.take_older(1), None);
        let older: Vec<_> = std::iter::from_fn(|| in_flight.take_older(4)).collect();
        assert_eq!(older, [put(1), put(3)]);
        assert_eq!(in_flight.take(2), None, "a late reply");
        assert_eq!(in_flight.take(3), Some(put(4)));
    }

    #[test]
    fn a_reply_says_whether_the_record_was_accepted() {
        assert_eq!(accepted(br#"{"stream":"KV_rallypoint-servers","seq":17}"#), Ok(()));
        assert_eq!(accepted(br#"{"stream":"KV_b", "domain":"hub", "seq":1,"duplicate":true}"#), Ok(()));
        let rejected = br#"{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"KV_b","seq":0}"#;
        assert_eq!(accepted(rejected), Err("message size exceeds maximum allowed (10054)".into()));
        assert!(accepted(b"").unwrap_err().contains("unreadable") && accepted(b"[").is_err());
    }
}
