//! Uses and stored pairs: their loads from global memory, and the elements that cells hold (see [`layout::ata`]).

use cuda_std::convert::permute_bytes;
use cuda_std::{global, hint};
use layout::ata::{
    ATA, AtaArgs, NIBBLE_WORDS, Precision, RECORD_WORDS, Storage, cell_source, chunk_offset, code_column,
    code_from_row, code_has_pair, code_has_pairs, code_is_transposed, nibbles_offset, straight_cell, transposed_cell,
    transposed_pair,
};

use crate::work::lane;

/// What the block's pair rows take of one pair row of X.
#[derive(Clone, Copy)]
pub(crate) struct Use<const ROWS: usize> {
    /// The number of the first pair there is, for each pair row.
    first_pair: [u32; ROWS],
    /// The code from the block's first pair row on; 0 for no use.
    code: u32,
    /// The pair row of X.
    pub(crate) column: u32,
}

impl<const ROWS: usize> Use<ROWS> {
    /// No use.
    pub(crate) const NONE: Self = Use { first_pair: [0; ROWS], code: 0, column: 0 };

    /// What record `index` of those at `records` says for pair rows from `first_pair_row` of the strip on.
    ///
    /// # Safety
    /// There is such a record.
    #[inline(always)]
    pub(crate) unsafe fn load(records: u64, index: u32, first_pair_row: u32) -> Self {
        // SAFETY: as required of the caller.
        let record: [u32; RECORD_WORDS] =
            unsafe { global::load_nc((records as *const [u32; RECORD_WORDS]).wrapping_add(index as usize)) };
        let mut first_pair = [0; ROWS];
        for row in 0..ROWS {
            // A block that has fewer pair rows than the strip has one.
            first_pair[row] = if first_pair_row == 0 { record[1 + row] } else { record[2 + row] };
        }
        Self { first_pair, code: code_from_row(record[0], first_pair_row), column: code_column(record[0]) }
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
        let first = (args.pairs as *const u8).wrapping_add(self.first_pair[row] as usize * precision.pair_bytes());
        let (has_first, has_second) = (code_has_pair(self.code, row, 0), code_has_pair(self.code, row, 1));
        let mut cells = [[0; WORDS]; 2];
        for half in 0..2 {
            let (which, cell) = if self.is_transposed(row) {
                (transposed_pair(lane()), transposed_cell(lane(), half))
            } else {
                (half as u32, straight_cell(lane()))
            };
            // Both pairs is what most uses have, and all lanes find it at once.
            if has_first & has_second {
                // SAFETY: the second pair follows the first.
                cells[half] = unsafe { load_cell(first, precision, which, cell) };
            } else if code_has_pair(self.code, row, which) {
                // SAFETY: the pair is the only one.
                cells[half] = unsafe { load_cell(first, precision, 0, cell) };
            }
        }
        cells
    }
}

/// A cell of pair `which` of those from `pairs` on.
///
/// # Safety
/// The pair is a stored one of `precision`, which has `WORDS` words a cell.
#[inline(always)]
unsafe fn load_cell<const WORDS: usize>(pairs: *const u8, precision: Precision, which: u32, cell: u32) -> [u32; WORDS] {
    let storage = precision.storage();
    let pair = which * precision.pair_bytes() as u32;
    let mut words = [0; WORDS];
    for term in 0..precision.terms() {
        let (first, start) = (term * storage.cell_words(), pair + (term * storage.term_bytes()) as u32);
        let at = |offset: u32| pairs.wrapping_add((start + offset) as usize);
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

/// An element of a cell, of 32-bit or split numbers, as the bits of an f32; of a split one the upper 19 bits count alone.
#[inline(always)]
pub(crate) fn element<const WORDS: usize>(
    cell: &[u32; WORDS],
    precision: Precision,
    term: usize,
    row: usize,
    column: usize,
) -> u32 {
    let storage = precision.storage();
    let source = cell_source(storage, term, row, column);
    let word = cell[source.word];
    if !storage.has_nibbles() {
        return word;
    }
    let nibbles = cell[source.nibble_word];
    // The nibble is made the upper half of its byte; that byte and one more are the lower half of the number. LLVM does not see that
    // both uses of a square do the same, which it would do before it knows which, and hold in registers.
    let nibbles = if source.high { nibbles } else { hint::opaque(nibbles) << 4 };
    let (upper, lower) = (if source.high { 0x32 } else { 0x10 }, 4 + source.nibble_byte as u32);
    permute_bytes(word, nibbles, upper << 8 | lower << 4 | lower)
}

/// Two 16-bit elements of a cell: that of row `of_row` of Y and element `of_k` of X, an even one, and that of the next element of X.
#[inline(always)]
pub(crate) fn two_elements<const WORDS: usize, const TRANSPOSED: bool>(
    cell: &[u32; WORDS],
    of_row: usize,
    of_k: usize,
) -> u32 {
    let source = |row: usize, column: usize| cell_source(Storage::Half, 0, row, column);
    if TRANSPOSED {
        let [first, second] = [source(of_k, of_row), source(of_k + 1, of_row)];
        permute_bytes(cell[first.word], cell[second.word], if first.high { 0x7632 } else { 0x5410 })
    } else {
        cell[source(of_row, of_k).word]
    }
}
