//! Lists that come in datagrams. Packets may be lost, duplicated or reordered, so a list may be incomplete: it is used as far
//! as it arrived, with a note.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout_at};

use super::{Limits, ListError, Listing};
use crate::client::connect::{addresses, any_port};
use crate::client::{Found, Target};
use crate::model::{Address, Game};
use crate::protocols::fetch::{DatagramFetch, FAULTS_MAX, List, ListEntry, Request};
use crate::protocols::{Card, game, is_one_host};

/// How often a request is sent without an answer.
const TRIES: u32 = 3;
/// Wait for the first packet after the first try, and this much longer after each further try; also for each next packet.
const QUIET: Duration = Duration::from_secs(1);
/// Wait for packets that arrive after the last one: as long as the master took to answer, within these bounds.
const LATE_MIN: Duration = Duration::from_millis(30);
const LATE_MAX: Duration = Duration::from_millis(500);
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// Fetches the lists that the address and `games` request.
pub async fn fetch(
    card: &'static Card,
    rules: &dyn DatagramFetch,
    target: &Target,
    games: &[String],
    try_timeout: Duration,
    limits: Limits,
) -> Result<Listing, ListError> {
    let (path, query) = target.path_and_query().map_err(ListError::Usage)?;
    let requests = rules.requests(&path, query, games).map_err(ListError::Usage)?;
    let masters = addresses(&target.authority(target.master_port().map_err(ListError::Usage)?), None).await?;
    let mut fetching = Fetching { card, rules, masters, until: Instant::now() + try_timeout, limits, bytes: 0 };
    fetching.fetch_all(&requests).await
}

struct Fetching<'a> {
    card: &'static Card,
    rules: &'a dyn DatagramFetch,
    /// The master's addresses, at least one.
    masters: Vec<SocketAddr>,
    until: Instant,
    limits: Limits,
    bytes: usize,
}

/// What came back for one request.
struct Answer {
    servers: Vec<Address>,
    /// Ok once the end mark has arrived, otherwise why the list is incomplete.
    end: Result<(), &'static str>,
}

