//! Creates the store's buckets, or compares existing ones with the configuration that the cluster needs and repairs them,
//! including the number of replicas.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use tracing::{debug, info};

/// Why a session ended, as text for the log.
#[derive(Debug)]
pub struct SessionError(pub String);

impl SessionError {
    /// An error with its chain of causes: the NATS client has the actual reason only in the last one.
    pub fn caused_by(what: &str, error: &dyn Error) -> SessionError {
        let mut text = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            let reason = error.to_string();
            if !text.contains(&reason) {
                text.push_str(&format!(": {reason}"));
            }
            cause = error.source();
        }
        SessionError(text)
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The configuration that a bucket must have.
pub struct BucketSpec {
    pub name: &'static str,
    pub description: &'static str,
    pub value_bytes_max: usize,
    /// Entries expire after this time; zero: never.
    pub age_max: Duration,
    pub storage: StorageType,
    /// Values may have ages of their own.
    pub ages_of_values: bool,
    /// 0: one per NATS server, up to 3.
    pub replicas: usize,
}

/// How long the store reports that a value with an age of its own is gone.
const MARKERS: Duration = Duration::from_secs(3_600);
/// More replicas than this would not make the data safer.
const REPLICAS_MAX: usize = 3;

impl BucketSpec {
    fn config(&self, replicas: usize) -> kv::Config {
        kv::Config {
            bucket: self.name.into(),
            description: self.description.into(),
            max_value_size: self.value_bytes_max as i32,
            history: 1,
            max_age: self.age_max,
            storage: self.storage,
            num_replicas: replicas,
            limit_markers: self.ages_of_values.then_some(MARKERS),
            ..kv::Config::default()
        }
    }

    /// Replica counts to try, best first.
    fn replica_counts(&self) -> Vec<usize> {
        if self.replicas == 0 { (1..=REPLICAS_MAX).rev().collect() } else { vec![self.replicas] }
    }

    /// Opens the bucket, creating or repairing it as needed. Fails if NATS refuses a needed change; too few replicas are
    /// no failure, because the next session tries again to add them.
    pub async fn open(&self, context: &Context) -> Result<Store, SessionError> {
        let failed = |error: &dyn Error| SessionError::caused_by(self.name, error);
        match context.get_stream(format!("KV_{}", self.name)).await {
            Ok(stream) => self.repair(context, &stream.cached_info().config).await?,
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(reason) if reason.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    self.create(context).await?;
                }
                GetStreamErrorKind::Request => {
                    return Err(SessionError::caused_by("JetStream does not answer", &error));
                }
                _ => return Err(failed(&error)),
            },
        }
        context.get_key_value(self.name).await.map_err(|error| failed(&error))
    }

    async fn create(&self, context: &Context) -> Result<(), SessionError> {
        let mut reason = SessionError(format!("{}: no replicas", self.name));
        for replicas in self.replica_counts() {
            match context.create_key_value(self.config(replicas)).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let code = error_code(&error);
                    // Another node was faster.
                    if code == Some(ErrorCode::STREAM_NAME_EXIST) {
                        return Ok(());
                    }
                    reason = SessionError::caused_by(self.name, &error);
                    if !code.is_some_and(is_too_few_servers) {
                        break;
                    }
                }
            }
        }
        Err(reason)
    }

    async fn repair(&self, context: &Context, found: &Config) -> Result<(), SessionError> {
        let mut more_replicas = self.replica_counts();
        more_replicas.retain(|count| self.replicas != 0 || *count > found.num_replicas);
        let differences = differences(found, &self.expected(found, found.num_replicas)).join(", ");
        for replicas in more_replicas.into_iter().chain([found.num_replicas]) {
            let expected = self.expected(found, replicas);
            if expected == *found {
                return Ok(());
            }
            match context.update_stream(&expected).await {
                Ok(_) if differences.is_empty() => return Ok(()),
                Ok(_) => {
                    info!("cluster: repaired the configuration of bucket {} ({differences})", self.name);
                    return Ok(());
                }
                Err(error) if replicas != found.num_replicas => {
                    debug!("{}", SessionError::caused_by(self.name, &error))
                }
                Err(error) => {
                    let what = format!("bucket {} has a wrong configuration ({differences})", self.name);
                    return Err(SessionError::caused_by(&what, &error));
                }
            }
        }
        Ok(())
    }

    /// The configuration that an existing bucket must have. Settings that do not affect the nodes (placement, compression,
    /// a longer age) stay as the operator chose them.
    fn expected(&self, found: &Config, replicas: usize) -> Config {
        let keeps_longer = !self.age_max.is_zero() && found.max_age > self.age_max;
        Config {
            subjects: vec![format!("$KV.{}.>", self.name)],
            retention: RetentionPolicy::Limits,
            storage: self.storage,
            max_message_size: self.value_bytes_max as i32,
            max_messages_per_subject: 1,
            max_messages: -1,
            max_bytes: -1,
            max_consumers: -1,
            max_age: if keeps_longer { found.max_age } else { self.age_max },
            discard: DiscardPolicy::New,
            discard_new_per_subject: false,
            num_replicas: replicas,
            no_ack: false,
            sealed: false,
            allow_rollup: true,
            allow_direct: true,
            deny_delete: true,
            mirror: None,
            sources: None,
            subject_transform: None,
            republish: None,
            allow_message_ttl: self.ages_of_values || found.allow_message_ttl,
            ..found.clone()
        }
    }
}

