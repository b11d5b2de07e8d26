//! Times of the hot paths, without sockets: `cargo bench --bench micro [FILTER]`. `benches/hot` has the table.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[path = "../hot/mod.rs"]
mod hot;

use divan::Bencher;
use divan::counter::ItemsCount;
use hot::{HotPath, Scale};

const SCALE: Scale = Scale { registered: &[10_000, 1_000_000], listed: &[100, 10_000], searched: 100_000 };

fn main() {
    divan::main();
}

fn names() -> Vec<String> {
    hot::all(SCALE).into_iter().map(|path| path.name).collect()
}

/// A run is several operations, which divan counts as items.
#[divan::bench(args = names(), sample_size = 1, sample_count = 50, max_time = 2)]
fn hot_path(bencher: Bencher, name: &str) {
    let path: HotPath = hot::all(SCALE).into_iter().find(|path| path.name == name).unwrap();
    let work = std::cell::RefCell::new(path.make());
    bencher
        .counter(ItemsCount::new(path.count))
        .with_inputs(|| work.borrow_mut().prepare())
        .bench_local_values(|()| work.borrow_mut().run());
}
