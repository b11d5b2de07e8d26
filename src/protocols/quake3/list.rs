//! The lists that clients ask for. Servers are separated by game and protocol number, always by both.
//!
//! All requests share one index of each view: servers by game and protocol number, sorted once, the best first. A list
//! that is cut short has the servers that most players want, of as many networks as possible.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher;
use std::sync::{Arc, Mutex, PoisonError};

use siphasher::sip::SipHasher13;

use super::NAME;
use super::info::GAME_TYPE_BYTES_MAX;
use super::packets;
use super::tags::Tags;
use super::wire::{self, ToMaster, integer};
use crate::model::{Address, Server};
use crate::protocols::{ListRequest, packets as rendered};
use crate::registry::recent::Recent;
use crate::registry::view::{Body, Renderer, View, claim, sort_fairly};

/// The keys of an announcement that lists are filtered by. What a server says later, in a status, does not change them.
pub const GAME_KEY: &[u8] = b"gamename";
pub const PROTOCOL_KEY: &[u8] = b"protocol";
pub const GAME_TYPE_KEY: &[u8] = b"gametype";
pub const TAG_KEY: &[u8] = b"tag";

/// The longest list: about 50,000 servers. The budget decides how much of it is sent.
const PACKETS_MAX: usize = 256;

/// Every list of this master.
pub struct Lists {
    shared: Arc<Shared>,
    /// What was asked for lately: whole lists of the games in the table of tags, and all others, which anybody can make up.
    common: Recent<ListRequest>,
    rare: Recent<ListRequest>,
}

struct Shared {
    tags: Tags,
    /// Of the view with this serial.
    index: Mutex<Option<(u64, Arc<Index>)>>,
}

impl Lists {
    pub fn new(tags: Tags) -> Lists {
        let shared = Arc::new(Shared { tags, index: Mutex::default() });
        Lists { shared, common: Recent::default(), rare: Recent::default() }
    }

    /// The canonical form of a request: equal for all requests for the same list.
    pub fn canonical(&self, request: &wire::GetServers<'_>) -> ListRequest {
        let tags = &self.shared.tags;
        let game = request.game.or_else(|| tags.game_of(request.protocol).map(str::as_bytes));
        let lists_all = game.is_some_and(|game| tags.lists_all(game));
        // No server has a longer one: what is cut off finds nothing either.
        let game_type = request.game_type.map(|text| text.get(..GAME_TYPE_BYTES_MAX + 1).unwrap_or(text));
        let (empty, full) = (request.empty || lists_all, request.full || lists_all);
        let mut canonical = ListRequest::new();
        wire::GetServers { game, game_type, empty, full, ..*request }.emit(&mut canonical);
        canonical
    }

    /// The renderer of a request's list: the same one for equal requests.
    pub fn renderer(&self, request: &ListRequest) -> Arc<dyn Renderer> {
        let is_common = self.is_common(request);
        let recent = if is_common { &self.common } else { &self.rare };
        recent.get(request.clone(), |request| Arc::new(GameList { request, is_common, shared: self.shared.clone() }))
    }

    fn is_common(&self, request: &ListRequest) -> bool {
        let Ok(ToMaster::List(request)) = ToMaster::parse(request) else { return false };
        let game = request.game.filter(|_| request.game_type.is_none());
        game.is_some_and(|game| {
            self.shared.tags.lists().any(|(name, protocol)| name.as_bytes() == game && protocol == request.protocol)
        })
    }
}

/// One list.
struct GameList {
    request: ListRequest,
    is_common: bool,
    shared: Arc<Shared>,
}

