//! A consumer warpgroup: its place in the block, and its side of the pipelines of Q, K and V.

use cuda_std::ptx::wgmma::Product;
use cuda_std::ptx::{barrier, fence, mbarrier};
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use layout::SmemRegion;
use layout::descriptor::Descriptor;
use variants::attention::{AttentionArgs, DescaleArgs, WARP_ROWS, WARPGROUP_ROWS, WARPGROUP_THREADS};

use crate::input::Input;
use crate::lane::{lane, warp};
use crate::sm90::config::{Config, PvProduct, QkFromRegisters};
use crate::sm90::kv_split;
use crate::sm90::pipeline::PipelineState;
use crate::sm90::product::stage_descriptor;
use crate::softmax::ScoreScale;

/// A consumer warpgroup: its place in the block and in the pipeline of K and V.
pub(crate) struct Warpgroup<'a, const ID: usize, const STAGES: u32> {
    pub(crate) args: &'a AttentionArgs,
    descales: Option<&'a DescaleArgs>,
    pub(crate) base: SharedAddr,
    /// Its number among the consumers of the block.
    pub(crate) number: u32,
    /// The number of the warpgroup along M: which 64 rows of a tile it has.
    pub(crate) m_warpgroup: u32,
    /// Which of the split-KV warpgroups of these rows.
    pub(crate) kv_warpgroup: u32,
    /// Where the bias of its first warp is.
    bias_tiles: SharedAddr,
    pub(crate) scale: ScoreScale,
    /// Where K and V of the current step are: in the same stage of their pipelines.
    pub(crate) state: PipelineState<STAGES>,
}

impl<'a, const ID: usize, const STAGES: u32> Warpgroup<'a, ID, STAGES> {
    #[inline(always)]
    pub(crate) fn new(
        args: &'a AttentionArgs,
        descales: Option<&'a DescaleArgs>,
        base: SharedAddr,
        number: u32,
    ) -> Self {
        let split_kv = const { Config::<ID>::SPLIT_KV_WARPGROUPS };
        Self {
            args,
            descales,
            base,
            number,
            m_warpgroup: number / split_kv,
            kv_warpgroup: number % split_kv,
            bias_tiles: base
                .offset(Config::<ID>::BIAS.stage_offset(number * const { WARPGROUP_ROWS / WARP_ROWS } as u32)),
            scale: ScoreScale::new(args),
            state: PipelineState::CONSUMER,
        }
    }

    /// Which of the splits of the keys it has, numbered through all blocks of its cluster.
    #[inline(always)]
    pub(crate) fn kv_split(&self) -> u32 {
        kv_split::rank::<ID>() * const { Config::<ID>::SPLIT_KV_WARPGROUPS } + self.kv_warpgroup
    }

    /// The warp's first row in a tile.
    #[inline(always)]
    pub(crate) fn warp_row(&self) -> u32 {
        warp_row(self.m_warpgroup)
    }

    #[inline(always)]
    pub(crate) fn at(&self, region: SmemRegion, stage: u32) -> SharedAddr {
        self.base.offset(region.stage_offset(stage))
    }

    #[inline(always)]
    pub(crate) fn k_tile<E: Input>(&self, stage: u32) -> Descriptor {
        let first = const { QkFromRegisters::<E, ID>::B.descriptor(Config::<ID>::K.offset_bytes) };
        stage_descriptor(first, Config::<ID>::K, self.base, stage)
    }

    #[inline(always)]
    pub(crate) fn v_tile<E: Input>(&self, stage: u32) -> Descriptor {
        let first = const { PvProduct::<E, ID>::B.descriptor(Config::<ID>::V.offset_bytes) };
        stage_descriptor(first, Config::<ID>::V, self.base, stage)
    }

    /// Where the bias of the warp's rows is.
    #[inline(always)]
    pub(crate) fn bias_tile(&self) -> SharedAddr {
        self.bias_tiles.offset(warp() % 4 * Config::<ID>::BIAS.stage_stride_bytes())
    }

    /// What O is multiplied by before it is rounded to E4M3; `None` where O has the element type of the configuration.
    #[inline(always)]
    pub(crate) fn out_scale(&self) -> Option<f32> {
        match self.descales {
            Some(descales) if Config::<ID>::MAY_NARROW_OUT && descales.out_scale != 0.0 => Some(descales.out_scale),
            _ => None,
        }
    }

