//! One configuration as constants of a WGMMA kernel.

use cuda_std::ptx::wgmma::Product;
use layout::descriptor::{Major, Operand};
use layout::{SmemLayout, SmemRegion, Swizzle};
use variants::attention::{
    ATTENTION, AttentionKernel, MaskKind, QuerySource, ScoreMod, Seqlens, WIDE_PRODUCER_CONSUMER_REGISTERS, WgmmaTile,
    has_transposed_values,
};
use variants::gemm::Accumulation;

use crate::input::Input;
use crate::softmax::Subtraction;

/// Configuration `ID` of [`ATTENTION`].
pub(crate) enum Config<const ID: usize> {}

impl<const ID: usize> Config<ID> {
    pub(crate) const TILE: WgmmaTile = match ATTENTION[ID].kernel {
        AttentionKernel::Wgmma(tile) => tile,
        _ => panic!("the configuration is not a `wgmma` configuration"),
    };
    /// Query rows of a tile.
    pub(crate) const M: u32 = Self::TILE.m() as u32;
    /// Split-KV warpgroups of a block, which share the rows of a tile.
    pub(crate) const SPLIT_KV_WARPGROUPS: u32 = Self::TILE.split_kv_warpgroups as u32;
    /// Split-KV blocks, which share a tile.
    pub(crate) const SPLIT_KV_CTAS: u32 = Self::TILE.split_kv_ctas as u32;
    /// Blocks that copy K and V together, each a part for all.
    pub(crate) const MULTICAST_CTAS: u32 = Self::TILE.multicast_ctas as u32;
    /// Split-KV warpgroups of all blocks of a tile.
    pub(crate) const KV_SPLITS: u32 = Self::TILE.kv_splits() as u32;
    /// Keys of a step.
    pub(crate) const N: u32 = Self::TILE.n as u32;
    /// Panels of a tile of Q or K.
    pub(crate) const PANELS: u32 = ATTENTION[ID].panels();
    /// Panels of a tile of V, as it is copied.
    pub(crate) const VALUE_PANELS: u32 = ATTENTION[ID].value_panels();
    /// How tiles of Q and K lie.
    pub(crate) const SWIZZLE: Swizzle = ATTENTION[ID].swizzle();
    /// How tiles of V lie, as they are copied.
    pub(crate) const VALUE_SWIZZLE: Swizzle = ATTENTION[ID].value_swizzle();
    /// Bytes of an element of Q, K and V.
    pub(crate) const ELEMENT_BYTES: u32 = ATTENTION[ID].dtype.size_bytes() as u32;
    /// Whether the producer transposes V on the way.
    pub(crate) const TRANSPOSES_VALUES: bool = has_transposed_values(ATTENTION[ID].dtype);
    /// Whether P V of a few steps is a sum of its own, which is added to O in f32: see `two_level.rs`.
    pub(crate) const TWO_LEVEL: bool = matches!(Self::TILE.accumulation, Accumulation::TwoLevel);
    /// Whether every step may be masked, and not the last alone.
    pub(crate) const MASKED: bool = matches!(Self::TILE.mask, MaskKind::Masked);
    /// Whether scores are bounded, and a bias is added, where the launch says so.
    pub(crate) const GENERAL: bool = matches!(ATTENTION[ID].score_mod, ScoreMod::General);
    /// Whether scores are bounded by a softcap, and nothing else is done to them.
    pub(crate) const SOFTCAP: bool = matches!(ATTENTION[ID].score_mod, ScoreMod::Softcap);
    /// Whether scores are scaled, and nothing else is done to them.
    pub(crate) const PLAIN_SCORES: bool = matches!(ATTENTION[ID].score_mod, ScoreMod::None);
    /// Whether O may be rounded to E4M3, where the launch says so.
    pub(crate) const MAY_NARROW_OUT: bool = ATTENTION[ID].may_narrow_out();
    /// When maxima are subtracted from scores.
    pub(crate) const SUBTRACTION: Subtraction = match Self::PV_OVERLAP {
        _ if Self::SOFTCAP => Subtraction::Never,
        _ if Self::GENERAL => Subtraction::LargeLate,
        PvOverlap::HalfExpThenRescale if Self::TILE.consumers() < 4 => Subtraction::Always,
        PvOverlap::HalfExpThenRescale => Subtraction::LargeLate,
        PvOverlap::Exp | PvOverlap::HalfExp | PvOverlap::None => Subtraction::LargeEarly,
    };
    /// Which part of the softmax overlaps P V.
    pub(crate) const PV_OVERLAP: PvOverlap = if Self::TILE.pingpong() {
        PvOverlap::None
    } else if Self::KV_SPLITS > 1 || Self::TILE.consumers() == 4 {
        PvOverlap::HalfExpThenRescale
    } else if part_registers(ID) < output_registers(ID)
        || matches!(Self::TILE.query, QuerySource::Registers) && (ATTENTION[ID].head_dim <= 128 || Self::TILE.n == 64)
    {
        PvOverlap::HalfExp
    } else {
        PvOverlap::Exp
    };
    /// How long sequences are.
    pub(crate) const SEQLENS: Seqlens = ATTENTION[ID].seqlens;
    /// Whether the producer searches batch entries or transposes V, and has the registers for it.
    pub(crate) const WIDE_PRODUCER: bool = matches!(Self::SEQLENS, Seqlens::Varlen) || Self::TRANSPOSES_VALUES;
    const SMEM: SmemLayout = ATTENTION[ID].smem();
    pub(crate) const Q: SmemRegion = Self::SMEM.get("q");
    pub(crate) const K: SmemRegion = Self::SMEM.get("k");
    pub(crate) const V: SmemRegion = Self::SMEM.get("v");
    pub(crate) const V_ROWS: SmemRegion = Self::SMEM.get("v_rows");
    pub(crate) const BIAS: SmemRegion = Self::SMEM.get("bias");
    pub(crate) const K_FULL: SmemRegion = Self::SMEM.get("k_full");
    pub(crate) const K_EMPTY: SmemRegion = Self::SMEM.get("k_empty");
    pub(crate) const V_FULL: SmemRegion = Self::SMEM.get("v_full");
    pub(crate) const V_EMPTY: SmemRegion = Self::SMEM.get("v_empty");
    pub(crate) const V_ROWS_FULL: SmemRegion = Self::SMEM.get("v_rows_full");
    pub(crate) const V_ROWS_EMPTY: SmemRegion = Self::SMEM.get("v_rows_empty");
    pub(crate) const Q_FULL: SmemRegion = Self::SMEM.get("q_full");
    pub(crate) const PARTIAL: SmemRegion = Self::SMEM.get("partial");
    pub(crate) const PARTIAL_FULL: SmemRegion = Self::SMEM.get("partial_full");
    pub(crate) const Q_EMPTY: SmemRegion = Self::SMEM.get("q_empty");
    pub(crate) const TILES: SmemRegion = Self::SMEM.get("tile");
    pub(crate) const TILE_FULL: SmemRegion = Self::SMEM.get("tile_full");

