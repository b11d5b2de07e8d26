//! Rallypoint's codecs and its asker in a program of your own, with nothing but the standard library around them: queries
//! game servers, all at once.
//!
//!     cargo run --no-default-features --example ask -- netpanzer 127.0.0.1:3030 127.0.0.1:3031

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

use rallypoint::asker::{Asker, Finished, Settings};
use rallypoint::model::Address;
use rallypoint::protocols::{self, Ask};

/// The asker has no socket: the caller numbers its sockets, and has one here.
const LANE: u32 = 0;

fn main() -> Result<()> {
    let wrong = |text: &str| Error::new(ErrorKind::InvalidInput, text);
    let mut words = std::env::args().skip(1);
    let card = words.next().and_then(|game| protocols::card(&game)).ok_or_else(|| wrong("write GAME ADDRESS..."))?;
    let query = card.query.ok_or_else(|| wrong("servers of this game cannot be queried"))?;

    let settings =
        Settings { tries: 3, try_us: 500_000, all_us: 2_000_000, per_second: 2_000, per_ip_per_second: 2_000 };
    // Nonces follow from the seed: a launcher on the internet takes random bytes.
    let seed = (std::process::id() as u128 ^ Instant::now().elapsed().as_nanos()).to_ne_bytes();
    let mut asker: Asker<()> = Asker::new(settings, seed);
    for word in words {
        let address: Address = word.parse().map_err(|_| wrong("an address is IP:PORT"))?;
        let _ = asker.ask(address, query, Ask::Facts, ()); // refused if it is asked already
    }

    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(Duration::from_millis(10)))?;
    // It has no clock either. Any will do that does not go back.
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1_000_000;
    let mut buffer = [0; 65536];
    while asker.in_flight() > 0 {
        while let Some((address, question)) = asker.next_question(now_us(), LANE) {
            socket.send_to(&question, address.socket())?;
        }
        while let Some((_, address, last)) = asker.next_farewell() {
            socket.send_to(&last, address.socket())?;
        }
        if let Ok((size, from)) = socket.recv_from(&mut buffer)
            && let Some(bytes) = buffer.get(..size)
            && let Some(finished) = asker.heard(now_us(), LANE, from, bytes)
        {
            show(&finished);
        }
        while let Some(finished) = asker.timed_out(now_us()) {
            show(&finished);
        }
    }
    Ok(())
}

/// Names and maps are the words of strangers, but the codecs have cleaned them: no control characters.
fn show(finished: &Finished<()>) {
    let address = finished.address;
    match &finished.result {
        Err(failure) => println!("{address}: {}", failure.words("")),
        Ok(response) => match &response.facts {
            None => println!("{address}: it answers, and says nothing of itself"),
            Some(facts) => {
                let players = facts.players_current.unwrap_or_default();
                let (name, map, ms) = (&facts.name, &facts.map, response.rtt_us / 1_000);
                println!("{address}: {name}, {players} players on {map}, {ms} ms");
            }
        },
    }
}
