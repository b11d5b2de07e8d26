//! The input as a sequence of choices. An input that is too short goes on with zeros.

pub struct Tape<'a>(&'a [u8]);

impl<'a> Tape<'a> {
    pub fn new(input: &'a [u8]) -> Tape<'a> {
        Tape(input)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `most`, which is at most 256.
    pub fn below(&mut self, most: usize) -> usize {
        usize::from(self.byte()) % most.max(1)
    }

    pub fn number(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Milliseconds from none to about half an hour, short ones as likely as long ones.
    pub fn ms(&mut self) -> u64 {
        u64::from(self.byte()) << (self.byte() % 14)
    }

    pub fn choice<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len())]
    }

    /// The next bytes, as many as the next byte says.
    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }
}
