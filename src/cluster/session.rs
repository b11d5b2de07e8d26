//! One session with the store: reads and merges the other nodes' records, and puts this node's own.
//!
//! Beside the servers, each node puts a keep-alive under `node.<name>` every few seconds. When a node's own keep-alive
//! comes back through the watch, everything stored before it has been read, the round trip works, and its timestamp tells
//! the store's time.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::kv::{Entry, Operation, Store, Watch, WatcherError};
use async_nats::jetstream::stream::StorageType;
use async_nats::{Client, Message, StatusCode, Subscriber, datetime::DateTime};
use bytes::Bytes;
use futures_util::stream::{ReadyChunks, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};
use tracing::debug;

use super::buckets::{BucketSpec, SessionError};
use super::clock::{self, Offset};
use super::decision;
use super::decisions::Decisions;
use super::in_flight::{InFlight, Put, accepted};
use super::keyring;
use super::outbox::{Outbox, RejectedPuts, StoredRecords, must_put};
use super::record::{self, RecordError, VALUE_BYTES_MAX};
use super::share::NODE_GONE_MS;
use super::{Cluster, secret};
use crate::model::{Address, Change, Now, RemoteState};
use crate::net::stopped as is_true;
use crate::registry::Outcome;
use crate::registry::view::Batch;

const SERVERS: &str = "rallypoint-servers";
const KEYS: &str = "rallypoint-keys";
const DECISIONS: &str = "rallypoint-decisions";
/// The key carries the version of its value, so that nodes of different versions do not touch each other's keys.
const COOKIE: &str = "cookie.2";
const NODE_PREFIX: &str = "node.";

/// How often a node puts its keep-alive.
const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(5);
/// How much longer than the longest life the store keeps a record.
const AGE_SLACK: Duration = Duration::from_secs(60);
/// How long to wait for the store's acknowledgement.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Upper bound on unacknowledged puts.
const IN_FLIGHT_MAX: usize = 2048;
/// Records looked up in the registry, or applied to it, under one lock.
const PUT_BATCH: usize = 64;
const MERGE_BATCH: usize = 64;
/// The backlog is put at 20,000 records per second, beside new changes.
const REFILL_EVERY: Duration = Duration::from_millis(50);
const REFILL_MOST: usize = 1000;
/// Pause after a failed put.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Pause before the bucket of the decisions is opened again.
const DECISIONS_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// Nodes replace old keys at slightly different times, so that usually only one tries.
const KEY_JITTER_MS: u64 = 3_000;
/// How long a stopping node may take to put its last changes.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// A node's keep-alive. Times are by the node's own clocks.
#[derive(Serialize, Deserialize)]
struct KeepAlive {
    v: u8,
    run: u32,
    count: u64,
    put: u64,
    /// When it was put, by the node's monotonic clock.
    #[serde(default)]
    mono: u64,
}

/// The store's replies to puts, as many at a time as have arrived.
type Replies = ReadyChunks<Subscriber>;

/// What is put and its replies.
struct Puts {
    in_flight: InFlight,
    replies: Replies,
    /// The subject of a reply without the number of its put.
    inbox: String,
}

pub struct Session<'a> {
    cluster: &'a Cluster,
    client: Client,
    context: Context,
    /// How our own records begin.
    own_start: Vec<u8>,
    servers: Store,
    keys: Store,
    /// None: they are not shared, or not at the moment.
    decisions: tokio::sync::Mutex<Option<Decisions<'a>>>,
    batches: tokio::sync::Mutex<broadcast::Receiver<std::sync::Arc<Batch>>>,
    outbox: Mutex<Outbox>,
    rejected: Mutex<RejectedPuts>,
    to_put: Notify,
    /// The store's records at the start of the session; None once all have been read.
    stored: Mutex<Option<StoredRecords>>,
    caught_up: watch::Sender<bool>,
    /// Another node has our name, so records under our name are not necessarily our own.
    has_twin: AtomicBool,
    keep_alives_sent: AtomicU64,
    /// When anything last arrived, by the monotonic clock. At least our own keep-alives should.
    received_at_ms: AtomicU64,
}

