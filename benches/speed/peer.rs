//! A bare loop that a part is compared with: this program itself, as a separate process, so that its processor time can be
//! told from the generator's.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// A running loop, killed when dropped. It has printed the address that it listens on.
pub struct Peer {
    child: Child,
    answers: BufReader<std::process::ChildStdout>,
    pub address: SocketAddr,
}

impl Peer {
    /// Starts the loop with these arguments, and with messages that it is to send.
    pub fn start(arguments: &[&str], messages: &[Vec<u8>]) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = child.stdin.as_mut().unwrap();
        stdin.write_all(&(messages.len() as u32).to_be_bytes()).unwrap();
        for message in messages {
            stdin.write_all(&(message.len() as u32).to_be_bytes()).unwrap();
            stdin.write_all(message).unwrap();
        }
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        Peer { child, answers, address: line.trim().parse().unwrap() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self) -> String {
        self.child.stdin.as_ref().unwrap().write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_string()
    }
}

/// The messages, in the loop's own process.
pub fn messages() -> Vec<Vec<u8>> {
    let mut stdin = std::io::stdin().lock();
    let count = number(&mut stdin);
    let mut message = || {
        let mut bytes = vec![0; number(&mut stdin)];
        stdin.read_exact(&mut bytes).unwrap();
        bytes
    };
    (0..count).map(|_| message()).collect()
}

fn number(from: &mut impl Read) -> usize {
    let mut bytes = [0; 4];
    from.read_exact(&mut bytes).unwrap();
    u32::from_be_bytes(bytes) as usize
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
