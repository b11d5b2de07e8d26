//! The lists that clients ask for: servers of a region, by gamedir, map, protocol number and flags.
//!
//! All requests share one index of each view, sorted once, the best servers of each network first. A gamedir or map that no
//! server has costs no search, because anybody can make one up.

use std::collections::HashMap;
use std::hash::Hasher;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use siphasher::sip::SipHasher13;

use super::info::Listing;
use super::wire::{FIELD_BYTES_MAX, Flags, Info, OLD_PROTOCOL, ToMaster, Version, WORLD, Wanted};
use super::{NAME, packets};
use crate::model::Address;
use crate::prefix::fair::rounds;
use crate::protocols::{ListRequest, packets as rendered};
use crate::registry::recent::Recent;
use crate::registry::view::{Body, Renderer, View, claim, sort_fairly};
use crate::text;

/// The longest list: about 20,000 servers. The budget decides how much of it is sent.
const PACKETS_MAX: usize = 256;
/// How many servers behind NAT are told of one client at most.
const NAT_MAX: usize = 32;

/// The games whose lists are asked for all the time: Half-Life, Counter-Strike and their relatives.
const COMMON: [&[u8]; 9] = [b"valve", b"cstrike", b"czero", b"dod", b"tfc", b"gearbox", b"bshift", b"dmc", b"ricochet"];

/// Which clients get the list, and what the others are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    pub version_min: Version,
    pub build_min: u32,
    /// For clients before 0.20, whose builds are counted separately.
    pub old_build_min: u32,
    /// What clients that are too old see in their list, one of each family at most.
    pub update: Vec<SocketAddr>,
    /// The name and the map there.
    pub title: String,
    pub map: String,
}

impl Gate {
    /// Whether clients have to say who they are.
    pub fn is_set(&self) -> bool {
        self.version_min > Version::default() || self.build_min > 0 || self.old_build_min > 0
    }

    fn is_too_old(&self, wanted: &Wanted<'_>) -> bool {
        let build_min = match wanted.version {
            Some(version) if version < Version::SPEAKS_NEW => self.old_build_min,
            _ => self.build_min,
        };
        let version = wanted.version.unwrap_or_default();
        version < self.version_min || wanted.build.unwrap_or(0) < build_min
    }
}

/// The index of the view with this serial.
type SharedIndex = Arc<Mutex<Option<(u64, Arc<Index>)>>>;

/// Every list of this master.
pub struct Lists {
    gate: Arc<Gate>,
    index: SharedIndex,
    /// What was asked for lately: whole lists of well-known games, and all others, which anybody can make up.
    common: Recent<Content>,
    rare: Recent<Content>,
}

/// What a list shows. Equal for all requests that get the same list.
// A box would be an allocation per request.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    Servers {
        request: ListRequest,
        old: bool,
        behind_nat: bool,
    },
    /// For clients that are too old.
    Update {
        ipv6: bool,
    },
    /// "Update please".
    Info {
        protocol: u8,
    },
}

impl Lists {
    pub fn new(gate: Gate) -> Lists {
        let (common, rare) = (Recent::default(), Recent::default());
        Lists { gate: Arc::new(gate), index: Arc::default(), common, rare }
    }

    /// The canonical form of a request: only what its answer depends on.
    pub fn canonical(&self, wanted: &Wanted<'_>) -> ListRequest {
        let is_old = wanted.version.is_some_and(|version| version < Version::SPEAKS_NEW);
        let says_who = self.gate.is_set() || is_old;
        let (version, build) = (wanted.version.filter(|_| says_who), wanted.build.filter(|_| says_who));
        let mut canonical = ListRequest::new();
        let request = match self.gate.is_too_old(wanted) {
            // Without a build it is too old just as well.
            true => Wanted { ipv6: wanted.ipv6, key: wanted.key, version, ..Wanted::default() },
            false => Wanted { gamedir: wanted.gamedir.map(cut), map: wanted.map.map(cut), version, build, ..*wanted },
        };
        request.emit(&mut canonical);
        canonical
    }

    /// The renderer of a request's list: the same one for equal lists.
    pub fn renderer(&self, request: &ListRequest) -> Arc<dyn Renderer> {
        self.shared(self.content(request, false))
    }

    /// The servers behind NAT in a request's list.
    pub fn behind_nat(&self, request: &ListRequest) -> Option<Arc<dyn Renderer>> {
        let content = self.content(request, true);
        matches!(content, Content::Servers { .. }).then(|| self.shared(content))
    }