impl Renderer for GameList {
    fn render(&self, view: &View) -> Body {
        let Ok(ToMaster::List(request)) = ToMaster::parse(&self.request) else { return Body::default() };
        let index = self.shared.index(view);
        let wanted = request.game.or_else(|| index.by_protocol.get(&request.protocol).map(|(_, game)| &**game));
        let lists_all = wanted.is_some_and(|game| self.shared.tags.lists_all(game));
        let (empty, full) = (request.empty || lists_all, request.full || lists_all);
        let entries = wanted.map(|game| index.entries(game, request.protocol, request.game_type)).unwrap_or_default();
        let entries = entries.iter().filter(|entry| {
            let address = entry.server.address;
            (if address.ipv4().is_some() { request.ipv4 } else { request.ipv6 })
                && (empty || !entry.is_empty)
                && (full || !entry.is_full)
                && request.game_type.is_none_or(|wanted| game_type(&entry.server) == wanted)
        });
        let mut list = Vec::new();
        for packet in packets::encode(request.extended, entries.map(|entry| entry.server.address), PACKETS_MAX) {
            rendered::push(&mut list, &packet);
        }
        list.into()
    }

    fn is_common(&self) -> bool {
        self.is_common
    }

    /// They share the index.
    fn group(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.shared).addr())
    }
}

/// All servers of a view, as lists need them.
#[derive(Default)]
struct Index {
    by_game: HashMap<Box<[u8]>, Vec<OfProtocol>>,
    /// The game that a protocol number means where the table of tags does not say: that of the first server with this
    /// number whose tag stands for one game. With when it was first seen.
    by_protocol: HashMap<i32, (u64, Box<[u8]>)>,
}

/// The servers of a game with one protocol number, best first.
struct OfProtocol {
    protocol: i32,
    entries: Vec<Entry>,
    /// What clients can filter by. Anybody can make up other game types, and those cost no search.
    game_types: HashSet<Box<[u8]>>,
}

struct Entry {
    server: Arc<Server>,
    is_empty: bool,
    is_full: bool,
}

impl Shared {
    /// The index of a view. Requests for other lists of the same view wait for it instead of making their own.
    fn index(&self, view: &View) -> Arc<Index> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        match &*index {
            Some((serial, index)) if *serial == view.serial => index.clone(),
            _ => {
                let new = Arc::new(Index::of(view, &self.tags));
                *index = Some((view.serial, new.clone()));
                new
            }
        }
    }
}

impl Index {
    fn of(view: &View, tags: &Tags) -> Index {
        let mut index = Index::default();
        for server in view.of_protocol(NAME) {
            index.add(server, tags);
        }
        for of_protocol in index.by_game.values_mut().flatten() {
            let shuffled = |entry: &Entry| shuffled(entry.server.address);
            sort_fairly(&mut of_protocol.entries, |entry| claim(&entry.server), shuffled);
        }
        index
    }

    fn add(&mut self, server: &Arc<Server>, tags: &Tags) {
        let Some(protocol) = protocol(server) else { return };
        let game = server.game.name().as_bytes();
        let tag = server.keys.as_ref().and_then(|keys| keys.get(TAG_KEY));
        let of_tag = tag.and_then(|tag| tags.find(tag)).and_then(|(_, tag)| tag.game.as_deref());
        if of_tag.is_some_and(|of_tag| of_tag.as_bytes() == game) {
            let first = self.by_protocol.entry(protocol).or_insert_with(|| (server.first_seen_ms, game.into()));
            if (server.first_seen_ms, game) < (first.0, &*first.1) {
                *first = (server.first_seen_ms, game.into());
            }
        }
        let clients = rule(server, "clients").and_then(|clients| clients.parse().ok()).or(server.players_current);
        let is_empty = clients == Some(0);
        // More clients than there is room for do not count as full, as on dpmaster.
        let is_full = clients.is_some() && clients == server.players_max;
        let entry = Entry { server: server.clone(), is_empty, is_full };
        let protocols = match self.by_game.get_mut(game) {
            Some(protocols) => protocols,
            None => self.by_game.entry(game.into()).or_default(),
        };
        let at = match protocols.iter().position(|known| known.protocol == protocol) {
            Some(at) => at,
            None => {
                protocols.push(OfProtocol { protocol, entries: Vec::new(), game_types: HashSet::new() });
                protocols.len() - 1
            }
        };
        let Some(of_protocol) = protocols.get_mut(at) else { return };
        if !of_protocol.game_types.contains(game_type(server)) {
            of_protocol.game_types.insert(game_type(server).into());
        }
        of_protocol.entries.push(entry);
    }

