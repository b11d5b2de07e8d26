//! Attacks on a master with 10,000 servers, of which 200 are real: during each, all real ones stay and are renewed, a newcomer is
//! listed, and others get what they ask for. The benchmark `attack` measures how long that takes, with 100,000 servers.

use crate::support::attackers::*;
use crate::support::*;

/// Forged datagrams a second: about as many as an unoptimized build takes beside everything else.
const FORGED: Option<u32> = Some(5_000);

/// Nobody but the attacker notices.
fn nobody_notices(server: &Server, real: &Real, what: &str, round: u8) {
    let players = 10 + u16::from(round);
    real.renew(server, players, what);
    let address = newcomer(server, round);
    until(&format!("{what}: a newcomer to be listed"), || is_listed(server, address).then_some(()));
    for (number, path) in (0..).zip(PATHS) {
        until(&format!("{what}: {path}"), || (other_gets(server, round * 10 + number, path) == 200).then_some(()));
    }
    until(&format!("{what}: a netPanzer list"), || {
        other_gets_netpanzer_list(server, round * 10 + 9, 20_000).then_some(())
    });
}

#[test]
fn during_each_attack_real_servers_stay_newcomers_are_listed_and_others_are_answered() {
    let server = Server::start(SETTINGS);
    fill(&server, 2_500);
    let real = Real::new(200);
    nobody_notices(&server, &real, "no attack", 0);
    for (round, (what, start, is_under_way)) in (1..).zip(ATTACKERS) {
        let attack = start(&server, FORGED);
        until(what, || is_under_way(&attack).then_some(()));
        nobody_notices(&server, &real, what, round);
    }
    assert!(!server.log().contains("panic"), "{}", server.log());
}
