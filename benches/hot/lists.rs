//! The lists of all protocols, rendered from a view, and searches.

use std::hint::black_box;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rallypoint::model::Address;
use rallypoint::protocols::section::{LocalAddresses, RouteAnswer, Section, Surroundings};
use rallypoint::protocols::{CARDS, Card, Context, Effect, Fetch, Output, Reply, SessionInput};
use rallypoint::registry::view::{Renderer, View};
use rallypoint::web::filter::Filter;
use rallypoint::web::search::Search;

use super::world::{self, CONFIG, DATAGRAM_SERVICES, START};
use super::{HotPath, Scale, Work};

const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 77));

pub fn add(scale: Scale, all: &mut Vec<HotPath>) {
    for (card, section) in CONFIG.sections() {
        for &servers in scale.listed {
            all.push(HotPath::new(format!("list {}, {servers} listed", card.name), 1, move || {
                let view = view(&[card], servers);
                let list = renderers(card, section).into_iter().max_by_key(|list| list.render(&view).len()).unwrap();
                assert!(list.render(&view).len() > servers / 2, "{}: an empty list", card.name);
                Render { list, view }
            }));
        }
    }
    for (what, query) in [("of a text", "q=tank&limit=50"), ("by players", "sort=-players&not_empty&limit=50")] {
        all.push(HotPath::new(format!("search {what}, {} listed", scale.searched), 1, move || {
            let cards: Vec<&Card> = CARDS.iter().collect();
            let (view, search) = (view(&cards, scale.searched), Search::default());
            let filter = Filter::parse(query, true).unwrap();
            move || assert!(!black_box(filter.select(black_box(&view), &search)).page.is_empty())
        }));
    }
}

/// A list, rendered after a change of the view: nothing of an earlier one is still prepared.
struct Render {
    list: Arc<dyn Renderer>,
    view: View,
}

impl Work for Render {
    fn prepare(&mut self) {
        self.view = View::new(serial(), START.unix_ms, self.view.servers.to_vec());
    }

    fn run(&mut self) {
        black_box(self.list.render(black_box(&self.view)));
    }
}

/// Different for each view: lists are prepared once for each.
fn serial() -> u64 {
    static SERIAL: AtomicU64 = AtomicU64::new(2);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

/// So many servers of these protocols, with both kinds of addresses.
fn view(cards: &[&'static Card], servers: usize) -> View {
    let empty = View::new(1, 0, Vec::new());
    let server = |number: usize| {
        let card = cards[number % cards.len()];
        let address = Address::new(place(number as u32), 20_000 + (number % 3) as u16).unwrap();
        Arc::new(world::server(card, number / cards.len(), address, &empty))
    };
    View::new(serial(), START.unix_ms, (0..servers).map(server).collect())
}

fn place(number: u32) -> IpAddr {
    let [_, high, middle, low] = number.to_be_bytes();
    match number % 4 {
        0 => [0x2001, 0xdb8, 0, 0, 0, 0, high.into(), u16::from_be_bytes([middle, low])].into(),
        _ => [10, high, middle, low].into(),
    }
}

/// The lists that a client of this protocol may ask for.
fn renderers(card: &'static Card, section: &'static dyn Section) -> Vec<Arc<dyn Renderer>> {
    match &card.fetch {
        Fetch::Http { path, .. } => {
            let routes = section.routes(&Surroundings::default());
            let route = routes.iter().find(|route| route.path == *path).unwrap();
            match route.rule.get(CLIENT, "") {
                RouteAnswer::List(list) => vec![list],
                _ => panic!("{path} is no list"),
            }
        }
        Fetch::Datagrams(fetch) => {
            let rules = DATAGRAM_SERVICES.iter().find(|service| service.card.name == card.name).unwrap().rules(0);
            let at = Context { now: START, view: &View::new(1, 0, Vec::new()) };
            let requests = fetch.requests("", "", &[]).unwrap();
            let lists = requests.iter().filter_map(|request| {
                match rules.datagram(&at, SocketAddr::new(CLIENT, 4_000), &request.bytes, &mut Reply::new()) {
                    Effect::List(request) => rules.list(&request),
                    _ => None,
                }
            });
            lists.collect()
        }
        Fetch::Stream(fetch) => {
            let rules = section.streams(&LocalAddresses::default()).unwrap();
            let mut session = rules.open(SocketAddr::new(CLIENT, 4_000), ([192, 0, 2, 1], 28_900).into(), 7);
            let mut out = Vec::new();
            session.on(SessionInput::Opened, &mut out);
            let greeting: Vec<u8> = out.drain(..).flat_map(bytes_of).collect();
            let request = fetch.request(&greeting).unwrap().unwrap();
            session.on(SessionInput::Bytes(&request), &mut out);
            out.into_iter().filter_map(|part| if let Output::List(list) = part { Some(list) } else { None }).collect()
        }
    }
}

fn bytes_of(part: Output) -> Vec<u8> {
    match part {
        Output::Bytes(bytes) => bytes.to_vec(),
        Output::List(list) => list.render(&View::new(1, 0, Vec::new())).to_vec(),
    }
}
