//! Reading bytes from the network: a cursor that never panics, never reads past the end and copies nothing.

/// A position in a message. A read either advances, or returns `None` and stays.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16_le(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32_le(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn i16_be(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn u32_be(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A fixed-size text field, up to its first NUL if it has one.
    pub fn text_field(&mut self, size: usize) -> Option<&'a [u8]> {
        self.take(size).map(until_nul)
    }
}

/// The bytes before the first NUL, or all of them.
pub fn until_nul(bytes: &[u8]) -> &[u8] {
    memchr::memchr(0, bytes).and_then(|end| bytes.get(..end)).unwrap_or(bytes)
}

/// Decodes hex digits, so that tests can quote recorded messages. Other characters are skipped.
#[cfg(test)]
pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_in_order_and_stops_at_the_end() {
        let mut r = Reader::new(&[1, 2, 0, 3, 0, 0, 0, b'h', b'i', 0, b'x', 9]);
        assert_eq!(r.u8(), Some(1));
        assert_eq!(r.u16_le(), Some(2));
        assert_eq!(r.u32_le(), Some(3));
        assert_eq!(r.text_field(4), Some(&b"hi"[..]));
        assert_eq!(r.u16_le(), None);
        assert_eq!(r.rest(), &[9]);
        assert_eq!(until_nul(b"no nul"), b"no nul");
        assert_eq!(until_nul(b""), b"");
    }

    #[test]
    fn reads_both_byte_orders() {
        let mut r = Reader::new(&[0xff, 0xfe, 0x11, 0x22, 0x33, 0x44, 1]);
        assert_eq!(r.i16_be(), Some(-2));
        assert_eq!(r.u32_be(), Some(0x1122_3344));
        assert_eq!((r.i16_be(), r.u32_be()), (None, None));
        assert_eq!(r.rest(), &[1]);
    }
}
