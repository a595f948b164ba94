//! Which tiles of query rows a block of a persistent launch computes, in which order ([`TileOrder`]).
//!
//! The producer takes the number of the next tile when it has started the copies of one, and leaves it in shared memory for the
//! consumers.

use cuda_std::global;
use cuda_std::ptx::mbarrier;
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, sync_warp, warp_shuffle_idx};
use layout::SmemRegion;
use layout::attention::{AttentionArgs, TILE_NUMBERS, TileOrder};

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

/// The tiles of this block, one after the other.
pub(crate) struct Walk {
    round: u32,
}

impl Walk {
    pub(crate) const START: Self = Self { round: 0 };

    /// The parity of the number of tiles before the current one: that of the phase in which its Q arrives.
    #[inline(always)]
    pub(crate) fn parity(&self) -> u32 {
        (self.round + 1) % 2
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
        let mut number = block;
        if self.round > 0 {
            number = if order.counter != 0 {
                // Every block takes one number too many, so that the last of `tiles` takes makes the counter 0 again.
                // SAFETY: the counter is one of a launch.
                blocks + unsafe { global::atomic_inc(order.counter as *mut u32, order.tiles - 1) }
            } else {
                self.round * blocks + if self.round.is_multiple_of(2) { block } else { blocks - 1 - block }
            };
            let (stage, _) = self.number_place();
            let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
            // SAFETY: the number of the tile before the last was here. All consumers have read it: they have left the Q of that
            // tile, which the producer has waited for.
            unsafe {
                at(Row::<ROW>::NUMBERS).store(number);
                mbarrier::arrive_if(at(Row::<ROW>::TILE_FULL), true);
            }
        }
        self.tile::<ROW>(args, order, number)
    }

    /// The next tile that the producer has taken.
    ///
    /// # Safety
    /// All lanes of a consumer warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn follow<const ROW: usize>(
        &mut self,
        args: &AttentionArgs,
        order: &TileOrder,
        base: SharedAddr,
    ) -> Option<Tile> {
        let mut number = tile_of_block::<ROW>();
        if self.round > 0 {
            let (stage, parity) = self.number_place();
            let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
            // SAFETY: the number stays until the warp has left the Q of its tile.
            unsafe {
                mbarrier::wait_parity(at(Row::<ROW>::TILE_FULL), parity);
                number = warp_shuffle_idx(FULL_MASK, at(Row::<ROW>::NUMBERS).load(), 0, LANES).0;
                // Every lane has read it, not the first alone, which leaves Q for all.
                sync_warp(FULL_MASK);
            }
        }
        self.tile::<ROW>(args, order, number)
    }

    /// Where the number of the tile of this round is, which is not the first, and the parity of the phase in which it comes.
    #[inline(always)]
    fn number_place(&self) -> (u32, u32) {
        let before = self.round - 1;
        (before % TILE_NUMBERS, before / TILE_NUMBERS % 2)
    }

    #[inline(always)]
    fn tile<const ROW: usize>(&mut self, args: &AttentionArgs, order: &TileOrder, number: u32) -> Option<Tile> {
        self.round += 1;
        if number >= order.tiles {
            return None;
        }
        let (group, in_group) = div_rem(number, order.group_heads * order.row_tiles);
        let first_head = group * order.group_heads;
        let (row_tile, group_head) = div_rem(in_group, order.group_heads.min(order.heads - first_head));
        let batch_head = first_head + group_head;
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let first_row = (order.row_tiles - 1 - row_tile) * const { Row::<ROW>::M };
        Some(Tile { batch, head, kv_head, batch_head, first_row })
    }
}

/// The number of the first tile of this block, which the other blocks of its cluster share.
#[inline(always)]
fn tile_of_block<const ROW: usize>() -> u32 {
    thread::block_idx_x() / const { Row::<ROW>::CLUSTER }
}
