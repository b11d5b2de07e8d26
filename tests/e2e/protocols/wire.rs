//! The bytes in docs/wire: every example there is an exchange with the real program, in a network of its own with the ports and
//! addresses that the pages show. Tables of bytes add up to one of these messages.
//!
//! A block ```` ```wire ```` begins with who speaks: `udp from the game server to the master, port 27790`. Lines with `>` are what
//! that one sends, those with `<` what comes back, and `=` what the program read from it, as `rallypoint query` prints it. In
//! messages, `<ff 00*3>` are bytes in hex, and `{name}` or `{name:4}` is a text that is different each time: what came first is
//! expected, or sent, again.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rallypoint::protocols::{CARDS, Card};
use serde_json::Value;

use crate::support::commands::ends;
use crate::support::documents::{Document, documents};
use crate::support::machines::{Own, inside};
use crate::support::*;

const GAME: &str = "203.0.113.5";
const CLIENT: &str = "203.0.113.77";
const MASTER: &str = "203.0.113.10";

/// A part of a message: bytes, or a name and its length if that is fixed.
#[derive(Clone, Debug)]
enum Part {
    Bytes(Vec<u8>),
    Hole(String, Option<usize>),
}

type Filled = HashMap<String, Vec<u8>>;

/// A message of a page.
#[derive(Clone, Debug)]
struct Template(Vec<Part>);

impl Template {
    fn parse(text: &str) -> Template {
        let (mut parts, mut bytes, mut rest) = (Vec::new(), Vec::new(), text);
        while let Some(c) = rest.chars().next() {
            if let Some((name, after)) = hole(rest) {
                parts.push(Part::Bytes(std::mem::take(&mut bytes)));
                let (name, size) = name.split_once(':').map_or((name, None), |(name, size)| (name, size.parse().ok()));
                parts.push(Part::Hole(name.into(), size));
                rest = after;
            } else if let Some((hex, after)) = rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
                for item in hex.split(' ') {
                    let (pair, times) = item.split_once('*').unwrap_or((item, "1"));
                    let byte = u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("<{hex}> is not hex"));
                    bytes.extend(std::iter::repeat_n(byte, times.parse().unwrap()));
                }
                rest = after;
            } else {
                bytes.extend(c.to_string().bytes());
                rest = &rest[c.len_utf8()..];
            }
        }
        parts.push(Part::Bytes(bytes));
        Template(parts)
    }

    /// The message, with what is known; what is not known is left out.
    fn fill(&self, filled: &Filled) -> Vec<u8> {
        let part = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.clone(),
            Part::Hole(name, _) => filled.get(name).cloned().unwrap_or_default(),
        };
        self.0.iter().flat_map(part).collect()
    }

    /// Whether this is the message; then what its holes have in it.
    fn read(&self, message: &[u8], filled: &Filled) -> Option<Filled> {
        let (mut found, mut rest) = (filled.clone(), message);
        for (number, part) in self.0.iter().enumerate() {
            match part {
                Part::Bytes(bytes) => rest = rest.strip_prefix(&bytes[..])?,
                Part::Hole(name, size) => {
                    let size = size.or(found.get(name).map(Vec::len)).or_else(|| match self.0.get(number + 1) {
                        Some(Part::Bytes(next)) if !next.is_empty() => {
                            rest.windows(next.len()).position(|window| window == next)
                        }
                        _ => Some(rest.len()),
                    })?;
                    let (text, after) = rest.split_at_checked(size)?;
                    if found.insert(name.clone(), text.to_vec()).is_some_and(|before| before != text) {
                        return None;
                    }
                    rest = after;
                }
            }
        }
        rest.is_empty().then_some(found)
    }
}

/// `{name}` at the beginning of a text, and what follows it.
fn hole(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.strip_prefix('{')?.split_once('}')?;
    let is_name = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c));
    is_name.then_some((name, rest))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Sent,
    Back,
    Read,
}

/// An exchange of a page.
struct Exchange {
    page: String,
    transport: String,
    from: String,
    to: String,
    port: u16,
    lines: Vec<(Line, String)>,
}

impl Exchange {
    fn of(document: &Document) -> Vec<Exchange> {
        let block = |text: &str| {
            let (head, body) = text.split_once('\n').unwrap();
            let speaking = || {
                let (transport, rest) = head.split_once(" from the ")?;
                let (from, rest) = rest.split_once(" to the ")?;
                let (to, port) = rest.split_once(", port ")?;
                Some((transport, from, to, port.parse::<u16>().ok()?))
            };
            let (transport, from, to, port) =
                speaking().unwrap_or_else(|| panic!("{}: who speaks to whom? {head}", document.name));
            let line = |line: &str| {
                let kind = match line.get(..1) {
                    Some(">") => Line::Sent,
                    Some("<") => Line::Back,
                    Some("=") => Line::Read,
                    _ => panic!("{}: {line}", document.name),
                };
                (kind, line[1..].strip_prefix(' ').unwrap_or_default().to_string())
            };
            Exchange {
                page: document.name.clone(),
                transport: transport.into(),
                from: from.into(),
                to: to.into(),
                port,
                lines: body.lines().map(line).collect(),
            }
        };
        document.blocks("wire").iter().map(|found| block(&found.text)).collect()
    }

