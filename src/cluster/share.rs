//! Who asks whom. The nodes that live are known from their own records; each server is asked by the node that comes out
//! highest for its address (rendezvous hashing), so that a node that comes or goes moves only its own share. No socket,
//! no clock.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use arc_swap::ArcSwap;
use siphasher::sip::SipHasher13;

use super::record::node_id;
use crate::model::Address;

/// A node that was not heard of for this long is gone.
pub const NODE_GONE_MS: u64 = 15_000;
/// Nodes remembered at the most.
const NODES_MAX: usize = 256;

/// The nodes that live, for those who have to know whose turn it is.
pub struct Share {
    own: u32,
    live: ArcSwap<Vec<u32>>,
}

impl Default for Share {
    /// There is no other node.
    fn default() -> Share {
        Share::new(0)
    }
}

impl Share {
    pub fn new(own: u32) -> Share {
        Share { own, live: ArcSwap::from_pointee(vec![own]) }
    }

    pub fn set_live(&self, nodes: Vec<u32>) {
        if **self.live.load() != nodes {
            self.live.store(nodes.into());
        }
    }

    /// Whether this node is the one that looks after an address.
    pub fn is_mine(&self, address: Address) -> bool {
        let live = self.live.load();
        live.len() <= 1 || chosen(&live, address) == Some(self.own)
    }
}

/// The node that an address falls to.
pub fn chosen(nodes: &[u32], address: Address) -> Option<u32> {
    let score = |node: u32| {
        let mut hasher = SipHasher13::new();
        hasher.write_u32(node);
        address.hash(&mut hasher);
        hasher.finish()
    };
    nodes.iter().copied().max_by_key(|node| (score(*node), *node))
}

/// Which nodes there are, by the time at which the store took their last sign of life.
pub struct Nodes {
    own: u32,
    seen: HashMap<String, u64>,
    /// The store's time, and ours (monotonic), when one of our own signs came back.
    store_time: Option<(u64, u64)>,
}

impl Nodes {
    pub fn new(own: u32) -> Nodes {
        Nodes { own, seen: HashMap::new(), store_time: None }
    }

    /// A sign of life of another node.
    pub fn heard(&mut self, name: &str, created_ms: u64) {
        if self.seen.len() < NODES_MAX || self.seen.contains_key(name) {
            self.seen.insert(name.into(), created_ms);
        }
    }

    /// One of our own came back: now we know what time it is there.
    pub fn heard_ourselves(&mut self, created_ms: u64, mono_ms: u64) {
        self.store_time = Some((created_ms, mono_ms));
    }

    pub fn left(&mut self, name: &str) {
        self.seen.remove(name);
    }

    /// The nodes that live, ourselves among them, in order. Forgets the others.
    pub fn live(&mut self, mono_ms: u64) -> Vec<u32> {
        let mut live = vec![self.own];
        if let Some((created_ms, seen_ms)) = self.store_time {
            let store_now_ms = created_ms + mono_ms.saturating_sub(seen_ms);
            self.seen.retain(|_, last_ms| store_now_ms.saturating_sub(*last_ms) < NODE_GONE_MS);
            live.extend(self.seen.keys().map(|name| node_id(name)));
        }
        live.sort_unstable();
        live.dedup();
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses() -> impl Iterator<Item = Address> {
        (1..=3_000).map(|port| Address::new([192, 0, 2, 1].into(), port).unwrap())
    }

    #[test]
    fn everyone_gets_a_share_and_only_the_lost_one_moves() {
        let nodes: Vec<u32> = ["a", "b", "c"].map(node_id).to_vec();
        for node in &nodes {
            let count = addresses().filter(|address| chosen(&nodes, *address) == Some(*node)).count();
            assert!((800..1_200).contains(&count), "{count} of 3000");
        }
        let without: Vec<u32> = nodes[1..].to_vec();
        for address in addresses() {
            let before = chosen(&nodes, address).unwrap();
            if before != nodes[0] {
                assert_eq!(chosen(&without, address), Some(before));
            }
        }
        assert_eq!(chosen(&[], addresses().next().unwrap()), None);
    }

    #[test]
    fn each_address_is_exactly_one_nodes() {
        let nodes: Vec<u32> = ["a", "b", "c"].map(node_id).to_vec();
        let shares: Vec<Share> = nodes.iter().map(|node| Share::new(*node)).collect();
        assert!(shares.iter().all(|share| addresses().all(|address| share.is_mine(address))), "alone, all is ours");
        shares.iter().for_each(|share| share.set_live(nodes.clone()));
        for address in addresses() {
            assert_eq!(shares.iter().filter(|share| share.is_mine(address)).count(), 1);
        }
        assert!(Share::default().is_mine(addresses().next().unwrap()));
    }

    #[test]
    fn nodes_come_and_go_by_the_stores_time() {
        let [a, b, c] = ["a", "b", "c"].map(node_id);
        let sorted = |mut ids: Vec<u32>| {
            ids.sort_unstable();
            ids
        };
        let mut nodes = Nodes::new(a);
        nodes.heard("b", 1_000_000);
        assert_eq!(nodes.live(0), [a], "we do not know yet how old that is");
        nodes.heard_ourselves(1_010_000, 500);
        nodes.heard("c", 990_000);
        assert_eq!(nodes.live(500), sorted(vec![a, b]), "c is an old left-over");
        nodes.heard("c", 1_011_000);
        assert_eq!(nodes.live(1_500), sorted(vec![a, b, c]));
        nodes.left("c");
        assert_eq!(nodes.live(1_500), sorted(vec![a, b]));
        assert_eq!(nodes.live(500 + 5_000), [a], "15 s after its sign of life");
    }
}
