//! Sockets: datagrams in batches, TCP connections, and the guard at the door.

pub mod batch;
pub mod guard;
pub mod listen;
pub mod tcp;
pub mod udp;