    /// The servers of a game and protocol number, of all game types; none where no server has the one that is wanted.
    fn entries(&self, game: &[u8], protocol: i32, game_type: Option<&[u8]>) -> &[Entry] {
        let protocols = self.by_game.get(game).map(Vec::as_slice).unwrap_or_default();
        let found = protocols.iter().find(|known| known.protocol == protocol);
        let found = found.filter(|found| game_type.is_none_or(|wanted| found.game_types.contains(wanted)));
        found.map(|found| &*found.entries).unwrap_or_default()
    }
}

/// A stable order that favours no network.
fn shuffled(address: Address) -> u64 {
    let mut hasher = SipHasher13::new();
    std::hash::Hash::hash(&address, &mut hasher);
    hasher.finish()
}

/// The protocol number that a server announced itself with. One that came in another way says it among its rules.
fn protocol(server: &Server) -> Option<i32> {
    let announced = server.keys.as_ref().and_then(|keys| keys.get(PROTOCOL_KEY)).and_then(integer);
    let said = || ["protocol", "com_protocol"].iter().find_map(|name| integer(rule(server, name)?.as_bytes()));
    announced.or_else(said)
}

fn game_type(server: &Server) -> &[u8] {
    let announced = server.keys.as_ref().and_then(|keys| keys.get(GAME_TYPE_KEY));
    let said = || ["gametype", "g_gametype"].iter().find_map(|name| rule(server, name)).map(str::as_bytes);
    announced.or_else(said).unwrap_or(b"0")
}

