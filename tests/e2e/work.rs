//! Work that clients can ask for is bounded: searches, lists with filters, and what slow readers have not taken.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};

use crate::support::*;

/// Long enough that a search takes a while, and that an answer does not fit into the system's buffers.
const SERVERS: u16 = 1_000;

fn connect_from(ip: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.into()
}

fn get_from(ip: &str, to: SocketAddr, path: &str) -> Response {
    let mut stream = connect_from(ip, to);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    split(&answer)
}

fn netpanzer_list(ip: &str, server: &Server, filter: &str) -> String {
    let mut stream = connect_from(ip, server.address("netpanzer.listen"));
    write!(stream, r"\list\gamename\iceball{filter}\final\\final\").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A master with many servers, all of one address that has no budgets.
fn filled(set: &[&str]) -> Server {
    let many = ["guard.max_servers_per_ip=65535", "guard.exempt=127.7.7.7/32", "iceball.life=1h"];
    let set: Vec<&str> = many.iter().chain(set).copied().collect();
    let server = Server::start(&set);
    let game = Game::on(server.address("iceball.listen"), [127, 7, 7, 7].into());
    for port in 1..=SERVERS {
        game.announce(&announcement(b"one of very many servers", port, 3));
    }
    until("all to be listed", || (server.json("/readyz")["servers"] == SERVERS).then_some(()));
    server
}

fn figure(server: &Server, name: &str) -> u64 {
    server.figure(name) as u64
}

#[test]
fn who_searches_all_the_time_is_refused_and_nobody_else_is() {
    let server = filled(&[]);
    let web = server.address("web.listen");
    let mut number: u16 = 0;
    let refused = until("a refusal", || {
        number += 1;
        let answer =
            get_from("127.0.5.1", web, &format!("/api/v1/servers?q=many&sort=name&limit={}", 1_000 - number % 900));
        assert!([200, 429].contains(&answer.status()), "{}", answer.head);
        (answer.status() == 429).then_some(answer)
    });
    let after: u64 = refused.header("Retry-After").unwrap().parse().unwrap();
    assert!(after >= 1 && refused.text().contains("try again in"), "{}", refused.text());
    // A moment later there is a little left again.
    let error = until("an error", || {
        number += 1;
        get_from("127.0.5.1", web, &format!("/api/v1/servers?q=many&sort=name&limit={}", 1_000 - number % 900));
        let own = netpanzer_list("127.0.5.1", &server, &format!(r"\port\{number}"));
        own.starts_with(r"\error\").then_some(own)
    });
    assert!(error.starts_with(r"\error\too much was asked for") && error.ends_with(r"\final\"), "{error}");
    // Common lists cost nothing, and others have their own budget.
    for path in ["/master.json", "/api/v1/servers", "/"] {
        assert_eq!(get_from("127.0.5.1", web, path).status(), 200, "{path}");
    }
    assert!(netpanzer_list("127.0.5.1", &server, "").starts_with(r"\ip\127.7.7.7\port\"));
    assert_eq!(get_from("127.0.6.1", web, "/api/v1/servers?q=another").status(), 200);
    assert_eq!(netpanzer_list("127.0.6.1", &server, r"\port\5"), r"\ip\127.7.7.7\port\5\final\");
    assert!(figure(&server, "rallypoint_renderings_refused_total") >= 2);
}

#[test]
fn clients_that_never_read_do_not_take_more_memory_the_more_they_are() {
    let server = filled(&["guard.max_list_mib=1"]);
    let web = server.address("web.listen");
    let most = 100;
    // Each asks for lists of its own that no system buffers: 300 KB each, several times.
    let silent: Vec<_> = (0..most)
        .map(|number: u16| {
            let mut stream = connect_from(&format!("127.0.{}.1", 10 + number), web);
            let path = format!("/api/v1/servers?limit={}", 900 + number);
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            stream.write_all(request.repeat(20).as_bytes()).unwrap();
            stream
        })
        .collect();
    // All together would be 30 MB.
    until("those who hold lists to be closed", || {
        let held = figure(&server, "rallypoint_lists_held_bytes");
        assert!(held < 8 << 20, "{held} bytes");
        (figure(&server, "rallypoint_connections") < u64::from(most) && held <= 1 << 20).then_some(())
    });
    assert_eq!(server.listed().len(), usize::from(SERVERS), "common lists go on");
    drop(silent);
    until("searches to work again", || {
        (get_from("127.0.5.1", web, "/api/v1/servers?q=many").status() == 200).then_some(())
    });
}
