//! Finds what is in a list twice, with four bytes for each entry instead of a copy of it: lists have up to millions.

use std::hash::{BuildHasher, Hash};

use hashbrown::{DefaultHashBuilder, HashTable};

/// The numbers of all entries but those whose key an earlier one has.
pub fn first_of_each<T, K: Eq + Hash>(all: &[T], key: impl Fn(&T) -> K) -> impl Iterator<Item = usize> {
    let hasher = DefaultHashBuilder::default();
    let mut seen = HashTable::with_capacity(all.len());
    (0..all.len()).filter(move |number| {
        let key_of = |number: &u32| all.get(*number as usize).map(&key);
        let Ok(number) = u32::try_from(*number) else { return true };
        let wanted = key_of(&number);
        let hash = hasher.hash_one(&wanted);
        let is_new = seen.find(hash, |seen| key_of(seen) == wanted).is_none();
        if is_new {
            seen.insert_unique(hash, number, |seen| hasher.hash_one(key_of(seen)));
        }
        is_new
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_come_again_are_left_out() {
        let all: Vec<u32> = (0..5_000).map(|number| number % 3_000).collect();
        assert!(first_of_each(&all, |value| *value).eq(0..3_000));
        assert!(first_of_each(&[1, 11, 2, 21], |value| value % 10).eq([0, 2]));
    }
}
