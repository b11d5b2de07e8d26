//! Renderers that were requested recently. Equal requests share one, so that each list is rendered once per change.

use std::sync::{Arc, Mutex, PoisonError};

use crate::registry::view::Renderer;

/// How many are kept; the least recently requested one is replaced.
const LISTS_MAX: usize = 32;

pub struct Lists<K, R: ?Sized = dyn Renderer>(Mutex<Vec<(K, Arc<R>)>>);

impl<K, R: ?Sized> Default for Lists<K, R> {
    fn default() -> Lists<K, R> {
        Lists(Mutex::default())
    }
}

impl<K: Clone + PartialEq, R: ?Sized> Lists<K, R> {
    /// The renderer for this request; made where there is none.
    pub fn kept(&self, key: K, make: impl FnOnce(K) -> Arc<R>) -> Arc<R> {
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let list = match lists.iter().position(|(known, _)| *known == key) {
            Some(at) => lists.remove(at),
            None => (key.clone(), make(key)),
        };
        if lists.len() >= LISTS_MAX {
            lists.remove(0);
        }
        let renderer = list.1.clone();
        lists.push(list);
        renderer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::view::View;

    struct Nothing;

    impl Renderer for Nothing {
        fn render(&self, _: &View) -> Vec<u8> {
            Vec::new()
        }
    }

    #[test]
    fn what_is_asked_for_stays_and_the_number_is_bounded() {
        let lists = Lists::<usize>::default();
        let ask = |key: usize| lists.kept(key, |_| Arc::new(Nothing));
        let often = ask(0);
        for key in 1..LISTS_MAX * 2 {
            ask(key);
            assert!(Arc::ptr_eq(&often, &ask(0)), "{key}");
        }
        assert_eq!(lists.0.lock().unwrap().len(), LISTS_MAX);
    }
}
