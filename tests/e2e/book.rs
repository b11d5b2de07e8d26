//! The book: it is built without a warning, every page is in its table of contents, and every link leads somewhere, in the
//! repository and in the built pages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::documents::{Document, documents, root};
use crate::support::*;

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

/// A path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut parts: Vec<_> = Vec::new();
    for part in path.components() {
        match part.as_os_str().to_str().unwrap() {
            ".." => drop(parts.pop().unwrap_or_else(|| panic!("{} leads out", path.display()))),
            "." => {}
            _ => parts.push(part),
        }
    }
    parts.into_iter().collect()
}

fn is_elsewhere(target: &str) -> bool {
    ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme))
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

/// Names of metrics in a query.
fn metrics_in(query: &str) -> impl Iterator<Item = &str> {
    query.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.starts_with("rallypoint_"))
}

#[test]
fn the_picture_of_the_dashboard_has_its_panels_and_its_metrics_exist() {
    let read = |name: &str| std::fs::read_to_string(root().join(name)).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&read("contrib/grafana.json")).unwrap();
    let (picture, server) = (read("docs/dashboard.svg"), Server::start(&[]));
    // What has a label is there once it was counted.
    server.get("/master.json");
    let metrics = until("the list to be counted", || {
        Some(server.get("/metrics")).filter(|metrics| metrics.text().contains("rallypoint_lists_total{"))
    });
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 12);
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(picture.contains(&format!(">{title}<")), "docs/dashboard.svg has no {title}: run scripts/dashboard");
        for target in panel["targets"].as_array().unwrap() {
            for name in metrics_in(target["expr"].as_str().unwrap()) {
                let family = name.trim_end_matches("_bucket").trim_end_matches("_total");
                let is_there = metrics.text().contains(&format!("# TYPE {family} "));
                assert!(is_there, "{title}: there is no {name}");
            }
        }
    }
}
