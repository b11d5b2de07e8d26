//! Shares the operator's decisions: merges the other nodes' and puts this node's own. A value is put only in place of the one
//! that this node has seen, so that an older statement never replaces a newer one in the store.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::{NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_TTL};
use async_nats::jetstream::Context;
use async_nats::jetstream::kv::{Entry, Operation, Store};
use futures_util::stream::{self, StreamExt};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::debug;

use super::Cluster;
use super::buckets::SessionError;
use super::decision::{self, Known};
use crate::moderation::Statement;
use crate::net::moderator::Moderator;

/// How long to wait for the store's acknowledgement.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before what was not put is put again.
const RETRY_EVERY: Duration = Duration::from_secs(1);
/// Values that are merged at once, and puts without an acknowledgement.
const MERGE_BATCH: usize = 256;
const IN_FLIGHT_MAX: usize = 64;

pub struct Decisions<'a> {
    cluster: &'a Cluster,
    moderator: &'a Moderator,
    context: Context,
    store: Store,
    known: Known,
}

impl<'a> Decisions<'a> {
    pub fn new(cluster: &'a Cluster, moderator: &'a Moderator, context: Context, store: Store) -> Decisions<'a> {
        Decisions { cluster, moderator, context, store, known: Known::default() }
    }

    /// Runs until this fails. Puts nothing before `caught_up`.
    pub async fn share(&mut self, mut caught_up: watch::Receiver<bool>) -> SessionError {
        let entries = match self.store.watch_with_history(">").await {
            Ok(entries) => entries,
            Err(error) => return SessionError::caused_by("cannot watch the decisions", &error),
        };
        let mut entries = entries.ready_chunks(MERGE_BATCH);
        let mut changes = self.moderator.board.changes();
        changes.mark_changed(); // what was decided before this session
        let mut retry = interval(RETRY_EVERY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_behind = false;
        loop {
            let is_ready = *caught_up.borrow();
            tokio::select! {
                chunk = entries.next() => {
                    let Some(chunk) = chunk else { return SessionError("the watch of the decisions ended".into()) };
                    let mut news = Vec::new();
                    for entry in chunk {
                        match entry {
                            Ok(entry) => news.extend(note(&mut self.known, &entry)),
                            Err(error) => return SessionError::caused_by("the watch of the decisions failed", &error),
                        }
                    }
                    self.moderator.merge(news);
                }
                Ok(()) = changes.changed(), if is_ready => is_behind = self.put().await.is_err(),
                _ = retry.tick(), if is_ready && is_behind => {
                    let put = self.put().await;
                    is_behind = put.is_err();
                    if let Err(error) = put {
                        self.cluster.warn("put of decisions", || format!("bans are not shared: {error}; retrying"));
                    }
                }
                Ok(()) = caught_up.changed(), if !is_ready => {}
            }
        }
    }

    /// Puts what the store lacks. An error if some of it was not accepted.
    pub async fn put(&mut self) -> Result<(), String> {
        let this = &*self;
        let lacking = this.known.lacks(&this.moderator.board.statements(), this.moderator.now_ms());
        let puts = lacking.into_iter().map(|(key, revision, statement)| async move {
            let put = timeout(ACK_TIMEOUT, this.put_one(&key, revision, &statement)).await;
            (key, statement, put.unwrap_or_else(|_| Err("no answer to a put".into())))
        });
        let puts: Vec<_> = stream::iter(puts).buffer_unordered(IN_FLIGHT_MAX).collect().await;
        let mut all_put = Ok(());
        for (key, statement, put) in puts {
            match put {
                Ok(revision) => self.known.note(key, revision, Some(statement)),
                Err(error) => {
                    debug!("cluster: decision {key} not put: {error}");
                    all_put = Err(error);
                    // Another node was faster, or what was seen has expired there.
                    match self.store.entry(key.as_str()).await {
                        Ok(Some(entry)) => self.moderator.merge(note(&mut self.known, &entry)),
                        Ok(None) => self.known.forget(&key),
                        Err(error) => debug!("cluster: {error}"),
                    }
                }
            }
        }
        all_put
    }

    async fn put_one(&self, key: &str, revision: u64, statement: &Statement) -> Result<u64, String> {
        let mut headers = HeaderMap::new();
        headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, revision.to_string());
        if let Some(age_s) = decision::age_max_s(statement, self.moderator.now_ms()) {
            headers.insert(NATS_MESSAGE_TTL, age_s.to_string());
        }
        let subject = format!("{}{key}", self.store.prefix);
        let value = decision::encode(statement).into();
        let failed = |error| SessionError::caused_by("not put", &error).0;
        let sent = self.context.publish_with_headers(subject, headers, value).await.map_err(failed)?;
        sent.await.map(|ack| ack.sequence).map_err(failed)
    }
}

/// Remembers what the store holds, and returns it.
fn note(known: &mut Known, entry: &Entry) -> Option<Statement> {
    let is_put = entry.operation == Operation::Put;
    let statement = decision::decode(&entry.key, &entry.value).filter(|_| is_put);
    known.note(entry.key.clone(), entry.revision, statement.clone());
    statement
}
