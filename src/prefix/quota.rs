//! Places that clients share: so many for one address, more for each network around it, and a number for all.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrayvec::ArrayVec;

use super::{LEVELS_MAX, Networks, Prefix};

/// Clones share the same places.
#[derive(Clone)]
pub struct Quota(Arc<Mutex<State>>);

struct State {
    /// In all, and for one address (or IPv6 /64); wider networks have a larger limit.
    max: usize,
    per_ip_max: u32,
    /// Networks that have only the limit per address.
    exempt: Networks,
    taken: usize,
    counts: HashMap<Prefix, u32>,
}

/// A place that is taken until this is dropped.
pub struct Place {
    quota: Quota,
    /// The prefixes it was counted for.
    prefixes: ArrayVec<Prefix, LEVELS_MAX>,
}

impl Quota {
    pub fn new(max: usize, per_ip_max: u32) -> Quota {
        let exempt = Networks::NONE;
        Quota(Arc::new(Mutex::new(State { max, per_ip_max, exempt, taken: 0, counts: HashMap::new() })))
    }

    /// Sets the limit per address. Applies to places that are taken from now on.
    pub fn set_per_ip_max(&self, per_ip_max: u32) {
        self.state().per_ip_max = per_ip_max;
    }

    /// Sets the networks that have only the limit per address. Applies to places that are taken from now on.
    pub fn set_exempt(&self, exempt: Networks) {
        self.state().exempt = exempt;
    }

    /// A place for this address. None if there are too many: in all, of its own, or in one of the networks around it.
    pub fn take(&self, ip: IpAddr) -> Option<Place> {
        let mut state = self.state();
        let prefixes = Prefix::all(ip, &state.exempt);
        let is_full = |prefix: &Prefix| {
            let count = state.counts.get(prefix).copied().unwrap_or(0);
            count >= prefix.limit(state.per_ip_max)
        };
        if state.taken >= state.max || prefixes.iter().any(is_full) {
            return None;
        }
        state.taken += 1;
        prefixes.iter().for_each(|prefix| *state.counts.entry(*prefix).or_default() += 1);
        Some(Place { quota: self.clone(), prefixes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.taken == 0 && state.counts.is_empty()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.quota.state();
        state.taken = state.taken.saturating_sub(1);
        for prefix in &self.prefixes {
            let left = state.counts.get(prefix).map_or(0, |count| count.saturating_sub(1));
            match left {
                0 => drop(state.counts.remove(prefix)),
                _ => drop(state.counts.insert(*prefix, left)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many places as these addresses get, one after another.
    fn take(quota: &Quota, ips: impl IntoIterator<Item = String>) -> Vec<Place> {
        ips.into_iter().filter_map(|ip| quota.take(ip.parse().unwrap())).collect()
    }

    #[test]
    fn places_are_bounded_for_an_address_for_each_network_around_it_and_in_all() {
        let quota = Quota::new(100, 4);
        let own = take(&quota, (0..50).map(|_| "192.0.2.1".into()));
        let network = take(&quota, (2..=250).map(|host| format!("192.0.2.{host}")));
        assert_eq!((own.len(), network.len()), (4, 28), "4 per address, 32 per /24");
        let v6_64 = take(&quota, (1..50).map(|host| format!("2001:db8::{host}")));
        let v6_56 = take(&quota, (1..=0xff).map(|subnet| format!("2001:db8:0:{subnet:x}::1")));
        let v6_48 = take(&quota, (1..=0xff).map(|subnet| format!("2001:db8:0:{subnet:x}00::1")));
        assert_eq!((v6_64.len(), v6_56.len(), v6_48.len()), (4, 12, 48), "4 per /64, 16 per /56, 64 per /48");
        let others = take(&quota, (1..=50).map(|net| format!("198.51.{net}.1")));
        assert_eq!(others.len(), 4, "100 in all");
        drop(own);
        assert_eq!(
            take(&quota, (0..50).map(|_| "192.0.2.9".into())).len(),
            3,
            "what is given back is free, but for his own"
        );
        drop((network, v6_64, v6_56, v6_48, others));
        assert!(quota.is_empty(), "nothing is left of those that have gone");
    }

    #[test]
    fn limits_change_and_each_place_is_given_back_where_it_was_counted() {
        let quota = Quota::new(100, 1);
        let before = take(&quota, (1..=50).map(|host| format!("192.0.2.{host}")));
        assert_eq!(before.len(), 8);
        quota.set_exempt(Networks::new(&["192.0.2.0/24".parse().unwrap()]));
        quota.set_per_ip_max(2);
        let after = take(&quota, (1..=50).map(|host| format!("192.0.2.{host}")));
        assert_eq!(after.len(), 50, "one more for each: the network has no limit");
        drop((before, after));
        assert!(quota.is_empty());
    }
}
