//! The list for clients: `/ddnet/15/servers.json`.

use std::net::IpAddr;
use std::sync::Arc;

use super::list::ServerList;
use crate::protocols::section::{Places, RouteAnswer, RouteRule};
use crate::registry::view::Renderer;

pub struct ListPage {
    /// Whether the list is enabled.
    is_on: bool,
    list: Arc<dyn Renderer>,
}

impl ListPage {
    pub fn new(is_on: bool, places: Arc<dyn Places>) -> ListPage {
        ListPage { is_on, list: Arc::new(ServerList { places }) }
    }
}

impl RouteRule for ListPage {
    fn get(&self, _peer: IpAddr, _query: &str) -> RouteAnswer {
        match self.is_on {
            true => RouteAnswer::List(self.list.clone()),
            false => RouteAnswer::Refused { status: 404, text: "the DDNet list is disabled on this master" },
        }
    }
}
