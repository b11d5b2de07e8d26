//! The doctor's page: a form, the diagnosis of the server that was entered, and its test.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use url::form_urlencoded;

use super::check::{Asked, Caller, Diagnosis, asked, diagnose};
use super::door::Through;
use super::filter::Wrong;
use super::template::{PageError, Template};
use super::test_now::{self, Piece, Refused, TestResult, TestStep};
use super::{HTML, Home, Peer, Site, page_of, reply, set_policy};
use crate::model::Address;
use crate::protocols::{CARDS, card};
use crate::registry::view::Rendered;

/// Where the page of a test has its steps.
const STEPS: &str = "<!-- steps -->";

/// The page's template, which follows from the configuration.
pub struct Page {
    template: Template,
    /// The steps of a test, and its result.
    tested: Template,
    title: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    /// The names and titles of the games that have a card.
    games: Vec<(&'a str, &'a str)>,
    /// What was entered.
    game: &'a str,
    address: &'a str,
    wrong: Option<Wrong>,
    /// The game that was probably meant, and the address of this page with it.
    meant: Option<(String, String)>,
    diagnosis: Option<Diagnosis<'a>>,
    /// Whether the visitor's own address was entered, which can be tested.
    own: bool,
    /// The server that is being tested.
    testing: Option<String>,
    /// This page, with what was entered.
    again: String,
    /// The same diagnosis in JSON.
    json: String,
}

/// A piece of a test: one of both.
#[derive(Default, Serialize)]
struct Tested<'a> {
    step: Option<&'a TestStep>,
    result: Option<&'a TestResult>,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let tell = |error| PageError(format!("the doctor's page: {error}"));
        let template = |name, source: &str| Template::new(name, source.to_string()).map_err(tell);
        Ok(Page {
            template: template("doctor.html", include_str!("../../assets/doctor.html"))?,
            tested: template("tested.html", include_str!("../../assets/tested.html"))?,
            title: title.into(),
        })
    }
}

/// Who visits the page, and what was entered.
struct Visit<'a> {
    home: Option<&'static str>,
    client: IpAddr,
    query: &'a str,
}

/// Without an address, only the form; with an invalid one, the form and an error.
pub async fn page(
    State(site): State<Arc<Site>>,
    Extension(Home(home)): Extension<Home>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(through): Extension<Through>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let visit = Visit { home, client: peer.ip(), query: &query };
    let caller = Caller { client: peer.ip(), through, headers: &headers };
    let (asked, status, wrong) = match visit.given("address") {
        None => (None, StatusCode::OK, None),
        Some(_) => match asked(&site, caller, &query).await {
            Ok(asked) => (Some(asked), StatusCode::OK, None),
            Err((status, wrong)) => (None, status, Some(wrong)),
        },
    };
    let page = visit.page(&site, asked.as_ref(), wrong, None);
    let mut response = page_of(&Rendered::new(page), &headers);
    if status != StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}

/// Tests the server that was entered: the page is sent step by step.
pub async fn test(
    State(site): State<Arc<Site>>,
    Extension(Home(home)): Extension<Home>,
    Extension(Peer(peer)): Extension<Peer>,
    Extension(through): Extension<Through>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let visit = Visit { home, client: peer.ip(), query: &query };
    let caller = Caller { client: peer.ip(), through, headers: &headers };
    let test = match test_now::begin(&site, caller, &query).await {
        Ok(test) => test,
        Err(refused) => {
            let (status, wrong, after_s) = match refused {
                Refused::Wrong(status, wrong) => (status, wrong, None),
                Refused::Later(error, after_s) => {
                    (StatusCode::TOO_MANY_REQUESTS, Wrong { error, parameter: None }, Some(after_s))
                }
            };
            let mut response = page_of(&Rendered::new(visit.page(&site, None, Some(wrong), None)), &headers);
            *response.status_mut() = status;
            if let Some(after_s) = after_s {
                reply::set(&mut response, header::RETRY_AFTER, &after_s.to_string());
            }
            return response;
        }
    };
    let page = visit.page(&site, None, None, Some(test.address()));
    let (head, tail) = page.split_once(STEPS).unwrap_or((&page, ""));
    let (head, tail) = (Bytes::copy_from_slice(head.as_bytes()), Bytes::copy_from_slice(tail.as_bytes()));
    let mut response = Response::new(test.body(site, head, piece, tail));
    reply::set(&mut response, header::CONTENT_TYPE, HTML);
    reply::set(&mut response, header::CACHE_CONTROL, "no-store");
    set_policy(&mut response);
    response
}

/// A piece of a test as HTML.
fn piece(site: &Site, piece: &Piece) -> String {
    let tested = match piece {
        Piece::Step(step) => Tested { step: Some(step), result: None },
        Piece::Result(result) => Tested { step: None, result: Some(result) },
        Piece::Alive => return "\n".into(),
    };
    site.pages.load().doctor.tested.render(&tested)
}

impl Visit<'_> {
    fn given(&self, wanted: &str) -> Option<std::borrow::Cow<'_, str>> {
        let mut pairs = form_urlencoded::parse(self.query.as_bytes());
        pairs.find_map(|(name, value)| (name == wanted).then_some(value))
    }

    fn page(&self, site: &Site, asked: Option<&Asked>, wrong: Option<Wrong>, testing: Option<Address>) -> String {
        let (game, address) = (self.given("game"), self.given("address"));
        let client = self.client.to_canonical();
        let record = asked.and_then(|asked| site.hub.address_state(asked.address));
        let named = game.as_deref().or(self.home).unwrap_or_default();
        // Most visitors ask about a server of their own.
        let port = card(named).map_or(0, |card| card.game_port);
        let own = Address::new(client, port).map(|own| own.to_string());
        let pages = site.pages.load();
        let diagnosis = asked.map(|asked| diagnose(site, asked, record.as_ref()));
        pages.doctor.template.render(&Variables {
            title: &pages.doctor.title,
            games: CARDS.iter().map(|card| (card.name, card.title)).collect(),
            game: named,
            address: address.as_deref().or(own.as_deref()).unwrap_or_default(),
            meant: diagnosis.as_ref().and_then(|diagnosis| diagnosis.did_you_mean.as_ref()).map(|game| {
                let mut query = form_urlencoded::Serializer::new(String::new());
                query.append_pair("game", game).append_pair("address", address.as_deref().unwrap_or_default());
                (game.clone(), format!("/doctor?{}", query.finish()))
            }),
            wrong,
            diagnosis,
            own: asked.is_some_and(|asked| asked.address.ip() == client),
            testing: testing.map(|address| address.to_string()),
            again: format!("/doctor?{}", self.query),
            json: format!("/api/v1/check?{}", self.query),
        })
    }
}
