//! The three datagrams of the probe. A game gives every stranger an id and repeats that, with pings, for half a minute unless
//! it is told that the stranger has gone.

/// Protocol id, no peer id yet, channel 0, type "original", no data.
pub const PROBE: [u8; 8] = [0x4f, 0x45, 0x74, 0x03, 0, 0, 0, 1];
const MAGIC: [u8; 4] = [0x4f, 0x45, 0x74, 0x03];
/// The sequence number of a server's first reliable packet.
const FIRST: u16 = 65_500;

/// Whether a game would take these bytes for the first of a new client. Data after the header makes no difference, nor does the
/// type.
pub fn is_probe(bytes: &[u8]) -> bool {
    let head: Option<&[u8; 7]> = bytes.first_chunk();
    head.is_some_and(|head| head.starts_with(&PROBE[..6]) && head[6] < 3)
}

/// The game's answer: from the server (peer 1), reliable, control, "your id is …".
pub fn answer(id: u16) -> [u8; 14] {
    let ([s0, s1], [i0, i1]) = (FIRST.to_be_bytes(), id.to_be_bytes());
    [0x4f, 0x45, 0x74, 0x03, 0, 1, 0, 3, s0, s1, 0, 1, i0, i1]
}

/// The id that an answer gives.
pub fn given_id(bytes: &[u8]) -> Option<u16> {
    match bytes {
        [a, b, c, d, 0, 1, _, 3, _, _, 0, 1, high, low] if [*a, *b, *c, *d] == MAGIC => {
            Some(u16::from_be_bytes([*high, *low]))
        }
        _ => None,
    }
}

/// Control, "I disconnect", from the client with this id.
pub fn disconnect(id: u16) -> [u8; 9] {
    let [high, low] = id.to_be_bytes();
    [0x4f, 0x45, 0x74, 0x03, high, low, 0, 0, 3]
}

#[cfg(test)]
mod tests {
    use super::*;
    use data_encoding::HEXLOWER;
    use serde_json::Value;

    /// Golden bytes, recorded from the original programs.
    fn golden() -> Value {
        serde_json::from_str(include_str!("../../../tests/data/luanti.json")).unwrap()
    }

    fn bytes(value: &Value) -> Vec<u8> {
        HEXLOWER.decode(value.as_str().unwrap().as_bytes()).unwrap()
    }

    #[test]
    fn the_probe_is_that_of_the_original_list() {
        let ping = &golden()["ping"];
        assert_eq!(PROBE[..], bytes(&ping["probe"]));
        assert_eq!(answer(2)[..], bytes(&ping["reply"]));
        assert_eq!(disconnect(2)[..], bytes(&ping["disconnect"]));
        assert_eq!(given_id(&bytes(&ping["reply"])), Some(2));
        assert_eq!(given_id(&bytes(&ping["reliable_ping_if_no_disconnect"])), None);
        let mut other = answer(2);
        other[0] ^= 1;
        assert_eq!(given_id(&other), None, "another protocol");
        for other in ping["no_reply_to"].as_array().unwrap() {
            assert!(!is_probe(&bytes(other)), "{other}");
        }
        for same in ping["same_reply_to"].as_array().unwrap() {
            assert!(is_probe(&bytes(same)), "{same}");
        }
    }
}
