//! TLS on our own listeners: certificates and their replacement, the handshake's limits, clients without TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::cli::fetch::Authority;
use crate::support::*;
use crate::web::proxy::{address_in, announcement_of, headers_of, is_closed};

/// A server with TLS, with its certificate in `live.crt` and `live.key` of the authority's folder.
pub fn start(authority: &Authority, set: &[&str]) -> Server {
    install(authority, authority, "good.crt");
    let path = |name: &str| authority.0.path().join(name).display().to_string();
    let own = [
        "web.tls_listen=127.0.0.1:0".to_string(),
        format!("web.tls_certificate={}", path("live.crt")),
        format!("web.tls_key={}", path("live.key")),
    ];
    let all: Vec<&str> = own.iter().map(String::as_str).chain(set.iter().copied()).collect();
    Server::start(&all)
}

/// Puts a certificate where the server of `to` reads it.
fn install(to: &Authority, from: &Authority, certificate: &str) {
    for (name, live) in [(certificate, "live.crt"), ("server.key", "live.key")] {
        to.0.write(live, &std::fs::read_to_string(from.0.path().join(name)).unwrap());
    }
}

fn url(server: &Server, path: &str) -> String {
    format!("https://{}{path}", server.address("web.tls_listen"))
}

fn curl(trusted: &Authority, arguments: &[&str]) -> Output {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--cacert"]).arg(trusted.file());
    command.args(arguments).output().expect("curl, from Debian")
}

/// Whether a new connection gets a certificate of this authority.
fn is_trusted(server: &Server, authority: &Authority) -> bool {
    curl(authority, &[&url(server, "/healthz")]).stdout == b"ok\n"
}

