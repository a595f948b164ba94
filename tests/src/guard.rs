//! Output buffers that show what a kernel wrote and what it did not.

use ferrotile::{Buffer, Element, F8E4M3, F8E5M2, Gpu, Stream};
use half::{bf16, f16};
use libtest_mimic::Failed;

use crate::record;

/// Elements before and after the output that must stay untouched; a multiple of every vector width, so that the output
/// keeps the alignment of its buffer.
const BAND: usize = 256;

/// An element type with a bit pattern that no kernel writes: all ones, a NaN.
pub trait Poison: Element {
    /// Whether it is that pattern.
    fn is_poison(self) -> bool;
    /// That pattern.
    fn poison() -> Self;
    /// The bits of an element, the lowest ones of the result.
    fn bits(self) -> u32;
}

impl Poison for f16 {
    fn is_poison(self) -> bool {
        self.to_bits() == u16::MAX
    }

    fn poison() -> f16 {
        f16::from_bits(u16::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for bf16 {
    fn is_poison(self) -> bool {
        self.to_bits() == u16::MAX
    }

    fn poison() -> bf16 {
        bf16::from_bits(u16::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for F8E4M3 {
    fn is_poison(self) -> bool {
        self.to_bits() == u8::MAX
    }

    fn poison() -> F8E4M3 {
        F8E4M3::from_bits(u8::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for F8E5M2 {
    fn is_poison(self) -> bool {
        self.to_bits() == u8::MAX
    }

    fn poison() -> F8E5M2 {
        F8E5M2::from_bits(u8::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits().into()
    }
}

impl Poison for f32 {
    fn is_poison(self) -> bool {
        self.to_bits() == u32::MAX
    }

    fn poison() -> f32 {
        f32::from_bits(u32::MAX)
    }

    fn bits(self) -> u32 {
        self.to_bits()
    }
}

/// A poisoned buffer with a guard band on either side of the output.
pub struct Guarded<T: Poison> {
    buffer: Buffer<T>,
    len: usize,
}

impl<T: Poison> Guarded<T> {
    /// A buffer for an output of `len` elements, all of it poison.
    pub fn new(gpu: &Gpu, stream: &Stream, len: usize) -> ferrotile::Result<Guarded<T>> {
        let mut buffer = Buffer::zeroed(gpu, len + 2 * BAND)?;
        buffer.fill_bytes(stream, 0xFF)?;
        Ok(Guarded { buffer, len })
    }

    /// The buffer, guard bands included.
    pub fn buffer(&mut self) -> &mut Buffer<T> {
        &mut self.buffer
    }

    /// Where the output starts in the buffer.
    #[must_use]
    pub const fn offset(&self) -> usize {
        BAND
    }

    /// Waits for the stream and returns the output, after a check that the guard bands are as they were.
    pub fn read(&self, stream: &Stream) -> Result<Vec<T>, Failed> {
        let all = self.buffer.download_blocking(stream)?;
        check_bands(&all, self.len)?;
        let output = &all[BAND..BAND + self.len];
        record::note(output);
        Ok(output.to_vec())
    }

    /// Waits for the stream and checks that nothing at all was written.
    pub fn check_untouched(&self, stream: &Stream) -> Result<(), Failed> {
        let all = self.buffer.download_blocking(stream)?;
        match all.iter().position(|x| !x.is_poison()) {
            None => Ok(()),
            Some(index) => {
                Err(format!("element {} of an untouched output was written", index as i64 - BAND as i64).into())
            }
        }
    }
}

fn check_bands<T: Poison>(all: &[T], len: usize) -> Result<(), Failed> {
    let outside = |index: usize| !(BAND..BAND + len).contains(&index);
    match all.iter().enumerate().find(|(index, x)| outside(*index) && !x.is_poison()) {
        None => Ok(()),
        Some((index, _)) => {
            Err(format!("element {} was written, outside the output of {len}", index as i64 - BAND as i64).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stray_write_is_found_on_either_side() {
        let mut all = vec![f32::poison(); 10 + 2 * BAND];
        all[BAND..BAND + 10].fill(1.0);
        assert!(check_bands(&all, 10).is_ok());
        for (stray, named) in [(BAND - 1, "-1"), (BAND + 10, "10"), (0, "-256")] {
            let mut all = all.clone();
            all[stray] = 0.0;
            let message = check_bands(&all, 10).unwrap_err().message().unwrap().to_owned();
            assert!(message.starts_with(&format!("element {named} ")), "{message}");
        }
    }

    #[test]
    fn poison_is_nan() {
        assert!(f16::poison().is_nan() && bf16::poison().is_nan() && f32::poison().is_nan());
    }
}
