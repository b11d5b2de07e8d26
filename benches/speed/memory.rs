//! Resident memory per listed server, beyond a fixed allowance for the program itself.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::exchange::start_with;
use crate::iceball::fill;
use crate::load::{self, Content, Texts};
use crate::report::{Report, verdict};
use crate::support::{Server, get};

const FREE_KIB: u64 = 32 << 10;
const TARGET: f64 = 400.0;

pub fn run() {
    for (what, texts) in [("typical texts", Texts::Typical), ("every field full", Texts::Longest)] {
        // A list of a million servers with full fields takes most of what lists may take by default, and its readers would be cut off.
        let server = start_with(&["guard.max_list_mib=1024"]);
        println!("{what}; nothing listed: {:.1} MiB", server.memory_kib() as f64 / 1024.0);
        let mut filled = 0;
        // Each on its own address, which is the worst case for counts per address.
        for count in [100_000, 1_000_000] {
            fill(&server, filled..count, 1, texts);
            filled = count;
            report(&server, what, count, "listed");
            let content = Content { texts, players: 7, changing: 10 };
            load::drive(server.address("iceball.listen"), content, None, load::jumping(count, 1).take(count as usize));
            report(&server, what, count, "announced again, one in ten changed");
            let list = server.get("/master.json").body.len();
            report(&server, what, count, "after /master.json");
            println!("  /master.json has {:.0} bytes per server", list as f64 / f64::from(count));
        }
        if let Texts::Typical = texts {
            after_readers(&server, filled);
        }
        // Last, because the snapshot stays in memory.
        event_reader(&server, filled);
    }
}

/// What stays after a list was read in every encoding, has changed, and nobody reads it any more.
fn after_readers(server: &Server, count: u32) {
    let mib = || server.memory_kib() as f64 / 1024.0;
    // Large lists are freed when nobody has asked for them for half a minute.
    std::thread::sleep(Duration::from_secs(40));
    let before = mib();
    for encoding in ["identity", "gzip", "zstd", "br"] {
        let headers = format!("Accept-Encoding: {encoding}\r\n");
        let size = get(server.address("web.listen"), "/master.json", &headers).body.len();
        println!("  /master.json as {encoding}: {size} bytes; then {:.0} MiB of memory, {before:.0} before", mib());
    }
    let content = Content { texts: Texts::Typical, players: 31, changing: 1 };
    load::drive(server.address("iceball.listen"), content, None, load::jumping(count, 1).take(1));
    std::thread::sleep(Duration::from_secs(40));
    Report::new("left after readers of /master.json in all encodings and a change", "MiB", &[mib() - before])
        .servers(count)
        .at_most(64.0);
}

/// Memory for the first reader of the event stream: its snapshot is rendered as a whole and kept for later readers.
fn event_reader(server: &Server, count: u32) {
    let before = server.memory_kib();
    std::fs::write(format!("/proc/{}/clear_refs", server.id()), "5").unwrap(); // resets the peak
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
        "  a reader of /api/v1/events: {:.0} bytes per server in its snapshot, {:.0} of memory while rendering, {:.0} after",
        size as f64 / f64::from(count),
        each(peak),
        each(server.memory_kib())
    );
}

/// What rendered lists take does not count: all readers share them, and they are prepared for the first who asks.
fn report(server: &Server, what: &str, count: u32, when: &str) {
    // Wait until replaced views have been freed.
    std::thread::sleep(Duration::from_secs(4));
    let besides = server.figure("rallypoint_lists_held_bytes") as u64;
    let beyond = server.memory_kib().saturating_sub(FREE_KIB) * 1024;
    let each = beyond.saturating_sub(besides) as f64 / f64::from(count);
    verdict(&format!("{what}: {count} {when}, bytes each beyond 32 MiB"), each, each <= TARGET, "at most 400");
}
