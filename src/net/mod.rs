//! Sockets: datagrams in batches, TCP connections, and the guard with bans and limits.

pub mod accounts;
pub mod announcements;
pub mod batch;
pub mod client;
pub mod cores;
pub mod datagram_lists;
pub mod guard;
mod holder;
pub mod lanes;
pub mod listen;
pub mod mirrored;
pub mod moderator;
pub mod network;
pub mod prober;
pub mod proxy;
pub mod quick;
pub mod relief;
pub mod retries;
pub mod session;
pub mod tcp;
pub mod udp;

use tokio::sync::watch;

/// Completes when the program stops.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await; // an error means that the sender is gone, so the program stops
}
