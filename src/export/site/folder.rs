//! The folder of a copy. Each file is replaced as a whole, with its compressed siblings (`.gz`, `.br`, `.zst`, where they are
//! smaller), and only if it changed. Nothing outside the folder is written: no folder in it may be a symbolic link, and a
//! link in the place of a file is replaced.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::File;
use crate::encodings;
use crate::export::file::Draft;

/// Longer files are compressed faster, so that a long list can be copied every few seconds.
const GOOD_BYTES_MAX: usize = 1 << 20;

pub struct Folder {
    root: PathBuf,
    /// The files that are known to be complete, and what is in them.
    written: HashMap<String, u64>,
    hashes: RandomState,
    /// The folders in it without temporary files of killed processes.
    swept: HashSet<PathBuf>,
}

type Failed = (PathBuf, io::Error);

impl Folder {
    pub fn open(root: &Path) -> io::Result<Folder> {
        fs::create_dir_all(root)?;
        let root = root.to_path_buf();
        Ok(Folder { root, written: HashMap::new(), hashes: RandomState::new(), swept: HashSet::new() })
    }

    /// The names of the JSON files in one of its folders, sorted, without their ending.
    pub fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.root.join(folder)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".json")).map(String::from));
        }
        names.sort();
        Ok(names)
    }

    /// Replaces the files that changed; returns how many did. All of them are on the disk under temporary names before the
    /// first is renamed, so that a full disk leaves the old copy as it is.
    pub fn replace(&mut self, files: &[File]) -> Result<usize, Failed> {
        let mut changes = Vec::new();
        let mut changed = Vec::new();
        for (name, bytes) in files {
            let hash = self.hashes.hash_one(bytes);
            let path = self.root.join(name);
            if self.written.get(name) == Some(&hash) && is_file(&path) {
                continue;
            }
            self.make_folders(Path::new(name))?;
            let before = changes.len();
            for (ending, bytes) in variants(bytes) {
                let path = self.root.join(format!("{name}{ending}"));
                let change = Change::of(&path, bytes.as_deref()).map_err(|error| (path, error))?;
                changes.extend(change);
            }
            changed.push((name, hash, changes.len() > before));
        }
        // What fails half-way is written again in the next round.
        changed.iter().for_each(|(name, _, _)| _ = self.written.remove(*name));
        for change in changes {
            change.apply()?;
        }
        let count = changed.iter().filter(|(_, _, is_new)| *is_new).count();
        self.written.extend(changed.into_iter().map(|(name, hash, _)| (name.clone(), hash)));
        Ok(count)
    }

    /// Makes the folders above a file, and removes what a killed process left in them.
    fn make_folders(&mut self, name: &Path) -> Result<(), Failed> {
        let mut path = self.root.clone();
        let parents = name.parent().into_iter().flat_map(Path::components);
        for part in parents {
            path.push(part);
            let made = match fs::symlink_metadata(&path) {
                Ok(metadata) if metadata.is_dir() => Ok(()),
                Ok(_) => Err(io::Error::new(ErrorKind::NotADirectory, "is not a folder")),
                Err(error) if error.kind() == ErrorKind::NotFound => fs::create_dir(&path),
                Err(error) => Err(error),
            };
            made.map_err(|error| (path.clone(), error))?;
        }
        if self.swept.insert(path.clone()) {
            sweep(&path).map_err(|error| (path, error))?;
        }
        Ok(())
    }
}

