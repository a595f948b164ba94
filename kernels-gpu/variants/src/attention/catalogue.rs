//! The catalogue of attention kernels. [`LINES`] has one line for each configuration: tile sizes, stages, what it
//! serves, and the reason for it.

use layout::descriptor::K_STEP_BYTES;
use layout::text::same_text;
use layout::{Arch, Dtype};

use super::AttentionConfig as Config;
use super::{
    AttentionConfig, AttentionKernel, CONSUMER_REGISTERS, DECODE_KEYS, DecodeTile, MAX_HEAD_DIM, MaskKind, MmaTile,
    QuerySource, ScoreMod, Seqlens, TILE_SWIZZLE, WARP_ROWS, WARPGROUP_ROWS, WgmmaTile, has_transposed_values,
};
use crate::gemm::Accumulation;
use crate::lines::{Line, count, kernels};

/// Position of the configuration called `name` in [`ATTENTION`]; does not compile (in a constant) where there is none.
pub const fn config_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATTENTION.len() {
        if same_text(ATTENTION[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no configuration of ATTENTION has this name")
}

/// `m` query rows, `n` keys a step, on `wgmma`, for problems without a mask. Q is in shared memory.
const fn full(m: usize, n: usize, stages: usize) -> WgmmaTile {
    let (m_warpgroups, query) = (m / WARPGROUP_ROWS, QuerySource::Shared);
    WgmmaTile {
        m_warpgroups,
        split_kv_warpgroups: 1,
        split_kv_ctas: 1,
        multicast_ctas: 1,
        n,
        stages,
        query,
        q_stages: 1,
        mask: MaskKind::Full,
        accumulation: Accumulation::Direct,
    }
}

/// The same for every mask.
const fn masked(m: usize, n: usize, stages: usize) -> WgmmaTile {
    WgmmaTile { mask: MaskKind::Masked, ..full(m, n, stages) }
}

/// `warpgroups` split-KV warpgroups for each 64 query rows: they take its steps of `n` keys round-robin.
const fn split_kv(tile: WgmmaTile, warpgroups: usize) -> WgmmaTile {
    WgmmaTile { split_kv_warpgroups: warpgroups, ..tile }
}

/// Q of the next tile comes while this one is computed. Q in registers needs no second buffer for that.
const fn two_q_stages(tile: WgmmaTile) -> WgmmaTile {
    WgmmaTile { q_stages: 2, ..tile }
}

/// `blocks` split-KV blocks for each tile: they take its steps round-robin.
const fn split_kv_cluster(tile: WgmmaTile, blocks: usize) -> WgmmaTile {
    WgmmaTile { split_kv_ctas: blocks, ..tile }
}

/// `blocks` blocks that copy the keys and values of their tiles together, each a part for all.
const fn multicast(tile: WgmmaTile, blocks: usize) -> WgmmaTile {
    WgmmaTile { multicast_ctas: blocks, ..tile }
}

/// Q in registers instead of shared memory.
const fn q_registers(tile: WgmmaTile) -> WgmmaTile {
    WgmmaTile { query: QuerySource::Registers, ..tile }
}

/// P V of up to [`TWO_LEVEL_KEYS`](super::TWO_LEVEL_KEYS) keys in the tensor cores, and the sum of those in f32.
const fn two_level(tile: WgmmaTile) -> WgmmaTile {
    WgmmaTile { accumulation: Accumulation::TwoLevel, ..tile }
}

/// A decode kernel of `warps` warps, each with `stages` steps of 16 keys in shared memory.
const fn warps(warps: usize, stages: usize, registers: u32) -> DecodeTile {
    DecodeTile { m: WARP_ROWS, warps, stages, registers }
}

/// Two tiles of rows for each warp, which reads K and V for both.
const fn two_m_tiles(tile: DecodeTile) -> DecodeTile {
    DecodeTile { m: 2 * WARP_ROWS, ..tile }
}

/// The f16 and the bf16 kernel of a configuration. `both!("d64_decode_4w_s6", config)` is the line of
/// `attention_f16_d64_decode_4w_s6` and `attention_bf16_d64_decode_4w_s6`.
macro_rules! both {
    ($name:literal, $config:expr) => {
        Line {
            first: $config.named(concat!("attention_f16_", $name), Dtype::F16),
            bf16: Some($config.named(concat!("attention_bf16_", $name), Dtype::Bf16)),
        }
    };
}

/// The kernels of a configuration for inputs of E4M3, with an O of f16 and of bf16.
macro_rules! e4m3 {
    ($name:literal, $config:expr) => {
        Line {
            first: $config.named_e4m3(concat!("attention_e4m3_f16_", $name), Dtype::F16),
            bf16: Some($config.named_e4m3(concat!("attention_e4m3_bf16_", $name), Dtype::Bf16)),
        }
    };
}

/// The kernels of a configuration for K and V of E4M3, beside a Q and an O of f16 and of bf16.
macro_rules! e4m3_kv {
    ($name:literal, $config:expr) => {
        Line {
            first: $config.named_e4m3_kv(concat!("attention_f16_e4m3kv_", $name), Dtype::F16),
            bf16: Some($config.named_e4m3_kv(concat!("attention_bf16_e4m3kv_", $name), Dtype::Bf16)),
        }
    };
}

/// The kernels of a configuration for inputs of 8-bit integers, with an O of f16 and of bf16.
macro_rules! u8 {
    ($name:literal, $config:expr) => {
        Line {
            first: $config.named_u8(concat!("attention_u8_f16_", $name), Dtype::F16),
            bf16: Some($config.named_u8(concat!("attention_u8_bf16_", $name), Dtype::Bf16)),
        }
    };
}

/// Every compiled attention kernel. Those of one element type stand in the order of preference: on Ampere the first
/// that serves a problem runs. `docs/measurements` has what they were chosen from;
/// [`ATTENTION_STUDY`](crate::study::ATTENTION_STUDY) has kernels that measure one choice.
///
/// | name | kernel |
/// | --- | --- |
/// | `attention_<type>_scalar` | one warp a query row |
/// | `attention_<type>_d<head dim>_mma_<m>x<n>_s<stages>` | on `mma.sync`: m query rows, n keys a step |
/// | `attention_<type>_d<head dim>_wgmma_<mask>_<m>x<n>_s<stages>` | on `wgmma`; the mask is `full` or `masked` |
/// | `attention_<type>_d<head dim>_decode_<warps>w_s<stages>` | decoding |
///
/// | part of a name | meaning |
/// | --- | --- |
/// | `d192v128` | the head dimension of V is not that of Q and K |
/// | `64x128k2` | two split-KV warpgroups for each 64 query rows |
/// | `64x128k2c2` | the same, in each of two split-KV blocks of a cluster |
/// | `_q` | Q in registers |
/// | `_r32` | of decoding: 32 packed query rows a block instead of 16 |
/// | `_m2` | two blocks copy K and V for each other (multicast) |
/// | `e4m3_f16` | inputs of E4M3, O of f16 |
/// | `u8_f16` | inputs of 8-bit integers, O of f16 |
/// | `f16_e4m3kv` | K and V of E4M3, Q and O of f16 |
/// | `_direct` | of E4M3: P V is added up in the tensor cores |
/// | `_varlen` | serves varlen |
/// | `_softcap`, `_general` | serves a softcap alone; softcap and bias. Both serve varlen too, unless they decode |
pub const ATTENTION: &[AttentionConfig] = &kernels::<_, { count(LINES) }>(LINES);

/// One line a configuration, with the reason for it.
const LINES: &[Line<AttentionConfig>] = &[
    // Up to 16 query rows, whatever the architecture: what counts is the bytes in flight. The steps that four
    // warps, or two, have ahead are 64 to 80 KiB a block, and two blocks share a multiprocessor of sm_90.
    both!("d64_decode_4w_s6", Config::decode(64, warps(4, 6, 255))),
    both!("d128_decode_4w_s3", Config::decode(128, warps(4, 3, 255))),
    both!("d256_decode_2w_s3", Config::decode(256, warps(2, 3, 255))),
    // More than 16 packed rows: tiles of 32 read K and V half as often.
    both!("d64_decode_4w_s6_r32", Config::decode(64, two_m_tiles(warps(4, 6, 255)))),
    both!("d128_decode_4w_s3_r32", Config::decode(128, two_m_tiles(warps(4, 3, 255)))),
    // Up to 16 rows with softcap and bias.
    both!("d64_decode_4w_s6_general", Config::decode(64, warps(4, 6, 255)).score_mod()),
    both!("d128_decode_4w_s3_general", Config::decode(128, warps(4, 3, 255)).score_mod()),
    both!("d256_decode_2w_s3_general", Config::decode(256, warps(2, 3, 255)).score_mod()),
    // WGMMA. Head dimension 64 has little for the tensor cores to do between exponentials: three or four warpgroups
    // share them. 192 rows by 128 keys, 553 TFLOP/s at 4x32x4096 on an H200; long sequences.
    both!("d64_wgmma_full_192x128_s4", Config::wgmma(64, two_q_stages(full(192, 128, 4)))),
    // Four warpgroups along M, in ping-pong: 556 TFLOP/s there, and 486 at 16x32x1024, where 192x128 has 446.
    both!("d64_wgmma_full_256x96_s4", Config::wgmma(64, two_q_stages(full(256, 96, 4)))),
    // 512 TFLOP/s there, and ahead at 512 rows and keys, which neither 192 nor 96 divide.
    both!("d64_wgmma_full_256x64_s4", Config::wgmma(64, two_q_stages(full(256, 64, 4)))),
    // Few tiles: two warpgroups share 64 rows and split the keys.
    both!("d64_wgmma_full_64x128k2_s4", Config::wgmma(64, split_kv(full(64, 128, 4), 2))),
    // Two blocks of a cluster split the keys too: 1x8x512 has work for all multiprocessors.
    both!("d64_wgmma_full_64x128k2c2_s4", Config::wgmma(64, split_kv_cluster(split_kv(full(64, 128, 4), 2), 2))),
    // 128 rows for each copy of K and V, two split-KV warpgroups: 1x8x2048 is one tile a multiprocessor, and 64
    // rows each wait for L2.
    both!("d64_wgmma_full_128x64k2_s8", Config::wgmma(64, split_kv(full(128, 64, 8), 2))),
    // Steps of more keys, in ping-pong, where few are beyond the last: 1x8x2048 takes 4 % less time, and 1x16x1024
    // 1 % more.
    both!("d64_wgmma_full_128x96k2_s4", Config::wgmma(64, split_kv(full(128, 96, 4), 2))),
    // Two warpgroups along M, for sequences of 128.
    both!("d64_wgmma_full_128x128_s4", Config::wgmma(64, two_q_stages(full(128, 128, 4)))),
    // One warpgroup along M: the most blocks without a sum over warpgroups.
    both!("d64_wgmma_full_64x128_s4", Config::wgmma(64, full(64, 128, 4))),
    // The same with masks.
    both!("d64_wgmma_masked_256x64_s4", Config::wgmma(64, two_q_stages(masked(256, 64, 4)))),
    both!("d64_wgmma_masked_192x128_s4", Config::wgmma(64, two_q_stages(masked(192, 128, 4)))),
    both!("d64_wgmma_masked_128x64_s4", Config::wgmma(64, two_q_stages(masked(128, 64, 4)))),
    both!("d64_wgmma_masked_64x128k2_s4", Config::wgmma(64, split_kv(masked(64, 128, 4), 2))),
    both!("d64_wgmma_masked_64x128k2c2_s4", Config::wgmma(64, split_kv_cluster(split_kv(masked(64, 128, 4), 2), 2))),
    both!("d64_wgmma_masked_64x128_s4", Config::wgmma(64, masked(64, 128, 4))),
    // Two panels as head dimension 128 has, a quarter less arithmetic.
    both!("d96_wgmma_full_128x128_s3_q", Config::wgmma(96, q_registers(full(128, 128, 3)))),
    both!("d96_wgmma_full_128x128_s3_q_m2", Config::wgmma(96, multicast(q_registers(full(128, 128, 3)), 2))),
    both!("d96_wgmma_masked_128x128_s3_q", Config::wgmma(96, q_registers(masked(128, 128, 3)))),
    // Two warpgroups, which leave 240 registers for S, P, O and Q. Three stages: 1 to 5 % ahead of two.
    both!("d128_wgmma_full_128x128_s3_q", Config::wgmma(128, q_registers(full(128, 128, 3)))),
    // Two blocks copy keys and values for each other, half the reads of L2 and less power: 0.3 to 1.7 % ahead of
    // the configuration above.
    both!("d128_wgmma_full_128x128_s3_q_m2", Config::wgmma(128, multicast(q_registers(full(128, 128, 3)), 2))),
    both!("d128_wgmma_full_64x128_s2", Config::wgmma(128, full(64, 128, 2))),
    both!("d128_wgmma_masked_128x128_s3_q", Config::wgmma(128, q_registers(masked(128, 128, 3)))),
    both!("d128_wgmma_masked_64x128_s2", Config::wgmma(128, masked(64, 128, 2))),
    // V narrower than K leaves room for 128 keys a step, and registers for Q: 739 TFLOP/s at 4x16x4096 on an H200,
    // 3.5 % ahead of Q in shared memory and 13 % of the configuration below.
    both!("d192v128_wgmma_full_128x128_s2_q", Config::wgmma(192, q_registers(full(128, 128, 2))).value_dim(128)),
    both!(
        "d192v128_wgmma_full_128x128_s2_q_m2",
        Config::wgmma(192, multicast(q_registers(full(128, 128, 2)), 2)).value_dim(128)
    ),
    both!("d192v128_wgmma_masked_128x128_s2_q", Config::wgmma(192, q_registers(masked(128, 128, 2))).value_dim(128)),
    // Two stages of 96 keys, all that shared memory holds.
    both!("d192_wgmma_full_128x96_s2", Config::wgmma(192, full(128, 96, 2))),
    both!("d192_wgmma_masked_128x96_s2", Config::wgmma(192, masked(128, 96, 2))),
    // Steps of 64 keys end with 512, where 96 leave 64 beyond the end, and leave registers for Q: 9 % ahead.
    both!("d192_wgmma_full_128x64_s3_q", Config::wgmma(192, q_registers(full(128, 64, 3)))),
    both!("d192_wgmma_masked_128x64_s3_q", Config::wgmma(192, q_registers(masked(128, 64, 3)))),
    // Two stages of 80 keys: 748 TFLOP/s at 4x8x4096, 1.05 of cuDNN.
    both!("d256_wgmma_full_128x80_s2", Config::wgmma(256, full(128, 80, 2))),
    both!("d256_wgmma_masked_128x80_s2", Config::wgmma(256, masked(128, 80, 2))),
    // Steps of 64 keys end with 512, of which 80 leave 48 beyond the end: 4 % ahead there.
    both!("d256_wgmma_full_128x64_s2", Config::wgmma(256, full(128, 64, 2))),
    both!("d256_wgmma_masked_128x64_s2", Config::wgmma(256, masked(128, 64, 2))),
    // Sequences of several lengths, of every mask, as lengths are not known before the launch. The search takes
    // registers of the producer, and leaves 152 or 232 to consumers. Three warpgroups along M at head dimension 64:
    // 424 TFLOP/s at 8x32x4096 causal on an H200, where two of 128 keys a step have 393.
    both!("d64_wgmma_masked_192x96_s4_varlen", Config::wgmma(64, masked(192, 96, 4)).varlen()),
    // The tiles of configurations of equal lengths, which fit beside the search too: 0.92 of their speed at
    // 8x16x4096 causal.
    both!("d128_wgmma_masked_128x128_s3_q_varlen", Config::wgmma(128, q_registers(masked(128, 128, 3))).varlen()),
    // Q in registers as well is more than the search leaves.
    both!("d192v128_wgmma_masked_128x128_s2_varlen", Config::wgmma(192, masked(128, 128, 2)).value_dim(128).varlen()),
    both!("d256_wgmma_masked_128x80_s2_varlen", Config::wgmma(256, masked(128, 80, 2)).varlen()),
    // Softcap beside that, by two more operations of the unit that computes exponentials, which then has more to do
    // than the tensor cores. Four warpgroups along M at head dimension 64: 1,070 us at 4x32x4096 causal on an H200,
    // where three of 96 or 128 keys a step take 1,220 and 1,194.
    both!("d64_wgmma_masked_256x64_s4_softcap", Config::wgmma(64, two_q_stages(masked(256, 64, 4))).softcap()),
    // 648 us at 4x16x4096 causal; 96 keys a step 660, and three warpgroups along M by 64 or 80 keys 665 and 674.
    both!("d128_wgmma_masked_128x128_s3_q_softcap", Config::wgmma(128, q_registers(masked(128, 128, 3))).softcap()),
    // 484 us at 4x8x4096 causal; 64 keys a step 508.
    both!("d256_wgmma_masked_128x80_s2_softcap", Config::wgmma(256, masked(128, 80, 2)).softcap()),
    // Softcap and bias beside that. The bias of a step is on its way to shared memory while the one after it is
    // computed.
    both!("d64_wgmma_masked_192x96_s4_general", Config::wgmma(64, masked(192, 96, 4)).general()),
    both!("d128_wgmma_masked_128x128_s2_general", Config::wgmma(128, masked(128, 128, 2)).general()),
    both!("d256_wgmma_masked_128x64_s2_general", Config::wgmma(256, masked(128, 64, 2)).general()),
    // E4M3: tensor cores take half the time, and exponentials as much as before. Many keys a step spread what a step
    // costs beside them. Sums with two levels, where registers hold S, P, O and a part of O.
    e4m3!("d64_wgmma_full_128x224_s3", Config::wgmma(64, two_level(two_q_stages(full(128, 224, 3))))),
    e4m3!("d64_wgmma_masked_128x192_s3", Config::wgmma(64, two_level(two_q_stages(masked(128, 192, 3))))),
    e4m3!("d96_wgmma_full_128x128_s3", Config::wgmma(96, two_level(two_q_stages(full(128, 128, 3))))),
    e4m3!("d96_wgmma_masked_128x128_s3_q", Config::wgmma(96, two_level(q_registers(masked(128, 128, 3))))),
    e4m3!("d128_wgmma_full_128x128_s3", Config::wgmma(128, two_level(two_q_stages(full(128, 128, 3))))),
    e4m3!("d128_wgmma_masked_128x128_s3_q", Config::wgmma(128, two_level(q_registers(masked(128, 128, 3))))),
    // Above 128 kernels without masks take no less time, as measured at 256.
    e4m3!("d192v128_wgmma_masked_128x128_s3", Config::wgmma(192, two_level(masked(128, 128, 3))).value_dim(128)),
    e4m3!("d192_wgmma_masked_128x128_s2", Config::wgmma(192, two_level(two_q_stages(masked(128, 128, 2))))),
    e4m3!("d256_wgmma_masked_128x96_s2", Config::wgmma(256, two_level(two_q_stages(masked(128, 96, 2))))),
    // Without the part.
    e4m3!("d64_wgmma_full_192x128_s4_direct", Config::wgmma(64, two_q_stages(full(192, 128, 4)))),
    e4m3!("d64_wgmma_masked_128x256_s3_direct", Config::wgmma(64, two_q_stages(masked(128, 256, 3)))),
    e4m3!("d128_wgmma_full_128x128_s3_direct", Config::wgmma(128, two_q_stages(full(128, 128, 3)))),
    e4m3!("d128_wgmma_masked_128x192_s2_direct", Config::wgmma(128, two_q_stages(masked(128, 192, 2)))),
    e4m3!("d256_wgmma_masked_128x96_s2_direct", Config::wgmma(256, two_q_stages(masked(128, 96, 2)))),
    // 64 rows by 64 keys, two stages: the best, or within 4 % of it, at every length.
    both!("d64_mma_64x64_s2", Config::mma(64, MmaTile::new(64, 64, 2))),
    // At this head dimension 64 keys a step do not fit the register budget.
    both!("d128_mma_64x32_s2", Config::mma(128, MmaTile::new(64, 32, 2))),
    // Every other head dimension, and the oracle on the card.
    both!("scalar", Config::scalar()),
    // Softcap, bias and sequences of several lengths.
    both!("d64_mma_64x64_s2_general", Config::mma(64, MmaTile::new(64, 64, 2)).general()),
    both!("d128_mma_64x32_s2_general", Config::mma(128, MmaTile::new(64, 32, 2)).general()),
    both!("scalar_general", Config::scalar().general()),
    // Decoding with K and V of E4M3, which are half the bytes for as many instructions: more warps. Two blocks share a
    // multiprocessor of sm_90, with 128 to 160 KiB in flight. In three blocks of four warps at head dimension 128, a
    // block that is alone reads 63 % of what three do together (16x32:8x1x8192x128 on an H200).
    e4m3_kv!("d64_decode_8w_s6", Config::decode(64, warps(8, 6, 128))),
    e4m3_kv!("d128_decode_6w_s4", Config::decode(128, warps(6, 4, 168))),
    e4m3_kv!("d256_decode_4w_s3", Config::decode(256, warps(4, 3, 255))),
    // E4M3 where there is no `wgmma`, or where TMA cannot copy the tensors. The tiles are those of 16-bit elements, of
    // half the bytes.
    e4m3!("d64_mma_64x64_s2", Config::mma(64, MmaTile::new(64, 64, 2))),
    e4m3!("d128_mma_64x32_s2", Config::mma(128, MmaTile::new(64, 32, 2))),
    e4m3!("d256_mma_64x32_s2", Config::mma(256, MmaTile::new(64, 32, 2))),
    // The same with softcap, bias and sequences of several lengths.
    e4m3!("d64_mma_64x64_s2_general", Config::mma(64, MmaTile::new(64, 64, 2)).general()),
    e4m3!("d128_mma_64x32_s2_general", Config::mma(128, MmaTile::new(64, 32, 2)).general()),
    e4m3!("d256_mma_64x32_s2_general", Config::mma(256, MmaTile::new(64, 32, 2)).general()),
    // Sequences of several lengths of E4M3 on `wgmma`: the tiles of equal lengths fit beside the search.
    e4m3!(
        "d64_wgmma_masked_128x192_s3_varlen",
        Config::wgmma(64, two_level(two_q_stages(masked(128, 192, 3)))).varlen()
    ),
    e4m3!(
        "d128_wgmma_masked_128x128_s3_q_varlen",
        Config::wgmma(128, two_level(q_registers(masked(128, 128, 3)))).varlen()
    ),
    e4m3!(
        "d256_wgmma_masked_128x96_s2_varlen",
        Config::wgmma(256, two_level(two_q_stages(masked(128, 96, 2)))).varlen()
    ),
    // A softcap beside that; steps of 96 keys spill at head dimension 256.
    e4m3!(
        "d64_wgmma_masked_128x192_s3_softcap",
        Config::wgmma(64, two_level(two_q_stages(masked(128, 192, 3)))).softcap()
    ),
    e4m3!(
        "d128_wgmma_masked_128x128_s3_q_softcap",
        Config::wgmma(128, two_level(q_registers(masked(128, 128, 3)))).softcap()
    ),
    e4m3!(
        "d256_wgmma_masked_128x64_s3_softcap",
        Config::wgmma(256, two_level(two_q_stages(masked(128, 64, 3)))).softcap()
    ),
    // Softcap and bias beside that.
    e4m3!("d64_wgmma_masked_128x128_s3_general", Config::wgmma(64, two_level(masked(128, 128, 3))).general()),
    e4m3!("d128_wgmma_masked_128x128_s2_general", Config::wgmma(128, two_level(masked(128, 128, 2))).general()),
    e4m3!("d256_wgmma_masked_128x64_s3_general", Config::wgmma(256, two_level(masked(128, 64, 3))).general()),
    // 8-bit integers, on their way to shared memory widened to f16: the tiles and products of 16-bit elements, in the
    // same order.
    u8!("d64_mma_64x64_s2", Config::mma(64, MmaTile::new(64, 64, 2).through_registers())),
    u8!("d128_mma_64x32_s2", Config::mma(128, MmaTile::new(64, 32, 2).through_registers())),
    u8!("scalar", Config::scalar()),
    u8!("d64_mma_64x64_s2_general", Config::mma(64, MmaTile::new(64, 64, 2).through_registers()).general()),
    u8!("d128_mma_64x32_s2_general", Config::mma(128, MmaTile::new(64, 32, 2).through_registers()).general()),
    u8!("scalar_general", Config::scalar().general()),
];

const _: () = assert_all_fit(ATTENTION);

/// Does not compile (in a constant) for a configuration whose shared memory or threads cannot fit the smallest
/// architecture.
pub(crate) const fn assert_all_fit(configs: &[AttentionConfig]) {
    let mut index = 0;
    while index < configs.len() {
        let config = &configs[index];
        let smem = config.smem().assert_fits(if config.compiled_for(Arch::Sm89) { Arch::Sm89 } else { config.arch() });
        // Rows of a tile fill its panels, or half of them where they are those of `mma`.
        let filled_bytes = match config.kernel {
            AttentionKernel::Mma(_) => config.swizzle().row_bytes() / 2,
            _ => config.swizzle().row_bytes(),
        };
        assert!(
            matches!(config.kernel, AttentionKernel::Wgmma(_))
                || config.value_dim == config.head_dim
                    && (config.head_dim * config.tile_elem_bytes()).is_multiple_of(filled_bytes as usize)
        );
        assert!(
            config.head_dim <= MAX_HEAD_DIM
                && config.value_dim <= MAX_HEAD_DIM
                && config.threads() <= 1024
                && config.min_blocks() >= 1
        );
        assert!(
            !matches!(config.score_mod, ScoreMod::Softcap)
                || matches!(config.kernel, AttentionKernel::Wgmma(tile) if tile.kv_splits() == 1),
            "only a tile whose keys are not split takes the cap from its log-sum-exp"
        );
        if let AttentionKernel::Wgmma(tile) = config.kernel {
            assert!(
                (config.head_dim * config.dtype.size_bytes()).is_multiple_of(K_STEP_BYTES as usize)
                    && (tile.n * config.dtype.size_bytes()).is_multiple_of(K_STEP_BYTES as usize)
                    && config.value_dim.is_multiple_of(16),
                "whole steps along K of both products"
            );
            let is_plain = tile.consumers() > 1 && tile.kv_splits() == 1 && tile.multicast_ctas == 1;
            assert!(
                !has_transposed_values(config.dtype) || is_plain,
                "V is transposed for one block, whose warpgroups have rows of their own"
            );
            assert!(
                matches!(tile.accumulation, Accumulation::Direct) || has_transposed_values(config.dtype),
                "sums of 16-bit elements have the bits of f32"
            );
            assert!(tile.n <= 256 && tile.m() <= 256 && tile.consumers() < CONSUMER_REGISTERS.len());
            assert!(
                !matches!(config.score_mod, ScoreMod::General) || tile.n.is_multiple_of(32),
                "a thread bounds 16 scores at a time, and has one of two keys"
            );
            assert!(tile.stages > tile.split_kv_warpgroups, "a warpgroup waits for its next step while it holds one");
            assert!(
                tile.kv_splits() == 1
                    || tile.kv_splits().is_power_of_two()
                        && tile.stages.is_power_of_two()
                        && (config.value_dim / 16).is_multiple_of(tile.kv_splits()),
                "each split reduces whole chunks of O"
            );
            assert!(tile.kv_splits() == 1 || matches!(tile.query, QuerySource::Shared), "splits leave Q at their end");
            assert!(
                tile.multicast_ctas == 1
                    || tile.n.is_multiple_of(
                        tile.multicast_ctas * (TILE_SWIZZLE.period_bytes() / TILE_SWIZZLE.row_bytes()) as usize
                    ) && tile.kv_splits() == 1
                        && matches!(tile.mask, MaskKind::Full)
                        && matches!(config.seqlens, Seqlens::Fixed),
                "blocks that copy for each other take the same steps, and each a part that starts with the swizzle"
            );
        }
        if let AttentionKernel::Decode(tile) = config.kernel {
            // A warp's O, maxima and sums take the place of its stages.
            assert!(tile.m.is_multiple_of(WARP_ROWS) && tile.m > 0);
            let result_words = tile.m * (config.head_dim + 8 + 2);
            assert!(
                result_words * size_of::<f32>()
                    <= tile.stages * 2 * DECODE_KEYS * config.head_dim * config.kv_dtype.size_bytes()
            );
            assert!(tile.stages >= 2 && DECODE_KEYS == 16);
            assert!(config.kv_dtype.size_bytes() == 2 || config.has_e4m3_kv(), "Q of 16 bits");
        }
        if let AttentionKernel::Mma(tile) = config.kernel {
            assert!(
                tile.m.is_multiple_of(WARP_ROWS) && (tile.n * config.tile_elem_bytes()).is_multiple_of(32),
                "tiles are made of products of 32 bytes along K"
            );
            assert!(tile.stages == 1 || tile.stages == 2);
            let row_chunks = config.head_dim * config.tile_elem_bytes() / 16;
            assert!(
                (tile.n * row_chunks).is_multiple_of(config.threads() as usize),
                "each thread copies as many chunks as any other"
            );
            // Two blocks on a multiprocessor of sm_80 at head dimension 64; each takes 1 KiB for the system.
            let two_blocks = 2 * (smem.total_bytes() + 1024);
            assert!(config.head_dim > 64 || two_blocks <= Arch::Sm80.limits().shared_bytes);
        }
        index += 1;
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::attention::{PvUnit, TileCopy};
    use crate::study::ATTENTION_STUDY;
    use std::collections::HashSet;
    use std::format;
    use std::string::String;

    /// The element type of O, where it is not that of Q.
    fn of_out(config: &AttentionConfig) -> String {
        if config.out == config.dtype { String::new() } else { format!("_{}", config.out) }
    }

    fn composed_name(config: &AttentionConfig) -> String {
        let kernel = match config.kernel {
            AttentionKernel::Scalar => format!("attention_{}{}_scalar", config.dtype, of_out(config)),
            AttentionKernel::Decode(tile) => format!(
                "attention_{}{}_d{}_decode_{}w_s{}{}",
                config.dtype,
                if config.has_e4m3_kv() { "_e4m3kv" } else { "" },
                config.head_dim,
                tile.warps,
                tile.stages,
                if tile.m == WARP_ROWS { String::new() } else { format!("_r{}", tile.m) },
            ),
            AttentionKernel::Wgmma(tile) => format!(
                "attention_{}{}_d{}{}_wgmma_{}_{}x{}{}{}_s{}{}{}{}",
                config.dtype,
                of_out(config),
                config.head_dim,
                if config.value_dim == config.head_dim { String::new() } else { format!("v{}", config.value_dim) },
                if tile.mask == MaskKind::Full { "full" } else { "masked" },
                tile.m(),
                tile.n,
                if tile.split_kv_warpgroups > 1 { format!("k{}", tile.split_kv_warpgroups) } else { String::new() },
                if tile.split_kv_ctas > 1 { format!("c{}", tile.split_kv_ctas) } else { String::new() },
                tile.stages,
                if tile.query == QuerySource::Registers { "_q" } else { "" },
                if tile.multicast_ctas > 1 { format!("_m{}", tile.multicast_ctas) } else { String::new() },
                if config.dtype == Dtype::E4M3 && tile.accumulation == Accumulation::Direct { "_direct" } else { "" },
            ),
            AttentionKernel::Mma(tile) => format!(
                "attention_{}{}_d{}_mma_{}x{}_s{}{}{}",
                config.dtype,
                of_out(config),
                config.head_dim,
                tile.m,
                tile.n,
                tile.stages,
                // Those of 8-bit integers have no other way.
                if tile.copy == TileCopy::ThroughRegisters && config.dtype != Dtype::U8 { "_ldg" } else { "" },
                if tile.pv == PvUnit::Scalar { "_fma" } else { "" },
            ),
        };
        kernel
            + match (config.score_mod, config.seqlens) {
                (ScoreMod::None, Seqlens::Fixed) => "",
                (ScoreMod::None, Seqlens::Varlen) => "_varlen",
                (ScoreMod::Softcap, _) => "_softcap",
                (ScoreMod::General, _) => "_general",
            }
    }

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::new();
        for (index, config) in ATTENTION.iter().enumerate() {
            assert_eq!(config_index(config.name), index);
        }
        for config in ATTENTION.iter().chain(ATTENTION_STUDY) {
            assert_eq!(config.name, composed_name(config));
            assert!(names.insert(config.name));
        }
    }
}