impl Fetching<'_> {
    async fn fetch_all(&mut self, requests: &[Request]) -> Result<Listing, ListError> {
        let mut listing = Listing::default();
        let mut seen = HashSet::new();
        for (number, request) in requests.iter().enumerate() {
            let title = request.game.as_deref().unwrap_or(self.card.title);
            match self.answer(&request.bytes).await {
                Ok(Some(answer)) => {
                    if let Err(why) = answer.end {
                        listing.notes.push(format!("the list of {title} may be incomplete: {why}"));
                    }
                    let room = self.limits.servers_max.saturating_sub(listing.servers.len());
                    let new = answer.servers.into_iter().filter(|address| seen.insert((&request.game, *address)));
                    let new = new.take(room);
                    add(&mut listing, self.game(request), new);
                }
                // The master does not answer: further requests would only time out one by one.
                Ok(None) if number == 0 => return Err(io::Error::from(io::ErrorKind::TimedOut).into()),
                Ok(None) => listing.notes.push(format!("no answer to the request for {title}")),
                Err(error) if number == 0 => return Err(error.into()),
                Err(error) => listing.notes.push(format!("the list of {title}: {error}")),
            }
            if Instant::now() >= self.until && number + 1 < requests.len() {
                listing.notes.push(format!("out of time after {} of {} requests", number + 1, requests.len()));
                break;
            }
        }
        Ok(listing)
    }

    fn game(&self, request: &Request) -> Game {
        let named = request.game.as_deref().and_then(|name| game(self.card.name, name));
        named.unwrap_or(Game::Own(self.card.name))
    }

    /// Sends a request until an answer comes; None if none does.
    async fn answer(&mut self, request: &[u8]) -> io::Result<Option<Answer>> {
        let masters = self.masters.clone();
        let mut failed = None;
        for (try_number, master) in (0..TRIES).zip(masters.iter().cycle()) {
            match self.try_once(*master, request, QUIET * (try_number + 1)).await {
                Ok(Some(answer)) => return Ok(Some(answer)),
                Ok(None) => {}
                Err(error) => failed = Some(error),
            }
            if Instant::now() >= self.until {
                break;
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// Each try has its own port: an answer does not say which request it belongs to.
    async fn try_once(&mut self, master: SocketAddr, request: &[u8], wait: Duration) -> io::Result<Option<Answer>> {
        let socket = UdpSocket::bind(any_port(master.ip())).await?;
        // A connected socket receives only from this address.
        socket.connect(master).await?;
        socket.send(request).await?;
        let sent = Instant::now();
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        let mut until = sent + wait;
        let mut late = None;
        let mut answer: Option<Answer> = None;
        while let Ok(received) = timeout_at(until.min(self.until), socket.recv_from(&mut buffer)).await {
            let (size, from) = match received {
                Ok(received) => received,
                Err(error) if answer.is_none() => return Err(error),
                Err(_) => break,
            };
            let packet = buffer.get(..size).filter(|_| is_same(from, master)).and_then(|bytes| self.rules.read(bytes));
            let Some(packet) = packet else { continue };
            let late = *late.get_or_insert_with(|| sent.elapsed().clamp(LATE_MIN, LATE_MAX));
            let answer = answer.get_or_insert(Answer { servers: Vec::new(), end: Err("packets were lost") });
            answer.servers.extend(packet.servers);
            if packet.end {
                answer.end = Ok(());
            }
            until = Instant::now() + if answer.end.is_ok() { late } else { QUIET };
            self.bytes += size;
            if self.bytes > self.limits.datagram_bytes_max {
                answer.end = Err("it is too long");
                break;
            }
        }
        Ok(answer)
    }
}

/// A datagram that arrived between bind and connect may be from any address. IPv6 scopes are ignored.
fn is_same(from: SocketAddr, master: SocketAddr) -> bool {
    (from.ip(), from.port()) == (master.ip(), master.port())
}

fn add(listing: &mut Listing, game: Game, servers: impl Iterator<Item = Address>) {
    let entries = servers.map(|address| match is_one_host(address.ip()) {
        true => Ok(ListEntry::at(address)),
        false => Err(format!("{address} is not a host's address")),
    });
    let list = List::of(entries);
    listing.left_out += list.left_out;
    let room = FAULTS_MAX.saturating_sub(listing.faults.len());
    listing.faults.extend(list.faults.into_iter().take(room));
    listing.servers.extend(list.servers.into_iter().map(|entry| Found::listed(game.clone(), entry)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::card;
    use crate::protocols::fetch::Packet;

    /// A protocol whose requests are game names, and whose packets are addresses and possibly `END`, as text.
    struct Words;

    impl DatagramFetch for Words {
        fn path_help(&self) -> &'static str {
            "[/NAME]"
        }

        fn requests(&self, _: &str, _: &str, games: &[String]) -> Result<Vec<Request>, String> {
            let request = |game: &String| Request { bytes: game.clone().into_bytes(), game: Some(game.clone()) };
            Ok(games.iter().map(request).collect())
        }

        fn read(&self, bytes: &[u8]) -> Option<Packet> {
            let words = std::str::from_utf8(bytes).ok()?.strip_prefix("list ")?;
            let servers = words.split(' ').filter_map(|word| word.parse().ok()).collect();
            Some(Packet { servers, end: words.ends_with("END") })
        }
    }

    /// Asks a master that answers each of these requests, in this order, with these packets.
    async fn ask(script: &'static [(&str, &[&str])], games: &[&str]) -> Result<Listing, ListError> {
        let master = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let masters = vec![master.local_addr().unwrap()];
        let serving = tokio::spawn(async move {
            let mut buffer = [0; 100];
            for (request, packets) in script {
                let (size, from) = master.recv_from(&mut buffer).await.unwrap();
                assert_eq!(std::str::from_utf8(&buffer[..size]).unwrap(), *request);
                for packet in *packets {
                    master.send_to(packet.as_bytes(), from).await.unwrap();
                }
            }
            master // its port stays taken until the test is over
        });
        let games: Vec<_> = games.iter().map(|game| game.to_string()).collect();
        let requests = Words.requests("", "", &games).unwrap();
        let (card, until) = (card("netpanzer").unwrap(), Instant::now() + Duration::from_secs(60));
        let result = Fetching { card, rules: &Words, masters, until, limits: Limits::WHOLE, bytes: 0 }
            .fetch_all(&requests)
            .await;
        serving.abort();
        result
    }

    fn servers(listing: &Listing) -> Vec<String> {
        listing.servers.iter().map(|found| format!("{} {}", found.game.name(), found.address)).collect()
    }

    #[tokio::test]
    async fn packets_in_any_order_and_each_server_once() {
        let listing = ask(
            &[
                ("a", &["list 192.0.2.1:1 192.0.2.2:2 END", "list 192.0.2.3:3 192.0.2.1:1", "nonsense"]),
                ("b", &["list 192.0.2.1:1 0.0.0.0:5 END"]),
            ],
            &["a", "b"],
        );
        let listing = listing.await.unwrap();
        assert_eq!(servers(&listing), ["a 192.0.2.1:1", "a 192.0.2.2:2", "a 192.0.2.3:3", "b 192.0.2.1:1"]);
        assert_eq!((listing.notes.len(), listing.left_out), (0, 1), "{:?}", listing.notes);
    }

    #[tokio::test]
    async fn a_lost_request_is_sent_again_and_a_lost_end_is_noted() {
        let script: &[(&str, &[&str])] = &[("a", &[]), ("a", &["list 192.0.2.1:1"]), ("b", &["list END"])];
        let listing = ask(script, &["a", "b"]).await.unwrap();
        assert_eq!(servers(&listing), ["a 192.0.2.1:1"]);
        assert_eq!(listing.notes, ["the list of a may be incomplete: packets were lost"]);
    }

    #[tokio::test]
    async fn a_closed_port_is_an_error() {
        let closed = UdpSocket::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let (card, until) = (card("netpanzer").unwrap(), Instant::now() + Duration::from_secs(60));
        let mut fetching =
            Fetching { card, rules: &Words, masters: vec![closed], until, limits: Limits::WHOLE, bytes: 0 };
        let error = fetching.fetch_all(&Words.requests("", "", &["a".into()]).unwrap()).await.unwrap_err();
        assert!(matches!(error, ListError::Connect(_)), "{error}");
    }
}
