//! One visit to the store: what this node learns from it, and what it puts there.
//!
//! Beside the servers there is a sign of life of each node under `node.<name>`, put every few seconds. One's own coming
//! back through the watch says three things: all that was in the store before has been read, the way there and back is
//! open, and what time it is there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, PublishError};
use async_nats::jetstream::kv::{Entry, Operation, Store, Watch, WatcherError};
use async_nats::jetstream::stream::StorageType;
use async_nats::jetstream::{Context, publish::PublishAck};
use async_nats::{Client, datetime::DateTime};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::debug;

use super::buckets::{Lost, Wanted};
use super::clock::{self, Offset};
use super::keyring;
use super::outbox::{Held, Outbox, Refused, worth_putting};
use super::record::{self, Games, RecordError, VALUE_BYTES_MAX};
use super::share::NODE_GONE_MS;
use super::{Cluster, secret};
use crate::model::{Address, Change, Now, RemoteState};
use crate::net::stopped as is_true;
use crate::registry::Outcome;
use crate::registry::view::Batch;

const SERVERS: &str = "rallypoint-servers";
const KEYS: &str = "rallypoint-keys";
/// Named by the version of what is in it: nodes of different versions leave each other's alone.
const COOKIE: &str = "cookie.2";
const NODE_PREFIX: &str = "node.";

/// How often a node says that it lives.
const SIGN_EVERY: Duration = Duration::from_secs(5);
/// What the store keeps beyond the longest life.
const AGE_SLACK: Duration = Duration::from_secs(60);
/// How long an answer of the store is waited for.
const ANSWER: Duration = Duration::from_secs(5);
/// Puts that are on their way at one time.
const IN_FLIGHT_MAX: usize = 2048;
/// Looked up in the registry, or applied to it, in one go.
const PUT_BATCH: usize = 64;
const MERGE_BATCH: usize = 64;
/// What the store lacks is put at this pace, beside what is new: 20,000 a second.
const REFILL_EVERY: Duration = Duration::from_millis(50);
const REFILL_MOST: usize = 1000;
/// After a put that failed, others wait.
const HOLD: Duration = Duration::from_millis(500);
/// The keys are replaced a little later by some nodes than by others, so that mostly one tries.
const KEY_JITTER_MS: u64 = 3_000;
/// For the last words.
const GOODBYE: Duration = Duration::from_secs(1);

/// A node's sign of life. Times are its own.
#[derive(Serialize, Deserialize)]
struct Sign {
    v: u8,
    run: u32,
    count: u64,
    put: u64,
    /// When it was put, by its monotonic clock.
    #[serde(default)]
    mono: u64,
}

type Acks = FuturesUnordered<BoxFuture<'static, (Address, bool, Result<PublishAck, PublishError>)>>;

pub struct Session<'a> {
    cluster: &'a Cluster,
    context: Context,
    servers: Store,
    keys: Store,
    batches: tokio::sync::Mutex<broadcast::Receiver<std::sync::Arc<Batch>>>,
    outbox: Mutex<Outbox>,
    refused: Mutex<Refused>,
    to_put: Notify,
    /// What the store held; only until all of it has been read.
    held: Mutex<Option<Held>>,
    caught_up: watch::Sender<bool>,
    /// Another node has our name: what it puts is no echo.
    has_twin: AtomicBool,
    signs: AtomicU64,
    /// When something last came, by the monotonic clock; at the latest one's own sign of life.
    heard_at_ms: AtomicU64,
}

