//! Steps 1 and 2: a warpgroup copies tiles of A and B to shared memory and multiplies them.
//!
//! ```text
//! step 1, K = 16                             step 2
//!                                            for each 64 columns of A and B
//! copy A and B in 16-byte units                  copy A and B, each unit to its swizzled place
//! fence, barrier of the block                    fence, barrier of the block
//! d = A B^T, one wgmma                           d += A B^T, four wgmma
//! wait                                           wait, barrier of the block
//! c = d                                      c = d
//! ```
//!
//! - The fence stands between two proxies: the copies are ordinary stores, and `wgmma` reads by another way.
//! - Without the second barrier a fast warp overwrites what the `wgmma` of the others still reads.

use cuda_std::ptx::fence;
use cuda_std::ptx::wgmma::{self, Accumulator, Product};
use cuda_std::shared::SharedAddr;
use cuda_std::{global, thread};
use layout::descriptor::Operand;
use variants::ladder::{LADDER, LadderSizes};

use crate::tile::{Smem, Tiles, write};

/// Bytes that one thread copies at a time.
const UNIT_BYTES: u32 = 16;

/// Copies `rows` rows of a row-major matrix of `k` columns, from `from` on, to the tile of `operand`.
///
/// # Safety
/// The whole block calls it; the matrix has the rows and as many columns as a stage, from `from` on, on 16-byte
/// boundaries.
#[inline(always)]
unsafe fn copy<const ID: usize>(operand: Operand, rows: u32, to: SharedAddr, from: *const u16, k: u32) {
    let step = const { LADDER[ID] };
    let unit_elems = UNIT_BYTES / size_of::<u16>() as u32;
    let units_of_row = step.k / unit_elems;
    let rounds = rows * units_of_row / step.threads();
    for round in 0..rounds {
        let unit = round * step.threads() + thread::thread_idx_x();
        let (row, column) = (unit / units_of_row, unit % units_of_row * unit_elems);
        // SAFETY: as required of the caller; the tile has room for all units.
        unsafe {
            let words: [u32; 4] = global::load_nc(from.add(row as usize * k as usize + column as usize).cast());
            to.offset(operand.offset_bytes(row, column)).store(words);
        }
    }
}

/// Copies the tiles of the block from column `k` of A and B on, and makes them visible to `wgmma`.
///
/// # Safety
/// The whole block calls it, and nothing reads the tiles; the matrices have the columns.
#[inline(always)]
unsafe fn copy_tiles<const ID: usize>(a: *const u16, b: *const u16, sizes: LadderSizes, k: u32) {
    let step = const { LADDER[ID] };
    let smem = Smem::<ID>::of_block();
    let (row, column) = const { LADDER[ID] }.tile_of(thread::block_idx_x(), sizes);
    let first = |row: u32| row as usize * sizes.k as usize + k as usize;
    // SAFETY: as required of the caller.
    unsafe {
        copy::<ID>(Tiles::<ID>::A, step.m, smem.a(0), a.add(first(row)), sizes.k);
        copy::<ID>(Tiles::<ID>::B, step.n, smem.b(0), b.add(first(column)), sizes.k);
        fence::proxy_async_shared();
        thread::sync_threads();
    }
}

/// Computes one tile of C, whose products have as many terms as one `wgmma` takes.
///
/// # Safety
/// As for the entry; K is the stage.
#[inline(always)]
pub(crate) unsafe fn single<const ID: usize, const R: usize, const K_STEPS: usize>(
    a: *const u16,
    b: *const u16,
    c: *mut f32,
    sizes: LadderSizes,
) where
    [f32; R]: Accumulator,
{
    // SAFETY: the block's tile is in C, and the tiles are complete when they are multiplied.
    unsafe {
        copy_tiles::<ID>(a, b, sizes, 0);
        let (a_tile, b_tile) = Smem::<ID>::of_block().operands(0, 0);
        let mut d: [f32; R] = wgmma::product::<Tiles<ID>, _, K_STEPS>(a_tile, b_tile);
        wgmma::wait_group::<0, _>(&mut d);
        let (row, column) = const { LADDER[ID] }.tile_of(thread::block_idx_x(), sizes);
        write(&d, c, sizes, row, column);
    }
}

/// Computes one tile of C.
///
/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn product<const ID: usize, const R: usize, const K_STEPS: usize>(
    a: *const u16,
    b: *const u16,
    c: *mut f32,
    sizes: LadderSizes,
) where
    [f32; R]: Accumulator,
{
    let mut d = [0.0; R];
    // SAFETY: the block's tile is in C; the barriers order copies and products as the header says.
    unsafe {
        let (a_tile, b_tile) = Smem::<ID>::of_block().operands(0, 0);
        let mut k = 0;
        while k < sizes.k {
            copy_tiles::<ID>(a, b, sizes, k);
            wgmma::mma_async::<Tiles<ID>, _, K_STEPS>(&mut d, a_tile, b_tile, true);
            wgmma::wait_group::<0, _>(&mut d);
            thread::sync_threads();
            k += const { LADDER[ID].k };
        }
        let (row, column) = const { LADDER[ID] }.tile_of(thread::block_idx_x(), sizes);
        write(&d, c, sizes, row, column);
    }
}
