//! The product of a tile on `mma.sync`, for sm_80 and later.
//!
//! ```text
//! start the copies of the first stages
//! for each stage of k:
//!     for each step of 32 bytes of k in it:
//!         load the fragments of the next step         from the next stage at the last step
//!         at the first step: start the copies of the stage that is `stages - 1` ahead
//!         multiply the fragments of this step         each warp: warp_m by warp_n sums in registers
//! sums -> shared memory -> D                          see epilogue.rs
//! ```
//!
//! 1. Fragments come from two sets of registers, so that the loads of one step run beside the products of the step
//!    before.
//! 2. One barrier a stage, before the first fragments of the next stage are read, says two things: this stage has
//!    arrived for every thread, and all warps have read the stage before it, whose place the next copies take.
//! 3. The copies of stages beyond the last k are made all the same, as zeros without a read: the loop has no branches,
//!    and no fragment is read that was not written.
//! 4. Tiles lie swizzled in shared memory in the order of the operand; `ldmatrix` transposes on the way where that
//!    order is not that of `mma`. So all four layouts cost the same.
//! 5. Operands whose rows do not start on 16-byte boundaries pass through registers by single elements ([`any`]). The
//!    elements of the next stage are loaded before the products of this one and stored after them.
//!
//! Budget: a warp of 64x64 has 128 sums, 64 registers of fragments and some 40 of addresses a thread; shared memory is
//! the configuration's [`variants::gemm::GemmConfig::smem`] map.

use cuda_std::ptx::cp_async;
use cuda_std::shared::{self, SharedAddr};
use cuda_std::thread;
use layout::SmemRegion;
use variants::gemm::{Accumulation, CHUNK_BYTES, GEMM, GemmArgs};

use crate::copy::{ChunkCopy, ElementCopy, Range};
use crate::epilogue;
use crate::fragments::{Fragments, Side, TileShape};
use crate::multiply::{Multiply, Sums};
use crate::work::{Work, wait_for_dependencies, warp};

/// Chunks of 16 bytes of A and B that a thread of configuration `id` copies for each stage.
pub(crate) const fn chunks(id: usize) -> [usize; 2] {
    let tile = GEMM[id].tile;
    let per_thread = CHUNK_BYTES * GEMM[id].threads() as usize;
    [tile.m * GEMM[id].k_bytes() / per_thread, tile.n * GEMM[id].k_bytes() / per_thread]
}

/// Elements of A and B that a thread of configuration `id` copies for each stage.
pub(crate) const fn elements(id: usize) -> [usize; 2] {
    let tile = GEMM[id].tile;
    let threads = GEMM[id].threads() as usize;
    [tile.m * tile.k / threads, tile.n * tile.k / threads]
}

const fn tile_shape(id: usize, side: Side) -> TileShape {
    let config = &GEMM[id];
    let (major, swizzle) = match side {
        Side::A => (config.tile_layout().a(), config.a_swizzle()),
        Side::B => (config.tile_layout().b(), config.b_swizzle()),
    };
    TileShape { side, major, swizzle, k: config.tile.k as u32, element_bytes: config.a.size_bytes() as u32 }
}

/// The fragments of one step.
#[derive(Clone, Copy)]
struct Step<const A: usize, const B: usize> {
    a: [[u32; 4]; A],
    b: [[u32; 4]; B],
}

/// Where the warp's fragments are.
#[derive(Clone, Copy)]
struct WarpTile {
    a: Fragments,
    b: Fragments,
}

impl WarpTile {
    #[inline(always)]
    fn of_warp<const ID: usize>() -> Self {
        let warps_n = const { GEMM[ID].tile.warps[1] as u32 };
        let (warp_row, warp_column) = (warp() / warps_n, warp() % warps_n);
        Self {
            a: Fragments::new(const { tile_shape(ID, Side::A) }, warp_row * const { GEMM[ID].warp_m() as u32 }),
            b: Fragments::new(const { tile_shape(ID, Side::B) }, warp_column * const { GEMM[ID].warp_n() as u32 }),
        }
    }

