//! HTTP and HTTPS clients: certificates, redirects, endless bodies. Threads of these tests play web servers that misbehave,
//! with certificates of an authority made for the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::cli::ftp::openssl;
use crate::support::netpanzer::Tank;
use crate::support::*;

/// A certificate authority, `ca.crt`, and three certificates: good, expired, and for another host.
pub struct Authority(pub Folder);

impl Authority {
    pub fn new(name: &str) -> Authority {
        let folder = Folder::new(name);
        let path = folder.path();
        let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        openssl(path, &format!("req -x509 {new_key} -subj /CN=test -days 2 -keyout ca.key -out ca.crt"));
        openssl(path, &format!("req {new_key} -subj /CN=x -keyout server.key -out server.csr"));
        folder.write("here", "subjectAltName=IP:127.0.0.1\n");
        folder.write("elsewhere", "subjectAltName=DNS:elsewhere.example\n");
        let sign = "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2";
        openssl(path, &format!("{sign} -extfile here -out good.crt"));
        openssl(path, &format!("{sign} -extfile elsewhere -out elsewhere.crt"));
        // Only the `ca` command can sign for the past.
        folder.write("index.txt", "");
        folder.write("serial", "77");
        folder.write(
            "ca.cnf",
            "[ca]\ndefault_ca=a\n[a]\ndatabase=index.txt\nnew_certs_dir=.\nserial=serial\ndefault_md=sha256\npolicy=p\n\
             [p]\ncommonName=supplied\n",
        );
        openssl(
            path,
            "ca -batch -notext -config ca.cnf -cert ca.crt -keyfile ca.key -in server.csr -extfile here \
             -startdate 20200101000000Z -enddate 20210203000000Z -out expired.crt",
        );
        Authority(folder)
    }

    pub fn file(&self) -> PathBuf {
        self.0.path().join("ca.crt")
    }

    /// Serves each connection over TLS with this certificate.
    pub fn serve(&self, certificate: &str, talk: impl Fn(Tls) + Send + 'static) -> SocketAddr {
        let path = |name: &str| self.0.path().join(name);
        let chain = CertificateDer::pem_file_iter(path(certificate)).unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(path("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(chain, key).unwrap());
        serve(move |stream| talk(StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream)))
    }

    /// A TLS proxy in front of a web server.
    fn front(&self, web: SocketAddr) -> SocketAddr {
        self.serve("good.crt", move |mut stream| {
            let Some(request) = request(&mut stream) else { return };
            let answer = exchange(web, request.replace("\r\n\r\n", "\r\nX-Forwarded-Proto: https\r\n\r\n").as_bytes());
            send(&mut stream, &answer);
        })
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        trusting(Some(&self.file()), arguments).output().unwrap()
    }
}

pub type Tls = StreamOwned<ServerConnection, TcpStream>;

/// Serves connections until the test's process ends.
pub fn serve(talk: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.set_write_timeout(Some(LIMIT)).unwrap();
            talk(stream);
        }
    });
    address
}

/// Reads a request with its body.
pub fn request(stream: impl Read) -> Option<String> {
    let mut reader = BufReader::new(stream);
    let mut text = String::new();
    while !text.ends_with("\r\n\r\n") {
        if reader.read_line(&mut text).ok()? == 0 {
            return None;
        }
    }
    let length = text.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    Some(text + std::str::from_utf8(&body).unwrap())
}

pub fn send(stream: &mut Tls, bytes: &[u8]) {
    let _ = stream.write_all(bytes).and_then(|()| stream.flush()); // the client may be gone
    stream.conn.send_close_notify();
    let _ = stream.flush();
}

/// A web server that answers every request with the result of `answer` for its path.
fn web(answer: impl Fn(&str) -> String + Send + 'static) -> SocketAddr {
    serve(move |mut stream| {
        if let Some(request) = request(&stream) {
            let _ = stream.write_all(answer(request.split(' ').nth(1).unwrap()).as_bytes());
        }
    })
}

