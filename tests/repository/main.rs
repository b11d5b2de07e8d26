//! Checks of the repository itself, which need no running program: the rules of the code, the map of its rooms, and what the
//! documents say.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod documents;
mod house;
mod links;
mod map;
mod moving;
mod owners;
// Shared with the end-to-end tests; not everything is needed here.
#[allow(dead_code)]
#[path = "../e2e/support/documents.rs"]
mod pages;