    /// Loads the fragments of a step.
    ///
    /// # Safety
    /// As [`Fragments::load`].
    #[inline(always)]
    unsafe fn load<const A: usize, const B: usize>(self, [a, b]: [SharedAddr; 2], step: u32) -> Step<A, B> {
        // SAFETY: the caller's contract.
        unsafe {
            Step {
                a: core::array::from_fn(|index| self.a.load(a, index as u32, step)),
                b: core::array::from_fn(|index| self.b.load(b, index as u32, step)),
            }
        }
    }
}

/// Adds the products of a step.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
unsafe fn multiply<E: Multiply, const A: usize, const B: usize>(sums: &mut Sums<A, B>, step: &Step<A, B>) {
    for row in 0..A {
        for column in 0..B {
            let [b0, b1, b2, b3] = step.b[column];
            // SAFETY: the caller's contract.
            unsafe {
                sums[row][column][0] = E::multiply(step.a[row], [b0, b1], sums[row][column][0]);
                sums[row][column][1] = E::multiply(step.a[row], [b2, b3], sums[row][column][1]);
            }
        }
    }
}

/// Adds the sums of a stage to those of the stages before, and clears them.
#[inline(always)]
fn promote<const A: usize, const B: usize>(totals: &mut Sums<A, B>, sums: &mut Sums<A, B>) {
    for row in 0..A {
        for column in 0..B {
            for half in 0..2 {
                for register in 0..4 {
                    totals[row][column][half][register] += sums[row][column][half][register];
                    sums[row][column][half][register] = 0.0;
                }
            }
        }
    }
}

/// The addresses of a stage of A and B.
#[inline(always)]
fn stages_at(regions: [SmemRegion; 2], stage: u32) -> [SharedAddr; 2] {
    regions.map(|region| shared::dynamic().offset(region.offset_bytes).offset(stage * region.stage_stride_bytes()))
}

const fn regions(id: usize) -> [SmemRegion; 2] {
    [GEMM[id].smem().get("a"), GEMM[id].smem().get("b")]
}

/// What the block reads of A and B.
#[inline(always)]
fn ranges(args: &GemmArgs, work: &Work) -> [Range; 2] {
    let (first_k, end_k) = work.k_range(args);
    let range = |first_mn, end_mn| Range { batch: work.batch, first_mn, end_mn, first_k, end_k };
    [range(work.first_row, args.m), range(work.first_column, args.n)]
}

/// # Safety
/// The launch is that of configuration `ID`, of whose tile and types the parameters are, and `args` describes its
/// tensors.
#[inline(always)]
pub(crate) unsafe fn product<
    E: Multiply,
    const ID: usize,
    const A: usize,
    const B: usize,
    const A_CHUNKS: usize,
    const B_CHUNKS: usize,
>(
    args: &GemmArgs,
) {
    const { assert!(E::A as u8 == GEMM[ID].a as u8 && E::B as u8 == GEMM[ID].b as u8) };
    let (tile, threads) = const { (GEMM[ID].tile, GEMM[ID].threads()) };
    let steps = const { GEMM[ID].k_steps() as u32 };
    let two_level = const { matches!(GEMM[ID].accumulation, Accumulation::TwoLevel) };
    let stage_count = tile.stages as u32;
    let work = Work::of_block(args, const { &GEMM[ID] });
    let [a_range, b_range] = ranges(args, &work);
    let a_shape = const { tile_shape(ID, Side::A) };
    let b_shape = const { tile_shape(ID, Side::B) };
    let mut a_copy = ChunkCopy::<A_CHUNKS>::new(&args.a, a_shape, tile.m as u32, threads, a_range);
    let mut b_copy = ChunkCopy::<B_CHUNKS>::new(&args.b, b_shape, tile.n as u32, threads, b_range);
    let regions = const { regions(ID) };
    let warp_tile = WarpTile::of_warp::<ID>();
    let mut sums: Sums<A, B> = [[[[0.0; 4]; 2]; B]; A];
    let mut totals: Sums<A, B> = [[[[0.0; 4]; 2]; B]; A];
    // SAFETY: the whole block takes the same steps, so that its threads meet at every barrier and copy; the barriers
    // order the uses of the stages as the comments say.
    unsafe {
        wait_for_dependencies();
        let mut copy = |stage: u32| {
            let [a, b] = stages_at(regions, stage);
            a_copy.start(a);
            b_copy.start(b);
            cp_async::commit_group();
        };
        for stage in 0..stage_count - 1 {
            copy(stage);
        }
        wait_for_stage(stage_count);
        // The first stage is there for every thread.
        thread::sync_threads();
        let (mut read_stage, mut write_stage) = (0, stage_count - 1);
        let mut fragments = [warp_tile.load(stages_at(regions, 0), 0); 2];
        let mut k_left = a_range.end_k as i32 - a_range.first_k as i32;
        while k_left > 0 {
            for step in 0..steps {
                if step + 1 == steps {
                    wait_for_stage(stage_count);
                    // The next stage is there for every thread, and every warp has read all of this one.
                    thread::sync_threads();
                    read_stage = if read_stage + 1 == stage_count { 0 } else { read_stage + 1 };
                }
                let next = (step + 1) % steps;
                fragments[(next % 2) as usize] = warp_tile.load(stages_at(regions, read_stage), next);
                if step == 0 {
                    copy(write_stage);
                    write_stage = if write_stage + 1 == stage_count { 0 } else { write_stage + 1 };
                }
                multiply::<E, A, B>(&mut sums, &fragments[(step % 2) as usize]);
            }
            if two_level {
                promote(&mut totals, &mut sums);
            }
            k_left -= tile.k as i32;
        }
        cp_async::wait_group::<0>();
        // Every copy is done and every fragment read: shared memory is free for the sums.
        thread::sync_threads();
        epilogue::store::<ID, A, B>(args, if two_level { totals } else { sums });
    }
}

