//! How the numbers of a pair are stored, and which of them a lane loads.

use super::{BLOCK, PAIR_ELEMS, Precision};

/// Rows and columns of a cell.
pub const CELL: usize = 4;

/// Cells of a pair: one for each lane of a warp.
pub const CELLS: usize = PAIR_ELEMS / (CELL * CELL);

/// How a number is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// In 32 bits.
    Word,
    /// The upper 16 bits of a TF32 number in one place, the next four in another.
    Split,
    /// In 16 bits.
    Half,
}

impl Storage {
    /// The 16-byte chunks of a cell.
    pub const fn chunks(self) -> usize {
        match self {
            Storage::Word => 4,
            Storage::Split | Storage::Half => 2,
        }
    }

    /// The registers of a cell, of one term: the words of its chunks, then those of its nibbles, two rows a word.
    pub const fn cell_words(self) -> usize {
        4 * self.chunks() + if self.has_nibbles() { NIBBLE_WORDS } else { 0 }
    }

    /// Whether nibbles follow the chunks.
    pub const fn has_nibbles(self) -> bool {
        matches!(self, Storage::Split)
    }

    /// The size of a pair, of one term.
    pub const fn term_bytes(self) -> usize {
        CELLS * self.cell_words() * size_of::<u32>()
    }
}

/// Words of a cell that hold nibbles.
pub const NIBBLE_WORDS: usize = 2;

/// Bytes of one load of one lane.
pub const CHUNK_BYTES: usize = 16;

/// Where chunk `chunk` of cell `cell` is, in bytes from the start of the pair's term.
#[inline(always)]
pub const fn chunk_offset(chunk: usize, cell: u32) -> u32 {
    (chunk * CELLS * CHUNK_BYTES) as u32 + cell * CHUNK_BYTES as u32
}

/// Where the nibbles of cell `cell` are, in bytes from the start of the pair's term.
#[inline(always)]
pub const fn nibbles_offset(cell: u32) -> u32 {
    chunk_offset(Storage::Split.chunks(), 0) + cell * (NIBBLE_WORDS * size_of::<u32>()) as u32
}

/// The cell that a lane loads of each of the two pairs beside each other, for a direct tile.
#[inline(always)]
pub const fn direct_cell(lane: u32) -> u32 {
    lane
}

/// The cell `half` (0 or 1) that a lane loads of its pair ([`transposed_pair`]), for a transposed tile.
#[inline(always)]
pub const fn transposed_cell(lane: u32, half: usize) -> u32 {
    (lane % 4 + 4 * half as u32) * 4 + lane / 4 % 4
}

/// Which of two pairs beside each other a lane loads from, for a transposed tile.
#[inline(always)]
pub const fn transposed_pair(lane: u32) -> u32 {
    lane / 16
}

/// Which part of a cell's registers an element of it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Source {
    /// The 32-bit word.
    pub word: usize,
    /// Whether a 16-bit number is the upper half of the word; false for 32-bit numbers.
    pub high: bool,
    /// The word of the nibble.
    pub nibble_word: usize,
    /// The byte of that word that holds the nibble: in its upper four bits where `high`, else in its lower four.
    pub nibble_byte: usize,
}

/// Where the number of `term` (0 for the larger) of element (row, column) of a cell is.
#[inline(always)]
pub const fn cell_source(storage: Storage, term: usize, row: usize, column: usize) -> Source {
    let first = term * storage.cell_words();
    let (word, high) = match storage {
        Storage::Word => (row * 4 + column, false),
        Storage::Split => (row * 2 + column / 2, column % 2 == 1),
        // The order of the registers of an operand of m16n8k16, for a direct tile.
        Storage::Half => (row / 2 * 4 + column / 2 * 2 + row % 2, column % 2 == 1),
    };
    let nibble_word = first + 4 * storage.chunks() + row / 2;
    Source { word: first + word, high, nibble_word, nibble_byte: row % 2 * 2 + column / 2 }
}

/// Where a number of a pair is, in bytes and bits from the pair's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElementOffset {
    /// The byte where the 32-bit number, the 16-bit number or the upper half of a split one starts.
    pub byte: usize,
    /// The byte of the nibble of a split number.
    pub nibble_byte: usize,
    /// By how many bits the nibble is shifted to the left in it.
    pub nibble_shift: u32,
}

