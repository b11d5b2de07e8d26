//! The servers that a user has marked: `rallypoint/favourites` in the user's configuration folder, one per line as
//! `netpanzer://203.0.113.5:3030`. Lines that are something else, as comments with `#`, are kept.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::client::Found;
use crate::export::file;
use crate::model::Address;

/// Upper bound on the number of favourites, and on the length of the file.
const FAVOURITES_MAX: usize = 1000;
const BYTES_MAX: u64 = 256 << 10;
/// Folders that do not exist yet are only for the user.
const PRIVATE: u32 = 0o700;

#[derive(Debug, Default)]
pub struct Favourites {
    /// None: there is no configuration folder.
    path: Option<PathBuf>,
    /// The schemes of the favourites at each address.
    known: HashMap<Address, HashSet<Box<str>>>,
}

impl Favourites {
    /// Those of the user; the error says why they are unknown.
    pub fn of_user() -> (Favourites, Result<(), String>) {
        let variable = |name: &str| std::env::var_os(name);
        Favourites::at(
            folder(variable("XDG_CONFIG_HOME"), variable("HOME")).map(|folder| folder.join("rallypoint/favourites")),
        )
    }

    pub fn at(path: Option<PathBuf>) -> (Favourites, Result<(), String>) {
        let mut favourites = Favourites { path, ..Favourites::default() };
        let Some(path) = &favourites.path else { return (favourites, Ok(())) };
        match read(path) {
            Ok(text) => {
                favourites.known = known(&text);
                (favourites, Ok(()))
            }
            Err(error) => {
                let why = format!("{}: {error}", path.display());
                (favourites, Err(why))
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn contains(&self, server: &Found) -> bool {
        self.known.get(&server.address).is_some_and(|schemes| schemes.contains(server.scheme()))
    }

    /// Adds or removes a server, in the file too; returns whether it is a favourite now. The file is read again first, because
    /// another `watch` or the user may have changed it.
    pub fn toggle(&mut self, server: &Found) -> Result<bool, String> {
        let path = self.path.as_ref().ok_or("neither XDG_CONFIG_HOME nor HOME is set")?;
        let line = server.url();
        if favourite(&line) != Some((server.scheme(), server.address)) {
            return Err(format!("{line} cannot be written as a line"));
        }
        let was = self.contains(server);
        let failed = |error: io::Error| format!("{}: {error}", path.display());
        let text = change(path, &line, !was).map_err(failed)?;
        self.known = known(&text);
        Ok(!was)
    }
}

/// Reads the file, adds or removes a line, and replaces the file. Returns its text.
fn change(path: &Path, line: &str, add: bool) -> io::Result<String> {
    let folder = path.parent().ok_or(ErrorKind::InvalidInput)?;
    DirBuilder::new().recursive(true).mode(PRIVATE).create(folder)?;
    // Until the end of this function: two programs do not lose each other's changes. Some file systems have no locks.
    let folder = File::open(folder)?;
    let _ = folder.lock();
    let mut text = read(path)?;
    if add {
        if known(&text).values().map(HashSet::len).sum::<usize>() >= FAVOURITES_MAX {
            return Err(io::Error::other(format!("there are {FAVOURITES_MAX} favourites already")));
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(line);
        text.push('\n');
        if text.len() as u64 > BYTES_MAX {
            return Err(io::Error::other(format!("would be longer than {} KiB", BYTES_MAX >> 10)));
        }
    } else {
        let of_line = favourite(line);
        text = text.split_inclusive('\n').filter(|kept| favourite(kept) != of_line).collect();
    }
    let _ = file::write(path, text.as_bytes())?;
    Ok(text)
}

/// The file's text; empty if there is none.
fn read(path: &Path) -> io::Result<String> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(String::new()),
        file => file?,
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is not a file"));
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("is longer than {} KiB", BYTES_MAX >> 10)));
    }
    Ok(text)
}

fn known(text: &str) -> HashMap<Address, HashSet<Box<str>>> {
    let mut known = HashMap::<_, HashSet<Box<str>>>::new();
    for (scheme, address) in text.lines().filter_map(favourite).take(FAVOURITES_MAX) {
        known.entry(address).or_default().insert(scheme.into());
    }
    known
}

