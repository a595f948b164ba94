//! O and LSE to global memory.

use cuda_std::convert::Element16;
use cuda_std::global;
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use layout::attention::{AttentionArgs, WARP_ROWS};

use crate::softmax::RowResult;
use crate::tile::{CHUNK_ELEMS, chunk_offset};
use crate::work::{LANES, Work, lane};

/// Copies the 16 rows of a warp from the output tile to O, 16 bytes a lane.
///
/// # Safety
/// All lanes of the warp call it together; rows `warp_row ..` of the tile of `rows` rows are written and visible to them.
#[inline(always)]
pub(crate) unsafe fn store_rows(
    args: &AttentionArgs,
    work: &Work,
    tile: SharedAddr,
    rows: usize,
    columns: usize,
    warp_row: u32,
) {
    let lane = lane();
    let row_chunks = (columns / CHUNK_ELEMS) as u32;
    for step in 0..WARP_ROWS as u32 * row_chunks / 32 {
        let index = step * 32 + lane;
        let (row, chunk) = (warp_row + index / row_chunks, index % row_chunks);
        if work.first_row + row >= args.q_len || chunk * CHUNK_ELEMS as u32 >= args.head_dim {
            continue;
        }
        let out = work
            .o
            .wrapping_offset((i64::from(work.first_row + row) * args.o_strides.row) as isize)
            .wrapping_add(chunk as usize * CHUNK_ELEMS);
        // SAFETY: the chunk is inside O; the tile is written.
        unsafe {
            let words: [u32; 4] = tile.offset(chunk_offset(rows, row, chunk)).load();
            if args.output_aligned != 0 {
                global::store(out.cast::<[u32; 4]>(), words);
            } else {
                for index in 0..words.len() {
                    global::store(out.wrapping_add(2 * index), words[index] as u16);
                    global::store(out.wrapping_add(2 * index + 1), (words[index] >> 16) as u16);
                }
            }
        }
    }
}

/// Writes the 16 rows of a warp to O from its accumulators, times `normalisers`, 16 bytes a lane.
///
/// # Safety
/// All lanes of the warp call it together, and rows of O start on 16-byte boundaries. `out` and `normalisers` are those of rows
/// `warp_row + lane / 4` and 8 below.
#[inline(always)]
pub(crate) unsafe fn store_accumulators<E: Element16, const OUTPUTS: usize>(
    args: &AttentionArgs,
    work: &Work,
    out: &[f32; OUTPUTS],
    normalisers: [f32; 2],
    warp_row: u32,
) {
    let lane = lane();
    let quad_lane = lane % 4;
    for half in 0..2 {
        let row = work.first_row + warp_row + lane / 4 + 8 * half as u32;
        let start = work.o.wrapping_offset((i64::from(row) * args.o_strides.row) as isize);
        // Four pairs of each lane, 8 columns apart, become four adjacent pairs.
        for block in 0..OUTPUTS / 16 {
            let pairs = [0, 1, 2, 3].map(|pair| {
                let first = 16 * block + 4 * pair + 2 * half;
                E::pack(out[first] * normalisers[half], out[first + 1] * normalisers[half])
            });
            // SAFETY: all lanes of the warp are here.
            let chunk = unsafe { transpose_quad(quad_lane, pairs) };
            let column = 32 * block as u32 + CHUNK_ELEMS as u32 * quad_lane;
            if row < args.q_len && column < args.head_dim {
                // SAFETY: the chunk is inside O, on a 16-byte boundary.
                unsafe { global::store(start.wrapping_add(column as usize).cast::<[u32; 4]>(), chunk) };
            }
        }
    }
}

/// Writes zeros to the 16 rows of a warp of O and minus infinity to their LSE: what rows give that see no key.
///
/// # Safety
/// As [`store_accumulators`].
#[inline(always)]
pub(crate) unsafe fn store_unseen<const OUTPUTS: usize>(args: &AttentionArgs, work: &Work, warp_row: u32) {
    let lane = lane();
    for half in 0..2 {
        let row = work.first_row + warp_row + lane / 4 + 8 * half;
        let start = work.o.wrapping_offset((i64::from(row) * args.o_strides.row) as isize);
        for block in 0..OUTPUTS as u32 / 16 {
            let column = 32 * block + CHUNK_ELEMS as u32 * (lane % 4);
            if row < args.q_len && column < args.head_dim {
                // SAFETY: the chunk is inside O, on a 16-byte boundary.
                unsafe { global::store(start.wrapping_add(column as usize).cast::<[u32; 4]>(), [0; 4]) };
            }
        }
    }
    let unseen = RowResult { normaliser: 0.0, lse: f32::NEG_INFINITY };
    // SAFETY: the caller's contract.
    unsafe { store_lse(args, work, &[unseen; 2], warp_row) };
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

/// Writes the LSE of this lane's two rows of the 16 of its warp, where it is wanted.
///
/// # Safety
/// The results are those of rows `warp_row + lane / 4` and 8 below.
#[inline(always)]
pub(crate) unsafe fn store_lse(args: &AttentionArgs, work: &Work, results: &[RowResult; 2], warp_row: u32) {
    let lane = lane();
    if work.lse.is_null() || !lane.is_multiple_of(4) {
        return;
    }
    for (half, result) in results.iter().enumerate() {
        let row = work.first_row + warp_row + lane / 4 + 8 * half as u32;
        if row < args.q_len {
            // SAFETY: the LSE has `q_len` values for each head.
            unsafe { global::store(work.lse.wrapping_add(row as usize), result.lse) };
        }
    }
}
