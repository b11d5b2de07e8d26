//! What the documents say can be done: their commands are accepted by the program, their configurations by its check, their
//! requests by a running server, and the keys that they name exist. README.md and the book, docs/, are both read here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fetch::Authority;
use crate::support::*;
use crate::tools::ends;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A document, by its path from the root of the repository.
pub struct Document {
    pub name: String,
    pub text: String,
}

/// A block of code.
pub struct Block {
    pub language: String,
    /// Without the indentation of its list.
    pub text: String,
}

fn collect(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            out.push(path);
        }
    }
}

/// All documents: those of the root, and the book.
pub fn documents() -> Vec<Document> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    collect(&root().join("docs"), &mut paths);
    paths.sort();
    assert!(paths.len() > 30, "{paths:?}");
    let document = |path: &PathBuf| Document {
        name: path.strip_prefix(root()).unwrap().to_str().unwrap().to_string(),
        text: std::fs::read_to_string(path).unwrap(),
    };
    paths.iter().map(document).collect()
}

impl Document {
    /// What users are told. CHANGELOG.md is about the past.
    pub fn is_manual(&self) -> bool {
        self.name != "CHANGELOG.md"
    }

    /// The text without its blocks of code, and those.
    fn parts(&self) -> (String, Vec<Block>) {
        let (mut prose, mut blocks): (String, Vec<Block>) = Default::default();
        let mut open: Option<(usize, Block)> = None;
        for line in self.text.lines() {
            let bare = line.trim_start();
            match (open.take(), bare.strip_prefix("```")) {
                (None, Some(language)) => {
                    let block = Block { language: language.trim().into(), text: String::new() };
                    open = Some((line.len() - bare.len(), block));
                }
                (None, None) => prose += &format!("{line}\n"),
                (Some((_, block)), Some("")) => blocks.push(block),
                (Some((indent, mut block)), _) => {
                    block.text += &format!("{}\n", line.get(indent.min(line.len() - bare.len())..).unwrap());
                    open = Some((indent, block));
                }
            }
        }
        assert!(open.is_none(), "{}: a block of code does not end", self.name);
        (prose, blocks)
    }

    pub fn prose(&self) -> String {
        self.parts().0
    }

    pub fn blocks(&self, language: &str) -> Vec<Block> {
        self.parts().1.into_iter().filter(|block| block.language == language).collect()
    }

    /// The lines that a shell is to run: of `sh` all, of `console` those after a prompt. Each as one line.
    pub fn command_lines(&self) -> Vec<String> {
        let of_sh = self.blocks("sh").into_iter().flat_map(|block| lines(&block.text));
        let of_console = self.blocks("console").into_iter().flat_map(|block| lines(&block.text));
        let prompted = of_console.filter_map(|line| Some(line.strip_prefix("$ ")?.to_string()));
        of_sh.chain(prompted).filter(|line| !line.trim().is_empty() && !line.starts_with('#')).collect()
    }

    /// What stands between backquotes in the text.
    pub fn quoted(&self) -> Vec<String> {
        let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        self.prose().split('`').skip(1).step_by(2).map(unwrapped).collect()
    }
}

fn lines(text: &str) -> Vec<String> {
    text.replace("\\\n", " ").lines().map(|line| line.trim().to_string()).collect()
}