    /// How many of a lane's exponentials of a step stand in front of the wait for O, and so overlap P V.
    pub(crate) const fn early_exps(scores: usize) -> usize {
        match Self::PV_OVERLAP {
            PvOverlap::Exp => scores,
            PvOverlap::HalfExpThenRescale | PvOverlap::HalfExp => scores / 2,
            PvOverlap::None => 0,
        }
    }
}

/// What of the softmax of a step overlaps P V of the step before it in the pipeline, and where O is rescaled.
#[derive(Clone, Copy)]
pub(crate) enum PvOverlap {
    /// All exponentials and row sums. O is rescaled during the next Q K^T, where a maximum grew.
    Exp,
    /// Half of the exponentials, with their sums. The others follow the wait for O, and O is rescaled beside them, in
    /// each step. Steps take 2 to 5 % less time so with split-KV warpgroups or four consumers, and 1 to 3 % more
    /// elsewhere.
    HalfExpThenRescale,
    /// Half of the exponentials. The others, and all row sums, follow the wait for O. O is rescaled as in
    /// [`Self::Exp`]. Head dimensions 96, 128 and, with steps of 64 keys, 192 take 1 to 2 % less time with this
    /// overlap, 256 as much, and 64, with three warpgroups, 7 % more.
    HalfExp,
    /// Nothing: P V ends before the next Q K^T starts, and the warpgroups are in ping-pong. O is rescaled as in
    /// [`Self::HalfExpThenRescale`].
    None,
}

