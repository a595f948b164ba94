//! Uses and stored pairs: their loads from global memory, and the elements that cells hold (see [`layout::ata`]).

use cuda_std::convert::{f16_to_f32, permute_bytes};
use cuda_std::{global, hint};
use layout::ata::{
    ATA, AtaArgs, NIBBLE_WORDS, Precision, STRIP_PAIR_ROWS, Storage, cell_source, chunk_offset, code_column,
    code_from_row, code_has_pair, code_has_pairs, code_is_transposed, nibbles_offset, straight_cell, transposed_cell,
    transposed_pair,
};

use crate::work::lane;

/// The uses of a block.
#[derive(Clone, Copy)]
pub(crate) struct Uses {
    /// First pair row of the block in its strip.
    pub(crate) first_pair_row: u32,
    /// End of the uses of the strip.
    pub(crate) end: u32,
}

/// What the block's pair rows take of one pair row of X.
#[derive(Clone, Copy)]
pub(crate) struct Use<const ROWS: usize> {
    pairs: [[u32; 2]; ROWS],
    /// The code from the block's first pair row on; 0 for no use.
    code: u32,
    /// The pair row of X.
    pub(crate) column: u32,
}

impl<const ROWS: usize> Use<ROWS> {
    /// No use.
    pub(crate) const NONE: Self = Use { pairs: [[0; 2]; ROWS], code: 0, column: 0 };

    /// The use `index`, or none from `list.end` on.
    ///
    /// # Safety
    /// `args` has uses up to `list.end`.
    #[inline(always)]
    pub(crate) unsafe fn load(args: &AtaArgs, list: &Uses, index: u32) -> Self {
        if index >= list.end {
            return Self::NONE;
        }
        let words = (args.uses as *const [u32; 2]).wrapping_add(index as usize * STRIP_PAIR_ROWS);
        let mut pairs = [[0; 2]; ROWS];
        // SAFETY: the use is one of those of `args`, with two words for each pair row of the strip.
        unsafe {
            for row in 0..ROWS {
                pairs[row] = global::load_nc(words.wrapping_add(list.first_pair_row as usize + row));
            }
            let code: u32 = global::load_nc((args.codes as *const u32).wrapping_add(index as usize));
            Self { pairs, code: code_from_row(code, list.first_pair_row), column: code_column(code) }
        }
    }

    /// Whether there is a use, for whichever pair row.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.code != 0
    }

    /// Whether there is something for pair row `row` of the block.
    #[inline(always)]
    pub(crate) fn has_pairs(&self, row: usize) -> bool {
        code_has_pairs(self.code, row)
    }

    /// Whether the pairs for pair row `row` are transposed.
    #[inline(always)]
    pub(crate) fn is_transposed(&self, row: usize) -> bool {
        code_is_transposed(self.code, row)
    }

    /// The lane's two cells for pair row `row`; zeros where there is no pair.
    ///
    /// # Safety
    /// The use is one of `args`, whose pairs are of the precision of the row `ROW`, which has `WORDS` words a cell.
    #[inline(always)]
    pub(crate) unsafe fn load_cells<const ROW: usize, const WORDS: usize>(
        &self,
        args: &AtaArgs,
        row: usize,
    ) -> [[u32; WORDS]; 2] {
        let precision = const { ATA[ROW].precision };
        let mut cells = [[0; WORDS]; 2];
        for half in 0..2 {
            let (which, cell) = if self.is_transposed(row) {
                (transposed_pair(lane()), transposed_cell(lane(), half))
            } else {
                (half as u32, straight_cell(lane()))
            };
            if code_has_pair(self.code, row, which) {
                let number = if which == 0 { self.pairs[row][0] } else { self.pairs[row][1] };
                let pair = (args.pairs as *const u8).wrapping_add(number as usize * precision.pair_bytes());
                // SAFETY: the pair is there.
                cells[half] = unsafe { load_cell(pair, precision, cell) };
            }
        }
        cells
    }
}

/// A cell of a pair.
///
/// # Safety
/// The pair is a stored one of `precision`, which has `WORDS` words a cell.
#[inline(always)]
unsafe fn load_cell<const WORDS: usize>(pair: *const u8, precision: Precision, cell: u32) -> [u32; WORDS] {
    let storage = precision.storage();
    let mut words = [0; WORDS];
    for term in 0..precision.terms() {
        let (first, start) = (term * storage.cell_words(), (term * storage.term_bytes()) as u32);
        let at = |offset: u32| pair.wrapping_add((start + offset) as usize);
        for chunk in 0..storage.chunks() {
            // SAFETY: the chunk is inside the pair, on a 16-byte boundary.
            let loaded: [u32; 4] = unsafe { global::load(at(chunk_offset(chunk, cell)).cast()) };
            for i in 0..4 {
                words[first + 4 * chunk + i] = loaded[i];
            }
        }
        if storage.has_nibbles() {
            // SAFETY: as above, on an 8-byte boundary.
            let loaded: [u32; NIBBLE_WORDS] = unsafe { global::load(at(nibbles_offset(cell)).cast()) };
            for i in 0..NIBBLE_WORDS {
                words[first + 4 * storage.chunks() + i] = loaded[i];
            }
        }
    }
    words
}

/// An element of a cell as the bits of an f32: exact but for TF32, of which the upper 19 bits count alone.
#[inline(always)]
pub(crate) fn element<const WORDS: usize>(
    cell: &[u32; WORDS],
    precision: Precision,
    term: usize,
    row: usize,
    column: usize,
) -> u32 {
    let source = cell_source(precision.storage(), term, row, column);
    let word = cell[source.word];
    match (precision.storage(), precision) {
        (Storage::Word, _) => word,
        (Storage::Split, _) => {
            let nibbles = cell[source.nibble_word];
            // The nibble is made the upper half of its byte; that byte and one more are the lower half of the number. LLVM does not
            // see that both uses of a square do the same, which it would do before it knows which, and hold in registers.
            let nibbles = if source.high { nibbles } else { hint::opaque(nibbles) << 4 };
            let (upper, lower) = (if source.high { 0x32 } else { 0x10 }, 4 + source.nibble_byte as u32);
            permute_bytes(word, nibbles, upper << 8 | lower << 4 | lower)
        }
        (Storage::Half, Precision::F16) => f16_to_f32((if source.high { word >> 16 } else { word }) as u16).to_bits(),
        (Storage::Half, _) => permute_bytes(word, 0, if source.high { 0x3244 } else { 0x1044 }),
    }
}
