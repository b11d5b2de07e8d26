//! Short conversations over TCP without a runtime: a thread per listener, one listener per core. Most clients send a request, read
//! a list and close, all within a few milliseconds. Such a connection costs little more here than the system calls that it needs.
//!
//! Whatever takes longer goes on as a [task](super::session): a client that is slow, or far away, a list that has to be rendered,
//! an answer that does not fit into the socket's buffer, an announcement, a proxy. So no connection is here for long, and nothing
//! here waits for one.
//!
//! A client that has its answer most likely closes next. That is not urgent, so no thread is woken for it: it is found a little
//! later, when there are other things to do anyway.
//!
//! A thread gets the connections that arrive on its processor: what the system has done for them is in that processor's cache then,
//! and no other one has to be woken. Where more arrive on one processor than its thread manages, the system distributes them.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, Shutdown, recv, sendmsg, shutdown};
use tokio::sync::watch;
use tracing::{debug, warn};

use super::cores::Cores;
use super::guard::Admission;
use super::listen;
use super::session::{self, LINGER_BYTES_MAX, READ_BYTES, StreamService, Talk};
use super::tcp::{self, Entrance};
use super::udp::LOOK_UP;
use crate::protocols::Next;

/// How often a connection is read from before others have their turn.
const READS_MAX: usize = 4;
/// How long a connection is here.
const PATIENCE: Duration = Duration::from_millis(20);
/// When a client that has its answer is expected to have closed, and how often such clients are looked at where nothing else
/// happens.
const CLOSING: Duration = Duration::from_millis(1);
/// How many are waited for at a time.
const WAITING_MAX: usize = 128;
/// How many connections are accepted before those that wait are looked at.
const ACCEPTED_MAX: usize = 16;
/// A thread that finds more connections each time for so long has more than it manages.
const MANAGED: Duration = Duration::from_millis(100);
/// How long it then leaves the connections that arrive on its processor to all threads: twice as long each time, if it has too many
/// again at once.
const LEFT_TO_ALL: Duration = Duration::from_secs(1);
const LEFT_TO_ALL_MAX: Duration = Duration::from_secs(60);

pub struct Worker {
    pub service: Arc<StreamService>,
    pub entrance: Arc<Entrance>,
    /// The processor whose connections it gets, if it shares its port.
    pub processor: Option<usize>,
    /// Where conversations go on that take longer: on each in turn, because all connections may arrive on one processor.
    pub others: Arc<Cores>,
    pub stop: Arc<AtomicBool>,
    pub stop_tasks: watch::Receiver<bool>,
}

/// A connection.
struct Visit {
    stream: TcpStream,
    admission: Arc<Admission>,
    talk: Talk,
    accepted_at: Instant,
    /// When its client was last heard.
    heard_at: Instant,
    /// Whether it has its list.
    is_answered: bool,
    /// How much was read and discarded after the last answer; none before it.
    drained: Option<usize>,
}

/// What becomes of a connection.
enum Then {
    /// Its client has to do something.
    Wait,
    /// It is not for here.
    Leave,
    End,
}

impl Worker {
    /// Serves a listener on its own thread until `stop` is set.
    pub fn start(self, listener: TcpListener) -> io::Result<JoinHandle<()>> {
        let local = listener.local_addr()?;
        let name = format!("{} tcp", self.service.game);
        std::thread::Builder::new().name(name).spawn(move || self.run(&listener, local))
    }

