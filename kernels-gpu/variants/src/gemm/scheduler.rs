//! Which tile of which batch entry a block computes, and which split of k it sums.

/// Rows of tiles whose blocks follow each other. Blocks that run at once read the fewest tiles of A and B where they
/// cover about as many rows as columns, and then most of these tiles come from L2.
const GROUP_ROWS: u32 = 16;

/// Bytes of A and B of which a block's second tile finds little in L2, half of which holds what its multiprocessors
/// read.
const FAR_BYTES: u64 = 24 << 20;

/// Whether every other tile of a block sums k from its end, because what was read last is still in L2. That is so where
/// A and B are so large that what was read first is not. The results of smaller products do not depend on how many
/// tiles a block computes.
#[inline(always)]
pub const fn alternates(m: u32, n: u32, k: u32, element_bytes: u32) -> bool {
    (m as u64 + n as u64) * k as u64 * element_bytes as u64 > FAR_BYTES
}

/// The tiles of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TileScheduler {
    /// Rows of tiles.
    pub m_tiles: u32,
    /// Columns of tiles.
    pub n_tiles: u32,
    /// Parts that k is cut into.
    pub splits: u32,
    /// Blocks that compute what counts as one tile here, each some of its rows.
    pub cluster: u32,
}

/// What one block does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WorkTile {
    /// Batch entry.
    pub batch: u32,
    /// Part of k.
    pub split: u32,
    /// Row of tiles.
    pub m_tile: u32,
    /// Column of tiles.
    pub n_tile: u32,
}

impl TileScheduler {
    /// Blocks of one batch entry.
    pub const fn blocks_per_batch(self) -> u32 {
        self.m_tiles * self.n_tiles * self.splits
    }

    /// The work of block `index`. Blocks of one split of one batch entry follow each other. Every other group of rows
    /// takes the columns from the last one on: the tiles of B that the group before read last are in L2.
    #[inline(always)]
    pub const fn work(self, index: u32) -> WorkTile {
        let (matrix, tile) = div_rem(index, self.m_tiles * self.n_tiles);
        let (batch, split) = div_rem(matrix, self.splits);
        let group_rows = GROUP_ROWS / self.cluster;
        let (group, in_group) = div_rem(tile, group_rows * self.n_tiles);
        let first_row = group * group_rows;
        let rows_left = self.m_tiles - first_row;
        let rows = if rows_left < group_rows { rows_left } else { group_rows };
        let (n_tile, row) = div_rem(in_group, rows);
        let n_tile = if group % 2 == 1 { self.n_tiles - 1 - n_tile } else { n_tile };
        WorkTile { batch, split, m_tile: first_row + row, n_tile }
    }
}

/// Quotient and remainder, without the panic that a plain `/` would link into a kernel; no divisor here is 0.
#[inline(always)]
const fn div_rem(dividend: u32, divisor: u32) -> (u32, u32) {
    let quotient = match dividend.checked_div(divisor) {
        Some(quotient) => quotient,
        None => 0,
    };
    (quotient, dividend - quotient * divisor)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::gemm::MAX_DIM;
    use std::collections::HashSet;

    #[test]
    fn only_what_exceeds_half_of_l2_alternates() {
        assert!(alternates(4096, 4096, 4096, 2) && alternates(4096, 4096, 4096, 1));
        assert!(!alternates(2048, 2048, 2048, 2) && !alternates(4096, 4096, 4096, 0));
        assert!(alternates(MAX_DIM as u32, MAX_DIM as u32, MAX_DIM as u32, 2));
    }

    #[test]
    fn every_tile_of_every_part_and_batch_entry_has_one_block() {
        for (m_tiles, n_tiles, splits) in
            [(1, 1, 1), (3, 5, 2), (8, 4, 1), (9, 7, 3), (17, 2, 1), (33, 3, 2), (1, 30, 4)]
        {
            let schedule = TileScheduler { m_tiles, n_tiles, splits, cluster: 1 + m_tiles % 2 };
            let blocks = 3 * schedule.blocks_per_batch();
            let works: HashSet<WorkTile> = (0..blocks).map(|index| schedule.work(index)).collect();
            assert_eq!(works.len(), blocks as usize);
            for work in works {
                assert!(work.batch < 3 && work.split < splits && work.m_tile < m_tiles && work.n_tile < n_tiles);
            }
        }
    }
}
