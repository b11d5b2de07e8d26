//! What the documents show, tried with the programs that it is for: requests with curl, samples with proxies and web servers,
//! lines for firewalls with those, and the performance page with the script that writes it.

use std::path::Path;
use std::process::Command;

use rallypoint::protocols::CARDS;

use crate::support::documents::{commands_in, documents, game_pages};
use crate::support::machines::{Own, inside};
use crate::support::*;

/// The samples for other programs are checked by those programs.
#[test]
#[ignore = "needs nginx, haproxy and caddy"]
fn every_sample_for_a_proxy_or_a_web_server_is_accepted_by_it() {
    let folder = Folder::new("samples");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let mut counts = [0; 3];
    for document in documents() {
        let mut check = |which: usize, text: &str, program: &[&str]| {
            folder.write("sample", text);
            let mut command = Command::new(program[0]);
            let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
            let output = command.args(&program[1..]).env("PATH", path).env("HOME", folder.path()).output();
            let output = output.unwrap_or_else(|error| panic!("{}, from Debian: {error}", program[0]));
            assert!(output.status.success(), "{}: {}{text}", document.name, String::from_utf8_lossy(&output.stderr));
            counts[which] += 1;
        };
        // With a certificate, `behind_a_real_nginx_with_tls_the_client_and_its_origin_are_seen` runs it.
        for block in document.blocks("nginx").into_iter().filter(|block| !block.text.contains("ssl_certificate")) {
            let is_server = block.text.starts_with("server");
            let server = if is_server { block.text } else { format!("server {{ listen 8081;\n{}\n}}", block.text) };
            let text = format!("pid {};\nevents {{}}\nhttp {{\naccess_log off;\n{server}}}\n", path("pid"));
            check(0, &text, &["nginx", "-t", "-q", "-e", "stderr", "-p", &path(""), "-c", &path("sample")]);
        }
        for block in document.blocks("caddy") {
            check(1, &block.text, &["caddy", "validate", "--adapter", "caddyfile", "--config", &path("sample")]);
        }
        for block in document.blocks("haproxy") {
            let times = "defaults\ntimeout connect 5s\ntimeout client 1m\ntimeout server 1m\n";
            check(2, &format!("{times}{}", block.text), &["haproxy", "-c", "-q", "-f", &path("sample")]);
        }
    }
    assert!(counts[0] >= 4 && counts[1] >= 2 && counts[2] >= 3, "{counts:?}");
}

/// Every request that a document shows is made to a running server, whatever host it names. A comment says what is expected if
/// that is not success: `# 400: …`.
#[test]
#[ignore = "needs curl"]
fn every_request_in_the_documents_works() {
    let server = Server::start(&["web.token=the-operators-token"]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"example", 20737, 3));
    until("it", || server.listed().pop());
    let mut count = 0;
    for document in documents() {
        for line in document.command_lines().iter().filter(|line| line.starts_with("curl ")) {
            request(&server, line, &document.name);
            count += 1;
        }
    }
    assert!(count >= 15, "{count} requests");
}

fn request(server: &Server, line: &str, document: &str) {
    let (command, comment) = line.split_once(" # ").unwrap_or((line, ""));
    let is_number = |word: &str| word.len() == 3 && word.chars().all(|c| c.is_ascii_digit());
    let expected = comment.split(':').next().filter(|word| is_number(word));
    // The reader's own server is on this machine.
    let here = at(command, &server.address("web.listen").to_string()).replace("203.0.113.5", "127.0.0.1");
    // A stream has no end: read its first lines.
    let is_stream = here.contains("/events");
    let more = if is_stream { "-s | head -n 5" } else { "-sS -w '\\n%{http_code}'" };
    let output = Command::new("sh").args(["-c", &format!("{here} {more}")]).output().unwrap();
    let answer = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{document}: {line}: {answer} {}", String::from_utf8_lossy(&output.stderr));
    let status = answer.lines().last().unwrap_or_default();
    match expected {
        Some(expected) => assert_eq!(status, expected, "{document}: {line}: {answer}"),
        None => assert!(is_stream || status.starts_with('2'), "{document}: {line}: {answer}"),
    }
    let says = match line {
        it if it.contains("/events") => "event: snapshot",
        it if it.contains("/check/test") => "event: result",
        it if it.contains("-d ") => "\"listed\":true",
        it if it.contains("openapi") => "\"openapi\"",
        it if it.contains("localhost:8080/api/v1/") => "example",
        _ => "",
    };
    assert!(answer.contains(says), "{document}: {line}: {answer}");
}

/// A command with another host in all of its URLs.
fn at(command: &str, address: &str) -> String {
    let mut parts = command.split("http");
    let mut here = parts.next().unwrap().to_string();
    for part in parts {
        match part.strip_prefix("s://").or(part.strip_prefix("://")) {
            Some(rest) => {
                let end = rest.find(['/', '\'', ' ', '"']).unwrap_or(rest.len());
                here += &format!("http://{address}{}", &rest[end..]);
            }
            None => here += &format!("http{part}"),
        }
    }
    here
}

fn shell(line: &str) {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new("sh").args(["-c", line]).env("PATH", path).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "needs nftables, ufw and network namespaces"]
fn the_lines_for_firewalls_are_accepted() {
    if !inside(Own::Network, "packages::documents::the_lines_for_firewalls_are_accepted") {
        return;
    }
    // As in Debian's /etc/nftables.conf.
    shell("nft add table inet filter");
    shell("nft add chain inet filter input '{ type filter hook input priority 0; }'");
    let mut count = 0;
    for (name, page) in game_pages() {
        for line in page.command_lines() {
            match commands_in(&line)[0][0].as_str() {
                "nft" => shell(&line),
                // Without `--dry-run` it would change the files of this machine.
                "ufw" => shell(&line.replacen("ufw ", "ufw --dry-run ", 1)),
                _ => continue,
            }
            count += 1;
        }
        assert!(count > 0, "{name}.md has no line for a firewall");
    }
    assert!(count >= 2 * CARDS.len(), "{count} lines");
}

/// Nobody edits the tables, and nobody forgets to write them again.
#[test]
#[ignore = "needs python3"]
fn the_tables_and_plots_of_the_performance_page_are_made_from_its_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Folder::new("performance");
    let names = ["cost.svg", "memory.svg", "machine.tsv", "results.tsv"].map(|name| format!("docs/performance/{name}"));
    let names: Vec<String> = names.into_iter().filter(|name| root.join(name).exists()).collect();
    let others = ["docs/performance.md".to_string(), "scripts/performance.py".to_string()];
    for part in ["docs/performance", "scripts"] {
        std::fs::create_dir_all(folder.path().join(part)).unwrap();
    }
    for name in names.iter().chain(&others) {
        std::fs::copy(root.join(name), folder.path().join(name)).unwrap();
    }
    let output = Command::new("python3").arg(folder.path().join("scripts/performance.py")).output();
    let output = output.expect("python3, from Debian's python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in names.iter().chain(&others) {
        let written = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(
            written == std::fs::read_to_string(root.join(name)).unwrap(),
            "{name} is not what scripts/performance.py writes: run it"
        );
    }
}
