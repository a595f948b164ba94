//! One row of the table as constants of a WGMMA kernel.

use cuda_std::convert::Element16;
use cuda_std::ptx::wgmma::Product;
use layout::attention::{ATTENTION, AttentionKernel, Lengths, MaskKind, QuerySource, Scores, TILE_SWIZZLE, WgmmaTile};
use layout::descriptor::{Major, Operand};
use layout::{SmemLayout, SmemRegion};

use crate::softmax::Subtraction;

/// Row `ROW` of [`ATTENTION`].
pub(crate) enum Row<const ROW: usize> {}

impl<const ROW: usize> Row<ROW> {
    pub(crate) const TILE: WgmmaTile = match ATTENTION[ROW].kernel {
        AttentionKernel::Wgmma(tile) => tile,
        _ => panic!("the row is not a WGMMA variant"),
    };
    /// Query rows of a tile.
    pub(crate) const M: u32 = Self::TILE.m() as u32;
    /// Warpgroups of a block that share the rows of a tile.
    pub(crate) const KEY_GROUPS: u32 = Self::TILE.key_groups as u32;
    /// Blocks that share a tile.
    pub(crate) const CLUSTER: u32 = Self::TILE.cluster as u32;
    /// Blocks that copy K and V together, each a part for all.
    pub(crate) const MULTICAST: u32 = Self::TILE.multicast as u32;
    /// Warpgroups that share the rows of a tile, in all its blocks.
    pub(crate) const PARTS: u32 = Self::TILE.parts() as u32;
    /// Keys of a step.
    pub(crate) const N: u32 = Self::TILE.n as u32;
    /// Panels of a tile of Q or K.
    pub(crate) const PANELS: u32 = ATTENTION[ROW].panels();
    /// Panels of a tile of V.
    pub(crate) const VALUE_PANELS: u32 = ATTENTION[ROW].value_panels();
    /// Whether every step may be masked, and not the last alone.
    pub(crate) const BAND: bool = matches!(Self::TILE.mask, MaskKind::Band);
    /// Whether scores are bounded, and a bias is added, where the launch says so.
    pub(crate) const GENERAL: bool = matches!(ATTENTION[ROW].scores, Scores::General);
    /// Whether scores are bounded by a softcap, and nothing else is done to them.
    pub(crate) const SOFTCAP: bool = matches!(ATTENTION[ROW].scores, Scores::Softcap);
    /// When maxima are subtracted from scores.
    pub(crate) const SUBTRACTION: Subtraction = match Self::STEP_END {
        _ if Self::SOFTCAP => Subtraction::Never,
        _ if Self::GENERAL => Subtraction::LargeLate,
        StepEnd::ScaleBesidePowers if Self::TILE.consumers() < 4 => Subtraction::Always,
        StepEnd::ScaleBesidePowers => Subtraction::LargeLate,
        StepEnd::PowersFirst | StepEnd::SumsLast | StepEnd::InTurn => Subtraction::LargeEarly,
    };
    /// How a step ends.
    pub(crate) const STEP_END: StepEnd = if Self::TILE.in_turn() {
        StepEnd::InTurn
    } else if Self::PARTS > 1 || Self::TILE.consumers() == 4 {
        StepEnd::ScaleBesidePowers
    } else if matches!(Self::TILE.query, QuerySource::Registers)
        && (ATTENTION[ROW].head_dim <= 128 || Self::TILE.n == 64)
    {
        StepEnd::SumsLast
    } else {
        StepEnd::PowersFirst
    };
    /// How long sequences are.
    pub(crate) const LENGTHS: Lengths = ATTENTION[ROW].lengths;
    const SMEM: SmemLayout = ATTENTION[ROW].smem();
    pub(crate) const Q: SmemRegion = Self::SMEM.get("q");
    pub(crate) const K: SmemRegion = Self::SMEM.get("k");
    pub(crate) const V: SmemRegion = Self::SMEM.get("v");
    pub(crate) const BIAS: SmemRegion = Self::SMEM.get("bias");
    pub(crate) const K_FULL: SmemRegion = Self::SMEM.get("k_full");
    pub(crate) const K_EMPTY: SmemRegion = Self::SMEM.get("k_empty");
    pub(crate) const V_FULL: SmemRegion = Self::SMEM.get("v_full");
    pub(crate) const V_EMPTY: SmemRegion = Self::SMEM.get("v_empty");
    pub(crate) const Q_FULL: SmemRegion = Self::SMEM.get("q_full");
    pub(crate) const PARTIAL: SmemRegion = Self::SMEM.get("partial");
    pub(crate) const PARTIAL_FULL: SmemRegion = Self::SMEM.get("partial_full");
    pub(crate) const Q_EMPTY: SmemRegion = Self::SMEM.get("q_empty");
    pub(crate) const TILES: SmemRegion = Self::SMEM.get("tile");
    pub(crate) const TILE_FULL: SmemRegion = Self::SMEM.get("tile_full");

