//! O and LSE to global memory.

use cuda_std::global;
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, WARP_ROWS};

use crate::softmax::RowResult;
use crate::tile::{CHUNK_ELEMS, chunk_offset};
use crate::work::{Work, lane};

/// Copies the 16 rows of a warp from the output tile to O, 16 bytes a lane.
///
/// # Safety
/// All lanes of the warp call it together; rows `warp_row ..` of the tile of `rows` rows are written and visible to
/// them.
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
        if work.first_row + row >= work.q_len || chunk * CHUNK_ELEMS as u32 >= args.value_dim {
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

/// Writes the LSE of this lane's two rows of the 16 of its warp, where it is wanted.
///
/// # Safety
/// The results are those of rows `warp_row + lane / 4` and 8 below.
#[inline(always)]
pub(crate) unsafe fn store_lse(work: &Work, results: &[RowResult; 2], warp_row: u32) {
    for half in 0..2 {
        // SAFETY: the caller's contract.
        unsafe { store_row_lse(work, results[half].lse, warp_row + 8 * half as u32) };
    }
}

/// Writes the LSE of one row of this lane, `lane / 4` below `warp_row`, where it is wanted.
///
/// # Safety
/// It is that of the row.
#[inline(always)]
pub(crate) unsafe fn store_row_lse(work: &Work, lse: f32, warp_row: u32) {
    let lane = lane();
    let row = work.first_row + warp_row + lane / 4;
    if !work.lse.is_null() && lane.is_multiple_of(4) && row < work.q_len {
        // SAFETY: the LSE has `q_len` values for each head.
        unsafe { global::store(work.lse.wrapping_add(row as usize), lse) };
    }
}
