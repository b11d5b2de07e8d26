//! The servers of a view, in blocks that views share: publishing costs what has changed, not what there is.

use std::iter::{FlatMap, Flatten};
use std::slice;
use std::sync::Arc;

use crate::model::Server;

/// Few enough that a copy of a block does not cost much, and enough that blocks cost nothing.
pub(super) const BLOCK_SLOTS: usize = 64;

type Slot = Option<Arc<Server>>;

/// Neighbouring servers.
#[derive(Clone, Debug)]
pub struct Block {
    /// The first view in which it had these servers with these texts.
    pub(super) serial: u64,
    slots: [Slot; BLOCK_SLOTS],
}

impl Default for Block {
    fn default() -> Block {
        Block { serial: 0, slots: [const { None }; BLOCK_SLOTS] }
    }
}

/// The servers of a block.
pub type OfBlock<'a> = Flatten<slice::Iter<'a, Slot>>;
/// The servers of all blocks.
pub type Iter<'a> = FlatMap<slice::Iter<'a, Arc<Block>>, OfBlock<'a>, fn(&'a Arc<Block>) -> OfBlock<'a>>;

impl Block {
    pub fn servers(&self) -> OfBlock<'_> {
        self.slots.iter().flatten()
    }

    /// Makes it equal to another, which differs in a few servers. Nothing is read of the others but where they are.
    fn follow(&mut self, other: &Block) {
        self.serial = other.serial;
        for (mine, theirs) in self.slots.iter_mut().zip(&other.slots) {
            if mine.as_ref().map(Arc::as_ptr) != theirs.as_ref().map(Arc::as_ptr) {
                mine.clone_from(theirs);
            }
        }
    }
}

/// A list of servers that does not change while it is shared.
#[derive(Clone, Debug, Default)]
pub struct Servers {
    blocks: Vec<Arc<Block>>,
    len: usize,
}

impl Servers {
    /// All of them are new in this view.
    pub(super) fn new(serial: u64, servers: &[Arc<Server>]) -> Servers {
        let mut all = Servers::default();
        for (at, server) in servers.iter().enumerate() {
            all.put(at, Some(server.clone()));
        }
        (0..all.blocks.len()).for_each(|number| all.set_serial(number, serial));
        all
    }

    /// Replaces what is in a slot, and returns what was there. A block that others share is copied.
    pub(super) fn put(&mut self, at: usize, server: Slot) -> Slot {
        let slot = self.block_mut(at / BLOCK_SLOTS)?.slots.get_mut(at % BLOCK_SLOTS)?;
        let is_there = usize::from(server.is_some());
        let before = std::mem::replace(slot, server);
        self.len = self.len + is_there - usize::from(before.is_some());
        before
    }

    pub(super) fn set_serial(&mut self, number: usize, serial: u64) {
        if let Some(block) = self.block_mut(number) {
            block.serial = serial;
        }
    }

    fn block_mut(&mut self, number: usize) -> Option<&mut Block> {
        if number >= self.blocks.len() {
            self.blocks.resize_with(number + 1, Arc::default);
        }
        self.blocks.get_mut(number).map(Arc::make_mut)
    }

    /// Makes it equal to another, which differs in these blocks only. From then on, the two do not share them.
    pub(super) fn follow(&mut self, other: &Servers, numbers: &[u32]) {
        self.blocks.resize_with(other.blocks.len(), Arc::default);
        for &number in numbers {
            let number = number as usize;
            let (Some(mine), Some(theirs)) = (self.blocks.get_mut(number), other.blocks.get(number)) else { continue };
            match Arc::get_mut(mine) {
                Some(mine) => mine.follow(theirs),
                None => *mine = Arc::new(Block::clone(theirs)),
            }
        }
        self.len = other.len;
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
        self.blocks.iter().flat_map(|block| block.servers())
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
