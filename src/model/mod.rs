//! The words that every room shares, as plain data: `time`, where a server is (`address`), which game it is of (`game`), how it
//! was proven (`proof`), what it says of itself (`facts`), how it is kept (`server`), and what may be done to the registry
//! (`change`).

mod address;
mod change;
mod facts;
mod game;
mod proof;
mod server;
mod time;

pub use address::Address;
pub use change::{Announce, Change, Gone, NamedServer, Overrides, RemoteServer, RemoteState};
pub use facts::{Details, Facts, HeartbeatKey, HeartbeatKeys, Player, VersionText};
pub use game::{Carried, GAME_BYTES_MAX, Game, MASTER};
pub use proof::{Proof, Strength};
pub use server::{Server, Texts, round_trip};
pub use time::{Now, SharedTime};
