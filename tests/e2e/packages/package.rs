//! The packages that `scripts/package` makes, here of the program under test: their contents, the service under a real systemd,
//! and that a release's version, changelog and tag agree.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use crate::support::*;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn output(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/test installs what is needed"))
}

/// What a command prints; it has to succeed.
fn run(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = output(command.current_dir(ROOT).args(arguments));
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout.into_owned()
}

/// Packages are made once for all tests, and stay in the target folder.
static PACKAGES: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("package");
    let _ = std::fs::remove_dir_all(&folder);
    let program = env!("CARGO_BIN_EXE_rallypoint");
    run("scripts/package", &["--dirty", "--program", program, folder.to_str().unwrap()]);
    folder
});

fn deb() -> PathBuf {
    let architecture = run("dpkg", &["--print-architecture"]);
    PACKAGES.join(format!("rallypoint_{VERSION}-1_{}.deb", architecture.trim()))
}

/// The files of the .deb, in a folder.
fn unpacked(name: &str) -> Folder {
    let folder = Folder::new(name);
    run("dpkg-deb", &["--extract", deb().to_str().unwrap(), folder.path().to_str().unwrap()]);
    folder
}

fn read(folder: &Folder, path: &str) -> String {
    let path = folder.path().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn default_configuration() -> String {
    String::from_utf8(command().arg("config").output().unwrap().stdout).unwrap()
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_deb_has_everything_and_says_what_it_needs() {
    let deb = deb();
    let deb = deb.to_str().unwrap();
    let contents = run("dpkg-deb", &["--contents", deb]);
    let files: Vec<&str> = contents.lines().filter_map(|line| line.rsplit(" ./").next()).collect();
    for file in [
        "usr/bin/rallypoint",
        "usr/lib/systemd/system/rallypoint.service",
        "etc/rallypoint/rallypoint.toml",
        "usr/share/man/man1/rallypoint.1.gz",
        "usr/share/man/man1/rallypoint-admin-ban.1.gz",
        "usr/share/bash-completion/completions/rallypoint",
        "usr/share/zsh/vendor-completions/_rallypoint",
        "usr/share/fish/vendor_completions.d/rallypoint.fish",
        "usr/share/doc/rallypoint/copyright",
        "usr/share/doc/rallypoint/changelog.gz",
        "usr/share/doc/rallypoint/changelog.Debian.gz",
        "usr/share/doc/rallypoint/THIRD-PARTY.txt.gz",
    ] {
        assert!(files.contains(&file), "no {file} in\n{contents}");
    }
    assert!(contents.lines().all(|line| line.contains(" root/root ")), "{contents}");
    let kib = |line: &str| line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap().div_ceil(1024);
    let others = contents.lines().filter(|line| line.starts_with('-')).map(kib).sum::<u64>();
    let folders = contents.lines().filter(|line| line.starts_with('d') && !line.ends_with(" ./")).count() as u64;
    let field = |name: &str| run("dpkg-deb", &["--field", deb, name]).trim().to_string();
    assert_eq!((field("Package"), field("Version")), ("rallypoint".into(), format!("{VERSION}-1")));
    assert_eq!(field("Installed-Size"), (others + folders).to_string());
    // The program under test is linked with the C library.
    let depends = field("Depends");
    assert!(depends.contains("libc6 (>= ") && depends.contains("adduser"), "{depends}");
    let folder = Folder::new("deb-control");
    run("dpkg-deb", &["--control", deb, folder.path().to_str().unwrap()]);
    assert_eq!(read(&folder, "conffiles"), "/etc/rallypoint/rallypoint.toml\n");
    for script in ["preinst", "postinst", "prerm", "postrm"] {
        run("sh", &["-n", folder.path().join(script).to_str().unwrap()]);
    }
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_packaged_configuration_is_the_default_with_the_folders_of_the_service() {
    let folder = unpacked("deb-configuration");
    let packaged = read(&folder, "etc/rallypoint/rallypoint.toml");
    let default = default_configuration();
    let changed: Vec<&str> = packaged.lines().filter(|line| !default.lines().any(|other| other == *line)).collect();
    let (comments, keys): (Vec<&str>, Vec<&str>) = changed.iter().partition(|line| line.starts_with('#'));
    assert_eq!(keys, ["data_dir = \"/var/lib/rallypoint\"", "socket = \"/run/rallypoint/admin.sock\""]);
    assert_eq!(comments.len() + default.lines().count() - 1, packaged.lines().count(), "{comments:?}");
    let checked =
        command().args(["config", "--check"]).arg(folder.path().join("etc/rallypoint/rallypoint.toml")).output();
    let checked = checked.unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_packaged_unit_is_the_one_in_contrib_with_other_paths() {
    let folder = unpacked("deb-unit");
    let packaged = read(&folder, "usr/lib/systemd/system/rallypoint.service");
    let contrib = std::fs::read_to_string(Path::new(ROOT).join("contrib/systemd/rallypoint.service")).unwrap();
    let settings = |unit: &str| -> Vec<String> {
        let lines = unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        lines.map(str::to_string).collect()
    };
    let (packaged, contrib) = (settings(&packaged), settings(&contrib));
    let only_in = |one: &[String], other: &[String]| -> Vec<String> {
        one.iter().filter(|line| !other.contains(line)).cloned().collect()
    };
    assert_eq!(
        only_in(&packaged, &contrib),
        [
            "ExecStart=/usr/bin/rallypoint serve --config /etc/rallypoint/rallypoint.toml",
            "User=rallypoint",
            "StateDirectoryMode=0700",
            "WorkingDirectory=/var/lib/rallypoint",
        ]
    );
    let left_out = only_in(&contrib, &packaged);
    assert!(
        left_out.len() == 3 && left_out[0].starts_with("ExecStart=") && left_out[2] == "DynamicUser=yes",
        "{left_out:?}"
    );
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_tarball_has_everything_and_its_sum_is_right() {
    let folder = Folder::new("tarball");
    run("sh", &["-c", &format!("cd '{}' && sha256sum --check --strict SHA256SUMS", PACKAGES.display())]);
    let sums = std::fs::read_to_string(PACKAGES.join("SHA256SUMS")).unwrap();
    assert_eq!(sums.lines().count(), 2, "{sums}");
    let name = format!("rallypoint-{VERSION}-{}-linux-musl", std::env::consts::ARCH);
    let archive = PACKAGES.join(format!("{name}.tar.gz"));
    run("tar", &["-xzf", archive.to_str().unwrap(), "-C", folder.path().to_str().unwrap()]);
    let inside = folder.path().join(&name);
    for file in [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE-MIT",
        "LICENSE-APACHE",
        "THIRD-PARTY.txt",
        "rallypoint.service",
        "contrib/grafana.json",
        "contrib/compose.yaml",
        "contrib/systemd/rallypoint-site.service",
        "examples/launcher.py",
        "man/man1/rallypoint.1",
        "completions/rallypoint.bash",
        "completions/_rallypoint",
        "completions/rallypoint.fish",
    ] {
        assert!(inside.join(file).metadata().is_ok_and(|file| file.len() > 0), "no {file}");
    }
    assert_eq!(read(&folder, &format!("{name}/rallypoint.toml")), default_configuration());
    has_the_documents(&inside.join("docs"));
    // The program in it serves, with nothing of this folder around it.
    let server = Server::start_as(Command::new(inside.join("rallypoint")), &[], &[]);
    assert_eq!(server.get("/healthz").status(), 200);
}

/// Every page of the book and the pictures, without the book's own directives.
fn has_the_documents(folder: &Path) {
    let summary = std::fs::read_to_string(folder.join("SUMMARY.md")).unwrap();
    let pages: Vec<&str> = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert!(pages.len() > 30, "{pages:?}");
    for page in pages {
        let text = std::fs::read_to_string(folder.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(!text.contains("{{#") && !text.contains("](docs/"), "{page}");
    }
    assert!(folder.join("page-wide-light.png").exists() && folder.join("performance/cost.svg").exists());
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_deb_has_the_documents() {
    has_the_documents(&unpacked("deb-documents").path().join("usr/share/doc/rallypoint"));
}

/// The libraries' notices have to go with the program.
#[test]
#[ignore = "needs Debian's packaging tools"]
fn every_library_in_the_program_is_named_with_its_licence() {
    let listed = run("scripts/licences", &[]);
    let (names, texts) = listed.split_once("\n\n").unwrap().1.split_once("\n\n").unwrap();
    assert!(names.lines().count() > 100 && !names.contains("see below"), "{names}");
    assert!(texts.contains("Permission is hereby granted") && texts.contains("Apache License"));
    assert!(!listed.contains("/.cargo/"), "a path of this machine");
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn the_deb_installs_starts_upgrades_and_purges_under_systemd() {
    let output = output(Command::new("scripts/package-test").current_dir(ROOT).arg(deb()));
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // Systemd cannot be run everywhere. Where changes are accepted it has to be.
    if output.status.code() == Some(77) && std::env::var("CI").as_deref() != Ok("true") {
        // Not with eprintln!, which nobody sees of a test that passes.
        let _ = write!(std::io::stderr(), "{errors}");
        return;
    }
    assert!(output.status.success(), "{}\n{said}{errors}", output.status);
    assert!(said.contains("ok: the list is kept") && said.contains("ok: no file stays"), "{said}");
}

/// A commit with this version, this head of the changelog, and a tag; and what `scripts/release` with an option says of it.
fn release(option: &str, name: &str, version: &str, changelog: &str, tag: Option<&str>) -> Result<String, String> {
    let folder = Folder::new(&format!("release-{name}"));
    let path = folder.path().to_str().unwrap();
    let script = folder.program(Path::new(ROOT).join("scripts/release"), "scripts/release");
    folder.write("Cargo.toml", &format!("[package]\nname = \"rallypoint\"\nversion = \"{version}\"\n"));
    folder.write("Cargo.lock", &format!("[[package]]\nname = \"rallypoint\"\nversion = \"{version}\"\n"));
    folder.write("CHANGELOG.md", changelog);
    run("git", &["-C", path, "init", "--quiet"]);
    run("git", &["-C", path, "add", "."]);
    let author = ["-c", "user.name=a", "-c", "user.email=a@localhost"];
    run("git", &[&["-C", path], &author[..], &["commit", "--quiet", "-m", "a release"]].concat());
    if let Some(tag) = tag {
        run("git", &["-C", path, "tag", tag]);
    }
    let output = output(Command::new(script).arg(option));
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn version_changelog_and_tag_of_a_release_agree() {
    // Of this commit.
    run("scripts/release", &["--check"]);
    let changelog = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n\n- a change\n\n## 1.2.2 - 2025-12-31\n";
    let newer = changelog.replace("Unreleased\n", "Unreleased\n\n- a newer change\n");
    for (name, version, changelog, tag, says) in [
        ("right", "1.2.3", changelog, Some("v1.2.3"), None),
        ("untagged", "1.2.3", changelog, None, None),
        ("untagged-newer", "1.2.3", &newer, None, None),
        ("tagged-newer", "1.2.3", &newer, Some("v1.2.3"), Some("has changes above 1.2.3")),
        ("tag", "1.2.3", changelog, Some("v1.2.4"), Some("the tag of this commit is v1.2.4")),
        ("version", "1.2.4", changelog, None, Some("CHANGELOG.md 1.2.3")),
        ("day", "1.2.3", &changelog.replace("01-31", "02-31"), None, Some("no such day: 2026-02-31")),
        ("none", "1.2.3", "# Changelog\n\n## Unreleased\n", None, Some("has no release")),
    ] {
        match (release("--check", name, version, changelog, tag), says) {
            (Ok(_), None) => {}
            (Err(said), Some(says)) => assert!(said.contains(says), "{name}: {said}"),
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
#[ignore = "needs Debian's packaging tools"]
fn a_release_needs_its_tag() {
    let changelog = "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-01-31\n\n- a change\n";
    // None of these commits has anything to build, so the next step after the tag fails.
    for (name, option, tag, tag_is_missing) in [
        ("without-tag", "made", None, true),
        ("with-tag", "made", Some("v1.2.3"), false),
        ("option", "--untagged", None, false),
    ] {
        let said = release(option, name, "1.2.3", changelog, tag).unwrap_err();
        assert_eq!(said.contains("does not have the tag v1.2.3"), tag_is_missing, "{name}: {said}");
    }
}
