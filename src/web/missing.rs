//! What people get where there is nothing: a page like the others. Programs get a line of text.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use super::page_of;
use super::template::{PageError, Template};
use crate::registry::view::Rendered;

pub struct Page {
    template: Template,
    title: String,
}

#[derive(Serialize)]
struct Variables<'a> {
    title: &'a str,
    heading: &'a str,
    text: &'a str,
}

impl Page {
    pub fn new(title: &str) -> Result<Page, PageError> {
        let source = include_str!("../../assets/missing.html").to_string();
        let tell = |error| PageError(format!("the page for what is missing: {error}"));
        Ok(Page { template: Template::new("missing.html", source).map_err(tell)?, title: title.into() })
    }
}

/// Whether a browser shows the answer to a person.
pub fn is_for_people(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(header::ACCEPT).iter();
    accepts.filter_map(|accept| accept.to_str().ok()).any(|accept| accept.contains("text/html"))
}

pub fn page(page: &Page, heading: &str, text: &str, headers: &HeaderMap) -> Response {
    let body = page.template.render(&Variables { title: &page.title, heading, text });
    let mut response = page_of(&Rendered::new(body), headers);
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}
