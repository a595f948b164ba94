//! Which tile a block computes, and where its threads stand.

use cuda_std::hint::opaque;
use cuda_std::ptx::griddepcontrol;
use cuda_std::thread;
use variants::gemm::{GemmArgs, GemmConfig, TileScheduler, WorkTile};

/// Lanes of a warp.
pub(crate) const LANES: u32 = 32;

/// The tile and the split of k of this block.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    /// Batch entry.
    pub(crate) batch: u32,
    /// Split of k.
    pub(crate) split: u32,
    /// First row of D.
    pub(crate) first_row: u32,
    /// First column of D.
    pub(crate) first_column: u32,
}

impl Work {
    /// The work of this block.
    #[inline(always)]
    pub(crate) fn of_block(args: &GemmArgs, config: &GemmConfig) -> Self {
        let (tile_m, tile_n) = (config.tile.m as u32, config.tile.n as u32);
        // Opaque: what a second call needs is found anew and takes no registers in between.
        let schedule = TileScheduler {
            m_tiles: opaque(args.m).div_ceil(tile_m),
            n_tiles: args.n.div_ceil(tile_n),
            splits: args.splits,
            cluster: 1,
        };
        let WorkTile { batch, split, m_tile, n_tile } = schedule.work(opaque(thread::block_idx_x()));
        Self { batch, split, first_row: m_tile * tile_m, first_column: n_tile * tile_n }
    }

    /// The elements of k that this block sums, as (first, end).
    #[inline(always)]
    pub(crate) fn k_range(&self, args: &GemmArgs) -> (u32, u32) {
        let first = self.split * args.split_k;
        let end = first + args.split_k;
        (first, if end < args.k { end } else { args.k })
    }
}

/// Lets the next kernel of the stream start, and waits until the kernel before has ended, because this kernel may read
/// what that one writes, and write what that one reads. Every thread calls this function before it touches a tensor or
/// the workspace.
#[inline(always)]
pub(crate) fn wait_for_dependencies() {
    griddepcontrol::launch_dependents();
    griddepcontrol::wait();
}

/// This thread's lane in its warp. Opaque at each call: what is derived from it is computed where it is used.
#[inline(always)]
pub(crate) fn lane() -> u32 {
    opaque(thread::thread_idx_x()) % LANES
}

/// This thread's warp in its block.
#[inline(always)]
pub(crate) fn warp() -> u32 {
    opaque(thread::thread_idx_x()) / LANES
}
