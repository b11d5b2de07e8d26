//! Where addresses are, from a database in MaxMind's format, which is read again when its file changes.

pub mod countries;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::{ArcSwap, ArcSwapOption};
use maxminddb::{Reader, geoip2, path};
use tracing::{info, warn};

use crate::protocols::section::{Place, Places};

/// Continents that databases name.
const CONTINENTS: [&str; 7] = ["AF", "AN", "AS", "EU", "NA", "OC", "SA"];

/// The database that says in which country each server is. There is one for the program, as there is one configuration: a
/// server's country follows from its address and is no part of the list.
static COUNTRIES: ArcSwapOption<Database> = ArcSwapOption::const_empty();
/// Grows when countries may have changed.
static VERSION: AtomicU64 = AtomicU64::new(0);

pub fn set_countries(database: Option<Arc<Database>>) {
    COUNTRIES.store(database);
    VERSION.fetch_add(1, Ordering::Relaxed);
}

/// Whether countries are known at all.
pub fn has_countries() -> bool {
    COUNTRIES.load().is_some()
}

/// What was rendered with another version may name other countries.
pub fn version() -> u64 {
    VERSION.load(Ordering::Relaxed)
}

/// The country of an address: two letters in upper case.
pub fn country(ip: IpAddr) -> Option<&'static str> {
    COUNTRIES.load().as_ref()?.country(ip)
}

pub struct Database {
    path: PathBuf,
    reader: ArcSwap<Reader<Vec<u8>>>,
    /// The file as it was when it was last read.
    seen: Mutex<Option<Stamp>>,
}

/// When a file was changed, and its size.
type Stamp = (SystemTime, u64);

impl Database {
    /// Reads a database; the error names the file, and what is wrong with it.
    pub fn open(path: &Path) -> Result<Database, String> {
        let seen = Mutex::new(stamp(path));
        Ok(Database { path: path.into(), reader: ArcSwap::from_pointee(read(path)?), seen })
    }

    /// Reads the file again if it has changed. A file that cannot be used changes nothing.
    pub fn refresh(&self) {
        let now = stamp(&self.path);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if now.is_none() || *seen == now {
            return;
        }
        *seen = now;
        match read(&self.path) {
            Ok(reader) => {
                self.reader.store(Arc::new(reader));
                VERSION.fetch_add(1, Ordering::Relaxed);
                info!("geo.database: {} was read again", self.path.display());
            }
            Err(error) => warn!("{error}; the one before is used"),
        }
    }

    /// Only what the list shows: much cheaper than the whole place.
    fn country(&self, ip: IpAddr) -> Option<&'static str> {
        let reader = self.reader.load();
        let found = reader.lookup(ip.to_canonical()).ok()?;
        let code = |key| found.decode_path::<&str>(&path![key, "iso_code"]).ok().flatten();
        countries::known(code("country").or_else(|| code("registered_country"))?)
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.modified().ok()?, file.len()))
}

fn read(path: &Path) -> Result<Reader<Vec<u8>>, String> {
    let wrong = |why: String| format!("geo.database: {}: {why}", path.display());
    let bytes = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    Reader::from_source(bytes).map_err(|error| wrong(format!("not a database in MaxMind's format ({error})")))
}

impl Places for Database {
    fn place(&self, ip: IpAddr) -> Option<Place> {
        // The file is the operator's, but may be damaged: what cannot be read is unknown.
        let reader = self.reader.load();
        let found: geoip2::Country<'_> = reader.lookup(ip.to_canonical()).ok()?.decode().ok()??;
        let continent = found.continent.code.filter(|code| CONTINENTS.contains(code))?;
        let country = found.country.iso_code.or(found.registered_country.iso_code).and_then(letters);
        Some(Place { continent: letters(continent)?, country })
    }
}

