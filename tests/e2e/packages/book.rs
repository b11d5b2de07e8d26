//! The book: mdbook builds it without a warning, and every link in the built pages leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::documents::{is_elsewhere, normal, root};
use crate::support::*;

/// The values of an attribute in a page.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let start = format!(" {attribute}=\"");
    page.split(&start).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

fn pages_under(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            pages_under(&path, out);
        } else if path.extension().is_some_and(|extension| extension == "html") {
            out.push(path);
        }
    }
}

#[test]
#[ignore = "needs mdbook"]
fn the_book_is_built_without_a_warning_and_its_links_lead_somewhere() {
    let folder = Folder::new("book");
    let folder = std::fs::canonicalize(folder.path()).map(|path| (folder, path)).unwrap();
    let output = Command::new(root().join("scripts/book")).arg(&folder.1).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut paths = Vec::new();
    pages_under(&folder.1, &mut paths);
    // A page for what is not found has links from the root of a site.
    paths.retain(|path| !path.ends_with("404.html"));
    let pages: BTreeMap<PathBuf, String> =
        paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(path, page)| (path, values(page, "id").into_iter().collect())).collect();
    assert!(pages.len() > 30, "{:?}", pages.keys());
    let mut count = 0;
    for (path, page) in &pages {
        let here = path.strip_prefix(&folder.1).unwrap().display();
        for link in values(page, "href").into_iter().chain(values(page, "src")).filter(|link| !is_elsewhere(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if file.is_empty() { path.clone() } else { normal(&path.parent().unwrap().join(file)) };
            assert!(file.is_file(), "{here}: {link}: there is no such file in the book");
            let is_there = anchor.is_empty() || anchors.get(&file).is_some_and(|there| there.contains(anchor));
            assert!(is_there, "{here}: {link}: there is no such place in the book");
            count += 1;
        }
    }
    assert!(count > 500, "{count} links");
    assert!(!pages.values().any(|page| page.contains("{{#include")), "an include was not replaced");
}
