//! How much memory rendered lists take: those in the cache, and older ones that slow readers still hold. Readers of one list
//! share its bytes. A reader that takes its time, or takes nothing, holds a list that nobody else needs; there is a bound for all
//! of them, and whoever serves connections ends those that have held a list for longest when it is exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

#[derive(Debug)]
pub struct Held {
    bytes: AtomicUsize,
    max: AtomicUsize,
    over: Notify,
}

impl Default for Held {
    fn default() -> Held {
        Held { bytes: AtomicUsize::new(0), max: AtomicUsize::new(usize::MAX), over: Notify::new() }
    }
}

/// Bytes that count until their last reader has dropped them.
struct Counted {
    body: Vec<u8>,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.body.capacity(), Ordering::Relaxed);
    }
}

impl Held {
    /// The same bytes, shared and counted.
    pub fn count(self: &Arc<Held>, mut body: Vec<u8>) -> Bytes {
        if body.is_empty() {
            return Bytes::new();
        }
        // A buffer that has grown may be half empty.
        if body.capacity() - body.len() > body.len() / 8 {
            body.shrink_to_fit();
        }
        self.bytes.fetch_add(body.capacity(), Ordering::Relaxed);
        let bytes = Bytes::from_owner(Counted { body, held: self.clone() });
        if self.is_over() {
            self.over.notify_one();
        }
        bytes
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
        if self.is_over() {
            self.over.notify_one();
        }
    }

    /// Whether all of them together take more than they may.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.max.load(Ordering::Relaxed)
    }

    /// Completes when they do.
    pub async fn over(&self) {
        while !self.is_over() {
            self.over.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_counts_once_until_its_last_reader_has_dropped_it() {
        let held = Arc::new(Held::default());
        held.set_max(1_500);
        let mut body = Vec::with_capacity(4_000);
        body.resize(1_000, 7);
        let list = held.count(body);
        assert!(held.bytes() < 1_200, "without what is not used of the buffer");
        let readers: Vec<_> = (0..1_500).map(|_| list.clone()).collect();
        let rest = list.slice(900..);
        assert!(held.bytes() < 1_200 && !held.is_over());
        let other = held.count(vec![0; 1_000]);
        assert!(held.is_over());
        drop((list, readers));
        assert!(held.bytes() >= 2_000, "somebody still reads the rest");
        drop(rest);
        assert_eq!((held.bytes(), held.is_over()), (1_000, false));
        drop(other);
        assert_eq!(held.bytes(), 0);
    }
}
