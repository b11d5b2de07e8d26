//! What the documents say exists: the commands that they show are accepted, their configurations pass the check, and the keys
//! and packages that they name are there.

use std::collections::BTreeSet;

use rallypoint::config::{Config, default_file};

use crate::pages::{commands_in, documents, root};

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
            // clap's "error" for --help is the help itself.
            let help = rallypoint::cli::accepts(&[&words[..2], &["--help".into()]].concat()).unwrap_err();
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
    let mut count = 0;
    for document in documents() {
        for block in document.blocks("toml") {
            count += 1;
            let config = Config::parse(Some((&document.name, &block.text)), &[]);
            let config = config.unwrap_or_else(|errors| panic!("{errors}{}", block.text));
            assert_eq!(config.warnings(), Vec::<String>::new(), "{}: {}", document.name, block.text);
        }
    }
    assert!(count >= 28, "{count} configurations");
}

/// All keys, as `rallypoint config` prints them: `web.listen`, and for tables their name, `hyperbol.servers`, with what is in them.
fn keys() -> BTreeSet<String> {
    let printed = default_file();
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

/// The file names in the documents are those that `scripts/package` makes.
#[test]
fn the_documents_name_the_packages_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    let deb = format!("rallypoint_{version}-1_amd64.deb");
    let tarball = format!("rallypoint-{version}-x86_64-linux-musl.tar.gz");
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let image = format!("rust:{rust}-");
    for (document, names) in [
        ("README.md", vec![&*deb, &*tarball, rust]),
        ("docs/deployment.md", vec![&*deb, &*tarball]),
        ("Dockerfile", vec![&*image]),
    ] {
        let text = std::fs::read_to_string(root().join(document)).unwrap();
        for name in names {
            assert!(text.contains(name), "{document} does not name {name}");
        }
    }
}
