//! The buckets in the store: found, made, and given as many replicas as there are servers for.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use async_nats::jetstream::context::{CreateStreamError, CreateStreamErrorKind, GetStreamErrorKind};
use async_nats::jetstream::kv::{self, Store};
use async_nats::jetstream::stream::{Info, StorageType};
use async_nats::jetstream::{Context, ErrorCode};
use tracing::debug;

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
    fn config(&self, replicas: usize, age_max: Duration) -> kv::Config {
        kv::Config {
            bucket: self.name.into(),
            description: self.description.into(),
            max_value_size: self.value_bytes_max as i32,
            history: 1,
            max_age: age_max,
            storage: self.storage,
            num_replicas: replicas,
            ..kv::Config::default()
        }
    }

    /// How many replicas to try, best first.
    fn tries(&self) -> Vec<usize> {
        if self.replicas == 0 { (1..=REPLICAS_MAX).rev().collect() } else { vec![self.replicas] }
    }

    /// The bucket, made if there is none. One that has fewer replicas than there could be by now, or drops entries too
    /// early, is changed; when that is not possible yet, the next visit tries again.
    pub async fn open(&self, context: &Context) -> Result<Store, Lost> {
        let failed = |error: &dyn Error| Lost::because(self.name, error);
        match context.get_stream(format!("KV_{}", self.name)).await {
            Ok(stream) => self.improve(context, stream.cached_info()).await,
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
            match context.create_key_value(self.config(replicas, self.age_max)).await {
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

    async fn improve(&self, context: &Context, info: &Info) {
        let now = info.config.num_replicas;
        let age_max = self.age_max.max(info.config.max_age);
        for replicas in self.tries() {
            let fewer = self.replicas == 0 && replicas < now;
            if fewer || replicas == now && age_max == info.config.max_age {
                return;
            }
            match context.update_key_value(self.config(replicas, age_max)).await {
                Ok(_) => return,
                Err(error) => debug!("{}", Lost::because(self.name, &error)),
            }
        }
    }
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
