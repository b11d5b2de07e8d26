//! One runtime per core, each with one thread, for connections whose answers are prepared. A connection stays on its thread, so
//! that serving it wakes no other. Nothing here may take long: whatever does belongs to the program's main runtime.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::watch;

use super::guard::Guard;
use super::stopped;

/// Threads of a core that do what takes long, such as rendering a list that is not prepared. Their number is bounded elsewhere.
const BLOCKING_THREADS_MAX: usize = 64;
/// How often a core that stops looks whether its connections have ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub struct Cores {
    handles: Vec<Handle>,
    next: AtomicUsize,
}

impl Cores {
    /// Starts a thread per core. They run until the program stops and no connections are left, or until it ends.
    pub fn start(guard: &Arc<Guard>, stop: &watch::Receiver<bool>) -> io::Result<(Cores, Vec<JoinHandle<()>>)> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        let runtimes = (0..count).map(|_| runtime()).collect::<io::Result<Vec<_>>>()?;
        let handles = runtimes.iter().map(|runtime| runtime.handle().clone()).collect();
        let threads = runtimes.into_iter().enumerate().map(|(number, runtime)| {
            let (guard, stop) = (guard.clone(), stop.clone());
            let run = move || runtime.block_on(until_the_end(guard, stop));
            std::thread::Builder::new().name(format!("core-{number}")).spawn(run)
        });
        Ok((Cores { handles, next: AtomicUsize::new(0) }, threads.collect::<io::Result<_>>()?))
    }

    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// The core for the next connection: each in turn. The system would distribute them by chance.
    pub fn next(&self) -> Option<&Handle> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.handles.get(turn.checked_rem(self.handles.len())?)
    }
}

/// The processors that this program may run on.
pub fn processors() -> impl Iterator<Item = usize> {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_default();
    (0..CpuSet::count()).filter(move |number| allowed.is_set(*number).unwrap_or(false))
}

fn runtime() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS_MAX).build()
}

async fn until_the_end(guard: Arc<Guard>, mut stop: watch::Receiver<bool>) {
    stopped(&mut stop).await;
    while guard.connections() > 0 {
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