/// The words of each command of a line, as a shell splits them: quotes are removed, comments and redirections end a command.
pub fn commands_in(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut words, mut word): (Vec<Vec<String>>, Vec<String>, Option<String>) = Default::default();
    let (mut quote, mut depth, mut is_redirected) = (None, 0, false);
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, quote) {
            (c, Some(open)) if c == open => quote = None,
            (c, Some(_)) => word.get_or_insert_default().push(c),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            ('$', None) if rest.peek() == Some(&'(') => {
                depth += 1;
                rest.next();
                word.get_or_insert_default().push('$');
            }
            (')', None) if depth > 0 => depth -= 1,
            (c, None) if depth > 0 => word.get_or_insert_default().push(c),
            ('#', None) if word.is_none() => break,
            (' ', None) => words.extend(word.take().filter(|_| !std::mem::take(&mut is_redirected))),
            ('>' | '<', None) => {
                words.extend(word.take());
                while rest.next_if(|c| *c == ' ' || *c == '>').is_some() {}
                is_redirected = true;
            }
            ('|' | ';' | '&', None) => {
                words.extend(word.take().filter(|_| !std::mem::take(&mut is_redirected)));
                commands.push(std::mem::take(&mut words));
            }
            (c, None) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.take().filter(|_| !is_redirected));
    commands.push(words);
    commands.retain(|words| !words.is_empty());
    commands
}

#[test]
fn a_line_is_split_as_a_shell_does_it() {
    let split = |line| commands_in(line).iter().map(|words| words.join("·")).collect::<Vec<_>>();
    assert_eq!(split("a 'b c' \"d\"e  # f"), ["a·b c·de"]);
    assert_eq!(split("a b | sort > old && c $(date +%F).x"), ["a·b", "sort", "c·$date +%F.x"]);
    assert_eq!(split("a > file b"), ["a·b"]);
    assert_eq!(split("echo 'a|b#c' | d"), ["echo·a|b#c", "d"]);
}

#[test]
fn every_command_in_the_documents_is_accepted() {
    let mut count = 0;
    for document in documents().iter().filter(|document| document.is_manual()) {
        for line in document.command_lines() {
            for words in commands_in(&line) {
                let wrong = |why: &str| panic!("{}: `{line}`: {why}", document.name);
                count += 1;
                match words[0].as_str() {
                    "rallypoint" => {
                        rallypoint::cli::accepts(&words).unwrap_or_else(|why| wrong(&why));
                        check_assignments(&words).unwrap_or_else(|why| wrong(&why));
                    }
                    script if script.starts_with("scripts/") => assert!(root().join(script).is_file(), "{line}"),
                    "cargo" => check_cargo(&words[1..]).unwrap_or_else(|why| wrong(&why)),
                    "node" | "python3" if words[1].starts_with("examples/") => {
                        assert!(root().join(&words[1]).is_file())
                    }
                    // Tried by tests of their own, here and elsewhere.
                    "cat" | "curl" | "nft" | "openssl" | "printf" | "ufw" => {}
                    known if OTHERS.split(' ').any(|program| program == known) => {}
                    other => wrong(&format!("`{other}` is not a program that these tests know")),
                }
            }
        }
    }
    assert!(count > 100, "{count} commands");
}

/// Programs that come with the system. What is given to them is not looked at.
const OTHERS: &str = "apt cat cd cp diff docker echo gzip install journalctl mkdir nc openssl printf rustup sed sha256sum sort systemctl tar";

/// The keys of `--set KEY=VALUE` exist.
fn check_assignments(words: &[String]) -> Result<(), String> {
    let keys = keys();
    for pair in words.windows(2).filter(|pair| pair[0] == "--set") {
        let key = pair[1].split('=').next().unwrap();
        keys.contains(key).then_some(()).ok_or(format!("there is no key {key}"))?;
    }
    Ok(())
}

/// Benchmarks, examples and tests that are named to cargo are in its manifest, or files where it looks for them.
fn check_cargo(words: &[String]) -> Result<(), String> {
    let known = ["run", "build", "test", "bench", "install", "doc"];
    known.contains(&words[0].as_str()).then_some(()).ok_or("not a command of cargo".to_string())?;
    for pair in words.windows(2) {
        let folder = match pair[0].as_str() {
            "--bench" => "benches",
            "--example" => "examples",
            "--test" => "tests",
            _ => continue,
        };
        let path = root().join(folder).join(&pair[1]);
        let exists = path.is_dir() || path.with_extension("rs").is_file();
        exists.then_some(()).ok_or(format!("there is no {folder}/{}", pair[1]))?;
    }
    Ok(())
}

