//! Whole answers to the requests that come most: lists that many clients share. Head and body are made once per change of the
//! list and encoding, by the functions that make all answers, so that [`super::fast`] only has to send them.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use axum::response::Response;

use super::reply::{self, Encoded, Fresh};
use super::{JSON, Peer, Site, api, cors, http};
use crate::hub::Refusal;
use crate::metrics::{Counter, Metrics};
use crate::protocols::section::{Route, RouteAnswer};
use crate::registry::view::{Body, Rendered, Renderer, VARIANTS};

/// A path whose list all clients share. Requests with parameters are not for this.
pub struct Target {
    pub path: &'static str,
    /// Its label in metrics, and what counts its lists there.
    label: &'static str,
    served: OnceLock<Counter>,
    pub renderer: Arc<dyn Renderer>,
    content_type: &'static str,
    fresh: Fresh,
    last: ArcSwapOption<Prepared>,
}

impl Target {
    fn new(
        (path, label): (&'static str, &'static str),
        renderer: Arc<dyn Renderer>,
        content_type: &'static str,
        fresh: Fresh,
    ) -> Target {
        Target { path, label, served: OnceLock::new(), renderer, content_type, fresh, last: ArcSwapOption::empty() }
    }

    /// The API's list of all servers.
    pub fn api(renderer: Arc<dyn Renderer>) -> Target {
        Target::new((api::LIST_PATH, api::LIST_LABEL), renderer, JSON, api::LIST_FRESH)
    }

    /// A protocol's list, if its path has one for everybody.
    pub fn of(route: &Route) -> Option<Target> {
        let anybody = [192, 0, 2, 1].into();
        match route.rule.get(anybody, "") {
            RouteAnswer::List(renderer) if !route.rule.is_for_one() && renderer.is_common() => {
                Some(Target::new((route.path, route.label), renderer, route.content_type, Fresh::Ask))
            }
            _ => None,
        }
    }

    /// Counts a list that is served.
    pub fn count(&self, metrics: &Metrics) {
        self.served.get_or_init(|| metrics.lists_served(self.label)).inc();
    }

    /// The answers of the newest list, if there are any. Only for a short look.
    pub fn newest(&self, site: &Site) -> Option<Newest> {
        let version = Some(self.renderer.version(&site.hub.view_guard()));
        let last = self.last.load();
        last.as_ref().is_some_and(|last| last.list.version == version).then_some(Newest(last))
    }

    /// The answers of the newest list, or of a slightly older one: see [`crate::hub::Hub::list`].
    pub async fn prepared(&self, site: &Site, peer: SocketAddr) -> Result<Arc<Prepared>, Refusal> {
        if let Some(last) = self.newest(site).and_then(|Newest(last)| arc_swap::Guard::into_inner(last)) {
            return Ok(last);
        }
        // Perhaps an older one, which the next request must not take for the newest.
        let list = site.render(&self.renderer, Peer(peer)).await?;
        if let Some(same) = self.last.load_full().filter(|last| Arc::ptr_eq(&last.list, &list)) {
            return Ok(same);
        }
        let prepared = Arc::new(Prepared::new(list));
        // A large list is the hub's alone, which frees it when nobody asks for it, or when memory is short.
        let may_pin = site.hub.held().may_pin(prepared.list.body.len());
        self.last.store(Some(prepared.clone()).filter(|prepared| may_pin && !prepared.list.is_large()));
        Ok(prepared)
    }

    /// The answer in the encoding that the client accepts, by its number, or as it is if that is of no use.
    pub async fn form<'p>(
        &self,
        prepared: &'p Prepared,
        encoding: Option<usize>,
        site: &Site,
        peer: SocketAddr,
    ) -> &'p Form {
        let Prepared { list, plain, encoded, .. } = prepared;
        if let Some(number) = encoding
            && let Some(place) = encoded.get(number)
        {
            if let Some(form) = place.get() {
                return form;
            }
            site.encode(list, self.renderer.is_common(), Peer(peer), encoding).await;
            // None while another client has a long one encoded: this one gets it as it is.
            if let Some(encoded) = reply::encoded(list, encoding) {
                return place.get_or_init(|| Form::new(self, list, Some(encoded)));
            }
        }
        plain.get_or_init(|| Form::new(self, list, None))
    }
}

/// Answers that are not shared: taking a share and giving it back would make all cores write to one place.
pub struct Newest(arc_swap::Guard<Option<Arc<Prepared>>>);

impl Newest {
    /// The answer in the encoding that the client accepts, by its number, if it has been made.
    pub fn form(&self, encoding: Option<usize>) -> Option<&Form> {
        let prepared = self.0.as_ref()?;
        encoding.map_or(Some(&prepared.plain), |number| prepared.encoded.get(number))?.get()
    }
}

/// A list, and the answers that were made of it.
pub struct Prepared {
    list: Arc<Rendered>,
    plain: OnceLock<Form>,
    encoded: [OnceLock<Form>; VARIANTS],
}

impl Prepared {
    fn new(list: Arc<Rendered>) -> Prepared {
        Prepared { list, plain: OnceLock::new(), encoded: Default::default() }
    }
}

/// A list in one encoding. Its heads end before the date.
pub struct Form {
    pub etag: String,
    /// The head of the whole answer.
    pub whole: Box<[u8]>,
    /// The head for a client that has the list already.
    pub not_modified: Box<[u8]>,
    pub body: Body,
}

impl Form {
    fn new(target: &Target, list: &Rendered, encoded: Option<Encoded>) -> Form {
        let etag = reply::etag(list, encoded.as_ref());
        let head = |is_known: bool| {
            let response = reply::response(list, target.content_type, encoded.clone(), &etag, is_known, target.fresh);
            head(response)
        };
        let (whole, not_modified) = (head(false), head(true));
        Form { etag, whole, not_modified, body: encoded.map_or_else(|| list.body.clone(), |(_, body)| body) }
    }
}

/// A head as hyper writes it, but for what depends on the connection, and the date, which it writes last.
fn head(mut response: Response) -> Box<[u8]> {
    cors::allow_reading(&mut response);
    http::finish(&mut response);
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in response.headers() {
        push_title_case(&mut head, name.as_str());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.into()
}

fn push_title_case(head: &mut Vec<u8>, name: &str) {
    let mut before = b'-';
    for byte in name.bytes() {
        head.push(if before == b'-' { byte.to_ascii_uppercase() } else { byte });
        before = byte;
    }
}
