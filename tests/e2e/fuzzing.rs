//! What fuzzing does, with every sample of every protocol, whole and cut, and with a byte changed.

use rallypoint::protocols::CARDS;

#[path = "../../fuzz/feed.rs"]
mod feed;

#[test]
fn samples_are_read_by_everything_that_reads() {
    for sample in CARDS.iter().flat_map(|card| (card.samples)()) {
        feed::feed(&sample);
        feed::feed(&sample[..sample.len() / 2]);
        let mut changed = sample;
        if let Some(byte) = changed.last_mut() {
            *byte ^= 0x5c;
        }
        feed::feed(&changed);
    }
}
