//! V of 8-bit elements, transposed in shared memory by the warps of the producer that copy nothing.
//!
//! `wgmma` takes 8-bit operands along K alone, and the keys are K of P V. So each step's tile of V, `[key][column]` as
//! TMA brings it, becomes `[column][slot]`. Slots are the keys in the order of [`variants::attention::key_of_slot`].
//!
//! ```text
//! for each 32 keys and 16 columns:
//!     ldmatrix.x4.trans   pairs of columns 2 i, 2 i + 1, of keys 2 j and 2 j + 1, 8 keys a matrix
//!     prmt                columns 2 i and 2 i + 1 apart, keys 2 j, 2 j + 1, 8 + 2 j, 9 + 2 j together: four slots
//!     stmatrix.x4         16 rows of V transposed, 32 slots of each
//! ```
//!
//! Three warps share the tile by columns. A warp knows the places of its rows from the first tile on, and loads two
//! units before it stores them: the tensor cores wait for V, and the schedulers are busy with consumers.
//!
//! A matrix of `stmatrix` has even columns in its upper half and odd ones in its lower: with the swizzle, its eight
//! rows of 16 bytes are in different banks.

use cuda_std::convert::permute_bytes;
use cuda_std::hint::opaque;
use cuda_std::ptx::{fence, ldmatrix, mbarrier, stmatrix};
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, sync_warp};
use layout::{SmemRegion, Swizzle};
use variants::attention::{
    ATTENTION, AttentionArgs, Seqlens, TRANSPOSED_COLUMNS, TRANSPOSED_KEYS, TRANSPOSING_WARPS, VALUE_ROWS_STAGES,
};

use crate::lane::lane;
use crate::sm90::config::Config;
use crate::sm90::pipeline::PipelineState;
use crate::sm90::scheduler::{TileScheduler, steps_of_rows};

/// Transposes the tiles of V of all steps of this block, as fast as they come and consumers leave buffers.
///
/// # Safety
/// Warps `0 .. TRANSPOSING_WARPS` of those that transpose call it, all lanes together; the barriers are initialised.
#[inline(always)]
pub(crate) unsafe fn transpose<const ID: usize, const STAGES: u32>(args: &AttentionArgs, base: SharedAddr, warp: u32) {
    let at = |region: SmemRegion, stage: u32| base.offset(region.stage_offset(stage));
    let mut rows = PipelineState::<VALUE_ROWS_STAGES>::CONSUMER;
    let mut v = PipelineState::<STAGES>::PRODUCER;
    let mut scheduler = TileScheduler::START;
    let lanes = Lane::<ID>::of_warp(warp);
    // SAFETY: the warp is together. Rows are read when they are there, and their buffer is left behind that. A buffer
    // of V is written when all consumers have left it.
    unsafe {
        while let Some([_, first_row]) = scheduler.receive::<ID>(base) {
            let seqlen = scheduler.seqlen_info::<ID>(base, args);
            // The tile has been read, and may be overwritten when all have left its Q. Not before Q is there: the phase
            // would be that of the tile before.
            let (q_stage, q_parity) = scheduler.q_stage::<ID>();
            mbarrier::wait_parity(at(Config::<ID>::Q_FULL, q_stage), q_parity);
            mbarrier::arrive_if(at(Config::<ID>::Q_EMPTY, q_stage), lane() == 0);
            let last_row = (first_row + Config::<ID>::M).min(seqlen.q_len) - 1;
            let (first, end) = steps_of_rows::<ID>(seqlen.keys, first_row, last_row);
            let mut left = end.saturating_sub(first);
            while left > 0 {
                left -= 1;
                mbarrier::wait_parity(at(Config::<ID>::V_ROWS_FULL, rows.stage()), rows.parity());
                mbarrier::wait_parity(at(Config::<ID>::V_EMPTY, v.stage()), v.parity());
                let (source, place) = (at(Config::<ID>::V_ROWS, rows.stage()), at(Config::<ID>::V, v.stage()));
                lanes.transpose_tile(source, place);
                // The tensor cores read what this has written.
                fence::proxy_async_shared();
                sync_warp(FULL_MASK);
                mbarrier::arrive_if(at(Config::<ID>::V_FULL, v.stage()), lane() == 0);
                mbarrier::arrive_if(at(Config::<ID>::V_ROWS_EMPTY, rows.stage()), lane() == 0);
                (rows, v) = (rows.next(), v.next());
            }
        }
    }
}

/// What a lane keeps from one tile to the next.
#[derive(Clone, Copy)]
struct Lane<const ID: usize> {
    /// The column of the warp's first unit.
    first_column: u32,
    /// Where the lane's row of V is, of the first keys and columns.
    from: u32,
    /// Where its row of V transposed is, of the first keys and the warp's first columns.
    to: u32,
    /// Which bytes of a pair of words are of the first matrix: [`EVEN`] where its row is in the upper half.
    selector: u32,
}

