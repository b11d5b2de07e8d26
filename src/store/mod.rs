//! What outlives a moment or a machine: [`cluster`] makes many nodes one, on NATS JetStream's key-value store. The rest
//! are its pure parts: [`record`] what is put, [`share`] who asks whom, [`outbox`] what has to be put, [`keyring`] the
//! cookie keys.

mod buckets;
pub mod cluster;
pub mod keyring;
pub mod outbox;
pub mod record;
mod session;
pub mod share;
#[cfg(test)]
mod simulation;
