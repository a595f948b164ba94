//! Which tiles a block on `wgmma` computes, one after the other.

use cuda_std::thread;
use variants::gemm::{GEMM, GemmArgs, TileScheduler, WorkTile, alternates};

/// One tile of D and the split of k that is summed.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Batch entry.
    pub(crate) batch: u32,
    /// Split of k.
    pub(crate) split: u32,
    pub(crate) first_row: u32,
    pub(crate) first_column: u32,
    pub(crate) first_k: u32,
    /// Stages.
    pub(crate) rounds: u32,
    /// Whether they come from the end of k on.
    pub(crate) backwards: bool,
}

/// The tiles of this block, every so many-eth of all.
pub(crate) struct BlockTiles<'a, const ID: usize> {
    pub(crate) args: &'a GemmArgs,
    schedule: TileScheduler,
    pub(crate) rank: u32,
    index: u32,
    step: u32,
    end: u32,
    alternates: bool,
    backwards: bool,
}

impl<'a, const ID: usize> BlockTiles<'a, ID> {
    #[inline(always)]
    pub(crate) fn of_block(args: &'a GemmArgs, rank: u32) -> Self {
        let config = const { GEMM[ID] };
        let schedule = TileScheduler {
            m_tiles: args.m.div_ceil(config.tile.m as u32 * config.cluster),
            n_tiles: args.n.div_ceil(config.tile.n as u32),
            splits: args.splits,
            cluster: config.cluster,
        };
        let (index, step) = (thread::block_idx_x() / config.cluster, thread::grid_dim_x() / config.cluster);
        let end = schedule.blocks_per_batch() * args.batch;
        let alternates = alternates(args.m, args.n, args.k, config.a.size_bytes() as u32);
        Self { args, schedule, rank, index, step, end, alternates, backwards: false }
    }

    #[inline(always)]
    pub(crate) fn next(&mut self) -> Option<Tile> {
        let config = const { GEMM[ID] };
        if self.index >= self.end {
            return None;
        }
        let WorkTile { batch, split, m_tile, n_tile } = self.schedule.work(self.index);
        self.index += self.step;
        let backwards = self.backwards;
        self.backwards ^= self.alternates;
        let first_k = split * self.args.split_k;
        let left = self.args.k.saturating_sub(first_k);
        let k = if self.args.split_k < left { self.args.split_k } else { left };
        Some(Tile {
            batch,
            split,
            first_row: (m_tile * config.cluster + self.rank) * config.tile.m as u32,
            first_column: n_tile * config.tile.n as u32,
            first_k,
            rounds: k.div_ceil(config.tile.k as u32),
            backwards,
        })
    }
}
