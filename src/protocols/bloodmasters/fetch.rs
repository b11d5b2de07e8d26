//! The launcher's side: reads lines `ip:port`. A page without any valid line is not a list.

use super::list::parse_servers;
use crate::protocols::{Fault, List, ListEntry, Take, fault};

pub fn read(page: &[u8], take: Take) -> Result<List, Fault> {
    let list = List::new(take).with(parse_servers(page).map(|line| line.map(ListEntry::at)));
    if list.servers.is_empty() && !list.faults.is_empty() {
        return Err(fault("the page is not a list: no line is an address like 203.0.113.5:6969"));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_other_pages_are_refused() {
        let read_two = read(b"203.0.113.5:6969\r\nnonsense\r\n203.0.113.6:1\r\n", Take::ALL).unwrap();
        assert_eq!((read_two.servers.len(), read_two.faults.len()), (2, 1));
        assert_eq!(read_two.faults[0].as_str(), "line 2: not an address like 203.0.113.5:6969");
        assert_eq!(read(b"", Take::ALL), Ok(List::default()));
        assert!(read(b"<html>\n<h1>It works!</h1>\n", Take::ALL).unwrap_err().contains("not a list"));
    }

    #[test]
    fn no_more_is_taken_than_wanted() {
        let page = "nonsense\n203.0.113.5:6969\n".repeat(100);
        let list = read(page.as_bytes(), Take { servers_max: 2, ..Take::ALL }).unwrap();
        assert_eq!((list.servers.len(), list.left_out), (2, 2));
    }
}