    fn content(&self, request: &ListRequest, behind_nat: bool) -> Content {
        match ToMaster::parse(request) {
            Ok(ToMaster::Query(wanted)) if self.gate.is_too_old(&wanted) => Content::Update { ipv6: wanted.ipv6 },
            Ok(ToMaster::Query(wanted)) => {
                let old = wanted.version.is_some_and(|version| version < Version::SPEAKS_NEW);
                let mut request = ListRequest::new();
                Wanted { key: None, version: None, build: None, ..wanted }.emit(&mut request);
                Content::Servers { request, old, behind_nat }
            }
            Ok(ToMaster::Info { protocol }) => Content::Info { protocol },
            _ => Content::Info { protocol: OLD_PROTOCOL },
        }
    }

    fn shared(&self, content: Content) -> Arc<dyn Renderer> {
        let is_common = is_common(&content);
        let recent = if is_common { &self.common } else { &self.rare };
        let (index, gate) = (self.index.clone(), self.gate.clone());
        recent.get(content, |content| Arc::new(GameList { content, is_common, index, gate }))
    }
}

/// No server has a longer gamedir or map: what is cut off finds nothing either.
fn cut(field: &[u8]) -> &[u8] {
    field.get(..FIELD_BYTES_MAX + 1).unwrap_or(field)
}

/// The lists that engines ask for: of a well-known game, with and without servers behind NAT. They are few.
fn is_common(content: &Content) -> bool {
    let Content::Servers { request, old: false, behind_nat: false } = content else { return false };
    let Ok(ToMaster::Query(wanted)) = ToMaster::parse(request) else { return false };
    let is_plain = wanted.region == WORLD && !wanted.ipv6 && wanted.map.is_none() && wanted.protocol.is_none();
    is_plain && wanted.mask.0 & !Flags::NAT == 0 && wanted.gamedir.is_some_and(|gamedir| COMMON.contains(&gamedir))
}

/// One list.
struct GameList {
    content: Content,
    is_common: bool,
    index: SharedIndex,
    gate: Arc<Gate>,
}

impl Renderer for GameList {
    fn render(&self, view: &View) -> Body {
        let mut list = Vec::new();
        let mut push = |packets: Vec<Vec<u8>>| packets.iter().for_each(|packet| rendered::push(&mut list, packet));
        match &self.content {
            Content::Info { protocol } => push(vec![self.update_please(*protocol)]),
            Content::Update { ipv6 } => {
                let update = self.gate.update.iter().filter_map(|at| Address::new(at.ip(), at.port()));
                push(packets::encode(*ipv6, update.filter(|at| at.ipv4().is_none() == *ipv6).take(1), 1));
            }
            Content::Servers { request, old, behind_nat } => {
                let Ok(ToMaster::Query(wanted)) = ToMaster::parse(request) else { return list.into() };
                let index = self.index(view);
                let servers = index.servers(&wanted, *old);
                match behind_nat {
                    true => {
                        let behind_nat = servers.filter(|entry| entry.flags.has(Flags::NAT));
                        let told = told(behind_nat.map(|entry| entry.address), view.serial);
                        told.into_iter().for_each(|address| rendered::push_address(&mut list, address));
                    }
                    false => push(packets::encode(wanted.ipv6, servers.map(|entry| entry.address), PACKETS_MAX)),
                }
            }
        }
        list.into()
    }

    fn is_common(&self) -> bool {
        self.is_common
    }

    /// They share the index.
    fn group(&self) -> Option<usize> {
        Some(Arc::as_ptr(&self.index).addr())
    }
}

impl GameList {
    /// What a client that is too old sees where it expects a server.
    fn update_please(&self, protocol: u8) -> Vec<u8> {
        let mut packet = Vec::new();
        let info = Info {
            protocol,
            host: self.gate.title.as_bytes(),
            map: self.gate.map.as_bytes(),
            gamedir: b"valve",
            max: 32,
            deathmatch: true,
            ..Info::default()
        };
        info.emit(&mut packet);
        packet
    }

    /// The index of a view. Requests for other lists of the same view wait for it instead of making their own.
    fn index(&self, view: &View) -> Arc<Index> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        match &*index {
            Some((serial, index)) if *serial == view.serial => index.clone(),
            _ => {
                let new = Arc::new(Index::of(view));
                *index = Some((view.serial, new.clone()));
                new
            }
        }
    }
}

