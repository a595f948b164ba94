//! The table of compiled attention kernels.

use super::{
    AttentionKernel, AttentionVariant, CONSUMER_REGISTERS, DECODE_KEYS, DecodeTile, Lengths, MAX_HEAD_DIM, MaskKind,
    PvUnit, QuerySource, Scores, TILE_SWIZZLE, TileCopy, WARP_ROWS, WARPGROUP_ROWS, WgmmaTile, WmmaTile,
};
use crate::text::same_text;
use crate::{Arch, Dtype};

/// Position of the row called `name` in [`ATTENTION`]; does not compile (in a constant) where there is none.
pub const fn row_index(name: &str) -> usize {
    let mut index = 0;
    while index < ATTENTION.len() {
        if same_text(ATTENTION[index].name, name) {
            return index;
        }
        index += 1;
    }
    panic!("no row of ATTENTION has this name")
}

const fn tile(m: usize, n: usize, stages: usize) -> WmmaTile {
    WmmaTile { m, n, stages, copy: TileCopy::Async, pv: PvUnit::TensorCore }
}

const fn through_registers(tile: WmmaTile) -> WmmaTile {
    WmmaTile { copy: TileCopy::ThroughRegisters, ..tile }
}

const fn scalar_pv(tile: WmmaTile) -> WmmaTile {
    WmmaTile { pv: PvUnit::Scalar, ..tile }
}

/// `m` query rows, `n` keys a step, Q in shared memory.
const fn full(m: usize, n: usize, stages: usize) -> WgmmaTile {
    let (row_groups, query) = (m / WARPGROUP_ROWS, QuerySource::Shared);
    WgmmaTile {
        row_groups,
        key_groups: 1,
        cluster: 1,
        multicast: 1,
        n,
        stages,
        query,
        q_stages: 1,
        mask: MaskKind::Full,
    }
}

const fn band(m: usize, n: usize, stages: usize) -> WgmmaTile {
    WgmmaTile { mask: MaskKind::Band, ..full(m, n, stages) }
}

/// `groups` warpgroups that share each 64 query rows and take steps of `n` keys in turns.
const fn split(tile: WgmmaTile, groups: usize) -> WgmmaTile {
    WgmmaTile { key_groups: groups, ..tile }
}

/// Q of the next tile comes while this one is computed. Q in registers needs no second buffer for that.
const fn q_ahead(tile: WgmmaTile) -> WgmmaTile {
    WgmmaTile { q_stages: 2, ..tile }
}

/// `blocks` blocks that share a tile and take its steps in turns.
const fn clustered(tile: WgmmaTile, blocks: usize) -> WgmmaTile {
    WgmmaTile { cluster: blocks, ..tile }
}

/// `blocks` blocks that copy the keys and values of their tiles together, each a part for all.
const fn multicast(tile: WgmmaTile, blocks: usize) -> WgmmaTile {
    WgmmaTile { multicast: blocks, ..tile }
}

const fn q_registers(tile: WgmmaTile) -> WgmmaTile {
    WgmmaTile { query: QuerySource::Registers, ..tile }
}

const fn warps(warps: usize, stages: usize, registers: u32) -> DecodeTile {
    DecodeTile { warps, stages, registers }
}