fn page(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

fn moved(status: &str, location: &str) -> String {
    format!("HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn trusting(file: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = command();
    command.args(arguments).stdin(Stdio::null()).env_remove("SSL_CERT_FILE").env_remove("SSL_CERT_DIR");
    if let Some(file) = file {
        command.env("SSL_CERT_FILE", file);
    }
    command
}

/// The command ends with this code and this text on stderr; returns stdout.
fn ends(code: i32, says: &str, output: Output) -> String {
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{stdout}\n{stderr}");
    assert!(stderr.contains(says) && !stderr.contains("panicked"), "should say `{says}`:\n{stderr}");
    stdout
}

#[test]
#[ignore = "needs openssl"]
fn every_command_speaks_https() {
    let server = Server::start(&["probe.every=15m"]);
    let authority = Authority::new("https");
    let front = authority.front(server.address("web.listen"));
    let (https, tank) = (format!("https://{front}"), Tank::new());
    let port = tank.port.to_string();
    let announced = authority.run(&["announce", "netpanzer", "--port", &port, "--master", &https, "--once"]);
    ends(0, &format!("listed at {https}"), announced);
    until("the list", || (server.json("/api/v1/servers")["total"] == 1).then_some(()));

    let address = format!("127.0.0.1:{port}");
    let listed = ends(0, "", authority.run(&["list", &https, "--format", "csv"]));
    assert!(listed.contains(&format!("netpanzer,127.0.0.1,{port},Tank")), "{listed}");
    let diagnosis = ends(0, "", authority.run(&["doctor", &https, "netpanzer", &address]));
    assert!(diagnosis.contains("Last verified by query"), "{diagnosis}");
    let file = authority.0.path().join("servers.json");
    ends(0, "1 servers listed", authority.run(&["export", &https, "--json", file.to_str().unwrap()]));
    assert!(std::fs::read_to_string(&file).unwrap().contains("Tank"));

    let game = Game::new(server.address("iceball.listen"));
    game.announce(&announcement(b"over TLS", 7, 3));
    until("the second one", || server.listed().pop());
    let iceball = authority.run(&["list", &format!("iceball+https://{front}/master.json"), "--format", "csv"]);
    assert!(ends(0, "", iceball).contains("over TLS"));
    let bloodmasters = authority.run(&["list", &format!("bloodmasters+https://{front}/bloodmasterslist.php")]);
    ends(0, "lists no servers", bloodmasters);

    let mut watch = trusting(Some(&authority.file()), &["watch", &https, "--no-query"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _ = watch.kill().and_then(|()| watch.wait());
    assert!(line.contains("came"), "{line}");
}

#[test]
#[ignore = "needs openssl"]
fn a_certificate_that_cannot_be_trusted_is_explained() {
    let authority = Authority::new("certificates");
    let answer = |mut stream: Tls| {
        if request(&mut stream).is_some() {
            send(&mut stream, page("203.0.113.5:6969\n").as_bytes());
        }
    };
    let url = |certificate: &str| format!("bloodmasters+https://{}", authority.serve(certificate, answer));
    let (good, plain) =
        (url("good.crt"), serve(|mut stream| drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"))));
    assert!(ends(0, "", authority.run(&["list", &good])).contains("203.0.113.5"));
    ends(
        3,
        "its certificate is not trusted: it is not signed by an authority",
        trusting(None, &["list", &good]).output().unwrap(),
    );
    let empty = authority.0.write("empty.pem", "");
    let without = trusting(Some(&empty), &["list", &good]).env("SSL_CERT_DIR", "/nowhere").output().unwrap();
    ends(3, "this system has no trusted certificates: install ca-certificates, or check SSL_CERT_FILE", without);
    ends(3, "its certificate expired on 2021-02-03", authority.run(&["list", &url("expired.crt")]));
    let wrong = authority.run(&["list", &url("elsewhere.crt")]);
    ends(3, "its certificate is not for 127.0.0.1, but for elsewhere.example", wrong);
    ends(3, "it does not use TLS on this port", authority.run(&["list", &format!("https://{plain}")]));
    let tls = good.replace("https", "http");
    ends(1, "no HTTP answer", authority.run(&["list", &tls]));
    let refused = ["announce", "bloodmasters", "--port", "1", "--once", "--master", &url("expired.crt")];
    ends(1, "failed: its certificate expired", authority.run(&refused));
}

#[test]
#[ignore = "needs openssl"]
fn redirects_are_followed_within_bounds() {
    let authority = Authority::new("redirects");
    let list = "203.0.113.5:6969\n";
    let secure = authority.serve("good.crt", move |mut stream| {
        let answer = match request(&mut stream) {
            Some(request) if request.starts_with("GET /down ") => moved("301 Moved Permanently", "http://127.0.0.1:9/"),
            _ => page(list),
        };
        send(&mut stream, answer.as_bytes());
    });
    let plain = web(move |path| match path.split_at(1).1.split_once('-').unwrap_or(("", "0")) {
        ("count", number) => match number.parse::<u32>().unwrap() {
            0 => page(list),
            more => moved("302 Found", &format!("count-{}", more - 1)),
        },
        ("see", _) => moved("303 See Other", "/count-0"),
        ("up", _) => moved("308 Permanent Redirect", &format!("https://{secure}/lists")),
        ("circle", _) => moved("307 Temporary Redirect", "/again-x"),
        ("again", _) => moved("307 Temporary Redirect", "/circle-x"),
        ("file", _) => moved("302 Found", "file:///etc/passwd"),
        ("nowhere", _) => "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
        _ => panic!("{path}"),
    });
    let list = |path: &str| authority.run(&["list", &format!("bloodmasters+http://{plain}/{path}")]);
    for path in ["count-0", "count-5", "see-x", "up-x"] {
        assert!(ends(0, "", list(path)).contains("203.0.113.5"), "{path}");
    }
    ends(1, "it redirects more than 5 times", list("count-6"));
    ends(1, "redirects loop back", list("circle-x"));
    ends(1, "only http and https are followed", list("file-x"));
    ends(1, "it answered 302 Found", list("nowhere-x"));
    let down = authority.run(&["list", &format!("bloodmasters+https://{secure}/down")]);
    ends(1, "it redirects to http://127.0.0.1:9/; not followed, because it leaves TLS", down);
}

#[test]
fn a_redirected_announcement_is_posted_again_and_never_becomes_a_get() {
    let taken = serve(|mut stream| {
        let request = request(&stream).unwrap();
        let is_whole = request.starts_with("POST /new/api HTTP/1.1") && request.ends_with(r#"{"game":"x","port":7}"#);
        let status = if is_whole { "201 Created" } else { "400 Bad Request" };
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    });
    for (status, location, code, says) in [
        ("301 Moved Permanently", format!("http://{taken}/new/api"), 0, "listed at"),
        ("307 Temporary Redirect", format!("http://{taken}/new/api"), 0, "listed at"),
        ("303 See Other", format!("http://{taken}/new/api"), 1, "instead of accepting the announcement"),
        (
            "308 Permanent Redirect",
            format!("http://localhost:{}/new/api", taken.port()),
            1,
            "not redirected to another host",
        ),
    ] {
        let answer = moved(status, &location);
        let master = format!("http://{}", web(move |_| answer.clone()));
        let announced = command().args(["announce", "x", "--port", "7", "--once", "--master", &master]).output();
        ends(code, says, announced.unwrap());
    }
}

/// Runs a command to its end; returns its output and its peak memory in KiB.
fn peak(arguments: &[&str]) -> (Output, u64) {
    let mut child = trusting(None, arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak = 0;
    until("its end", || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
        peak = line.unwrap_or(0).max(peak);
        child.try_wait().unwrap()
    });
    (child.wait_with_output().unwrap(), peak)
}

#[test]
fn a_body_without_an_end_costs_little_memory() {
    let endless = |head: &'static str, chunk: Vec<u8>| {
        serve(move |mut stream| {
            let _ = request(&stream);
            let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n").as_bytes());
            // Until the client gives up.
            while stream.write_all(&chunk).is_ok() {}
        })
    };
    let chunk = [b"10000\r\n", &[b'7'; 0x10000][..], b"\r\n"].concat();
    let chunked = endless("Transfer-Encoding: chunked", chunk);
    let open = endless("Connection: close", vec![b' '; 0x10000]);
    let huge = endless("Content-Length: 99999999999", vec![b' '; 0x10000]);
    for at in [chunked, open, huge] {
        for list in ["http://", "bloodmasters+http://", "iceball://"] {
            let (output, kib) = peak(&["list", &format!("{list}{at}")]);
            ends(1, "its answer is longer than 16 MiB", output);
            assert!(kib > 0 && kib < 64 << 10, "{list}: {kib} KiB");
        }
        let (output, kib) = peak(&["doctor", &format!("http://{at}"), "iceball", "127.0.0.1:1"]);
        ends(1, "its answer is longer than 256 KiB", output);
        assert!(kib < 32 << 10, "{kib} KiB");
        let master = format!("bloodmasters+http://{at}");
        let (output, kib) = peak(&["announce", "bloodmasters", "--port", "1", "--once", "--master", &master]);
        ends(1, "its answer is longer than 256 KiB", output);
        assert!(kib < 32 << 10, "{kib} KiB");
    }
}

#[test]
fn a_list_of_empty_rows_costs_little_memory() {
    let nothings = format!(r#"{{"servers":[{}0]}}"#, "0,".repeat(4 << 20));
    for path in ["http://", "iceball://"] {
        let answer = page(&nothings);
        let at = web(move |_| answer.clone());
        let (output, kib) = peak(&["list", &format!("{path}{at}")]);
        ends(0, "skipped 4194300 more", output);
        assert!(kib < 64 << 10, "{path}: {kib} KiB");
    }
}
