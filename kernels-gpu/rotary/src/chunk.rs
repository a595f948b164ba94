//! Eight neighbours of a row, in registers and in memory.

use cuda_std::convert::{Element16, round_e4m3x4};
use cuda_std::global;
use variants::rotary::CHUNK;

/// Up to [`CHUNK`] columns of a row.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl Columns {
    /// Those from `first` on that are below `end`.
    #[inline(always)]
    pub(crate) fn below(first: u32, end: u32) -> Self {
        Self { first, count: end.saturating_sub(first).min(CHUNK as u32) }
    }

    /// Whether one access has all of them, in rows that are aligned.
    #[inline(always)]
    fn whole(self, aligned: u32) -> bool {
        aligned != 0 && self.count == CHUNK as u32 && self.first.is_multiple_of(CHUNK as u32)
    }

    /// Two elements of 16 bits a word; 0 for the columns that are not there.
    ///
    /// # Safety
    /// The columns of the row at `row` are readable, and aligned where `aligned` says so.
    #[inline(always)]
    pub(crate) unsafe fn load(self, row: u64, aligned: u32) -> [u32; 4] {
        let address = row + 2 * u64::from(self.first);
        if self.whole(aligned) {
            // SAFETY: as required of the caller.
            return unsafe { global::load(address as *const [u32; 4]) };
        }
        let mut words = [0; 4];
        for index in 0..CHUNK {
            if (index as u32) < self.count {
                // SAFETY: as required of the caller.
                let bits: u16 = unsafe { global::load((address + 2 * index as u64) as *const u16) };
                words[index / 2] |= u32::from(bits) << (16 * (index % 2));
            }
        }
        words
    }

    /// Values of f32; 0 for the columns that are not there.
    ///
    /// # Safety
    /// As [`Columns::load`].
    #[inline(always)]
    pub(crate) unsafe fn load_f32(self, row: u64, aligned: u32) -> [f32; CHUNK] {
        let address = row + 4 * u64::from(self.first);
        if self.whole(aligned) {
            // SAFETY: as required of the caller.
            let halves = [0, 16].map(|offset| unsafe { global::load((address + offset) as *const [u32; 4]) });
            return core::array::from_fn(|index| f32::from_bits(halves[index / 4][index % 4]));
        }
        let mut values = [0.0; CHUNK];
        for index in 0..CHUNK {
            if (index as u32) < self.count {
                // SAFETY: as required of the caller.
                values[index] = unsafe { global::load((address + 4 * index as u64) as *const f32) };
            }
        }
        values
    }

    /// Stores two elements of 16 bits a word.
    ///
    /// # Safety
    /// The columns of the row at `row` are this thread's to write, and aligned where `aligned` says so.
    #[inline(always)]
    pub(crate) unsafe fn store(self, row: u64, aligned: u32, words: [u32; 4]) {
        let address = row + 2 * u64::from(self.first);
        // SAFETY: as required of the caller.
        unsafe {
            if self.whole(aligned) {
                global::store(address as *mut [u32; 4], words);
                return;
            }
            for index in 0..CHUNK {
                if (index as u32) < self.count {
                    let bits = words[index / 2] >> (16 * (index % 2));
                    global::store((address + 2 * index as u64) as *mut u16, bits as u16);
                }
            }
        }
    }

    /// Rounds to E4M3 and stores.
    ///
    /// # Safety
    /// As [`Columns::store`].
    #[inline(always)]
    pub(crate) unsafe fn store_e4m3(self, row: u64, aligned: u32, values: [f32; CHUNK]) {
        let half = |at: usize| round_e4m3x4([values[at], values[at + 1], values[at + 2], values[at + 3]]);
        let words = [half(0), half(4)];
        let address = row + u64::from(self.first);
        // SAFETY: as required of the caller.
        unsafe {
            if self.whole(aligned) {
                global::store(address as *mut [u32; 2], words);
                return;
            }
            for index in 0..CHUNK {
                if (index as u32) < self.count {
                    let bits = words[index / 4] >> (8 * (index % 4));
                    global::store((address + index as u64) as *mut u8, bits as u8);
                }
            }
        }
    }
}

/// The values of words.
#[inline(always)]
pub(crate) fn values<E: Element16>(words: [u32; 4]) -> [f32; CHUNK] {
    let pairs = words.map(E::unpack);
    core::array::from_fn(|index| if index % 2 == 0 { pairs[index / 2].0 } else { pairs[index / 2].1 })
}

/// Values, rounded.
#[inline(always)]
pub(crate) fn words<E: Element16>(values: [f32; CHUNK]) -> [u32; 4] {
    core::array::from_fn(|index| E::pack(values[2 * index], values[2 * index + 1]))
}
