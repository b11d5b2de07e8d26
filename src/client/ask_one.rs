//! Asking one game server about itself.

use std::io;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::reach::any_port;
use crate::asker::{Answer, Asker, Failure, Settings};
use crate::model::Address;
use crate::protocols::{Ask, Query};

/// One server: nothing to pace, but what a query itself sends.
const SETTINGS: Settings =
    Settings { tries: 3, try_us: 1_000_000, all_us: 4_000_000, per_second: 100, per_ip_per_second: 100 };
const DATAGRAM_BYTES_MAX: usize = 64 << 10;
/// When nothing else is due.
const IDLE: Duration = Duration::from_millis(50);

/// The answer, or why there is none, in words.
pub async fn ask(address: Address, query: &'static dyn Query) -> Result<Answer, String> {
    let cannot = |error: io::Error| format!("cannot be asked: {error}");
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).map_err(|error| format!("the system gives no random numbers: {error}"))?;
    let mut asker = Asker::new(SETTINGS, seed);
    let _ = asker.ask(address, query, Ask::Proof, ()); // nobody else is asked
    let socket = UdpSocket::bind(any_port(address.ip())).await.map_err(cannot)?;
    let start = Instant::now();
    let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
    loop {
        let now_us = start.elapsed().as_micros() as u64;
        if let Some(finished) = asker.timed_out(now_us) {
            return finished.result.map_err(in_words);
        }
        while let Some((to, question)) = asker.next_question(now_us, 0) {
            socket.send_to(&question, to.socket()).await.map_err(cannot)?;
        }
        let wake = asker.next_timeout_us().map_or(Instant::now() + IDLE, |us| start + Duration::from_micros(us));
        if let Ok(received) = timeout_at(wake, socket.recv_from(&mut buffer)).await {
            let (size, from) = received.map_err(cannot)?;
            let now_us = start.elapsed().as_micros() as u64;
            let bytes = buffer.get(..size).unwrap_or_default();
            if let Some(finished) = asker.heard(now_us, 0, from, bytes) {
                return finished.result.map_err(in_words);
            }
        }
    }
}

fn in_words(failure: Failure) -> String {
    match failure {
        Failure::Silent => "no answer".into(),
        Failure::Bad(fault) => format!("bad answer: {fault}"),
    }
}
