//! The buckets in the store: found or made, compared with what they have to be, and given as many replicas as there are
//! servers for.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use tracing::{debug, info};

/// Why a visit to the store ended, in words.
#[derive(Debug)]
pub struct Lost(pub String);

impl Lost {
    /// An error with its causes: those of the NATS client tell the reason only in the last.
    pub fn because(what: &str, error: &dyn Error) -> Lost {
        let mut text = format!("{what}: {error}");
        let mut cause = error.source();
        while let Some(error) = cause {
            let reason = error.to_string();
            if !text.contains(&reason) {
                text.push_str(&format!(": {reason}"));
            }
            cause = error.source();
        }
        Lost(text)
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a bucket has to be.
pub struct Wanted {
    pub name: &'static str,
    pub description: &'static str,
    pub value_bytes_max: usize,
    /// Entries go after this time.
    pub age_max: Duration,
    pub storage: StorageType,
    /// 0: as many as there are servers, up to 3.
    pub replicas: usize,
}

/// More replicas than this keep nothing safer.
const REPLICAS_MAX: usize = 3;

impl Wanted {
    fn config(&self, replicas: usize) -> kv::Config {
        kv::Config {
            bucket: self.name.into(),
            description: self.description.into(),
            max_value_size: self.value_bytes_max as i32,
            history: 1,
            max_age: self.age_max,
            storage: self.storage,
            num_replicas: replicas,
            ..kv::Config::default()
        }
    }

    /// How many replicas to try, best first.
    fn tries(&self) -> Vec<usize> {
        if self.replicas == 0 { (1..=REPLICAS_MAX).rev().collect() } else { vec![self.replicas] }
    }

    /// The bucket, made if there is none. One that is not as it has to be is changed; where NATS refuses that, it cannot
    /// be used. Fewer replicas than there could be by now are no reason: the next visit tries again.
    pub async fn open(&self, context: &Context) -> Result<Store, Lost> {
        let failed = |error: &dyn Error| Lost::because(self.name, error);
        match context.get_stream(format!("KV_{}", self.name)).await {
            Ok(stream) => self.repair(context, &stream.cached_info().config).await?,
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(reason) if reason.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    self.create(context).await?;
                }
                GetStreamErrorKind::Request => return Err(Lost::because("JetStream does not answer", &error)),
                _ => return Err(failed(&error)),
            },
        }
        context.get_key_value(self.name).await.map_err(|error| failed(&error))
    }

    async fn create(&self, context: &Context) -> Result<(), Lost> {
        let mut reason = Lost(format!("{}: no replicas", self.name));
        for replicas in self.tries() {
            match context.create_key_value(self.config(replicas)).await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let code = error_code(&error);
                    // Another node was faster.
                    if code == Some(ErrorCode::STREAM_NAME_EXIST) {
                        return Ok(());
                    }
                    reason = Lost::because(self.name, &error);
                    if !code.is_some_and(is_too_few_servers) {
                        break;
                    }
                }
            }
        }
        Err(reason)
    }

    async fn repair(&self, context: &Context, found: &Config) -> Result<(), Lost> {
        let tries = self.tries().into_iter().filter(|tried| self.replicas != 0 || *tried > found.num_replicas);
        let more_replicas: Vec<usize> = tries.collect();
        let differences = differences(found, &self.wanted(found, found.num_replicas)).join(", ");
        for replicas in more_replicas.into_iter().chain([found.num_replicas]) {
            let wanted = self.wanted(found, replicas);
            if wanted == *found {
                return Ok(());
            }
            match context.update_stream(&wanted).await {
                Ok(_) if differences.is_empty() => return Ok(()),
                Ok(_) => {
                    info!("cluster: the bucket {} was not as it has to be ({differences}), and is now", self.name);
                    return Ok(());
                }
                Err(error) if replicas != found.num_replicas => debug!("{}", Lost::because(self.name, &error)),
                Err(error) => {
                    let what = format!("the bucket {} is not as it has to be ({differences})", self.name);
                    return Err(Lost::because(&what, &error));
                }
            }
        }
        Ok(())
    }

    /// What an existing bucket has to be. What makes no difference to the nodes stays as the operator has set it:
    /// placement, compression, a longer age.
    fn wanted(&self, found: &Config, replicas: usize) -> Config {
        let is_old_enough = !self.age_max.is_zero() && found.max_age > self.age_max;
        Config {
            subjects: vec![format!("$KV.{}.>", self.name)],
            retention: RetentionPolicy::Limits,
            storage: self.storage,
            max_message_size: self.value_bytes_max as i32,
            max_messages_per_subject: 1,
            max_messages: -1,
            max_bytes: -1,
            max_consumers: -1,
            max_age: if is_old_enough { found.max_age } else { self.age_max },
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
            ..found.clone()
        }
    }
}

/// What differs, by the names that NATS has for it.
fn differences(found: &Config, wanted: &Config) -> Vec<String> {
    let as_json = |config: &Config| serde_json::to_value(config).unwrap_or_default();
    let (found, wanted) = (as_json(found), as_json(wanted));
    let mut keys: Vec<&String> =
        [&found, &wanted].iter().filter_map(|value| value.as_object()).flatten().map(|(key, _)| key).collect();
    keys.sort();
    keys.dedup();
    let differs = |key: &&String| found.get(key) != wanted.get(key);
    let shown = |value: Option<&serde_json::Value>| value.map_or("nothing".into(), ToString::to_string);
    let differing = keys.into_iter().filter(differs);
    differing.map(|key| format!("{key} is {} instead of {}", shown(found.get(key)), shown(wanted.get(key)))).collect()
}

/// The code of the error with which the store refused to make a bucket.
fn error_code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    let refused = error.source()?.downcast_ref::<CreateStreamError>()?;
    match refused.kind() {
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

    /// What is told of it, and how it is made.
    type Difference = (&'static str, fn(&mut Config));

    fn servers() -> Wanted {
        Wanted {
            name: "b",
            description: "",
            value_bytes_max: 65_536,
            age_max: Duration::from_secs(180),
            storage: StorageType::File,
            replicas: 0,
        }
    }

    #[test]
    fn everything_that_matters_is_compared_and_the_rest_is_left_alone() {
        let good = servers().wanted(&Config { name: "KV_b".into(), ..Config::default() }, 1);
        assert_eq!(servers().wanted(&good, 1), good);
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
        for (expected, change) in changes {
            let mut found = good.clone();
            change(&mut found);
            let wanted = servers().wanted(&found, 1);
            assert_eq!(wanted, good, "{expected}");
            assert_eq!(differences(&found, &wanted), [expected]);
        }
        let longer = Config { max_age: Duration::from_secs(600), description: Some("ours".into()), ..good };
        assert_eq!(servers().wanted(&longer, 1), longer);
        let keys = Wanted { age_max: Duration::ZERO, ..servers() };
        assert_eq!(keys.wanted(&longer, 3).max_age, Duration::ZERO, "keys never go by themselves");
    }
}