/// Removes temporary files, which a web server would serve and which would add up.
fn sweep(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(Draft::is_temporary) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// A file and its siblings: the ending of the name, and the bytes; None where there is to be no such file.
fn variants(bytes: &[u8]) -> [(&'static str, Option<Vec<u8>>); 4] {
    let (gzip, brotli, zstd) = if bytes.len() < GOOD_BYTES_MAX { (9, 9, 12) } else { (5, 4, 3) };
    let smaller = |encoded: io::Result<Vec<u8>>| encoded.ok().filter(|encoded| encoded.len() < bytes.len());
    [
        (".gz", smaller(encodings::gzip(&[bytes], gzip, Vec::new()))),
        (".br", smaller(encodings::brotli(&[bytes], brotli, Vec::new()))),
        (".zst", smaller(encodings::zstd(&[bytes], zstd, Vec::new()))),
        ("", Some(bytes.to_vec())),
    ]
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

enum Change {
    Replace(PathBuf, Draft),
    Remove(PathBuf),
}

impl Change {
    /// What has to happen so that the path has these bytes; None: nothing.
    fn of(path: &Path, bytes: Option<&[u8]>) -> io::Result<Option<Change>> {
        let old = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            old => Some(old?),
        };
        if old.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::Error::new(ErrorKind::IsADirectory, "is a folder"));
        }
        let Some(bytes) = bytes else { return Ok(old.map(|_| Change::Remove(path.to_path_buf()))) };
        let is_same_size = old.is_some_and(|old| old.is_file() && old.len() == bytes.len() as u64);
        if is_same_size && fs::read(path)? == bytes {
            return Ok(None);
        }
        let mut draft = Draft::of(path)?;
        draft.file.write_all(bytes)?;
        draft.file.sync_all()?;
        Ok(Some(Change::Replace(path.to_path_buf(), draft)))
    }

    fn apply(self) -> Result<(), Failed> {
        match self {
            Change::Replace(path, draft) => draft.keep().map_err(|error| (path, error)),
            Change::Remove(path) => fs::remove_file(&path).map_err(|error| (path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("rallypoint-site-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn files(text: &str) -> Vec<File> {
        vec![("a.json".into(), text.into()), ("b/c/d.json".into(), "a long text ".repeat(100).into())]
    }

    #[test]
    fn only_what_changed_is_written_and_siblings_follow_their_file() {
        let root = place("changed");
        let mut folder = Folder::open(&root).unwrap();
        let long = "a list that repeats itself ".repeat(50);
        assert_eq!(folder.replace(&files(&long)).unwrap(), 2);
        assert_eq!(folder.replace(&files(&long)).unwrap(), 0, "nothing changed");
        assert_eq!(folder.names("b/c").unwrap(), ["d"]);
        assert_eq!(folder.names("nowhere").unwrap(), [""; 0]);
        let sibling = root.join("a.json.gz");
        assert!(["gz", "br", "zst"].iter().all(|ending| root.join(format!("a.json.{ending}")).exists()));
        // Another process finds the same files, and repairs what is not right.
        fs::write(&sibling, "damaged").unwrap();
        fs::write(root.join(".a.json.123.tmp"), "left by a killed process").unwrap();
        let mut folder = Folder::open(&root).unwrap();
        assert_eq!(folder.replace(&files(&long)).unwrap(), 1);
        assert_ne!(fs::read(&sibling).unwrap(), b"damaged");
        fs::remove_file(root.join("a.json")).unwrap();
        assert_eq!(folder.replace(&files(&long)).unwrap(), 1, "somebody removed it");
        assert_eq!(folder.replace(&files("short")).unwrap(), 1);
        assert!(!sibling.exists(), "a sibling that is not smaller would be older than its file");
        assert_eq!(fs::read(root.join("a.json")).unwrap(), b"short");
        assert_eq!(folder.replace(&files("other")).unwrap(), 1, "as long as before, but another text");
        assert_eq!(fs::read(root.join("a.json")).unwrap(), b"other");
        assert_eq!(fs::read_dir(&root).unwrap().count(), 2, "no temporary files");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn nothing_is_written_through_links_and_nothing_changes_before_everything_is_on_the_disk() {
        let (root, outside) = (place("links"), place("outside"));
        let mut folder = Folder::open(&root).unwrap();
        fs::create_dir_all(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        symlink(&outside, root.join("b")).unwrap();
        let (path, error) = folder.replace(&files("new")).unwrap_err();
        assert_eq!((path, error.kind()), (root.join("b"), ErrorKind::NotADirectory));
        assert!(!root.join("a.json").exists(), "the first file was not renamed either");
        fs::remove_file(root.join("b")).unwrap();
        symlink(outside.join("kept"), root.join("a.json")).unwrap();
        assert_eq!(folder.replace(&files("new")).unwrap(), 2);
        assert!(is_file(&root.join("a.json")));
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
        fs::remove_file(root.join("a.json")).unwrap();
        fs::create_dir(root.join("a.json")).unwrap();
        assert_eq!(folder.replace(&files("newer")).unwrap_err().1.kind(), ErrorKind::IsADirectory);
        fs::remove_dir_all(&root).unwrap();
        fs::remove_dir_all(&outside).unwrap();
    }
}
