//! How fast many nodes become one: three NATS servers and three nodes on this machine, which also plays the game servers.
//! Against the same announcements to a node that is alone.

use std::time::{Duration, Instant};

use crate::load::{self, Say, Texts};
use crate::measure::cpu;
use crate::nats::Nats;
use crate::support::Server;

const SERVERS: u32 = 50_000;
/// Nothing takes longer, unless something is broken.
const PATIENCE: Duration = Duration::from_secs(180);

pub fn run() {
    let alone = Server::start(&["iceball.life=1h", "guard.exempt=127.0.0.0/8"]);
    let by_one = announce_to(&alone);
    println!("{SERVERS} servers announced to a node that is alone: {:.2} s", by_one.as_secs_f64());
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
    println!("announced to one of two: all put after {:.2} s ({rate:.0} a second)", put.as_secs_f64());
    println!("  all listed by the other after {:.2} s", spread.as_secs_f64());
    println!("  whole against alone: {:.1}", spread.as_secs_f64() / by_one.as_secs_f64());
    for (who, node) in ["the one that put", "the one that merged"].iter().zip(&nodes) {
        let each = cpu(node.id()).as_micros() as f64 / f64::from(SERVERS);
        println!("  {who}: {each:.0} us of processor time a server");
    }
    let ids = nats.servers.iter().flat_map(|server| &server.child).map(std::process::Child::id);
    let each = ids.map(|id| cpu(id).as_micros() as f64 / f64::from(SERVERS)).sum::<f64>();
    println!("  the three NATS servers together: {each:.0} us a server");

    let start = Instant::now();
    let late = node();
    wait(|| servers(&late) == SERVERS);
    println!("a node that starts later lists all after {:.2} s", start.elapsed().as_secs_f64());
}

fn announce_to(node: &Server) -> Duration {
    let start = Instant::now();
    let say = Say { texts: Texts::Typical, players: 3 };
    // Again for the few whose datagrams were lost.
    while servers(node) < SERVERS {
        assert!(start.elapsed() < PATIENCE, "not all get listed");
        load::drive(node.address("iceball.listen"), say, None, load::all(0..SERVERS, 1));
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
    let metrics = node.get("/metrics").text().to_string();
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("rallypoint_cluster_{name} ")));
    line.unwrap().parse().unwrap()
}

fn wait(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "this takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}