/// All servers of a view, as lists need them.
#[derive(Default)]
struct Index {
    /// The best first.
    all: Vec<Entry>,
    /// Positions in `all`; the best first, among those of this gamedir.
    by_gamedir: HashMap<Box<[u8]>, Vec<u32>>,
    /// The number of each map.
    maps: HashMap<Box<str>, u32>,
}

struct Entry {
    address: Address,
    flags: Flags,
    protocol: u8,
    region: u8,
    map: u32,
}

impl Index {
    fn of(view: &View) -> Index {
        let mut index = Index::default();
        let mut servers: Vec<_> = view.of_protocol(NAME).collect();
        sort_fairly(&mut servers, |server| claim(server), |server| shuffled(server.address, 0));
        for (number, server) in (0..).zip(&servers) {
            let Listing { gamedir, protocol, region, flags } = Listing::of(server);
            let of_gamedir = match index.by_gamedir.get_mut(gamedir) {
                Some(of_gamedir) => of_gamedir,
                None => index.by_gamedir.entry(gamedir.into()).or_default(),
            };
            of_gamedir.push(number);
            let next = index.maps.len() as u32; // no more than servers
            let map = server.texts.map();
            let map = match index.maps.get(map) {
                Some(known) => *known,
                None => *index.maps.entry(map.into()).or_insert(next),
            };
            index.all.push(Entry { address: server.address, flags, protocol, region, map });
        }
        // A host's servers of other games do not count.
        for numbers in index.by_gamedir.values_mut() {
            let mut of_gamedir: Vec<_> =
                numbers.iter().filter_map(|number| Some((*number, *servers.get(*number as usize)?))).collect();
            sort_fairly(&mut of_gamedir, |(_, server)| claim(server), |(_, server)| shuffled(server.address, 0));
            *numbers = of_gamedir.into_iter().map(|(number, _)| number).collect();
        }
        index
    }

    /// The servers that a client wants and can join.
    fn servers(&self, wanted: &Wanted<'_>, old: bool) -> impl Iterator<Item = &Entry> {
        let wanted_map = wanted.map.map(|map| self.maps.get(&*text::clean(map)));
        let nothing = wanted_map == Some(None);
        let of_gamedir = wanted.gamedir.map(|gamedir| self.by_gamedir.get(gamedir).map_or(&[][..], Vec::as_slice));
        let some = of_gamedir.into_iter().flatten().filter_map(|number| self.all.get(*number as usize));
        let all = self.all.iter().filter(move |_| of_gamedir.is_none());
        let (region, protocol, mask, flags) = (wanted.region, wanted.protocol, wanted.mask.0, wanted.flags.0);
        let ipv6 = wanted.ipv6;
        some.chain(all).take(if nothing { 0 } else { usize::MAX }).filter(move |entry| {
            entry.region == region
                && entry.address.ipv4().is_none() == ipv6
                && entry.flags.0 & mask == flags
                && protocol.is_none_or(|protocol| entry.protocol == protocol)
                && (!old || entry.protocol == OLD_PROTOCOL)
                && wanted_map.flatten().is_none_or(|map| entry.map == *map)
        })
    }
}

/// The servers behind NAT that are told of a client: others with each view, and one of each network before two of any. Nobody
/// knows whether the players that they claim are there.
fn told(servers: impl Iterator<Item = Address>, serial: u64) -> Vec<Address> {
    let mut servers: Vec<_> = servers.collect();
    servers.sort_by_cached_key(|address| shuffled(*address, serial));
    let mut rounds = rounds(&servers.iter().map(Address::ip).collect::<Vec<_>>()).into_iter();
    servers.sort_by_cached_key(|_| rounds.next());
    servers.truncate(NAT_MAX);
    servers
}

