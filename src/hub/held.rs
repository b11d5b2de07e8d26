//! How much memory rendered lists take: those in the cache, and older ones that slow readers still hold. Readers of one list
//! share its bytes. A reader that takes its time, or takes nothing, holds a list that nobody else needs; there is a bound for all
//! of them. Whoever serves connections ends some that hold a list before that bound is reached, so that others are not refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::registry::view::Body;

/// What may be kept beside the cache is at most this fraction (1/N) of all: it is a list for each path, in four encodings.
const PINNED_SHARE: usize = 64;

#[derive(Debug)]
pub struct Held {
    bytes: AtomicUsize,
    max: AtomicUsize,
    high: Notify,
}

impl Default for Held {
    fn default() -> Held {
        Held { bytes: AtomicUsize::new(0), max: AtomicUsize::new(usize::MAX), high: Notify::new() }
    }
}

/// Bytes that count until their last reader has dropped them.
struct Counted {
    bytes: Bytes,
    held: Arc<Held>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.held.bytes.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

impl Held {
    /// The same body, shared and counted.
    pub fn count(self: &Arc<Held>, body: impl Into<Body>) -> Body {
        let body: Body = body.into();
        Body::new(body.pieces().iter().map(|piece| self.share(piece.clone())))
    }

    /// The same for a single piece.
    pub fn share(self: &Arc<Held>, bytes: Bytes) -> Bytes {
        self.bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        let bytes = Bytes::from_owner(Counted { bytes, held: self.clone() });
        if self.is_high() {
            self.high.notify_one();
        }
        bytes
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn set_max(&self, max: usize) {
        self.max.store(max, Ordering::Relaxed);
        if self.is_high() {
            self.high.notify_one();
        }
    }

    /// Whether all of them together take more than they may.
    pub fn is_over(&self) -> bool {
        self.bytes() > self.max.load(Ordering::Relaxed)
    }

    /// Whether a list of this size may be kept by others than the cache, which frees it when memory is short.
    pub fn may_pin(&self, bytes: usize) -> bool {
        bytes <= self.max.load(Ordering::Relaxed) / PINNED_SHARE
    }

    /// Whether they take so much that some have to go: three quarters of it.
    pub fn is_high(&self) -> bool {
        self.bytes() > self.max.load(Ordering::Relaxed) / 4 * 3
    }

    /// Completes when they do.
    pub async fn high(&self) {
        while !self.is_high() {
            self.high.notified().await;
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
        assert!(!held.is_high());
        let mut body = Vec::with_capacity(4_000);
        body.resize(1_000, 7);
        let list = held.count(body);
        assert!(held.bytes() < 1_200, "without what is not used of the buffer");
        let readers: Vec<_> = (0..1_500).map(|_| list.clone()).collect();
        let rest = list.pieces()[0].slice(900..);
        assert!(held.bytes() < 1_200 && !held.is_over() && !held.is_high());
        let other = held.count(vec![0; 1_000]);
        assert!(held.is_over());
        drop((list, readers));
        assert!(held.bytes() >= 2_000, "somebody still reads the rest");
        drop(rest);
        assert_eq!((held.bytes(), held.is_over()), (1_000, false));
        held.set_max(1_300);
        assert!(held.is_high() && !held.is_over(), "some have to go before others are refused");
        drop(other);
        assert_eq!(held.bytes(), 0);
    }
}