fn rule<'a>(server: &'a Server, name: &str) -> Option<&'a str> {
    server.rules().get(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Details, Facts, HeartbeatKeys, Overrides, Proof};
    use crate::protocols::game;
    use crate::protocols::packets::split;

    #[derive(Clone, Copy)]
    struct Made {
        address: &'static str,
        game: &'static str,
        tag: &'static str,
        protocol: &'static str,
        clients: u16,
    }

    /// Announced as the address says: the last part of the port is its place in time.
    fn server(made: &Made) -> Server {
        let rules = [("clients", &*made.clients.to_string())].into();
        let facts = Facts {
            players_current: Some(made.clients),
            players_max: Some(8),
            details: Some(Arc::new(Details { players: Vec::new(), rules })),
            ..Facts::default()
        };
        let address: Address = made.address.parse().unwrap();
        let keys = [
            (GAME_KEY, made.game),
            (PROTOCOL_KEY, made.protocol),
            (GAME_TYPE_KEY, if made.clients == 3 { "ctf" } else { "0" }),
            (TAG_KEY, made.tag),
        ];
        let keys = HeartbeatKeys(keys.into_iter().collect());
        let first_seen = u64::from(address.port());
        let server = Server::new(address, game(NAME, made.game).unwrap(), Proof::Query, first_seen, &facts);
        Server { keys: Some(Arc::new(keys)), ..server }
    }

    const SERVERS: &[Made] = &[
        Made { address: "203.0.113.1:1", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "68", clients: 1 },
        Made { address: "203.0.113.1:2", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "0x47", clients: 2 },
        Made { address: "203.0.113.1:3", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "71", clients: 8 },
        Made { address: "203.0.113.1:4", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "71", clients: 0 },
        Made { address: "203.0.113.1:5", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "71", clients: 9 },
        Made { address: "[2001:db8::1]:6", game: "Quake3Arena", tag: "QuakeArena-1", protocol: "71", clients: 3 },
        Made { address: "203.0.113.1:7", game: "Xonotic", tag: "DarkPlaces", protocol: "3", clients: 2 },
        Made { address: "203.0.113.1:8", game: "Nexuiz", tag: "DarkPlaces", protocol: "3", clients: 2 },
        Made { address: "203.0.113.1:9", game: "et", tag: "EnemyTerritory-1", protocol: "84", clients: 0 },
        Made { address: "203.0.113.1:10", game: "et", tag: "EnemyTerritory-1", protocol: "84", clients: 8 },
        Made { address: "203.0.113.1:11", game: "wolfmp", tag: "Wolfenstein-1", protocol: "71", clients: 1 },
    ];

    fn view() -> View {
        View::new(1, 0, SERVERS.iter().rev().map(|made| Arc::new(server(made))).collect())
    }

    fn canonical(lists: &Lists, text: &str) -> ListRequest {
        let bytes = [&wire::HEADER[..], text.as_bytes()].concat();
        let Ok(ToMaster::List(request)) = ToMaster::parse(&bytes) else { panic!("{text}") };
        lists.canonical(&request)
    }

    fn addresses(list: &[u8]) -> Vec<Address> {
        split(list).flat_map(|packet| packets::decode(packet).unwrap().servers).collect()
    }

    /// The ports of a list, in its order.
    fn listed(text: &str) -> Vec<u16> {
        let lists = Lists::new(Tags::default());
        let list = lists.renderer(&canonical(&lists, text)).render(&view()).to_vec();
        assert!(packets::decode(split(&list).last().unwrap()).unwrap().end);
        addresses(&list).iter().map(Address::port).collect()
    }

    #[test]
    fn games_are_separated_by_name_and_protocol() {
        assert_eq!(listed("getservers 68 empty full"), [1]);
        assert_eq!(listed("getservers Quake3Arena 68 empty full"), [1]);
        assert_eq!(listed("getservers Xonotic 3 empty full"), [7]);
        assert_eq!(listed("getservers Nexuiz 3"), [8]);
        assert_eq!(listed("getservers xonotic 3"), [0; 0], "the case counts");
        assert_eq!(listed("getservers 3 empty full"), [0; 0], "no DarkPlaces tag without a name");
        assert_eq!(listed("getservers Xonotic 4"), [0; 0]);
        assert_eq!(listed("getservers Quake3Arena 3"), [0; 0]);
    }

    #[test]
    fn a_number_of_no_tag_means_the_game_of_the_first_server_that_has_it() {
        assert_eq!(listed("getservers 71"), [5, 2], "and not wolfmp, which came later");
        assert_eq!(listed("getservers wolfmp 71"), [11]);
        let lists = Lists::new(Tags::default());
        let liar = Made { address: "203.0.113.1:1", game: "Liar", tag: "QuakeArena-1", protocol: "71", clients: 1 };
        let view = View::new(1, 0, vec![Arc::new(server(&liar)), Arc::new(server(&SERVERS[1]))]);
        let list = lists.renderer(&canonical(&lists, "getservers 71")).render(&view).to_vec();
        assert_eq!(addresses(&list), ["203.0.113.1:2".parse().unwrap()], "a tag does not speak for another game");
    }

    #[test]
    fn empty_and_full_servers_and_those_of_a_game_type() {
        assert_eq!(listed("getservers 71"), [5, 2], "more clients than there is room for are not full");
        assert_eq!(listed("getservers 71 empty"), [5, 2, 4]);
        assert_eq!(listed("getservers 71 full"), [5, 3, 2]);
        assert_eq!(listed("getservers 84"), [10, 9], "et lists all of them");
        assert_eq!(listed("getserversExt Quake3Arena 71 gametype=ctf"), [6]);
        assert_eq!(listed("getserversExt Quake3Arena 71 ffa ipv4"), [5, 2]);
        assert_eq!(listed(&format!("getservers 71 empty gametype={}", "x".repeat(300))), [0; 0]);
    }

    #[test]
    fn families() {
        assert_eq!(listed("getserversExt Quake3Arena 71"), [5, 6, 2]);
        assert_eq!(listed("getserversExt Quake3Arena 71 ipv4"), [5, 2]);
        assert_eq!(listed("getserversExt Quake3Arena 71 ipv6"), [6]);
        assert_eq!(listed("getserversExt Quake3Arena 71 ipv6 ipv4"), [5, 6, 2]);
    }

    #[test]
    fn the_operators_priority_counts_before_players_and_the_rest_keeps_its_order() {
        let lists = Lists::new(Tags::default());
        let mut servers: Vec<Server> = SERVERS.iter().map(server).collect();
        servers[3].overrides = Overrides { priority: 5, ..Overrides::default() };
        servers[4].overrides = Overrides { priority: -5, ..Overrides::default() };
        let view = View::new(1, 0, servers.into_iter().map(Arc::new).collect());
        let list = lists.renderer(&canonical(&lists, "getservers 71 empty full")).render(&view).to_vec();
        assert_eq!(addresses(&list).iter().map(Address::port).collect::<Vec<_>>(), [4, 3, 2, 5]);

        let many = |rotate: usize| {
            let made = Made { address: "203.0.113.1:1", game: "Xonotic", tag: "DarkPlaces", protocol: "3", clients: 1 };
            let at = |port: u16| Address::new([203, 0, 113, 1].into(), port).unwrap();
            let mut servers: Vec<_> =
                (1..=450).map(|port| Arc::new(Server { address: at(port), ..server(&made) })).collect();
            servers.rotate_left(rotate);
            let lists = Lists::new(Tags::default());
            lists.renderer(&canonical(&lists, "getservers Xonotic 3")).render(&View::new(1, 0, servers)).to_vec()
        };
        assert_eq!(many(0), many(77));
        let packets = many(0);
        assert!(split(&packets).count() == 3 && split(&packets).all(|packet| packet.len() <= 1_400));
        let mut found = addresses(&packets);
        found.sort();
        found.dedup();
        assert_eq!(found.len(), 450);
    }

    #[test]
    fn a_list_that_is_cut_short_has_servers_of_all_networks() {
        let made = Made { address: "203.0.113.1:1", game: "Xonotic", tag: "DarkPlaces", protocol: "3", clients: 7 };
        let fakes = (0..13 * 32u16).map(|number| {
            let address = Address::new([198, 51, (number / 32) as u8, 1].into(), 1 + number % 32).unwrap();
            Server { address, ..server(&made) }
        });
        let real = (0..100u8).map(|network| {
            let address = Address::new([203, 0, network, 1].into(), 1).unwrap();
            Server { address, ..server(&Made { clients: 1 + u16::from(network) % 3, ..made }) }
        });
        let lists = Lists::new(Tags::default());
        let view = View::new(1, 0, fakes.chain(real).map(Arc::new).collect());
        let list = lists.renderer(&canonical(&lists, "getservers Xonotic 3")).render(&view);
        let first: Vec<_> = packets::decode(split(list.whole()).next().unwrap()).unwrap().servers;
        let real_at: Vec<_> = (0..).zip(&first).filter(|(_, it)| it.ip().to_string().starts_with("203")).collect();
        assert_eq!((real_at.len(), real_at[0].0, real_at[99].0), (100, 13, 112));
    }

    #[test]
    fn equal_requests_share_a_renderer_and_all_share_an_index() {
        let lists = Lists::new(Tags::default());
        let first = lists.renderer(&canonical(&lists, "getservers 84 empty full\n"));
        assert!(Arc::ptr_eq(&first, &lists.renderer(&canonical(&lists, "getservers et 84"))));
        let another = lists.renderer(&canonical(&lists, "getservers et 83"));
        assert!(!Arc::ptr_eq(&first, &another));
        let elsewhere = Lists::new(Tags::default());
        let elsewhere = elsewhere.renderer(&canonical(&elsewhere, "getservers et 84"));
        assert!(first.group().is_some() && first.group() == another.group() && first.group() != elsewhere.group());
        let (first_view, view) = (view(), View::new(2, 0, Vec::new()));
        let index = lists.shared.index(&first_view);
        first.render(&first_view).to_vec();
        lists.renderer(&canonical(&lists, "getservers 71")).render(&first_view).to_vec();
        assert!(Arc::ptr_eq(&index, &lists.shared.index(&first_view)), "made once");
        assert!(!Arc::ptr_eq(&index, &lists.shared.index(&view)));
    }

    /// Otherwise anybody could have every list rendered anew all the time, those on web pages, too.
    #[test]
    fn made_up_requests_are_forgotten_and_push_out_no_others() {
        let lists = Lists::new(Tags::default());
        let common = lists.renderer(&canonical(&lists, "getservers 68 empty full"));
        assert!(common.is_common());
        assert!(!lists.renderer(&canonical(&lists, "getservers 68 gametype=x")).is_common());
        let mut made_up = Vec::new();
        for number in 0..1_000 {
            for text in ["getservers made{} 1", "getservers 68 gametype={}", "getservers {}", "getserversExt et {}"] {
                let text = text.replace("{}", &(1_000 + number).to_string());
                made_up.push(Arc::downgrade(&lists.renderer(&canonical(&lists, &text))));
            }
        }
        assert!(made_up.iter().filter(|renderer| renderer.upgrade().is_some()).count() <= 64);
        assert!(Arc::ptr_eq(&common, &lists.renderer(&canonical(&lists, "getservers Quake3Arena 68 full empty"))));
    }

    #[test]
    fn a_game_type_that_no_server_has_costs_no_search() {
        let index = Index::of(&view(), &Tags::default());
        let found = |game_type: &[u8]| index.entries(b"Quake3Arena", 71, Some(game_type)).len();
        assert_eq!((found(b"ctf"), found(b"made up"), found(b"")), (5, 0, 0));
    }

    #[test]
    fn what_a_status_says_later_does_not_move_a_server_to_another_list() {
        let mut server = server(&SERVERS[6]);
        let rules =
            [("clients", "2"), ("protocol", "99"), ("com_protocol", "99"), ("gametype", "ctf"), ("gamename", "x")];
        server.details = Some(Arc::new(Details { players: Vec::new(), rules: rules.into() }));
        let view = View::new(1, 0, vec![Arc::new(server)]);
        let found = |text: &str| {
            let lists = Lists::new(Tags::default());
            addresses(&lists.renderer(&canonical(&lists, text)).render(&view).to_vec()).len()
        };
        assert_eq!((found("getservers Xonotic 3"), found("getservers Xonotic 99")), (1, 0));
        assert_eq!((found("getservers Xonotic 3 ffa"), found("getservers Xonotic 3 gametype=ctf")), (1, 0));
        assert_eq!(found("getservers x 3"), 0);
    }

    #[test]
    fn the_longest_request_fits() {
        let lists = Lists::new(Tags::default());
        let text = format!(
            "getserversExt {} -2147483648 empty full ipv6 gametype={}",
            "g".repeat(wire::GAME_BYTES_MAX),
            "x".repeat(500)
        );
        let request = canonical(&lists, &text);
        assert!(request.len() == 151 && request.remaining_capacity() > 0);
        let Ok(ToMaster::List(again)) = ToMaster::parse(&request) else { panic!() };
        assert_eq!(lists.canonical(&again), request, "canonical is canonical");
    }

    #[test]
    fn servers_that_came_in_another_way_are_listed_by_what_they_say() {
        let mut named = server(&SERVERS[6]);
        named.keys = None;
        let view = |server: &Server| View::new(1, 0, vec![Arc::new(server.clone())]);
        let list = |server: &Server| {
            let lists = Lists::new(Tags::default());
            addresses(&lists.renderer(&canonical(&lists, "getservers Xonotic 3")).render(&view(server)).to_vec()).len()
        };
        assert_eq!(list(&named), 0, "nobody knows its protocol");
        for key in ["protocol", "com_protocol"] {
            let rules = [("clients", "1"), (key, "3")].into();
            named.details = Some(Arc::new(Details { players: Vec::new(), rules }));
            assert_eq!(list(&named), 1);
        }
    }
}
