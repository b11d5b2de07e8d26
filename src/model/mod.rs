//! The data types that all rooms share: `time`, a server's `address` and `game`, how its address was verified (`proof`), what
//! it reports about itself (`facts`, `pairs`), its entry in the list (`server`), which `fields` of it differ, and changes to the registry (`change`),
//! and how many bytes it takes (`weight`); where an address leads (`reach`), and which characters nobody sees (`invisible`).

mod address;
mod change;
mod facts;
mod fields;
mod game;
mod invisible;
mod pairs;
mod proof;
mod reach;
mod server;
mod time;
mod weight;

pub use address::Address;
pub use change::{Announce, Change, Gone, Mirrored, NamedServer, Overrides, RemoteServer, RemoteState};
pub use facts::{Details, Facts, Player, VersionText};
pub use fields::Fields;
pub use game::{Carried, GAME_BYTES_MAX, Game, MASTER};
pub use invisible::is_invisible;
pub use pairs::{GameRules, HeartbeatKeys, Pairs};
pub use proof::{Proof, Strength};
pub use reach::Reach;
pub use server::{Origin, Server, Silence, Texts, round_trip};
pub use time::{Now, SharedTime};
