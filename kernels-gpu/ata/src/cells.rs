//! Tile references and stored pairs: their loads from global memory, and the elements that cells hold (see
//! [`variants::ata`]).

use cuda_std::convert::permute_bytes;
use cuda_std::{global, hint};
use variants::ata::{
    AtaArgs, NIBBLE_WORDS, Precision, Source, Storage, TILE_REF_WORDS, cell_source, chunk_offset, code_column,
    code_from_row, code_has_pair, code_has_pairs, code_is_transposed, direct_cell, nibbles_offset, transposed_cell,
    transposed_pair,
};

use crate::config::Configuration;
use crate::work::lane;

/// What the pair rows of a strip take of one pair row of X, encoded as it is loaded. Nothing is computed from the words
/// before they are needed, so that the load may be in flight until then.
#[derive(Clone, Copy)]
pub(crate) struct TileRef {
    record: [u32; TILE_REF_WORDS],
}

impl TileRef {
    /// No tile.
    pub(crate) const NONE: Self = TileRef { record: [0; TILE_REF_WORDS] };

    /// Starts the load of tile reference `index` of those at `records`.
    ///
    /// # Safety
    /// There is such a tile reference.
    #[inline(always)]
    pub(crate) unsafe fn load(records: u64, index: u32) -> Self {
        let record = (records as *const [u32; TILE_REF_WORDS]).wrapping_add(index as usize);
        // SAFETY: as required of the caller.
        Self { record: unsafe { global::load_nc(record) } }
    }

    /// Whether there is a tile, for whichever pair row.
    #[inline(always)]
    pub(crate) fn is_some(&self) -> bool {
        self.record[0] != 0
    }

    /// The last word of an encoded reference of a first tile.
    #[inline(always)]
    pub(crate) fn last_word(&self) -> u32 {
        self.record[TILE_REF_WORDS - 1]
    }

    /// The pair row of X.
    #[inline(always)]
    pub(crate) fn column(&self) -> u32 {
        code_column(self.record[0])
    }

    /// What there is for pair row `row` of the strip.
    #[inline(always)]
    pub(crate) fn of_row(&self, row: u32) -> PairRowRef {
        // A strip has two pair rows.
        let first_pair = if row == 0 { self.record[1] } else { self.record[2] };
        PairRowRef { code: code_from_row(self.record[0], row), first_pair: first_pair as i32 }
    }
}

/// What one pair row takes of one pair row of X: the two pairs of a tile, or one of them, or nothing.
#[derive(Clone, Copy)]
pub(crate) struct PairRowRef {
    code: u32,
    /// The number of the first pair; one below that of the second where there is no first.
    first_pair: i32,
}

impl PairRowRef {
    /// Whether there is something.
    #[inline(always)]
    pub(crate) fn has_pairs(&self) -> bool {
        code_has_pairs(self.code, 0)
    }

    /// Whether the pairs are transposed.
    #[inline(always)]
    pub(crate) fn is_transposed(&self) -> bool {
        code_is_transposed(self.code, 0)
    }

    /// The lane's two cells; zeros where there is no pair.
    ///
    /// # Safety
    /// The tile is one of `args`, whose pairs are of the precision of the configuration `C`, which has `WORDS` words a
    /// cell.
    #[inline(always)]
    pub(crate) unsafe fn load_cells<C: Configuration, const WORDS: usize>(&self, args: &AtaArgs) -> [[u32; WORDS]; 2] {
        let place = self.place::<C>(args);
        let has_pair = |which: u32| code_has_pair(self.code, 0, which);
        let mut cells = [[0; WORDS]; 2];
        // Both pairs is what nearly every tile has, and all lanes find it at once.
        if has_pair(0) & has_pair(1) {
            for half in 0..2 {
                // SAFETY: the second pair follows the first.
                cells[half] = unsafe { place.load(half) };
            }
            return cells;
        }
        for half in 0..2 {
            if has_pair(if self.is_transposed() { transposed_pair(lane()) } else { half as u32 }) {
                // SAFETY: the pair is there.
                cells[half] = unsafe { place.load(half) };
            }
        }
        cells
    }

