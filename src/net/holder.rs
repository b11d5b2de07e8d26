//! Who has a port: for the error when it is taken. Linux tells it in `/proc`; elsewhere, and of other users' programs, it is
//! not known.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// A program that has a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub name: String,
    pub process: u32,
}

/// The program that has this port of TCP or UDP, if this user may know.
pub fn find(protocol: &str, address: SocketAddr) -> Option<Holder> {
    let tables = ["", "6"].map(|family| format!("/proc/net/{}{family}", protocol.to_ascii_lowercase()));
    let tables: Vec<String> = tables.iter().filter_map(|table| fs::read_to_string(table).ok()).collect();
    let sockets = tables.iter().flat_map(|table| sockets_of(table, address));
    let inodes: Vec<String> = sockets.map(|inode| format!("socket:[{inode}]")).collect();
    if inodes.is_empty() {
        return None;
    }
    let processes = fs::read_dir("/proc").ok()?.filter_map(Result::ok);
    processes.filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.parse().ok()?))).find_map(
        |(folder, process)| {
            let files = fs::read_dir(folder.join("fd")).ok()?.filter_map(Result::ok);
            let mut links = files.filter_map(|file| fs::read_link(file.path()).ok());
            links
                .any(|link| link.to_str().is_some_and(|link| inodes.iter().any(|inode| inode == link)))
                .then(|| Holder { name: name(&folder), process })
        },
    )
}

/// The inodes of the sockets that are in the way of this address, from a table in `/proc/net`. Of TCP only those that listen: a
/// port is not taken by the connections that it once accepted.
fn sockets_of(table: &str, address: SocketAddr) -> impl Iterator<Item = &str> {
    const LISTENS: &str = "0A";
    const UDP: &str = "07";
    table.lines().skip(1).filter_map(move |line| {
        let mut cells = line.split_ascii_whitespace().skip(1);
        let (ip, port) = cells.next()?.rsplit_once(':')?;
        let state = cells.nth(1)?;
        let inode = cells.nth(5)?;
        let ip = ip_of(ip)?;
        let overlaps = ip == address.ip() || ip.is_unspecified() || address.ip().is_unspecified();
        let is_same = u16::from_str_radix(port, 16) == Ok(address.port()) && overlaps;
        (is_same && [LISTENS, UDP].contains(&state)).then_some(inode)
    })
}

/// The address in a table: words of 32 bits, each in the order of this machine.
fn ip_of(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(hex.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match hex.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (number, bytes) in bytes.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&word(number)?);
            }
            Some(IpAddr::from(bytes))
        }
        _ => None,
    }
}

/// A process names itself, so control characters go.
fn name(folder: &Path) -> String {
    let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
    name.chars().filter(|c| !c.is_control()).collect()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn inodes_of_a_table() {
        let table = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0000000000000000 20 4 30 10 -1
   2: 0100007F:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4713 1 0000000000000000 100 0 0 10 0
   3: short
";
        let of = |address: &str| sockets_of(table, address.parse().unwrap()).collect::<Vec<_>>();
        assert_eq!(of("127.0.0.1:8080"), ["4711"]);
        assert_eq!(of("0.0.0.0:8080"), ["4711"]);
        assert!(of("127.0.0.2:8080").is_empty() && of("127.0.0.1:8082").is_empty());
        let sixth = "sl\n 0: 00000000000000000000000001000000:1F90 x 0A a b c d e 7\n";
        assert_eq!(sockets_of(sixth, "[::1]:8080".parse().unwrap()).collect::<Vec<_>>(), ["7"]);
    }

    #[test]
    fn this_process_has_its_own_ports() {
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let udp = UdpSocket::bind("[::1]:0").unwrap();
        for (protocol, address) in [("TCP", tcp.local_addr()), ("UDP", udp.local_addr())] {
            let holder = find(protocol, address.unwrap()).unwrap();
            assert_eq!(holder.process, std::process::id());
            assert!(!holder.name.is_empty());
        }
    }
}
