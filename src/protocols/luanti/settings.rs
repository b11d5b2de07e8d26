//! Luanti's section of the configuration.

use std::sync::Arc;

use super::list::ServerRows;
use super::serve::{Announce, GeoPage, LIFE_MS, ListPage};
use super::{ANNOUNCE_PATH, LIST_PATH, NAME};
use crate::protocols::post::PostRoute;
use crate::protocols::section::{Configured, Listener, Route, Surroundings};
use crate::settings::Key;

/// Enough for a form with 8192 characters of any kind.
const FORM_BYTES_MAX: usize = 64 << 10;
const JSON: &str = "application/json";

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub list: bool,
}

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    /// None of its own: the list is on every HTTP listener.
    fn listeners(&self) -> Vec<Listener<'_>> {
        Vec::new()
    }

    fn routes(&self, with: &Surroundings) -> Vec<Route> {
        let rows = Arc::new(ServerRows { places: with.places.clone() });
        let list = |path| {
            let rule = Box::new(ListPage { is_on: self.list, rows: rows.clone() });
            Route { path, content_type: JSON, label: NAME, rule }
        };
        let place = Box::new(GeoPage { is_on: self.list, places: with.places.clone() });
        vec![
            list(LIST_PATH),
            list("/list.json"),
            Route { path: "/geoip", content_type: JSON, label: NAME, rule: place },
        ]
    }

    fn posts(&self) -> Vec<PostRoute> {
        let rule = Arc::new(Announce { is_on: self.list });
        vec![PostRoute { path: ANNOUNCE_PATH, bytes_max: FORM_BYTES_MAX, rule }]
    }

    fn life_max_ms(&self) -> u64 {
        LIFE_MS
    }
}

const KEYS: &[Key<Settings>] = &[Key {
    name: "list",
    doc: "POST /announce and GET /list on every HTTP listener: serverlist_url of Luanti's servers and clients.",
    default: "true",
    example: "",
    set: |settings, item| {
        settings.list = item.boolean()?;
        Ok(())
    },
}];
