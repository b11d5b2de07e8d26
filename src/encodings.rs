//! gzip, br and zstd of a whole body, and of the pieces of an endless one. Equal input gives equal output: gzip's header has no
//! time and no name.

use std::io::{self, Write};

/// The pieces of a body, as one stream.
pub fn gzip<W: Write>(body: &[impl AsRef<[u8]>], level: u32, out: W) -> io::Result<W> {
    let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(level));
    write_all(body, &mut encoder)?;
    encoder.finish()
}

pub fn brotli<W: Write>(body: &[impl AsRef<[u8]>], quality: u32, out: W) -> io::Result<W> {
    let mut encoder = brotli::CompressorWriter::new(out, 4096, quality, 20);
    write_all(body, &mut encoder)?;
    Ok(encoder.into_inner())
}

pub fn zstd<W: Write>(body: &[impl AsRef<[u8]>], level: i32, out: W) -> io::Result<W> {
    let mut encoder = zstd::Encoder::new(out, level)?;
    // Encoded as well as a body whose length is known.
    encoder.set_pledged_src_size(Some(body.iter().map(|piece| piece.as_ref().len() as u64).sum()))?;
    write_all(body, &mut encoder)?;
    encoder.finish()
}

fn write_all(body: &[impl AsRef<[u8]>], encoder: &mut impl Write) -> io::Result<()> {
    body.iter().try_for_each(|piece| encoder.write_all(piece.as_ref()))
}

/// How an endless body is encoded. Each piece is encoded by itself and refers to nothing before it, so that all readers share
/// it, whenever each of them began. A reader gets [`Pieces::beginning`] and then any pieces, and can decode each as it comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pieces {
    Plain,
    /// Frames, one after another (RFC 8878, 3).
    Zstd,
    /// Meta-blocks that end at whole bytes and use neither the dictionary nor earlier distances: the library's "bare" and
    /// "catable" streams.
    Brotli,
    /// Deflate blocks up to a flush: to the decoder, all pieces are one stream.
    Gzip,
}

/// The window of brotli pieces in bits; it is also in the beginning.
const BROTLI_WINDOW: i32 = 20;

impl Pieces {
    /// Best first.
    pub const ALL: [Pieces; 4] = [Pieces::Zstd, Pieces::Brotli, Pieces::Gzip, Pieces::Plain];

    /// Its name in `Content-Encoding`.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Pieces::Plain => None,
            Pieces::Zstd => Some("zstd"),
            Pieces::Brotli => Some("br"),
            Pieces::Gzip => Some("gzip"),
        }
    }

    /// What every body begins with.
    pub fn beginning(self) -> &'static [u8] {
        match self {
            Pieces::Plain | Pieces::Zstd => b"",
            // A window of 20 bits, and an empty meta-block up to the end of the byte.
            Pieces::Brotli => &[0x67, 0],
            // Deflate, without a time, by an unknown system.
            Pieces::Gzip => &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255],
        }
    }

    /// A piece with what `write` writes.
    pub fn piece<W: Write + Default>(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<W> {
        match self {
            Pieces::Plain => {
                let mut text = W::default();
                write(&mut text)?;
                Ok(text)
            }
            Pieces::Zstd => {
                let mut encoder = zstd::Encoder::new(W::default(), 3)?;
                write(&mut encoder)?;
                encoder.finish()
            }
            Pieces::Brotli => {
                let mut params = brotli::enc::BrotliEncoderInitParams();
                (params.quality, params.lgwin) = (4, BROTLI_WINDOW);
                (params.bare_stream, params.catable) = (true, true);
                let mut encoder = brotli::CompressorWriter::with_params(W::default(), 4096, &params);
                write(&mut encoder)?;
                Ok(encoder.into_inner())
            }
            Pieces::Gzip => {
                let mut encoder = flate2::write::DeflateEncoder::new(W::default(), flate2::Compression::new(5));
                write(&mut encoder)?;
                encoder.flush()?;
                Ok(std::mem::take(encoder.get_mut()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn every_encoding_can_be_undone_and_is_the_same_each_time() {
        let body = "the same again ".repeat(1000).into_bytes();
        for level in [1, 5, 9] {
            let encode = || {
                let (whole, out) = ([&body], Vec::new);
                [gzip(&whole, level, out()), brotli(&whole, level, out()), zstd(&whole, level as i32, out())]
                    .map(Result::unwrap)
            };
            let [gz, br, zst] = encode();
            assert_eq!(encode(), [gz.clone(), br.clone(), zst.clone()]);
            let mut undone = Vec::new();
            flate2::read::GzDecoder::new(&gz[..]).read_to_end(&mut undone).unwrap();
            assert_eq!(undone, body);
            undone.clear();
            brotli::Decompressor::new(&br[..], 4096).read_to_end(&mut undone).unwrap();
            assert_eq!(undone, body);
            assert_eq!(zstd::bulk::decompress(&zst, body.len()).unwrap(), body);
        }
    }
    /// Decodes what has come so far of a body that never ends.
    fn decoded_so_far(pieces: Pieces, encoded: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        let read = match pieces {
            Pieces::Plain => (&mut &*encoded).read_to_end(&mut text).map(drop),
            Pieces::Zstd => zstd::Decoder::new(encoded).unwrap().read_to_end(&mut text).map(drop),
            // These miss the end, after they have decoded everything.
            Pieces::Brotli => brotli::Decompressor::new(encoded, 4096).read_to_end(&mut text).map(drop),
            Pieces::Gzip => flate2::read::GzDecoder::new(encoded).read_to_end(&mut text).map(drop),
        };
        assert!(read.is_ok() || [Pieces::Brotli, Pieces::Gzip].contains(&pieces), "{read:?}");
        text
    }

    #[test]
    fn a_body_of_pieces_can_begin_with_any_of_them_and_each_is_decoded_as_it_comes() {
        let texts: Vec<String> = (0..40u32)
            .map(|number| {
                let row = |at| format!("{{\"address\":\"192.0.2.{at}\",\"players_current\":{}}}\n", at * number % 17);
                ["", ":", ": \n"]
                    .get(number as usize)
                    .map_or_else(|| (0..number * number).map(row).collect(), |short| (*short).to_string())
            })
            .collect();
        for pieces in Pieces::ALL {
            let encode = |text: &String| pieces.piece::<Vec<u8>>(|writer| writer.write_all(text.as_bytes())).unwrap();
            let encoded: Vec<_> = texts.iter().map(encode).collect();
            assert_eq!(encoded, texts.iter().map(encode).collect::<Vec<_>>(), "{pieces:?}: the same each time");
            for begin in [0, 1, 7, 39] {
                let (mut body, mut text) = (pieces.beginning().to_vec(), String::new());
                for at in begin..texts.len() {
                    body.extend_from_slice(&encoded[at]);
                    text.push_str(&texts[at]);
                    assert!(decoded_so_far(pieces, &body) == text.as_bytes(), "{pieces:?} from {begin} to {at}");
                }
                let is_encoded = pieces != Pieces::Plain && begin < 39;
                assert!(!is_encoded || body.len() < text.len() / 4, "{pieces:?}: {} of {}", body.len(), text.len());
            }
        }
    }
}
