//! The signature of a request: HMAC-SHA256 over the time and the body, so that a receiver knows who sent it and when.

use data_encoding::HEXLOWER;
use ring::hmac::{Context, HMAC_SHA256, Key};

use super::settings::Secret;

pub const HEADER: &str = "X-Rallypoint-Signature";

/// `t=TIME,v1=HEX`: the time in seconds since 1970, and the HMAC of `TIME.BODY`.
pub fn signature(secret: &Secret, unix_s: u64, body: &[u8]) -> String {
    let mut hmac = Context::with_key(&Key::new(HMAC_SHA256, secret.bytes()));
    hmac.update(format!("{unix_s}.").as_bytes());
    hmac.update(body);
    format!("t={unix_s},v1={}", HEXLOWER.encode(hmac.sign().as_ref()))
}
