//! K and V as decoding multiplies them: tiles of 16 keys in shared memory, of the type of Q or of E4M3.

use cuda_std::convert::Element16;
use cuda_std::shared::SharedAddr;
use layout::{Dtype, Swizzle};
use variants::attention::DECODE_KEYS;

use crate::sm80::copy::ElementBits;
use crate::sm80::product::multiply;
use crate::sm80::pv::{PvAccumulator, TensorCore};
use crate::tile::Fragments;

/// The element type of K and V, beside a Q of type `E`.
pub(crate) trait KeyValues<E> {
    /// The type; `None` for that of Q.
    const DTYPE: Option<Dtype>;
    /// The bits of an element.
    type Bits: ElementBits;
    /// Whether a lane's accumulators of O are, of 16 columns, four neighbours, instead of twice two.
    const IN_FOURS: bool;

    /// The first of two columns of Q, of 16, that a lane has in register `register` of operand A; `pair` is twice its
    /// place in its quad.
    fn query_column(register: u32, pair: u32) -> u32;

    /// `Q K^T` for a tile of K of this swizzle.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and K is written and visible.
    unsafe fn scores<const DIM_TILES: usize>(
        q: &[[u32; 4]; DIM_TILES],
        k: SharedAddr,
        swizzle: Swizzle,
    ) -> [[f32; 8]; 1];

    /// `O = factors * O + P V`, the factors those of this lane's two rows: P in accumulator layout, V a tile of this
    /// swizzle.
    ///
    /// # Safety
    /// As [`Self::scores`], with V.
    unsafe fn add_values<const DIM_TILES: usize>(
        out: &mut TensorCore<E, DIM_TILES>,
        factors: [f32; 2],
        p: &[[f32; 8]; 1],
        v: SharedAddr,
        swizzle: Swizzle,
    );
}

/// K and V of the type of Q.
pub(crate) enum OfQuery {}

impl<E: Element16> KeyValues<E> for OfQuery {
    const DTYPE: Option<Dtype> = None;
    type Bits = u16;
    const IN_FOURS: bool = false;

    #[inline(always)]
    fn query_column(register: u32, pair: u32) -> u32 {
        8 * (register / 2) + pair
    }

    #[inline(always)]
    unsafe fn scores<const DIM_TILES: usize>(
        q: &[[u32; 4]; DIM_TILES],
        k: SharedAddr,
        _swizzle: Swizzle,
    ) -> [[f32; 8]; 1] {
        let fragments = Fragments::columns_first(k, DECODE_KEYS);
        let mut scores = [[0f32; 8]; 1];
        for dim_tile in 0..DIM_TILES {
            // SAFETY: the caller's contract.
            unsafe {
                let b = fragments.load(0, dim_tile);
                scores[0] = multiply::<E>(q[dim_tile], b, scores[0]);
            }
        }
        scores
    }

    #[inline(always)]
    unsafe fn add_values<const DIM_TILES: usize>(
        out: &mut TensorCore<E, DIM_TILES>,
        factors: [f32; 2],
        p: &[[f32; 8]; 1],
        v: SharedAddr,
        _swizzle: Swizzle,
    ) {
        // SAFETY: the caller's contract.
        unsafe { out.step(factors, p, v) };
    }
}
