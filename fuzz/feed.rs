//! Feeds bytes to everything that parses network input, for all protocols: decoders, queries, lists, the master's rules.
//! The fuzz target and a test share this file, so it always compiles.

use std::net::SocketAddr;
use std::sync::LazyLock;

use rallypoint::config::Config;
use rallypoint::cookie::Keys;
use rallypoint::model::{Now, SharedTime};
use rallypoint::protocols::announce::{AnnounceMethod, Offer};
use rallypoint::protocols::section::{Cookies, LocalAddresses};
use rallypoint::protocols::{
    CARDS, Card, Context, DatagramRules, Effect, Fetch, Next, Output, Reply, SessionInput, StreamRules,
};
use rallypoint::registry::view::View;

static CONFIG: LazyLock<Config> = LazyLock::new(|| {
    // Without a password, messages of other masters are not parsed.
    Config::load(None, &["netpanzer.password=secret".into()]).expect("a configuration")
});

pub fn feed(bytes: &[u8]) {
    let cookies = Cookies { keys: Keys::new([[1; 16], [2; 16], [3; 16]]), time: SharedTime::default() };
    let peer: SocketAddr = ([203, 0, 113, 5], 40_000).into();
    let view = View::new(1, 0, Vec::new());
    for card in CARDS {
        for (_, decode) in card.decoders {
            decode(bytes);
        }
        if let Some(query) = card.query {
            let _ = query.hear(bytes);
        }
        if let (Some(answer), Some(at)) = (card.answer, rallypoint::model::Address::new(peer.ip(), peer.port())) {
            answer(&(card.pretend)(0), at, bytes);
        }
        match &card.fetch {
            Fetch::Http { read, .. } => _ = read(bytes),
            Fetch::Stream(fetch) => {
                let _ = (fetch.request(bytes), fetch.is_whole(bytes), fetch.read(bytes));
            }
            Fetch::Datagrams(fetch) => _ = fetch.read(bytes),
        }
        announce(card, bytes);
    }
    for (_, section) in CONFIG.sections() {
        if let Some(rules) = section.datagrams(cookies) {
            receive(&*rules, &view, peer, bytes);
        }
        if let Some(rules) = section.streams(&LocalAddresses::default()) {
            talk(&*rules, &view, peer, bytes);
        }
        for route in section.routes(&[]) {
            route.rule.get(peer.ip(), &String::from_utf8_lossy(bytes));
        }
    }
}

/// What a master answers to an announcement.
fn announce(card: &Card, bytes: &[u8]) {
    match &card.announce {
        AnnounceMethod::Http(http) => _ = (http.verdict)(200, bytes),
        AnnounceMethod::Stream { rules, .. } => _ = (rules.verdict(bytes), rules.final_verdict(bytes)),
        AnnounceMethod::Datagrams { start, .. } => {
            let offer = Offer { game: card.name.into(), port: card.game_port, facts: (card.pretend)(0) };
            if let Ok(mut announcer) = start(0, &offer) {
                announcer.ready(0);
                announcer.step(0);
                announcer.hear(1, bytes, &mut Vec::new());
            }
        }
        AnnounceMethod::OwnPort { .. } | AnnounceMethod::None => {}
    }
}

fn receive(rules: &dyn DatagramRules, view: &View, from: SocketAddr, bytes: &[u8]) {
    let now = Now { mono_ms: 1_000_000, unix_ms: 1_700_000_000_000 };
    if let Effect::List(request) = rules.datagram(&Context { now, view }, from, bytes, &mut Reply::new()) {
        rules.list(&request).map(|renderer| renderer.render(view));
    }
}

fn talk(rules: &dyn StreamRules, view: &View, peer: SocketAddr, bytes: &[u8]) {
    let mut out = Vec::new();
    let mut session = rules.open(peer, peer, 7);
    let mut next = session.on(SessionInput::Opened, &mut out);
    for piece in bytes.chunks(7) {
        if matches!(next, Next::Read) {
            next = session.on(SessionInput::Bytes(piece), &mut out);
        }
    }
    session.on(SessionInput::Ended, &mut out);
    for output in out {
        if let Output::List(renderer) = output {
            renderer.render(view);
        }
    }
}