    fn asks_the_game(&self) -> bool {
        self.to == "game server"
    }

    /// Questions, each with its answers.
    fn questions(&self) -> Vec<(Template, Vec<Template>)> {
        let mut questions: Vec<(Template, Vec<Template>)> = Vec::new();
        for (kind, text) in &self.lines {
            match kind {
                Line::Sent => questions.push((Template::parse(text), Vec::new())),
                Line::Back => questions.last_mut().unwrap().1.push(Template::parse(text)),
                Line::Read => {}
            }
        }
        questions
    }
}

/// The game server of a page: it answers the questions of the page, as the page does, and passes on everything else.
struct PlayedGame {
    socket: UdpSocket,
    others: Mutex<Receiver<Vec<u8>>>,
    asked: Arc<Mutex<Vec<bool>>>,
}

impl PlayedGame {
    fn start(port: u16, questions: Vec<(Template, Vec<Template>)>) -> PlayedGame {
        let socket = UdpSocket::bind((GAME, port)).unwrap();
        let (own, (send, others)) = (socket.try_clone().unwrap(), channel());
        let asked = Arc::new(Mutex::new(vec![false; questions.len()]));
        let heard = asked.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((size, from)) = own.recv_from(&mut buffer) {
                let message = &buffer[..size];
                let known = questions.iter().enumerate().find_map(|(number, (question, answers))| {
                    Some((number, question.read(message, &Filled::new())?, answers))
                });
                match known {
                    Some((number, mut filled, answers)) => {
                        also_in_decimal(&mut filled);
                        heard.lock().unwrap()[number] = true;
                        answers.iter().for_each(|answer| drop(own.send_to(&answer.fill(&filled), from)));
                    }
                    None if send.send(message.to_vec()).is_err() => return,
                    None => {}
                }
            }
        });
        PlayedGame { socket, others: Mutex::new(others), asked }
    }

    fn receive(&self) -> Option<Vec<u8>> {
        self.others.lock().unwrap().recv_timeout(LIMIT).ok()
    }
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// The exchange as the page has it, with the real master; or what came instead.
fn run(exchange: &Exchange, game: &PlayedGame, filled: &mut Filled) -> Result<(), String> {
    let master: SocketAddr = format!("{MASTER}:{}", exchange.port).parse().unwrap();
    let host = if exchange.from == "game server" { GAME } else { CLIENT };
    match exchange.transport.as_str() {
        "udp" if exchange.from == "game server" => run_datagrams(
            exchange,
            filled,
            |bytes| assert_eq!(game.socket.send_to(bytes, master).ok(), Some(bytes.len())),
            || game.receive(),
        ),
        "udp" => {
            let socket = UdpSocket::bind((host, 0)).unwrap();
            socket.set_read_timeout(Some(LIMIT)).unwrap();
            let receive = || {
                let mut buffer = [0; 4096];
                socket.recv(&mut buffer).ok().map(|size| buffer[..size].to_vec())
            };
            run_datagrams(
                exchange,
                filled,
                |bytes| assert_eq!(socket.send_to(bytes, master).ok(), Some(bytes.len())),
                receive,
            )
        }
        "tcp" => run_stream(exchange, &mut connect_from(host, master), filled),
        "http" => run_requests(exchange, host, master, filled, game),
        other => panic!("{}: {other}", exchange.page),
    }
}

/// What the page says at a place, and what came.
fn other(text: &str, came: &[u8]) -> String {
    format!("{text}\ncame as {}", shown(came))
}

fn run_datagrams(
    exchange: &Exchange,
    filled: &mut Filled,
    send: impl Fn(&[u8]),
    receive: impl Fn() -> Option<Vec<u8>>,
) -> Result<(), String> {
    for (kind, text) in &exchange.lines {
        let template = Template::parse(text);
        match kind {
            Line::Sent => send(&template.fill(filled)),
            Line::Back => {
                let message = receive().ok_or_else(|| other(text, b"nothing"))?;
                *filled = template.read(&message, filled).ok_or_else(|| other(text, &message))?;
                also_in_decimal(filled);
            }
            Line::Read => return Err("`=` is for answers of game servers".into()),
        }
    }
    Ok(())
}

