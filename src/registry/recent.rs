//! Values for the keys that were asked for lately: above all renderers, so that equal requests share one, and its list is
//! rendered once for all of them.

use std::sync::{Arc, Mutex, PoisonError};

use super::view::Renderer;

/// Keys that are kept; one more pushes out the one that was asked for longest ago.
const KEYS_MAX: usize = 32;

pub struct Recent<K, V: ?Sized = dyn Renderer>(Mutex<Vec<(K, Arc<V>)>>);

impl<K, V: ?Sized> Default for Recent<K, V> {
    fn default() -> Recent<K, V> {
        Recent(Mutex::default())
    }
}

impl<K: Clone + PartialEq, V: ?Sized> Recent<K, V> {
    /// The value that is kept for this key, made where there is none.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_number_is_bounded() {
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
