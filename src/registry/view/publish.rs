//! Makes views out of what has changed, and the deltas between them.

use std::sync::Arc;

use super::{FactSerials, View};
use crate::model::{Fields, Now, Server};
use crate::registry::Dirty;
use crate::registry::servers::{BLOCK_SLOTS, Servers};

/// The change of one server between two views.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    Added(Arc<Server>),
    Changed {
        now: Arc<Server>,
        /// As it was in the view before: a reader may have wanted that one, and not this one.
        before: Arc<Server>,
        /// What readers see differently now; none if only what they do not see has changed.
        fields: Fields,
    },
    /// Proven again, and nothing else.
    Proven(Arc<Server>),
    Removed(Arc<Server>),
}

impl Delta {
    pub fn server(&self) -> &Arc<Server> {
        match self {
            Delta::Added(server) | Delta::Proven(server) | Delta::Removed(server) => server,
            Delta::Changed { now, .. } => now,
        }
    }
}

/// All deltas from one serial to the next.
#[derive(Clone, Debug)]
pub struct Batch {
    pub serial: u64,
    pub deltas: Vec<Delta>,
}

/// Makes views from drained changes. It keeps its own list, so that the registry is locked only while it is drained and not
/// while a view is made.
///
/// There are two lists that take turns: the newest view has one, the view before it had the other. Once nobody reads that view any
/// more, its list is brought up to date and changed for the next view. That costs what has changed, and nothing is counted or
/// copied for the other servers. If somebody still reads it, a copy of the newest takes its place, whose blocks are shared.
#[derive(Default)]
pub struct Publisher {
    newest: Arc<Servers>,
    former: Arc<Servers>,
    /// The blocks in which the former list differs from the newest.
    behind: Vec<u32>,
    facts: FactSerials,
    serial: u64,
}

impl Publisher {
    /// The next view and its deltas; None if nothing changed.
    pub fn publish(&mut self, dirty: &mut Vec<Dirty>, now: Now) -> Option<(View, Batch)> {
        if dirty.is_empty() {
            return None;
        }
        let mut deltas = Vec::with_capacity(dirty.len());
        self.change(dirty, |before, server| match (before, server) {
            (None, None) => {}
            (None, Some(new)) => deltas.push(Delta::Added(new)),
            (Some(old), None) => deltas.push(Delta::Removed(old)),
            (Some(old), Some(new)) if old.is_the_same_as(&new) => deltas.push(Delta::Proven(new)),
            (Some(old), Some(new)) if (old.address, &old.game) == (new.address, &new.game) => {
                let fields = Fields::between(&old, &new);
                deltas.push(Delta::Changed { now: new, before: old, fields })
            }
            (Some(old), Some(new)) => {
                // Another server: the slot was reused for another address, or the game has changed.
                deltas.push(Delta::Removed(old));
                deltas.push(Delta::Added(new));
            }
        });
        if deltas.is_empty() {
            return None;
        }
        // Removals first: a server may have left one slot and come back in another.
        deltas.sort_by_key(|delta| !matches!(delta, Delta::Removed(_)));
        for delta in deltas.iter().filter(|delta| !matches!(delta, Delta::Proven(_))) {
            self.facts.set(delta.server().game.protocol(), self.serial + 1);
        }
        let view = self.view(now);
        Some((view, Batch { serial: self.serial, deltas }))
    }

    /// The first view of servers that nobody has seen listed before, so that there are no deltas. `look` is called with each.
    pub fn publish_first(&mut self, dirty: &mut Vec<Dirty>, now: Now, look: impl Fn(&Server)) -> View {
        let serial = self.serial + 1;
        let mut facts = std::mem::take(&mut self.facts);
        self.change(dirty, |_, server| {
            if let Some(server) = &server {
                facts.set(server.game.protocol(), serial);
                look(server);
            }
        });
        self.facts = facts;
        self.view(now)
    }

    /// Brings the former list up to date, which frees what only the view before the newest had. If somebody still reads that view, it
    /// is left to them.
    pub fn catch_up(&mut self) {
        match Arc::get_mut(&mut self.former) {
            Some(former) => former.follow(&self.newest, &self.behind),
            None => self.former = self.newest.clone(),
        }
        self.behind.clear();
    }

