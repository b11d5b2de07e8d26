//! Rallypoint: one master server for many games. See ARCHITECTURE.md for the map; in short:
//!
//! A datagram goes in a straight line: [`net::udp`] → [`net::guard`] → the card's rule in [`protocols`] → effects
//! (a reply, a change) → [`hub`] → [`registry`] → view and deltas → [`web`], [`store`], and the next list. A TCP connection the
//! same, through [`net::tcp`].
//!
//! [`model`] holds the words that all rooms share; [`bytes`], [`text`], [`times`], [`prefix`] and [`cookie`] are what protocols
//! are made of.
//! [`client`] is the other side of the protocols, [`export`] where lists go.
//! [`config`] is the operator's word, [`cli`] the commands, [`app`] puts the rooms together.

pub mod app;
pub mod asker;
pub mod bytes;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod cookie;
pub mod export;
pub mod hub;
pub mod ledger;
pub mod metrics;
pub mod model;
pub mod net;
pub mod prefix;
pub mod protocols;
pub mod registry;
pub mod settings;
pub mod store;
pub mod text;
pub mod times;
pub mod web;
