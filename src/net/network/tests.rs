use super::*;
use crate::protocols::netpanzer::network::Rules;
use crate::registry::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

/// How long a test waits before it fails.
const LIMIT: Duration = Duration::from_secs(20);

/// A simulated master: answers list requests with `list`, everything else with `answer`, and records its requests.
struct Master {
    address: SocketAddr,
    exchanged: mpsc::UnboundedReceiver<String>,
}

impl Master {
    async fn new(list: String, answer: &'static str) -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, exchanged) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(br"\final\") && stream.read_buf(&mut request).await.unwrap() > 0 {}
                let request = String::from_utf8(request).unwrap();
                let answer = if request.starts_with(r"\list") { &list } else { answer };
                stream.write_all(answer.as_bytes()).await.unwrap();
                let _ = sender.send(request); // the test may be over
            }
        });
        Master { address, exchanged }
    }

    async fn next(&mut self) -> String {
        timeout(LIMIT, self.exchanged.recv()).await.expect("a message").unwrap()
    }

    /// The next message that is not a list request.
    async fn next_message(&mut self) -> String {
        loop {
            let request = self.next().await;
            if !request.starts_with(r"\list") {
                return request;
            }
        }
    }
}

fn hub(servers_max: usize) -> Arc<Hub> {
    Arc::new(Hub::new(settings(servers_max)))
}

fn settings(servers_max: usize) -> Settings {
    Settings { servers_max, servers_per_ip_max: 1_000, ..Settings::UNBOUNDED }
}

fn entry(address: SocketAddr) -> String {
    format!(r"\ip\{}\port\{}", address.ip(), address.port())
}

fn network(neighbours: &[&Master]) -> MasterNetwork {
    let neighbours = neighbours.iter().map(|master| master.address.to_string()).collect();
    MasterNetwork {
        rules: &Rules,
        neighbours,
        password: "secret".into(),
        listening: vec!["127.0.0.1:1".parse().unwrap()],
        public: None,
        default_port: 0,
    }
}

