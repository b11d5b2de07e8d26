//! Runs the fuzz target's code on every sample of every protocol: whole, truncated, and with a byte changed.

use rallypoint::protocols::CARDS;

#[path = "../../fuzz/feed.rs"]
mod feed;

#[test]
fn all_parsers_take_all_samples() {
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