    /// The lane's two cells as [`PairRowRef::load_cells`] gives them, of a tile that is known to be transposed or known
    /// not to be, without a branch: what is missing is loaded from the pair of zeros, and nothing is where `condition`
    /// does not hold.
    ///
    /// # Safety
    /// As for [`PairRowRef::load_cells`], and the tile is transposed or not as said.
    #[inline(always)]
    pub(crate) unsafe fn load_known<C: Configuration, const WORDS: usize, const TRANSPOSED: bool>(
        &self,
        args: &AtaArgs,
        condition: bool,
    ) -> [[u32; WORDS]; 2] {
        let of_pair = |which: u32| {
            let number = self.first_pair.wrapping_add_unsigned(which) as u32;
            let number = if code_has_pair(self.code, 0, which) { number } else { args.zero_pair };
            CellPlace::of_lane::<C, TRANSPOSED>(args, number)
        };
        // SAFETY: the pairs are there.
        unsafe {
            if TRANSPOSED {
                let place = of_pair(transposed_pair(lane()));
                [place.load_where(0, condition), place.load_where(1, condition)]
            } else {
                [of_pair(0).load_where(0, condition), of_pair(1).load_where(0, condition)]
            }
        }
    }

    /// Where the lane's cells are.
    #[inline(always)]
    fn place<C: Configuration>(&self, args: &AtaArgs) -> CellPlace {
        let precision = const { C::CONFIG.precision };
        let pair_bytes = precision.pair_bytes() as u32;
        let first =
            (args.pairs as *const u8).wrapping_offset(self.first_pair as isize * precision.pair_bytes() as isize);
        let (pair, cell, step) = if self.is_transposed() {
            let cells = transposed_cell(0, 1) - transposed_cell(0, 0);
            let step = [chunk_offset(0, cells), nibbles_offset(cells) - nibbles_offset(0)];
            (transposed_pair(lane()) * pair_bytes, transposed_cell(lane(), 0), step)
        } else {
            (0, direct_cell(lane()), [pair_bytes; 2])
        };
        CellPlace {
            chunks: first.wrapping_add((pair + chunk_offset(0, cell)) as usize),
            nibbles: first.wrapping_add((pair + nibbles_offset(cell)) as usize),
            step,
            precision,
        }
    }
}

/// Where a lane's two cells of two pairs beside each other are.
#[derive(Clone, Copy)]
struct CellPlace {
    /// The first chunk of the first cell.
    chunks: *const u8,
    /// The nibbles of the first cell.
    nibbles: *const u8,
    /// Bytes to the chunks and to the nibbles of the second cell.
    step: [u32; 2],
    precision: Precision,
}

impl CellPlace {
    /// The lane's first cell of pair `number`, and the second for the transposed tile.
    #[inline(always)]
    fn of_lane<C: Configuration, const TRANSPOSED: bool>(args: &AtaArgs, number: u32) -> Self {
        let precision = const { C::CONFIG.precision };
        let cell = if TRANSPOSED { transposed_cell(lane(), 0) } else { direct_cell(lane()) };
        let cells = const { transposed_cell(0, 1) - transposed_cell(0, 0) };
        // Where the lane's cells are in a pair is added first: it is the same for all pairs.
        let start = u64::from(number) * const { C::CONFIG.precision.pair_bytes() as u64 };
        let of_lane =
            |offset: u32| (args.pairs as *const u8).wrapping_add(offset as usize).wrapping_add(start as usize);
        Self {
            chunks: of_lane(chunk_offset(0, cell)),
            nibbles: of_lane(nibbles_offset(cell)),
            step: [chunk_offset(0, cells), nibbles_offset(cells) - nibbles_offset(0)],
            precision,
        }
    }

    /// Cell `half`.
    ///
    /// # Safety
    /// The cell is one of a stored pair of the precision, which has `WORDS` words a cell: chunks on 16-byte boundaries
    /// inside of the pair, nibbles on 8-byte ones.
    #[inline(always)]
    unsafe fn load<const WORDS: usize>(self, half: usize) -> [u32; WORDS] {
        // SAFETY: as required of the caller.
        unsafe { self.load_by(half, |chunk| global::load(chunk), |nibbles| global::load(nibbles)) }
    }

    /// Cell `half` where `condition` holds, else zeros, without a branch.
    ///
    /// # Safety
    /// As for [`CellPlace::load`], where the condition holds.
    #[inline(always)]
    unsafe fn load_where<const WORDS: usize>(self, half: usize, condition: bool) -> [u32; WORDS] {
        // SAFETY: as required of the caller.
        unsafe {
            self.load_by(
                half,
                |chunk| global::load_where(condition, chunk, [0; 4]),
                |nibbles| global::load_where(condition, nibbles, [0; NIBBLE_WORDS]),
            )
        }
    }

