//! Mutations as libFuzzer makes them, without its feedback: bits, bytes, numbers, words of the dictionary, parts that are
//! removed, repeated, or taken from another input.

use crate::random::Rng;

/// No input is longer; `scripts/fuzz` has the same bound.
const BYTES_MAX: usize = 4_096;
/// An input is changed so many times at most.
const STEPS_MAX: u64 = 5;
/// Numbers at which lengths, counts and times go wrong.
const EDGES: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, u64::MAX];

pub struct Mutator<'a> {
    rng: Rng,
    words: Vec<Vec<u8>>,
    inputs: Vec<&'a [u8]>,
}

impl<'a> Mutator<'a> {
    pub fn new(rng: Rng, words: Vec<Vec<u8>>, stored: &'a [Vec<u8>], samples: &'a [Vec<u8>]) -> Mutator<'a> {
        Mutator { rng, words, inputs: stored.iter().chain(samples).map(Vec::as_slice).collect() }
    }

    /// The next mutation of any input.
    pub fn next(&mut self) -> Vec<u8> {
        let mut input = self.rng.pick(&self.inputs).to_vec();
        for _ in 0..self.rng.between(1, STEPS_MAX) {
            self.change(&mut input);
        }
        input.truncate(BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let at = self.rng.below(input.len() as u64 + 1) as usize;
        let length = (1 << self.rng.below(7)).min(input.len() - at);
        match self.rng.below(8) {
            0 => input.get_mut(at).into_iter().for_each(|byte| *byte ^= 1 << self.rng.below(8)),
            1 => input.get_mut(at).into_iter().for_each(|byte| *byte = self.rng.next() as u8),
            2 => drop(input.drain(at..at + length)),
            3 => {
                let part = input[at..at + length].to_vec();
                let to = self.rng.below(input.len() as u64 + 1) as usize;
                input.splice(to..to, part);
            }
            4 => {
                let other = *self.rng.pick(&self.inputs);
                let from = self.rng.below(other.len() as u64 + 1) as usize;
                let part = &other[from..other.len().min(from + (1 << self.rng.below(8)))];
                input.splice(at..at + length.min(part.len()), part.iter().copied());
            }
            5 => {
                let bytes = self.rng.pick(&EDGES).to_le_bytes();
                let mut bytes = bytes[..1 << self.rng.below(4)].to_vec();
                if self.rng.one_in(2) {
                    bytes.reverse();
                }
                let end = input.len().min(at + bytes.len());
                input.splice(at..end, bytes);
            }
            6 => {
                let Some(word) = (!self.words.is_empty()).then(|| self.rng.pick(&self.words)) else { return };
                let end = if self.rng.one_in(2) { at } else { input.len().min(at + word.len()) };
                input.splice(at..end, word.iter().copied());
            }
            _ => input.truncate(at),
        }
    }
}

/// A word of a dictionary: `\xff`, `\\` and `\"` are single bytes.
pub fn unescaped(word: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        let escaped = if byte == b'\\' { rest.next() } else { None };
        match escaped {
            Some(b'x') => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap());
            }
            Some(other) => bytes.push(other),
            None => bytes.push(byte),
        }
    }
    bytes
}

#[test]
fn words_of_a_dictionary_are_bytes() {
    assert_eq!(unescaped(r"\xff\xffgetinfo\x0a"), b"\xff\xffgetinfo\n");
    assert_eq!(unescaped(r#"\\EOT\"\x00"#), b"\\EOT\"\0");
}