/// An order that favours no network, the same for the same seed.
fn shuffled(address: Address, seed: u64) -> u64 {
    let mut hasher = SipHasher13::new_with_keys(seed, 0);
    std::hash::Hash::hash(&address, &mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Game, Overrides, Proof, Server};
    use crate::protocols::packets::{addresses, split};
    use crate::protocols::xash3d::info;

    /// A server whose port is its number, with these keys beside the usual ones.
    fn server(address: &str, keys: &str) -> Server {
        let text = format!("0\n\\challenge\\1\\region\\255{keys}");
        let Ok(ToMaster::Add(add)) = ToMaster::parse(text.as_bytes()) else { panic!("{text}") };
        let address: Address = address.parse().unwrap();
        let server = Server::new(address, Game::Own(NAME), Proof::Cookie, 1, &info::announced(&add));
        Server { keys: Some(Arc::new(info::keys(address, &add))), ..server }
    }

    fn servers() -> Vec<Server> {
        vec![
            server("203.0.113.1:1", r"\gamedir\valve\protocol\49\players\0\max\8\map\crossfire\type\d"),
            server("203.0.113.1:2", r"\gamedir\valve\protocol\49\players\8\max\8\map\bounce\nat\1"),
            server("203.0.113.1:3", r"\gamedir\valve\protocol\48\players\3\max\8\map\crossfire\type\l\password\1"),
            server(
                "203.0.113.1:4",
                r"\gamedir\cstrike\protocol\49\players\5\max\32\map\de_dust\type\d\secure\1\bots\2",
            ),
            server("203.0.113.1:5", r"\gamedir\valve\protocol\49\players\1\max\8\map\crossfire\lan\1\region\3"),
            server("[2001:db8::1]:6", r"\gamedir\valve\protocol\49\players\2\max\8\map\crossfire\type\d"),
        ]
    }

    fn view(servers: Vec<Server>) -> View {
        View::new(1, 0, servers.into_iter().map(Arc::new).collect())
    }

    fn canonical(lists: &Lists, region: u8, ipv6: bool, filter: &str) -> ListRequest {
        let bytes = [&[b'1', region], b"0.0.0.0:0\0".as_slice(), filter.as_bytes(), b"\0"].concat();
        let Ok(ToMaster::Query(wanted)) = ToMaster::parse(&bytes) else { panic!("{filter}") };
        lists.canonical(&Wanted { ipv6, ..wanted })
    }

    fn ports(list: &[u8]) -> Vec<u16> {
        let servers = split(list).flat_map(|packet| packets::decode(packet, 0).unwrap().servers);
        servers.map(|address| address.port()).collect()
    }

    /// The ports of a list, in its order.
    fn listed(filter: &str) -> Vec<u16> {
        let lists = Lists::new(Gate::default());
        ports(&lists.renderer(&canonical(&lists, WORLD, false, filter)).render(&view(servers())).to_vec())
    }

    #[test]
    fn every_key_of_a_filter() {
        for (filter, expected) in [
            ("", &[2, 4, 3, 1][..]),
            (r"\gamedir\valve", &[2, 3, 1]),
            (r"\gamedir\VALVE", &[]),
            (r"\gamedir\none", &[]),
            (r"\gamedir\valve\map\crossfire", &[3, 1]),
            (r"\map\none", &[]),
            (r"\map\de_dust", &[4]),
            (r"\protocol\48", &[3]),
            (r"\protocol\50", &[]),
            (r"\dedicated\1", &[4, 1]),
            (r"\dedicated\0", &[2, 3]),
            (r"\nat\1", &[2]),
            (r"\nat\0", &[4, 3, 1]),
            (r"\password\1", &[3]),
            (r"\password\0\secure\1", &[4]),
            (r"\bots\1", &[4]),
            (r"\lan\1", &[]),
            (r"\empty\1", &[1]),
            (r"\noplayers\1", &[1]),
            (r"\empty\0", &[2, 4, 3]),
            (r"\full\1", &[2]),
            (r"\full\0", &[4, 3, 1]),
            (r"\unknown\x\os\linux", &[2, 4, 3, 1]),
        ] {
            assert_eq!(listed(filter), expected, "{filter}");
        }
    }

    #[test]
    fn a_region_has_only_its_own_servers_and_a_client_those_of_its_family() {
        let lists = Lists::new(Gate::default());
        let list = |region, ipv6| {
            ports(&lists.renderer(&canonical(&lists, region, ipv6, "")).render(&view(servers())).to_vec())
        };
        assert_eq!((list(3, false), list(0, false), list(WORLD, true)), (vec![5], vec![], vec![6]));
    }

    #[test]
    fn old_clients_get_servers_that_they_can_join() {
        assert_eq!(listed(r"\clver\0.19.3\buildnum\3500"), [3]);
        assert_eq!(listed(r"\clver\0.19\protocol\49"), [0; 0]);
        assert_eq!(listed(r"\clver\0.20"), [2, 4, 3, 1]);
    }

    #[test]
    fn the_gate_shows_old_clients_one_address() {
        let gate = Gate {
            version_min: "0.21".parse().unwrap(),
            build_min: 4_000,
            old_build_min: 3_500,
            update: vec!["198.51.100.7:27010".parse().unwrap(), "[2001:db8::7]:27010".parse().unwrap()],
            ..Gate::default()
        };
        let list = |gate: &Gate, filter: &str| {
            let lists = Lists::new(gate.clone());
            let request = canonical(&lists, WORLD, false, filter);
            let Ok(ToMaster::Query(again)) = ToMaster::parse(&request) else { panic!() };
            assert_eq!(lists.canonical(&again), request, "{filter}: canonical is canonical");
            ports(&lists.renderer(&request).render(&view(servers())).to_vec())
        };
        let all = [2, 4, 3, 1];
        for (filter, expected) in [
            ("", &[27_010][..]),
            (r"\clver\0.20\buildnum\9999", &[27_010]),
            (r"\clver\0.21", &[27_010]),
            (r"\clver\0.21\buildnum\3999", &[27_010]),
            (r"\clver\0.21\buildnum\4000", &all),
            (r"\clver\1\buildnum\4000", &all),
        ] {
            assert_eq!(list(&gate, filter), expected, "{filter}");
        }
        let lists = Lists::new(gate.clone());
        let request = canonical(&lists, WORLD, true, r"\key\deadbeef\map\crossfire");
        let Ok(ToMaster::Query(wanted)) = ToMaster::parse(&request) else { panic!() };
        assert_eq!((wanted.key, wanted.map), (Some(0xdead_beef), None));
        let list_of_six = lists.renderer(&request).render(&view(servers())).to_vec();
        let found: Vec<_> =
            split(&list_of_six).flat_map(|packet| packets::decode(packet, 0).unwrap().servers).collect();
        assert_eq!(found, ["[2001:db8::7]:27010".parse().unwrap()]);
        let old = Gate { version_min: Version::default(), ..gate.clone() };
        assert_eq!(list(&old, r"\clver\0.19\buildnum\3499"), [27_010]);
        assert_eq!(list(&old, r"\clver\0.19\buildnum\3500"), [3]);
        assert_eq!(list(&old, r"\clver\0.20\buildnum\3500"), [27_010], "0.20 is counted with the new");
        assert_eq!(list(&old, r"\clver\0.20\buildnum\4000"), all);
        let only_old = Gate { build_min: 0, ..old };
        assert_eq!(list(&only_old, r"\clver\0.19\buildnum\3499"), [27_010]);
        assert_eq!(list(&only_old, r"\clver\0.21"), all);
        let nowhere = Gate { update: Vec::new(), ..gate };
        assert_eq!(list(&nowhere, ""), [0; 0], "an empty list is an answer, too");
    }

    #[test]
    fn any_bound_sets_the_gate() {
        assert!(!Gate::default().is_set());
        assert!(Gate { version_min: "0.0.1".parse().unwrap(), ..Gate::default() }.is_set());
        assert!(Gate { build_min: 1, ..Gate::default() }.is_set());
        assert!(Gate { old_build_min: 1, ..Gate::default() }.is_set());
    }

    #[test]
    fn who_is_too_old_learns_what_to_do() {
        let gate = Gate { title: "https://example.org".into(), map: "Update please".into(), ..Gate::default() };
        let lists = Lists::new(gate);
        let request: ListRequest = b"\xff\xff\xff\xffinfo 48".iter().copied().collect();
        let list = lists.renderer(&request).render(&view(Vec::new())).to_vec();
        let info = Info::parse(split(&list).next().unwrap()).unwrap();
        assert_eq!((info.protocol, info.host, info.map), (48, &b"https://example.org"[..], &b"Update please"[..]));
        assert_eq!((info.gamedir, info.max, info.deathmatch), (&b"valve"[..], 32, true));
        let request: ListRequest = b"\xff\xff\xff\xffinfo 49".iter().copied().collect();
        let list = lists.renderer(&request).render(&view(Vec::new())).to_vec();
        assert_eq!(Info::parse(split(&list).next().unwrap()).unwrap().protocol, 49, "as it asks");
    }

    #[test]
    fn servers_behind_nat_are_those_of_the_list() {
        let lists = Lists::new(Gate::default());
        let told = |filter: &str| {
            let request = canonical(&lists, WORLD, false, filter);
            let list = lists.behind_nat(&request).unwrap().render(&view(servers())).to_vec();
            addresses(&list).map(|address| address.port()).collect::<Vec<_>>()
        };
        assert_eq!(told(""), [2]);
        assert_eq!(
            (told(r"\gamedir\valve\nat\1"), told(r"\gamedir\cstrike"), told(r"\nat\0")),
            (vec![2], vec![], vec![])
        );
        let claims = r"\gamedir\valve\nat\1\players\32\max\32";
        let many = (1..=100).map(|port| server(&format!("203.0.113.9:{port}"), claims));
        let honest = server("198.51.100.7:9999", r"\gamedir\valve\nat\1\players\1\max\8");
        let many: Vec<_> = many.chain([honest]).map(Arc::new).collect();
        let request = canonical(&lists, WORLD, false, "");
        let told = |serial| {
            let list = lists.behind_nat(&request).unwrap().render(&View::new(serial, 0, many.clone())).to_vec();
            addresses(&list).map(|address| address.port()).collect::<Vec<_>>()
        };
        let (one, other) = (told(9), told(10));
        assert_eq!((one.len(), other.len()), (NAT_MAX, NAT_MAX));
        assert!(one.contains(&9999) && other.contains(&9999), "one network does not displace the others");
        assert_ne!(one, other, "others take their turn with the next view");
    }

    #[test]
    fn one_of_each_network_comes_before_two_of_any_whatever_else_they_host() {
        let host = |port: u16, gamedir: &str, players: u16| {
            server(&format!("198.51.100.1:{port}"), &format!(r"\gamedir\{gamedir}\players\{players}\max\64"))
        };
        let others = (1..=40).map(|port| host(port, "cstrike", 63));
        let one =
            |network: u16| server(&format!("203.0.{network}.9:{}", 100 + network), r"\gamedir\cstrike\players\1\max\8");
        let few = server("203.0.113.9:999", r"\gamedir\valve\players\20\max\32");
        let view = view(others.chain([host(77, "valve", 60), few]).chain((0..9).map(one)).collect());
        let lists = Lists::new(Gate::default());
        let list = |filter: &str| ports(lists.renderer(&canonical(&lists, WORLD, false, filter)).render(&view).whole());
        assert_eq!(list(r"\gamedir\valve"), [77, 999], "what a host has of another game makes no difference");
        for (filter, few) in [(r"\gamedir\cstrike", 9), ("", 10)] {
            let list = list(filter);
            assert!(list[0] < 100 && list[1..=few].iter().all(|port| *port >= 100), "{filter} {list:?}");
        }
    }

    #[test]
    fn the_operators_priority_counts_before_players() {
        let mut servers = servers();
        servers[0].overrides = Overrides { priority: 5, ..Overrides::default() };
        let lists = Lists::new(Gate::default());
        let list = lists.renderer(&canonical(&lists, WORLD, false, r"\gamedir\valve")).render(&view(servers)).to_vec();
        assert_eq!(ports(&list), [1, 2, 3]);
    }

    #[test]
    fn equal_lists_share_a_renderer_whatever_the_key_and_the_version() {
        let lists = Lists::new(Gate::default());
        let renderer = |filter: &str| lists.renderer(&canonical(&lists, WORLD, false, filter));
        let first = renderer(r"\gamedir\valve\nat\0\clver\0.21\key\deadbeef\buildnum\5000");
        assert!(Arc::ptr_eq(&first, &renderer(r"\nat\0\gamedir\valve\key\1\clver\0.22\os\linux")));
        assert!(!Arc::ptr_eq(&first, &renderer(r"\gamedir\valve")));
        assert!(first.is_common() && !renderer(r"\gamedir\valve\full\0").is_common());
        for number in 0..1_000 {
            renderer(&format!(r"\gamedir\made{number}"));
        }
        assert!(Arc::ptr_eq(&first, &renderer(r"\gamedir\valve\nat\0")), "made-up requests push out no others");
    }

    #[test]
    fn who_a_client_is_makes_no_difference_where_its_list_does_not_depend_on_it() {
        let open = Lists::new(Gate::default());
        let everything = canonical(&open, WORLD, false, "");
        for filter in [r"\clver\0.20", r"\clver\0.21\buildnum\5000", r"\buildnum\7"] {
            assert_eq!(canonical(&open, WORLD, false, filter), everything, "{filter}");
        }
        let gated = Lists::new(Gate { build_min: 4_000, ..Gate::default() });
        let renderer = |filter: &str| gated.renderer(&canonical(&gated, WORLD, false, filter));
        let first = renderer(r"\clver\0.20\buildnum\4000");
        for filter in [r"\clver\0.21\buildnum\4000", r"\clver\0.20\buildnum\5000"] {
            assert!(Arc::ptr_eq(&first, &renderer(filter)), "{filter}");
        }
    }

    #[test]
    fn only_whole_lists_of_well_known_games_are_common() {
        let lists = Lists::new(Gate::default());
        let is_common =
            |region, ipv6, filter: &str| lists.renderer(&canonical(&lists, region, ipv6, filter)).is_common();
        assert!(is_common(WORLD, false, r"\gamedir\valve"));
        assert!(!is_common(3, false, r"\gamedir\valve") && !is_common(WORLD, true, r"\gamedir\valve"));
        for filter in [r"\gamedir\valve\map\crossfire", r"\gamedir\valve\protocol\49", r"\gamedir\made_up", ""] {
            assert!(!is_common(WORLD, false, filter), "{filter}");
        }
    }

    #[test]
    fn all_lists_of_a_view_share_its_index() {
        let lists = Lists::new(Gate::default());
        let list = |number: u8| GameList {
            content: Content::Info { protocol: number },
            is_common: false,
            index: lists.index.clone(),
            gate: lists.gate.clone(),
        };
        let view = view(servers());
        let index = list(1).index(&view);
        assert!(Arc::ptr_eq(&index, &list(2).index(&view)));
        let next = View::new(view.serial + 1, 0, Vec::new());
        assert!(list(1).index(&next).all.is_empty(), "a new view has a new one");
        let group = |lists: &Lists| lists.renderer(&canonical(lists, WORLD, false, "")).group().unwrap();
        assert_eq!(list(1).group(), Some(group(&lists)));
        assert_ne!(group(&lists), group(&Lists::new(Gate::default())));
    }

    #[test]
    fn servers_with_as_many_players_come_in_an_order_that_favours_no_network() {
        let some = |ports: std::ops::RangeInclusive<u16>| {
            ports.map(|port| server(&format!("203.0.113.9:{port}"), r"\gamedir\valve\max\8")).collect::<Vec<_>>()
        };
        let order = |servers: Vec<Server>| {
            let lists = Lists::new(Gate::default());
            ports(&lists.renderer(&canonical(&lists, WORLD, false, "")).render(&view(servers)).to_vec())
        };
        let listed = order(some(1..=20));
        assert!(!listed.is_sorted() && !listed.iter().rev().is_sorted(), "{listed:?}");
        assert_eq!(order(some(1..=20).into_iter().rev().collect()), listed, "the same each time");
    }

    #[test]
    fn a_name_longer_than_any_finds_nothing() {
        let longest = "g".repeat(FIELD_BYTES_MAX);
        let servers = || vec![server("203.0.113.9:1", &format!(r"\gamedir\{longest}\max\8"))];
        let lists = Lists::new(Gate::default());
        let list = |gamedir: &str| {
            let request = canonical(&lists, WORLD, false, &format!(r"\gamedir\{gamedir}"));
            ports(&lists.renderer(&request).render(&view(servers())).to_vec())
        };
        assert_eq!(list(&longest), [1]);
        assert_eq!(list(&format!("{longest}g")), [0; 0]);
        assert_eq!(list(&format!("{longest}gg")), [0; 0]);
    }

    #[test]
    fn the_longest_request_fits() {
        let lists = Lists::new(Gate { version_min: "0.1".parse().unwrap(), ..Gate::default() });
        let flags: String = Flags::NAMES.iter().map(|(name, _)| format!("\\{name}\\1")).collect();
        let filter = format!(
            r"\gamedir\{}\map\{}\protocol\255\clver\255.255.255\buildnum\4294967295\key\ffffffff{flags}",
            "g".repeat(500),
            "m".repeat(500)
        );
        let request = canonical(&lists, WORLD, false, &filter);
        assert!(request.remaining_capacity() > 0, "{}", request.len());
        let Ok(ToMaster::Query(again)) = ToMaster::parse(&request) else { panic!() };
        assert_eq!(lists.canonical(&again), request, "canonical is canonical");
    }
}
