//! XOR swizzles: a permutation of the 16-byte units of shared memory that lets a warp read a column of a row-major tile
//! without bank conflicts.
//!
//! A tile whose rows are 128 bytes long puts column `c` of every row into the same four banks, so eight rows read at
//! one column take eight passes. The swizzle moves unit `u` of row `r` to unit `u ^ (r % 8)`, and the eight rows then
//! lie in eight different bank groups:
//!
//! ```text
//! row 0:  0 1 2 3 4 5 6 7
//! row 1:  1 0 3 2 5 4 7 6
//! row 2:  2 3 0 1 6 7 4 5      (unit that is stored at each place)
//! ```
//!
//! The three widths are those of the tensor memory accelerator (`CU_TENSOR_MAP_SWIZZLE_32B`, `_64B`, `_128B`) and of
//! the matrix descriptors of `wgmma`. So a tile swizzled by hand, by TMA or for `wgmma` looks the same. Swizzles act on
//! byte offsets from a base that is aligned to [`Swizzle::period_bytes`].

/// How the 16-byte units of a shared-memory tile are permuted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Swizzle {
    /// Units stay where they are.
    None,
    /// Rows of 32 bytes: bit 4 of the offset is flipped by bit 7.
    B32,
    /// Rows of 64 bytes: bits 4 and 5 by bits 7 and 8.
    B64,
    /// Rows of 128 bytes: bits 4 to 6 by bits 7 to 9.
    B128,
}

impl Swizzle {
    /// Every swizzle, narrowest first.
    pub const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];

    /// The length of the rows this swizzle is made for, in bytes: the span inside which a unit moves.
    pub const fn row_bytes(self) -> u32 {
        match self {
            Swizzle::None => 16,
            Swizzle::B32 => 32,
            Swizzle::B64 => 64,
            Swizzle::B128 => 128,
        }
    }

    /// The distance after which the pattern repeats, in bytes: the alignment a swizzled tile needs.
    pub const fn period_bytes(self) -> u32 {
        self.row_bytes() * 8
    }

    /// Where the byte that lies at `offset_bytes` of the plain tile is stored.
    #[inline(always)]
    pub const fn apply(self, offset_bytes: u32) -> u32 {
        let unit_mask = self.row_bytes() / 16 - 1;
        offset_bytes ^ (((offset_bytes >> 7) & unit_mask) << 4)
    }

    /// Where byte `column_bytes` of configuration `id` is stored, in a tile of `rows` rows kept as panels.
    ///
    /// A panel is [`Swizzle::row_bytes`] wide and `rows` high, and the panels follow each other. One TMA box, or one
    /// `wgmma` operand, of that width holds one panel. With rows of exactly that width there is one panel.
    #[inline(always)]
    pub const fn tile_offset(self, row: u32, column_bytes: u32, rows: u32) -> u32 {
        let panel = column_bytes / self.row_bytes();
        let inside = column_bytes % self.row_bytes();
        panel * rows * self.row_bytes() + self.apply(row * self.row_bytes() + inside)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swizzle_is_a_bijection_and_its_own_inverse() {
        for swizzle in Swizzle::ALL {
            let period = swizzle.period_bytes().max(1024);
            let mut seen = [false; 1024];
            for offset in 0..period {
                let stored = swizzle.apply(offset);
                assert!(stored < period, "{swizzle:?} {offset} leaves its period");
                assert!(!seen[stored as usize], "{swizzle:?} stores two bytes at {stored}");
                seen[stored as usize] = true;
                assert_eq!(swizzle.apply(stored), offset);
            }
        }
    }

    #[test]
    fn swizzle_moves_whole_units_inside_their_row() {
        for swizzle in Swizzle::ALL {
            for offset in 0..8192 {
                let stored = swizzle.apply(offset);
                assert_eq!(stored % 16, offset % 16);
                assert_eq!(stored / swizzle.row_bytes(), offset / swizzle.row_bytes());
            }
        }
    }

    #[test]
    fn swizzle_repeats_after_its_period() {
        for swizzle in Swizzle::ALL {
            for offset in 0..4096 {
                let period = swizzle.period_bytes();
                assert_eq!(swizzle.apply(offset + period), swizzle.apply(offset) + period);
            }
        }
    }

    #[test]
    fn the_128_byte_swizzle_is_unit_xor_row() {
        for row in 0..64 {
            for unit in 0..8 {
                assert_eq!(Swizzle::B128.apply(row * 128 + unit * 16), row * 128 + (unit ^ (row % 8)) * 16);
            }
        }
    }

    /// The passes that the eight 16-byte rows of one `ldmatrix` matrix take: the largest number of them in one bank
    /// group.
    fn ldmatrix_passes(offset_of_row: impl Fn(u32) -> u32) -> usize {
        let mut rows_in_group = [0; 8];
        for row in 0..8 {
            let offset = offset_of_row(row);
            assert_eq!(offset % 16, 0);
            rows_in_group[(offset / 16 % 8) as usize] += 1;
        }
        rows_in_group.into_iter().max().unwrap_or(0)
    }

    #[test]
    fn ldmatrix_has_no_bank_conflict_in_any_swizzled_tile() {
        for swizzle in [Swizzle::B32, Swizzle::B64, Swizzle::B128] {
            for first_row in (0..128).step_by(8) {
                for column_bytes in (0..512).step_by(16) {
                    let passes = ldmatrix_passes(|row| swizzle.tile_offset(first_row + row, column_bytes, 128));
                    assert_eq!(passes, 1, "{swizzle:?} row {first_row} column byte {column_bytes}");
                }
            }
        }
        assert_eq!(ldmatrix_passes(|row| row * 128), 8, "the count must see the conflict of a plain tile");
    }

    #[test]
    fn tile_offset_is_a_bijection_over_panels() {
        const ROWS: u32 = 24;
        const COLUMN_BYTES: u32 = 256;
        for swizzle in Swizzle::ALL {
            let mut seen = [false; (ROWS * COLUMN_BYTES) as usize];
            for row in 0..ROWS {
                for column in 0..COLUMN_BYTES {
                    let offset = swizzle.tile_offset(row, column, ROWS) as usize;
                    assert!(!core::mem::replace(&mut seen[offset], true));
                }
            }
        }
    }
}
