//! The servers of a view, in blocks that views share: publishing costs what has changed, not what there is.

use std::iter::FlatMap;
use std::slice;
use std::sync::Arc;

use crate::model::Server;

/// Few enough that a change of one server does not cost much, and enough that blocks cost nothing.
pub(super) const BLOCK_SLOTS: usize = 64;

/// Neighbouring servers.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The first view in which it had these servers with these texts.
    pub(super) serial: u64,
    pub(super) servers: Box<[Arc<Server>]>,
}

type OfBlock<'a> = slice::Iter<'a, Arc<Server>>;
/// The servers of all blocks.
pub type Iter<'a> = FlatMap<slice::Iter<'a, Arc<Block>>, OfBlock<'a>, fn(&'a Arc<Block>) -> OfBlock<'a>>;

/// A list of servers that does not change.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    blocks: Vec<Arc<Block>>,
    len: usize,
}

impl Servers {
    /// All of them are new in this view.
    pub(super) fn new(serial: u64, servers: &[Arc<Server>]) -> Servers {
        let blocks = servers.chunks(BLOCK_SLOTS).map(|some| Arc::new(Block { serial, servers: some.into() }));
        Servers::of(blocks.collect())
    }

    pub(super) fn of(blocks: Vec<Arc<Block>>) -> Servers {
        let len = blocks.iter().map(|block| block.servers.len()).sum();
        Servers { blocks, len }
    }

    pub(super) fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.blocks.iter().map(|block| &**block)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> Iter<'_> {
        self.blocks.iter().flat_map(|block| block.servers.iter())
    }

    pub fn to_vec(&self) -> Vec<Arc<Server>> {
        let mut all = Vec::with_capacity(self.len);
        all.extend(self.iter().cloned());
        all
    }
}

impl<'a> IntoIterator for &'a Servers {
    type Item = &'a Arc<Server>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl PartialEq for Servers {
    fn eq(&self, other: &Servers) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
impl std::ops::Index<usize> for Servers {
    type Output = Arc<Server>;

    fn index(&self, at: usize) -> &Arc<Server> {
        self.iter().nth(at).unwrap()
    }
}
