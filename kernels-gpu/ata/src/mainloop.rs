//! The product. A thread block computes the rows of one strip (64), or of one of its pair rows (32), of one channel for
//! some frames:
//!
//! ```text
//! for each tile reference of the strip that is this warp's, the next one in flight:
//!     load the cells of the tile and the lane's elements of X
//!     for each pair row: Y[32 rows] += tile * X[32 x frames], or its transpose
//! add the sums of the warps in shared memory, store Y
//! ```
//!
//! **Bytes and floor.** n = 2624, 3 channels and 27 block diagonals are 6.5 MB of 16-bit pairs stored, 8.1 MB of TF32
//! and 13.0 MB of f32, all of which stays in L2. Each pair is read twice, which is 12.5, 15.6 and 25.0 MB. Each block
//! reads X as far as the band reaches: for 8 frames 6.8 MB by blocks of 32 rows, 3.6 MB by those of 64. On an H200, by
//! graph replay, a kernel that does nothing but read takes 2.4 us for 13.4 MB from L2, 2.8 us for 16.4 MB and 3.7 us
//! for 25.8 MB; an empty kernel takes 0.6 us (`docs/measurements/ata.md`).
//!
//! 1. Pairs lie in memory as the lanes want them, directly and transposed. Every load is 16 bytes a lane, and whole
//!    lines for a warp. Nothing of A passes through shared memory. A tile loads X once, for all its pairs.
//! 2. All warps of a multiprocessor have loads in flight. More warps with one tile each do better than half as many
//!    with two, because `ptxas` gives all loads of the loop one scoreboard: a wait for the first tile is one for both.
//!    The loads of the next tile start as soon as the registers of X, and then of each pair row, are free. Copies to
//!    shared memory, by `cp.async` of each lane or in bulk, take 5 to 18 % longer where n is 2624.
//! 3. With w warps in a block, each takes every w-th tile reference. So a block ends within one tile of all its warps.
//!    Their sums meet in shared memory in a fixed order: no atomics, and the same bits in every run.
//! 4. On sm_90 the kernel starts before the one before it has ended. It loads its first tiles of A, which no kernel
//!    writes, and then waits for the other's results. A is loaded by plain loads: those through the read-only cache
//!    sink below the wait.
//! 5. A tile reference is loaded two tiles ahead. The first two of each warp are loaded before anything else, from an
//!    address that needs no other load, and nothing is computed from them before it is needed. The loads of the two
//!    pairs of a pair row have one branch, which nearly always goes one way, and their addresses are one sum and
//!    constants.
//! 6. For one frame of 16-bit or 20-bit numbers in blocks of 16 warps, registers hold two tiles, which is all that a
//!    warp has where n is 2624. The cells of the second arrive while the first is multiplied (`prefetch`).
//! 7. What the end of a block needs is left in shared memory at the start. There it takes no register, and is not found
//!    out again when all warps wait.
//!
//! Reading each pair once, for its row and for its column, does not pay. Sums for rows of other blocks would be
//! written, read again and added by a second kernel, which together takes longer. `docs/measurements/ata.md` has the
//! numbers.
//!
//! Registers: 8 sums for 8 frames and 32 rows, 16 to 40 for the cells of 32 rows, 8 for X. Shared memory: 1152 bytes a
//! warp for 8 frames and 32 rows.

use cuda_std::ptx::griddepcontrol;
use cuda_std::{hint, thread};
use variants::ata::AtaArgs;

use crate::cells::TileRef;
use crate::config::Configuration;
use crate::prefetch::{add_pairs, add_two, takes_two};
use crate::sums::{WarpSums, store_result};
use crate::unit::{Four, Unit};
use crate::vector::FrameRow;
use crate::work::BlockCoord;
use crate::work_list::WorkList;

/// A tile and what was loaded for it.
#[derive(Clone, Copy)]
struct Stage<const WORDS: usize, const ROWS: usize, const VECTORS: usize> {
    used: TileRef,
    cells: [[[u32; WORDS]; 2]; ROWS],
    x: [[Four; 2]; VECTORS],
}

impl<const WORDS: usize, const ROWS: usize, const VECTORS: usize> Stage<WORDS, ROWS, VECTORS> {
    /// Before anything is loaded.
    #[inline(always)]
    fn of_tile(used: TileRef) -> Self {
        Stage { used, cells: [[[0; WORDS]; 2]; ROWS], x: [[[0.0; 4]; 2]; VECTORS] }
    }

