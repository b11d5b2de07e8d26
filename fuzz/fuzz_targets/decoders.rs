//! Every decoder of every card, and the sessions of the protocols that are spoken over TCP, with any bytes.
#![no_main]

use std::net::SocketAddr;

use libfuzzer_sys::fuzz_target;
use rallypoint::protocols::netpanzer::serve::{Rules, Settings};
use rallypoint::protocols::{CARDS, Event, Next, StreamRules, hyperbol};
use rallypoint::registry::view::View;

fn talk(rules: &dyn StreamRules, bytes: &[u8]) {
    let peer: SocketAddr = ([203, 0, 113, 5], 40_000).into();
    let (view, mut out) = (View::new(1, 0, Vec::new()), Vec::new());
    let mut session = rules.open(peer, peer, 7);
    let mut next = session.on(Event::Opened, &view, &mut out);
    for piece in bytes.chunks(7) {
        if matches!(next, Next::Read) {
            next = session.on(Event::Bytes(piece), &view, &mut out);
        }
    }
    session.on(Event::Ended, &view, &mut out);
}

fuzz_target!(|bytes: &[u8]| {
    for card in CARDS {
        for (_, decode) in card.decoders {
            decode(bytes);
        }
        if let Some(query) = card.query {
            let _ = query.hear(bytes);
        }
    }
    let settings = Settings { password: "secret".into(), ..Settings::default() };
    talk(&Rules::new(settings), bytes);
    talk(&hyperbol::serve::Rules::new(), bytes);
});
