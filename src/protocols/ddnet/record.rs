//! What is kept of a registered server beside its facts: in the keys of its last heartbeat, which are stored and shared with the
//! other nodes.
//!
//! The keys begin with a backslash. No filter of a list can name such a key, because in the protocol that filters by keys the
//! backslash separates them.
//!
//! The Secret is not kept, only a hash of it, which has to be the same on every node, after a restart, and at all addresses of a
//! server, so it has neither a key nor a salt. A Secret is a random UUID: whoever sees the hash cannot find it by trying 2¹²²
//! of them. They learn which addresses belong to one server, which the list says anyway. The hash is not a Secret: with it
//! alone, nothing can be registered or removed.

use std::sync::Arc;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::NAME;
use super::wire::Version;
use crate::model::{Address, HeartbeatKeys, Server};

const SECRET: &[u8] = b"\\secret";
const VERSIONS: &[u8] = b"\\versions";
const SERIAL: &[u8] = b"\\serial";
/// There are as many as the info needs, in order.
const INFO: &[u8] = b"\\info";
/// Upper bound on a value that nodes share.
const PART_BYTES_MAX: usize = 1_000;

/// The hash of a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretHash([u8; 16]);

impl SecretHash {
    pub fn of(secret: &str) -> SecretHash {
        let mut hasher = Sha256::new();
        hasher.update(b"rallypoint ddnet secret\0");
        hasher.update(secret.as_bytes());
        let hash: [u8; 32] = hasher.finalize().into();
        SecretHash(hash.first_chunk().copied().unwrap_or_default())
    }

    pub fn is(&self, other: &SecretHash) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub secret: SecretHash,
    /// In which versions of the protocol it has registered at this address, in order.
    pub versions: Vec<Version>,
    pub serial: i64,
    /// As the list has it.
    pub info: String,
}

impl Record {
    pub fn of(server: &Server) -> Option<Record> {
        Record::read(server.keys.as_deref()?)
    }

    pub fn keys(&self, address: Address) -> Arc<HeartbeatKeys> {
        let versions: Vec<u8> = self.versions.iter().map(|version| version.digit()).collect();
        let serial = self.serial.to_string();
        let own = [(SECRET, &self.secret.0[..]), (VERSIONS, &versions), (SERIAL, serial.as_bytes())];
        let info = self.info.as_bytes().chunks(PART_BYTES_MAX).map(|part| (INFO, part));
        let common = HeartbeatKeys::of(NAME, address);
        Arc::new(HeartbeatKeys(common.0.iter().chain(own).chain(info).collect()))
    }

    fn read(keys: &HeartbeatKeys) -> Option<Record> {
        let secret = SecretHash(keys.get(SECRET)?.try_into().ok()?);
        let digits = keys.get(VERSIONS)?;
        let versions = Version::ALL.into_iter().filter(|version| digits.contains(&version.digit())).collect();
        let serial = str::from_utf8(keys.get(SERIAL)?).ok()?.parse().ok()?;
        let parts = keys.0.iter().filter(|(key, _)| *key == INFO).flat_map(|(_, part)| part.iter().copied());
        Some(Record { secret, versions, serial, info: String::from_utf8(parts.collect()).ok()? })
    }

    pub fn add(&mut self, version: Version) {
        self.versions.push(version);
        self.versions.sort_unstable();
        self.versions.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::ddnet::testing::SECRET as TEXT;

    #[test]
    fn a_record_survives_as_keys() {
        let info = "é\"".repeat(4_000);
        let mut record = Record { secret: SecretHash::of(TEXT), versions: vec![Version::V7], serial: -4, info };
        record.add(Version::V6);
        record.add(Version::V7);
        assert_eq!(record.versions, [Version::V6, Version::V7]);
        let keys = record.keys("203.0.113.5:8303".parse().unwrap());
        assert_eq!(Record::read(&keys), Some(record));
        assert_eq!(keys.get(b"port"), Some(&b"8303"[..]));
        for (key, value) in keys.0.iter() {
            assert!(value.len() <= 1_024, "nodes share no longer ones");
            let own = !matches!(key, b"gamename" | b"port");
            assert_eq!(own, key.contains(&b'\\'), "a filter could name it");
            assert!(!value.windows(TEXT.len()).any(|part| part == TEXT.as_bytes()));
        }
        assert!(keys.0.len() <= 64);
        assert_eq!(Record::read(&HeartbeatKeys::default()), None);
    }

    #[test]
    fn a_hash_is_the_same_for_the_same_secret_alone() {
        assert!(SecretHash::of(TEXT).is(&SecretHash::of(TEXT)));
        assert!(!SecretHash::of(TEXT).is(&SecretHash::of(&TEXT[1..])));
        // Other nodes and other versions of this program have to agree.
        assert_eq!(SecretHash::of(TEXT).0[..4], [0xff, 0xf7, 0xc0, 0x57]);
    }
}