/// Every compiled attention kernel, those of one element type in the order of preference: the first row that serves a
/// problem is the one to run (`docs/measurements` has what they were chosen from).
///
/// Names:
/// - `attention_<type>_scalar`;
/// - `attention_<type>_d<head dim>_wmma_<m>x<n>_s<stages>` for the rows on `mma.sync`, then `_ldg` where tiles go
///   through registers and `_fma` where P V is scalar;
/// - `attention_<type>_d<head dim>[v<head dim of V>]_wgmma_<mask>_<m>x<n>[k<key groups>][c<cluster>]_s<stages>`, where
///   the mask is `full` or `band`, then `_q` where Q is in registers and `_m<blocks>` where so many blocks copy K and V
///   for each other;
/// - `attention_<type>_d<head dim>_decode_<warps>w_s<stages>`.
///
/// Rows that serve every kind of lengths have `_varlen` at the end, those that serve every kind of scores `_general`,
/// those that serve a softcap alone `_softcap`; the last two serve every kind of lengths too unless they decode.
pub const ATTENTION: &[AttentionVariant] = {
    use AttentionVariant as Row;
    use Dtype::{Bf16, F16};
    &[
        // Up to 16 query rows, whatever the architecture: what counts is the bytes under way. The steps that four
        // warps, or two, have ahead are 64 to 80 KiB a block, and two blocks share a multiprocessor of sm_90.
        Row::decode("attention_f16_d64_decode_4w_s6", F16, 64, warps(4, 6, 255)),
        Row::decode("attention_f16_d128_decode_4w_s3", F16, 128, warps(4, 3, 255)),
        Row::decode("attention_f16_d256_decode_2w_s3", F16, 256, warps(2, 3, 255)),
        Row::decode("attention_bf16_d64_decode_4w_s6", Bf16, 64, warps(4, 6, 255)),
        Row::decode("attention_bf16_d128_decode_4w_s3", Bf16, 128, warps(4, 3, 255)),
        Row::decode("attention_bf16_d256_decode_2w_s3", Bf16, 256, warps(2, 3, 255)),
        // The same with softcap and bias.
        Row::decode("attention_f16_d64_decode_4w_s6_general", F16, 64, warps(4, 6, 255)).scored(),
        Row::decode("attention_f16_d128_decode_4w_s3_general", F16, 128, warps(4, 3, 255)).scored(),
        Row::decode("attention_f16_d256_decode_2w_s3_general", F16, 256, warps(2, 3, 255)).scored(),
        Row::decode("attention_bf16_d64_decode_4w_s6_general", Bf16, 64, warps(4, 6, 255)).scored(),
        Row::decode("attention_bf16_d128_decode_4w_s3_general", Bf16, 128, warps(4, 3, 255)).scored(),
        Row::decode("attention_bf16_d256_decode_2w_s3_general", Bf16, 256, warps(2, 3, 255)).scored(),
        // WGMMA rows. Head dimension 64 has little for the tensor cores to do between exponentials: three or four
        // warpgroups of rows take turns with them. 192 rows by 128 keys, 553 TFLOP/s at 4x32x4096 on an H200; long
        // sequences.
        Row::wgmma("attention_f16_d64_wgmma_full_192x128_s4", F16, 64, q_ahead(full(192, 128, 4))),
        // Four groups of rows, which have the tensor cores in turns: 556 TFLOP/s there, and 486 at 16x32x1024, where
        // 192x128 has 446.
        Row::wgmma("attention_f16_d64_wgmma_full_256x96_s4", F16, 64, q_ahead(full(256, 96, 4))),
        // 512 TFLOP/s there, and ahead at 512 rows and keys, which neither 192 nor 96 divide.
        Row::wgmma("attention_f16_d64_wgmma_full_256x64_s4", F16, 64, q_ahead(full(256, 64, 4))),
        // Few tiles: two warpgroups share 64 rows and take the keys in turns.
        Row::wgmma("attention_f16_d64_wgmma_full_64x128k2_s4", F16, 64, split(full(64, 128, 4), 2)),
        // Two blocks of a cluster take the keys in turns too: 1x8x512 has work for all multiprocessors.
        Row::wgmma("attention_f16_d64_wgmma_full_64x128k2c2_s4", F16, 64, clustered(split(full(64, 128, 4), 2), 2)),
        // 128 rows for each copy of K and V, two groups of keys: 1x8x2048 is one tile a multiprocessor, and 64 rows
        // each wait for L2.
        Row::wgmma("attention_f16_d64_wgmma_full_128x64k2_s8", F16, 64, split(full(128, 64, 8), 2)),
        // Steps of more keys, in turns, where few are beyond the last: 1x8x2048 takes 4 % less time, and 1x16x1024 1 %
        // more.
        Row::wgmma("attention_f16_d64_wgmma_full_128x96k2_s4", F16, 64, split(full(128, 96, 4), 2)),
        // Two warpgroups of rows, for sequences of 128.
        Row::wgmma("attention_f16_d64_wgmma_full_128x128_s4", F16, 64, q_ahead(full(128, 128, 4))),
        // One warpgroup of rows: the most blocks without a sum over warpgroups.
        Row::wgmma("attention_f16_d64_wgmma_full_64x128_s4", F16, 64, full(64, 128, 4)),
        // The same with masks.
        Row::wgmma("attention_f16_d64_wgmma_band_256x64_s4", F16, 64, q_ahead(band(256, 64, 4))),
        Row::wgmma("attention_f16_d64_wgmma_band_192x128_s4", F16, 64, q_ahead(band(192, 128, 4))),
        Row::wgmma("attention_f16_d64_wgmma_band_128x64_s4", F16, 64, q_ahead(band(128, 64, 4))),
        Row::wgmma("attention_f16_d64_wgmma_band_64x128k2_s4", F16, 64, split(band(64, 128, 4), 2)),
        Row::wgmma("attention_f16_d64_wgmma_band_64x128k2c2_s4", F16, 64, clustered(split(band(64, 128, 4), 2), 2)),
        Row::wgmma("attention_f16_d64_wgmma_band_64x128_s4", F16, 64, band(64, 128, 4)),
        // Two panels as head dimension 128 has, a quarter less arithmetic.
        Row::wgmma("attention_f16_d96_wgmma_full_128x128_s3_q", F16, 96, q_registers(full(128, 128, 3))),
        Row::wgmma(
            "attention_f16_d96_wgmma_full_128x128_s3_q_m2",
            F16,
            96,
            multicast(q_registers(full(128, 128, 3)), 2),
        ),
        Row::wgmma("attention_f16_d96_wgmma_band_128x128_s3_q", F16, 96, q_registers(band(128, 128, 3))),
        // Two warpgroups, which leave 240 registers for S, P, O and Q. Three stages: 1 to 5 % ahead of two.
        Row::wgmma("attention_f16_d128_wgmma_full_128x128_s3_q", F16, 128, q_registers(full(128, 128, 3))),
        // Two blocks copy keys and values for each other, half the reads of L2 and less power: 0.3 to 1.7 % ahead of
        // the row above.
        Row::wgmma(
            "attention_f16_d128_wgmma_full_128x128_s3_q_m2",
            F16,
            128,
            multicast(q_registers(full(128, 128, 3)), 2),
        ),
        Row::wgmma("attention_f16_d128_wgmma_full_64x128_s2", F16, 128, full(64, 128, 2)),
        Row::wgmma("attention_f16_d128_wgmma_band_128x128_s3_q", F16, 128, q_registers(band(128, 128, 3))),
        Row::wgmma("attention_f16_d128_wgmma_band_64x128_s2", F16, 128, band(64, 128, 2)),
        // V narrower than K leaves room for 128 keys a step, and registers for Q: 739 TFLOP/s at 4x16x4096 on an H200,
        // 3.5 % ahead of Q in shared memory and 13 % of the row below.
        Row::wgmma("attention_f16_d192v128_wgmma_full_128x128_s2_q", F16, 192, q_registers(full(128, 128, 2)))
            .values(128),
        Row::wgmma(
            "attention_f16_d192v128_wgmma_full_128x128_s2_q_m2",
            F16,
            192,
            multicast(q_registers(full(128, 128, 2)), 2),
        )
        .values(128),
        Row::wgmma("attention_f16_d192v128_wgmma_band_128x128_s2_q", F16, 192, q_registers(band(128, 128, 2)))
            .values(128),
        // Two stages of 96 keys, all that shared memory holds.
        Row::wgmma("attention_f16_d192_wgmma_full_128x96_s2", F16, 192, full(128, 96, 2)),
        Row::wgmma("attention_f16_d192_wgmma_band_128x96_s2", F16, 192, band(128, 96, 2)),
        // Steps of 64 keys end with 512, where 96 leave 64 beyond the end, and leave registers for Q: 9 % ahead.
        Row::wgmma("attention_f16_d192_wgmma_full_128x64_s3_q", F16, 192, q_registers(full(128, 64, 3))),
        Row::wgmma("attention_f16_d192_wgmma_band_128x64_s3_q", F16, 192, q_registers(band(128, 64, 3))),
        // Two stages of 80 keys: 748 TFLOP/s at 4x8x4096, 1.05 of cuDNN.
        Row::wgmma("attention_f16_d256_wgmma_full_128x80_s2", F16, 256, full(128, 80, 2)),
        Row::wgmma("attention_f16_d256_wgmma_band_128x80_s2", F16, 256, band(128, 80, 2)),
        // Steps of 64 keys end with 512, of which 80 leave 48 beyond the end: 4 % ahead there.
        Row::wgmma("attention_f16_d256_wgmma_full_128x64_s2", F16, 256, full(128, 64, 2)),
        Row::wgmma("attention_f16_d256_wgmma_band_128x64_s2", F16, 256, band(128, 64, 2)),
        // bf16 as f16, row by row.
        Row::wgmma("attention_bf16_d64_wgmma_full_192x128_s4", Bf16, 64, q_ahead(full(192, 128, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_full_256x96_s4", Bf16, 64, q_ahead(full(256, 96, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_full_256x64_s4", Bf16, 64, q_ahead(full(256, 64, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_full_64x128k2_s4", Bf16, 64, split(full(64, 128, 4), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_full_64x128k2c2_s4", Bf16, 64, clustered(split(full(64, 128, 4), 2), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_full_128x64k2_s8", Bf16, 64, split(full(128, 64, 8), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_full_128x96k2_s4", Bf16, 64, split(full(128, 96, 4), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_full_128x128_s4", Bf16, 64, q_ahead(full(128, 128, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_full_64x128_s4", Bf16, 64, full(64, 128, 4)),
        Row::wgmma("attention_bf16_d64_wgmma_band_256x64_s4", Bf16, 64, q_ahead(band(256, 64, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_band_192x128_s4", Bf16, 64, q_ahead(band(192, 128, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_band_128x64_s4", Bf16, 64, q_ahead(band(128, 64, 4))),
        Row::wgmma("attention_bf16_d64_wgmma_band_64x128k2_s4", Bf16, 64, split(band(64, 128, 4), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_band_64x128k2c2_s4", Bf16, 64, clustered(split(band(64, 128, 4), 2), 2)),
        Row::wgmma("attention_bf16_d64_wgmma_band_64x128_s4", Bf16, 64, band(64, 128, 4)),
        Row::wgmma("attention_bf16_d96_wgmma_full_128x128_s3_q", Bf16, 96, q_registers(full(128, 128, 3))),
        Row::wgmma(
            "attention_bf16_d96_wgmma_full_128x128_s3_q_m2",
            Bf16,
            96,
            multicast(q_registers(full(128, 128, 3)), 2),
        ),
        Row::wgmma("attention_bf16_d96_wgmma_band_128x128_s3_q", Bf16, 96, q_registers(band(128, 128, 3))),
        Row::wgmma("attention_bf16_d128_wgmma_full_128x128_s3_q", Bf16, 128, q_registers(full(128, 128, 3))),
        Row::wgmma(
            "attention_bf16_d128_wgmma_full_128x128_s3_q_m2",
            Bf16,
            128,
            multicast(q_registers(full(128, 128, 3)), 2),
        ),
        Row::wgmma("attention_bf16_d128_wgmma_full_64x128_s2", Bf16, 128, full(64, 128, 2)),
        Row::wgmma("attention_bf16_d128_wgmma_band_128x128_s3_q", Bf16, 128, q_registers(band(128, 128, 3))),
        Row::wgmma("attention_bf16_d128_wgmma_band_64x128_s2", Bf16, 128, band(64, 128, 2)),
        Row::wgmma("attention_bf16_d192v128_wgmma_full_128x128_s2_q", Bf16, 192, q_registers(full(128, 128, 2)))
            .values(128),
        Row::wgmma(
            "attention_bf16_d192v128_wgmma_full_128x128_s2_q_m2",
            Bf16,
            192,
            multicast(q_registers(full(128, 128, 2)), 2),
        )
        .values(128),
        Row::wgmma("attention_bf16_d192v128_wgmma_band_128x128_s2_q", Bf16, 192, q_registers(band(128, 128, 2)))
            .values(128),
        Row::wgmma("attention_bf16_d192_wgmma_full_128x96_s2", Bf16, 192, full(128, 96, 2)),
        Row::wgmma("attention_bf16_d192_wgmma_band_128x96_s2", Bf16, 192, band(128, 96, 2)),
        Row::wgmma("attention_bf16_d192_wgmma_full_128x64_s3_q", Bf16, 192, q_registers(full(128, 64, 3))),
        Row::wgmma("attention_bf16_d192_wgmma_band_128x64_s3_q", Bf16, 192, q_registers(band(128, 64, 3))),
        Row::wgmma("attention_bf16_d256_wgmma_full_128x80_s2", Bf16, 256, full(128, 80, 2)),
        Row::wgmma("attention_bf16_d256_wgmma_band_128x80_s2", Bf16, 256, band(128, 80, 2)),
        Row::wgmma("attention_bf16_d256_wgmma_full_128x64_s2", Bf16, 256, full(128, 64, 2)),
        Row::wgmma("attention_bf16_d256_wgmma_band_128x64_s2", Bf16, 256, band(128, 64, 2)),
        // Sequences of several lengths, of every mask, as lengths are not known before the launch. The search takes
        // registers of the producer, and leaves 152 or 232 to consumers. Three groups of rows at head dimension 64: 424
        // TFLOP/s at 8x32x4096 causal on an H200, where two of 128 keys a step have 393.
        Row::wgmma("attention_f16_d64_wgmma_band_192x96_s4_varlen", F16, 64, band(192, 96, 4)).varlen(),
        // The shapes of rows of equal lengths, which fit beside the search too: 0.92 of their speed at 8x16x4096
        // causal.
        Row::wgmma("attention_f16_d128_wgmma_band_128x128_s3_q_varlen", F16, 128, q_registers(band(128, 128, 3)))
            .varlen(),
        // Q in registers as well is more than the search leaves.
        Row::wgmma("attention_f16_d192v128_wgmma_band_128x128_s2_varlen", F16, 192, band(128, 128, 2))
            .values(128)
            .varlen(),
        Row::wgmma("attention_f16_d256_wgmma_band_128x80_s2_varlen", F16, 256, band(128, 80, 2)).varlen(),
        // Softcap beside that, by two more operations of the unit that computes exponentials, which then has more to do
        // than the tensor cores. Four groups of rows at head dimension 64: 1,070 us at 4x32x4096 causal on an H200,
        // where three of 96 or 128 keys a step take 1,220 and 1,194.
        Row::wgmma("attention_f16_d64_wgmma_band_256x64_s4_softcap", F16, 64, q_ahead(band(256, 64, 4))).softcap(),
        // 648 us at 4x16x4096 causal; 96 keys a step 660, and three groups of rows by 64 or 80 keys 665 and 674.
        Row::wgmma("attention_f16_d128_wgmma_band_128x128_s3_q_softcap", F16, 128, q_registers(band(128, 128, 3)))
            .softcap(),
        // 484 us at 4x8x4096 causal; 64 keys a step 508.
        Row::wgmma("attention_f16_d256_wgmma_band_128x80_s2_softcap", F16, 256, band(128, 80, 2)).softcap(),
        // Softcap and bias beside that. The bias of a step is on its way to shared memory while the one after it is
        // computed.
        Row::wgmma("attention_f16_d64_wgmma_band_192x96_s4_general", F16, 64, band(192, 96, 4)).general(),
        Row::wgmma("attention_f16_d128_wgmma_band_128x128_s2_general", F16, 128, band(128, 128, 2)).general(),
        Row::wgmma("attention_f16_d256_wgmma_band_128x64_s2_general", F16, 256, band(128, 64, 2)).general(),
        // bf16 as f16.
        Row::wgmma("attention_bf16_d64_wgmma_band_192x96_s4_varlen", Bf16, 64, band(192, 96, 4)).varlen(),
        Row::wgmma("attention_bf16_d128_wgmma_band_128x128_s3_q_varlen", Bf16, 128, q_registers(band(128, 128, 3)))
            .varlen(),
        Row::wgmma("attention_bf16_d192v128_wgmma_band_128x128_s2_varlen", Bf16, 192, band(128, 128, 2))
            .values(128)
            .varlen(),
        Row::wgmma("attention_bf16_d256_wgmma_band_128x80_s2_varlen", Bf16, 256, band(128, 80, 2)).varlen(),
        Row::wgmma("attention_bf16_d64_wgmma_band_256x64_s4_softcap", Bf16, 64, q_ahead(band(256, 64, 4))).softcap(),
        Row::wgmma("attention_bf16_d128_wgmma_band_128x128_s3_q_softcap", Bf16, 128, q_registers(band(128, 128, 3)))
            .softcap(),
        Row::wgmma("attention_bf16_d256_wgmma_band_128x80_s2_softcap", Bf16, 256, band(128, 80, 2)).softcap(),
        Row::wgmma("attention_bf16_d64_wgmma_band_192x96_s4_general", Bf16, 64, band(192, 96, 4)).general(),
        Row::wgmma("attention_bf16_d128_wgmma_band_128x128_s2_general", Bf16, 128, band(128, 128, 2)).general(),
        Row::wgmma("attention_bf16_d256_wgmma_band_128x64_s2_general", Bf16, 256, band(128, 64, 2)).general(),
        // 64 rows by 64 keys, two stages: the best, or within 4 % of it, at every length.
        Row::wmma("attention_f16_d64_wmma_64x64_s2", F16, 64, tile(64, 64, 2)),
        // Twice the blocks: 4 % ahead where 64 rows a block leave multiprocessors idle.
        Row::wmma("attention_f16_d64_wmma_32x64_s2", F16, 64, tile(32, 64, 2)),
        // Half the traffic of K and V: even at 4x32x4096, far behind where blocks are few.
        Row::wmma("attention_f16_d64_wmma_128x64_s2", F16, 64, tile(128, 64, 2)),
        // What the second stage gains: 3 to 13 %.
        Row::wmma("attention_f16_d64_wmma_64x64_s1", F16, 64, tile(64, 64, 1)),
        Row::wmma("attention_f16_d64_wmma_32x64_s1", F16, 64, tile(32, 64, 1)),
        Row::wmma("attention_f16_d64_wmma_128x64_s1", F16, 64, tile(128, 64, 1)),
        // What 64 keys a step gain over 32: 20 to 28 %.
        Row::wmma("attention_f16_d64_wmma_64x32_s2", F16, 64, tile(64, 32, 2)),
        Row::wmma("attention_f16_d64_wmma_32x32_s2", F16, 64, tile(32, 32, 2)),
        Row::wmma("attention_f16_d64_wmma_128x32_s2", F16, 64, tile(128, 32, 2)),
        // What cp.async and P V on the tensor cores gain.
        Row::wmma("attention_f16_d64_wmma_64x64_s2_ldg", F16, 64, through_registers(tile(64, 64, 2))),
        Row::wmma("attention_f16_d64_wmma_64x64_s2_fma", F16, 64, scalar_pv(tile(64, 64, 2))),
        Row::wmma("attention_f16_d64_wmma_64x64_s2_ldg_fma", F16, 64, scalar_pv(through_registers(tile(64, 64, 2)))),
        // At this head dimension 64 keys a step do not fit the register budget.
        Row::wmma("attention_f16_d128_wmma_64x32_s2", F16, 128, tile(64, 32, 2)),
        Row::wmma("attention_f16_d128_wmma_32x32_s2", F16, 128, tile(32, 32, 2)),
        Row::wmma("attention_f16_d128_wmma_128x32_s1", F16, 128, tile(128, 32, 1)),
        Row::wmma("attention_f16_d128_wmma_64x32_s2_fma", F16, 128, scalar_pv(tile(64, 32, 2))),
        // Every other head dimension, and the oracle on the card.
        Row::scalar("attention_f16_scalar", F16),
        // Softcap, bias and sequences of several lengths.
        Row::wmma("attention_f16_d64_wmma_64x64_s2_general", F16, 64, tile(64, 64, 2)).general(),
        Row::wmma("attention_f16_d128_wmma_64x32_s2_general", F16, 128, tile(64, 32, 2)).general(),
        Row::scalar("attention_f16_scalar_general", F16).general(),
        // bf16 runs as f16 does; only the rows worth running are compiled.
        Row::wmma("attention_bf16_d64_wmma_64x64_s2", Bf16, 64, tile(64, 64, 2)),
        Row::wmma("attention_bf16_d64_wmma_32x64_s2", Bf16, 64, tile(32, 64, 2)),
        Row::wmma("attention_bf16_d64_wmma_128x64_s2", Bf16, 64, tile(128, 64, 2)),
        Row::wmma("attention_bf16_d128_wmma_64x32_s2", Bf16, 128, tile(64, 32, 2)),
        Row::wmma("attention_bf16_d128_wmma_32x32_s2", Bf16, 128, tile(32, 32, 2)),
        Row::scalar("attention_bf16_scalar", Bf16),
        Row::wmma("attention_bf16_d64_wmma_64x64_s2_general", Bf16, 64, tile(64, 64, 2)).general(),
        Row::wmma("attention_bf16_d128_wmma_64x32_s2_general", Bf16, 128, tile(64, 32, 2)).general(),
        Row::scalar("attention_bf16_scalar_general", Bf16).general(),
    ]
};

/// A row whose shared memory or threads cannot fit the smallest architecture does not compile.
const _: () = {
    let mut index = 0;
    while index < ATTENTION.len() {
        let row = &ATTENTION[index];
        let smem = row.smem().assert_fits(if row.compiled_for(Arch::Sm89) { Arch::Sm89 } else { row.arch() });
        assert!(
            matches!(row.kernel, AttentionKernel::Wgmma(_))
                || row.value_dim == row.head_dim
                    && (row.head_dim * row.dtype.size_bytes()).is_multiple_of(TILE_SWIZZLE.row_bytes() as usize)
        );
        assert!(
            row.head_dim <= MAX_HEAD_DIM
                && row.value_dim <= MAX_HEAD_DIM
                && row.threads() <= 1024
                && row.min_blocks() >= 1
        );
        assert!(
            !matches!(row.scores, Scores::Softcap)
                || matches!(row.kernel, AttentionKernel::Wgmma(tile) if tile.parts() == 1),
            "only the end of a tile that is one part takes the cap from its log-sum-exp"
        );
        if let AttentionKernel::Wgmma(tile) = row.kernel {
            assert!(
                row.head_dim.is_multiple_of(16) && row.value_dim.is_multiple_of(16) && tile.n.is_multiple_of(16),
                "whole steps along K of both products"
            );
            assert!(tile.n <= 256 && tile.m() <= 256 && tile.consumers() < CONSUMER_REGISTERS.len());
            assert!(
                !matches!(row.scores, Scores::General) || tile.n.is_multiple_of(32),
                "a thread bounds 16 scores at a time, and has one of two keys"
            );
            assert!(tile.stages > tile.key_groups, "a group waits for its next step with one in its hands");
            assert!(
                tile.parts() == 1
                    || tile.parts().is_power_of_two()
                        && tile.stages.is_power_of_two()
                        && (row.value_dim / 16).is_multiple_of(tile.parts()),
                "each part adds up whole chunks of O"
            );
            assert!(
                tile.parts() == 1 || matches!(tile.query, QuerySource::Shared),
                "parts of rows leave Q at their end"
            );
            assert!(
                tile.multicast == 1
                    || tile.n.is_multiple_of(
                        tile.multicast * (TILE_SWIZZLE.period_bytes() / TILE_SWIZZLE.row_bytes()) as usize
                    ) && tile.parts() == 1
                        && matches!(tile.mask, MaskKind::Full)
                        && matches!(row.lengths, Lengths::Equal),
                "blocks that copy for each other take the same steps, and each a part that starts with the swizzle"
            );
        }
        if let AttentionKernel::Decode(tile) = row.kernel {
            // A warp's O, maxima and sums take the place of its stages.
            let result_words = WARP_ROWS * (row.head_dim + 8 + 2);
            assert!(
                result_words * size_of::<f32>()
                    <= tile.stages * 2 * DECODE_KEYS * row.head_dim * row.dtype.size_bytes()
            );
            assert!(tile.stages >= 2 && DECODE_KEYS == 16);
        }
        if let AttentionKernel::Wmma(tile) = row.kernel {
            assert!(tile.m.is_multiple_of(WARP_ROWS) && tile.n.is_multiple_of(16), "tiles are made of 16x16 products");
            assert!(tile.stages == 1 || tile.stages == 2);
            let row_chunks = row.head_dim * row.dtype.size_bytes() / 16;
            assert!(
                (tile.n * row_chunks).is_multiple_of(row.threads() as usize),
                "each thread copies as many chunks as any other"
            );
            // Two blocks on a multiprocessor of sm_80 at head dimension 64; each takes 1 KiB for the system.
            let two_blocks = 2 * (smem.total_bytes() + 1024);
            assert!(row.head_dim > 64 || two_blocks <= Arch::Sm80.limits().shared_bytes);
        }
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;
    use std::format;
    use std::string::String;

    fn composed_name(row: &AttentionVariant) -> String {
        let kernel = match row.kernel {
            AttentionKernel::Scalar => format!("attention_{}_scalar", row.dtype),
            AttentionKernel::Decode(tile) => {
                format!("attention_{}_d{}_decode_{}w_s{}", row.dtype, row.head_dim, tile.warps, tile.stages)
            }
            AttentionKernel::Wgmma(tile) => format!(
                "attention_{}_d{}{}_wgmma_{}_{}x{}{}{}_s{}{}{}",
                row.dtype,
                row.head_dim,
                if row.value_dim == row.head_dim { String::new() } else { format!("v{}", row.value_dim) },
                if tile.mask == MaskKind::Full { "full" } else { "band" },
                tile.m(),
                tile.n,
                if tile.key_groups > 1 { format!("k{}", tile.key_groups) } else { String::new() },
                if tile.cluster > 1 { format!("c{}", tile.cluster) } else { String::new() },
                tile.stages,
                if tile.query == QuerySource::Registers { "_q" } else { "" },
                if tile.multicast > 1 { format!("_m{}", tile.multicast) } else { String::new() },
            ),
            AttentionKernel::Wmma(tile) => format!(
                "attention_{}_d{}_wmma_{}x{}_s{}{}{}",
                row.dtype,
                row.head_dim,
                tile.m,
                tile.n,
                tile.stages,
                if tile.copy == TileCopy::ThroughRegisters { "_ldg" } else { "" },
                if tile.pv == PvUnit::Scalar { "_fma" } else { "" },
            ),
        };
        kernel
            + match (row.scores, row.lengths) {
                (Scores::Plain, Lengths::Equal) => "",
                (Scores::Plain, Lengths::PerMember) => "_varlen",
                (Scores::Softcap, _) => "_softcap",
                (Scores::General, _) => "_general",
            }
    }

    #[test]
    fn names_follow_the_grammar_and_are_unique() {
        let mut names = HashSet::new();
        for (index, row) in ATTENTION.iter().enumerate() {
            assert_eq!(row.name, composed_name(row));
            assert_eq!(row_index(row.name), index);
            assert!(names.insert(row.name));
        }
    }
}