#[tokio::test]
async fn a_dead_master_is_not_kept_alive_by_hearsay() {
    let hub = hub(10);
    let dead = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let neighbour = Master::new(format!(r"{}\final\", entry(dead)), r"\final\").await;
    let network = network(&[&neighbour]);
    let mut memory = Memory::default();
    let mut renewed_ms = Vec::new();
    for _ in 0..5 {
        round(&hub, &network, &mut memory).await;
        let record = hub.address_state(Address::new(dead.ip(), dead.port()).unwrap()).unwrap();
        renewed_ms.push(record.proven_at_ms);
        while hub.clock.now().unix_ms <= record.proven_at_ms {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(memory.silent.values().copied().collect::<Vec<_>>(), [5]);
    renewed_ms.dedup();
    assert_eq!(renewed_ms.len(), 2, "listed for two rounds, and not again");
}

/// The list is full and nothing is published here, but the master got a heartbeat.
#[tokio::test]
async fn every_master_that_was_sent_a_heartbeat_is_sent_a_quit() {
    let mut learned = Master::new(r"\final\".into(), r"\final\").await;
    let mut neighbour = Master::new(format!(r"{}\final\", entry(learned.address)), r"\final\").await;
    let stop = watch::Sender::new(false);
    let current = watch::Sender::new(network(&[&neighbour]));
    let running = tokio::spawn(run(hub(0), current.subscribe(), stop.subscribe()));
    for master in [&mut neighbour, &mut learned] {
        assert_eq!(master.next_message().await, r"\heartbeat\port\1\gamename\master\password\secret\final\");
    }
    stop.send_replace(true);
    for master in [&mut neighbour, &mut learned] {
        assert_eq!(master.next_message().await, r"\quit\gamename\master\password\secret\port\1\final\");
    }
    timeout(LIMIT, running).await.unwrap().unwrap();
}

/// A master that received a heartbeat and has not answered yet may list this one.
#[tokio::test]
async fn an_interrupted_round_is_followed_by_quits() {
    let slow = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let neighbour = Master::new(format!(r"{}\final\", entry(slow.local_addr().unwrap())), r"\final\").await;
    let stop = watch::Sender::new(false);
    let current = watch::Sender::new(network(&[&neighbour]));
    let running = tokio::spawn(run(hub(10), current.subscribe(), stop.subscribe()));
    let mut exchanged = Vec::new();
    let (mut unanswered, _) = timeout(LIMIT, slow.accept()).await.unwrap().unwrap();
    while !exchanged.ends_with(br"\final\") {
        unanswered.read_buf(&mut exchanged).await.unwrap();
    }
    stop.send_replace(true);
    let (mut last, _) = timeout(LIMIT, slow.accept()).await.unwrap().unwrap();
    let mut exchanged = Vec::new();
    while !exchanged.ends_with(br"\final\") {
        assert_ne!(last.read_buf(&mut exchanged).await.unwrap(), 0);
    }
    assert!(exchanged.starts_with(br"\quit\"), "{}", String::from_utf8_lossy(&exchanged));
    last.write_all(br"\final\").await.unwrap();
    timeout(LIMIT, running).await.unwrap().unwrap();
}

#[tokio::test]
async fn leaving_a_network_sends_quits() {
    let mut neighbour = Master::new(r"\final\".into(), r"\final\").await;
    let stop = watch::Sender::new(false);
    let current = watch::Sender::new(network(&[&neighbour]));
    let running = tokio::spawn(run(hub(10), current.subscribe(), stop.subscribe()));
    assert!(neighbour.next_message().await.starts_with(r"\heartbeat"));
    current.send_modify(|network| network.password.clear());
    assert_eq!(neighbour.next_message().await, r"\quit\gamename\master\password\secret\port\1\final\");
    running.abort();
}

#[tokio::test]
async fn one_master_under_two_names_gets_one_heartbeat_and_this_one_none() {
    let mut neighbour = Master::new(String::new(), r"\final\").await;
    let port = neighbour.address.port();
    let own = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let own_port = own.local_addr().unwrap().port();
    let neighbours = [
        format!("127.0.0.1:{port}"),
        format!("[::ffff:127.0.0.1]:{port}"),
        format!("localhost:{own_port}"),
        format!("127.0.0.2:{own_port}"),
        format!("0.0.0.0:{own_port}"),
        format!("[::ffff:127.0.0.1]:{own_port}"),
    ];
    let listening = vec![own.local_addr().unwrap()];
    let network = MasterNetwork { neighbours: neighbours.into(), listening, ..network(&[]) };
    let mut memory = Memory::default();
    round(&hub(10), &network, &mut memory).await;
    assert_eq!(memory.ourselves.len(), 4, "{:?}", memory.ourselves);
    assert_eq!(lock(&memory.notified).keys().copied().collect::<Vec<_>>(), [neighbour.address]);
    assert!(neighbour.next().await.starts_with(r"\list"));
    assert!(neighbour.next().await.starts_with(r"\list"));
    assert!(neighbour.next().await.starts_with(r"\heartbeat"));
    assert!(neighbour.exchanged.try_recv().is_err());
    own.into_std().unwrap().accept().expect_err("a master does not connect to itself");
}

#[tokio::test]
async fn a_name_that_is_also_this_master() {
    let listening = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own_place = listening.local_addr().unwrap();
    let own = Own::new(&[own_place], &[], None);
    let dead = TcpListener::bind("127.0.0.2:0").await.unwrap().local_addr().unwrap();
    let mut target = Target { name: "localhost".into(), addresses: Vec::new() };
    let asked = ask_at(&Rules, vec![dead, own_place], &mut target, &own).await;
    assert!(matches!(asked, Err(Trouble::Ourselves)) && target.addresses.is_empty(), "no other master is there");
    let other = Master::new(r"\final\".into(), r"\final\").await;
    let asked = ask_at(&Rules, vec![dead, own_place, other.address], &mut target, &own).await;
    assert!(asked.is_ok_and(|masters| masters.is_empty()));
    assert_eq!(target.addresses, [other.address], "one name for all masters of a network");
}

/// The number of quits is bounded, and so is the number of masters that get heartbeats.
#[tokio::test]
async fn no_more_masters_are_told_than_can_be_taken_back() {
    let hub = hub(1_000);
    let own = Own::default();
    let notified = Notified::default();
    let master = |number: u16| Address::new("203.0.113.5".parse().unwrap(), number).unwrap();
    lock(&notified).extend((1..=250).map(|number| (master(number).socket(), Instant::now())));
    let learned: HashSet<Address> = (201..=400).map(master).collect();
    let neighbour = Target { name: "configured".into(), addresses: vec![master(999).socket()] };
    let mut targets = vec![neighbour];
    add_targets(&hub, &Rules, &own, &learned, &notified, &mut targets);
    assert_eq!(targets.len(), 1 + 50 + 6, "the neighbour, those notified before, and as many as there is room for");
    let masters: Vec<Address> = (1..=400).map(master).collect();
    add_all(&hub, &Rules, masters.into_iter());
    hub.publish(hub.clock.now());
    assert_eq!(hub.view().masters().count(), MASTERS_MAX);
}
