//! The published list: an immutable snapshot with a serial, the deltas that led to it, and the lists rendered from it.
//! Readers share a view and never wait for a writer.

mod body;
mod publish;
mod standings;

use std::collections::HashMap;
use std::hash::Hasher;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use siphasher::sip::SipHasher13;

use super::servers::{OfBlock, Servers};
use crate::model::{MASTER, Server};

pub use body::{Body, Writer};
pub use publish::{Batch, Delta, Publisher};
pub use standings::{Standings, claim, sort_fairly};

/// Renders a view: `/master.json`, a page, a protocol's list.
pub trait Renderer: Send + Sync {
    fn render(&self, view: &View) -> Body;

    /// The same with a [tag](Tag) of what it says, if that is less than its bytes: times and round trips change with every
    /// proof. None: the tag is of its bytes.
    fn render_tagged(&self, view: &View) -> (Body, Option<Tag>) {
        (self.render(view), None)
    }

    /// Views with the same number give the same list, so that it is not rendered again.
    fn version(&self, view: &View) -> u64 {
        view.serial
    }

    /// Whether the same view would be rendered differently now.
    fn is_stale(&self) -> bool {
        false
    }

    /// Whether many clients share this list. The number of others is unlimited, since clients choose their parameters: they are
    /// rendered at the cost of who asks.
    fn is_common(&self) -> bool {
        true
    }

    /// Renderers with the same number share work for each view, such as an index. They are all rendered from the same view for as
    /// long as that work is worth.
    fn group(&self) -> Option<usize> {
        None
    }
}

/// A rendered list, shared by all its readers.
pub struct Rendered {
    pub body: Body,
    /// A hash of the content, so it stays the same across views and restarts that change nothing of it.
    pub etag: String,
    /// When the list was as it is here, milliseconds since 1970; none for what is not a list.
    pub as_of_ms: Option<u64>,
    /// The [version](Renderer::version) that a renderer made; none for what is not a list.
    pub version: Option<u64>,
    /// Other encodings of the body, each made on first request.
    variants: [OnceLock<Option<Body>>; VARIANTS],
    /// Whether a thread has begun to make each.
    begun: [AtomicBool; VARIANTS],
    /// For how many lists to come each is made in advance.
    wanted: [AtomicU8; VARIANTS],
}

/// The number of other encodings of a body.
pub const VARIANTS: usize = 3;
/// For how many lists an encoding is made in advance after a client has asked for it.
const WANTED_FOR: u8 = 16;

/// A hash of what a list says. Write the list into it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tag(SipHasher13);

impl io::Write for Tag {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Tag {
    fn text(&self) -> String {
        format!("\"{:016x}\"", self.0.finish())
    }
}

impl Rendered {
    /// A list of this size is kept only while clients ask for it.
    pub const LARGE_BYTES: usize = 32 << 20;

    pub fn is_large(&self) -> bool {
        self.body.len() >= Rendered::LARGE_BYTES
    }

    pub fn new(body: impl Into<Body>) -> Rendered {
        let body = body.into();
        let mut tag = Tag::default();
        body.pieces().iter().for_each(|piece| tag.0.write(piece));
        Rendered {
            etag: tag.text(),
            body,
            as_of_ms: None,
            version: None,
            variants: Default::default(),
            begun: Default::default(),
            wanted: Default::default(),
        }
    }

    /// What a renderer made of this view. With a tag of its own it is weak: lists that say the same may differ in some bytes.
    pub fn of(view: &View, body: impl Into<Body>, tag: Option<Tag>) -> Rendered {
        let rendered = Rendered { as_of_ms: Some(view.published_at_ms), ..Rendered::new(body) };
        match tag {
            Some(tag) => Rendered { etag: format!("W/{}", tag.text()), ..rendered },
            None => rendered,
        }
    }

    pub fn with_version(self, version: u64) -> Rendered {
        Rendered { version: Some(version), ..self }
    }

    /// The body in another encoding, if it has been made.
    pub fn made(&self, number: usize) -> Option<Option<Body>> {
        self.variants.get(number)?.get().cloned()
    }

