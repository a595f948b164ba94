//! From the accumulators of a consumer warpgroup to D: finished, rounded, gathered in shared memory and stored by TMA.
//!
//! A consumer has swizzled buffers of 64 rows of 128 bytes for a whole tile, and TMA stores them while the next tile is
//! multiplied. Where blocks have one tile or two ([`GemmConfig::warps_store`]) each warp stores its own rows at once.
//! Anything beyond a factor and rounding to 16 bits is done group by group, as in the other kernels, from f32 in the
//! same buffers.
//!
//! [`GemmConfig::warps_store`]: variants::gemm::GemmConfig::warps_store

use cuda_std::convert::{Bf16, Element16, F16};
use cuda_std::hint::opaque;
use cuda_std::ptx::tma::{self, TensorMap};
use cuda_std::ptx::{barrier, fence, stmatrix};
use cuda_std::shared::SharedAddr;
use cuda_std::{thread, warp};
use layout::Dtype;
use layout::fragment::wgmma_d;
use variants::gemm::wgmma::{CONSUMER_ROWS, STORE_COLUMNS, SWIZZLE, WARP_ROWS, WARPGROUP};
use variants::gemm::{CHUNK_BYTES, GEMM, GROUP, GemmArgs};

use crate::output::{Output, Partial, store_rounded};
use crate::smem_sm90::Smem;
use crate::work::LANES;
use crate::work_sm90::Tile;

/// The way of a consumer's tiles to D.
pub(crate) struct Store<'a, const ID: usize> {
    args: &'a GemmArgs,
    /// Whether D is of 16 bits in whole groups, and nothing but alpha is to be applied. TMA writes beyond a row that
    /// ends within a 4-byte word.
    plain: bool,
    alpha: f32,
    smem: Smem<ID>,
    map: *const TensorMap,
    consumer: u32,
}

impl<'a, const ID: usize> Store<'a, ID> {
    /// # Safety
    /// As for the entry.
    #[inline(always)]
    pub(crate) unsafe fn new(args: &'a GemmArgs, smem: Smem<ID>, map: *const TensorMap, consumer: u32) -> Self {
        // SAFETY: the caller's contract.
        let output = unsafe { Output::new(args, 0) };
        let whole_groups = args.aligned != 0 && args.n.is_multiple_of(GROUP as u32);
        let plain = args.splits == 1 && whole_groups && output.is_plain();
        Self { args, plain, alpha: output.alpha, smem, map, consumer }
    }

    /// Waits until the buffers may be written.
    ///
    /// # Safety
    /// The consumer's warpgroup calls it.
    #[inline(always)]
    pub(crate) unsafe fn begin(&self) {
        if const { GEMM[ID].warps_store() } {
            // A warp has read what it put there.
            return;
        }
        // SAFETY: the caller's contract. The thread that starts stores waits for them.
        unsafe {
            if thread_of_consumer() == 0 {
                tma::wait_group_read::<0>();
            }
            self.sync();
        }
    }

    /// Writes the finished elements of a tile to the buffers; what TMA does not store, it stores.
    ///
    /// # Safety
    /// As for [`Self::begin`], which has been called; the products have been waited for.
    #[inline(always)]
    pub(crate) unsafe fn put<const R: usize>(&self, d: &[f32; R], tile: Tile) {
        // SAFETY: the caller's contract.
        unsafe {
            if !self.plain {
                self.store_finished(d, tile);
            } else {
                // Where there is nothing to multiply by, the multiplications are most of the instructions between two
                // tiles.
                match (self.args.d_dtype == Dtype::F16 as u32, self.alpha == 1.0) {
                    (true, true) => self.round::<F16, false, R>(d),
                    (true, false) => self.round::<F16, true, R>(d),
                    (false, true) => self.round::<Bf16, false, R>(d),
                    (false, false) => self.round::<Bf16, true, R>(d),
                }
            }
            if const { GEMM[ID].warps_store() } && self.plain {
                self.store_rows(tile);
            }
        }
    }

    /// Starts the stores of the tile that is in the buffers.
    ///
    /// There is one fence and one barrier for the whole tile: they take longer than what they order.
    ///
    /// # Safety
    /// As for [`Self::begin`]; `tile` has been put into the buffers.
    #[inline(always)]
    pub(crate) unsafe fn end(&self, tile: Tile) {
        if const { GEMM[ID].warps_store() } || !self.plain {
            return;
        }
        // SAFETY: the caller's contract. A box that begins outside D is not stored.
        unsafe {
            fence::proxy_async_shared();
            self.sync();
            if thread_of_consumer() == 0 {
                for part in 0..GEMM[ID].buffers() {
                    let column = tile.first_column + part * STORE_COLUMNS;
                    let place = [column, self.first_row(tile), tile.batch].map(|i| i as i32);
                    tma::store(self.map, place, self.buffer(part));
                }
                tma::commit_group();
            }
        }
    }

    /// The consumer's first row of a tile.
    #[inline(always)]
    fn first_row(&self, tile: Tile) -> u32 {
        tile.first_row + self.consumer * CONSUMER_ROWS
    }

