//! Where lists go.

pub mod ftp;
