//! A file that is always whole: written under another name in the same folder, then renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

pub fn write(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it is not a file's name"))?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let written = write_whole(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // it may never have been made
    }
    written
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    // Renaming before the bytes are on the disk could leave an empty file after a crash.
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_as_a_whole_and_leaves_nothing_behind() {
        let folder = std::env::temp_dir().join(format!("rallypoint-file-{}", std::process::id()));
        fs::create_dir_all(folder.join("taken")).unwrap();
        let path = folder.join("list.xml");
        for text in ["first", "second"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(write(&folder.join("taken"), "a folder cannot be replaced").is_err());
        assert!(write(Path::new("/"), "no name").is_err());
        assert!(write(&folder.join("nowhere/list.xml"), "no folder").is_err());
        let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["list.xml", "taken"]);
        fs::remove_dir_all(&folder).unwrap();
    }
}
