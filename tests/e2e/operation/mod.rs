//! What an operator relies on: administration, the database, webhooks, and following other masters.

pub mod admin;
pub mod mirror;
pub mod notices;
pub mod store;
