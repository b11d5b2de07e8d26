//! The Quake III family: Quake III Arena, OpenArena, Xonotic, Nexuiz, Warsow, Tremulous and others whose masters speak
//! dpmaster's protocol. This is its wire format, in both directions; there is no card yet, so nothing serves it.

pub mod challenge;
pub mod info;
pub mod packets;
pub mod tags;
pub mod wire;