impl<'a> Session<'a> {
    /// Opens the buckets, measures the store's clock and adopts its keys.
    pub async fn open(cluster: &'a Cluster, client: Client) -> Result<Session<'a>, SessionError> {
        let payload_bytes_max = client.server_info().max_payload;
        if payload_bytes_max < VALUE_BYTES_MAX {
            let reason =
                format!("NATS's max_payload is {payload_bytes_max} bytes, but must be at least {VALUE_BYTES_MAX}");
            return Err(SessionError(reason));
        }
        let context = ContextBuilder::new().timeout(ACK_TIMEOUT).ack_timeout(ACK_TIMEOUT).build(client.clone());
        let replicas = cluster.settings.replicas;
        let servers = BucketSpec {
            name: SERVERS,
            description: "Rallypoint: the list",
            value_bytes_max: VALUE_BYTES_MAX,
            age_max: cluster.life_max + AGE_SLACK,
            storage: StorageType::File,
            ages_of_values: false,
            replicas,
        };
        let keys = BucketSpec {
            name: KEYS,
            description: "Rallypoint: cookie keys",
            value_bytes_max: 1024,
            age_max: Duration::ZERO,
            // Short-lived secrets do not belong on a disk.
            storage: StorageType::Memory,
            ages_of_values: false,
            replicas,
        };
        let session = Session {
            servers: servers.open(&context).await?,
            keys: keys.open(&context).await?,
            decisions: tokio::sync::Mutex::new(None),
            client,
            context,
            own_start: record::start_by(&cluster.name),
            cluster,
            batches: tokio::sync::Mutex::new(cluster.hub.subscribe()),
            outbox: Mutex::default(),
            rejected: Mutex::default(),
            to_put: Notify::new(),
            stored: Mutex::new(Some(StoredRecords::default())),
            caught_up: watch::Sender::new(false),
            has_twin: AtomicBool::new(false),
            keep_alives_sent: AtomicU64::new(0),
            received_at_ms: AtomicU64::new(cluster.hub.clock.now().mono_ms),
        };
        session.measure_clock().await?;
        session.init_keys().await?;
        Ok(session)
    }

    /// Runs until the session fails.
    pub async fn run(&self) -> SessionError {
        let no_watch = |error| SessionError::caused_by("cannot watch", &error);
        let servers = self.servers.watch_with_history(">").await.map_err(no_watch);
        let keys = self.keys.watch_with_history(COOKIE).await.map_err(no_watch);
        let (servers, keys) = match (servers, keys) {
            (Ok(servers), Ok(keys)) => (servers, keys),
            (Err(error), _) | (_, Err(error)) => return error,
        };
        tokio::select! {
            error = self.read(servers) => error,
            error = self.write() => error,
            error = self.send_keep_alives() => error,
            error = self.follow_keys(keys) => error,
            never = self.share_decisions() => match never {},
        }
    }

    /// Shares the operator's decisions. The session goes on without: NATS may not allow nodes to create the bucket.
    async fn share_decisions(&self) -> Infallible {
        let Some(moderator) = &self.cluster.moderator else { return std::future::pending().await };
        let spec = BucketSpec {
            name: DECISIONS,
            description: "Rallypoint: the operator's decisions",
            value_bytes_max: decision::VALUE_BYTES_MAX,
            age_max: Duration::ZERO,
            storage: StorageType::File,
            ages_of_values: true,
            replicas: self.cluster.settings.replicas,
        };
        let mut decisions = self.decisions.lock().await;
        loop {
            let error = match spec.open(&self.context).await {
                Ok(store) => {
                    let opened = Decisions::new(self.cluster, moderator, self.context.clone(), store);
                    decisions.insert(opened).share(self.caught_up.subscribe()).await
                }
                Err(error) => error,
            };
            *decisions = None;
            self.cluster.warn("decisions", || format!("bans are not shared: {error}; retrying"));
            sleep(DECISIONS_RETRY_PAUSE).await;
        }
    }

    /// Puts what is still queued and deletes this node's keep-alive, within [`LEAVE_TIMEOUT`].
    pub async fn leave(&self) {
        let flush = async {
            self.cluster.hub.publish(self.now());
            let mut batches = self.batches.lock().await;
            while let Ok(batch) = batches.try_recv() {
                self.outbox().note(&batch);
            }
            let Ok(mut puts) = self.open_puts().await else { return };
            while *self.caught_up.borrow() && !self.outbox().is_empty() {
                self.put_some(&mut puts).await;
            }
            while let Some(replies) = puts.next_replies().await {
                self.take_replies(&mut puts, &replies);
            }
            let _ = self.servers.delete(self.keep_alive_key()).await; // otherwise it times out at the other nodes
        };
        let decide = async {
            if let Some(decisions) = self.decisions.lock().await.as_mut().filter(|_| *self.caught_up.borrow()) {
                let _ = decisions.put().await; // otherwise at the next start, from the file
            }
        };
        let _ = timeout(LEAVE_TIMEOUT, async { tokio::join!(flush, decide) }).await;
    }

    // Reading.

    async fn read(&self, watch: Watch) -> SessionError {
        let mut entries = watch.ready_chunks(MERGE_BATCH);
        while let Some(chunk) = entries.next().await {
            let now = self.now();
            self.received_at_ms.store(now.mono_ms, Ordering::Relaxed);
            let mut changes = Vec::with_capacity(chunk.len());
            for entry in chunk {
                match entry {
                    Ok(entry) => self.take(&entry, now, &mut changes),
                    Err(error) => return watch_failed(&error),
                }
            }
            self.merge(&changes, now);
        }
        SessionError("the watch ended".into())
    }

    fn take(&self, entry: &Entry, now: Now, changes: &mut Vec<Change<'static>>) {
        let created_ms = unix_ms(entry.created);
        if let Some(name) = entry.key.strip_prefix(NODE_PREFIX) {
            return self.take_keep_alive(name, entry, created_ms, now);
        }
        let caught_up = *self.caught_up.borrow();
        if caught_up && entry.value.starts_with(&self.own_start) && !self.has_twin.load(Ordering::Relaxed) {
            return; // our own echo, recognized without decoding it
        }
        let Some(address) = record::address(&entry.key).filter(|_| entry.operation == Operation::Put) else { return };
        if self.cluster.guard.bans().contains(address.ip()) {
            return;
        }
        let record = match record::decode(address, &entry.value) {
            Ok(record) => record,
            Err(RecordError::Version(v)) => {
                let message = || format!("ignoring records of version {v}: some nodes run a newer rallypoint");
                return self.cluster.warn("version", message);
            }
            Err(RecordError::Protocol) => {
                let message = || "ignoring servers of an unknown protocol: some nodes run a newer rallypoint".into();
                return self.cluster.warn("protocol", message);
            }
            Err(error) => return self.cluster.warn("record", || format!("ignoring record {}: {error:?}", entry.key)),
        };
        if caught_up && record.by == self.cluster.name && !self.has_twin.load(Ordering::Relaxed) {
            return; // the same, of another version of this program
        }
        let by = record.by.clone();
        let (remote, ahead_ms) = record.into_local_time(created_ms, self.offset(now), now);
        if let Some(ahead_ms) = ahead_ms {
            let message = || format!("the clock of node {by} is {ahead_ms} ms ahead of NATS's; using NATS's time");
            self.cluster.warn("ahead", message);
        }
        if let Some(stored) = &mut *self.stored() {
            stored.note(&remote);
        }
        changes.push(Change::Merge(Box::new(remote)));
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
                (Change::Merge(remote), Outcome::Stale) => older.push(remote),
                (_, Outcome::Refused(refusal)) => debug!(?refusal, "cluster: not merged"),
                _ => {}
            }
        }
        if let Some(figures) = self.cluster.figures() {
            let merged = outcomes.len() - older.len();
            figures.merged.inc_by(merged as u64);
        }
        // During the initial read, `reconcile` finds what the store lacks at the end.
        if *self.caught_up.borrow() && !older.is_empty() {
            self.put_newer(&older, now);
        }
    }

    /// The store keeps one value per address, the last one put. If that is older than our state, puts ours again, even if
    /// it came from another node: that node may be gone.
    fn put_newer(&self, remote: &[&RemoteState<'_>], now: Now) {
        let local = self.cluster.hub.local_states(remote.iter().map(|remote| remote.address()), now);
        let mut outbox = self.outbox();
        for (remote, local) in remote.iter().zip(local) {
            if local.is_some_and(|local| local.is_ahead_of(remote)) {
                outbox.push(remote.address(), true);
                self.to_put.notify_one();
            }
        }
    }

    fn take_keep_alive(&self, name: &str, entry: &Entry, created_ms: u64, now: Now) {
        let keep_alive =
            serde_json::from_slice::<KeepAlive>(&entry.value).ok().filter(|_| entry.operation == Operation::Put);
        let Some(keep_alive) = keep_alive else {
            self.cluster.nodes().left(name);
            return self.cluster.count_nodes();
        };
        if name != self.cluster.name {
            self.cluster.nodes().keep_alive(name, created_ms);
            return self.cluster.count_nodes();
        }
        if keep_alive.run != self.cluster.run {
            if *self.caught_up.borrow() {
                self.has_twin.store(true, Ordering::Relaxed);
                let message = || format!("another node has the same name, {name}: give each node its own cluster.node");
                self.cluster.warn("name", message);
            }
            return;
        }
        self.measured(keep_alive.mono, created_ms, now);
        self.cluster.nodes().own_keep_alive(created_ms, now.mono_ms);
        self.cluster.count_nodes();
        // The first was put before the watch began; the second comes back after everything that was stored before it.
        if keep_alive.count >= 2 && !*self.caught_up.borrow() {
            self.caught_up.send_replace(true);
        }
    }

    // Writing.

    async fn write(&self) -> SessionError {
        let mut batches = self.batches.lock().await;
        is_true(&mut self.caught_up.subscribe()).await;
        self.cluster.connected();
        let stored = self.stored().take().unwrap_or_default();
        self.reconcile(&stored);
        drop(stored);
        let mut puts = match self.open_puts().await {
            Ok(puts) => puts,
            Err(error) => return error,
        };
        let mut refill = interval(REFILL_EVERY);
        refill.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hold_until = Instant::now();
        loop {
            let mut is_good = true;
            tokio::select! {
                batch = batches.recv() => match batch {
                    Ok(batch) => self.outbox().note(&batch),
                    // Missed changes: queue everything again, at the backlog's rate.
                    Err(RecvError::Lagged(_)) => self.reconcile(&StoredRecords::default()),
                    Err(RecvError::Closed) => return SessionError("the hub is gone".into()),
                },
                replies = puts.replies.next() => match replies {
                    Some(replies) => is_good = self.take_replies(&mut puts, &replies),
                    None => return SessionError("the subscription to replies ended".into()),
                },
                () = self.to_put.notified() => {}
                _ = refill.tick() => {
                    is_good = self.take_overdue(&mut puts);
                    self.outbox().refill(REFILL_MOST);
                    self.cluster.set_rejected(self.rejected().lasting(self.now().mono_ms));
                }
            }
            if !is_good {
                hold_until = Instant::now() + RETRY_PAUSE;
            }
            while puts.in_flight.len() < IN_FLIGHT_MAX && !self.outbox().is_empty() && Instant::now() >= hold_until {
                if !self.put_some(&mut puts).await {
                    hold_until = Instant::now() + RETRY_PAUSE;
                }
            }
        }
    }

    fn reconcile(&self, stored: &StoredRecords) {
        let hub = &self.cluster.hub;
        // Older removals are not needed: any record that they would end has expired.
        let since_ms = self.now().unix_ms.saturating_sub(self.cluster.life_max.as_millis() as u64);
        let (view, removals) = (hub.view(), hub.own_removals(since_ms));
        let servers = view.servers.iter().map(|server| &**server);
        self.outbox().reconcile(servers, removals, stored, &self.cluster.share);
    }

    async fn open_puts(&self) -> Result<Puts, SessionError> {
        let inbox = format!("{}.", self.client.new_inbox());
        let subscribed = self.client.subscribe(format!("{inbox}*")).await;
        let replies = subscribed.map_err(|error| SessionError::caused_by("cannot subscribe to replies", &error))?;
        Ok(Puts { in_flight: InFlight::default(), replies: replies.ready_chunks(PUT_BATCH), inbox })
    }

    /// Puts a batch from the queue without waiting for replies. Returns whether all could be sent.
    async fn put_some(&self, puts: &mut Puts) -> bool {
        let waiting = self.outbox().take(PUT_BATCH);
        let now = self.now();
        let local = self.cluster.hub.local_states(waiting.iter().map(|(address, _)| *address), now);
        let mut all_sent = true;
        for ((address, even_if_foreign), local) in waiting.into_iter().zip(local) {
            let Some(local) = local.filter(|local| must_put(local, even_if_foreign)) else {
                self.rejected().forget(address);
                continue;
            };
            let value = record::encode(&self.cluster.name, now.unix_ms, &local, self.offset(now));
            let put = Put { address, even_if_foreign, sent_ms: now.mono_ms };
            let number = puts.in_flight.add(put);
            let (subject, reply) = (self.subject(address), format!("{}{number}", puts.inbox));
            let sent = timeout(ACK_TIMEOUT, self.client.publish_with_reply(subject, reply, Bytes::from(value))).await;
            let reason = match sent {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => SessionError::caused_by("not put", &error).0,
                Err(_) => "not put: the connection to NATS takes nothing".into(),
            };
            puts.in_flight.take(number);
            self.not_put(put, reason);
            all_sent = false;
        }
        all_sent
    }

    fn subject(&self, address: Address) -> String {
        format!("{}{}", self.servers.prefix, record::key(address))
    }

    /// Whether the store accepted all of these records; queues the others again.
    fn take_replies(&self, puts: &mut Puts, replies: &[Message]) -> bool {
        let (mut all_accepted, mut accepted_count) = (true, 0);
        for reply in replies {
            let number = reply.subject.strip_prefix(&*puts.inbox).and_then(|number| number.parse().ok());
            let Some(put) = number.and_then(|number| puts.in_flight.take(number)) else { continue };
            let result = match reply.status {
                Some(StatusCode::NO_RESPONDERS) => Err("no stream found for the subject".into()),
                _ => accepted(&reply.payload),
            };
            match result {
                Ok(()) => {
                    self.rejected().forget(put.address);
                    accepted_count += 1;
                }
                Err(reason) => {
                    self.not_put(put, format!("not put: {reason}"));
                    all_accepted = false;
                }
            }
        }
        if let Some(figures) = self.cluster.figures() {
            figures.puts.inc_by(accepted_count);
        }
        all_accepted
    }

    /// Queues records again whose replies did not come in time. Returns whether there were none.
    fn take_overdue(&self, puts: &mut Puts) -> bool {
        let since_ms = self.now().mono_ms.saturating_sub(ACK_TIMEOUT.as_millis() as u64);
        let mut none = true;
        while let Some(put) = puts.in_flight.take_older(since_ms) {
            self.not_put(put, "not put: no reply in time".into());
            none = false;
        }
        none
    }

    fn not_put(&self, put: Put, reason: String) {
        if let Some(figures) = self.cluster.figures() {
            figures.put_failures.inc();
        }
        debug!(address = %put.address, "cluster: {reason}");
        self.outbox().push(put.address, put.even_if_foreign);
        self.rejected().note(put.address, self.now().mono_ms, reason);
    }

    // Keep-alives and the clock.

    async fn send_keep_alives(&self) -> SessionError {
        let mut tick = interval(KEEP_ALIVE_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            if let Err(error) = self.put_keep_alive().await {
                debug!("cluster: {error}");
            }
            let silent_ms = self.now().mono_ms.saturating_sub(self.received_at_ms.load(Ordering::Relaxed));
            if silent_ms > NODE_GONE_MS {
                return SessionError(format!("received nothing for {} s", silent_ms / 1000));
            }
        }
    }

    async fn put_keep_alive(&self) -> Result<u64, SessionError> {
        let count = self.keep_alives_sent.fetch_add(1, Ordering::Relaxed) + 1;
        let now = self.now();
        let keep_alive = KeepAlive { v: 1, run: self.cluster.run, count, put: now.unix_ms, mono: now.mono_ms };
        let value = serde_json::to_vec(&keep_alive).unwrap_or_default(); // plain numbers: cannot fail
        let put = self.servers.put(self.keep_alive_key(), value.into());
        let failed = |error| SessionError::caused_by("cannot put", &error);
        timeout(ACK_TIMEOUT, put).await.map_err(|_| SessionError("no answer to a put".into()))?.map_err(failed)
    }

    fn keep_alive_key(&self) -> String {
        format!("{NODE_PREFIX}{}", self.cluster.name)
    }

    /// Measures the store's clock, which reading and writing records requires.
    async fn measure_clock(&self) -> Result<(), SessionError> {
        let put_mono_ms = self.now().mono_ms;
        let revision = self.put_keep_alive().await?;
        let seen = self.now();
        let message = self.servers.stream.get_raw_message(revision).await;
        let message = message.map_err(|error| SessionError::caused_by("cannot read what was just put", &error))?;
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

    /// Adopts the store's keys, or puts ours if there are none.
    async fn init_keys(&self) -> Result<(), SessionError> {
        let failed = |error| SessionError::caused_by("cannot read the keys", &error);
        let mut entry = self.keys.entry(COOKIE).await.map_err(failed)?;
        if entry.is_none() {
            let ours = keyring::encode(&self.cluster.ring().keys);
            let _ = self.keys.create(COOKIE, ours.into()).await; // or another node was faster
            entry = self.keys.entry(COOKIE).await.map_err(failed)?;
        }
        self.take_keys(&entry.ok_or_else(|| SessionError("the keys that were just put are gone".into()))?);
        Ok(())
    }

    async fn follow_keys(&self, watch: Watch) -> SessionError {
        let mut entries = watch;
        let mut tick = interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                entry = entries.next() => match entry {
                    Some(Ok(entry)) => self.take_keys(&entry),
                    Some(Err(error)) => return watch_failed(&error),
                    None => return SessionError("the watch of the keys ended".into()),
                },
                _ = tick.tick() => if let Err(error) = self.renew_keys().await { return error },
            }
        }
    }

    fn take_keys(&self, entry: &Entry) {
        let Some(keys) = keyring::decode(&entry.value).filter(|_| entry.operation == Operation::Put) else {
            let message =
                || "cannot read the cookie keys in NATS: handshakes must end at the node where they began".into();
            return self.cluster.warn("keys", message);
        };
        let now_ms = self.cluster.time().unix_ms(self.now());
        let age_ms = now_ms.saturating_sub(unix_ms(entry.created));
        self.cluster.take_keys(keys, entry.revision, age_ms);
    }

    /// Replaces old keys. The first node wins, and the watch delivers its keys to the others.
    async fn renew_keys(&self) -> Result<(), SessionError> {
        let now_ms = self.now().mono_ms.saturating_sub(u64::from(self.cluster.run) % KEY_JITTER_MS);
        let (next, revision) = {
            let ring = self.cluster.ring();
            let (Some(revision), true) = (ring.revision, ring.is_old(now_ms)) else { return Ok(()) };
            let Some(secret) = secret() else { return Ok(()) };
            (ring.keys.rotated(secret), revision)
        };
        if let Err(error) = self.keys.update(COOKIE, keyring::encode(&next).into(), revision).await {
            debug!("cluster: keys not replaced: {error}");
            // Another node was faster, or the store was recreated and its revisions restarted.
            self.cluster.ring().disconnected();
            self.init_keys().await?;
        }
        Ok(())
    }

    fn now(&self) -> Now {
        self.cluster.hub.clock.now()
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rejected(&self) -> MutexGuard<'_, RejectedPuts> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stored(&self) -> MutexGuard<'_, Option<StoredRecords>> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Puts {
    /// The next replies; None if none is missing, or none can come.
    async fn next_replies(&mut self) -> Option<Vec<Message>> {
        if self.in_flight.is_empty() { None } else { self.replies.next().await }
    }
}

fn watch_failed(error: &WatcherError) -> SessionError {
    SessionError::caused_by("the watch failed", error)
}

/// The store's time in milliseconds since 1970.
fn unix_ms(time: DateTime) -> u64 {
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
}
