//! Fetches the list of netPanzer servers from a master. The list ends in `\final\`; the connection stays open.

use super::NAME;
use super::wire::{Request, parse_list};
use crate::protocols::{Fault, List, ListEntry, StreamFetch, fault, is_one_host};

pub struct ListFetch;

impl StreamFetch for ListFetch {
    fn request(&self, _heard: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        let pairs = vec![(b"gamename".to_vec(), NAME.into())];
        Ok(Some(Request { kind: b"list".to_vec(), pairs }.emit()))
    }

    fn is_whole(&self, heard: &[u8]) -> bool {
        heard.ends_with(br"\final\")
    }

    fn read(&self, heard: &[u8]) -> Result<List, Fault> {
        let addresses = parse_list(heard).map_err(fault)?;
        Ok(List::of(addresses.into_iter().map(|address| match is_one_host(address.ip()) {
            true => Ok(ListEntry::at(address)),
            false => Err(format!("{address} is not the address of one host")),
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_at_once_and_reads_to_the_final() {
        let request = ListFetch.request(b"").unwrap().unwrap();
        assert_eq!(request, br"\list\gamename\netpanzer\final\");
        let list = br"\ip\203.0.113.5\port\3030\ip\224.0.0.1\port\1\final\";
        assert!(ListFetch.is_whole(list) && !ListFetch.is_whole(&list[..list.len() - 1]));
        let read = ListFetch.read(list).unwrap();
        assert_eq!(read.servers, [ListEntry::at("203.0.113.5:3030".parse().unwrap())]);
        assert!(read.faults[0].contains("224.0.0.1:1"), "{:?}", read.faults);
        assert!(ListFetch.read(&list[..20]).unwrap_err().contains("cut short"));
        assert!(ListFetch.read(br"\error\Unknown request\final\").unwrap_err().contains("error"));
    }
}
