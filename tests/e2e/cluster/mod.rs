//! Several nodes as one, on real NATS servers.

pub mod buckets;
pub mod nodes;
pub mod time;
