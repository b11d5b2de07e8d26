//! There is no path from the network to a file, a process or a secret.

use std::io::{Read, Write};

use crate::support::netpanzer::say;
use crate::support::*;

#[test]
fn no_path_leads_to_a_file() {
    let server = Server::start(&[]);
    for path in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/style.css/../../etc/passwd",
        "/.git/config",
        "/Cargo.toml",
        "//etc/passwd",
        "/api/v1/servers/..%2f..%2fetc/passwd",
        "/api/v1/servers/iceball/..%2f..%2fetc%2fpasswd",
        "/api/v1/servers/iceball/127.0.0.1:1/history?from=../../etc/passwd",
        "/?template=/etc/passwd",
        "/admin",
        "/api/v1/admin",
    ] {
        let response = server.get(path);
        assert!(!response.text().contains("root:"), "{path}");
        let is_page = path.starts_with("/?");
        assert_eq!(response.status() < 300, is_page, "{path}: {}", response.status());
    }
}

const TOKEN: &str = "token-0f8e7d6c5b4a";
const PASSWORD: &str = "password-1a2b3c4d5e6f";

#[test]
fn secrets_are_neither_logged_nor_shown() {
    let (token, password) = (format!("web.token={TOKEN}"), format!("netpanzer.password={PASSWORD}"));
    let server = Server::start(&[&token, &password, "log=trace", "netpanzer.neighbours=127.0.0.1:9"]);
    // Right and nearly right ones, in every place where they are read.
    for secret in [TOKEN.to_string(), format!("{TOKEN}x")] {
        let body = r#"{"game":"chess","port":1234,"address":"203.0.113.5"}"#;
        let request = format!(
            "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {secret}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = split(&exchange(server.address("web.listen"), request.as_bytes()));
        assert_eq!(answer.status() == 200, secret == TOKEN, "{}", answer.text());
        assert!(!answer.text().contains(TOKEN));
    }
    for secret in [PASSWORD.to_string(), format!("{PASSWORD}x")] {
        for message in [
            format!(r"\heartbeat\port\1\gamename\master\password\{secret}\final\"),
            format!(r"\list\gamename\master\password\{secret}\final\"),
            format!(r"\quit\gamename\master\password\{secret}\port\1\final\"),
        ] {
            assert!(!say(&server, &message).contains(PASSWORD));
        }
    }
    // A request that is cut off is not logged with its head either.
    let mut stream = connect(server.address("web.listen"));
    write!(stream, "GET / HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nBad Header\r\n\r\n").unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    for path in ["/", "/metrics", "/readyz", "/api/v1/openapi.json", "/api/v1/servers", "/doctor"] {
        let text = server.get(path).text().to_string();
        assert!(!text.contains(TOKEN) && !text.contains(PASSWORD), "{path}");
    }
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.signal(nix::sys::signal::Signal::SIGTERM);
    let (_, log) = server.end();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "the log is as talkative as it can be");
    assert!(!log.contains(TOKEN) && !log.contains(PASSWORD), "{log}");
}
