//! IPv4 and IPv6: the defaults listen on both, if the machine has both.

use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::Command;

use crate::support::machines::{Own, inside};
use crate::support::netpanzer::say_to;
use crate::support::*;

/// Runs a program as on a kernel without IPv6: a seccomp filter refuses sockets of that family, as `ipv6.disable=1` does.
const WITHOUT_IPV6: &str = r"
import ctypes, os, struct, sys
AF_INET6, EAFNOSUPPORT = 10, 97
socket_call = {'x86_64': 41, 'aarch64': 198}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 3, socket_call), (0x20, 0, 0, 16), (0x15, 0, 1, AF_INET6),
        (0x06, 0, 0, 0x00050000 | EAFNOSUPPORT), (0x06, 0, 0, 0x7fff0000)]
filter = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(filter)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
";

/// Sends a client's request to a listener. False if there is no answer; panics on a wrong one.
fn answers(key: &str, address: SocketAddr) -> bool {
    if std::net::TcpStream::connect(address).is_err() {
        return has_datagrams(address);
    }
    match key {
        "netpanzer.listen" => {
            assert_eq!(say_to(address, r"\list\gamename\netpanzer\final\"), r"\final\", "{key} {address}")
        }
        "hyperbol.listen" => {
            assert!(connect(address).read(&mut [0; 16]).unwrap() > 0, "{key} {address}: no greeting");
        }
        _ => assert_eq!(get(address, "/healthz", "").status(), 200, "{key} {address}"),
    }
    if key == "iceball.listen" {
        let game = Game::on(address, address.ip());
        game.announce(&announcement(format!("of {}", address.ip()).as_bytes(), 20_737, 1));
    }
    true
}

/// Whether a UDP socket is bound there, for listeners without TCP.
fn has_datagrams(address: SocketAddr) -> bool {
    let file = if address.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" };
    let port = format!(":{:04X} ", address.port());
    std::fs::read_to_string(file).unwrap().contains(&port)
}

fn loopback(listening: SocketAddr) -> SocketAddr {
    match listening {
        SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, listening.port()).into(),
        SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, listening.port()).into(),
    }
}

#[test]
#[ignore = "needs network namespaces"]
fn the_defaults_listen_on_both_families() {
    if !inside(Own::Network, "protocols::families::the_defaults_listen_on_both_families") {
        return;
    }
    let server = Server::start_on_defaults(command(), &[], &[]);
    assert!(LISTENERS.iter().all(|key| server.listening().contains_key(key)), "{:?}", server.listening());
    for (key, addresses) in server.listening() {
        let [ipv4, ipv6] = addresses[..] else { panic!("{key}: {addresses:?}") };
        assert_eq!((ipv4.ip(), ipv6.ip()), (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()), "{key}");
        assert_eq!(ipv4.port(), ipv6.port(), "{key}");
        assert!(answers(key, loopback(ipv4)) && answers(key, loopback(ipv6)), "{key}: {addresses:?}");
    }
    let list = until("both servers", || {
        let list = server.json("/api/v1/servers");
        (list["total"] == 2).then_some(list)
    });
    let addresses: Vec<_> = list["servers"].as_array().unwrap().iter().map(|server| &server["address"]).collect();
    assert!(addresses.contains(&&"127.0.0.1".into()) && addresses.contains(&&"::1".into()), "{addresses:?}");
}

#[test]
#[ignore = "needs network namespaces"]
fn a_machine_whose_ipv6_is_turned_off_serves_ipv4() {
    if !inside(Own::Network, "protocols::families::a_machine_whose_ipv6_is_turned_off_serves_ipv4") {
        return;
    }
    std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1").unwrap();
    let server = Server::start_on_defaults(command(), &[], &[]);
    for (key, addresses) in server.listening() {
        assert!(answers(key, loopback(addresses[0])), "{key}: {addresses:?}");
    }
    drop(server);
    let mut named = command();
    named.args(["serve", "--set", "data_dir=", "--set", "web.listen=127.0.0.1:0,[::1]:0"]);
    let output = named.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("this machine has no such address. Change `web.listen`"), "{said}");
}

#[test]
#[ignore = "needs network namespaces"]
fn a_kernel_without_ipv6_serves_ipv4_and_says_so() {
    if !inside(Own::Network, "protocols::families::a_kernel_without_ipv6_serves_ipv4_and_says_so") {
        return;
    }
    let without_ipv6 = || {
        let mut command = Command::new("python3");
        command.args(["-c", WITHOUT_IPV6, env!("CARGO_BIN_EXE_rallypoint")]);
        command
    };
    let server = Server::start_on_defaults(without_ipv6(), &[], &[]);
    for (key, addresses) in server.listening() {
        let [ipv4] = addresses[..] else { panic!("{key}: {addresses:?}") };
        assert!(answers(key, loopback(ipv4)), "{key}: {addresses:?}");
        let skipped = format!("{key}: not listening on [::]:{}: this machine has no IPv6", ipv4.port());
        assert_eq!(server.log().matches(&skipped).count(), 1, "{}", server.log());
    }
    drop(server);
    for only in ["web.listen=[::]:0", "web.listen=127.0.0.1:0,[::1]:0"] {
        let output = without_ipv6().args(["serve", "--set", "data_dir=", "--set", only]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(3) && said.contains("See `web.listen`"), "{only}: {said}");
    }
}