    /// A client asks for this variant: the next lists will have it, too.
    pub fn want(&self, number: usize) {
        if let Some(wanted) = self.wanted.get(number).filter(|wanted| wanted.load(Ordering::Relaxed) < WANTED_FOR) {
            wanted.store(WANTED_FOR, Ordering::Relaxed);
        }
    }

    /// Takes over which variants clients want from the list before, and returns them.
    pub fn wanted_as(&self, before: &Rendered) -> impl Iterator<Item = usize> + use<> {
        let left = before.wanted.each_ref().map(|wanted| wanted.load(Ordering::Relaxed).saturating_sub(1));
        self.wanted.iter().zip(left).for_each(|(wanted, left)| wanted.store(left, Ordering::Relaxed));
        left.into_iter().enumerate().filter(|(_, left)| *left > 0).map(|(number, _)| number)
    }

    /// For one caller at a time, which has to make the variant.
    pub fn begin(self: &Arc<Rendered>, number: usize) -> Option<Begun> {
        let is_first = self.begun.get(number).is_some_and(|begun| !begun.swap(true, Ordering::Relaxed));
        is_first.then(|| Begun { list: self.clone(), number })
    }

    /// The body in another encoding, made by the first caller; None if it is of no use.
    pub fn variant(&self, number: usize, make: impl FnOnce(&Body) -> Option<Body>) -> Option<Body> {
        self.variants.get(number)?.get_or_init(|| make(&self.body)).clone()
    }
}

/// The right to make a variant. If it is dropped without being used, another caller gets it.
pub struct Begun {
    list: Arc<Rendered>,
    number: usize,
}

impl Begun {
    pub fn make(self, make: impl FnOnce(&Body) -> Option<Body>) {
        self.list.variant(self.number, make);
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(begun) = self.list.begun.get(self.number) {
            begun.store(false, Ordering::Relaxed);
        }
    }
}

/// One published state of the registry.
pub struct View {
    pub serial: u64,
    pub published_at_ms: u64,
    pub servers: Arc<Servers>,
    facts: FactSerials,
    by_game: OnceLock<ByGame>,
    standings: Mutex<HashMap<Box<str>, OnceStandings>>,
}

/// The first view with the present servers and facts of each protocol. Later views differ at most in when they were proven.
#[derive(Clone, Debug, Default)]
struct FactSerials {
    by_protocol: Vec<(&'static str, u64)>,
    /// For the others.
    other: u64,
}

impl FactSerials {
    fn set(&mut self, protocol: &'static str, serial: u64) {
        match self.by_protocol.iter_mut().find(|(known, _)| *known == protocol) {
            Some((_, known)) => *known = serial,
            None => self.by_protocol.push((protocol, serial)),
        }
    }
}

/// Whoever needs them first computes them, and others wait.
type OnceStandings = Arc<OnceLock<Arc<Standings>>>;

/// Servers by the name of their game, then by their protocol.
type ByGame = HashMap<Box<str>, Vec<(&'static str, Vec<Arc<Server>>)>>;

impl View {
    pub fn new(serial: u64, published_at_ms: u64, servers: Vec<Arc<Server>>) -> View {
        let facts = FactSerials { by_protocol: Vec::new(), other: serial };
        View::of(serial, published_at_ms, Arc::new(Servers::new(serial, &servers)), facts)
    }

    fn of(serial: u64, published_at_ms: u64, servers: Arc<Servers>, facts: FactSerials) -> View {
        View { serial, published_at_ms, servers, facts, by_game: OnceLock::new(), standings: Mutex::default() }
    }

    /// The first view with these servers of a protocol and these facts: the [version](Renderer::version) of a list that shows
    /// neither when they were proven nor their round trips.
    pub fn facts_serial(&self, protocol: &str) -> u64 {
        let known = self.facts.by_protocol.iter().find(|(known, _)| *known == protocol);
        known.map_or(self.facts.other, |(_, serial)| *serial)
    }

    /// The servers in blocks, each with its serial: the first view in which it had these servers with these texts. What is prepared
    /// of a block can be used for all views in which it has the same serial.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, OfBlock<'_>)> {
        self.servers.blocks().map(|block| (block.serial, block.servers()))
    }

    /// All game servers, without the listed masters.
    pub fn games(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.iter().filter(|server| !server.game.is_master())
    }

    /// The other masters.
    pub fn masters(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.of_game(MASTER).filter(|server| server.game.is_master())
    }

    /// The servers of the games of this name, in any protocol. Does not scan the servers of other games.
    pub fn of_game(&self, game: &str) -> impl Iterator<Item = &Arc<Server>> {
        let groups = self.by_game().get(game).map(Vec::as_slice).unwrap_or_default();
        groups.iter().flat_map(|(_, servers)| servers)
    }

    /// The servers of a protocol, of any game. The order of games is unspecified.
    pub fn of_protocol(&self, protocol: &str) -> impl Iterator<Item = &Arc<Server>> {
        let groups = self.by_game().values().flatten().filter(move |(spoken, _)| *spoken == protocol);
        groups.flat_map(|(_, servers)| servers)
    }

    /// All game servers by their game's name and protocol, without the listed masters. The order is unspecified.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &'static str, &[Arc<Server>])> {
        let groups = self.by_game().iter().flat_map(|(game, groups)| groups.iter().map(move |group| (game, group)));
        let is_game = |servers: &[Arc<Server>]| servers.first().is_some_and(|server| !server.game.is_master());
        let groups = groups.map(|(game, (protocol, servers))| (&**game, *protocol, servers.as_slice()));
        groups.filter(move |(.., servers)| is_game(servers))
    }