    /// Cell `half`, its chunks and nibbles as they are loaded by the two functions.
    #[inline(always)]
    fn load_by<const WORDS: usize>(
        self,
        half: usize,
        load_chunk: impl Fn(*const [u32; 4]) -> [u32; 4],
        load_nibbles: impl Fn(*const [u32; NIBBLE_WORDS]) -> [u32; NIBBLE_WORDS],
    ) -> [u32; WORDS] {
        let storage = self.precision.storage();
        let mut words = [0; WORDS];
        for term in 0..self.precision.terms() {
            let (first, start) = (term * storage.cell_words(), term * storage.term_bytes());
            let [chunks, nibbles] = [(self.chunks, self.step[0]), (self.nibbles, self.step[1])]
                .map(|(cell, step)| cell.wrapping_add(half * step as usize).wrapping_add(start));
            for chunk in 0..storage.chunks() {
                let loaded = load_chunk(chunks.wrapping_add(chunk_offset(chunk, 0) as usize).cast());
                for i in 0..4 {
                    words[first + 4 * chunk + i] = loaded[i];
                }
            }
            if storage.has_nibbles() {
                let loaded = load_nibbles(nibbles.cast());
                for i in 0..NIBBLE_WORDS {
                    words[first + 4 * storage.chunks() + i] = loaded[i];
                }
            }
        }
        words
    }
}

/// An element of a cell of 32-bit or split numbers, as the bits of an f32.
#[inline(always)]
pub(crate) fn f32_element<const WORDS: usize>(
    cell: &[u32; WORDS],
    precision: Precision,
    row: usize,
    column: usize,
) -> u32 {
    let storage = precision.storage();
    let source = cell_source(storage, 0, row, column);
    if !storage.has_nibbles() {
        return cell[source.word];
    }
    // The nibble is left alone in its byte, and the byte beside it is made 0.
    let mask = if source.nibble_byte.is_multiple_of(2) { 0x00F0_00F0 } else { 0xF000_F000 };
    joined(cell, source, source.nibble_byte ^ 1, |nibbles| hint::opaque(nibbles) & mask)
}

/// A split number of a cell as tensor cores take it: as the bits of an f32 whose lower 13 are of other numbers.
#[inline(always)]
pub(crate) fn tf32_element<const WORDS: usize>(cell: &[u32; WORDS], term: usize, row: usize, column: usize) -> u32 {
    let source = cell_source(Storage::Split, term, row, column);
    joined(cell, source, source.nibble_byte, |nibbles| nibbles)
}

/// The upper 16 bits of a split number, the byte of its nibble and a last one of the same word, which has become what
/// `cleared` makes of it.
#[inline(always)]
fn joined<const WORDS: usize>(
    cell: &[u32; WORDS],
    source: Source,
    last_byte: usize,
    cleared: impl Fn(u32) -> u32,
) -> u32 {
    let nibbles = cell[source.nibble_word];
    // The nibble is made the upper half of its byte. LLVM does not see that direct and transposed tiles do the same
    // here. Otherwise it would do so before the branch and hold the results in registers.
    let nibbles = cleared(if source.high { nibbles } else { hint::opaque(nibbles) << 4 });
    let upper = if source.high { 0x32 } else { 0x10 };
    let [nibble, last] = [source.nibble_byte, last_byte].map(|byte| 4 + byte as u32);
    permute_bytes(cell[source.word], nibbles, upper << 8 | nibble << 4 | last)
}

/// Two 16-bit elements of a cell, both for row `of_row` of Y: one for element `of_k` of X, which is even, and one for
/// the next element of X.
#[inline(always)]
pub fn two_elements<const TRANSPOSED: bool, const WORDS: usize>(
    cell: &[u32; WORDS],
    of_row: usize,
    of_k: usize,
) -> u32 {
    let word = |row: usize, column: usize| cell[cell_source(Storage::Half, 0, row, column).word];
    if !TRANSPOSED {
        return word(of_row, of_k);
    }
    // Two elements of X in the column of one row of Y, each with that of the next or the last row.
    let selector = if of_row.is_multiple_of(2) { 0x5410 } else { 0x7632 };
    permute_bytes(word(of_k, of_row), word(of_k + 1, of_row), selector)
}
