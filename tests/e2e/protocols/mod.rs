//! The protocols over real sockets, each with its own clients, and with real programs of its community.

pub mod a2s;
pub mod bloodmasters;
pub mod cards;
pub mod ddnet;
pub mod families;
pub mod hyperbol;
pub mod iceball;
pub mod luanti;
pub mod masters;
pub mod netpanzer;
pub mod netpanzer_programs;
pub mod pipelining;
pub mod proofs;
pub mod quake3;
pub mod quake3_programs;
pub mod wire;
pub mod xash3d;
pub mod xash3d_programs;
