//! Uploads to a real FTP server, with and without TLS, and to servers that misbehave.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rallypoint::export::ftp::{FtpFolder, Password, Settings, upload};

use crate::support::*;

/// Debian's python3, with the pyftpdlib that `scripts/test` installs.
const PYTHON: &str = "/usr/bin/python3";

struct FtpServer {
    child: Child,
    port: u16,
    output: Log,
}

impl FtpServer {
    fn start(folder: &Path, options: &[&str]) -> FtpServer {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/cli/ftp_server.py");
        let output = Log::new();
        let mut command = Command::new(PYTHON);
        command.arg(script).arg(folder).args(options).stdin(Stdio::null()).stdout(output.end()).stderr(Stdio::null());
        let child = command.spawn().expect("Debian's python3 with python3-pyftpdlib and python3-openssl");
        let mut server = FtpServer { child, port: 0, output };
        server.port = until("the FTP server's port", || {
            assert!(server.child.try_wait().unwrap().is_none(), "it ended: is python3-pyftpdlib installed?");
            let output = server.output.text();
            output.lines().next()?.strip_prefix("port ").map(|port| port.parse().unwrap())
        });
        server
    }

    /// All commands that it got: it reports each before its reply.
    fn commands(&self) -> Vec<String> {
        self.output.text().lines().skip(1).map(|line| line.trim().to_string()).collect()
    }

    fn target(&self, scheme: &str, folder: &str) -> FtpFolder {
        FtpFolder::parse(&format!("{scheme}://joe@127.0.0.1:{}/{folder}", self.port)).unwrap()
    }
}

impl Drop for FtpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn password(text: &str) -> Password {
    Password::find(None, Some(text.into())).unwrap()
}

fn settings(ca_file: Option<PathBuf>) -> Settings {
    Settings { ca_file, ..Settings::default() }
}