    fn run(&self, listener: &TcpListener, local: SocketAddr) {
        let mut waiting: ArrayVec<Visit, WAITING_MAX> = ArrayVec::new();
        let mut ready: ArrayVec<bool, WAITING_MAX> = ArrayVec::new();
        let mut claim = Claim::default();
        listen::prefer(listener, self.processor);
        while !self.stop.load(Ordering::Relaxed) {
            let has_new = match look(listener, &waiting, &mut ready) {
                Ok(has_new) => has_new,
                Err(error) => {
                    warn!(game = self.service.game, %error, "cannot wait for connections; trying again");
                    std::thread::sleep(PATIENCE);
                    continue;
                }
            };
            self.go_on(&mut waiting, &ready);
            if has_new {
                let is_full = self.accept(listener, local, &mut waiting);
                if let Some(is_held) = claim.turn(is_full, Instant::now()) {
                    listen::prefer(listener, self.processor.filter(|_| is_held));
                }
            }
        }
        waiting.drain(..).for_each(|visit| self.leave(visit));
    }

    /// Goes on with the connections that are ready, and lets those go that have waited for too long.
    fn go_on(&self, waiting: &mut ArrayVec<Visit, WAITING_MAX>, ready: &[bool]) {
        let now = Instant::now();
        for number in (0..waiting.len()).rev() {
            let Some(visit) = waiting.get_mut(number) else { continue };
            let waited = now.saturating_duration_since(visit.heard_at);
            let is_ready = ready.get(number).is_some_and(|is_ready| *is_ready);
            let then = match is_ready || visit.is_answered && waited >= CLOSING {
                true => self.step(visit),
                false => Then::Wait,
            };
            // Elsewhere it is noticed when it is evicted, and when it is idle for too long.
            let is_here_for = now.saturating_duration_since(visit.accepted_at);
            match then {
                Then::Wait if is_here_for < PATIENCE => {}
                Then::Wait | Then::Leave => self.leave(waiting.swap_remove(number)),
                Then::End => self.end(waiting.swap_remove(number)),
            }
        }
    }

    /// Accepts the connections that have arrived. True if there were as many as it takes at a time.
    fn accept(&self, listener: &TcpListener, local: SocketAddr, waiting: &mut ArrayVec<Visit, WAITING_MAX>) -> bool {
        for _ in 0..ACCEPTED_MAX {
            match listener.accept() {
                Ok((stream, peer)) => self.welcome(stream, peer, local, waiting),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => return false,
                Err(error) => {
                    if let Some(pause) = self.entrance.failed(&error) {
                        std::thread::sleep(pause);
                        return false;
                    }
                }
            }
        }
        true
    }

    fn welcome(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        local: SocketAddr,
        waiting: &mut ArrayVec<Visit, WAITING_MAX>,
    ) {
        let settings = self.entrance.settings();
        let is_proxy = settings.proxies.contains(peer.ip());
        let Some(admission) = self.entrance.admit(peer.ip(), is_proxy) else { return };
        if is_proxy {
            return self.leave_proxy(stream, peer, admission);
        }
        // A listener on one address knows it.
        let local = if local.ip().is_unspecified() { stream.local_addr() } else { Ok(local) };
        let Ok(local) = local else { return };
        let talk = self.service.open_connection(peer, local);
        let now = Instant::now();
        let mut visit =
            Visit { stream, admission, talk, accepted_at: now, heard_at: now, is_answered: false, drained: None };
        match self.step(&mut visit) {
            Then::Wait => {
                if let Err(full) = waiting.try_push(visit) {
                    self.leave(full.element());
                }
            }
            Then::Leave => self.leave(visit),
            Then::End => self.end(visit),
        }
    }

    /// Does what can be done at once.
    fn step(&self, visit: &mut Visit) -> Then {
        match self.try_step(visit) {
            Ok(then) => then,
            Err(error) => {
                debug!(peer = %visit.talk.peer, %error, "connection ended");
                Then::End
            }
        }
    }