    /// Starts the loads of A for pair row `row` of the block, which is `row_of_strip` of the strip.
    ///
    /// # Safety
    /// The tile is one of `args`, or none.
    #[inline(always)]
    unsafe fn load_cells<C: Configuration>(&mut self, args: &AtaArgs, row: usize, row_of_strip: u32) {
        // SAFETY: as required of the caller.
        self.cells[row] = unsafe { self.used.of_row(row_of_strip).load_cells::<C, WORDS>(args) };
    }

    /// Starts the loads of X.
    ///
    /// # Safety
    /// The tile is one of the matrix that X is multiplied by, or none.
    #[inline(always)]
    unsafe fn load_x(&mut self, frames: &[FrameRow; VECTORS]) {
        if self.used.is_some() {
            for vector in 0..VECTORS {
                // SAFETY: what is beyond n reads as zero.
                self.x[vector] = unsafe { frames[vector].load(self.used.column()) };
            }
        }
    }
}

/// The product, on the unit `U`. `WORDS`, `ROWS` and `VECTORS` are those of the configuration: registers of a lane's
/// cells, pair rows of a block, and vectors of a lane.
///
/// # Safety
/// The launch is that of configuration `C`, and `args` describes its tensors and a matrix of its precision.
#[inline(always)]
pub unsafe fn product<U: Unit<C>, C: Configuration, const WORDS: usize, const ROWS: usize, const VECTORS: usize>(
    args: &AtaArgs,
) {
    griddepcontrol::launch_dependents();
    let place = BlockCoord::of_block::<C>(args, thread::block_idx_x());
    // SAFETY: `args` describes the matrix, and all threads are here.
    unsafe { place.store_epilogue_args::<C>(args) };
    let row_of_strip = |row: usize| place.first_pair_row + row as u32;
    let load_cells = |stage: &mut Stage<WORDS, ROWS, VECTORS>| {
        for row in 0..ROWS {
            // SAFETY: the tile is one of the strip. The matrix was there before any kernel that uses it, so that it is
            // loaded before the wait.
            unsafe { stage.load_cells::<C>(args, row, row_of_strip(row)) };
        }
    };
    let frames_of = |place: &BlockCoord| {
        let mut frames = [FrameRow::EMPTY; VECTORS];
        for vector in 0..VECTORS {
            frames[vector] = FrameRow::new(args, place, place.first_frame + U::frame(vector));
        }
        frames
    };
    let mut sums = [[U::ZERO; VECTORS]; ROWS];
    let (mut stage, mut next, mut work_list, frames);
    // SAFETY: `args` describes the matrix; X is loaded after the wait. All lanes of the warp take the same tiles
    // together.
    unsafe {
        if takes_two::<C>(args) {
            if add_two::<U, C, WORDS, ROWS, VECTORS>(args, &place, &mut sums) {
                // What the others need is found out again, and in no register before.
                let place = BlockCoord::of_block::<C>(args, hint::opaque(thread::block_idx_x()));
                frames = frames_of(&place);
                let ([first, second], others) = WorkList::after_two(args, &place);
                (stage, next, work_list) = (Stage::of_tile(first), second, others);
                load_cells(&mut stage);
            } else {
                frames = [FrameRow::EMPTY; VECTORS];
                (stage, next, work_list) = (Stage::of_tile(TileRef::NONE), TileRef::NONE, WorkList::<C>::EMPTY);
            }
        } else {
            let first_two =
                if const { C::CONFIG.prefetches_two() } { WorkList::of_kind_prefixes } else { WorkList::of_prefix };
            let ([first, second], others) = first_two(args, &place);
            frames = frames_of(&place);
            (stage, next, work_list) = (Stage::of_tile(first), second, others);
            load_cells(&mut stage);
            // Every thread waits before it reads X or writes Y.
            griddepcontrol::wait();
        }
        stage.load_x(&frames);
        while stage.used.is_some() {
            let used = core::mem::replace(&mut stage.used, next);
            let x = stage.x.map(|x| U::operand(args, x));
            stage.load_x(&frames);
            for row in 0..ROWS {
                let of_row = used.of_row(row_of_strip(row));
                add_pairs::<U, C, WORDS, VECTORS>(&mut sums[row], &of_row, &stage.cells[row], &x);
                if stage.used.is_some() {
                    stage.load_cells::<C>(args, row, row_of_strip(row));
                }
            }
            next = work_list.load(args);
        }
        let to = WarpSums::<C>::of_warp();
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                U::store(&to, row, vector, sums[row][vector]);
            }
        }
        store_result::<C>(args);
    }
}
