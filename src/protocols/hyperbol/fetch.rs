//! Fetches a Hyperbol master's list: read the greeting, send its key back, read records until the connection closes.

use super::wire::{self, EVERYTHING, GREETING_SIZE, Greeting, ListRequest};
use crate::protocols::{Fault, List, ListEntry, StreamFetch, fault};

pub struct ListFetch;

impl StreamFetch for ListFetch {
    fn request(&self, received: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let Some(greeting) = received.get(..GREETING_SIZE) else { return Ok(None) };
        let Greeting { key, .. } = Greeting::parse(greeting).map_err(fault)?;
        Ok(Some(ListRequest { key, filter: EVERYTHING }.emit().to_vec()))
    }

    /// The list has no end mark: it ends when the connection closes.
    fn is_whole(&self, _received: &[u8]) -> bool {
        false
    }

    fn read(&self, received: &[u8]) -> Result<List, Fault> {
        let Some((greeting, records)) = received.split_at_checked(GREETING_SIZE) else {
            return Err(Greeting::parse(received).err().map_or_else(|| fault("no greeting"), fault));
        };
        Greeting::parse(greeting).map_err(fault)?;
        let records = wire::parse_list(records).map_err(fault)?;
        Ok(List::of(records.map(|record| {
            record.map(|record| ListEntry {
                flavor: Some(record.flavor()),
                official: Some(record.flavor() != 0),
                ..ListEntry::at(record.address())
            })
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::hex;

    #[test]
    fn sends_the_key_back_and_reads_the_records() {
        let greeting = hex("4842534c02b0ad1b25000000");
        for len in 0..greeting.len() {
            assert_eq!(ListFetch.request(&greeting[..len]), Ok(None));
        }
        assert_eq!(ListFetch.request(&greeting), Ok(Some(hex("02b0ad1bff000000"))));
        assert!(ListFetch.request(b"HTTP/1.1 400").is_err());

        let list = hex("4ca8b988652f0000000000004ca8b988612f000001000000cb00714d0000010007000000");
        let whole = [greeting.clone(), list].concat();
        let read = ListFetch.read(&whole).unwrap();
        let listed: Vec<_> = read.servers.iter().map(|l| (l.address.to_string(), l.flavor, l.official)).collect();
        assert_eq!(
            listed,
            [
                ("76.168.185.136:12133".into(), Some(0), Some(false)),
                ("76.168.185.136:12129".into(), Some(1), Some(true))
            ]
        );
        assert_eq!(read.faults.len(), 1, "port 65536: {:?}", read.faults);
        assert!(!ListFetch.is_whole(&whole), "more may follow");
        assert!(ListFetch.read(&whole[..whole.len() - 1]).unwrap_err().contains("inside a record"));
        assert_eq!(ListFetch.read(&greeting), Ok(List::default()));
        assert!(ListFetch.read(b"").is_err() && ListFetch.read(b"HTTP/1.1 400 Bad").is_err());
    }
}
