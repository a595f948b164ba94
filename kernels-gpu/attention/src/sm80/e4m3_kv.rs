//! Decoding with K and V of E4M3: the entries, and how elements are widened on their way to the tensor cores.
//!
//! `ldmatrix` moves pairs of bytes as if they were one element of 16 bits. So a lane gets four neighbours of a row of
//! K, and of V, transposed, two neighbours of each of two rows. Columns of the products are put in an order in which
//! they are those that the lane wants:
//!
//! - Q K^T adds up columns in any order, if Q has the same. A lane has columns `4 t` to `4 t + 3` of 16, where t is its
//!   place in its quad: the first two as columns `2 t` and `2 t + 1` of the fragment, the others as those 8 above.
//! - Even columns of V form one operand B of 8 columns, and odd ones another. A lane then has O of columns `4 t` to
//!   `4 t + 3`. One permutation of bytes puts the two rows of a column next to each other.
//!
//! Two instructions then widen a word to f16, exactly. For a Q of bf16, which has more exponents than f16, K goes on to
//! bf16, exactly too, by three more instructions for two elements. P is f16 for either Q: E4M3 is within f16, and P,
//! from 0 to 1, has three bits more in f16 than in bf16.

use cuda_std::convert::{Bf16, E4m3, Element16, F16, permute_bytes, unpack_e4m3x4};
use cuda_std::ptx::ldmatrix;
use cuda_std::shared::SharedAddr;
use layout::{Dtype, Swizzle};
use variants::attention::{ATTENTION, AttentionArgs, DECODE_KEYS, DecodeArgs, DescaleArgs, config_index};

use crate::lane::lane;
use crate::sm80::decode;
use crate::sm80::key_values::KeyValues;
use crate::sm80::product::multiply;
use crate::sm80::pv::TensorCore;
use crate::softmax::rescale_rows;
use crate::tile::CHUNK_BYTES;

entry!(e4m3kv d64_decode_8w_s6: decode E4m3);
entry!(e4m3kv d128_decode_6w_s4: decode E4m3);
entry!(e4m3kv d256_decode_4w_s3: decode E4m3);

/// A type of Q that elements of E4M3 are widened to.
pub(crate) trait FromE4m3: Element16 {
    /// Four elements as two pairs. Exact.
    fn widen(word: u32) -> [u32; 2];
}

impl FromE4m3 for F16 {
    #[inline(always)]
    fn widen(word: u32) -> [u32; 2] {
        unpack_e4m3x4(word)
    }
}

impl FromE4m3 for Bf16 {
    #[inline(always)]
    fn widen(word: u32) -> [u32; 2] {
        unpack_e4m3x4(word).map(|pair| {
            let (low, high) = F16::unpack(pair);
            Bf16::pack(low, high)
        })
    }
}

impl<E: FromE4m3> KeyValues<E> for E4m3 {
    const DTYPE: Option<Dtype> = Some(Dtype::E4M3);
    type Bits = u8;
    const IN_FOURS: bool = true;

    #[inline(always)]
    fn query_column(register: u32, pair: u32) -> u32 {
        2 * (register / 2) + 2 * pair
    }

    #[inline(always)]
    unsafe fn scores<const M_TILES: usize, const DIM_TILES: usize>(
        q: &[[[u32; 4]; DIM_TILES]; M_TILES],
        k: SharedAddr,
        swizzle: Swizzle,
    ) -> [[f32; 8]; M_TILES] {
        let words = Words::new(k, swizzle);
        let mut scores = [[0f32; 8]; M_TILES];
        for dim_tiles in 0..DIM_TILES / 2 {
            // SAFETY: the caller's contract.
            unsafe {
                let words = ldmatrix::x4(words.address(dim_tiles));
                for side in 0..2 {
                    let [[b0, b1], [b2, b3]] = [E::widen(words[2 * side]), E::widen(words[2 * side + 1])];
                    for m_tile in 0..M_TILES {
                        let q = q[m_tile][2 * dim_tiles + side];
                        scores[m_tile] = multiply::<E>(q, [b0, b1, b2, b3], scores[m_tile]);
                    }
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
        swizzle: Swizzle,
    ) {
        for m_tile in 0..M_TILES {
            // SAFETY: the caller's contract.
            unsafe { rescale_rows(out[m_tile].rows_mut().as_flattened_mut(), factors[m_tile]) };
        }
        let words = Words::new(v, swizzle);
        let a = p.map(|s| [F16::pack(s[0], s[1]), F16::pack(s[2], s[3]), F16::pack(s[4], s[5]), F16::pack(s[6], s[7])]);
        for dim_tiles in 0..DIM_TILES / 2 {
            // SAFETY: the caller's contract.
            unsafe {
                let words = ldmatrix::x4_trans(words.address(dim_tiles));
                for side in 0..2 {
                    // Two keys of an even column, then of the odd one; of the first eight keys, then of the others.
                    let [[b0, b2], [b1, b3]] = [words[2 * side], words[2 * side + 1]]
                        .map(|word| unpack_e4m3x4(permute_bytes(word, word, 0x3120)));
                    for m_tile in 0..M_TILES {
                        let out = &mut out[m_tile].rows_mut()[2 * dim_tiles + side];
                        *out = multiply::<F16>(a[m_tile], [b0, b1, b2, b3], *out);
                    }
                }
            }
        }
    }
}

/// A tile of 16 rows of 8-bit elements, as a lane addresses it for `ldmatrix.x4`: rows 0 to 7 and 8 to 15 of one chunk,
/// then of the next. A chunk of a row has 16 columns.
struct Words {
    /// The lane's row in the first panel.
    row: SharedAddr,
    /// Offset of the lane's chunk in its row, already XORed with the row.
    chunk_bytes: u32,
    swizzle: Swizzle,
}

impl Words {
    #[inline(always)]
    fn new(tile: SharedAddr, swizzle: Swizzle) -> Self {
        let lane = lane();
        let row_bytes = lane % DECODE_KEYS as u32 * swizzle.row_bytes();
        let chunk_bytes = swizzle.apply(row_bytes + lane / DECODE_KEYS as u32 * CHUNK_BYTES) - row_bytes;
        Self { row: tile.offset(row_bytes), chunk_bytes, swizzle }
    }

    /// Address of this lane's row of two 16-column tiles, `2 * dim_tiles` and the next.
    #[inline(always)]
    fn address(&self, dim_tiles: usize) -> SharedAddr {
        let column_bytes = dim_tiles as u32 * 2 * CHUNK_BYTES;
        let (panel, inside) = (column_bytes / self.swizzle.row_bytes(), column_bytes % self.swizzle.row_bytes());
        // Two chunks start at an even one, to which the lane's chunk (0 or 1) is added: an XOR, as the swizzle is.
        self.row.offset(inside ^ self.chunk_bytes).offset(panel * DECODE_KEYS as u32 * self.swizzle.row_bytes())
    }
}
