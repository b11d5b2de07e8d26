//! The doctor's page: a form, and the diagnosis of the server that was entered.

use std::sync::Arc;

use axum::extract::{Extension, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Serialize;
use url::form_urlencoded;

use super::check::{Diagnosis, asked, diagnose};
use super::filter::Wrong;
use super::template::{PageError, Template};
use super::{Home, Peer, Site, page_of};
use crate::model::Address;
use crate::protocols::{CARDS, card};
use crate::registry::view::Rendered;

/// The page's template, which follows from the configuration.
pub struct Page {
    template: Template,
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
    /// The same diagnosis in JSON.
    json: String,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let source = include_str!("../../assets/doctor.html").to_string();
        let tell = |error| PageError(format!("the doctor's page: {error}"));
        Ok(Page { template: Template::new("doctor.html", source).map_err(tell)?, title: title.into() })
    }
}

/// Without an address, only the form; with an invalid one, the form and an error.
pub async fn page(
    State(site): State<Arc<Site>>,
    Extension(Home(home)): Extension<Home>,
    Extension(Peer(peer)): Extension<Peer>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let given = |wanted: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find_map(|(name, value)| (name == wanted).then_some(value))
    };
    let (game, address) = (given("game"), given("address"));
    let (asked, status, wrong) = match &address {
        None => (None, StatusCode::OK, None),
        Some(_) => match asked(&site, peer.ip(), &query).await {
            Ok(asked) => (Some(asked), StatusCode::OK, None),
            Err((status, wrong)) => (None, status, Some(wrong)),
        },
    };
    let record = asked.as_ref().and_then(|asked| site.hub.address_state(asked.address));
    let named = game.as_deref().or(home).unwrap_or_default();
    // Most visitors ask about a server of their own.
    let port = card(named).map_or(0, |card| card.game_port);
    let own = Address::new(peer.ip().to_canonical(), port).map(|own| own.to_string());
    let pages = site.pages.load();
    let diagnosis = asked.as_ref().map(|asked| diagnose(&site, asked, record.as_ref()));
    let variables = Variables {
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
        json: format!("/api/v1/check?{query}"),
    };
    let mut response = page_of(&Rendered::new(pages.doctor.template.render(&variables)), &headers);
    if status != StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}
