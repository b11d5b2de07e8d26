//! The Grafana dashboard: its picture has its panels, and the metrics that it asks for exist.

use crate::support::documents::root;
use crate::support::*;

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
