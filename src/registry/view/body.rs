//! The bytes of a rendered list, in pieces: a long list is never one allocation, so that rendering it needs little more memory
//! than the list takes, and its pieces go back to the system one by one.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

/// Pieces of what a [`Writer`] writes have this size, except for the last.
pub const PIECE_BYTES: usize = 256 << 10;

/// The bytes of a list, shared by its readers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    pieces: Arc<[Bytes]>,
    len: usize,
}

impl Body {
    pub fn new(pieces: impl IntoIterator<Item = Bytes>) -> Body {
        let pieces: Arc<[Bytes]> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let len = pieces.iter().map(Bytes::len).sum();
        Body { pieces, len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its pieces in order. None is empty. What was made of one `Vec` is one piece.
    pub fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// The bytes of a body that is one piece, because it was made of one `Vec`.
    pub fn whole(&self) -> &[u8] {
        debug_assert!(self.pieces.len() <= 1);
        self.pieces.first().map_or(&[], |piece| piece)
    }

    /// Plain data as JSON.
    pub fn json(data: &impl Serialize) -> Body {
        let mut writer = Writer::default();
        let _ = serde_json::to_writer(&mut writer, data); // to memory: cannot fail
        writer.finish()
    }

    /// A copy in one piece, for tests.
    pub fn to_vec(&self) -> Vec<u8> {
        self.pieces.concat()
    }
}

impl From<Vec<u8>> for Body {
    fn from(mut bytes: Vec<u8>) -> Body {
        // A buffer that has grown may be half empty.
        if bytes.capacity() - bytes.len() > bytes.len() / 8 {
            bytes.shrink_to_fit();
        }
        Body::new([bytes.into()])
    }
}

impl From<String> for Body {
    fn from(text: String) -> Body {
        text.into_bytes().into()
    }
}

impl From<&'static str> for Body {
    fn from(text: &'static str) -> Body {
        Body::new([text.into()])
    }
}

impl From<&'static [u8]> for Body {
    fn from(bytes: &'static [u8]) -> Body {
        Body::new([Bytes::from_static(bytes)])
    }
}

/// Writes a body. Writing to memory cannot fail.
#[derive(Default)]
pub struct Writer {
    written: Vec<Bytes>,
    open: Vec<u8>,
}

impl Writer {
    pub fn finish(mut self) -> Body {
        self.open.shrink_to_fit();
        self.written.push(self.open.into());
        Body::new(self.written)
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.open.len() == PIECE_BYTES {
            let full = std::mem::replace(&mut self.open, Vec::with_capacity(PIECE_BYTES));
            self.written.push(full.into());
        }
        let (fits, _) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.open.len()));
        self.open.extend_from_slice(fits);
        Ok(fits.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn what_is_written_is_in_pieces_of_bounded_size() {
        let text: Vec<u8> = (0..PIECE_BYTES * 2 + 10).map(|at| (at % 251) as u8).collect();
        for chunk in [1_000, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, text.len()] {
            let mut writer = Writer::default();
            text.chunks(chunk).for_each(|some| writer.write_all(some).unwrap());
            let body = writer.finish();
            let sizes: Vec<_> = body.pieces().iter().map(Bytes::len).collect();
            assert_eq!((sizes, body.len()), (vec![PIECE_BYTES, PIECE_BYTES, 10], text.len()));
            assert_eq!(body.to_vec(), text);
        }
        let none = Writer::default().finish();
        assert!(none.is_empty() && none.pieces().is_empty() && none == Body::from(Vec::new()));
    }
}