/// Where the number of `term` (0 for the larger) of element (row, column) of a pair is stored.
pub const fn element_offset(precision: Precision, term: usize, row: usize, column: usize) -> ElementOffset {
    let storage = precision.storage();
    let cell = (row / CELL * (BLOCK / CELL) + column / CELL) as u32;
    let source = cell_source(storage, 0, row % CELL, column % CELL);
    let start = term * storage.term_bytes();
    let in_chunk = source.word % 4 * 4 + if source.high { 2 } else { 0 };
    let in_nibbles = (source.nibble_word - 4 * storage.chunks()) * size_of::<u32>() + source.nibble_byte;
    ElementOffset {
        byte: start + chunk_offset(source.word / 4, cell) as usize + in_chunk,
        nibble_byte: start + nibbles_offset(cell) as usize + in_nibbles,
        nibble_shift: if source.high { 4 } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::ata::PAIR_ROWS;
    use layout::fragment::mma_m16n8k8_a;
    use std::collections::HashSet;

    #[test]
    fn every_bit_of_a_pair_is_of_one_stored_number() {
        for precision in Precision::ALL {
            let storage = precision.storage();
            let mut bits = HashSet::new();
            for (term, row, column) in (0..precision.terms())
                .flat_map(|term| (0..PAIR_ROWS).flat_map(move |row| (0..BLOCK).map(move |column| (term, row, column))))
            {
                let ElementOffset { byte, nibble_byte, nibble_shift } = element_offset(precision, term, row, column);
                let len = if storage == Storage::Word { 32 } else { 16 };
                let nibble = if storage.has_nibbles() { 4 } else { 0 };
                let first = nibble_byte * 8 + nibble_shift as usize;
                for bit in (byte * 8..byte * 8 + len).chain(first..first + nibble) {
                    assert!(bits.insert(bit), "{precision} {term} {row} {column}");
                }
            }
            assert_eq!(bits.len(), precision.pair_bytes() * 8);
            assert!(bits.iter().all(|&bit| bit < precision.pair_bytes() * 8));
        }
    }

    /// The pair (0 or 1), row and column in it of an element of a lane's cell.
    fn element_of(lane: u32, transposed: bool, half: usize, row: usize, column: usize) -> [usize; 3] {
        let (pair, cell) = if transposed {
            (transposed_pair(lane) as usize, transposed_cell(lane, half) as usize)
        } else {
            (half, direct_cell(lane) as usize)
        };
        [pair, cell / 4 * CELL + row, cell % 4 * CELL + column]
    }

    #[test]
    fn the_registers_of_a_cell_are_what_is_stored_there() {
        for precision in Precision::ALL {
            let storage = precision.storage();
            for (cell, term, row, column) in (0..CELLS as u32).flat_map(|cell| {
                (0..precision.terms()).flat_map(move |term| (0..16).map(move |i| (cell, term, i / 4, i % 4)))
            }) {
                let Source { word, high, nibble_word, nibble_byte } = cell_source(storage, term, row, column);
                // Registers are the chunks of the first term in order, its nibbles, then those of the second.
                let (first, start) = (term * storage.cell_words(), term * storage.term_bytes());
                let byte = start
                    + chunk_offset((word - first) / 4, cell) as usize
                    + (word - first) % 4 * 4
                    + if high { 2 } else { 0 };
                let (pair_row, pair_column) = (cell as usize / 4 * CELL + row, cell as usize % 4 * CELL + column);
                let place = element_offset(precision, term, pair_row, pair_column);
                assert_eq!(place.byte, byte, "{precision} {cell} {term} {row} {column}");
                if storage.has_nibbles() {
                    let in_cell = (nibble_word - first - 4 * storage.chunks()) * 4 + nibble_byte;
                    assert_eq!(place.nibble_byte, start + nibbles_offset(cell) as usize + in_cell);
                    assert_eq!(place.nibble_shift, if high { 4 } else { 0 });
                }
            }
        }
    }

    #[test]
    fn cells_are_the_operands_of_the_table_for_both_uses() {
        for transposed in [false, true] {
            let mut read = HashSet::new();
            for (lane, half, part, step) in
                (0..32).flat_map(|lane| (0..8).map(move |i| (lane, i / 4, i / 2 % 2, i % 2)))
            {
                for register in 0..4 {
                    let (odd_row, odd_k) = (register % 2, register / 2);
                    let (of_row, of_k) = (2 * part + odd_row, 2 * step + odd_k);
                    let (row, column) = if transposed { (of_k, of_row) } else { (of_row, of_k) };
                    let [pair, row, column] = element_of(lane, transposed, half, row, column);
                    let (m, k) = mma_m16n8k8_a(lane, register as u32);
                    // Rows of Y and elements of X in the ATA tile.
                    let y = 4 * (m as usize % 8) + 2 * part + m as usize / 8;
                    let x = 16 * half + 4 * (k as usize % 4) + 2 * step + k as usize / 4;
                    let in_tile = (row, 16 * pair + column);
                    assert_eq!(in_tile, if transposed { (x, y) } else { (y, x) }, "{lane} {half} {part} {step}");
                    assert!(read.insert(in_tile));
                }
            }
            assert_eq!(read.len(), PAIR_ROWS * PAIR_ROWS);
        }
    }

    #[test]
    fn loads_of_a_warp_are_whole_lines() {
        for chunk in 0..4 {
            for half in 0..2 {
                let direct = (0..32).map(|lane| chunk_offset(chunk, direct_cell(lane)));
                assert_eq!(direct.map(|offset| offset / 128).collect::<HashSet<_>>().len(), 4);
                for pair in 0..2 {
                    let lanes = (0..32).filter(|&lane| transposed_pair(lane) == pair);
                    let offsets: HashSet<u32> =
                        lanes.map(|lane| chunk_offset(chunk, transposed_cell(lane, half))).collect();
                    let lines: HashSet<u32> = offsets.iter().map(|offset| offset / 128).collect();
                    assert_eq!((offsets.len(), lines.len()), (16, 2));
                }
            }
        }
    }
}