    /// Changes the former list, after it was brought up to date. `look` is called with what each slot had and has.
    fn change(&mut self, dirty: &mut Vec<Dirty>, mut look: impl FnMut(Option<Arc<Server>>, Option<Arc<Server>>)) {
        self.catch_up();
        let servers = Arc::make_mut(&mut self.former);
        // A block may have been changed more than once.
        let mut texts: Option<u32> = None;
        for (at, server) in dirty.drain(..) {
            let before = servers.put(at as usize, server.clone());
            let number = at / BLOCK_SLOTS as u32;
            if self.behind.last() != Some(&number) {
                self.behind.push(number);
            }
            if texts != Some(number) && !same_texts(before.as_deref(), server.as_deref()) {
                servers.set_serial(number as usize, self.serial + 1);
                texts = Some(number);
            }
            look(before, server);
        }
        self.behind.sort_unstable();
        self.behind.dedup();
    }

    /// The next view: what has changed becomes the newest list.
    fn view(&mut self, now: Now) -> View {
        std::mem::swap(&mut self.newest, &mut self.former);
        self.serial += 1;
        View::of(self.serial, now.unix_ms, self.newest.clone(), self.facts.clone())
    }
}

/// Whether a slot has the same server with the same texts as before.
fn same_texts(before: Option<&Server>, after: Option<&Server>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => before.address == after.address && before.texts == after.texts,
        (before, after) => before.is_none() && after.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Proof};
    use proptest::prelude::*;
    use std::collections::{HashMap, VecDeque};

    #[test]
    fn blocks_keep_their_serial_while_their_texts_stay_the_same() {
        let server = |slot: u32, name: &'static str, players: u16| {
            let facts = Facts { name: name.into(), players_current: Some(players), ..Facts::default() };
            let address = Address::new([192, 0, 2, 1].into(), slot as u16 + 1).unwrap();
            Some(Arc::new(Server::new(address, Game::Own("tanks"), Proof::Query, 0, &facts)))
        };
        let mut publisher = Publisher::default();
        let now = Now { mono_ms: 0, unix_ms: 0 };
        let mut publish = |mut dirty: Vec<Dirty>| {
            let (view, _) = publisher.publish(&mut dirty, now).unwrap();
            assert_eq!(view.blocks().map(|(_, servers)| servers.count()).sum::<usize>(), view.servers.len());
            view.blocks().map(|(serial, servers)| (serial, servers.count())).collect::<Vec<_>>()
        };
        assert_eq!(publish((0..150).map(|slot| (slot, server(slot, "a", 0))).collect()), [(1, 64), (1, 64), (1, 22)]);
        assert_eq!(publish(vec![(70, server(70, "a", 1))]), [(1, 64), (1, 64), (1, 22)], "players are not text");
        assert_eq!(publish(vec![(70, server(70, "b", 1))]), [(1, 64), (3, 64), (1, 22)]);
        assert_eq!(publish(vec![(0, None)]), [(4, 63), (3, 64), (1, 22)]);
        assert_eq!(publish(vec![(1, server(300, "a", 1))]), [(5, 63), (3, 64), (1, 22)]);
    }

    #[test]
    fn only_facts_of_a_protocol_change_its_serial() {
        let now = Now { mono_ms: 0, unix_ms: 0 };
        let server = |port: u16, game: &'static str, proven_at_ms: u64, players: u16| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            let facts = Facts { players_current: Some(players), ..Facts::default() };
            let server = Server::new(address, Game::Own(game), Proof::Query, proven_at_ms, &facts);
            Some(Arc::new(Server { first_seen_ms: 0, ..server }))
        };
        let mut publisher = Publisher::default();
        let mut serials = |dirty: Dirty| {
            let (view, _) = publisher.publish(&mut vec![dirty], now).unwrap();
            (view.facts_serial("tanks"), view.facts_serial("planes"))
        };
        assert_eq!(serials((0, server(1, "tanks", 1, 0))), (1, 0));
        assert_eq!(serials((1, server(2, "planes", 1, 0))), (1, 2));
        assert_eq!(serials((0, server(1, "tanks", 2, 0))), (1, 2), "proven again");
        assert_eq!(serials((0, server(1, "tanks", 2, 1))), (4, 2));
        assert_eq!(serials((0, server(1, "planes", 2, 1))), (5, 5), "another game");
        assert_eq!(serials((1, None)), (5, 6));
        assert_eq!(View::new(9, 0, Vec::new()).facts_serial("tanks"), 9);
    }

    #[test]
    fn a_batch_has_what_changed_removals_first_under_the_next_serial() {
        let now = Now { mono_ms: 0, unix_ms: 77 };
        let server = |port: u16, game: &'static str, proven_at_ms: u64, players: u16| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            let facts = Facts { players_current: Some(players), ..Facts::default() };
            let mut server = Server::new(address, Game::Own(game), Proof::Query, proven_at_ms, &facts);
            server.first_seen_ms = 0;
            Arc::new(server)
        };
        let mut publisher = Publisher::default();
        assert!(publisher.publish(&mut Vec::new(), now).is_none());
        let [first, proven, changed] = [(1, 0), (2, 0), (2, 9)].map(|(ms, players)| server(1, "tanks", ms, players));
        let (other_game, elsewhere) = (server(1, "planes", 3, 9), server(2, "tanks", 1, 0));
        let changing = Delta::Changed { now: changed.clone(), before: proven.clone(), fields: Fields::PLAYERS_CURRENT };
        let steps = [
            (vec![(0, Some(first.clone()))], vec![Delta::Added(first)]),
            (vec![(3, Some(elsewhere.clone()))], vec![Delta::Added(elsewhere.clone())]),
            (vec![(0, Some(proven.clone()))], vec![Delta::Proven(proven.clone())]),
            (vec![(0, Some(changed.clone()))], vec![changing]),
            (vec![(0, Some(other_game.clone()))], vec![Delta::Removed(changed), Delta::Added(other_game.clone())]),
            // It left its slot and came back in another.
            (
                vec![(4, Some(elsewhere.clone())), (3, None)],
                vec![Delta::Removed(elsewhere.clone()), Delta::Added(elsewhere)],
            ),
            (vec![(0, None)], vec![Delta::Removed(other_game)]),
        ];
        for (serial, (mut dirty, deltas)) in (1..).zip(steps) {
            let (view, batch) = publisher.publish(&mut dirty, now).unwrap();
            assert_eq!((view.serial, batch.serial, view.published_at_ms), (serial, serial, 77));
            assert_eq!(batch.deltas, deltas);
        }
        assert!(publisher.publish(&mut vec![(0, None)], now).is_none(), "it was gone already");
    }

    #[test]
    fn the_first_view_has_no_deltas_and_later_ones_follow_it() {
        let server = |port: u16, name: &str| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            let facts = Facts { name: name.into(), ..Facts::default() };
            Arc::new(Server::new(address, Game::Own("tanks"), Proof::Query, 0, &facts))
        };
        let mut publisher = Publisher::default();
        let looked = std::cell::RefCell::new(Vec::new());
        let mut dirty = vec![(0, Some(server(1, "a"))), (70, Some(server(2, "b"))), (1, None)];
        let now = Now { mono_ms: 1, unix_ms: 2 };
        let first = publisher.publish_first(&mut dirty, now, |server| looked.borrow_mut().push(server.address.port()));
        assert_eq!((first.serial, first.servers.len(), looked.into_inner()), (1, 2, vec![1, 2]));
        assert_eq!((first.facts_serial("tanks"), first.facts_serial("planes")), (1, 0));
        assert_eq!(
            first.blocks().map(|(serial, servers)| (serial, servers.count())).collect::<Vec<_>>(),
            [(1, 1), (1, 1)]
        );
        let (next, batch) = publisher.publish(&mut vec![(70, Some(server(2, "c")))], now).unwrap();
        assert!(matches!(&batch.deltas[..], [Delta::Changed { .. }]), "{:?}", batch.deltas);
        assert_eq!(next.blocks().map(|(serial, _)| serial).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn views_share_the_blocks_that_have_not_changed() {
        let server = |port: u16, at_ms: u64| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            Arc::new(Server::new(address, Game::Own("tanks"), Proof::Query, at_ms, &Facts::default()))
        };
        let now = Now { mono_ms: 1, unix_ms: 2 };
        let mut publisher = Publisher::default();
        let mut all = (0..200).map(|at| (at, Some(server(1 + at as u16, 0)))).collect();
        let (oldest, _) = publisher.publish(&mut all, now).unwrap();
        let (first, _) = publisher.publish(&mut vec![(70, Some(server(71, 0)))], now).unwrap();
        // One is proven again, and one leaves.
        let (next, _) = publisher.publish(&mut vec![(70, Some(server(71, 1))), (199, None)], now).unwrap();
        let places = |view: &View| view.servers.blocks().map(std::ptr::from_ref).collect::<Vec<_>>();
        let shared: Vec<_> = places(&first).into_iter().zip(places(&next)).map(|(a, b)| a == b).collect();
        assert_eq!(shared, [true, false, true, false], "while the oldest is read");
        assert_eq!(next.blocks().map(|(serial, _)| serial).collect::<Vec<_>>(), [1, 1, 1, 3]);
        assert_eq!((oldest.servers == first.servers, oldest.servers[70].proven_at_ms), (true, 0));
        assert_eq!((first.servers.len(), next.servers.len(), next.servers.iter().count()), (200, 199, 199));
        assert_eq!((first.servers[70].proven_at_ms, next.servers[70].proven_at_ms), (0, 1));
    }

    fn named(port: u16, name: &str) -> Arc<Server> {
        let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
        let facts = Facts { name: name.into(), ..Facts::default() };
        Arc::new(Server::new(address, Game::Own("tanks"), Proof::Query, 0, &facts))
    }

    #[test]
    fn the_list_of_a_view_that_nobody_reads_any_more_is_used_again() {
        let now = Now { mono_ms: 1, unix_ms: 2 };
        let mut publisher = Publisher::default();
        let kept = named(1, "kept");
        let mut next = |name: &str| {
            let mut dirty = vec![(0, Some(kept.clone())), (1, Some(named(2, name))), (100, Some(named(3, name)))];
            publisher.publish(&mut dirty, now).unwrap().0
        };
        let place = |view: &View| view.servers.blocks().map(std::ptr::from_ref).collect::<Vec<_>>();
        let (first, second) = (next("a"), next("b"));
        let (of_first, of_second) = (place(&first), place(&second));
        assert_ne!(of_first, of_second);
        drop(first);
        let third = next("c");
        assert_eq!(place(&third), of_first);
        drop(second);
        let fourth = next("d");
        assert_eq!((place(&fourth), Arc::strong_count(&kept)), (of_second, 3), "here, and once in each list");
        let names = |view: &View| view.servers.iter().map(|server| server.texts.name().to_string()).collect::<Vec<_>>();
        assert_eq!(
            (names(&third), names(&fourth)),
            (vec!["kept".into(), "c".into(), "c".into()], vec!["kept".into(), "d".into(), "d".into()])
        );
    }

    #[test]
    fn what_only_a_former_view_had_is_freed() {
        let now = Now { mono_ms: 1, unix_ms: 2 };
        for is_read in [false, true] {
            let mut publisher = Publisher::default();
            let old = named(1, "old");
            let gone = Arc::downgrade(&old);
            let (first, _) = publisher.publish(&mut vec![(0, Some(old))], now).unwrap();
            let reader = is_read.then_some(first);
            let (_second, _) = publisher.publish(&mut vec![(0, Some(named(1, "new")))], now).unwrap();
            publisher.catch_up();
            assert_eq!(gone.upgrade().is_some(), is_read);
            drop(reader);
            assert!(gone.upgrade().is_none(), "its last reader has freed it");
        }
    }

    proptest! {
        /// Whoever reads which views for however long: each stays as it was published.
        #[test]
        fn no_view_changes_while_it_is_read(
            steps in prop::collection::vec((prop::collection::vec((0u32..200, prop::option::of(0u16..5)), 1..20), 0usize..6, any::<bool>()), 1..40),
        ) {
            let now = Now { mono_ms: 1, unix_ms: 2 };
            let mut publisher = Publisher::default();
            let mut slots = std::collections::BTreeMap::new();
            let mut readers: VecDeque<(View, Vec<Arc<Server>>)> = VecDeque::new();
            for (changes, readers_kept, forgets) in steps {
                let server = |(at, name): (u32, Option<u16>)| (at, name.map(|name| named(at as u16 + 1, &name.to_string())));
                let mut dirty: Vec<Dirty> = changes.into_iter().map(server).collect();
                for (at, server) in &dirty {
                    match server {
                        Some(server) => drop(slots.insert(*at, server.clone())),
                        None => drop(slots.remove(at)),
                    }
                }
                if let Some((view, _)) = publisher.publish(&mut dirty, now) {
                    readers.push_back((view, slots.values().cloned().collect()));
                }
                if forgets {
                    publisher.catch_up();
                }
                // The same block with the same serial has the same texts in all views: what was prepared of it is used again.
                let mut texts: HashMap<(usize, u64), Vec<String>> = HashMap::new();
                for (number, (serial, servers)) in readers.iter().flat_map(|(view, _)| view.blocks().enumerate()) {
                    let now: Vec<_> = servers.map(|server| format!("{} {:?}", server.address, server.texts)).collect();
                    prop_assert_eq!(texts.entry((number, serial)).or_insert_with(|| now.clone()), &now);
                }
                for (view, expected) in &readers {
                    prop_assert_eq!((view.servers.to_vec(), view.servers.len()), (expected.clone(), expected.len()));
                }
                while readers.len() > readers_kept {
                    readers.pop_front();
                }
            }
        }
    }
}
