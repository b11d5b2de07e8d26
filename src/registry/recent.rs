//! A small LRU cache. It mostly holds renderers, so that equal requests share one and their list is rendered once.

use std::sync::{Arc, Mutex, PoisonError};

use super::view::Renderer;

/// The number of keys. One more evicts the least recently used.
const KEYS_MAX: usize = 32;

pub struct Recent<K, V: ?Sized = dyn Renderer>(Mutex<Vec<(K, Arc<V>)>>);

impl<K, V: ?Sized> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent(Mutex::default())
    }
}

impl<K: Clone + PartialEq, V: ?Sized> Recent<K, V> {
    /// The cached value of a key, made if there is none.
    pub fn get(&self, key: K, make: impl FnOnce(K) -> Arc<V>) -> Arc<V> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = match all.iter().position(|(known, _)| *known == key) {
            Some(at) => all.remove(at),
            None => (key.clone(), make(key)),
        };
        if all.len() >= KEYS_MAX {
            all.remove(0);
        }
        let value = pair.1.clone();
        all.push(pair);
        value
    }

    /// All cached values.
    pub fn all(&self) -> Vec<Arc<V>> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(_, value)| value.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_values_stay_and_the_number_is_bounded() {
        let recent = Recent::<usize, usize>::default();
        let ask = |key: usize| recent.get(key, Arc::new);
        let often = ask(0);
        for key in 1..KEYS_MAX * 2 {
            ask(key);
            assert!(Arc::ptr_eq(&often, &ask(0)), "{key}");
        }
        assert_eq!(recent.0.lock().unwrap().len(), KEYS_MAX);
    }
}