    fn try_step(&self, visit: &mut Visit) -> io::Result<Then> {
        let mut buffer = [0; READ_BYTES];
        let Visit { stream, admission, talk, heard_at, is_answered, drained, .. } = visit;
        if let Some(drained) = drained {
            return drain(stream, drained, &mut buffer);
        }
        let mut is_all_read = false;
        // A client that always has more to say takes turns with the others elsewhere.
        for _ in 0..READS_MAX {
            if matches!(talk.next, Next::Announce(_) | Next::Quit { .. } | Next::Write { .. }) {
                return Ok(Then::Leave);
            }
            if !talk.out.is_empty() {
                if !self.service.render_ready(talk) || !write(stream, talk)? {
                    return Ok(Then::Leave);
                }
                admission.touch();
                *is_answered = talk.session.lists() > 0;
            }
            if matches!(talk.next, Next::Close) {
                if talk.ended {
                    return Ok(Then::End);
                }
                shutdown(stream.as_raw_fd(), Shutdown::Write)?;
                return drain(stream, drained.insert(0), &mut buffer);
            }
            // Most likely it closes next, and has not done so yet.
            if *is_answered && is_all_read {
                return Ok(Then::Wait);
            }
            let size = match recv(stream.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(size) => size,
                Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Then::Wait),
                Err(error) => return Err(error.into()),
            };
            is_all_read = size < READ_BYTES;
            let read = buffer.get(..size).unwrap_or_default();
            (*heard_at, *is_answered) = (Instant::now(), false);
            talk.next = talk.read(read);
            if matches!(talk.next, Next::Write { .. }) {
                talk.input.extend_from_slice(read);
            }
        }
        Ok(Then::Leave)
    }

    /// The connection has ended.
    fn end(&self, visit: Visit) {
        self.service.count(&visit.talk);
    }

    /// The conversation goes on elsewhere.
    fn leave(&self, visit: Visit) {
        let Visit { stream, admission, talk, .. } = visit;
        let (service, idle) = (self.service.clone(), self.entrance.settings().idle);
        self.spawn(stream, async move |stream| {
            let peer = talk.peer;
            tcp::unless_evicted(peer, &admission, session::converse(stream, talk, admission.clone(), service, idle))
                .await;
        });
    }

    /// The same for a proxy's connection, of which nothing is read.
    fn leave_proxy(&self, stream: TcpStream, peer: SocketAddr, admission: Arc<Admission>) {
        let (entrance, service, stop) = (self.entrance.clone(), self.service.clone(), self.stop_tasks.clone());
        self.spawn(stream, async move |stream| {
            let idle = entrance.settings().idle;
            let serve = |stream, client, admission| session::serve(stream, client, admission, service.clone(), idle);
            tcp::attend(&entrance, stream, peer, admission, stop, &serve).await;
        });
    }

    fn spawn<F>(&self, stream: TcpStream, serve: impl FnOnce(tokio::net::TcpStream) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if stream.set_nonblocking(true).is_err() {
            return;
        }
        let Some(core) = self.others.next() else { return };
        core.spawn(async move {
            if let Ok(stream) = tokio::net::TcpStream::from_std(stream) {
                serve(stream).await;
            }
        });
    }
}

/// Whether a thread claims the connections that arrive on its processor.
#[derive(Default)]
struct Claim {
    /// Since when there were as many as it takes at a time, each time.
    full_at: Option<Instant>,
    /// Since when it has left them to all threads.
    left_at: Option<Instant>,
    /// Since when it claims them again.
    claimed_at: Option<Instant>,
    /// How long it leaves them to all.
    leave_for: Duration,
}

impl Claim {
    /// After it has accepted connections, as many as it takes at a time or fewer: whether it claims them from now on, if that changes.
    fn turn(&mut self, is_full: bool, now: Instant) -> Option<bool> {
        self.full_at = is_full.then(|| self.full_at.unwrap_or(now));
        let has_passed =
            |since: Option<Instant>, time| since.is_some_and(|at| now.saturating_duration_since(at) >= time);
        if self.left_at.is_none() && has_passed(self.full_at, MANAGED) {
            let is_at_once = self.claimed_at.is_some() && !has_passed(self.claimed_at, LEFT_TO_ALL);
            let longer = if is_at_once { (self.leave_for * 2).min(LEFT_TO_ALL_MAX) } else { LEFT_TO_ALL };
            (self.left_at, self.leave_for) = (Some(now), longer);
            Some(false)
        } else if !is_full && has_passed(self.left_at, self.leave_for) {
            (self.left_at, self.claimed_at) = (None, Some(now));
            Some(true)
        } else {
            None
        }
    }
}

