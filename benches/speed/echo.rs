//! The baseline: the cost of receiving and answering the same datagrams, in batches, without processing them.
//!
//! A separate process with as many sockets and threads as the server. It answers an announcement with as many bytes as the
//! server does, and ignores everything else.

use std::io::BufRead;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint::net::batch::BatchSocket;
use rallypoint::net::listen;
use rallypoint::protocols::REPLY_BYTES_MAX;

use crate::load::Dialect;
use crate::peer::{self, Peer};

/// The argument that makes this program the echo server.
pub const ARGUMENT: &str = "serve-echo";

/// Serves until its parent kills it. Answers each line on stdin with the number of datagrams and batches so far.
pub fn serve(dialect: &str) {
    peer::messages();
    let dialect = Dialect::ALL.into_iter().find(|known| format!("{known:?}") == dialect).unwrap();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sockets = listen::udp("127.0.0.1:0".parse().unwrap(), cores, "echo").unwrap();
    println!("{}", sockets[0].local_addr().unwrap());
    let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for socket in sockets {
        let seen = seen.clone();
        std::thread::spawn(move || echo(dialect, BatchSocket::new(socket, 512), &seen));
    }
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        println!("{} {}", seen[0].load(Ordering::Relaxed), seen[1].load(Ordering::Relaxed));
    }
}

fn echo(dialect: Dialect, mut socket: BatchSocket<REPLY_BYTES_MAX>, seen: &[AtomicU64; 2]) {
    loop {
        // SIGSTOP and SIGCONT interrupt it.
        let Ok(count) = socket.receive() else { continue };
        seen[0].fetch_add(count as u64, Ordering::Relaxed);
        seen[1].fetch_add(1, Ordering::Relaxed);
        socket.each(|datagram, reply| {
            if datagram.bytes.starts_with(dialect.announcement_start()) {
                dialect.challenge(datagram.bytes, reply);
            }
        });
        socket.send_replies();
    }
}

/// A running echo server.
pub struct Echo(Peer);

impl Echo {
    pub fn start(dialect: Dialect) -> Echo {
        Echo(Peer::start(&[ARGUMENT, &format!("{dialect:?}")], &[]))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Mean number of datagrams per receive call since the start.
    pub fn batch(&mut self) -> f64 {
        let answer = self.0.ask();
        let (datagrams, batches) = answer.split_once(' ').unwrap();
        datagrams.parse::<f64>().unwrap() / batches.parse::<f64>().unwrap()
    }
}
