//! O from the accumulators of `wgmma` to global memory.
//!
//! A lane holds pairs of columns, 8 columns apart. The lanes of a quad exchange pairs, so that each lane writes 16
//! bytes at a time and a quad writes 64 adjacent bytes of a row: whole sectors of memory.

use cuda_std::convert::{Element16, pack_e4m3x2};
use cuda_std::global;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use variants::attention::AttentionArgs;

use crate::epilogue::{e4m3_out, store_lse};
use crate::lane::{LANES, lane};
use crate::softmax::RowResult;
use crate::tile::CHUNK_ELEMS;
use crate::work::Work;

/// Writes the 16 rows of a warp to O from its accumulators, times `normalisers`, 16 bytes a lane.
///
/// # Safety
/// All lanes of the warp call it together, and rows of O start on 16-byte boundaries. `out` and `normalisers` are those
/// of rows `warp_row + lane / 4` and 8 below.
#[inline(always)]
pub(crate) unsafe fn store_accumulators<E: Element16, const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    out: &[f32; OUTPUTS],
    normalisers: [f32; 2],
    warp_row: u32,
) {
    if OUTPUTS > EXCHANGED_AHEAD {
        for half in 0..2 {
            for block in 0..OUTPUTS / 16 {
                let values = chunk_of(out, half, block).map(|value| value * normalisers[half]);
                // SAFETY: the caller's contract.
                unsafe { store_chunk::<E>(args, work, values, warp_row + 8 * half as u32, block as u32) };
            }
        }
        return;
    }
    // All exchanges before the first store, which is behind a branch: they overlap each other.
    let mut chunks = [[[0; 4]; MAX_BLOCKS]; 2];
    for half in 0..2 {
        for block in 0..OUTPUTS / 16 {
            let values = chunk_of(out, half, block).map(|value| value * normalisers[half]);
            // SAFETY: the caller's contract.
            chunks[half][block] = unsafe { chunk_of_quad::<E>(values) };
        }
    }
    for half in 0..2 {
        let Some(start) = row_start(args, work, warp_row + 8 * half as u32) else { continue };
        for block in 0..OUTPUTS / 16 {
            // SAFETY: the caller's contract.
            unsafe { store_words(args, start, chunks[half][block], block as u32) };
        }
    }
}

/// The most accumulators that are exchanged ahead of all stores: those of head dimension 128, which gains 1.4 % at 512
/// keys. 256 loses 2 %.
const EXCHANGED_AHEAD: usize = 64;

/// Blocks of 32 columns of their rows.
const MAX_BLOCKS: usize = EXCHANGED_AHEAD / 16;

/// The eight accumulators of a lane in one of its two rows and one block of 32 columns: pairs that are 8 columns apart.
#[inline(always)]
pub(crate) fn chunk_of<const OUTPUTS: usize>(out: &[f32; OUTPUTS], half: usize, block: usize) -> [f32; 8] {
    core::array::from_fn(|index| out[16 * block + 4 * (index / 2) + 2 * half + index % 2])
}

/// Writes a block of 32 columns of 8 rows of O, from `warp_row` on, whose values are those of [`chunk_of`].
///
/// # Safety
/// As [`store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store_chunk<E: Element16>(
    args: &AttentionArgs,
    work: &Work,
    values: [f32; 8],
    warp_row: u32,
    block: u32,
) {
    // SAFETY: all lanes of the warp are here.
    let chunk = unsafe { chunk_of_quad::<E>(values) };
    if let Some(start) = row_start(args, work, warp_row) {
        // SAFETY: the caller's contract.
        unsafe { store_words(args, start, chunk, block) };
    }
}

/// The values of [`chunk_of`] as elements: the four pairs of each lane, 8 columns apart, become four adjacent pairs.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
unsafe fn chunk_of_quad<E: Element16>(values: [f32; 8]) -> [u32; 4] {
    let pairs = [0, 2, 4, 6].map(|first| E::pack(values[first], values[first + 1]));
    // SAFETY: all lanes of the warp are here.
    unsafe { transpose_quad(lane() % 4, pairs) }
}

/// The start of the row of O of this lane, `lane / 4` below `warp_row`; `None` where there is none.
#[inline(always)]
fn row_start(args: &AttentionArgs, work: &Work, warp_row: u32) -> Option<*mut u16> {
    let row = work.first_row + warp_row + lane() / 4;
    (row < work.q_len).then(|| work.o.wrapping_offset((i64::from(row) * args.o_strides.row) as isize))
}