/// Numbers are also known in decimal: `{challenge:4}`, little endian, as `{challenge_decimal}`, and `{nonce:2}` with its last eight
/// bits `{nonce_low:1}` as `{nonce_decimal}`.
fn also_in_decimal(filled: &mut Filled) {
    let number = |(name, bytes): (&String, &Vec<u8>)| {
        let number = match (bytes.as_slice(), filled.get(&format!("{name}_low"))) {
            ([a, b, c, d], _) => u32::from_le_bytes([*a, *b, *c, *d]),
            ([high, middle], Some(low)) => u32::from_be_bytes([0, *high, *middle, low[0]]),
            _ => return None,
        };
        Some((format!("{name}_decimal"), number.to_string().into_bytes()))
    };
    let numbers: Vec<_> = filled.iter().filter_map(number).collect();
    filled.extend(numbers);
}

fn run_stream(exchange: &Exchange, stream: &mut TcpStream, filled: &mut Filled) -> Result<(), String> {
    let mut read = Vec::new();
    for (number, (kind, text)) in exchange.lines.iter().enumerate() {
        let template = Template::parse(text);
        if *kind == Line::Sent {
            stream.write_all(&template.fill(filled)).unwrap();
            continue;
        }
        let is_last = number + 1 == exchange.lines.len();
        let found = loop {
            if let Some(found) = template.read(&read, filled) {
                break found;
            }
            let mut buffer = [0; 4096];
            let size = stream.read(&mut buffer).unwrap_or_default();
            if size == 0 {
                return Err(other(text, &read));
            }
            read.extend(&buffer[..size]);
        };
        *filled = found;
        read.clear();
        if is_last {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut more = Vec::new();
            stream.read_to_end(&mut more).unwrap();
            if !more.is_empty() {
                return Err(other(&format!("the end after {text}"), &more));
            }
        }
    }
    Ok(())
}

/// Requests are written as a method and a path, with header lines and a body after an empty line; answers as status and body. A
/// `<` line that begins with `udp` is a datagram to the game.
fn run_requests(
    exchange: &Exchange,
    host: &str,
    master: SocketAddr,
    filled: &mut Filled,
    game: &PlayedGame,
) -> Result<(), String> {
    let mut request: Vec<String> = Vec::new();
    for (kind, text) in &exchange.lines {
        if *kind == Line::Sent {
            request.push(String::from_utf8(Template::parse(text).fill(filled)).unwrap());
            continue;
        }
        let (message, expected) = match text.strip_prefix("udp ") {
            Some(expected) => (game.receive().ok_or_else(|| other(text, b"nothing"))?, expected),
            None => {
                let answer = ask(&mut connect_from(host, master), &std::mem::take(&mut request));
                (format!("{} {}", answer.status(), answer.text()).trim_end().as_bytes().to_vec(), text.as_str())
            }
        };
        *filled = Template::parse(expected).read(&message, filled).ok_or_else(|| other(text, &message))?;
    }
    Ok(())
}

