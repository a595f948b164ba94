//! Which tiles of query rows a block of a persistent launch computes, in which order ([`TileOrder`]).
//!
//! The producer takes the next tile when it has started the copies of one, and leaves its head and first row in shared memory for
//! the consumers, which then need no divisions to find them.

use cuda_std::global;
use cuda_std::ptx::mbarrier;
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, sync_warp, warp_shuffle_idx};
use layout::SmemRegion;
use layout::attention::{AttentionArgs, TILES_AHEAD, TileOrder};

use crate::row::Row;
use crate::work::{LANES, div_rem};

/// Query rows of one head.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Batch entry.
    pub(crate) batch: u32,
    /// Head of Q.
    pub(crate) head: u32,
    /// Head of K and V.
    pub(crate) kv_head: u32,
    /// Head of Q among those of all batch entries.
    pub(crate) batch_head: u32,
    /// First row.
    pub(crate) first_row: u32,
}

impl Tile {
    /// The tile of this number, which is below `order.tiles`.
    #[inline(always)]
    pub(crate) fn of_number<const ROW: usize>(args: &AttentionArgs, order: &TileOrder, number: u32) -> Self {
        let (group, in_group) = div_rem(number, order.group_heads * order.row_tiles);
        let first_head = group * order.group_heads;
        let (row_tile, group_head) = div_rem(in_group, order.group_heads.min(order.heads - first_head));
        let batch_head = first_head + group_head;
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let first_row = (order.row_tiles - 1 - row_tile) * const { Row::<ROW>::M };
        Self { batch, head, kv_head, batch_head, first_row }
    }
}

/// Stands for a head where there are no more tiles.
const NO_HEAD: u32 = u32::MAX;

/// The tiles of this block, one after the other.
pub(crate) struct Walk {
    round: u32,
}

impl Walk {
    pub(crate) const START: Self = Self { round: 0 };

    /// The buffer of the Q of the current tile, and the parity of the phase in which it arrives.
    #[inline(always)]
    pub(crate) fn q_place<const ROW: usize>(&self) -> (u32, u32) {
        let before = self.round - 1;
        let stages = const { Row::<ROW>::Q.stages };
        (before % stages, before / stages % 2)
    }

    /// The next tile, which the consumers are told; `None` after the last.
    ///
    /// # Safety
    /// The producer calls it, in a launch whose counter, if it has one, no other has.
    #[inline(always)]
    pub(crate) unsafe fn take<const ROW: usize>(
        &mut self,
        args: &AttentionArgs,
        order: &TileOrder,
        base: SharedAddr,
    ) -> Option<Tile> {
        let (block, blocks) = (tile_of_block::<ROW>(), thread::grid_dim_x() / const { Row::<ROW>::CLUSTER });
        let number = if self.round == 0 {
            block
        } else if order.counter != 0 {
            // Every block takes one number too many, so that the last of `tiles` takes makes the counter 0 again.
            // SAFETY: the counter is one of a launch.
            blocks + unsafe { global::atomic_inc(order.counter as *mut u32, order.tiles - 1) }
        } else {
            self.round * blocks + if self.round.is_multiple_of(2) { block } else { blocks - 1 - block }
        };
        let tile = (number < order.tiles).then(|| Tile::of_number::<ROW>(args, order, number));
        let (stage, _) = self.place();
        let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
        // SAFETY: what was here is of a tile whose Q all consumers have left, which the producer has waited for: there are more
        // places for tiles than for Q.
        unsafe {
            at(Row::<ROW>::TILES).store(tile.map_or([NO_HEAD, 0], |tile| [tile.batch_head, tile.first_row]));
            mbarrier::arrive_if(at(Row::<ROW>::TILE_FULL), true);
        }
        self.round += 1;
        tile
    }

    /// The head, of those of all batch entries, and the first row of the next tile that the producer has taken; `None` after the
    /// last.
    ///
    /// # Safety
    /// All lanes of a consumer warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn follow<const ROW: usize>(&mut self, base: SharedAddr) -> Option<[u32; 2]> {
        let (stage, parity) = self.place();
        let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
        // SAFETY: the tile stays until the warp has left its Q.
        let tile: [u32; 2] = unsafe {
            mbarrier::wait_parity(at(Row::<ROW>::TILE_FULL), parity);
            at(Row::<ROW>::TILES).load()
        };
        // The same in all lanes, and to the eyes of `ptxas`: descriptors and barriers are then in uniform registers, without moves
        // to them between the products.
        // SAFETY: the warp is together.
        let tile = tile.map(|word| unsafe { warp_shuffle_idx(FULL_MASK, word, 0, LANES).0 });
        // Every lane has read it, not the first alone, which leaves Q for all.
        // SAFETY: as above.
        unsafe { sync_warp(FULL_MASK) };
        self.round += 1;
        (tile[0] != NO_HEAD).then_some(tile)
    }

    /// Where the next tile is, and the parity of the phase in which it comes.
    #[inline(always)]
    fn place(&self) -> (u32, u32) {
        (self.round % TILES_AHEAD, self.round / TILES_AHEAD % 2)
    }
}

/// The number of the first tile of this block, which the other blocks of its cluster share.
#[inline(always)]
fn tile_of_block<const ROW: usize>() -> u32 {
    thread::block_idx_x() / const { Row::<ROW>::CLUSTER }
}