    /// Where the servers of a list stand in the fair order: computed once for all who read a list of this name.
    pub fn standings<'v>(&self, name: &str, servers: impl Iterator<Item = &'v Arc<Server>>) -> Arc<Standings> {
        let mut servers = servers.peekable();
        if servers.peek().is_none() {
            return Arc::default(); // anybody can make up a name
        }
        let list = {
            let mut lists = self.standings.lock().unwrap_or_else(PoisonError::into_inner);
            match lists.get(name) {
                Some(list) => list.clone(),
                None => lists.entry(name.into()).or_default().clone(),
            }
        };
        list.get_or_init(|| Arc::new(Standings::new(servers))).clone()
    }

    fn by_game(&self) -> &ByGame {
        self.by_game.get_or_init(|| {
            let mut by_game = ByGame::new();
            for server in &*self.servers {
                let (name, protocol) = (server.game.name(), server.game.protocol());
                let groups = match by_game.get_mut(name) {
                    Some(groups) => groups,
                    None => by_game.entry(name.into()).or_default(),
                };
                match groups.iter_mut().find(|(spoken, _)| *spoken == protocol) {
                    Some((_, servers)) => servers.push(server.clone()),
                    None => groups.push((protocol, vec![server.clone()])),
                }
            }
            by_game
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Address, Facts, Game, Proof};

    #[test]
    fn servers_by_game_and_by_protocol() {
        let games = [
            Game::Own("tanks"),
            Game::carried("tanks", "chess"),
            Game::carried("planes", "chess"),
            Game::master("tanks"),
        ];
        let named_so = Game::carried("planes", MASTER);
        let servers = (1..).zip(games.into_iter().chain([named_so])).map(|(port, game)| {
            let address = Address::new([192, 0, 2, 1].into(), port).unwrap();
            Arc::new(Server::new(address, game, Proof::Query, 0, &Facts::default()))
        });
        let view = View::new(1, 0, servers.collect());
        fn ports<'a>(servers: impl Iterator<Item = &'a Arc<Server>>) -> Vec<u16> {
            let mut ports: Vec<u16> = servers.map(|server| server.address.port()).collect();
            ports.sort_unstable();
            ports
        }
        assert_eq!(ports(view.of_game("tanks")), [1]);
        assert_eq!(ports(view.of_game("chess")), [2, 3]);
        assert_eq!(view.of_game("planes").count(), 0);
        assert_eq!(ports(view.of_protocol("tanks")), [1, 2, 4]);
        assert_eq!(ports(view.of_protocol("planes")), [3, 5]);
        assert_eq!(view.of_protocol("chess").count(), 0);
        assert_eq!((ports(view.masters()), ports(view.games())), (vec![4], vec![1, 2, 3, 5]));
    }

    #[test]
    fn the_standings_of_a_list_are_computed_once_and_made_up_names_are_not_kept() {
        let server = |network: u8, port: u16, players: u16| {
            let facts = Facts { players_current: Some(players), ..Facts::default() };
            let address = Address::new([192, 0, network, 1].into(), port).unwrap();
            Arc::new(Server::new(address, Game::Own("tanks"), Proof::Query, 0, &facts))
        };
        let view = View::new(1, 0, vec![server(1, 1, 6), server(1, 2, 7), server(2, 3, 4), server(3, 4, 0)]);
        let standings = view.standings("tanks", view.of_game("tanks"));
        assert!(Arc::ptr_eq(&standings, &view.standings("tanks", view.games())));
        let mut ports: Vec<_> = view.games().collect();
        ports.sort_by_key(|server| std::cmp::Reverse(standings.of(server)));
        assert_eq!(ports.iter().map(|server| server.address.port()).collect::<Vec<_>>(), [2, 3, 1, 4]);
        assert_eq!(standings.of(&server(9, 9, 9)), 0);
        (0..9).for_each(|number| drop(view.standings(&number.to_string(), view.of_game("made up"))));
        assert_eq!(view.standings.lock().unwrap().len(), 1);
    }

    #[test]
    fn a_variant_is_made_once() {
        let rendered = Rendered::new("body");
        assert_eq!(rendered.as_of_ms, None);
        assert_eq!(Rendered::of(&View::new(1, 77, Vec::new()), "body", None).as_of_ms, Some(77));
        assert_eq!(rendered.variant(0, |_| Some("ody".into())), Some("ody".into()));
        assert_eq!(rendered.variant(0, |_| None), Some("ody".into()));
        assert_eq!(rendered.variant(1, |_| None), None);
        assert_eq!(rendered.variant(VARIANTS, |body| Some(body.clone())), None);
        let rendered = Arc::new(Rendered::new("body"));
        let begun = rendered.begin(2).unwrap();
        assert!(rendered.begin(2).is_none() && rendered.begin(VARIANTS).is_none(), "another caller makes it");
        drop(begun);
        rendered.begin(2).unwrap().make(|_| Some("ody".into()));
        assert_eq!(rendered.made(2), Some(Some("ody".into())));
    }

    #[test]
    fn a_variant_is_wanted_for_some_lists_after_a_client_has_asked_for_it() {
        let mut list = Rendered::new("body");
        list.want(1);
        list.want(VARIANTS);
        for _ in 1..WANTED_FOR {
            let next = Rendered::new("body");
            assert_eq!(next.wanted_as(&list).collect::<Vec<_>>(), [1]);
            list = next;
        }
        assert_eq!(Rendered::new("body").wanted_as(&list).count(), 0);
    }

    #[test]
    fn a_list_is_common_and_as_old_as_its_view_unless_its_renderer_says_otherwise() {
        struct Count;
        impl Renderer for Count {
            fn render(&self, view: &View) -> Body {
                view.servers.len().to_string().into()
            }
        }
        assert!(!Count.is_stale() && Count.is_common() && Count.group().is_none());
        let view = View::new(7, 0, Vec::new());
        let (list, tag) = Count.render_tagged(&view);
        assert!(list == "0".into() && tag.is_none() && Count.version(&view) == 7);
    }

    #[test]
    fn a_tag_of_its_own_is_weak_and_says_what_was_written_into_it() {
        let view = View::new(1, 0, Vec::new());
        let tagged = |body: &'static str, said: &str| {
            let mut tag = Tag::default();
            io::Write::write_all(&mut tag, said.as_bytes()).unwrap();
            io::Write::flush(&mut tag).unwrap();
            Rendered::of(&view, body, Some(tag)).etag
        };
        assert_eq!(tagged("at 1", "at"), tagged("at 2", "at"));
        assert_ne!(tagged("at 1", "at"), tagged("at 1", "in"));
        assert_eq!(tagged("at", "at"), format!("W/{}", Rendered::new("at").etag));
    }
}
