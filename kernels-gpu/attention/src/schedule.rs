//! Which tiles of query rows a block of a persistent launch computes, in which order ([`TileOrder`]).

use cuda_std::thread;
use layout::attention::{AttentionArgs, TileOrder};

use crate::work::div_rem;

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

/// The tiles of this block, one after the other. Every thread of the block walks the same way.
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

    /// The next tile, of `rows` rows; `None` after the last.
    #[inline(always)]
    pub(crate) fn next(&mut self, args: &AttentionArgs, order: &TileOrder, rows: u32) -> Option<Tile> {
        let (block, blocks) = (thread::block_idx_x(), thread::grid_dim_x());
        let in_round = if self.round.is_multiple_of(2) { block } else { blocks - 1 - block };
        let index = self.round * blocks + in_round;
        self.round += 1;
        if index >= order.tiles {
            return None;
        }
        let (group, in_group) = div_rem(index, order.group_heads * order.row_tiles);
        let first_head = group * order.group_heads;
        let (row_tile, group_head) = div_rem(in_group, order.group_heads.min(order.heads - first_head));
        let batch_head = first_head + group_head;
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        Some(Tile { batch, head, kv_head, batch_head, first_row: (order.row_tiles - 1 - row_tile) * rows })
    }
}