/// A command in the text may leave out what it needs, and has placeholders; its options have to exist.
#[test]
fn every_command_that_the_text_names_has_the_options_that_it_is_given() {
    let mut count = 0;
    for document in documents().iter().filter(|document| document.is_manual()) {
        for quoted in document.quoted().iter().filter(|quoted| quoted.starts_with("rallypoint ")) {
            let words = commands_in(quoted).remove(0);
            if words[1].starts_with('-') || words[1].chars().all(|c| c.is_uppercase()) {
                continue;
            }
            let help = ends(0, &[&words[1], "--help"]).0;
            for option in words[2..].iter().filter(|word| word.starts_with("--")) {
                let is_known = help.split(|c: char| c.is_whitespace() || c == ',').any(|word| word == option);
                assert!(is_known, "{}: `{quoted}`: there is no {option}", document.name);
            }
            count += 1;
        }
    }
    assert!(count > 30, "{count} commands");
}

#[test]
fn every_configuration_in_the_documents_is_accepted_without_a_warning() {
    let (folder, authority) = (Folder::new("configurations"), Authority::new("configurations-tls"));
    let mut count = 0;
    for document in documents() {
        for block in document.blocks("toml") {
            count += 1;
            let file = folder.write(&format!("{count}.toml"), &with_files(&authority, &block.text));
            let (_, stderr) = ends(0, &["config", "--check", file.to_str().unwrap()]);
            assert!(!stderr.contains("warning"), "{}: {stderr}{}", document.name, block.text);
        }
    }
    assert!(count >= 28, "{count} configurations");
}

/// The certificate and the key that documents name exist, for the check.
fn with_files(authority: &Authority, text: &str) -> String {
    let path = |name: &str| authority.0.path().join(name).display().to_string();
    text.replace("/etc/rallypoint/fullchain.pem", &path("good.crt"))
        .replace("/etc/rallypoint/privkey.pem", &path("server.key"))
}

/// The samples for other programs are checked by those programs.
#[test]
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

/// All keys, as `rallypoint config` prints them: `web.listen`, and for tables their name, `hyperbol.servers`, with what is in them.
fn keys() -> BTreeSet<String> {
    let printed = ends(0, &["config"]).0;
    let (mut section, mut keys) = (String::new(), BTreeSet::new());
    for line in printed.lines() {
        let bare = line.trim_start_matches('#');
        if let Some(name) = line.strip_prefix("#[[").and_then(|rest| rest.strip_suffix("]]")) {
            section = name.into();
            keys.insert(section.clone());
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.into();
        } else if let Some((key, _)) = bare.split_once(" = ").filter(|(key, _)| is_name(key)) {
            keys.insert(if section.is_empty() { key.into() } else { format!("{section}.{key}") });
        }
    }
    assert!(keys.len() > 60, "{keys:?}");
    keys
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
}

#[test]
fn every_key_that_the_documents_name_exists() {
    let keys = keys();
    let sections: BTreeSet<&str> = keys.iter().filter_map(|key| Some(key.split_once('.')?.0)).collect();
    // Of files, and of hosts.
    let endings = ["md", "rs", "toml", "json", "svg", "js", "py", "yaml", "org", "tw", "io"];
    let mut count = 0;
    for document in documents().iter().filter(|document| document.is_manual()) {
        for quoted in document.quoted() {
            let word = quoted.split(" = ").next().unwrap();
            let Some((section, key)) = word.split_once('.') else { continue };
            if !sections.contains(section) || !is_name(key) || endings.contains(&key) {
                continue;
            }
            assert!(keys.contains(word), "{}: there is no key `{word}`", document.name);
            count += 1;
        }
    }
    assert!(count > 60, "{count} keys");
}

/// Every request that a document shows is made to a running server, whatever host it names. A comment says what is expected if
/// that is not success: `# 400: …`.
#[test]
fn every_request_in_the_documents_works() {
    let server = Server::start(&["web.token=the-token"]);
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
