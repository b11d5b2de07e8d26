//! Links in the documents lead to a file and its heading, and every page is in the book's table of contents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::pages::{Document, documents, is_elsewhere, normal, root};

/// The targets of `[text](target)` and `[name]: target` in a document.
fn links(document: &Document) -> Vec<String> {
    let prose = document.prose();
    // Code is no link.
    let text: String = prose.split('`').step_by(2).collect();
    let inline = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_string()));
    let defined = text.lines().filter(|line| line.starts_with('[')).filter_map(|line| line.split_once("]: "));
    inline.chain(defined.map(|(_, target)| target.to_string())).collect()
}

/// The anchors of a document's headings, as the sites that show repositories make them: mdbook makes the same.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.trim_start().starts_with("```");
        let Some(heading) = line.strip_prefix('#').filter(|_| !is_code) else { continue };
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let mut anchor: String = heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        if let Some(number) =
            (1..).find(|number| !found.contains(&format!("{anchor}-{number}"))).filter(|_| found.contains(&anchor))
        {
            anchor += &format!("-{number}");
        }
        found.insert(anchor);
    }
    found
}

#[test]
fn every_link_in_the_repository_leads_to_a_file_and_its_heading() {
    let documents = documents();
    let anchors: BTreeMap<&str, BTreeSet<String>> =
        documents.iter().map(|document| (document.name.as_str(), anchors(&document.text))).collect();
    let mut count = 0;
    for document in &documents {
        let folder = Path::new(&document.name).parent().unwrap();
        for link in links(document).iter().filter(|link| !is_elsewhere(link)) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = if path.is_empty() { PathBuf::from(&document.name) } else { normal(&folder.join(path)) };
            assert!(root().join(&file).exists(), "{}: {link}: there is no such file", document.name);
            // The book's pages are somewhere else than the repository.
            let is_inside = !document.name.starts_with("docs/") || file.starts_with("docs");
            assert!(is_inside, "{}: {link} is not in the book", document.name);
            let there = anchors.get(file.to_str().unwrap());
            let is_there = anchor.is_empty() || there.is_some_and(|anchors| anchors.contains(anchor));
            assert!(is_there, "{}: {link}: there is no such heading", document.name);
            count += 1;
        }
    }
    assert!(count > 100, "{count} links");
}

#[test]
fn every_page_is_in_the_table_of_contents() {
    let documents = documents();
    let summary = documents.iter().find(|document| document.name == "docs/SUMMARY.md").unwrap();
    let listed: Vec<String> = links(summary).iter().map(|link| format!("docs/{link}")).collect();
    let unique: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice: {listed:?}");
    let pages = documents.iter().map(|document| document.name.as_str());
    let pages: BTreeSet<&str> = pages.filter(|name| name.starts_with("docs/") && *name != summary.name).collect();
    assert_eq!(unique, pages, "docs/SUMMARY.md, and the files of docs/");
}