    /// Waits for the phase of `parity` of a barrier.
    ///
    /// # Safety
    /// The barriers are initialised.
    #[inline(always)]
    pub(crate) unsafe fn wait(&self, full: SmemRegion, stage: u32, parity: u32) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::wait_parity(self.at(full, stage), parity) };
    }

    /// Leaves a buffer of Q.
    ///
    /// # Safety
    /// All lanes of the warp call it together, once a tile, when they have read the buffer.
    #[inline(always)]
    pub(crate) unsafe fn release(&self, empty: SmemRegion, stage: u32) {
        // SAFETY: the caller's contract.
        unsafe { mbarrier::arrive_if(self.at(empty, stage), lane() == 0) };
    }

    /// Leaves a buffer of K or V, to the producers of all blocks that copy to it.
    ///
    /// # Safety
    /// As [`Self::release`], once a step.
    #[inline(always)]
    pub(crate) unsafe fn release_kv(&self, empty: SmemRegion, stage: u32) {
        let blocks = const { Config::<ID>::MULTICAST_CTAS };
        // SAFETY: the caller's contract.
        unsafe {
            if blocks > 1 {
                mbarrier::arrive_cluster_if(self.at(empty, stage), lane() % blocks, lane() < blocks);
            } else {
                self.release(empty, stage);
            }
        }
    }

    /// Leaves a buffer of V: to all blocks that copy to it, or to the warps of this block that transpose V.
    ///
    /// # Safety
    /// As [`Self::release_kv`].
    #[inline(always)]
    pub(crate) unsafe fn release_v(&self, stage: u32) {
        // SAFETY: the caller's contract.
        unsafe {
            if const { Config::<ID>::TRANSPOSES_VALUES } {
                self.release(Config::<ID>::V_EMPTY, stage);
            } else {
                self.release_kv(Config::<ID>::V_EMPTY, stage);
            }
        }
    }

    /// Goes past a step that only rows of other warpgroups see.
    ///
    /// # Safety
    /// As [`Self::release_kv`].
    #[inline(always)]
    pub(crate) unsafe fn skip_step(&mut self) {
        let state = self.state;
        // SAFETY: the caller's contract.
        unsafe {
            self.wait(Config::<ID>::K_FULL, state.stage(), state.parity());
            self.release_kv(Config::<ID>::K_EMPTY, state.stage());
            self.wait(Config::<ID>::V_FULL, state.stage(), state.parity());
            self.release_v(state.stage());
        }
        self.state = state.next();
    }

    /// Waits for K of the step at `state`.
    ///
    /// # Safety
    /// As [`Self::wait`].
    #[inline(always)]
    pub(crate) unsafe fn wait_for_k(&self, state: PipelineState<STAGES>) {
        // SAFETY: the caller's contract.
        unsafe { self.wait(Config::<ID>::K_FULL, state.stage(), state.parity()) };
    }
}

/// The warp's first row in a tile, in warpgroup `m_warpgroup`.
#[inline(always)]
pub(crate) fn warp_row(m_warpgroup: u32) -> u32 {
    m_warpgroup * WARPGROUP_ROWS as u32 + warp() % 4 * WARP_ROWS as u32
}

/// Changes the sign of the rows of a warpgroup along M in the tile of Q, for a negative scale. One of the split-KV
/// warpgroups of the rows writes.
///
/// # Safety
/// All consumers call it together, once a tile, before they use Q.
#[inline(always)]
pub(crate) unsafe fn negate_rows<const ID: usize>(tile: SharedAddr, m_warpgroup: u32, writes: bool) {
    let signs = const { if Config::<ID>::ELEMENT_BYTES == 1 { 0x8080_8080 } else { 0x8000_8000 } };
    let group_bytes = const { WARPGROUP_ROWS as u32 * Config::<ID>::SWIZZLE.row_bytes() };
    let thread = thread::thread_idx_x() % WARPGROUP_THREADS;
    // SAFETY: the rows of a warpgroup are adjacent in each panel, and no other warpgroup uses them; the fence and the
    // barrier order the stores before the products.
    unsafe {
        for panel in 0..if writes { Config::<ID>::PANELS } else { 0 } {
            let rows = panel * (Config::<ID>::M * Config::<ID>::SWIZZLE.row_bytes()) + m_warpgroup * group_bytes;
            let mut offset = 16 * thread;
            while offset < group_bytes {
                let place = tile.offset(rows + offset);
                let words: [u32; 4] = place.load();
                place.store(words.map(|pair| pair ^ signs));
                offset += 16 * WARPGROUP_THREADS;
            }
        }
        fence::proxy_async_shared();
        sync_consumers::<ID>();
    }
}

/// Waits for all consumer warpgroups.
///
/// # Safety
/// All consumers call it together.
#[inline(always)]
pub(crate) unsafe fn sync_consumers<const ID: usize>() {
    // SAFETY: the caller's contract.
    unsafe {
        match const { Config::<ID>::TILE.consumers() } {
            1 => barrier::sync::<1, WARPGROUP_THREADS>(),
            2 => barrier::sync::<1, { 2 * WARPGROUP_THREADS }>(),
            3 => barrier::sync::<1, { 3 * WARPGROUP_THREADS }>(),
            _ => barrier::sync::<1, { 4 * WARPGROUP_THREADS }>(),
        }
    }
}
