//! Bloodmasters' section of the configuration.

use super::serve::{LIFE_MS, ListPage};
use super::{LIST_PATH, NAME};
use crate::protocols::section::{Configured, Listener, Route, Surroundings};
use crate::settings::Key;

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
        let rule = Box::new(ListPage::new(self.list, &with.bans));
        vec![Route { path: LIST_PATH, content_type: "text/plain; charset=utf-8", label: NAME, rule }]
    }

    fn life_max_ms(&self) -> u64 {
        LIFE_MS
    }
}

const KEYS: &[Key<Settings>] = &[Key {
    name: "list",
    doc: "/bloodmasterslist.php on every HTTP listener, for game servers and launchers.",
    default: "true",
    example: "",
    set: |settings, item| {
        settings.list = item.boolean()?;
        Ok(())
    },
}];
