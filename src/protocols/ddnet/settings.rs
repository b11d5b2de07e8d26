//! DDNet's section of the configuration.

use std::sync::Arc;

use super::register::RegisterRule;
use super::serve::ListPage;
use super::{LIFE_MS, LIST_PATH, NAME, REGISTER_PATH};
use crate::protocols::post::PostRoute;
use crate::protocols::section::{Configured, Listener, Route, Surroundings};
use crate::settings::Key;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    pub list: bool,
}

/// A full server of 128 clients fits.
const BODY_BYTES_MAX: usize = 128 << 10;

impl Configured for Settings {
    const KEYS: &'static [Key<Settings>] = KEYS;

    /// None of its own: servers register on every HTTP listener.
    fn listeners(&self) -> Vec<Listener<'_>> {
        Vec::new()
    }

    fn routes(&self, with: &Surroundings) -> Vec<Route> {
        let rule = Box::new(ListPage::new(self.list, with.places.clone()));
        vec![Route { path: LIST_PATH, content_type: "application/json", label: NAME, rule }]
    }

    fn posts(&self) -> Vec<PostRoute> {
        let rule = Arc::new(RegisterRule { is_on: self.list });
        vec![PostRoute { path: REGISTER_PATH, bytes_max: BODY_BYTES_MAX, rule }]
    }

    fn life_max_ms(&self) -> u64 {
        LIFE_MS
    }
}

const KEYS: &[Key<Settings>] = &[Key {
    name: "list",
    doc: "/ddnet/15/register for game servers and /ddnet/15/servers.json for clients, on every HTTP listener.",
    default: "true",
    example: "",
    set: |settings, item| {
        settings.list = item.boolean()?;
        Ok(())
    },
}];
