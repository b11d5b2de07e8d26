//! Buckets with wrong settings: corrected where NATS allows it, otherwise refused with NATS's reason.

use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, Context};

use crate::cluster::nodes::{announce, cluster_state, lists, node, wait_for_nodes};
use crate::support::nats::Nats;
use crate::support::*;

const STREAM: &str = "KV_rallypoint-servers";

/// Changes the buckets as an operator can.
pub struct Operator {
    pub runtime: tokio::runtime::Runtime,
    pub context: Context,
}

impl Operator {
    pub fn of(nats: &Nats) -> Operator {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = until("a NATS server", || runtime.block_on(async_nats::connect(nats.urls())).ok());
        let inside = runtime.enter();
        let context = jetstream::new(client);
        drop(inside);
        until("JetStream", || runtime.block_on(context.query_account()).ok());
        Operator { runtime, context }
    }

    fn config(&self) -> Config {
        self.runtime.block_on(self.context.get_stream(STREAM)).unwrap().cached_info().config.clone()
    }

    fn create(&self, config: Config) {
        let config = Config {
            name: STREAM.into(),
            subjects: vec!["$KV.rallypoint-servers.>".into()],
            allow_rollup: true,
            allow_direct: true,
            ..config
        };
        self.runtime.block_on(self.context.create_stream(config)).unwrap();
    }

    fn update(&self, config: &Config) {
        self.runtime.block_on(self.context.update_stream(config)).unwrap();
    }
}

#[test]
#[ignore = "needs nats-server"]
fn a_bucket_with_wrong_settings_is_corrected() {
    let nats = Nats::start("cluster-repair", 1);
    let operator = Operator::of(&nats);
    operator.create(Config {
        max_message_size: 100,
        max_messages_per_subject: 5,
        max_age: Duration::from_secs(1),
        discard: DiscardPolicy::Old,
        ..Config::default()
    });
    let [a, b] = ["a", "b"].map(|name| node(name, &nats.urls(), &[]));
    wait_for_nodes(&[&a, &b], 2);
    announce(&a, 9001);
    until("it at the other", || lists(&b, &[9001]).then_some(()));
    let config = operator.config();
    assert_eq!((config.max_message_size, config.max_messages_per_subject), (65_536, 1));
    assert!(config.max_age >= Duration::from_secs(120) && config.discard == DiscardPolicy::New, "{config:?}");
    let logs = [&a, &b].map(|node| node.log()).concat();
    assert!(logs.contains("max_msg_size is 100 instead of 65536"), "{logs}");
}

#[test]
#[ignore = "needs nats-server"]
fn a_bucket_that_cannot_be_changed_is_refused_with_the_reason_that_nats_gives() {
    let nats = Nats::start("cluster-refuse", 1);
    let operator = Operator::of(&nats);
    operator.create(Config { storage: StorageType::Memory, max_messages_per_subject: 1, ..Config::default() });
    let a = node("a", &nats.urls(), &[]);
    until("the reason", || a.log().contains("can not change storage type").then_some(()));
    assert!(a.log().contains(r#"storage is "memory" instead of "file""#), "{}", a.log());
    assert!(!cluster_state(&a).0);
    operator.runtime.block_on(operator.context.delete_stream(STREAM)).unwrap();
    wait_for_nodes(&[&a], 1);
}

#[test]
#[ignore = "needs nats-server"]
fn a_node_whose_puts_are_refused_for_long_is_not_connected() {
    let nats = Nats::start("cluster-puts", 1);
    let [a, b] = ["a", "b"].map(|name| node(name, &nats.urls(), &[]));
    wait_for_nodes(&[&a, &b], 2);
    let operator = Operator::of(&nats);
    let good = operator.config();
    // Keep-alives fit, servers do not.
    operator.update(&Config { max_message_size: 150, ..good.clone() });
    announce(&a, 9101);
    until("it to show", || (!cluster_state(&a).0).then_some(()));
    assert!(a.log().contains("message size exceeds maximum allowed"), "{}", a.log());
    assert!(a.get("/metrics").text().contains("rallypoint_cluster_connected 0"));
    assert!(cluster_state(&b).0 && lists(&b, &[]));
    operator.update(&good);
    until("it at the other", || lists(&b, &[9101]).then_some(()));
    wait_for_nodes(&[&a, &b], 2);
}