impl<'a> Session<'a> {
    /// Finds or makes the buckets, and measures the clock.
    pub async fn open(cluster: &'a Cluster, client: Client) -> Result<Session<'a>, Lost> {
        let payload_bytes_max = client.server_info().max_payload;
        if payload_bytes_max < VALUE_BYTES_MAX {
            let words = format!(
                "NATS takes no more than {payload_bytes_max} bytes: its max_payload has to be {VALUE_BYTES_MAX} at least"
            );
            return Err(Lost(words));
        }
        let context = ContextBuilder::new()
            .timeout(ANSWER)
            .ack_timeout(ANSWER)
            .max_ack_inflight(IN_FLIGHT_MAX * 2)
            .backpressure_on_inflight(true)
            .build(client);
        let replicas = cluster.settings.replicas;
        let servers = Wanted {
            name: SERVERS,
            description: "Rallypoint: the list",
            value_bytes_max: VALUE_BYTES_MAX,
            age_max: cluster.life_max + AGE_SLACK,
            storage: StorageType::File,
            replicas,
        };
        let keys = Wanted {
            name: KEYS,
            description: "Rallypoint: cookie keys",
            value_bytes_max: 1024,
            age_max: Duration::ZERO,
            // Secrets that live for two minutes have no place on a disk.
            storage: StorageType::Memory,
            replicas,
        };
        let session = Session {
            servers: servers.open(&context).await?,
            keys: keys.open(&context).await?,
            context,
            cluster,
            batches: tokio::sync::Mutex::new(cluster.hub.subscribe()),
            outbox: Mutex::default(),
            refused: Mutex::default(),
            to_put: Notify::new(),
            held: Mutex::new(Some(Held::default())),
            caught_up: watch::Sender::new(false),
            has_twin: AtomicBool::new(false),
            signs: AtomicU64::new(0),
            heard_at_ms: AtomicU64::new(cluster.hub.clock.now().mono_ms),
        };
        session.measure_clock().await?;
        session.begin_keys().await?;
        Ok(session)
    }

    /// Runs until the store is lost.
    pub async fn run(&self) -> Lost {
        let no_watch = |error| Lost::because("cannot watch", &error);
        let servers = self.servers.watch_with_history(">").await.map_err(no_watch);
        let keys = self.keys.watch_with_history(COOKIE).await.map_err(no_watch);
        let (servers, keys) = match (servers, keys) {
            (Ok(servers), Ok(keys)) => (servers, keys),
            (Err(lost), _) | (_, Err(lost)) => return lost,
        };
        tokio::select! {
            lost = self.read(servers) => lost,
            lost = self.write() => lost,
            lost = self.give_signs() => lost,
            lost = self.follow_keys(keys) => lost,
        }
    }

    /// Puts what has not been put yet, and says good-bye, within a moment.
    pub async fn leave(&self) {
        let goodbye = async {
            self.cluster.hub.publish(self.now());
            let mut batches = self.batches.lock().await;
            while let Ok(batch) = batches.try_recv() {
                self.outbox().note(&batch);
            }
            let mut acks = Acks::new();
            while *self.caught_up.borrow() && !self.outbox().is_empty() {
                self.put_some(&mut acks).await;
            }
            while acks.next().await.is_some() {}
            let _ = self.servers.delete(self.sign_key()).await; // who does not hear it will notice
        };
        let _ = timeout(GOODBYE, goodbye).await;
    }

    // What is learned.

    async fn read(&self, watch: Watch) -> Lost {
        let mut games = Games::default();
        let mut entries = watch.ready_chunks(MERGE_BATCH);
        while let Some(chunk) = entries.next().await {
            let now = self.now();
            self.heard_at_ms.store(now.mono_ms, Ordering::Relaxed);
            let mut changes = Vec::with_capacity(chunk.len());
            for entry in chunk {
                match entry {
                    Ok(entry) => self.take(&entry, now, &mut games, &mut changes),
                    Err(error) => return watch_failed(&error),
                }
            }
            self.merge(&changes, now);
        }
        Lost("the watch ended".into())
    }

    fn take(&self, entry: &Entry, now: Now, games: &mut Games, changes: &mut Vec<Change<'static>>) {
        let created_ms = unix_ms(entry.created);
        if let Some(name) = entry.key.strip_prefix(NODE_PREFIX) {
            return self.take_sign(name, entry, created_ms, now);
        }
        let Some(address) = record::address(&entry.key).filter(|_| entry.operation == Operation::Put) else { return };
        if self.cluster.guard.bans().contains(address.ip()) {
            return;
        }
        let record = match record::decode(address, &entry.value, games) {
            Ok(record) => record,
            Err(RecordError::Version(v)) => {
                let words = || format!("records of version {v} are ignored: some nodes run a newer program");
                return self.cluster.warn("version", words);
            }
            Err(error) => return self.cluster.warn("record", || format!("{}: {error:?}, ignored", entry.key)),
        };
        let caught_up = *self.caught_up.borrow();
        if caught_up && record.by == self.cluster.name && !self.has_twin.load(Ordering::Relaxed) {
            return; // our own echo
        }
        let by = record.by.clone();
        let (told, ahead_ms) = record.settle(created_ms, self.offset(now), now);
        if let Some(ahead_ms) = ahead_ms {
            let words =
                || format!("the clock of node {by} is {ahead_ms} ms ahead of NATS's, whose time is used instead");
            self.cluster.warn("ahead", words);
        }
        if let Some(held) = &mut *self.held() {
            held.note(&told);
        }
        changes.push(Change::Merge(Box::new(told)));
    }

    fn merge(&self, changes: &[Change<'static>], now: Now) {
        if changes.is_empty() {
            return;
        }
        let mut older: Vec<&RemoteState<'_>> = Vec::new();
        let mut outcomes = Vec::with_capacity(changes.len());
        self.cluster.hub.apply(changes, now, |_, outcome| outcomes.push(outcome));
        for (change, outcome) in changes.iter().zip(&outcomes) {
            match (change, outcome) {
                (Change::Merge(told), Outcome::Stale) => older.push(told),
                (_, Outcome::Refused(refusal)) => debug!(?refusal, "cluster: not merged"),
                _ => {}
            }
        }
        if let Some(figures) = self.cluster.figures() {
            let merged = outcomes.len() - older.len();
            figures.merged.inc_by(merged as u64);
        }
        // While the store is read from the start, what it lacks is found at the end.
        if *self.caught_up.borrow() && !older.is_empty() {
            self.mend(&older, now);
        }
    }

    /// The store keeps one value an address, the last that came. Where that is older than what is known here, the newer one
    /// is put again, by whoever knows it: the node that had put it may be gone.
    fn mend(&self, told: &[&RemoteState<'_>], now: Now) {
        let known = self.cluster.hub.known(told.iter().map(|told| told.address()), now);
        let mut outbox = self.outbox();
        for (told, known) in told.iter().zip(known) {
            if known.is_some_and(|known| known.is_ahead_of(told)) {
                outbox.push(told.address(), true);
                self.to_put.notify_one();
            }
        }
    }

    fn take_sign(&self, name: &str, entry: &Entry, created_ms: u64, now: Now) {
        let sign = serde_json::from_slice::<Sign>(&entry.value).ok().filter(|_| entry.operation == Operation::Put);
        let Some(sign) = sign else {
            self.cluster.nodes().left(name);
            return self.cluster.count_nodes();
        };
        if name != self.cluster.name {
            self.cluster.nodes().heard(name, created_ms);
            return self.cluster.count_nodes();
        }
        if sign.run != self.cluster.run {
            if *self.caught_up.borrow() {
                self.has_twin.store(true, Ordering::Relaxed);
                let words = || format!("another node is called {name}, too: give each its own cluster.node");
                self.cluster.warn("name", words);
            }
            return;
        }
        self.measured(sign.mono, created_ms, now);
        self.cluster.nodes().heard_ourselves(created_ms, now.mono_ms);
        self.cluster.count_nodes();
        // The first was put before the watch began; the second comes back after all that was there.
        if sign.count >= 2 && !*self.caught_up.borrow() {
            self.caught_up.send_replace(true);
        }
    }

    // What is put.

    async fn write(&self) -> Lost {
        let mut batches = self.batches.lock().await;
        is_true(&mut self.caught_up.subscribe()).await;
        self.cluster.connected();
        let held = self.held().take().unwrap_or_default();
        self.reconcile(&held);
        drop(held);
        let mut acks = Acks::new();
        let mut refill = interval(REFILL_EVERY);
        refill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hold_until = Instant::now();
        loop {
            tokio::select! {
                batch = batches.recv() => match batch {
                    Ok(batch) => self.outbox().note(&batch),
                    // We were far behind: everything of ours once more, at the backlog's pace.
                    Err(RecvError::Lagged(_)) => self.reconcile(&Held::default()),
                    Err(RecvError::Closed) => return Lost("the hub is gone".into()),
                },
                Some((address, whoever_knows, result)) = acks.next() => {
                    if !self.acknowledged(address, whoever_knows, result) {
                        hold_until = Instant::now() + HOLD;
                    }
                }
                () = self.to_put.notified() => {}
                _ = refill.tick() => {
                    self.outbox().refill(REFILL_MOST);
                    self.cluster.set_refused(self.refused().lasting(self.now().mono_ms));
                }
            }
            while Instant::now() >= hold_until && acks.len() < IN_FLIGHT_MAX && !self.outbox().is_empty() {
                self.put_some(&mut acks).await;
            }
        }
    }

    fn reconcile(&self, held: &Held) {
        let hub = &self.cluster.hub;
        // Before that, every life that an older record could give has ended.
        let since_ms = self.now().unix_ms.saturating_sub(self.cluster.life_max.as_millis() as u64);
        let (view, removals) = (hub.view(), hub.own_removals(since_ms));
        let servers = view.servers.iter().map(|server| &**server);
        self.outbox().reconcile(servers, removals, held, &self.cluster.share);
    }

    /// Puts a few of those that wait, without waiting for the store's answer.
    async fn put_some(&self, acks: &mut Acks) {
        let waiting = self.outbox().take(PUT_BATCH);
        let now = self.now();
        let known = self.cluster.hub.known(waiting.iter().map(|(address, _)| *address), now);
        for ((address, whoever_knows), known) in waiting.into_iter().zip(known) {
            let Some(known) = known.filter(|known| worth_putting(known, whoever_knows)) else {
                self.refused().forget(address);
                continue;
            };
            let value = record::encode(&self.cluster.name, now.unix_ms, &known, self.offset(now));
            let sent = self.send(&record::key(address), value).await;
            acks.push(Box::pin(async move {
                let result = match sent {
                    Ok(ack) => ack.await,
                    Err(error) => Err(error),
                };
                (address, whoever_knows, result)
            }));
        }
    }

    async fn send(
        &self,
        key: &str,
        value: Vec<u8>,
    ) -> Result<async_nats::jetstream::context::PublishAckFuture, PublishError> {
        self.context.publish(format!("{}{key}", self.servers.prefix), Bytes::from(value)).await
    }

    /// Whether the store took it; what it did not take waits again.
    fn acknowledged(&self, address: Address, whoever_knows: bool, result: Result<PublishAck, PublishError>) -> bool {
        if let Some(figures) = self.cluster.figures() {
            let counter = if result.is_ok() { &figures.puts } else { &figures.put_failures };
            counter.inc();
        }
        let Err(error) = result else {
            self.refused().forget(address);
            return true;
        };
        let error = Lost::because("not put", &error);
        debug!(%address, "cluster: {error}");
        self.outbox().push(address, whoever_knows);
        self.refused().note(address, self.now().mono_ms, error.0);
        false
    }

    // Signs of life, and the clock.

    async fn give_signs(&self) -> Lost {
        let mut tick = interval(SIGN_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(lost) = self.put_sign().await {
                debug!("cluster: {lost}");
            }
            let silent_ms = self.now().mono_ms.saturating_sub(self.heard_at_ms.load(Ordering::Relaxed));
            if silent_ms > NODE_GONE_MS {
                return Lost(format!("nothing has come back for {} s", silent_ms / 1000));
            }
        }
    }

    async fn put_sign(&self) -> Result<u64, Lost> {
        let count = self.signs.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.now();
        let sign = Sign { v: 1, run: self.cluster.run, count, put: now.unix_ms, mono: now.mono_ms };
        let value = serde_json::to_vec(&sign).unwrap_or_default(); // plain numbers: cannot fail
        let put = self.servers.put(self.sign_key(), value.into());
        let failed = |error| Lost::because("cannot put", &error);
        timeout(ANSWER, put).await.map_err(|_| Lost("no answer to a put".into()))?.map_err(failed)
    }

    fn sign_key(&self) -> String {
        format!("{NODE_PREFIX}{}", self.cluster.name)
    }

    /// Before anything is read or put, this node has to know what time it is in the store.
    async fn measure_clock(&self) -> Result<(), Lost> {
        let put_mono_ms = self.now().mono_ms;
        let revision = self.put_sign().await?;
        let seen = self.now();
        let message = self.servers.stream.get_raw_message(revision).await;
        let message = message.map_err(|error| Lost::because("cannot read what was just put", &error))?;
        self.measured(put_mono_ms, unix_ms(message.time), seen);
        Ok(())
    }

    fn offset(&self, now: Now) -> Offset {
        Offset::at(self.cluster.time(), now)
    }

    fn measured(&self, put_mono_ms: u64, created_ms: u64, seen: Now) {
        self.cluster.set_time(clock::measured(self.cluster.time(), put_mono_ms, created_ms, seen));
    }

    // The cookie keys.

    /// Takes over the store's keys, and puts ours if there are none.
    async fn begin_keys(&self) -> Result<(), Lost> {
        let failed = |error| Lost::because("cannot read the keys", &error);
        let mut entry = self.keys.entry(COOKIE).await.map_err(failed)?;
        if entry.is_none() {
            let ours = keyring::encode(&self.cluster.ring().keys);
            let _ = self.keys.create(COOKIE, ours.into()).await; // or another node was faster
            entry = self.keys.entry(COOKIE).await.map_err(failed)?;
        }
        self.take_keys(&entry.ok_or_else(|| Lost("the keys that were just put are gone".into()))?);
        Ok(())
    }

    async fn follow_keys(&self, watch: Watch) -> Lost {
        let mut entries = watch;
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                entry = entries.next() => match entry {
                    Some(Ok(entry)) => self.take_keys(&entry),
                    Some(Err(error)) => return watch_failed(&error),
                    None => return Lost("the watch of the keys ended".into()),
                },
                _ = tick.tick() => if let Err(lost) = self.renew_keys().await { return lost },
            }
        }
    }

    fn take_keys(&self, entry: &Entry) {
        let Some(keys) = keyring::decode(&entry.value).filter(|_| entry.operation == Operation::Put) else {
            let words = || "the cookie keys in NATS cannot be read: a handshake has to end where it began".into();
            return self.cluster.warn("keys", words);
        };
        let now_ms = self.cluster.time().unix_ms(self.now());
        let age_ms = now_ms.saturating_sub(unix_ms(entry.created));
        self.cluster.take_keys(keys, entry.revision, age_ms);
    }

    /// Replaces keys that are old. Whoever is first wins, and the watch brings the winner's to all.
    async fn renew_keys(&self) -> Result<(), Lost> {
        let now_ms = self.now().mono_ms.saturating_sub(u64::from(self.cluster.run) % KEY_JITTER_MS);
        let (next, revision) = {
            let ring = self.cluster.ring();
            let (Some(revision), true) = (ring.revision, ring.is_old(now_ms)) else { return Ok(()) };
            let Some(secret) = secret() else { return Ok(()) };
            (ring.keys.rotated(secret), revision)
        };
        if let Err(error) = self.keys.update(COOKIE, keyring::encode(&next).into(), revision).await {
            debug!("cluster: keys not replaced: {error}");
            // Another node was faster, or the store has lost them and counts anew.
            self.cluster.ring().disconnected();
            self.begin_keys().await?;
        }
        Ok(())
    }

    fn now(&self) -> Now {
        self.cluster.hub.clock.now()
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn watch_failed(error: &WatcherError) -> Lost {
    Lost::because("the watch failed", error)
}

/// The store's time in milliseconds since 1970.
fn unix_ms(time: DateTime) -> u64 {
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}