fn put(target: &FtpFolder, secret: &str, settings: &Settings, bytes: &[u8]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(upload(target, &password(secret), settings, "list.xml", bytes))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

pub fn openssl(folder: &Path, arguments: &str) {
    let output = Command::new("openssl").current_dir(folder).args(arguments.split(' ')).output();
    let output = output.expect("openssl, from Debian");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A certificate authority, `ca.crt`, and a server certificate with its key, `server.pem`.
fn make_certificates(folder: &Path) -> (PathBuf, PathBuf) {
    openssl(
        folder,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=test -days 2 -keyout ca.key -out ca.crt",
    );
    openssl(
        folder,
        "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=127.0.0.1 -keyout server.key -out server.csr",
    );
    std::fs::write(folder.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    openssl(
        folder,
        "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile names -out server.crt",
    );
    let parts = ["server.key", "server.crt"].map(|name| std::fs::read_to_string(folder.join(name)).unwrap());
    std::fs::write(folder.join("server.pem"), parts.concat()).unwrap();
    (folder.join("ca.crt"), folder.join("server.pem"))
}

#[test]
#[ignore = "needs pyftpdlib"]
fn stored_under_a_temporary_name_then_renamed_then_replaced() {
    let folder = Folder::new("ftp");
    std::fs::create_dir(folder.path().join("www")).unwrap();
    let server = FtpServer::start(folder.path(), &[]);
    let target = server.target("ftp", "www");
    // Line ends and bytes that FTP's text mode would change.
    let first = b"one\nline\r\n\0\xff".repeat(20_000);
    put(&target, "secret", &settings(None), &first).unwrap();
    let www = folder.path().join("www");
    assert_eq!(std::fs::read(www.join("list.xml")).unwrap(), first);
    put(&target, "secret", &settings(None), b"second").unwrap();
    assert_eq!(std::fs::read(www.join("list.xml")).unwrap(), b"second");
    assert_eq!(names(&www), ["list.xml"]);
    let commands = server.commands();
    let changes = ["STOR", "RNFR", "RNTO", "DELE", "PASV", "PORT"];
    let seen: Vec<_> = commands.iter().filter(|line| changes.contains(&line.split(' ').next().unwrap())).collect();
    assert_eq!(seen.len(), 8, "{seen:?}");
    for (line, says) in seen.iter().zip(["PASV", "STOR", "RNFR", "RNTO"].iter().cycle()) {
        assert!(line.starts_with(says), "{seen:?}");
        assert_eq!(line.ends_with("list.xml.part"), matches!(*says, "STOR" | "RNFR"), "{line}");
        assert_eq!(line.ends_with("/list.xml"), *says == "RNTO", "{line}");
    }
}

#[test]
#[ignore = "needs pyftpdlib"]
fn a_server_that_cannot_rename_over_a_file_works() {
    let folder = Folder::new("ftp-no-replace");
    let server = FtpServer::start(folder.path(), &["--no-replace"]);
    for content in [b"first", b"other"] {
        put(&server.target("ftp", ""), "secret", &settings(None), content).unwrap();
        assert_eq!(std::fs::read(folder.path().join("list.xml")).unwrap(), content);
    }
    assert_eq!(names(folder.path()), ["list.xml"]);
}

#[test]
#[ignore = "needs pyftpdlib"]
fn on_a_server_that_cannot_rename_the_old_file_stays() {
    let folder = Folder::new("ftp-no-rename");
    std::fs::write(folder.path().join("list.xml"), "old").unwrap();
    let server = FtpServer::start(folder.path(), &["--no-rename"]);
    let error = put(&server.target("ftp", ""), "secret", &settings(None), b"new").unwrap_err();
    assert!(error.contains("cannot rename list.xml.part to list.xml: the server replied 550"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("list.xml")).unwrap(), b"old");
    assert_eq!(names(folder.path()), ["list.xml"]);
}

#[test]
#[ignore = "needs pyftpdlib and openssl"]
fn over_tls_with_a_self_signed_certificate() {
    let (keys, folder) = (Folder::new("ftps-own-keys"), Folder::new("ftps-own"));
    // As in pyftpdlib's manual: without a host name, and marked as an authority.
    for name in ["own", "other"] {
        openssl(
            keys.path(),
            &format!("req -x509 -newkey rsa:2048 -nodes -subj /CN=ftp -days 2 -keyout {name}.key -out {name}.crt"),
        );
    }
    let parts = ["own.key", "own.crt"].map(|name| std::fs::read_to_string(keys.path().join(name)).unwrap());
    let pem = keys.write("own.pem", &parts.concat());
    let server = FtpServer::start(folder.path(), &[pem.to_str().unwrap()]);
    let trusting = |name: &str| settings(Some(keys.path().join(name)));
    put(&server.target("ftps", ""), "secret", &trusting("own.crt"), b"content").unwrap();
    assert_eq!(std::fs::read(folder.path().join("list.xml")).unwrap(), b"content");
    let error = put(&server.target("ftps", ""), "secret", &trusting("other.crt"), b"x").unwrap_err();
    assert!(error.contains("cannot start TLS") && error.contains("certificate"), "{error}");
    let error = put(&server.target("ftps", ""), "secret", &trusting("own.key"), b"x").unwrap_err();
    assert!(error.contains("own.key: contains no certificates"), "{error}");
}

#[test]
#[ignore = "needs pyftpdlib and openssl"]
fn over_tls_with_a_certificate_that_is_checked() {
    let (keys, folder) = (Folder::new("ftps-keys"), Folder::new("ftps"));
    let (authority, certificate) = make_certificates(keys.path());
    let server = FtpServer::start(folder.path(), &[certificate.to_str().unwrap()]);
    let target = server.target("ftps", "");
    let content = b"over TLS".repeat(10_000);
    put(&target, "secret", &settings(Some(authority.clone())), &content).unwrap();
    assert_eq!(std::fs::read(folder.path().join("list.xml")).unwrap(), content);
    let commands = server.commands();
    for word in ["AUTH", "PROT", "STOR"] {
        assert!(commands.iter().any(|line| line.starts_with(word)), "{commands:?}");
    }

    // The certificate is not trusted, and without TLS the server refuses the user.
    let error = put(&target, "secret", &settings(None), b"x").unwrap_err();
    assert!(error.contains("cannot start TLS") && error.contains("certificate"), "{error}");
    let plain = FtpFolder::parse(&format!("ftp://jim@127.0.0.1:{}/", server.port)).unwrap();
    let error = put(&plain, "secret", &settings(None), b"x").unwrap_err();
    assert!(error.contains("cannot log in as jim"), "{error}");
    let commands = server.commands().split_off(commands.len());
    assert_eq!(
        commands,
        ["AUTH TLS", "USER jim"],
        "neither name nor password was sent to a server that is not trusted"
    );
    let missing = settings(Some("/nowhere.pem".into()));
    let error = put(&target, "secret", &missing, b"x").unwrap_err();
    assert!(error.contains("/nowhere.pem: contains no certificates"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("list.xml")).unwrap(), content);
}

#[test]
#[ignore = "needs pyftpdlib"]
fn failures_are_explained() {
    let folder = Folder::new("ftp-wrong");
    let server = FtpServer::start(folder.path(), &[]);
    let wrong = |target: &FtpFolder, secret: &str, says: &[&str]| {
        let error = put(target, secret, &settings(None), b"x").unwrap_err();
        for says in says {
            assert!(error.contains(says), "should say `{says}`: {error}");
        }
        assert!(!error.contains("wrong-secret") && !error.contains('\n'), "{error}");
    };
    let port = format!("ftp://127.0.0.1:{}", server.port);
    wrong(&server.target("ftp", ""), "wrong-secret", &[&port, "cannot log in as joe: the server replied 530"]);
    wrong(&server.target("ftp", "nowhere"), "secret", &["cannot change to the folder nowhere", "550"]);
    wrong(&server.target("ftps", ""), "secret", &["cannot start TLS"]);
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let away = FtpFolder::parse(&format!("ftp://joe@{closed}/")).unwrap();
    wrong(&away, "secret", &["cannot connect", "refused"]);
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_server_that_hangs_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = FtpFolder::parse(&format!("ftp://joe@{}/", listener.local_addr().unwrap())).unwrap();
    let impatient = Settings { timeout: Duration::from_millis(300), ..Settings::default() };
    // It is silent; then it greets and is silent; then it sends an endless greeting.
    let hang = std::thread::spawn(move || {
        let mut open = Vec::new();
        for says in [&b""[..], b"220 hello\r\n", &b"220-hello\r\n".repeat(100_000)] {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.write_all(says);
            open.push(stream);
        }
        open
    });
    for says in ["get a greeting: no answer within", "log in as joe: no answer within", "get a greeting"] {
        let error = put(&target, "secret", &impatient, b"x").unwrap_err();
        assert!(error.contains(says), "{error}");
    }
    drop(hang.join().unwrap());
}

#[test]
#[ignore = "needs pyftpdlib"]
fn an_export_is_uploaded_under_its_own_name() {
    let folder = Folder::new("ftp-export");
    let server = Server::start(&[]);
    Game::new(server.address("iceball.listen")).announce(&announcement(b"uploaded", 20737, 3));
    until("the server", || server.listed().pop());
    let ftp = FtpServer::start(folder.path(), &[]);
    let file = folder.write("password", "secret\n");
    let here = Folder::new("ftp-export-here");
    let master = format!("iceball://{}", server.address("iceball.listen"));
    let target = format!("ftp://joe@127.0.0.1:{}/", ftp.port);
    let export = |more: &[&str], variable: &str| {
        let xml = here.path().join("servers.xml");
        let mut command = command();
        command.args(["export", &master, "--once", "--ftp", &target, "--xml"]).arg(xml).args(more);
        command.env("RALLYPOINT_FTP_PASSWORD", variable).output().unwrap()
    };
    let by_file = export(&["--ftp-password-file", file.to_str().unwrap()], "wrong");
    assert!(by_file.status.success(), "{}", String::from_utf8_lossy(&by_file.stderr));
    let uploaded = std::fs::read_to_string(folder.path().join("servers.xml")).unwrap();
    assert!(uploaded.contains("uploaded") && uploaded.contains("<serverlist"), "{uploaded}");
    assert_eq!(export(&[], "secret").status.code(), Some(0));
    let wrong = export(&[], "wrong");
    assert_eq!(wrong.status.code(), Some(3), "{}", String::from_utf8_lossy(&wrong.stderr));
    assert_eq!(export(&[], "").status.code(), Some(2), "a missing password is a usage error");
}
