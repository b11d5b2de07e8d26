//! HTTP, byte for byte where a real client depends on it.

use std::io::{Read, Write};

use crate::support::*;

/// The real Iceball client's request: no port in `Host`, and these headers in this order.
const REAL_CLIENT: &str =
    "GET /master.json HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nUser-Agent: IceballQuery/1.0\r\n\r\n";

/// Reads one response from a connection that stays open: the head, then Content-Length bytes.
fn read_one(stream: &mut std::net::TcpStream) -> Response {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
    }
    let mut response = split(&bytes);
    let size = response.header("Content-Length").map_or(0, |size| size.parse().unwrap());
    response.body.resize(size, 0);
    stream.read_exact(&mut response.body).unwrap();
    response
}

#[test]
fn the_real_clients_request_gets_a_response_that_it_can_parse() {
    let server = Server::start(&[]);
    Game::new(server.address("iceball.listen")).announce(&announcement("Grüße".as_bytes(), 20737, 3));
    until("the server", || server.listed().pop());
    let body = "{\"version\":2,\"iceball_version\":8421411,\"servers\":[{\"name\":\"Grüße\",\"address\":\"127.0.0.1\",\
                \"port\":20737,\"players_current\":3,\"players_max\":64,\"mode\":\"ctf\",\"map\":\"mesa.vxl\",\
                \"version\":\"0.2.1-37\",\"priority\":0}]}";
    for key in ["iceball.listen", "iceball.client_listen"] {
        let mut stream = connect(server.address(key));
        for _ in 0..2 {
            stream.write_all(REAL_CLIENT.as_bytes()).unwrap();
            let answer = read_one(&mut stream);
            assert_eq!(answer.text(), body);
            let mut lines: Vec<&str> = answer.head.lines().collect();
            assert_eq!(lines.remove(0), "HTTP/1.1 200 OK");
            let changing = ["Date: ", "Etag: ", "Last-Modified: "];
            lines.retain(|line| !changing.iter().any(|start| line.starts_with(start)));
            lines.sort();
            assert_eq!(
                lines,
                [
                    "Access-Control-Allow-Origin: *",
                    "Access-Control-Expose-Headers: ETag, Retry-After",
                    "Cache-Control: no-cache",
                    &format!("Content-Length: {}", body.len()),
                    "Content-Type: application/json",
                    &format!("Length: {}", body.len()),
                    "Vary: Accept-Encoding",
                    "X-Content-Type-Options: nosniff",
                ]
            );
        }
    }
}

