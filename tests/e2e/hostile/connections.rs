//! A full table of connections: whose is closed for another one.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};

use crate::support::*;
use crate::web::events::Stream;

fn is_closed(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 10]) {
        Ok(bytes) => bytes == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

/// Connects and says nothing.
fn idle(from: &str, to: SocketAddr) -> TcpStream {
    connect_from(from, to)
}

#[test]
fn one_24_that_fills_the_table_again_and_again_evicts_no_reader_of_another_network() {
    let server = Server::start(&["guard.max_connections=48", "guard.idle_timeout=1h"]);
    let web = server.address("web.listen");
    let reader = |number: u8| Stream::over(connect_from(&format!("127.{number}.0.1"), web), "/api/v1/events", "");
    let mut readers: Vec<Stream> = (1..=8).map(reader).collect();
    for reader in &mut readers {
        assert_eq!(reader.next().0, "snapshot");
    }
    let mut flood = Vec::new();
    for number in 0..400 {
        flood.push(idle(&format!("127.200.7.{}", number % 8 + 1), web));
    }
    until("the flood to close itself", || {
        flood.retain(|stream| !is_closed(stream));
        (flood.len() <= 40).then_some(())
    });
    // Others are served meanwhile, and no reader misses anything.
    Game::on(server.address("iceball.listen"), [127, 0, 0, 1].into()).announce(&announcement(b"listed", 5, 0));
    until("the server", || (server.listed().len() == 1).then_some(()));
    for reader in &mut readers {
        let (name, _, delta) = reader.next();
        assert_eq!((&*name, &delta["added"][0]["name"]), ("delta", &"listed".into()));
    }
    assert!(flood.iter().filter(|stream| !is_closed(stream)).count() >= 30, "it keeps what nobody else wants");
}

#[test]
fn where_no_network_holds_more_than_another_one_connection_gives_way_to_a_new_one() {
    let server = Server::start(&["guard.max_connections=12", "guard.idle_timeout=1h"]);
    let web = server.address("web.listen");
    let honest: Vec<TcpStream> = (1..=12).map(|network| idle(&format!("127.{network}.0.1"), web)).collect();
    let mut newcomer = Stream::over(connect_from("127.100.0.1", web), "/api/v1/events", "");
    assert_eq!(newcomer.next().0, "snapshot");
    let closed = || honest.iter().filter(|stream| is_closed(stream)).count();
    until("one to give way", || (closed() > 0).then_some(()));
    assert_eq!(closed(), 1);
}
