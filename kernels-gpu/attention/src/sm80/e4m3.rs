//! The kernels on `mma.sync` for inputs of E4M3, with an O of f16 and of bf16, for sm_89 and later.
//!
//! `mma` m16n8k32 wants V with its keys along the words of operand B. `ldmatrix` transposes pairs of bytes as if they
//! were one element of 16 bits: a lane gets two neighbouring columns of each of two keys. Even columns of V form one
//! operand B of 8 columns, and odd ones another; one permutation of bytes puts four keys of a column next to each
//! other. They are the keys whose scores the lane has, in the order of [`variants::attention::key_of_slot`]: P becomes
//! operand A without an exchange between lanes. A lane then has O of columns `4 t` to `4 t + 3` of 16, where t is its
//! place in its quad.
//!
//! Tensor cores may add products of 8-bit elements with fewer bits than f32 has. So they add those of one step alone,
//! and threads add the sums to O, by the instruction that also scales O.

use core::marker::PhantomData;

use cuda_std::convert::{Bf16, Element16, F16, fma, pack_e4m3x4, permute_bytes};
use cuda_std::global;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, sync_warp};
use variants::attention::{ATTENTION, AttentionArgs, AttentionConfig, DescaleArgs, PvUnit, config_index};

use crate::input::{E4m3To, Input};
use crate::lane::lane;
use crate::sm80::mainloop::{self, Configuration, KernelTraits};
use crate::sm80::product::MmaInput;
use crate::sm80::pv::{PvAccumulator, store_pair};
use crate::tile::Fragments;

type E4m3ToF16 = E4m3To<F16>;
type E4m3ToBf16 = E4m3To<Bf16>;

entry!(e4m3 d64_mma_64x64_s2: mma);
entry!(e4m3 d128_mma_64x32_s2: mma);
#[cfg(not(target_feature = "sm_90a"))]
entry!(e4m3 d256_mma_64x32_s2: mma);
entry!(e4m3 d64_mma_64x64_s2_general: mma);
entry!(e4m3 d128_mma_64x32_s2_general: mma);
#[cfg(not(target_feature = "sm_90a"))]
entry!(e4m3 d256_mma_64x32_s2_general: mma);

impl<O: Element16, const ID: usize, const KEY_TILES: usize, const DIM_TILES: usize>
    KernelTraits<E4m3To<O>, KEY_TILES, DIM_TILES> for Configuration<ID>
{
    const CONFIG: AttentionConfig = ATTENTION[ID];

    type Pv = StepSums<O, DIM_TILES>;
}

/// O, to which the sums of steps are added, and the element type that it is rounded to.
pub struct StepSums<O, const DIM_TILES: usize> {
    out: [[f32; 8]; DIM_TILES],
    element: PhantomData<O>,
}

impl<O: Element16, const KEY_TILES: usize, const DIM_TILES: usize> PvAccumulator<E4m3To<O>, KEY_TILES, DIM_TILES>
    for StepSums<O, DIM_TILES>
{
    const UNIT: PvUnit = PvUnit::TensorCore;

    #[inline(always)]
    fn zero() -> Self {
        Self { out: [[0.0; 8]; DIM_TILES], element: PhantomData }
    }

    #[inline(always)]
    unsafe fn step(&mut self, factors: [f32; 2], p: &[[f32; 8]; KEY_TILES], v: SharedAddr) {
        const { assert!(KEY_TILES.is_multiple_of(2) && DIM_TILES.is_multiple_of(2), "products of 32 keys") };
        let v = Fragments::rows_first(v, 16 * KEY_TILES);
        let mut a = [[0; 4]; KEY_TILES];
        for pair in 0..KEY_TILES / 2 {
            a[pair] = E4m3To::<O>::pack(p[2 * pair..][..2].as_flattened());
        }
        for columns in 0..DIM_TILES / 2 {
            let mut words = [[0; 4]; KEY_TILES];
            for key_tile in 0..KEY_TILES {
                // SAFETY: the caller's contract.
                words[key_tile] = unsafe { v.load_transposed(key_tile, columns) };
            }
            for side in 0..2 {
                let mut sums = [0f32; 8];
                for pair in 0..KEY_TILES / 2 {
                    // Of the first 16 keys, and of the others.
                    let of = |half: usize, bytes| {
                        let words = words[2 * pair + half];
                        permute_bytes(words[2 * side], words[2 * side + 1], bytes)
                    };
                    let (even, odd) = (0x6420, 0x7531);
                    let b = [of(0, even), of(1, even), of(0, odd), of(1, odd)];
                    // SAFETY: the caller's contract.
                    sums = unsafe { E4m3To::<O>::multiply(a[pair], b, sums) };
                }
                let out = &mut self.out[2 * columns + side];
                for index in 0..out.len() {
                    out[index] = fma(out[index], factors[index / 2 % 2], sums[index]);
                }
                if DIM_TILES >= 8 {
                    // `ptxas` moves nothing over it. It would load all of V first, and lacks registers for that.
                    // SAFETY: all lanes of the warp are here.
                    unsafe { sync_warp(FULL_MASK) };
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store(&self, normalisers: [f32; 2], tile: SharedAddr, rows: usize, row: u32) {
        let lane = lane();
        for dim_tile in 0..DIM_TILES {
            let out = self.out[dim_tile];
            for half in 0..2 {
                for pair in 0..2 {
                    let values =
                        [out[2 * half + pair], out[4 + 2 * half + pair]].map(|value| value * normalisers[half]);
                    let row = row + lane / 4 + 8 * half as u32;
                    let column = 16 * dim_tile as u32 + 4 * (lane % 4) + 2 * pair as u32;
                    // SAFETY: the row is one of the warp's 16.
                    unsafe { store_pair::<O>(tile, rows, row, column, values) };
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn store_e4m3(&self, normalisers: [f32; 2], args: &AttentionArgs, out: *mut u8, [row, rows]: [u32; 2]) {
        let lane = lane();
        for half in 0..2 {
            let row = row + lane / 4 + 8 * half as u32;
            if row >= rows {
                continue;
            }
            let start = out.wrapping_offset((i64::from(row) * args.o_strides.row) as isize);
            for dim_tile in 0..DIM_TILES {
                let out = self.out[dim_tile];
                let column = 16 * dim_tile as u32 + 4 * (lane % 4);
                if column >= args.value_dim {
                    continue;
                }
                let of_columns = [out[2 * half], out[4 + 2 * half], out[2 * half + 1], out[5 + 2 * half]];
                let word = pack_e4m3x4(of_columns.map(|value| value * normalisers[half]));
                let place = start.wrapping_add(column as usize);
                // SAFETY: the columns are inside the row.
                unsafe {
                    if args.output_aligned != 0 {
                        global::store(place.cast::<u32>(), word);
                    } else {
                        for byte in 0..4 {
                            global::store(place.wrapping_add(byte), (word >> (8 * byte)) as u8);
                        }
                    }
                }
            }
        }
    }
}
