//! The baseline: the cost of receiving and answering the same datagrams, in batches, without processing them.
//!
//! A separate process with as many sockets and threads as the server. It answers an announcement with as many bytes as the
//! server does, and ignores a handshake.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint::cookie;
use rallypoint::net::batch::BatchSocket;
use rallypoint::net::listen;
use rallypoint::protocols::REPLY_BYTES_MAX;
use rallypoint::protocols::iceball::wire;

/// The argument that makes this program the echo server.
pub const ARGUMENT: &str = "serve-echo";

/// How much longer the server's answer is than the announcement.
const PADDING: [u8; wire::ACCEPTED.len() + cookie::OVERHEAD - wire::BODY] = [0; _];

/// Serves until its parent kills it. Answers each line on stdin with the number of datagrams and batches so far.
pub fn serve() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sockets = listen::udp("127.0.0.1:0".parse().unwrap(), cores, "echo").unwrap();
    println!("{}", sockets[0].local_addr().unwrap());
    let seen = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    for socket in sockets {
        let seen = seen.clone();
        std::thread::spawn(move || echo(BatchSocket::new(socket, 512), &seen));
    }
    for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
        println!("{} {}", seen[0].load(Ordering::Relaxed), seen[1].load(Ordering::Relaxed));
    }
}

fn echo(mut socket: BatchSocket<REPLY_BYTES_MAX>, seen: &[AtomicU64; 2]) {
    loop {
        // SIGSTOP and SIGCONT interrupt it.
        let Ok(count) = socket.receive() else { continue };
        seen[0].fetch_add(count as u64, Ordering::Relaxed);
        seen[1].fetch_add(1, Ordering::Relaxed);
        socket.each(|datagram, reply| {
            if !datagram.bytes.starts_with(&wire::HANDSHAKE) {
                let _ = reply.try_extend_from_slice(&wire::ACCEPTED);
                let _ = reply.try_extend_from_slice(&datagram.bytes[wire::ACCEPTED.len()..]);
                let _ = reply.try_extend_from_slice(&PADDING);
            }
        });
        socket.send_replies();
    }
}

/// A running echo server, killed when dropped.
pub struct Echo {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
    pub address: SocketAddr,
}

impl Echo {
    pub fn start() -> Echo {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.arg(ARGUMENT).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        Echo { child, answers, address: line.trim().parse().unwrap() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Mean number of datagrams per receive call since the start.
    pub fn batch(&mut self) -> f64 {
        self.child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let (datagrams, batches) = line.trim().split_once(' ').unwrap();
        datagrams.parse::<f64>().unwrap() / batches.parse::<f64>().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
