//! Rallypoint: one master server for many games. ARCHITECTURE.md has the details; in short:
//!
//! A datagram takes one path: [`net::udp`] → [`net::guard`] → the protocol's rules in [`protocols`] → effects (a reply, a
//! change) → [`hub`] → [`registry`] → view and deltas → [`web`], [`store`], and the next list. So does a TCP connection, through
//! [`net::tcp`].
//!
//! [`model`] holds the data types that all rooms share; [`bytes`], [`text`], [`times`], [`prefix`] and [`cookie`] are building
//! blocks for protocols. [`client`] is the client side of the protocols, [`mirror`] follows other masters with it, [`notices`] posts to webhooks, [`export`] writes lists to files. [`config`] reads the
//! configuration, [`cli`] has the commands, [`app`] puts the rooms together.

pub mod admin;
pub mod app;
pub mod asker;
pub mod budget;
pub mod bytes;
pub mod cli;
pub mod client;
pub mod cluster;
pub mod config;
pub mod cookie;
pub mod encodings;
pub mod export;
pub mod geo;
pub mod hub;
pub mod ledger;
pub mod metrics;
pub mod mirror;
pub mod model;
pub mod moderation;
pub mod net;
pub mod notices;
pub mod prefix;
pub mod protocols;
pub mod registry;
pub mod settings;
pub mod store;
pub mod text;
pub mod times;
pub mod web;
