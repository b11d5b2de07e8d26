//! Which node queries which server. Nodes are live while their keep-alives arrive; rendezvous hashing assigns each address
//! to one live node, so that a node that joins or leaves moves only its own share. No socket, no clock.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

use arc_swap::ArcSwap;
use siphasher::sip::SipHasher13;

use super::record::node_id;
use crate::model::Address;

/// A node without a keep-alive for this long is gone.
pub const NODE_GONE_MS: u64 = 15_000;
/// Upper bound on remembered nodes.
const NODES_MAX: usize = 256;

/// The live nodes, shared with the prober, which queries only the servers assigned to this node.
pub struct Share {
    own: u32,
    live: ArcSwap<Vec<u32>>,
}

impl Default for Share {
    /// A node without a cluster: everything is its own.
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

    /// Whether an address is assigned to this node.
    pub fn is_mine(&self, address: Address) -> bool {
        let live = self.live.load();
        live.len() <= 1 || assigned_node(&live, address) == Some(self.own)
    }
}

/// The node that an address is assigned to: the one with the highest hash.
pub fn assigned_node(nodes: &[u32], address: Address) -> Option<u32> {
    let score = |node: u32| {
        let mut hasher = SipHasher13::new();
        hasher.write_u32(node);
        address.hash(&mut hasher);
        hasher.finish()
    };
    nodes.iter().copied().max_by_key(|node| (score(*node), *node))
}

/// The other nodes, with the store's time of their last keep-alive.
pub struct Nodes {
    own: u32,
    seen: HashMap<String, u64>,
    /// The store's time of our own last keep-alive, and our monotonic time when it came back.
    store_time: Option<(u64, u64)>,
}

impl Nodes {
    pub fn new(own: u32) -> Nodes {
        Nodes { own, seen: HashMap::new(), store_time: None }
    }

    /// Another node's keep-alive.
    pub fn keep_alive(&mut self, name: &str, created_ms: u64) {
        if self.seen.len() < NODES_MAX || self.seen.contains_key(name) {
            self.seen.insert(name.into(), created_ms);
        }
    }

    /// Our own keep-alive came back, which tells the store's time.
    pub fn own_keep_alive(&mut self, created_ms: u64, mono_ms: u64) {
        self.store_time = Some((created_ms, mono_ms));
    }

    pub fn left(&mut self, name: &str) {
        self.seen.remove(name);
    }

    /// The live nodes including this one, sorted. Forgets the others.
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
    fn shares_are_even_and_only_a_lost_nodes_share_moves() {
        let nodes: Vec<u32> = ["a", "b", "c"].map(node_id).to_vec();
        for node in &nodes {
            let count = addresses().filter(|address| assigned_node(&nodes, *address) == Some(*node)).count();
            assert!((800..1_200).contains(&count), "{count} of 3000");
        }
        let without: Vec<u32> = nodes[1..].to_vec();
        for address in addresses() {
            let before = assigned_node(&nodes, address).unwrap();
            if before != nodes[0] {
                assert_eq!(assigned_node(&without, address), Some(before));
            }
        }
        assert_eq!(assigned_node(&[], addresses().next().unwrap()), None);
    }

    #[test]
    fn each_address_belongs_to_exactly_one_node() {
        let nodes: Vec<u32> = ["a", "b", "c"].map(node_id).to_vec();
        let shares: Vec<Share> = nodes.iter().map(|node| Share::new(*node)).collect();
        assert!(
            shares.iter().all(|share| addresses().all(|address| share.is_mine(address))),
            "a node alone owns every address"
        );
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
        nodes.keep_alive("b", 1_000_000);
        assert_eq!(nodes.live(0), [a], "the keep-alive's age is not known yet");
        nodes.own_keep_alive(1_010_000, 500);
        nodes.keep_alive("c", 990_000);
        assert_eq!(nodes.live(500), sorted(vec![a, b]), "c's keep-alive is too old");
        nodes.keep_alive("c", 1_011_000);
        assert_eq!(nodes.live(1_500), sorted(vec![a, b, c]));
        nodes.left("c");
        assert_eq!(nodes.live(1_500), sorted(vec![a, b]));
        assert_eq!(nodes.live(500 + 5_000), [a], "15 s after its keep-alive");
    }
}
