//! The commands, as a person at a terminal and as a script runs them.

pub mod announce;
pub mod asking;
pub mod examples;
pub mod fetch;
pub mod first_minutes;
pub mod ftp;
pub mod list_query_export;
pub mod output;
pub mod serve;
pub mod watch;
