//! K and V as decoding multiplies them: tiles of 16 keys in shared memory, of the type of Q or of E4M3.

use cuda_std::convert::Element16;
use cuda_std::shared::SharedAddr;
use layout::{Dtype, Swizzle};
use variants::attention::DECODE_KEYS;

use crate::sm80::copy::ElementBits;
use crate::sm80::product::multiply;
use crate::sm80::pv::TensorCore;
use crate::softmax::rescale_rows;
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

    /// `Q K^T` of tiles of 16 rows of Q, for a tile of K of this swizzle.
    ///
    /// # Safety
    /// All lanes of the warp call it together, and K is written and visible.
    unsafe fn scores<const M_TILES: usize, const DIM_TILES: usize>(
        q: &[[[u32; 4]; DIM_TILES]; M_TILES],
        k: SharedAddr,
        swizzle: Swizzle,
    ) -> [[f32; 8]; M_TILES];

    /// `O = factors * O + P V`, the factors those of this lane's two rows of each tile: P in accumulator layout, V a
    /// tile of this swizzle.
    ///
    /// # Safety
    /// As [`Self::scores`], with V.
    unsafe fn add_values<const M_TILES: usize, const DIM_TILES: usize>(
        out: &mut [TensorCore<E, DIM_TILES>; M_TILES],
        factors: [[f32; 2]; M_TILES],
        p: &[[f32; 8]; M_TILES],
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
    unsafe fn scores<const M_TILES: usize, const DIM_TILES: usize>(
        q: &[[[u32; 4]; DIM_TILES]; M_TILES],
        k: SharedAddr,
        _swizzle: Swizzle,
    ) -> [[f32; 8]; M_TILES] {
        let fragments = Fragments::columns_first(k, DECODE_KEYS);
        let mut scores = [[0f32; 8]; M_TILES];
        for dim_tile in 0..DIM_TILES {
            // SAFETY: the caller's contract.
            unsafe {
                let b = fragments.load(0, dim_tile);
                for m_tile in 0..M_TILES {
                    scores[m_tile] = multiply::<E>(q[m_tile][dim_tile], b, scores[m_tile]);
                }
            }
        }
        scores
    }

    #[inline(always)]
    unsafe fn add_values<const M_TILES: usize, const DIM_TILES: usize>(
        out: &mut [TensorCore<E, DIM_TILES>; M_TILES],
        factors: [[f32; 2]; M_TILES],
        p: &[[f32; 8]; M_TILES],
        v: SharedAddr,
        _swizzle: Swizzle,
    ) {
        let a = p.map(|s| [E::pack(s[0], s[1]), E::pack(s[2], s[3]), E::pack(s[4], s[5]), E::pack(s[6], s[7])]);
        for m_tile in 0..M_TILES {
            // SAFETY: the caller's contract.
            unsafe { rescale_rows(out[m_tile].rows_mut().as_flattened_mut(), factors[m_tile]) };
        }
        let fragments = Fragments::rows_first(v, DECODE_KEYS);
        for dim_tile in 0..DIM_TILES {
            // SAFETY: the caller's contract.
            unsafe {
                let b = fragments.load_transposed(0, dim_tile);
                for m_tile in 0..M_TILES {
                    let out = &mut out[m_tile].rows_mut()[dim_tile];
                    *out = multiply::<E>(a[m_tile], b, *out);
                }
            }
        }
    }
}
