//! Announcing a game server to a master, once, from the address that it is played on.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout};

use super::http;
use super::list::connect;
use super::place::{Kind, Place};
use crate::model::{Address, Facts};
use crate::protocols::netpanzer::wire::Request;
use crate::protocols::{Card, bloodmasters, iceball, netpanzer};
use crate::text;

/// A master proves a server before it answers; that takes it some seconds.
const PATIENCE: Duration = Duration::from_secs(10);
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// How a master is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Bursts of datagrams, each answered by a cookie that goes back.
    Iceball,
    /// One message over TCP, for any game.
    Netpanzer,
    /// One GET.
    Bloodmasters,
}

impl Way {
    /// How this master hears of this game, if it does.
    pub fn of(master: &Place, game: &Card) -> Result<Way, String> {
        match master.kind {
            Kind::Game(card) if card.name == netpanzer::NAME => Ok(Way::Netpanzer),
            Kind::Game(card) if card.name == iceball::NAME && game.name == card.name => Ok(Way::Iceball),
            Kind::Page(card) if card.name == bloodmasters::NAME && game.name == card.name => Ok(Way::Bloodmasters),
            _ => Err(format!(
                "{} servers cannot be announced to `{master}`; a netpanzer:// master takes any game, iceball:// and \
                 bloodmasters+http:// their own",
                game.title
            )),
        }
    }

    /// How often the game's own servers announce themselves.
    pub fn every(self) -> Duration {
        match self {
            Way::Iceball => Duration::from_millis(iceball::answer::BURST_EVERY_MS),
            Way::Netpanzer => Duration::from_secs(300),
            Way::Bloodmasters => Duration::from_secs(60),
        }
    }
}

/// Announces a netPanzer-style heartbeat; an error is the master's own words, or why it was not reached.
pub async fn netpanzer(master: &Place, game: &str, at: Address) -> Result<(), String> {
    let port = master.master_port()?;
    let pair = |key: &str, value: &str| (key.as_bytes().to_vec(), value.as_bytes().to_vec());
    let pairs = vec![pair("gamename", game), pair("port", &at.port().to_string())];
    let message = Request { kind: b"heartbeat".to_vec(), pairs }.emit();
    let authority = master.authority(port);
    let mut stream = connect(&authority, Some(at.ip())).await.map_err(|error| error.to_string())?;
    let talk = async {
        stream.write_all(&message).await?;
        let mut answer = Vec::new();
        let mut limited = stream.take(ANSWER_BYTES_MAX);
        while !answer.ends_with(br"\final\") && limited.read_buf(&mut answer).await? > 0 {}
        Ok::<_, io::Error>(answer)
    };
    let answer = timeout(PATIENCE, talk).await.map_err(|_| "it did not answer in time")?;
    let answer = answer.map_err(|error| error.to_string())?;
    match &answer[..] {
        br"\final\" => Ok(()),
        _ => {
            let says = text::clean(&answer).into_owned();
            let says = says.trim_start_matches(r"\error\").trim_end_matches(r"\final\");
            Err(format!("it refuses: {says}"))
        }
    }
}

/// Announces as a Bloodmasters server does. The answer is the ban list, which a pretend server has no use for.
pub async fn bloodmasters(master: &Place, at: Address) -> Result<(), String> {
    let authority = master.authority(master.master_port()?);
    let path = if master.path.len() > 1 { &master.path } else { "/bloodmasterslist.php" };
    let joint = if path.contains('?') { '&' } else { '?' };
    let path = format!("{path}{joint}action=update&port={}", at.port());
    http::get_from(at.ip(), &authority, &path).await.map(drop).map_err(|error| error.to_string())
}

/// One burst of an Iceball server; every cookie from the master goes back. Ends at the next burst's time at the latest.
pub async fn iceball(master: Address, of: &Facts<'_>, at: Address) -> Result<(), String> {
    use crate::protocols::iceball::answer::{BURST, BURST_GAP_MS, announcement, answer};
    let text = |error: io::Error| error.to_string();
    let source: IpAddr = at.ip();
    let socket = UdpSocket::bind((source, 0)).await.map_err(text)?;
    // Connected: what comes from anybody but the master is not heard.
    socket.connect(master.socket()).await.map_err(text)?;
    let datagram = announcement(of, at);
    let mut proven = false;
    let mut buffer = [0; 4096];
    for _ in 0..BURST {
        socket.send(&datagram).await.map_err(text)?;
        let next = Instant::now() + Duration::from_millis(BURST_GAP_MS);
        while let Ok(received) = tokio::time::timeout_at(next, socket.recv(&mut buffer)).await {
            let Ok(size) = received else {
                // Nobody listens there, or not yet.
                sleep(next.saturating_duration_since(Instant::now())).await;
                break;
            };
            let reply = answer(buffer.get(..size).unwrap_or_default()).map_err(|why| format!("it refuses: {why}"))?;
            socket.send(&reply).await.map_err(text)?;
            proven = true;
        }
    }
    if proven { Ok(()) } else { Err("it did not answer".into()) }
}