#[test]
#[ignore = "needs curl and openssl"]
fn curl_and_our_own_commands_read_the_list_over_tls() {
    let authority = Authority::new("tls-list");
    let server = start(&authority, &[]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"over TLS", 20737, 3));
    until("the server", || server.listed().pop());
    for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"]] {
        let list = curl(&authority, &[version, &["--verbose", &url(&server, "/master.json")]].concat());
        let said = String::from_utf8_lossy(&list.stderr).into_owned();
        assert!(String::from_utf8_lossy(&list.stdout).contains("over TLS"), "{said}");
        assert!(said.contains("server accepted http/1.1") && said.contains("< Length: "), "{said}");
    }
    for path in ["", "/"] {
        let list = authority.run(&["list", &url(&server, path)]);
        assert!(String::from_utf8_lossy(&list.stdout).contains("over TLS"), "{list:?}");
    }
    let plain = get(server.address("web.listen"), "/master.json", "");
    assert!(plain.text().contains("over TLS"), "the other listeners stay as they are");
    let old = curl(&authority, &["--tls-max", "1.1", "--ciphers", "DEFAULT@SECLEVEL=0", &url(&server, "/healthz")]);
    assert!(!old.status.success() && old.stdout.is_empty());
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_page_of_the_same_origin_may_announce_over_tls() {
    let authority = Authority::new("tls-origin");
    let server = start(&authority, &[]);
    let announce = |origin: &str| {
        let header = format!("Origin: {origin}");
        let body = r#"{"game":"other","port":77}"#;
        let answer = curl(&authority, &["-H", &header, "--json", body, &url(&server, "/api/v1/servers")]);
        String::from_utf8(answer.stdout).unwrap()
    };
    assert!(announce(&url(&server, "")).contains("\"127.0.0.1:77\""));
    assert!(announce("https://evil.example").contains("another origin"));
    let other_port = format!("http://{}", server.address("web.listen"));
    assert!(announce(&other_port).contains("another origin"));
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_client_without_tls_is_told_so() {
    let authority = Authority::new("tls-plain");
    let server = start(&authority, &["guard.idle_timeout=500ms"]);
    let answer = get(server.address("web.tls_listen"), "/master.json", "");
    assert_eq!((answer.status(), answer.text()), (400, "this port uses TLS: write https://\n"));
    assert_eq!(exchange(server.address("web.tls_listen"), b"\x16\x03\x01garbage").first(), Some(&21), "an alert");
    assert!(is_trusted(&server, &authority));
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_replaced_certificate_is_used_without_a_restart_and_a_broken_one_is_not() {
    let (first, second) = (Authority::new("tls-first"), Authority::new("tls-second"));
    let mut server = start(&first, &[]);
    assert!(is_trusted(&server, &first) && !is_trusted(&server, &second));
    install(&first, &second, "good.crt");
    until("the new certificate", || is_trusted(&server, &second).then_some(()));
    assert!(!is_trusted(&server, &first));
    // Half of a new pair, and what is no certificate at all.
    let own = std::fs::read_to_string(first.0.path().join("good.crt")).unwrap();
    first.0.write("live.crt", &own);
    server.wait_for_log("does not belong to the first certificate in");
    assert!(is_trusted(&server, &second));
    first.0.write("live.crt", "nonsense");
    server.wait_for_log("has no certificate in PEM");
    first.0.write("live.key", &own);
    std::fs::remove_file(first.0.path().join("live.crt")).unwrap();
    server.wait_for_log("live.crt: cannot be read: No such file");
    assert!(is_trusted(&server, &second));
    // The other half.
    install(&first, &first, "good.crt");
    until("the first certificate again", || is_trusted(&server, &first).then_some(()));
    let log = server.log();
    assert_eq!(log.matches("does not belong to").count(), 1, "{log}");
    assert!(!log.contains("PRIVATE KEY"), "{log}");
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_reload_reads_the_certificate_at_once_and_refuses_a_broken_one() {
    let (first, second) = (Authority::new("tls-sighup"), Authority::new("tls-sighup-other"));
    install(&first, &first, "good.crt");
    let file = |authority: &Authority, certificate: &str, key: &str| {
        let path = |name: &str| authority.0.path().join(name).display().to_string();
        format!(
            "[web]\ntls_listen = [\"127.0.0.1:0\"]\ntls_certificate = \"{}\"\ntls_key = \"{}\"\n",
            path(certificate),
            path(key)
        )
    };
    let config = first.0.write("rallypoint.toml", &file(&first, "live.crt", "live.key"));
    let mut server = Server::start_with(&["--config", config.to_str().unwrap()], &[]);
    first.0.write("rallypoint.toml", &file(&second, "good.crt", "server.key"));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration reloaded");
    assert!(is_trusted(&server, &second), "at once");
    first.0.write("rallypoint.toml", &file(&second, "nowhere.crt", "server.key"));
    server.signal(Signal::SIGHUP);
    server.wait_for_log("configuration not reloaded, keeping the old one: web.tls_certificate: ");
    assert!(is_trusted(&server, &second));
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_start_without_a_usable_certificate_says_what_to_do() {
    let authority = Authority::new("tls-start");
    let file = |name: &str| authority.0.path().join(name).display().to_string();
    let (good, key) = (file("good.crt"), file("server.key"));
    for (certificate, key, says) in [
        ("", &*key, "web.tls_certificate: web.tls_listen needs it: name a PEM file"),
        (&good, "", "web.tls_key: web.tls_listen needs it: name a PEM file"),
        ("/nowhere/a.crt", &key, "web.tls_certificate: /nowhere/a.crt: cannot be read: No such file"),
        (&good, "/dev/zero", "web.tls_key: /dev/zero: cannot be read: it is not a file"),
        (&key, &key, "has no certificate in PEM"),
        (&good, &good, "has no private key in PEM"),
        (&good, &file("ca.key"), "does not belong to the first certificate"),
    ] {
        let text =
            format!("[web]\ntls_listen = [\"8443\"]\ntls_certificate = \"{certificate}\"\ntls_key = \"{key}\"\n");
        let config = authority.0.write("rallypoint.toml", &text);
        let config = config.to_str().unwrap();
        for arguments in [&["config", "--check", config][..], &["serve", "--config", config]] {
            let output = command().args(arguments).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{said}");
            assert!(said.contains(says), "{said}");
        }
    }
    let text = format!("[web]\ntls_listen = [\"8443\"]\ntls_certificate = \"{good}\"\ntls_key = \"{key}\"\n");
    let config = authority.0.write("rallypoint.toml", &text);
    assert!(command().args(["config", "--check", config.to_str().unwrap()]).output().unwrap().status.success());
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_certificate_that_expires_is_reported() {
    let authority = Authority::new("tls-expiry");
    let mut server = start(&authority, &[]); // valid for two days
    server.wait_for_log("live.crt: it expires on ");
    install(&authority, &authority, "expired.crt");
    server.wait_for_log("live.crt: it expired on 2021-02-03: renew it");
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_slow_handshake_is_idle_and_ends() {
    let authority = Authority::new("tls-slow");
    let server = start(&authority, &["guard.idle_timeout=1s"]);
    for beginning in [&b""[..], b"\x16", b"\x16\x03\x01\x00\xff\x01"] {
        let mut slow = connect(server.address("web.tls_listen"));
        slow.write_all(beginning).unwrap();
        assert!(is_closed(&mut slow), "closed without an answer");
    }
    drop(server);
    let server = start(&authority, &["guard.idle_timeout=1h", "guard.max_connections_per_ip=2"]);
    let mut slow: Vec<TcpStream> = (0..2).map(|_| connect(server.address("web.tls_listen"))).collect();
    slow.iter_mut().for_each(|stream| stream.write_all(b"\x16\x03\x01").unwrap());
    assert!(is_trusted(&server, &authority) && is_trusted(&server, &authority), "others evict it");
    assert!(is_closed(&mut slow[0]));
    server.signal(Signal::SIGTERM);
    assert!(server.end().0.success());
}

#[test]
#[ignore = "needs curl and openssl"]
fn the_proxy_protocol_comes_before_the_handshake() {
    let authority = Authority::new("tls-proxy");
    let server = start(&authority, &["proxy.protocol=127.0.0.2"]);
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let config = Arc::new(config.with_no_client_auth());
    for header in headers_of([203, 0, 113, 9]) {
        let mut stream = connect_from("127.0.0.2", server.address("web.tls_listen"));
        stream.write_all(&header).unwrap();
        let name = "127.0.0.1".try_into().unwrap();
        let mut stream = StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream);
        stream.write_all(announcement_of(77, "").as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(address_in(&answer), "203.0.113.9");
    }
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_flood_of_handshakes_is_refused_and_nobody_else_is() {
    let authority = Authority::new("tls-flood");
    let server = start(&authority, &[]);
    let refused = || {
        let start = "rallypoint_budget_refused_total{budget=\"tls\"} ";
        let metrics = server.get("/metrics");
        metrics.text().lines().find_map(|line| line.strip_prefix(start)?.parse::<u64>().ok())
    };
    until("a refusal", || {
        for _ in 0..500 {
            let _ = connect_from("127.0.0.7", server.address("web.tls_listen")).write_all(b"\x16");
        }
        refused().filter(|count| *count > 0)
    });
    let from_elsewhere = curl(&authority, &["--interface", "127.1.0.1", &url(&server, "/healthz")]);
    assert_eq!(from_elsewhere.stdout, b"ok\n");
    assert_eq!(get(server.address("web.listen"), "/healthz", "").status(), 200);
}

#[test]
#[ignore = "needs curl and openssl"]
fn a_name_in_the_certificate_is_this_masters_and_browsers_are_told_to_stay_with_tls() {
    let authority = Authority::new("tls-names");
    let server = start(&authority, &["web.hsts=365d"]);
    install(&authority, &authority, "elsewhere.crt");
    let port = server.address("web.tls_listen").port();
    let announce = |host: &str| {
        let (resolve, origin) = (format!("{host}:{port}:127.0.0.1"), format!("Origin: https://{host}:{port}"));
        let body = r#"{"game":"other","port":77}"#;
        let url = format!("https://{host}:{port}/api/v1/servers");
        let arguments = ["--insecure", "--resolve", &resolve, "-H", &origin, "--json", body, &url];
        String::from_utf8(curl(&authority, &arguments).stdout).unwrap()
    };
    until("the certificate with the name", || announce("elsewhere.example").contains("127.0.0.1:77").then_some(()));
    assert!(announce("evil.example").contains("web.hosts"));
    assert!(announce("evil.elsewhere.example").contains("web.hosts"));
    // On the fast path and on the other one, on TLS and on nothing else.
    for path in ["/master.json", "/healthz", "/"] {
        let head = curl(&authority, &["--insecure", "--include", &url(&server, path)]).stdout;
        let head = String::from_utf8_lossy(&head).into_owned();
        assert_eq!(head.matches("\r\nStrict-Transport-Security: max-age=31536000\r\n").count(), 1, "{path}: {head}");
        assert_eq!(server.get(path).header("Strict-Transport-Security"), None, "{path}");
    }
    let plain = get(server.address("web.tls_listen"), "/", "");
    assert_eq!((plain.status(), plain.header("Strict-Transport-Security")), (400, None));
}
