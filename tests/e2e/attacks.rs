//! Attacks on a master with 100,000 servers, of which 1,000 are real: during each, all real ones stay and are renewed, a newcomer is
//! listed, and others get what they ask for. How long that takes is measured by the benchmark `attack`.

use crate::attackers::*;
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
        let status = other_gets(server, round * 10 + number, path);
        assert_eq!(status, 200, "{what}: {path}");
    }
    assert!(other_gets_netpanzer_list(server, round * 10 + 9, 20_000), "{what}: a netPanzer list");
}

#[test]
fn during_each_attack_real_servers_stay_newcomers_are_listed_and_others_are_answered() {
    let server = Server::start(SETTINGS);
    fill(&server);
    let real = Real::new();
    nobody_notices(&server, &real, "no attack", 0);
    for (round, (what, start, is_under_way)) in (1..).zip(ATTACKERS) {
        let attack = start(&server, FORGED);
        until_within(LIMIT * 2, what, || is_under_way(&attack).then_some(()));
        nobody_notices(&server, &real, what, round);
    }
    assert!(!server.log().contains("panic"), "{}", server.log());
}
