//! Resident memory per listed server, beyond what the program may take for itself.

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
    }
}

/// The list is one for all its readers, and goes with the next change unless somebody asks again: `besides` is its size.
fn report(server: &Server, count: u32, when: &str, besides: usize) {
    // What was published meanwhile, and what it replaced, is gone by then.
    std::thread::sleep(Duration::from_secs(4));
    let beyond = server.memory_kib().saturating_sub(FREE_KIB) * 1024;
    let each = beyond.saturating_sub(besides as u64) as f64 / f64::from(count);
    verdict(&format!("  {count} {when}, bytes each beyond 32 MiB"), each, each <= TARGET, "at most 400");
}