/// Waits until the oldest stage in flight is there, for this thread's copies. Stages are at most four.
#[inline(always)]
fn wait_for_stage(stages: u32) {
    match stages {
        2 => cp_async::wait_group::<0>(),
        3 => cp_async::wait_group::<1>(),
        _ => cp_async::wait_group::<2>(),
    }
}

/// As [`product`], for operands of any strides and alignment.
///
/// # Safety
/// As [`product`].
#[inline(always)]
pub(crate) unsafe fn any<
    E: Multiply,
    const ID: usize,
    const A: usize,
    const B: usize,
    const A_ELEMENTS: usize,
    const B_ELEMENTS: usize,
>(
    args: &GemmArgs,
) {
    const { assert!(E::A as u8 == GEMM[ID].a as u8 && E::B as u8 == GEMM[ID].b as u8) };
    let (tile, threads) = const { (GEMM[ID].tile, GEMM[ID].threads()) };
    let work = Work::of_block(args, const { &GEMM[ID] });
    let [a_range, b_range] = ranges(args, &work);
    let a_shape = const { tile_shape(ID, Side::A) };
    let b_shape = const { tile_shape(ID, Side::B) };
    let mut a_copy = ElementCopy::<A_ELEMENTS>::new(&args.a, a_shape, tile.m as u32, threads, a_range);
    let mut b_copy = ElementCopy::<B_ELEMENTS>::new(&args.b, b_shape, tile.n as u32, threads, b_range);
    let regions = const { regions(ID) };
    let warp_tile = WarpTile::of_warp::<ID>();
    let mut sums: Sums<A, B> = [[[[0.0; 4]; 2]; B]; A];
    let mut stage = 0;
    let mut k_left = a_range.end_k as i32 - a_range.first_k as i32;
    // SAFETY: the whole block takes the same steps, so that its threads meet at every barrier; a stage is stored two
    // barriers after the products that read it.
    unsafe {
        wait_for_dependencies();
        let (a, b) = (a_copy.load(), b_copy.load());
        let [a_stage, b_stage] = stages_at(regions, 0);
        a_copy.store(a_stage, a);
        b_copy.store(b_stage, b);
        // The first stage is stored.
        thread::sync_threads();
        while k_left > 0 {
            let (next_a, next_b) = (a_copy.load(), b_copy.load());
            for step in 0..const { GEMM[ID].k_steps() as u32 } {
                multiply::<E, A, B>(&mut sums, &warp_tile.load(stages_at(regions, stage), step));
            }
            stage ^= 1;
            let [a_stage, b_stage] = stages_at(regions, stage);
            a_copy.store(a_stage, next_a);
            b_copy.store(b_stage, next_b);
            // The next stage is stored, and every warp has read this one.
            thread::sync_threads();
            k_left -= tile.k as i32;
        }
        epilogue::store::<ID, A, B>(args, sums);
    }
}
