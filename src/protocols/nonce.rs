//! A nonce as eight hexadecimal digits, for games that send a text back.

pub const DIGITS: usize = 8;

pub fn digits(nonce: u32) -> [u8; DIGITS] {
    std::array::from_fn(|at| {
        let digit = (nonce >> (28 - 4 * at)) as u8 & 0xf;
        if digit < 10 { b'0' + digit } else { b'a' + digit - 10 }
    })
}

/// None for anything but eight digits.
pub fn read(bytes: &[u8]) -> Option<u32> {
    let is_nonce = bytes.len() == DIGITS && bytes.iter().all(u8::is_ascii_hexdigit);
    let digits = str::from_utf8(bytes).ok().filter(|_| is_nonce);
    digits.and_then(|digits| u32::from_str_radix(digits, 16).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_eight_digits() {
        assert_eq!(digits(0x0bad_cafe), *b"0badcafe");
        for nonce in [0, 1, 0x0bad_cafe, u32::MAX] {
            assert_eq!(read(&digits(nonce)), Some(nonce));
        }
        for bad in [&b""[..], b"badcafe", b"00badcafe", b"+badcafe", b"0badcafg"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
