//! Output buffers that show what a kernel wrote and what it did not.

use ferrotile::{Buffer, Gpu, Stream};
use libtest_mimic::Failed;

pub use crate::poison::Poison;
use crate::record;

/// Elements before and after the output that must stay untouched; a multiple of every vector width, so that the output
/// keeps the alignment of its buffer.
const BAND: usize = 256;

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
}
