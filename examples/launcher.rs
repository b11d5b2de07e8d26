//! A small library for launchers: list, filter, live updates, join. It needs the standard library and serde_json.
//!
//!     cargo run --example launcher -- localhost:8080 game=iceball not_empty=1

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Error, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Map, Value};

type Server = Map<String, Value>;

/// The host and port of a master.
struct Master(String);

impl Master {
    /// A request by HTTP/1.0, whose answer ends with the connection. Filters are those of /api/v1/servers, encoded for a URL.
    fn get(&self, path: &str, filter: &[String], last: &str) -> io::Result<BufReader<TcpStream>> {
        let mut stream = TcpStream::connect(&self.0)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (host, query) = (&self.0, filter.join("&"));
        write!(stream, "GET /api/v1/{path}?{query} HTTP/1.0\r\nHost: {host}\r\nLast-Event-ID: {last}\r\n\r\n")?;
        let (mut answer, mut line) = (BufReader::new(stream), String::new());
        answer.read_line(&mut line)?;
        let is_ok = line.contains(" 200 ");
        while line != "\r\n" && !line.is_empty() {
            line.clear();
            answer.read_line(&mut line)?;
        }
        if is_ok { Ok(answer) } else { Err(Error::other(io::read_to_string(answer)?)) }
    }

    /// All servers that match, page by page.
    fn list(&self, filter: &[String]) -> io::Result<Vec<Server>> {
        let (mut servers, mut after) = (Vec::new(), String::new());
        loop {
            let page = [filter, &[format!("after={after}")]].concat();
            let page: Value = serde_json::from_reader(self.get("servers", &page, "")?)?;
            servers.extend(rows(&page, "servers"));
            let Some(next) = page.get("next").and_then(Value::as_str) else { return Ok(servers) };
            after = next.bytes().map(|byte| format!("%{byte:02x}")).collect();
        }
    }

    /// Calls `change` with `+`, `*` or `-` for each server that comes, changes or goes. A lost connection is resumed.
    fn follow(&self, filter: &[String], mut change: impl FnMut(char, &Server)) -> io::Result<()> {
        let (mut known, mut last, mut event) = (BTreeMap::new(), String::new(), String::new());
        loop {
            for line in self.get("events", filter, &last).into_iter().flat_map(BufRead::lines).map_while(Result::ok) {
                match line.split_once(": ") {
                    Some(("event", name)) => event = name.into(),
                    Some(("id", id)) => last = id.into(),
                    Some(("data", data)) => apply(&mut known, &event, &serde_json::from_str(data)?, &mut change),
                    _ => {}
                }
            }
            std::thread::sleep(Duration::from_secs(2));
        }
    }
}

fn rows(data: &Value, name: &str) -> Vec<Server> {
    data[name].as_array().into_iter().flatten().filter_map(|row| row.as_object().cloned()).collect()
}

fn apply(known: &mut BTreeMap<String, Server>, event: &str, data: &Value, change: &mut impl FnMut(char, &Server)) {
    let endpoints = |name| rows(data, name).iter().map(|row| row["endpoint"].to_string()).collect::<Vec<_>>();
    let (removed, listed) = (endpoints("removed"), endpoints("servers"));
    let is_gone = |at: &String| removed.contains(at) || event == "snapshot" && !listed.contains(at);
    known.extract_if(.., |at, _| is_gone(at)).for_each(|(_, server)| change('-', &server));
    for row in ["servers", "added", "changed"].into_iter().flat_map(|name| rows(data, name)) {
        let at = row.get("endpoint").map(Value::to_string).unwrap_or_default();
        let mark = if known.contains_key(&at) { '*' } else { '+' };
        let server = known.entry(at).or_default();
        server.extend(row);
        server.retain(|_, value| !value.is_null());
        change(mark, server);
    }
}

/// How to join a server: a link that the game handles, a command, or the address to enter in the game.
fn join(server: &Server) -> &str {
    let way = |name| server.get("join").and_then(|join| join[name].as_str());
    way("link").or_else(|| way("command")).or_else(|| server["endpoint"].as_str()).unwrap_or_default()
}

fn show(mark: char, server: &Server) {
    let text = |name| server.get(name).map(|value| value.to_string().replace('"', "")).unwrap_or_default();
    println!("{mark} {} {}/{} {}", text("name"), text("players_current"), text("players_max"), join(server));
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let master = Master(arguments.next().unwrap_or_default().replace("http://", ""));
    let filter: Vec<String> = arguments.collect();
    master.list(&filter)?.iter().for_each(|server| show('=', server));
    master.follow(&filter, show)
}
