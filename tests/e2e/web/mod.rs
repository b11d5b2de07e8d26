//! HTTP: the API, the event stream, the page in a real browser, TLS and proxies.

pub mod api;
pub mod browser;
pub mod countries;
pub mod dashboard;
pub mod events;
pub mod http;
pub mod look;
pub mod openapi;
pub mod page_budget;
pub mod plots;
pub mod prepared;
pub mod proxy;
pub mod returning;
pub mod site;
pub mod test_now;
pub mod tls;