/// Waits until there is something to do. Returns whether there is a new connection, and notes which of those that wait have sent
/// something, except for those that have an answer.
fn look(listener: &TcpListener, waiting: &[Visit], ready: &mut ArrayVec<bool, WAITING_MAX>) -> Result<bool, Errno> {
    let timeout = if waiting.is_empty() { LOOK_UP } else { CLOSING };
    let mut places: ArrayVec<PollFd<'_>, { WAITING_MAX + 1 }> = ArrayVec::new();
    places.push(PollFd::new(listener.as_fd(), PollFlags::POLLIN));
    let urgent = waiting.iter().filter(|visit| !visit.is_answered);
    places.extend(urgent.map(|visit| PollFd::new(visit.stream.as_fd(), PollFlags::POLLIN)));
    match poll(&mut places, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::ZERO)) {
        Ok(_) | Err(Errno::EINTR) => {}
        Err(error) => return Err(error),
    }
    let mut is_ready = places.iter().map(|place| place.any().unwrap_or(false));
    let has_new = is_ready.next().unwrap_or(false);
    ready.clear();
    ready.extend(waiting.iter().map(|visit| !visit.is_answered && is_ready.next().unwrap_or(false)));
    Ok(has_new)
}

/// Writes what there is to write. False if the client has to read some of it first.
fn write(stream: &TcpStream, talk: &mut Talk) -> io::Result<bool> {
    while !talk.is_written() {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let written = sendmsg::<()>(stream.as_raw_fd(), &talk.slices(), &[], flags, None);
        match written {
            Ok(size) => talk.written(size),
            Err(Errno::EAGAIN) => return Ok(false),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}

/// Discards what still comes, until the client closes its side.
fn drain(stream: &TcpStream, drained: &mut usize, buffer: &mut [u8]) -> io::Result<Then> {
    while *drained < LINGER_BYTES_MAX {
        match recv(stream.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => break,
            Ok(size) => *drained += size,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(Then::Wait),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Then::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_with_more_connections_than_it_manages_leaves_them_to_all_for_a_while() {
        let (mut claim, start) = (Claim::default(), Instant::now());
        let mut turn = |ms, is_full| claim.turn(is_full, start + Duration::from_millis(ms));
        let (full, fewer) = (true, false);
        assert_eq!([turn(0, full), turn(99, full), turn(100, fewer)], [None; 3], "a burst");
        assert_eq!([turn(200, full), turn(299, full), turn(300, full)], [None, None, Some(false)]);
        assert_eq!([turn(1_299, fewer), turn(2_000, full)], [None; 2], "not for long enough, and too many again");
        assert_eq!([turn(2_001, fewer), turn(2_002, fewer)], [Some(true), None]);
        assert_eq!([turn(9_000, full), turn(9_100, full)], [None, Some(false)]);
        assert_eq!(turn(10_100, fewer), Some(true));
        // Too many again at once, each time.
        let (mut now_ms, mut left_for) = (10_100, Vec::new());
        for _ in 0..8 {
            assert_eq!([turn(now_ms, full), turn(now_ms + 100, full)], [None, Some(false)]);
            let left_ms = now_ms + 100;
            now_ms = (left_ms..).find(|ms| turn(*ms, fewer).is_some()).unwrap();
            left_for.push((now_ms - left_ms) / 1_000);
        }
        assert_eq!(left_for, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!([turn(now_ms + 1_000, full), turn(now_ms + 1_100, full)], [None, Some(false)]);
        assert_eq!(
            [turn(now_ms + 2_099, fewer), turn(now_ms + 2_100, fewer)],
            [None, Some(true)],
            "it had managed for a while"
        );
    }
}
