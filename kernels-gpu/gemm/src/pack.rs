//! Copies an operand so that its k are contiguous and its rows start on 16-byte boundaries. Each block copies a tile of
//! the operand.
//!
//! Elements are read along whatever dimension is contiguous, pass through a tile in shared memory, and are written 16
//! bytes at a time. The end of a row is padded with zeros.

use cuda_std::shared::{self, Word};
use cuda_std::{global, thread};
use variants::gemm::{CHUNK_BYTES, PACK_TILE, PackArgs, PackKernel};

use crate::sum::div_rem;
use crate::work::wait_for_dependencies;

/// # Safety
/// The launch is that of `kernel`, whose elements are `T`, and `args` describes an operand and room for its copy.
#[inline(always)]
pub(crate) unsafe fn pack<T: Word, const ELEMENTS: usize>(args: &PackArgs, zero: T, kernel: PackKernel) {
    const TILE: u32 = PACK_TILE as u32;
    let element_bytes = size_of::<T>() as u32;
    let thread = thread::thread_idx_x();
    let (mn_tiles, k_tiles) = (args.mn.div_ceil(TILE), args.k.div_ceil(TILE));
    let (rest, k_tile) = div_rem(thread::block_idx_x(), k_tiles);
    let (batch, mn_tile) = div_rem(rest, mn_tiles);
    let (first_mn, first_k) = (mn_tile * TILE, k_tile * TILE);
    let tile = shared::dynamic().offset(kernel.smem().get("tile").offset_bytes);
    let at = |mn: u32, k: u32| tile.offset(mn * kernel.row_bytes() + k * element_bytes);
    let source = args.source;
    let place = |index: usize| {
        let element = thread + index as u32 * kernel.threads;
        let (slow, fast) = (element / TILE, element % TILE);
        if source.k_stride == 1 { (slow, fast) } else { (fast, slow) }
    };
    wait_for_dependencies();
    // All loads are in flight before the first store.
    let mut elements = [zero; ELEMENTS];
    for index in 0..ELEMENTS {
        let (mn, k) = place(index);
        let (row, column) = (first_mn + mn, first_k + k);
        if row < args.mn && column < args.k {
            let distance = i64::from(batch) * source.batch_stride
                + i64::from(row) * source.mn_stride
                + i64::from(column) * source.k_stride;
            let address = source.address.wrapping_add_signed(distance * i64::from(element_bytes));
            // SAFETY: the element is inside the operand, which nothing writes.
            elements[index] = unsafe { global::load_nc(address as *const T) };
        }
    }
    for index in 0..ELEMENTS {
        let (mn, k) = place(index);
        // SAFETY: each place of the tile is one thread's.
        unsafe { at(mn, k).store(elements[index]) };
    }
    // SAFETY: the whole block is here. The tile is stored.
    unsafe { thread::sync_threads() };
    let chunk_elems = CHUNK_BYTES as u32 / element_bytes;
    let row_chunks = TILE / chunk_elems;
    let mut chunk = thread;
    while chunk < TILE * row_chunks {
        let (mn, k) = (chunk / row_chunks, chunk % row_chunks * chunk_elems);
        let (row, column) = (first_mn + mn, first_k + k);
        if row < args.mn && column < args.packed_k {
            let element = (u64::from(batch) * u64::from(args.mn) + u64::from(row)) * u64::from(args.packed_k);
            let address = args.packed + (element + u64::from(column)) * u64::from(element_bytes);
            // SAFETY: the chunk is inside the copy, whose rows are whole chunks; words of the tile are on 4-byte
            // boundaries.
            unsafe {
                let words: [u32; 4] = core::array::from_fn(|word| at(mn, k).offset(4 * word as u32).load());
                global::store(address as *mut [u32; 4], words);
            }
        }
        chunk += kernel.threads;
    }
}
