//! Behind proxies: who the client is, with `X-Forwarded-For`, `Forwarded` and the PROXY protocol. Loopback addresses are
//! machines: 127.0.0.2 is the proxy, and the clients' addresses are from the networks for examples.

use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::Signal;

use crate::cli::fetch::Authority;
use crate::hostile::limits::ask;
use crate::support::documents::documents;
use crate::support::*;

const PROXY: &str = "127.0.0.2";

/// Sends bytes and reads until the other side closes.
fn exchange_from(from: &str, to: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect_from(from, to);
    let _ = stream.write_all(bytes); // the other side may have closed already
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer); // a reset is an end, too
    answer
}

/// Whether the other side ends the connection without another byte. A timeout is no end.
pub fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(size) => size == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

fn get_from(server: &Server, from: &str, headers: &str) -> Response {
    let request = format!("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
    split(&exchange_from(from, server.address("web.listen"), request.as_bytes()))
}

/// An announcement of a game that cannot be queried, so that it is listed at the caller's address.
pub fn announcement_of(port: u16, headers: &str) -> String {
    let body = format!(r#"{{"game":"other","port":{port}}}"#);
    let size = body.len();
    format!(
        "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {size}\r\n{headers}\r\n{body}"
    )
}

/// Announces a server, and returns the address that it was listed with.
fn announced(server: &Server, from: &str, before: &[u8], headers: &str) -> String {
    let request = [before, announcement_of(77, headers).as_bytes()].concat();
    address_in(&exchange_from(from, server.address("web.listen"), &request))
}

pub fn address_in(answer: &[u8]) -> String {
    let answer = split(answer);
    assert_eq!(answer.status(), 200, "{answer:?}");
    let answer: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    answer["address"].as_str().unwrap().to_string()
}

/// Headers of the PROXY protocol, versions 1 and 2.
pub fn headers_of(client: [u8; 4]) -> [Vec<u8>; 2] {
    let text = IpAddr::from(client).to_string();
    let v1 = format!("PROXY TCP4 {text} 198.51.100.1 5000 80\r\n").into_bytes();
    let v2 = [
        &b"\r\n\r\n\0\r\nQUIT\n\x21\x11"[..],
        &[0, 12 + 7], // with an addition
        &client,
        &[198, 51, 100, 1, 0x13, 0x88, 0, 80],
        b"\x04\0\x04abcd",
    ];
    [v1, v2.concat()]
}

fn refusals(server: &Server) -> u64 {
    let metrics = server.get("/metrics");
    let line = metrics.text().lines().find_map(|line| line.strip_prefix("rallypoint_proxy_refusals_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn only_the_configured_proxies_header_names_the_client() {
    let folder = Folder::new("proxy-header");
    let section =
        |header: &str| format!("[proxy]\nnetworks = [\"{PROXY}\", \"192.0.2.0/24\"]\nheader = \"{header}\"\n");
    let file = folder.write("rallypoint.toml", &section("x-forwarded-for"));
    let mut server = Server::start_with(&["--config", file.to_str().unwrap()], &[]);
    for (from, headers, client) in [
        (PROXY, "X-Forwarded-For: 203.0.113.9\r\n", "203.0.113.9"),
        (PROXY, "X-Forwarded-For: 198.51.100.66, 203.0.113.9\r\n", "203.0.113.9"),
        (PROXY, "X-Forwarded-For: 198.51.100.66\r\nX-Forwarded-For: 203.0.113.9, 192.0.2.1\r\n", "203.0.113.9"),
        (PROXY, "X-Forwarded-For: [2001:db8::9]:4711\r\n", "2001:db8::9"),
        (PROXY, "X-Forwarded-For: 203.0.113.9, nonsense\r\n", PROXY),
        (PROXY, "Forwarded: for=203.0.113.9\r\n", PROXY),
        (PROXY, "", PROXY),
        ("127.0.0.3", "", "127.0.0.3"),
    ] {
        assert_eq!(announced(&server, from, b"", headers), client, "{from}: {headers}");
    }
    folder.write("rallypoint.toml", &section("forwarded"));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    for (from, headers, client) in [
        (PROXY, "Forwarded: for=198.51.100.66, for=\"[2001:db8::9]:4711\";proto=https\r\n", "2001:db8::9"),
        (PROXY, "Forwarded: for=\", for=203.0.113.9\r\n", "203.0.113.9"),
        (PROXY, "X-Forwarded-For: 203.0.113.9\r\n", PROXY),
        ("127.0.0.3", "", "127.0.0.3"),
    ] {
        assert_eq!(announced(&server, from, b"", headers), client, "{from}: {headers}");
    }
}

#[test]
fn a_banned_client_behind_a_proxy_is_refused_and_the_others_are_not() {
    let server = Server::start(&["guard.bans=203.0.113.0/24", &format!("proxy.networks={PROXY}")]);
    let mut stream = connect_from(PROXY, server.address("web.listen"));
    // One connection of the proxy has requests of many clients.
    for (client, status, text) in [
        ("203.0.113.5", "403 Forbidden", "your address is banned here"),
        ("198.51.100.5", "200 OK", "ok"),
        ("198.51.100.5, ::ffff:203.0.113.5", "403 Forbidden", "banned"),
        ("203.0.113.5, 198.51.100.5", "200 OK", "ok"),
    ] {
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: {client}\r\n\r\n").unwrap();
        let mut answer = [0; 1024];
        let size = stream.read(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..size]).into_owned();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")) && answer.contains(text), "{client}: {answer}");
    }
    let header = "X-Forwarded-For: 203.0.113.5\r\n";
    assert_eq!(get_from(&server, "127.0.0.3", header).status(), 200, "only the proxy is believed");
    let refused = exchange_from(PROXY, server.address("web.listen"), announcement_of(77, header).as_bytes());
    assert_eq!(split(&refused).status(), 403);
}

#[test]
fn a_client_behind_a_proxy_has_its_own_budget() {
    let server = Server::start(&["guard.max_servers_per_ip=1", &format!("proxy.networks={PROXY}")]);
    let mut stream = BufReader::new(connect_from(PROXY, server.address("web.listen")));
    let mut announce = |client: &str| {
        let request = announcement_of(77, &format!("X-Forwarded-For: {client}\r\n"));
        ask(&mut stream, &request.replace("Connection: close\r\n", "")).status()
    };
    // The budget grows again all the time.
    let mut refused = |client: &str| (0..500).map(|_| announce(client)).find(|status| *status != 200);
    assert_eq!(refused("203.0.113.5"), Some(429));
    assert_eq!(refused("198.51.100.5, 203.0.113.5"), Some(429), "what a client sends does not help it");
    assert_eq!(announce("198.51.100.5"), 200, "another client on the same connection has paid for none of that");
}

#[test]
fn the_limit_per_address_is_the_clients_and_not_the_proxys() {
    let own = "127.0.0.4";
    let server = Server::start(&[
        "guard.max_connections_per_ip=2",
        &format!("proxy.networks={PROXY}"),
        &format!("proxy.protocol={own}"),
    ]);
    let address = server.address("web.listen");
    let asks = |stream: &mut TcpStream| {
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
        matches!(stream.read(&mut [0; 1024]), Ok(size) if size > 0)
    };
    // A reverse proxy's connections are limited only in all.
    let mut all: Vec<_> = (0..10).map(|_| connect_from(PROXY, address)).collect();
    assert!(all.iter_mut().all(asks));
    // With the PROXY protocol, each connection is of one client.
    let connect_as = |client: [u8; 4]| {
        let mut stream = connect_from(own, address);
        stream.write_all(&headers_of(client)[1]).unwrap();
        assert!(asks(&mut stream));
        stream
    };
    let mut other = connect_as([198, 51, 100, 7]);
    let mut all: Vec<_> = (0..3).map(|_| connect_as([203, 0, 113, 7])).collect();
    assert!(is_closed(&mut all[0]), "the client's longest idle one is closed");
    assert!(asks(&mut all[1]) && asks(&mut all[2]) && asks(&mut other));
}

#[test]
fn the_proxy_protocol_names_the_client_of_a_connection() {
    let server = Server::start(&[&format!("proxy.protocol={PROXY}"), "guard.bans=203.0.113.66"]);
    for (number, header) in (0..).zip(headers_of([203, 0, 113, 9])) {
        assert_eq!(announced(&server, PROXY, &header, ""), "203.0.113.9");
        // A forged header behind it changes nothing.
        assert_eq!(announced(&server, PROXY, &header, "X-Forwarded-For: 192.0.2.1\r\n"), "203.0.113.9");
        // A heartbeat over a stream. Its bytes may arrive one by one, and the header in parts.
        let port = 2000 + number;
        let mut stream = connect_from(PROXY, server.address("netpanzer.listen"));
        for byte in &header {
            stream.write_all(&[*byte]).unwrap();
        }
        write!(stream, r"\heartbeat\gamename\other\port\{port}\final\").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, r"\final\");
        let path = format!("/api/v1/servers/other/203.0.113.9:{port}");
        until("the server", || (server.get(&path).status() == 200).then_some(()));
    }
    let unknown: [&[u8]; 2] = [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\x00\0\0"];
    for header in unknown {
        assert_eq!(announced(&server, PROXY, header, ""), PROXY, "the connection is the proxy's own");
    }
    for header in headers_of([203, 0, 113, 66]) {
        let banned =
            exchange_from(PROXY, server.address("web.listen"), &[&header[..], b"GET / HTTP/1.0\r\n\r\n"].concat());
        assert_eq!(banned, b"", "a banned client's connection is closed");
    }
    assert_eq!(refusals(&server), 0);
}

#[test]
fn a_game_behind_the_proxy_protocol_is_queried_at_its_own_address() {
    let server = Server::start(&[&format!("proxy.protocol={PROXY}"), "probe.every=15m"]);
    let tank = crate::support::netpanzer::Tank::new();
    for header in headers_of([127, 0, 0, 1]) {
        let heartbeat = format!(r"\heartbeat\gamename\netpanzer\port\{}\protocol\1122\final\", tank.port);
        let answer =
            exchange_from(PROXY, server.address("netpanzer.listen"), &[&header[..], heartbeat.as_bytes()].concat());
        assert_eq!(String::from_utf8_lossy(&answer), r"\final\");
    }
    let path = format!("/api/v1/check?game=netpanzer&address=127.0.0.1:{}", tank.port);
    let diagnosis = until("the diagnosis", || Some(server.json(&path)).filter(|json| json["listed"] == true));
    assert!(diagnosis.to_string().contains("eartbeat"), "{diagnosis}");
}

#[test]
fn from_anybody_else_the_proxy_protocol_is_garbage() {
    let server = Server::start(&[&format!("proxy.protocol={PROXY}")]);
    for header in headers_of([203, 0, 113, 9]) {
        let request = [&header[..], announcement_of(77, "").as_bytes()].concat();
        let answer = split(&exchange_from("127.0.0.3", server.address("web.listen"), &request));
        assert_eq!(answer.status(), 400);
        let heartbeat = [&header[..], br"\heartbeat\gamename\other\port\5\final\"].concat();
        exchange_from("127.0.0.3", server.address("netpanzer.listen"), &heartbeat);
    }
    assert_eq!(get_from(&server, "127.0.0.3", "").status(), 200);
    assert!(!server.get("/api/v1/servers").text().contains("203.0.113.9"));
}

#[test]
fn a_proxy_without_a_valid_header_is_closed_and_counted() {
    let mut server = Server::start(&[&format!("proxy.protocol={PROXY}"), "guard.idle_timeout=500ms"]);
    let address = server.address("web.listen");
    let long = format!("PROXY UNKNOWN {}", "x".repeat(200));
    let bad: [&[u8]; 5] = [
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PROXY TCP4 nonsense\r\n",
        long.as_bytes(),
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff",
        b"PROXY TCP4 192", // and then nothing: the idle time ends it
    ];
    for (count, bytes) in (1..).zip(bad) {
        assert_eq!(exchange_from(PROXY, address, bytes), b"", "{}", String::from_utf8_lossy(bytes));
        until("the count", || (refusals(&server) == count).then_some(()));
    }
    drop(connect_from(PROXY, address)); // looks whether the port is open
    assert_eq!(announced(&server, PROXY, &headers_of([203, 0, 113, 9])[0], ""), "203.0.113.9");
    assert_eq!(refusals(&server), bad.len() as u64);
    server.wait_for_log("is in proxy.protocol, but sent no valid PROXY header (it is something else): closed");
    assert_eq!(server.log().matches("no valid PROXY header").count(), 1, "a warning once a minute");
}

/// A real proxy program. It is killed when the test ends.
struct Program(Child);

impl Program {
    /// Starts a program, and waits until it accepts connections at each of these addresses.
    fn start(mut command: Command, listening: &[SocketAddr]) -> Program {
        command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
        let program = Program(command.stdin(Stdio::null()).spawn().expect("a program from Debian"));
        listening.iter().for_each(|address| drop(until("the proxy", || TcpStream::connect(address).ok())));
        program
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// These programs cannot let the system choose a port.
fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// The sample for a program in docs/https.md, with another address of the master.
fn sample(language: &str, master: SocketAddr) -> String {
    block(language, "127.0.0.1:8080").replace("127.0.0.1:8080", &master.to_string())
}

/// The sample for a program in docs/https.md that contains this.
fn block(language: &str, text: &str) -> String {
    let document = documents().into_iter().find(|document| document.name == "docs/https.md").unwrap();
    document.blocks(language).into_iter().map(|block| block.text).rfind(|block| block.contains(text)).unwrap()
}

/// nginx in front of the web port, with TLS and a certificate of the test.
fn nginx(authority: &Authority, address: SocketAddr, master: SocketAddr) -> Program {
    std::fs::create_dir(authority.0.path().join("snippets")).unwrap();
    authority.0.write("snippets/rallypoint.conf", &sample("nginx", master));
    let mut site = block("nginx", "server {");
    for (written, here) in [
        ("listen 443 ssl", format!("listen {address} ssl")),
        // Not every machine has IPv6.
        ("listen [::]:443 ssl", format!("listen 127.0.0.77:{} ssl", address.port())),
        ("/etc/letsencrypt/live/master.example.org/fullchain.pem", "good.crt".into()),
        ("/etc/letsencrypt/live/master.example.org/privkey.pem", "server.key".into()),
    ] {
        assert!(site.contains(written), "docs/https.md has no `{written}` for nginx");
        site = site.replace(written, &here);
    }
    let text = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr;\nevents {{}}\nhttp {{\n\
         access_log off; client_body_temp_path b; proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u;\n\
         scgi_temp_path s;\nproxy_bind {PROXY};\n{site}\n}}\n"
    );
    let file = authority.0.write("nginx.conf", &text);
    let mut command = Command::new("nginx");
    command.arg("-p").arg(authority.0.path()).arg("-c").arg(file).args(["-e", "stderr"]);
    Program::start(command, &[address])
}

/// Caddy in front of the web port, with a certificate of the test. It connects from 127.0.0.1.
fn caddy(authority: &Authority, address: SocketAddr, master: SocketAddr) -> Program {
    let path = |name: &str| authority.0.path().join(name).display().to_string();
    let tls = format!("{{\n    tls {} {}\n", path("good.crt"), path("server.key"));
    let site = sample("caddy", master).replacen("master.example.org", &format!("https://{address}"), 1);
    let options = "{\n    admin off\n    auto_https disable_redirects\n    log {\n        level ERROR\n    }\n}\n";
    let file = authority.0.write("Caddyfile", &format!("{options}{}", site.replacen("{\n", &tls, 1)));
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(file).env("HOME", authority.0.path());
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    Program::start(command, &[address])
}

/// HAProxy in front of several ports, each with the options of its line.
fn haproxy(folder: &Folder, lines: &[(SocketAddr, SocketAddr, &str)]) -> Program {
    let mut text = "defaults\nmode tcp\ntimeout connect 20s\ntimeout client 20s\ntimeout server 20s\n".to_string();
    for (number, (address, master, options)) in lines.iter().enumerate() {
        text += &format!("listen {number}\nbind {address}\nserver master {master} source {PROXY} {options}\n");
    }
    let file = folder.write("haproxy.cfg", &text);
    let mut command = Command::new("haproxy");
    command.args(["-db", "-q", "-f"]).arg(file);
    let addresses: Vec<_> = lines.iter().map(|(address, ..)| *address).collect();
    Program::start(command, &addresses)
}

#[test]
#[ignore = "needs haproxy, curl and openssl"]
fn a_real_haproxy_names_its_clients_in_both_versions_and_before_tls() {
    let authority = Authority::new("haproxy");
    let server = crate::web::tls::start(&authority, &[&format!("proxy.protocol={PROXY}")]);
    let (web, tls, streams) = (free_address(), free_address(), free_address());
    let _haproxy = haproxy(
        &authority.0,
        &[
            (web, server.address("web.listen"), "send-proxy"),
            (tls, server.address("web.tls_listen"), "send-proxy-v2 check inter 100ms"),
            (streams, server.address("netpanzer.listen"), "send-proxy-v2-ssl-cn check inter 100ms"),
        ],
    );
    let listed = exchange_from("127.0.0.9", web, announcement_of(77, "").as_bytes());
    assert_eq!(address_in(&listed), "127.0.0.9");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--interface", "127.0.0.10", "--json", r#"{"game":"other","port":77}"#, "--cacert"]);
    let listed = curl.arg(authority.file()).arg(format!("https://{tls}/api/v1/servers")).output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("\"127.0.0.10:77\""), "{listed:?}");
    let heartbeat = exchange_from("127.0.0.11", streams, br"\heartbeat\gamename\other\port\77\final\");
    assert_eq!(String::from_utf8_lossy(&heartbeat), r"\final\");
    let list =
        until("all three", || Some(server.get("/api/v1/servers")).filter(|list| list.text().contains("127.0.0.11")));
    assert!(list.text().contains("127.0.0.9") && list.text().contains("127.0.0.10") && !list.text().contains(PROXY));
    assert_eq!(refusals(&server), 0, "HAProxy's own checks are fine, too");
}

#[test]
#[ignore = "needs nginx, curl and openssl"]
fn behind_a_real_nginx_with_tls_the_client_and_its_origin_are_seen() {
    seen_behind("nginx", PROXY, nginx);
}

#[test]
#[ignore = "needs caddy, curl and openssl"]
fn behind_a_real_caddy_with_tls_the_client_and_its_origin_are_seen() {
    seen_behind("caddy", "127.0.0.1", caddy);
}

/// Behind a proxy that connects from an address, with the sample of the book.
fn seen_behind(name: &str, from: &str, start: fn(&Authority, SocketAddr, SocketAddr) -> Program) {
    let authority = Authority::new(name);
    let server = Server::start(&[&format!("proxy.networks={from}"), "guard.bans=127.0.0.66"]);
    let address = free_address();
    let _proxy = start(&authority, address, server.address("web.listen"));
    let url = |path: &str| format!("https://{address}{path}");
    let curl = |from: &str, arguments: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--interface", from, "--cacert"]).arg(authority.file());
        let output = command.args(["--write-out", " %{http_code}"]).args(arguments).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    };
    let post = ["--json", r#"{"game":"other","port":77}"#];
    let announce =
        |from: &str, header: &str| curl(from, &[&post[..], &["-H", header, &url("/api/v1/servers")]].concat());
    let listed = announce("127.0.0.9", "X-Forwarded-For: 203.0.113.9");
    assert!(listed.contains("\"127.0.0.9:77\"") && listed.ends_with(" 200"), "{listed}");
    // A browser's page of the same origin may announce, a page of another origin may not.
    let own = announce("127.0.0.9", &format!("Origin: https://{address}"));
    assert!(own.ends_with(" 200"), "{own}");
    let foreign = announce("127.0.0.9", "Origin: https://evil.example");
    assert!(foreign.contains("another origin") && foreign.ends_with(" 403"), "{foreign}");
    let banned = curl("127.0.0.66", &[&url("/healthz")]);
    assert_eq!(banned, "your address is banned here\n 403");
    assert_eq!(curl("127.0.0.67", &["-H", "X-Forwarded-For: 127.0.0.66", &url("/healthz")]), "ok\n 200");
    let list = authority.run(&["list", &url("")]);
    assert!(String::from_utf8_lossy(&list.stdout).contains("127.0.0.9"), "{list:?}");
    // A stream of events is not held back.
    let stream = format!("curl -sN --cacert {} {} | head -n 1", authority.file().display(), url("/api/v1/events"));
    let first = Command::new("sh").args(["-c", &stream]).output().unwrap();
    assert!(!first.stdout.is_empty(), "{first:?}");
}

#[test]
fn a_proxy_that_is_not_configured_is_reported_once() {
    let mut server = Server::start(&[]);
    for _ in 0..3 {
        let header = "X-Forwarded-For: 203.0.113.7\r\n";
        assert_eq!(get(server.address("web.listen"), "/healthz", header).status(), 200);
    }
    server.wait_for_log("proxy.networks does not have it");
    assert_eq!(server.log().matches("proxy.networks does not have it").count(), 1);
}