/// Two letters in upper case.
fn letters(code: &str) -> Option<[u8; 2]> {
    let code: [u8; 2] = code.as_bytes().try_into().ok()?;
    code.iter().all(u8::is_ascii_uppercase).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The database that the end-to-end tests use, too.
    const FILE: &str = "tests/data/places.mmdb";

    fn text(text: &str) -> Vec<u8> {
        [&[0b010_00000 | text.len() as u8], text.as_bytes()].concat()
    }

    fn number(kind: u8, value: u32) -> Vec<u8> {
        let bytes = value.to_be_bytes();
        let bytes = &bytes[bytes.iter().take_while(|byte| **byte == 0).count()..];
        let head = if kind < 8 { vec![kind << 5 | bytes.len() as u8] } else { vec![bytes.len() as u8, kind - 7] };
        [&head, bytes].concat()
    }

    fn map(pairs: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let pairs_bytes = pairs.iter().flat_map(|(key, value)| [text(key), value.clone()].concat());
        std::iter::once(0b111_00000 | pairs.len() as u8).chain(pairs_bytes).collect()
    }

    /// A database of networks of eight bits, as the format's specification describes it.
    fn database(networks: &[(u8, &str, &str)]) -> Vec<u8> {
        let mut data = Vec::new();
        let mut nodes: Vec<[Option<usize>; 2]> = vec![[None; 2]];
        let mut leaves = Vec::new();
        for (first, continent, country) in networks {
            let place = map(&[
                ("continent", map(&[("code", text(continent))])),
                ("country", map(&[("iso_code", text(country))])),
            ]);
            let mut node = 0;
            for bit in (0..8).rev().map(|shift| usize::from(first >> shift & 1)) {
                node = match nodes[node][bit] {
                    Some(next) => next,
                    None => {
                        nodes.push([None; 2]);
                        let next = nodes.len() - 1;
                        nodes[node][bit] = Some(next);
                        next
                    }
                };
            }
            leaves.push((node, data.len()));
            data.extend(place);
        }
        // The last node on each way is replaced by its data.
        let is_leaf = |node: usize| leaves.iter().find(|(leaf, _)| *leaf == node).map(|(_, at)| *at);
        let inner: Vec<usize> = (0..nodes.len()).filter(|node| is_leaf(*node).is_none()).collect();
        let count = inner.len();
        let record = |next: Option<usize>| match next {
            None => count,
            Some(next) => match is_leaf(next) {
                Some(at) => count + 16 + at,
                None => inner.iter().position(|node| *node == next).unwrap(),
            },
        };
        let mut file = Vec::new();
        for node in &inner {
            for next in nodes[*node] {
                file.extend(&(record(next) as u32).to_be_bytes()[1..]);
            }
        }
        file.extend([0; 16]);
        file.extend(data);
        file.extend(b"\xab\xcd\xefMaxMind.com");
        file.extend(map(&[
            ("binary_format_major_version", number(5, 2)),
            ("binary_format_minor_version", number(5, 0)),
            ("build_epoch", number(9, 1)),
            ("database_type", text("GeoLite2-Country")),
            ("description", map(&[])),
            ("ip_version", number(5, 4)),
            ("languages", vec![0, 4]),
            ("node_count", number(6, count as u32)),
            ("record_size", number(5, 24)),
        ]));
        file
    }

    #[test]
    fn continents_and_countries_come_from_the_file() {
        let made =
            database(&[(127, "EU", "DE"), (10, "AS", "CN"), (11, "AN", "AQ"), (12, "XX", "DE"), (13, "SA", "b")]);
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
        assert!(std::fs::read(&path).unwrap() == made, "{FILE} is not what this test makes");
        let places = Database::open(&path).unwrap();
        let place = |ip: &str| {
            let place = places.place(ip.parse().unwrap())?;
            let letters = |code: [u8; 2]| String::from_utf8(code.to_vec()).unwrap();
            Some(letters(place.continent) + &place.country.map(letters).unwrap_or_default())
        };
        assert_eq!(place("127.0.0.1").as_deref(), Some("EUDE"));
        assert_eq!(place("::ffff:10.1.2.3").as_deref(), Some("ASCN"));
        assert_eq!(place("11.0.0.1").as_deref(), Some("ANAQ"));
        assert_eq!(place("13.0.0.1").as_deref(), Some("SA"), "a country that is none");
        for unknown in ["12.0.0.1", "192.0.2.1", "2001:db8::1"] {
            assert_eq!(place(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_a_bad_one_is_not() {
        let path = std::env::temp_dir().join(format!("rallypoint-geo-{}.mmdb", std::process::id()));
        std::fs::write(&path, database(&[(127, "EU", "DE"), (13, "SA", "b")])).unwrap();
        let places = Database::open(&path).unwrap();
        let country = |ip: &str| places.country(ip.parse().unwrap());
        assert_eq!([country("127.0.0.1"), country("13.0.0.1"), country("9.9.9.9")], [Some("DE"), None, None]);
        std::fs::write(&path, database(&[(127, "EU", "FR"), (9, "NA", "US"), (10, "AS", "CN")])).unwrap();
        places.refresh();
        assert_eq!([country("127.0.0.1"), country("::ffff:9.9.9.9")], [Some("FR"), Some("US")]);
        for bad in [Some("no database"), None] {
            match bad {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            places.refresh();
            assert_eq!(country("127.0.0.1"), Some("FR"), "{bad:?}");
        }
    }

    #[test]
    fn a_file_that_is_no_database_is_named() {
        for (file, why) in [("Cargo.toml", "MaxMind"), ("no-such-file", "No such file")] {
            let error = Database::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).err().unwrap();
            assert!(error.contains("geo.database") && error.contains(file) && error.contains(why), "{error}");
        }
    }
}
