//! What is shipped: the packages, the book, and what the documents show.

mod book;
mod documents;
mod package;
