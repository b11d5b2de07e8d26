//! Resident memory per listed server, beyond what the program may take for itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::iceball::{fill, start};
use crate::load::{self, Say, Texts};
use crate::measure::verdict;
use crate::support::Server;

const FREE_KIB: u64 = 32 << 10;
const TARGET: f64 = 400.0;

pub fn run() {
    for (what, texts) in [("typical texts", Texts::Typical), ("every field full", Texts::Longest)] {
        let server = start();
        println!("{what}; nothing listed: {:.1} MiB", server.memory_kib() as f64 / 1024.0);
        let mut filled = 0;
        // Each on an address of its own: what is counted per address costs most then.
        for count in [100_000, 1_000_000] {
            fill(&server, filled..count, 1, texts);
            filled = count;
            report(&server, count, "listed", 0);
            let say = Say { texts, players: 7 };
            load::drive(server.address("iceball.listen"), say, None, load::jumping(count, 1).take(count as usize));
            report(&server, count, "announced again, one in ten with news", 0);
            let list = server.get("/master.json").body.len();
            report(&server, count, "after /master.json, without the list itself", list);
            println!("  /master.json has {:.0} bytes a server", list as f64 / f64::from(count));
        }
        // Last: the snapshot stays.
        event_reader(&server, filled);
    }
}

/// What the first reader of the event stream takes: its snapshot is written as a whole, and kept for those who come next.
fn event_reader(server: &Server, count: u32) {
    let before = server.memory_kib();
    std::fs::write(format!("/proc/{}/clear_refs", server.id()), "5").unwrap(); // the peak counts from here
    let mut stream = TcpStream::connect(server.address("web.listen")).unwrap();
    stream.write_all(b"GET /api/v1/events HTTP/1.1\r\nHost: bench\r\n\r\n").unwrap();
    let (mut buffer, mut size, mut tail) = (vec![0; 1 << 20], 0, Vec::new());
    while !tail.ends_with(b"\n\n\r\n") {
        let read = stream.read(&mut buffer).unwrap();
        assert_ne!(read, 0, "closed after {size} bytes");
        size += read;
        tail.extend_from_slice(&buffer[..read]);
        tail.drain(..tail.len().saturating_sub(4));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse().unwrap();
    let each = |kib: u64| kib.saturating_sub(before) as f64 * 1024.0 / f64::from(count);
    println!(
        "  a reader of /api/v1/events: {:.0} bytes a server in its snapshot, {:.0} of memory while it is written, {:.0} after",
        size as f64 / f64::from(count),
        each(peak),
        each(server.memory_kib())
    );
}

/// The list is one for all its readers, and goes with the next change unless somebody asks again: `besides` is its size.
fn report(server: &Server, count: u32, when: &str, besides: usize) {
    // What was published meanwhile, and what it replaced, is gone by then.
    std::thread::sleep(Duration::from_secs(4));
    let beyond = server.memory_kib().saturating_sub(FREE_KIB) * 1024;
    let each = beyond.saturating_sub(besides as u64) as f64 / f64::from(count);
    verdict(&format!("  {count} {when}, bytes each beyond 32 MiB"), each, each <= TARGET, "at most 400");
}