/// The settings that differ, by NATS's own names.
fn differences(found: &Config, expected: &Config) -> Vec<String> {
    let as_json = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (found, expected) = (as_json(found), as_json(expected));
    let mut keys: Vec<&String> =
        [&found, &expected].iter().filter_map(|value| value.as_object()).flatten().map(|(key, _)| key).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&String| found.get(key) != expected.get(key);
    let shown = |value: Option<&serde_json::Value>| value.map_or("nothing".into(), ToString::to_string);
    let differing = keys.into_iter().filter(differs);
    differing.map(|key| format!("{key} is {} instead of {}", shown(found.get(key)), shown(expected.get(key)))).collect()
}

/// NATS's error code for a bucket that it refused to create.
fn error_code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    let rejected = error.source()?.downcast_ref::<CreateStreamError>()?;
    match rejected.kind() {
        CreateStreamErrorKind::JetStream(reason) => Some(reason.error_code()),
        _ => None,
    }
}

fn is_too_few_servers(code: ErrorCode) -> bool {
    [ErrorCode::CLUSTER_NO_PEERS, ErrorCode::INSUFFICIENT_RESOURCES, ErrorCode::STREAM_REPLICAS_NOT_SUPPORTED]
        .contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected description, and the change that causes it.
    type Difference = (&'static str, fn(&mut Config));

    fn servers() -> BucketSpec {
        BucketSpec {
            name: "b",
            description: "",
            value_bytes_max: 65_536,
            age_max: Duration::from_secs(180),
            storage: StorageType::File,
            ages_of_values: false,
            replicas: 0,
        }
    }

    #[test]
    fn settings_that_matter_are_compared_and_the_rest_is_kept() {
        let good = servers().expected(&Config { name: "KV_b".into(), ..Config::default() }, 1);
        assert_eq!(servers().expected(&good, 1), good);
        let changes: [Difference; 9] = [
            ("max_msg_size is 100 instead of 65536", |found| found.max_message_size = 100),
            ("storage is \"memory\" instead of \"file\"", |found| found.storage = StorageType::Memory),
            ("max_msgs_per_subject is 5 instead of 1", |found| found.max_messages_per_subject = 5),
            ("max_age is 60000000000 instead of 180000000000", |found| found.max_age = Duration::from_secs(60)),
            ("max_bytes is 4096 instead of -1", |found| found.max_bytes = 4096),
            ("max_msgs is 10 instead of -1", |found| found.max_messages = 10),
            ("discard is \"old\" instead of \"new\"", |found| found.discard = DiscardPolicy::Old),
            ("no_ack is true instead of nothing", |found| found.no_ack = true),
            ("subjects is [\"$KV.b.x\"] instead of [\"$KV.b.>\"]", |found| found.subjects = vec!["$KV.b.x".into()]),
        ];
        for (difference, change) in changes {
            let mut found = good.clone();
            change(&mut found);
            let expected = servers().expected(&found, 1);
            assert_eq!(expected, good, "{difference}");
            assert_eq!(differences(&found, &expected), [difference]);
        }
        let longer = Config { max_age: Duration::from_secs(600), description: Some("ours".into()), ..good };
        assert_eq!(servers().expected(&longer, 1), longer);
        let keys = BucketSpec { age_max: Duration::ZERO, ..servers() };
        assert_eq!(keys.expected(&longer, 3).max_age, Duration::ZERO, "keys never expire");
        let decisions = BucketSpec { ages_of_values: true, ..servers() };
        assert!(decisions.expected(&longer, 1).allow_message_ttl && !servers().expected(&longer, 1).allow_message_ttl);
    }
}
