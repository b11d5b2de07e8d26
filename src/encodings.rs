//! gzip, br and zstd of a whole body. Equal input gives equal output: gzip's header has no time and no name.

use std::io::Write;

pub fn gzip(body: &[u8], level: u32) -> Option<Vec<u8>> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(body).ok()?;
    encoder.finish().ok()
}

pub fn brotli(body: &[u8], quality: u32) -> Option<Vec<u8>> {
    let mut encoder = brotli::CompressorWriter::new(Vec::new(), 4096, quality, 20);
    encoder.write_all(body).ok()?;
    Some(encoder.into_inner())
}

pub fn zstd(body: &[u8], level: i32) -> Option<Vec<u8>> {
    zstd::bulk::compress(body, level).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn every_encoding_can_be_undone_and_is_the_same_each_time() {
        let body = "the same again ".repeat(1000).into_bytes();
        for level in [1, 5, 9] {
            let encode = || [gzip(&body, level), brotli(&body, level), zstd(&body, level as i32)].map(Option::unwrap);
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
}
