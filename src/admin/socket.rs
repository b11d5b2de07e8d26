//! The socket's file, and the conversations over it.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{Uid, User};
use serde_json::{Value, json};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::answer::Answers;
use super::{REQUEST_BYTES_MAX, Request};
use crate::net::stopped;

/// Conversations at once.
const CLIENTS_MAX: usize = 16;
/// How long a client may take to send its request, and to read the answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failed accept.
const AFTER_ERROR: Duration = Duration::from_millis(100);
const BACKLOG: i32 = 16;
/// Only the owner may connect, or lock.
const MODE: u32 = 0o600;

/// The listening socket. Its file is removed when this is dropped, if it is still this one.
pub struct AdminSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and number of the file.
    identity: (u64, u64),
}

impl AdminSocket {
    /// Creates the file with its permissions before anybody can connect: it is bound, restricted, and only then listens. A file
    /// that is left over from a killed program is replaced; any other is an error, and so is a socket that is in use.
    pub fn bind(path: &Path) -> Result<AdminSocket, String> {
        let shown = path.display();
        let failed = |error: io::Error| format!("admin.socket: cannot create {shown}: {error}");
        // Two programs that start at once must not take each other's file for a left-over.
        let _lock = lock(path)?;
        remove_left_over(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(failed)?;
        socket.bind(&SockAddr::unix(path).map_err(failed)?).map_err(failed)?;
        std::fs::set_permissions(path, Permissions::from_mode(MODE)).map_err(failed)?;
        socket.listen(BACKLOG).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let listener = UnixListener::from_std(socket.into()).map_err(failed)?;
        let identity = identity(path).map_err(failed)?;
        info!("admin.socket: listening at {shown}");
        Ok(AdminSocket { listener, path: path.to_path_buf(), identity })
    }

    /// Answers until stopped. An error never ends this.
    pub async fn serve(self, answers: Arc<Answers>, mut stop: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let accepted = tokio::select! {
                accepted = self.listener.accept() => accepted,
                () = stopped(&mut stop) => return,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!("admin.socket: accepting a connection failed; retrying: {error}");
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else { continue }; // too many: closed
            let answers = answers.clone();
            tokio::spawn(async move {
                if let Err(error) = converse(stream, &answers).await {
                    debug!("admin.socket: {error}");
                }
                drop(place);
            });
        }
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|found| found == self.identity) {
            let _ = std::fs::remove_file(&self.path); // the next start replaces it
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::symlink_metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Locks a file beside the socket. Only its owner can open it, so nobody else can hold the lock. The file stays on disk.
fn lock(path: &Path) -> Result<File, String> {
    let mut path = path.as_os_str().to_owned();
    path.push(".lock");
    let shown = Path::new(&path).display();
    let mut options = OpenOptions::new();
    let opened = options.write(true).create(true).truncate(false).mode(MODE).open(&path);
    let opened = opened.map_err(|error| format!("admin.socket: {shown}: {error}"))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(format!("admin.socket: another program has locked {shown}")),
        Err(TryLockError::Error(error)) => Err(format!("admin.socket: cannot lock {shown}: {error}")),
    }
}

/// Removes the file of a socket that nobody listens at.
fn remove_left_over(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(format!("admin.socket: {shown}: {error}")),
    };
    if !found.file_type().is_socket() {
        return Err(format!("admin.socket: {shown} exists and is not a socket: choose another path, or remove it"));
    }
    match try_connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| format!("admin.socket: cannot replace {shown}: {error}"))
        }
        // It would have to wait: somebody is there, but busy.
        Err(error) if error.kind() != ErrorKind::WouldBlock => Err(format!("admin.socket: {shown}: {error}")),
        _ => Err(format!("admin.socket: another program listens at {shown}")),
    }
}

fn try_connect(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(path)?)
}

/// One request, one answer.
async fn converse(mut stream: UnixStream, answers: &Answers) -> io::Result<()> {
    let user = stream.peer_cred().map_or_else(|_| "unknown".into(), |peer| user_name(peer.uid()));
    let (reader, mut writer) = stream.split();
    let mut line = Vec::new();
    // One byte more than allowed, to tell a long request from one that fits.
    let mut reader = BufReader::new(reader.take(REQUEST_BYTES_MAX as u64 + 1));
    timeout(PATIENCE, reader.read_until(b'\n', &mut line)).await??;
    let answer = match request(&line) {
        Ok(request) => answers.answer(request, &user).await,
        Err(error) => Err(error),
    };
    let lines = answer.unwrap_or_else(|error| vec![json!({ "error": error })]);
    timeout(PATIENCE, writer.write_all(&text(&lines))).await??;
    writer.shutdown().await
}

fn request(line: &[u8]) -> Result<Request, String> {
    if line.len() > REQUEST_BYTES_MAX {
        return Err(format!("the request is longer than {REQUEST_BYTES_MAX} bytes"));
    }
    serde_json::from_slice(line).map_err(|error| format!("the request is not valid: {error}"))
}

fn text(lines: &[Value]) -> Vec<u8> {
    lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect()
}

/// A user as people know them.
pub fn user_name(uid: u32) -> String {
    let known = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    known.map_or_else(|| format!("user {uid}"), |user| user.name)
}