    /// Writes the accumulators, times alpha if it `SCALES`, and rounded to 16 bits, to the buffers.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[inline(always)]
    unsafe fn round<E: Element16, const SCALES: bool, const R: usize>(&self, d: &[f32; R]) {
        let columns = STORE_COLUMNS;
        // The row whose address this lane gives, of four matrices: two under each other, two beside each other.
        let lane = thread_of_consumer() % LANES;
        let row = thread_of_consumer() / LANES * WARP_ROWS + lane % WARP_ROWS;
        for part in 0..GEMM[ID].buffers() {
            let buffer = self.buffer(part);
            // Opaque: LLVM would scale all accumulators ahead of the branch over types, and hold them twice.
            let alpha = f32::from_bits(opaque(self.alpha.to_bits()));
            let finished = |i: usize| if SCALES { d[i] * alpha } else { d[i] };
            for pair in 0..columns / 16 {
                let first = (part * columns / 2 + pair * 8) as usize;
                let registers = [0, 2, 4, 6].map(|i| E::pack(finished(first + i), finished(first + i + 1)));
                let at = SWIZZLE.tile_offset(row, (pair * 16 + lane / WARP_ROWS * 8) * 2, CONSUMER_ROWS);
                // SAFETY: the caller's contract.
                unsafe { stmatrix::x4(buffer.offset(at), registers) };
            }
        }
    }

    /// Stores the rows of the buffers that the warp has written, whole lines of them.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[inline(always)]
    unsafe fn store_rows(&self, tile: Tile) {
        let chunks = const { SWIZZLE.row_bytes() / CHUNK_BYTES as u32 };
        let (warp, lane) = (thread_of_consumer() / LANES, thread_of_consumer() % LANES);
        // SAFETY: the whole warp is here, and its barriers stand before and after the reading of the buffers; the rows
        // of D are aligned, in whole groups.
        unsafe {
            warp::sync_warp(warp::FULL_MASK);
            for part in 0..GEMM[ID].buffers() {
                for step in 0..WARP_ROWS * chunks / LANES {
                    let row = warp * WARP_ROWS + (step * LANES + lane) / chunks;
                    let chunk = lane % chunks;
                    let at = SWIZZLE.tile_offset(row, chunk * CHUNK_BYTES as u32, CONSUMER_ROWS);
                    let elements = self.buffer(part).offset(at).load();
                    let (row, column) =
                        (self.first_row(tile) + row, tile.first_column + part * STORE_COLUMNS + chunk * GROUP as u32);
                    if row < self.args.m && column < self.args.n {
                        store_rounded(self.args, tile.batch, row, column, elements);
                    }
                }
            }
            warp::sync_warp(warp::FULL_MASK);
        }
    }

    /// Gathers the accumulators in rows, and has groups of columns finished and stored, or stores them as partial
    /// sums.
    ///
    /// The loop over the columns is kept a loop, whose rounds pick their accumulators by branches: the code that
    /// finishes elements stands there once.
    ///
    /// # Safety
    /// As for [`Self::put`].
    #[inline(always)]
    unsafe fn store_finished<const R: usize>(&self, d: &[f32; R], tile: Tile) {
        let columns = const { SWIZZLE.row_bytes() / 4 };
        let thread = thread_of_consumer();
        let mut part = opaque(0);
        // SAFETY: the barriers stand between the writing and the reading of the buffer.
        unsafe {
            let output = Output::new(self.args, tile.batch);
            while part < R as u32 * 2 / columns {
                let buffer = self.buffer(part % GEMM[ID].buffers());
                // The columns that the buffer had are read.
                self.sync();
                let thread_of_part = thread_of_consumer();
                for own in 0..R as u32 * 2 / columns {
                    if part == own {
                        for pair in 0..columns / 4 {
                            let (row, column) = wgmma_d(thread_of_part, pair * 2);
                            let at = SWIZZLE.tile_offset(row, column * 4, CONSUMER_ROWS);
                            let i = (own * columns / 2 + pair * 2) as usize;
                            buffer.offset(at).store([d[i].to_bits(), d[i + 1].to_bits()]);
                        }
                    }
                }
                // The columns are complete.
                self.sync();
                let mut group = opaque(thread);
                while group < CONSUMER_ROWS * columns / GROUP as u32 {
                    let (row, column) =
                        (group / (columns / GROUP as u32), group % (columns / GROUP as u32) * GROUP as u32);
                    let at = |column: u32| buffer.offset(SWIZZLE.tile_offset(row, column * 4, CONSUMER_ROWS));
                    let [low, high]: [[u32; 4]; 2] = [at(column).load(), at(column + 4).load()];
                    let sums = core::array::from_fn(|i| f32::from_bits(if i < 4 { low[i] } else { high[i - 4] }));
                    let (row, column) = (self.first_row(tile) + row, tile.first_column + part * columns + column);
                    if row < self.args.m && column < self.args.n {
                        if self.args.splits > 1 {
                            Partial::new(self.args).store(tile.split, tile.batch, row, column, sums);
                        } else {
                            output.store(row, column, sums);
                        }
                    }
                    group += WARPGROUP;
                }
                part += 1;
            }
        }
    }

    /// The barrier of the consumer's warpgroup; number 0 is that of the block.
    ///
    /// # Safety
    /// The whole warpgroup calls it.
    #[inline(always)]
    unsafe fn sync(&self) {
        // SAFETY: as required of the caller.
        unsafe { barrier::sync_numbered::<WARPGROUP>(1 + self.consumer) }
    }

    /// A buffer of the consumer.
    #[inline(always)]
    fn buffer(&self, index: u32) -> SharedAddr {
        self.smem.d(self.consumer * GEMM[ID].buffers() + index)
    }
}

/// This thread in its consumer. Opaque at each call: what is derived from it is computed where it is used, and takes no
/// registers through the loop over k.
#[inline(always)]
fn thread_of_consumer() -> u32 {
    opaque(thread::thread_idx_x()) % WARPGROUP
}
