//! O from a tile in shared memory to global memory.

use cuda_std::global;
use cuda_std::shared::SharedAddr;
use variants::attention::{AttentionArgs, WARP_ROWS};

use crate::lane::lane;
use crate::tile::{CHUNK_ELEMS, chunk_offset};
use crate::work::Work;

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
