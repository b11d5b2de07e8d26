//! End-to-end tests with the real program, real sockets and real files. Everything is on loopback, on ports that the system
//! chooses. Tests wait for conditions, with a limit, and never for a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod a2s;
mod admin;
mod announce;
mod api;
mod asking;
mod attackers;
mod attacks;
mod bad_input;
mod bloodmasters;
mod book;
mod browser;
mod budgets;
mod cards;
mod chromium;
mod cluster;
mod cluster_buckets;
mod cluster_time;
mod commands;
mod countries;
mod ddnet;
mod documents;
mod events;
mod examples;
mod families;
mod faults;
mod fetch;
mod first_minutes;
mod forgery;
mod ftp;
mod fuzzing;
mod house;
mod http;
mod hyperbol;
mod iceball;
mod limits;
mod look;
// The load generator of the benchmarks; not everything is needed here.
#[allow(dead_code)]
#[path = "../../benches/speed/load.rs"]
mod load;
mod luanti;
mod machines;
mod map;
mod masters;
mod mirror;
mod moving;
mod nats;
mod netpanzer;
mod no_way_in;
mod notices;
mod openapi;
mod output;
mod owners;
mod package;
mod page_budget;
mod pipelining;
mod plots;
mod prepared;
mod programs;
mod proofs;
mod proxy;
mod pty;
mod quake3;
mod quake3_programs;
mod real_programs;
mod returning;
mod screen;
mod site;
mod store;
mod support;
mod test_now;
mod tls;
mod tools;
mod watch;
mod watching;
mod wire;
mod work;
mod xash3d;
mod xash3d_programs;