/// Bytes of two words that are of even columns.
const EVEN: u32 = 0x6420;
/// What tells the bytes of odd columns from those of even ones.
const ODD_BIT: u32 = 0x1111;

/// Units of keys whose loads are in flight together.
const BATCH: u32 = 2;

impl<const ID: usize> Lane<ID> {
    const COLUMNS: u32 = ATTENTION[ID].value_dim as u32;
    const COLUMN_UNITS: u32 = Self::COLUMNS / TRANSPOSED_COLUMNS;
    const KEY_UNITS: u32 = Config::<ID>::N / TRANSPOSED_KEYS;
    /// Units whose places there are registers for, beside the lengths of a tile where they differ.
    const KEPT_UNITS: u32 = if matches!(Config::<ID>::SEQLENS, Seqlens::Fixed) { 36 } else { 24 };
    const FROM: Swizzle = Config::<ID>::VALUE_SWIZZLE;
    const TO: Swizzle = ATTENTION[ID].transposed_swizzle();

    /// The lane of warp `warp` of those that transpose.
    #[inline(always)]
    fn of_warp(warp: u32) -> Self {
        let lane = lane();
        let first_column = warp * TRANSPOSED_COLUMNS;
        // The row of 16 bytes that the lane gives `stmatrix`: matrices are even first, odd first, and both of the next
        // 16 slots.
        let (matrix, row) = (lane / 8, lane % 8);
        let (column, slot) = (2 * row + ((row / 4) ^ (matrix % 2)), matrix / 2 * 16);
        // Opaque, they are found once and not for each tile, by warps that have few registers and no time.
        Self {
            first_column: opaque(first_column),
            from: opaque(Self::FROM.apply(lane * const { Self::FROM.row_bytes() })),
            to: opaque(Self::TO.apply((first_column + column) * const { Self::TO.row_bytes() } + slot)),
            selector: opaque(if lane < 16 { EVEN } else { EVEN ^ ODD_BIT }),
        }
    }

    /// Transposes the part of a tile that is this warp's: units of [`TRANSPOSED_COLUMNS`] columns, one in
    /// [`TRANSPOSING_WARPS`], of all keys.
    ///
    /// The place of a unit is that of the first one, but for numbers that the compiler knows: of panels, of rows, and
    /// of bits inside a row, which the swizzle flips by the row alone.
    ///
    /// # Safety
    /// All lanes of the warp call it together; the tiles are the configuration's, of which `place` is free.
    #[inline(always)]
    unsafe fn transpose_tile(self, source: SharedAddr, place: SharedAddr) {
        for of_warp in 0..const { Self::COLUMN_UNITS.div_ceil(TRANSPOSING_WARPS) } {
            // Places of many units would take more registers than there are: they are found where they are used.
            let own = if Self::COLUMN_UNITS * Self::KEY_UNITS > Self::KEPT_UNITS {
                opaque(self.first_column)
            } else {
                self.first_column
            };
            let first_column = own + of_warp * const { TRANSPOSING_WARPS * TRANSPOSED_COLUMNS };
            let is_last = of_warp + 1 == const { Self::COLUMN_UNITS.div_ceil(TRANSPOSING_WARPS) };
            if is_last && Self::COLUMN_UNITS % TRANSPOSING_WARPS != 0 && first_column >= Self::COLUMNS {
                break;
            }
            let (panel, inside) =
                (first_column / const { Self::FROM.row_bytes() }, first_column % const { Self::FROM.row_bytes() });
            let panel_bytes = const { Config::<ID>::N * Self::FROM.row_bytes() };
            let from = source.offset((self.from ^ inside) + panel * panel_bytes);
            let mut first = 0;
            while first < Self::KEY_UNITS {
                let mut pairs = [[0; 4]; BATCH as usize];
                for key in 0..BATCH {
                    if first + key < Self::KEY_UNITS {
                        let row = (first + key) * TRANSPOSED_KEYS;
                        // SAFETY: the caller's contract; a row of the tile.
                        pairs[key as usize] = unsafe { ldmatrix::x4_trans(from.offset(row * Self::FROM.row_bytes())) };
                    }
                }
                for key in 0..BATCH {
                    if first + key < Self::KEY_UNITS {
                        let [a, b, c, d] = pairs[key as usize];
                        let (near, far) = (self.selector, self.selector ^ ODD_BIT);
                        let words = [(a, b, near), (a, b, far), (c, d, near), (c, d, far)]
                            .map(|(low, high, selector)| permute_bytes(low, high, selector));
                        let slot = (first + key) * TRANSPOSED_KEYS;
                        let inside = slot % Self::TO.row_bytes();
                        let panel = slot / Self::TO.row_bytes() * Self::COLUMNS;
                        let row = panel + of_warp * TRANSPOSING_WARPS * TRANSPOSED_COLUMNS;
                        let to = place.offset((self.to ^ inside) + row * Self::TO.row_bytes());
                        // SAFETY: as above, of the other tile.
                        unsafe { stmatrix::x4(to, words) };
                    }
                }
                first += BATCH;
            }
        }
    }
}
