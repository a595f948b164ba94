//! The shared memory of a block on `wgmma`, and the operands that a consumer reads there.

use cuda_std::ptx::wgmma::Product;
use cuda_std::shared::{self, SharedAddr};
use layout::SmemLayout;
use layout::descriptor::{Descriptor, Operand};
use variants::gemm::wgmma::{CONSUMER_ROWS, Side};
use variants::gemm::{GEMM, GemmConfig};

/// What a consumer of configuration `ID` multiplies.
pub(crate) enum Tiles<const ID: usize> {}

impl<const ID: usize> Product for Tiles<ID> {
    const A: Operand = GEMM[ID].operand(Side::A);
    const B: Operand = GEMM[ID].operand(Side::B);
}

/// The shared memory of a block.
#[derive(Clone, Copy)]
pub(crate) struct Smem<const ID: usize> {
    base: SharedAddr,
}

impl<const ID: usize> Smem<ID> {
    const MAP: SmemLayout = GEMM[ID].smem();

    /// The shared memory of this block.
    #[inline(always)]
    pub(crate) fn of_block() -> Self {
        Self { base: shared::dynamic() }
    }

    /// A stage of a region of the map.
    #[inline(always)]
    pub(crate) fn region(self, name: &str, stage: u32) -> SharedAddr {
        self.base.offset(Self::MAP.get(name).stage_offset(stage))
    }

    /// A buffer for D.
    #[inline(always)]
    pub(crate) fn d(self, buffer: u32) -> SharedAddr {
        self.region("d", buffer)
    }

    /// The mbarrier that the copies to a stage arrive at.
    #[inline(always)]
    pub(crate) fn full(self, stage: u32) -> SharedAddr {
        self.region("full", stage)
    }

    /// The mbarrier that the consumers of a stage arrive at.
    #[inline(always)]
    pub(crate) fn empty(self, stage: u32) -> SharedAddr {
        self.region("empty", stage)
    }

    /// What a consumer multiplies in a stage.
    #[inline(always)]
    pub(crate) fn operands(self, stage: u32, consumer: u32) -> (Descriptor, Descriptor) {
        let of_consumer = const { consumer_offset_bytes(&GEMM[ID]) };
        let a =
            const { Tiles::<ID>::A.descriptor(0) }.offset(self.region("a", stage).as_raw() + consumer * of_consumer);
        let b = const { Tiles::<ID>::B.descriptor(0) }.offset(self.region("b", stage).as_raw());
        (a, b)
    }
}

/// The distance between the rows of A of two consumers.
const fn consumer_offset_bytes(config: &GemmConfig) -> u32 {
    if config.consumers() == 1 { 0 } else { config.operand(Side::A).mn_offset_bytes(CONSUMER_ROWS) }
}
