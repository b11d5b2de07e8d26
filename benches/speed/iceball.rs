//! Iceball's announcements, which several other parts fill their list with.

use std::ops::Range;

pub use crate::exchange::start;
use crate::exchange::{Exchange, fill_with};
use crate::load::{self, Content, Dialect, Texts};
use crate::support::Server;

pub fn run() {
    Exchange { title: "Iceball", dialect: Dialect::Iceball, listener: "iceball.listen", per_ip: 10, ratio_max: 1.35 }
        .run();
}

/// Announces servers and checks that they are listed. Returns the server's time per new server, in nanoseconds.
pub fn fill(server: &Server, ips: Range<u32>, per_ip: u16, texts: Texts) -> u64 {
    let content = Content { texts, players: 3, changing: 10 };
    let master = server.address("iceball.listen");
    fill_with(server, ips.end * u32::from(per_ip), || {
        load::drive(master, content, None, load::all(ips.clone(), per_ip)).pairs
    })
}
