//! What the steps share: their operands and barriers in shared memory, and the way of the accumulators to memory.

use cuda_std::ptx::wgmma::{Accumulator, Product};
use cuda_std::shared::{self, SharedAddr};
use cuda_std::{global, thread};
use layout::SmemLayout;
use layout::descriptor::{Descriptor, Operand};
use layout::fragment::wgmma_d;
use variants::ladder::{LADDER, LadderSizes, WARPGROUP};

/// What a warpgroup of step `ID` multiplies.
pub(crate) enum Tiles<const ID: usize> {}

impl<const ID: usize> Product for Tiles<ID> {
    const A: Operand = LADDER[ID].a();
    const B: Operand = LADDER[ID].b();
}

/// The shared memory of a block.
#[derive(Clone, Copy)]
pub(crate) struct Smem<const ID: usize> {
    base: SharedAddr,
}

impl<const ID: usize> Smem<ID> {
    const MAP: SmemLayout = LADDER[ID].smem();

    /// That of this block.
    #[inline(always)]
    pub(crate) fn of_block() -> Self {
        Self { base: shared::dynamic() }
    }

    #[inline(always)]
    fn region(self, name: &str, stage: u32) -> SharedAddr {
        self.base.offset(Self::MAP.get(name).stage_offset(stage))
    }

    /// A stage of A.
    #[inline(always)]
    pub(crate) fn a(self, stage: u32) -> SharedAddr {
        self.region("a", stage)
    }

    /// A stage of B.
    #[inline(always)]
    pub(crate) fn b(self, stage: u32) -> SharedAddr {
        self.region("b", stage)
    }

    /// A buffer for C.
    #[inline(always)]
    pub(crate) fn c(self, buffer: u32) -> SharedAddr {
        self.region("c", buffer)
    }

    /// The mbarrier on which the copies to a stage complete.
    #[inline(always)]
    pub(crate) fn full(self, stage: u32) -> SharedAddr {
        self.region("full", stage)
    }

    /// The mbarrier on which the readers of a stage arrive.
    #[inline(always)]
    pub(crate) fn empty(self, stage: u32) -> SharedAddr {
        self.region("empty", stage)
    }

    /// What a consumer warpgroup multiplies in a stage: its rows of A, and B.
    #[inline(always)]
    pub(crate) fn operands(self, stage: u32, consumer: u32) -> (Descriptor, Descriptor) {
        let step = const { LADDER[ID] };
        let of_consumer = const { step_rows_bytes::<ID>() };
        let a = const { Tiles::<ID>::A.descriptor(0) }.offset(self.a(stage).as_raw() + consumer * of_consumer);
        let b = const { Tiles::<ID>::B.descriptor(0) }.offset(self.b(stage).as_raw());
        debug_assert!(consumer < step.consumers);
        (a, b)
    }
}

/// The distance between the rows of A of two consumers.
const fn step_rows_bytes<const ID: usize>() -> u32 {
    if LADDER[ID].consumers == 1 { 0 } else { LADDER[ID].a().mn_offset_bytes(LADDER[ID].consumer_rows()) }
}

/// Writes the accumulators of a warpgroup, whose first element of C is at (`row`, `column`), from registers.
///
/// A quad of lanes writes 32 bytes of a row: a sector of memory.
///
/// # Safety
/// The warpgroup calls it; the products have been waited for; C has the rows and columns.
#[inline(always)]
pub(crate) unsafe fn write<const R: usize>(d: &[f32; R], c: *mut f32, sizes: LadderSizes, row: u32, column: u32)
where
    [f32; R]: Accumulator,
{
    let (in_row, in_column) = wgmma_d(thread::thread_idx_x() % WARPGROUP, 0);
    // SAFETY: as required of the caller. Each address is even, as `n` and `in_column` are.
    unsafe {
        let first = c.add((row + in_row) as usize * sizes.n as usize + (column + in_column) as usize);
        let below = first.add(8 * sizes.n as usize);
        for i in 0..R / 4 {
            global::store(first.add(8 * i).cast(), [d[4 * i].to_bits(), d[4 * i + 1].to_bits()]);
            global::store(below.add(8 * i).cast(), [d[4 * i + 2].to_bits(), d[4 * i + 3].to_bits()]);
        }
    }
}
