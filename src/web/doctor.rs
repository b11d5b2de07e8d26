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
use super::{Home, Site, page_of};
use crate::protocols::CARDS;
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
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Response {
    let query = query.unwrap_or_default();
    let given = |wanted: &str| {
        let mut pairs = form_urlencoded::parse(query.as_bytes());
        pairs.find_map(|(name, value)| (name == wanted).then_some(value))
    };
    let (game, address) = (given("game"), given("address"));
    let (asked, wrong) = match address.is_some().then(|| asked(&query)).transpose() {
        Ok(asked) => (asked, None),
        Err(wrong) => (None, Some(wrong)),
    };
    let record = asked.as_ref().and_then(|asked| site.hub.address_state(asked.address));
    let status = if wrong.is_some() { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    let pages = site.pages.load();
    let variables = Variables {
        title: &pages.doctor.title,
        games: CARDS.iter().map(|card| (card.name, card.title)).collect(),
        game: game.as_deref().or(home).unwrap_or_default(),
        address: address.as_deref().unwrap_or_default(),
        wrong,
        diagnosis: asked.as_ref().map(|asked| diagnose(&site, asked, record.as_ref())),
        json: format!("/api/v1/check?{query}"),
    };
    let mut response = page_of(&Rendered::new(pages.doctor.template.render(&variables)), &headers);
    if status != StatusCode::OK {
        *response.status_mut() = status;
    }
    response
}