impl PvOverlap {
    /// Whether warpgroups are in ping-pong.
    pub(crate) const fn pingpong(self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether O is rescaled in each step beside its last exponentials, and not during the next Q K^T.
    pub(crate) const fn rescales_last(self) -> bool {
        matches!(self, Self::HalfExpThenRescale | Self::None)
    }

    /// Whether the row sums follow all exponentials.
    pub(crate) const fn row_sum_last(self) -> bool {
        matches!(self, Self::HalfExp)
    }
}

/// Accumulators of Q K^T that a thread of configuration `id` holds.
pub(crate) const fn score_registers(id: usize) -> usize {
    match ATTENTION[id].kernel {
        AttentionKernel::Wgmma(tile) => tile.n / 2,
        _ => panic!("the configuration is not a `wgmma` configuration"),
    }
}

/// Accumulators of P V that a thread of configuration `id` holds.
pub(crate) const fn output_registers(id: usize) -> usize {
    ATTENTION[id].value_dim / 2
}

/// Accumulators of the part of configuration `id`, where P V has two levels: those of all columns of V where there are
/// registers for them, and else those of as many columns as fit.
pub(crate) const fn part_registers(id: usize) -> usize {
    match ATTENTION[id].kernel {
        AttentionKernel::Wgmma(tile) if matches!(tile.accumulation, Accumulation::TwoLevel) => {
            let out = output_registers(id);
            // S, P of a step, O, and Q.
            let of_query = if matches!(tile.query, QuerySource::Registers) { 4 * dim_steps(id) } else { 0 };
            let used = score_registers(id) + 4 * key_steps(id) + out + of_query;
            let others = match ATTENTION[id].score_mod {
                ScoreMod::General => GENERAL_REGISTERS,
                ScoreMod::None | ScoreMod::Softcap => OTHER_REGISTERS,
            };
            let free = WIDE_PRODUCER_CONSUMER_REGISTERS[tile.consumers()] as usize - others - used;
            if free >= out {
                out
            } else if free >= 32 {
                32
            } else {
                16
            }
        }
        _ => output_registers(id),
    }
}

/// Registers for everything but S, P, Q, O and its part, at least.
const OTHER_REGISTERS: usize = 12;
/// The same where scores may have a bias.
const GENERAL_REGISTERS: usize = 36;

/// K buffers of configuration `id`.
pub(crate) const fn stages(id: usize) -> u32 {
    match ATTENTION[id].kernel {
        AttentionKernel::Wgmma(tile) => tile.stages as u32,
        _ => panic!("the configuration is not a `wgmma` configuration"),
    }
}

/// Steps of `wgmma` along the keys of one step of configuration `id`.
pub(crate) const fn key_steps(id: usize) -> usize {
    match ATTENTION[id].kernel {
        AttentionKernel::Wgmma(tile) => tile.n / k_step_elems(id),
        _ => panic!("the configuration is not a `wgmma` configuration"),
    }
}

/// Steps of `wgmma` along the head dimension of Q and K of configuration `id`.
pub(crate) const fn dim_steps(id: usize) -> usize {
    ATTENTION[id].head_dim / k_step_elems(id)
}

/// Elements along K that one `wgmma` takes.
const fn k_step_elems(id: usize) -> usize {
    Operand::in_registers(ATTENTION[id].dtype).k_step_elems() as usize
}

/// Q K^T with Q in shared memory.
pub(crate) struct QkFromShared<E, const ID: usize>(core::marker::PhantomData<E>);

impl<E: Input, const ID: usize> Product for QkFromShared<E, ID> {
    const A: Operand = Operand::new(E::DTYPE, Major::K, Config::<ID>::SWIZZLE, Config::<ID>::M);
    const B: Operand = Operand::new(E::DTYPE, Major::K, Config::<ID>::SWIZZLE, Config::<ID>::N);
}

/// Q K^T with Q in registers.
pub(crate) struct QkFromRegisters<E, const ID: usize>(core::marker::PhantomData<E>);

impl<E: Input, const ID: usize> Product for QkFromRegisters<E, ID> {
    const A: Operand = Operand::in_registers(E::DTYPE);
    const B: Operand = Operand::new(E::DTYPE, Major::K, Config::<ID>::SWIZZLE, Config::<ID>::N);
}

/// P V, with P in registers. V of 16-bit elements is taken as it lies: its rows are along K. That of 8-bit elements is
/// transposed.
pub(crate) struct PvProduct<E, const ID: usize>(core::marker::PhantomData<E>);

impl<E: Input, const ID: usize> Product for PvProduct<E, ID> {
    const A: Operand = Operand::in_registers(E::DTYPE);
    const B: Operand = if Config::<ID>::TRANSPOSES_VALUES {
        let columns = ATTENTION[ID].value_dim as u32;
        Operand::new(E::DTYPE, Major::K, ATTENTION[ID].transposed_swizzle(), columns)
    } else {
        Operand::new(E::DTYPE, Major::Mn, Config::<ID>::VALUE_SWIZZLE, Config::<ID>::N)
    };
}
