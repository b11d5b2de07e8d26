//! How fast a cluster replicates: three NATS servers, three nodes and the game servers, all on this machine, compared with
//! the same announcements to a single node.

use std::time::{Duration, Instant};

use crate::load::{self, Content, Texts};
use crate::measure::cpu;
use crate::nats::Nats;
use crate::report::Report;
use crate::support::Server;

const SERVERS: u32 = 50_000;
/// For a record that is put, and for one that is taken.
const TARGET_US: f64 = 10.0;
/// Anything slower means that something is broken.
const TIMEOUT: Duration = Duration::from_secs(180);

pub fn run() {
    let alone = Server::start(&["iceball.life=1h", "guard.exempt=127.0.0.0/8"]);
    let by_one = announce_to(&alone);
    let announced_us = each_us(&alone);
    println!("{SERVERS} servers announced to a single node: {:.2} s", by_one.as_secs_f64());
    Report::new("announced to a single node", "us of a core per server", &[announced_us]).untargeted();
    drop(alone);

    let nats = Nats::start("bench-cluster", 3);
    let urls = format!("cluster.nats={}", nats.urls());
    let node = || Server::start(&["iceball.life=1h", "guard.exempt=127.0.0.0/8", &urls]);
    let nodes = [node(), node()];
    nodes.iter().for_each(|node| wait(|| node.json("/readyz")["cluster"]["nodes"] == 2));
    let start = Instant::now();
    announce_to(&nodes[0]);
    wait(|| figure(&nodes[0], "puts_total") >= f64::from(SERVERS));
    let put = start.elapsed();
    wait(|| servers(&nodes[1]) == SERVERS);
    let spread = start.elapsed();
    let rate = f64::from(SERVERS) / put.as_secs_f64();
    println!("announced to one of two: all put after {:.2} s ({rate:.0} per second)", put.as_secs_f64());
    println!("  all listed by the other after {:.2} s", spread.as_secs_f64());
    println!("  cluster / single node: {:.1}", spread.as_secs_f64() / by_one.as_secs_f64());
    // What a node spends on announcements is not the cluster's.
    let put_us = each_us(&nodes[0]) - announced_us;
    Report::new("put: what the announcements cost more than at a single node", "us of a core per server", &[put_us])
        .at_most(TARGET_US);
    Report::new("take: the node that lists what the other has put", "us of a core per server", &[each_us(&nodes[1])])
        .at_most(TARGET_US);
    let ids = nats.servers.iter().flat_map(|server| &server.child).map(std::process::Child::id);
    let each = ids.map(|id| cpu(id).as_micros() as f64 / f64::from(SERVERS)).sum::<f64>();
    println!("  the three NATS servers together: {each:.0} us per server");

    let start = Instant::now();
    let late = node();
    wait(|| servers(&late) == SERVERS);
    println!("a node that starts later lists all after {:.2} s", start.elapsed().as_secs_f64());
}

/// Processor time of a node so far, per server.
fn each_us(node: &Server) -> f64 {
    cpu(node.id()).as_micros() as f64 / f64::from(SERVERS)
}

fn announce_to(node: &Server) -> Duration {
    let start = Instant::now();
    let content = Content { texts: Texts::Typical, players: 3, changing: 10 };
    // Repeat for the few whose datagrams were lost.
    while servers(node) < SERVERS {
        assert!(start.elapsed() < TIMEOUT, "not all servers were listed");
        load::drive(node.address("iceball.listen"), content, None, load::all(0..SERVERS, 1));
        let driven = Instant::now();
        while servers(node) < SERVERS && driven.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    start.elapsed()
}

fn servers(node: &Server) -> u32 {
    node.json("/readyz")["servers"].as_u64().unwrap() as u32
}

fn figure(node: &Server, name: &str) -> f64 {
    node.figure(&format!("rallypoint_cluster_{name}"))
}

fn wait(mut is_done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_done() {
        assert!(start.elapsed() < TIMEOUT, "timed out");
        std::thread::sleep(Duration::from_millis(20));
    }
}