/// The scheme and the address of a line; None for any other line.
fn favourite(line: &str) -> Option<(&str, Address)> {
    let (scheme, address) = line.trim().rsplit_once("://")?;
    let address = address.parse().ok()?;
    (!scheme.is_empty() && !scheme.starts_with('#')).then_some((scheme, address))
}

/// The user's configuration folder. A relative one is ignored, as the XDG specification requires.
fn folder(configured: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: OsString| Some(PathBuf::from(path)).filter(|path| path.is_absolute());
    configured.and_then(absolute).or_else(|| Some(home.and_then(absolute)?.join(".config")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Game;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn place(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("rallypoint-favourites-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder.join("config/rallypoint/favourites")
    }

    fn remove(path: &Path) {
        fs::remove_dir_all(path.ancestors().nth(3).unwrap()).unwrap();
    }

    fn server(port: u16) -> Found {
        Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap())
    }

    fn load(path: &Path) -> Favourites {
        let (favourites, read) = Favourites::at(Some(path.into()));
        read.unwrap();
        favourites
    }

    #[test]
    fn marks_survive_and_other_lines_stay() {
        let path = place("survive");
        let mut favourites = load(&path);
        assert_eq!(favourites.toggle(&server(1)), Ok(true));
        assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o777, 0o700);
        assert!(load(&path).contains(&server(1)) && !load(&path).contains(&server(2)));
        // The user edits it, and another program adds one.
        fs::write(&path, "# mine\n netpanzer://203.0.113.5:1 \nnonsense\niceball://203.0.113.5:2").unwrap();
        assert_eq!(favourites.toggle(&server(2)), Ok(true));
        let edited = "# mine\n netpanzer://203.0.113.5:1 \nnonsense\niceball://203.0.113.5:2\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{edited}netpanzer://203.0.113.5:2\n"));
        assert_eq!(favourites.toggle(&server(1)), Ok(false));
        let left = "# mine\nnonsense\niceball://203.0.113.5:2\nnetpanzer://203.0.113.5:2\n";
        assert_eq!(fs::read_to_string(&path).unwrap(), left);
        assert!(!favourites.contains(&server(1)) && favourites.contains(&server(2)));
        let files = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(files, 1, "nothing else is left there");
        remove(&path);
    }

    #[test]
    fn bounds() {
        let path = place("bounds");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let lines: String = (1..=FAVOURITES_MAX).map(|port| format!("netpanzer://203.0.113.6:{port}\n")).collect();
        fs::write(&path, &lines).unwrap();
        let mut favourites = load(&path);
        assert!(favourites.toggle(&server(1)).unwrap_err().contains("there are 1000 favourites already"));
        assert_eq!(fs::read_to_string(&path).unwrap(), lines, "nothing is lost");
        // Comments fill it.
        let full = "#".repeat(BYTES_MAX as usize - 5) + "\n";
        fs::write(&path, &full).unwrap();
        assert!(favourites.toggle(&server(1)).unwrap_err().contains("would be longer than 256 KiB"));
        assert_eq!(fs::read_to_string(&path).unwrap(), full);
        fs::write(&path, "x".repeat(BYTES_MAX as usize + 1)).unwrap();
        assert!(Favourites::at(Some(path.clone())).1.unwrap_err().contains("longer than 256 KiB"));
        assert!(favourites.toggle(&server(1)).unwrap_err().contains("longer than 256 KiB"));
        fs::write(&path, b"\xff").unwrap();
        assert!(Favourites::at(Some(path.clone())).1.is_err());
        // A game's name may be anything.
        let odd = Found::new(Game::carried("netpanzer", "#x"), server(1).address);
        assert!(favourites.toggle(&odd).unwrap_err().contains("cannot be written"));
        let (mut nowhere, read) = Favourites::at(None);
        assert!(read.is_ok() && nowhere.toggle(&server(1)).unwrap_err().contains("HOME"));
        remove(&path);
    }

    #[test]
    fn the_folder_of_the_user() {
        let of = |configured: &str, home: &str| folder(Some(configured.into()), Some(home.into()));
        assert_eq!(of("/config", "/home/ann"), Some("/config".into()));
        assert_eq!(of("config", "/home/ann"), Some("/home/ann/.config".into()));
        assert_eq!(of("", ""), None);
    }
}