#[test]
fn errors_have_reasons_headers_and_bodies() {
    let server = Server::start(&[]);
    for (method, path, status) in
        [("GET", "/nothing", "404 Not Found"), ("POST", "/master.json", "405 Method Not Allowed")]
    {
        let answer = request(server.address("iceball.listen"), method, path, "");
        assert!(answer.head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{}", answer.head);
        assert!(!answer.body.is_empty());
        let size = answer.body.len().to_string();
        assert_eq!((answer.header("Length"), answer.header("Content-Length")), (Some(&*size), Some(&*size)));
        assert_eq!(answer.header("Content-Type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("Transfer-Encoding"), None);
    }
    let not_allowed = request(server.address("web.listen"), "DELETE", "/", "");
    assert_eq!(not_allowed.header("Allow"), Some("GET,HEAD"));
}

#[test]
fn malformed_requests_get_errors_with_headers_and_a_body() {
    let server = Server::start(&["guard.idle_timeout=500ms"]);
    let long = format!("GET / HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(20_000));
    let unfinished = "POST /api/v1/servers HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    for (request, status) in [
        ("GARBAGE\r\n\r\n", 400),
        ("GET /master.json\r\n\r\n", 400),
        ("GET / HTTP/3.7\r\n\r\n", 400),
        (&long, 431),
        (unfinished, 408),
    ] {
        let answer = split(&exchange(server.address("iceball.listen"), request.as_bytes()));
        assert_eq!(answer.status(), status, "{answer:?}");
        let size = answer.body.len().to_string();
        // The API's errors are JSON.
        assert!(size != "0" && answer.text().ends_with(['\n', '}']), "{answer:?}");
        assert_eq!((answer.header("Length"), answer.header("Content-Length")), (Some(&*size), Some(&*size)));
    }
}

#[test]
fn every_path_on_every_listener() {
    let server = Server::start(&[]);
    for key in ["iceball.listen", "iceball.client_listen", "web.listen"] {
        for (path, content_type) in [
            ("/", "text/html; charset=utf-8"),
            ("/index.html", "text/html; charset=utf-8"),
            ("/style.css", "text/css; charset=utf-8"),
            ("/page.js", "text/javascript; charset=utf-8"),
            ("/doctor", "text/html; charset=utf-8"),
            ("/api", "text/html; charset=utf-8"),
            ("/api/v1", "text/html; charset=utf-8"),
            ("/master.json", "application/json"),
            ("/healthz", "text/plain; charset=utf-8"),
            ("/readyz", "application/json"),
        ] {
            let answer = get(server.address(key), path, "");
            assert_eq!((answer.status(), answer.header("Content-Type")), (200, Some(content_type)), "{key} {path}");
            let size = answer.body.len().to_string();
            assert_eq!((answer.header("Length"), answer.header("Content-Length")), (Some(&*size), Some(&*size)));

            let head = request(server.address(key), "HEAD", path, "");
            assert_eq!((head.status(), head.body.len()), (200, 0));
            assert_eq!(head.header("Length"), Some(&*size), "{key} {path}");
        }
    }
    assert_eq!(server.get("/healthz").text(), "ok\n");
    assert_eq!(server.json("/readyz")["ready"], true);
}

#[test]
fn conditions_and_gzip() {
    let server = Server::start(&[]);
    let address = server.address("web.listen");
    for path in ["/", "/?sort=name", "/style.css", "/page.js", "/doctor", "/api", "/master.json"] {
        let first = get(address, path, "");
        let etag = first.header("Etag").unwrap();
        let second = get(address, path, &format!("If-None-Match: {etag}\r\n"));
        assert_eq!((second.status(), second.body.len()), (304, 0), "{path}");
        assert_eq!(second.header("Etag"), Some(etag));
    }
    let packed = get(address, "/style.css", "Accept-Encoding: gzip\r\n");
    assert_eq!(packed.header("Content-Encoding"), Some("gzip"));
    let mut text = String::new();
    flate2::read::GzDecoder::new(&packed.body[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, get(address, "/style.css", "").text());

    // The ETag depends on the content.
    let before = get(address, "/master.json", "");
    Game::new(server.address("iceball.listen")).announce(&announcement(b"new", 1, 0));
    until("the server", || server.listed().pop());
    let known = format!("If-None-Match: {}\r\n", before.header("Etag").unwrap());
    assert_eq!(get(address, "/master.json", &known).status(), 200);
}

#[test]
fn the_operators_template_stylesheet_and_title() {
    let folder = Folder::new("pages");
    let template =
        folder.write("page.html", "<h1>{{ title }}</h1>{% for s in servers %}<p>{{ s.name }}</p>{% endfor %}");
    let stylesheet = folder.write("own.css", "body { color: red }");
    let server = Server::start(&[
        &format!("web.template={}", template.display()),
        &format!("web.stylesheet={}", stylesheet.display()),
        "web.title=Our & only",
    ]);
    assert_eq!(server.get("/").text(), "<h1>Our &amp; only</h1>");
    assert_eq!(server.get("/style.css").text(), "body { color: red }");
    Game::new(server.address("iceball.listen")).announce(&announcement(b"<i>", 1, 0));
    until("the row", || server.get("/").text().contains("<p>&lt;i&gt;</p>").then_some(()));

    // Reloaded with the configuration, unless it is broken.
    let mut server = server;
    folder.write("page.html", "{% if %}");
    server.signal(nix::sys::signal::Signal::SIGHUP);
    server.wait_for_log("keeping the old one");
    assert!(server.get("/").text().contains("Our &amp; only"));
    folder.write("page.html", "new");
    server.signal(nix::sys::signal::Signal::SIGHUP);
    until("the new page", || (server.get("/").text() == "new").then_some(()));
}

#[test]
fn the_page_forbids_what_it_does_not_need() {
    let server = Server::start(&[]);
    for path in ["/", "/doctor", "/doctor?address=x", "/api"] {
        let policy = server.get(path).header("Content-Security-Policy").unwrap().to_string();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    }
}
