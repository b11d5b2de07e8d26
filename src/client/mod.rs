//! The other side of the protocols, driven over sockets: announcing to masters, asking game servers.

pub mod announce;
pub mod ask_one;
pub mod url;