    /// How many of a lane's exponentials of a step stand in front of the wait for O.
    pub(crate) const fn early_powers(scores: usize) -> usize {
        match Self::STEP_END {
            StepEnd::PowersFirst => scores,
            StepEnd::ScaleBesidePowers | StepEnd::SumsLast => scores / 2,
            StepEnd::InTurn => 0,
        }
    }
}

/// What of a step stands behind the wait for the product O of the step before, and where O is scaled.
#[derive(Clone, Copy)]
pub(crate) enum StepEnd {
    /// The rounding of P. O is scaled beside the next Q K^T, where a maximum grew.
    PowersFirst,
    /// Half of the exponentials too, and the scaling of O in each step beside them. Steps take 2 to 5 % less time so
    /// where warpgroups share rows or are four, and 1 to 3 % more elsewhere.
    ScaleBesidePowers,
    /// Half of the exponentials, and the sums of all; O is scaled as in [`Self::PowersFirst`]. Head dimensions 96,
    /// 128 and, by 64 keys, 192 take 1 to 2 % less time so, 256 as much, and 64, with three warpgroups, 7 % more.
    SumsLast,
    /// All of the softmax: O is there before the next Q K^T starts, as warpgroups have the tensor cores in turns. O is
    /// scaled as in [`Self::ScaleBesidePowers`].
    InTurn,
}

impl StepEnd {
    /// Whether warpgroups have the tensor cores in turns.
    pub(crate) const fn in_turn(self) -> bool {
        matches!(self, Self::InTurn)
    }

    /// Whether O is scaled in each step beside its last exponentials, and not beside the next Q K^T.
    pub(crate) const fn scales_beside_powers(self) -> bool {
        matches!(self, Self::ScaleBesidePowers | Self::InTurn)
    }

    /// Whether the sums stand behind all exponentials.
    pub(crate) const fn sums_last(self) -> bool {
        matches!(self, Self::SumsLast)
    }
}

/// Accumulators of Q K^T that a thread of row `row` holds.
pub(crate) const fn score_registers(row: usize) -> usize {
    key_steps(row) * 8
}

/// Accumulators of P V that a thread of row `row` holds.
pub(crate) const fn output_registers(row: usize) -> usize {
    ATTENTION[row].value_dim / 2
}

/// K buffers of row `row`.
pub(crate) const fn stages(row: usize) -> u32 {
    match ATTENTION[row].kernel {
        AttentionKernel::Wgmma(tile) => tile.stages as u32,
        _ => panic!("the row is not a WGMMA variant"),
    }
}

/// Steps of `wgmma` along the keys of one step of row `row`.
pub(crate) const fn key_steps(row: usize) -> usize {
    match ATTENTION[row].kernel {
        AttentionKernel::Wgmma(tile) => tile.n / 16,
        _ => panic!("the row is not a WGMMA variant"),
    }
}

/// Steps of `wgmma` along the head dimension of Q and K of row `row`.
pub(crate) const fn dim_steps(row: usize) -> usize {
    ATTENTION[row].head_dim / 16
}

/// Q K^T with Q in shared memory.
pub(crate) struct ScoresOfTile<E, const ROW: usize>(core::marker::PhantomData<E>);

impl<E: Element16, const ROW: usize> Product for ScoresOfTile<E, ROW> {
    const A: Operand = Operand::new(E::DTYPE, Major::K, TILE_SWIZZLE, Row::<ROW>::M);
    const B: Operand = Operand::new(E::DTYPE, Major::K, TILE_SWIZZLE, Row::<ROW>::N);
}

/// Q K^T with Q in registers.
pub(crate) struct ScoresOfRegisters<E, const ROW: usize>(core::marker::PhantomData<E>);

impl<E: Element16, const ROW: usize> Product for ScoresOfRegisters<E, ROW> {
    const A: Operand = Operand::in_registers(E::DTYPE);
    const B: Operand = Operand::new(E::DTYPE, Major::K, TILE_SWIZZLE, Row::<ROW>::N);
}

/// P V, with P in registers and V as it lies: its rows are along K.
pub(crate) struct Values<E, const ROW: usize>(core::marker::PhantomData<E>);

impl<E: Element16, const ROW: usize> Product for Values<E, ROW> {
    const A: Operand = Operand::in_registers(E::DTYPE);
    const B: Operand = Operand::new(E::DTYPE, Major::Mn, TILE_SWIZZLE, Row::<ROW>::N);
}