fn ask(stream: &mut TcpStream, request: &[String]) -> Response {
    let body_at = request.iter().position(String::is_empty).unwrap_or(request.len());
    let body: String = request.iter().skip(body_at + 1).cloned().collect::<Vec<_>>().join("\r\n");
    let head: String = request[1..body_at].iter().map(|line| format!("{line}\r\n")).collect();
    let text = format!(
        "{} HTTP/1.1\r\nHost: master.example.org\r\nConnection: close\r\nContent-Length: {}\r\n{head}\r\n{body}",
        request[0],
        body.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

fn pages() -> Vec<(&'static Card, Document)> {
    let pages = documents().into_iter().filter(|document| document.name.starts_with("docs/wire/"));
    let of_card = |document: Document| {
        let name = document.name.trim_start_matches("docs/wire/").trim_end_matches(".md").to_string();
        Some((CARDS.iter().find(|card| card.name == name)?, document))
    };
    pages.filter_map(of_card).collect()
}

/// Waits for it, or looks once.
fn until_or<T>(again: bool, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let mut left = if again { 1_000 } else { 1 };
    until("the exchange", || {
        left -= 1;
        let found = look();
        (found.is_some() || left == 0).then_some(found)
    })
}

/// What the program has read of a server, as the page says it after `=`.
fn check_facts(exchange: &Exchange, server: &Value) {
    for (_, text) in exchange.lines.iter().filter(|(kind, _)| *kind == Line::Read) {
        let (field, expected) = text.split_once(' ').unwrap();
        let found = match &server[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        assert_eq!(found, expected, "{}: {field} in {server}", exchange.page);
    }
}

fn check_page(card: &Card, document: &Document) {
    let exchanges = Exchange::of(document);
    let questions = exchanges.iter().filter(|exchange| exchange.asks_the_game());
    let questions: Vec<_> = questions.flat_map(Exchange::questions).collect();
    assert_eq!(questions.is_empty(), card.query.is_none(), "{}: how servers are queried", document.name);
    let game = PlayedGame::start(card.game_port, questions);
    let mut filled = Filled::new();
    for exchange in exchanges.iter().filter(|exchange| !exchange.asks_the_game()) {
        let mut last = String::new();
        // A list follows the announcements a moment later: clients ask again.
        let done =
            until_or(exchange.from == "client", || run(exchange, &game, &mut filled).map_err(|why| last = why).ok());
        assert!(done.is_some(), "{}: {last}", document.name);
    }
    // Other programs read what the page says of a game server's answers.
    for exchange in exchanges.iter().filter(|exchange| exchange.asks_the_game()) {
        assert_eq!(exchange.port, card.game_port, "{}", document.name);
        let (found, _) = ends(0, &["query", "--format", "json", &format!("{}://{GAME}", card.name)]);
        let found: Value = serde_json::from_str(&found).unwrap();
        check_facts(exchange, &found["servers"][0]);
    }
    let asked = game.asked.lock().unwrap().clone();
    assert!(asked.iter().all(|asked| *asked), "{}: a question that nobody asks: {asked:?}", document.name);
    let other = game.others.lock().unwrap().try_recv();
    assert!(other.is_err(), "{}: the page does not have {}", document.name, shown(&other.unwrap()));
}

#[test]
#[ignore = "needs network namespaces"]
fn the_exchanges_in_the_book_are_those_of_the_program() {
    if !inside(Own::Network, "protocols::wire::the_exchanges_in_the_book_are_those_of_the_program") {
        return;
    }
    for address in [GAME, CLIENT, MASTER] {
        let added =
            std::process::Command::new("ip").args(["address", "add", &format!("{address}/32"), "dev", "lo"]).status();
        assert!(added.unwrap().success());
    }
    let pages = pages();
    assert_eq!(pages.len(), CARDS.len(), "docs/wire has a page for each card");
    for (card, document) in pages {
        // Each page has a master of its own, with nothing on its list.
        let server = Server::start_on_defaults(command(), &[], &[]);
        check_page(card, &document);
        let listed = server.json("/api/v1/servers");
        assert_eq!(listed["total"], 1, "{}: its server is listed: {listed}\n{}", document.name, server.log());
        assert_eq!(listed["servers"][0]["endpoint"], format!("{GAME}:{}", card.game_port), "{}", document.name);
    }
}

/// The rows of a table of bytes: offset, size, and the bytes in the example.
fn table(lines: &[&str]) -> Option<Vec<(usize, usize, Template)>> {
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_string()).collect::<Vec<_>>();
    if cells(lines[0]).get(..3)? != ["offset", "size", "example"] {
        return None;
    }
    let row = |line: &&str| {
        let cells = cells(line);
        let bytes = Template::parse(cells[2].trim_matches('`'));
        (cells[0].parse().expect(line), cells[1].parse().expect(line), bytes)
    };
    Some(lines[2..].iter().map(row).collect())
}

/// Tables of bytes have no gaps, and their examples are together one of the messages of the page's exchanges.
#[test]
fn the_tables_of_bytes_add_up_to_the_messages() {
    let mut count = 0;
    for (_, document) in pages() {
        let messages = Exchange::of(&document).into_iter().flat_map(|exchange| exchange.lines);
        let messages: Vec<Vec<u8>> = messages
            .filter(|(kind, _)| *kind != Line::Read)
            .map(|(_, text)| Template::parse(text.strip_prefix("udp ").unwrap_or(&text)).fill(&Filled::new()))
            .collect();
        let prose = document.prose();
        let lines: Vec<&str> = prose.lines().collect();
        for block in lines.split(|line| !line.starts_with('|')).filter(|block| block.len() > 2) {
            let Some(rows) = table(block) else { continue };
            let mut message = Vec::new();
            for (offset, size, bytes) in rows {
                let holes: usize =
                    bytes.0.iter().map(|part| if let Part::Hole(_, size) = part { size.unwrap_or(0) } else { 0 }).sum();
                let mut bytes = bytes.fill(&Filled::new());
                assert!(bytes.len() + holes <= size, "{}: {} bytes at {offset}", document.name, bytes.len());
                if holes == 0 {
                    bytes.resize(size, 0);
                }
                let length = end_of(&message);
                assert_eq!(length, offset, "{}: a gap before {offset}", document.name);
                message.push((bytes, size));
            }
            let bytes: Vec<u8> = message.into_iter().flat_map(|(bytes, _)| bytes).collect();
            assert!(messages.contains(&bytes), "{}: no message is {}", document.name, shown(&bytes));
            count += 1;
        }
    }
    assert!(count >= 8, "{count} tables");
}

fn end_of(message: &[(Vec<u8>, usize)]) -> usize {
    message.iter().map(|(_, size)| size).sum()
}