/// Writes this lane's chunk of block `block`, 32 columns, of the row of O that starts at `start`.
///
/// # Safety
/// As [`store_accumulators`], of a row of this lane.
#[inline(always)]
unsafe fn store_words(args: &AttentionArgs, start: *mut u16, chunk: [u32; 4], block: u32) {
    let column = 32 * block + CHUNK_ELEMS as u32 * (lane() % 4);
    if column < args.value_dim {
        // SAFETY: the chunk is inside O, on a 16-byte boundary.
        unsafe { global::store(start.wrapping_add(column as usize).cast::<[u32; 4]>(), chunk) };
    }
}

/// [`store_accumulators`] to an O of E4M3, 8 bytes a lane.
///
/// # Safety
/// As [`store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store_e4m3<const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    out: &[f32; OUTPUTS],
    normalisers: [f32; 2],
    warp_row: u32,
) {
    for half in 0..2 {
        for block in 0..OUTPUTS / 16 {
            let values = chunk_of(out, half, block).map(|value| value * normalisers[half]);
            let pairs = [0, 2, 4, 6].map(|first| u32::from(pack_e4m3x2(values[first], values[first + 1])));
            // SAFETY: all lanes of the warp are here.
            let [a, b, c, d] = unsafe { transpose_quad(lane() % 4, pairs) };
            // SAFETY: the caller's contract.
            unsafe { store_narrow(args, work, [a | b << 16, c | d << 16], warp_row + 8 * half as u32, block as u32) };
        }
    }
}

/// Writes this lane's eight elements of block `block` of its row of an O of E4M3.
///
/// # Safety
/// As [`store_accumulators`].
#[inline(always)]
unsafe fn store_narrow(args: &AttentionArgs, work: &Work, chunk: [u32; 2], warp_row: u32, block: u32) {
    let (row, column) = (work.first_row + warp_row + lane() / 4, 32 * block + CHUNK_ELEMS as u32 * (lane() % 4));
    if row < work.q_len && column < args.value_dim {
        let start = e4m3_out(args, work).wrapping_offset((i64::from(row) * args.o_strides.row) as isize);
        let place = start.wrapping_add(column as usize);
        // SAFETY: the elements are inside O, on an 8-byte boundary.
        unsafe { global::store(place.cast::<[u32; 2]>(), chunk) };
    }
}

/// Writes zeros to the 16 rows of a warp of O, of E4M3 where it `is_narrow`, and the sink to their LSE: what rows give
/// that see no key.
///
/// # Safety
/// As [`store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store_unseen<const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    warp_row: u32,
    sink: f32,
    is_narrow: bool,
) {
    for half in 0..2 {
        if is_narrow {
            for block in 0..OUTPUTS as u32 / 16 {
                // SAFETY: the caller's contract.
                unsafe { store_narrow(args, work, [0; 2], warp_row + 8 * half, block) };
            }
            continue;
        }
        let Some(start) = row_start(args, work, warp_row + 8 * half) else { continue };
        for block in 0..OUTPUTS as u32 / 16 {
            // SAFETY: the caller's contract.
            unsafe { store_words(args, start, [0; 4], block) };
        }
    }
    let unseen = RowResult { normaliser: 0.0, lse: sink };
    // SAFETY: the caller's contract.
    unsafe { store_lse(work, &[unseen; 2], warp_row) };
}

/// Transposes four words in each of the four lanes of a quad: lane i has word i of every lane afterwards.
///
/// # Safety
/// All lanes of the warp call it together.
#[inline(always)]
unsafe fn transpose_quad(quad_lane: u32, words: [u32; 4]) -> [u32; 4] {
    let exchange = |word: u32, distance: u32| {
        // SAFETY: the caller's contract.
        unsafe { warp_shuffle_xor(FULL_MASK, word, distance, LANES) }.0
    };
    // 2x2 blocks of words first, then the words of each block: what stays is kept in place, the rest is exchanged.
    let (upper, odd) = (quad_lane & 2 != 0, quad_lane & 1 != 0);
    let (kept, sent) =
        if upper { ([words[2], words[3]], [words[0], words[1]]) } else { ([words[0], words[1]], [words[2], words[3]]) };
    let got = sent.map(|word| exchange(word, 2));
    // Blocks of the lanes whose bit 1 is 0, then of the others.
    let (low, high) = if upper { (got, kept) } else { (kept, got) };
    let merge = |[even_word, odd_word]: [u32; 2]| {
        let (kept, sent) = if odd { (odd_word, even_word) } else { (even_word, odd_word) };
        let got = exchange(sent, 1);
        if odd { [got, kept] } else { [kept, got] }
    };
    let ([first, second], [third, fourth]) = (merge(low), merge(high));
    [first, second, third, fourth]
}
