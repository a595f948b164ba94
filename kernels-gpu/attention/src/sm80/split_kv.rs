//! Split-KV in decoding: the last block of a tile to finish adds up the partial results of all of them.
//!
//! ```text
//! each block of a tile: O / l, maximum and l -> workspace                   decode.rs
//!     barrier; one thread: fence, semaphore + 1, fence; barrier
//! the last one, O_p, m_p and l_p those of split p:
//!     m_p, l_p -> shared memory
//!     w_p = l_p 2^(c (m_p - max m)) / sum, a warp a row                     sink, LSE
//!     O = sum_p w_p O_p, in the order of the splits
//! ```
//!
//! 1. A second kernel would start only when all blocks of the first have ended, and takes longer to start than this sum
//!    takes where a thread has few elements of O. Elsewhere the host launches that kernel. The sum does not depend on
//!    which block is last: the same bits in every run.
//! 2. The semaphore is 0 again when the last block has counted itself: `atom.inc` wraps around.
//! 3. What a block reads is `splits * rows * (columns + 2)` numbers from L2. A thread has many loads in flight, the
//!    first of them before it knows the weights. Where a tile has fewer elements than there are threads, threads share
//!    the splits of an element, each some that follow each other.
//! 4. A split whose maximum is minus infinity does not count, whatever its O holds.

use core::array::from_fn;

use cuda_std::convert::{Element16, fma, max};
use cuda_std::shared::SharedAddr;
use cuda_std::warp::{warp_max, warp_sum};
use cuda_std::{global, shared, thread};
use variants::attention::{ATTENTION, AttentionArgs, DecodeArgs, MAX_SPLITS};

use crate::lane::{LANES, div_rem, lane, warp};
use crate::sm80::decode_work::{DecodeWork, SUM_COLUMNS, decode_tile, store_output};
use crate::softmax::{row_result, split_weight};
use crate::work::sink_of_head;

/// Splits whose elements of O a thread loads side by side.
const AT_ONCE: u32 = 16;

/// Splits whose maxima and sums a thread loads side by side.
const NUMBERS_AT_ONCE: u32 = 4;

/// Whether this block is the last of its tile: what all of them wrote is then visible to it.
///
/// # Safety
/// All threads of the block call it together, and shared memory is free. There are several splits, each with a block
/// that calls it once.
#[inline(always)]
pub(crate) unsafe fn is_last<const ID: usize>(decode: &DecodeArgs, work: &DecodeWork) -> bool {
    let last = decode.splits - 1;
    // SAFETY: the caller's contract; the semaphore is the tile's.
    unsafe {
        // All threads have written their share of the partial result, which the fence then orders before the count.
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            thread::device_fence();
            let semaphore = (decode.semaphores as *mut u32).wrapping_add(work.tile::<ID>(decode) as usize);
            let before = global::atomic_inc(semaphore, last);
            thread::device_fence();
            shared::dynamic().store(before);
        }
        // Behind the second fence, which orders what follows after the count, and the number is in place.
        thread::sync_threads();
        shared::dynamic().load::<u32>() == last
    }
}

/// What shared memory holds of a tile: behind the number of [`is_last`] a maximum and a sum, later a weight, of each
/// row and split, and then four sums of each thread.
struct Table<const ID: usize> {
    splits: u32,
}

impl<const ID: usize> Table<ID> {
    const NUMBERS: u32 = 16;
    const PAIR_BYTES: u32 = 2 * size_of::<f32>() as u32;
    const ROWS: u32 = decode_tile(ID).m as u32;
    const SUMS: u32 = Self::NUMBERS + (Self::ROWS * (MAX_SPLITS as u32 | 1) * Self::PAIR_BYTES).next_multiple_of(16);
    const BYTES: u32 = Self::SUMS + ATTENTION[ID].threads() * SUM_COLUMNS * size_of::<f32>() as u32;

    /// The maximum and the sum of a row and a split, or its weight. Rows are an odd number of pairs apart, so that
    /// those of a split fall on different banks.
    #[inline(always)]
    fn numbers(&self, row: u32, split: u32) -> SharedAddr {
        shared::dynamic().offset(Self::NUMBERS + (row * (self.splits | 1) + split) * Self::PAIR_BYTES)
    }

    /// The sums of a thread.
    #[inline(always)]
    fn sums(thread: u32) -> SharedAddr {
        shared::dynamic().offset(Self::SUMS + thread * SUM_COLUMNS * size_of::<f32>() as u32)
    }
}

/// Adds up the partial results of the tile and writes O and the LSE.
///
/// # Safety
/// All threads of the block call it together, behind [`is_last`].
#[inline(always)]
pub(crate) unsafe fn combine<E: Element16, const ID: usize>(
    args: &AttentionArgs,
    decode: &DecodeArgs,
    work: &DecodeWork,
) {
    const { assert!(Table::<ID>::BYTES <= ATTENTION[ID].smem().total_bytes()) };
    let (threads, thread) = (const { ATTENTION[ID].threads() }, thread::thread_idx_x());
    let splits = decode.splits;
    let table = Table::<ID> { splits };
    let rows = work.rows(args, Table::<ID>::ROWS);
    let row_items = args.value_dim / SUM_COLUMNS;
    let items = rows * row_items;
    // Threads that share an item, a share of whose splits each has.
    let sharers = if items < threads { div_rem(threads, items).0 } else { 1 };
    let (share, mut item) = if sharers > 1 { div_rem(thread, items) } else { (0, thread) };
    let each = div_rem(splits + sharers - 1, sharers).0;
    let first = (share * each).min(splits);
    let end = if share < sharers { splits.min(first + each) } else { first };

    let tile_row = work.first_partial_row(args, decode);
    let item_bytes = u64::from(SUM_COLUMNS) * size_of::<f32>() as u64;
    let tile = decode.partial_o + tile_row * u64::from(row_items) * item_bytes;
    let split_bytes = decode.rows * u64::from(row_items) * item_bytes;
    let load = |item: u32, split: u32| -> [[u32; 4]; AT_ONCE as usize] {
        from_fn(|n| {
            let split = split + n as u32;
            let address = tile + u64::from(split) * split_bytes + u64::from(item) * item_bytes;
            // SAFETY: what is loaded is of the tile's rows and of a split.
            unsafe { global::load_where(item < items && split < end, address as *const [u32; 4], [0; 4]) }
        })
    };
    let mut values = load(item, first);
    // SAFETY: the caller's contract; the barriers order the uses of the table.
    unsafe {
        load_numbers(decode, &table, tile_row, rows);
        // The numbers are in place.
        thread::sync_threads();
        let mut row = warp();
        while row < rows {
            weigh::<ID>(args, work, &table, row);
            row += const { decode_tile(ID).warps as u32 };
        }
        // The weights are in place.
        thread::sync_threads();
    }
    while item < items {
        let row = div_rem(item, row_items).0;
        let mut sums = [0f32; SUM_COLUMNS as usize];
        let mut split = first;
        loop {
            for n in 0..AT_ONCE as usize {
                let of_split = split + n as u32;
                if of_split < end {
                    // SAFETY: written before the barrier.
                    let weight: f32 = unsafe { table.numbers(row, of_split).load() };
                    for index in 0..sums.len() {
                        let sum = fma(weight, f32::from_bits(values[n][index]), sums[index]);
                        sums[index] = if weight == 0.0 { sums[index] } else { sum };
                    }
                }
            }
            split += AT_ONCE;
            if split >= end {
                break;
            }
            values = load(item, split);
        }
        if sharers > 1 {
            // SAFETY: the place is the thread's.
            unsafe { Table::<ID>::sums(thread).store(sums.map(f32::to_bits)) };
            break;
        }
        // SAFETY: the row and the columns are the tile's.
        unsafe { write::<E>(args, work, row, (item - row * row_items) * SUM_COLUMNS, sums) };
        item += threads;
        values = load(item, first);
    }
    if sharers > 1 {
        // SAFETY: all threads are here. The sums of all sharers are in place behind the barrier.
        unsafe { thread::sync_threads() };
        if thread < items {
            let row = div_rem(thread, row_items).0;
            let mut sums = [0f32; SUM_COLUMNS as usize];
            for share in 0..sharers {
                // SAFETY: written before the barrier.
                let part: [u32; 4] = unsafe { Table::<ID>::sums(share * items + thread).load() };
                sums = from_fn(|index| sums[index] + f32::from_bits(part[index]));
            }
            // SAFETY: the row and the columns are the tile's.
            unsafe { write::<E>(args, work, row, (thread - row * row_items) * SUM_COLUMNS, sums) };
        }
    }
}

/// Brings the maxima and sums of all rows and splits to shared memory.
///
/// # Safety
/// All threads of the block call it; `tile_row` is the tile's first row of partial results, and it has `rows`.
#[inline(always)]
unsafe fn load_numbers<const ID: usize>(decode: &DecodeArgs, table: &Table<ID>, tile_row: u64, rows: u32) {
    let threads = const { ATTENTION[ID].threads() };
    let entries = rows * decode.splits;
    let mut entry = thread::thread_idx_x();
    while entry < entries {
        let numbers: [_; NUMBERS_AT_ONCE as usize] = from_fn(|n| {
            let entry = entry + n as u32 * threads;
            let (split, row) = div_rem(entry, rows);
            let index = u64::from(split) * decode.rows + tile_row + u64::from(row);
            let load = |address: u64| {
                let address = (address + index * size_of::<f32>() as u64) as *const u32;
                // SAFETY: each split has a number for each row.
                unsafe { global::load_where(entry < entries, address, 0) }
            };
            (split, row, [load(decode.partial_max), load(decode.partial_sum)])
        });
        for n in 0..numbers.len() {
            let (split, row, numbers) = numbers[n];
            if entry + n as u32 * threads < entries {
                // SAFETY: the place is the entry's.
                unsafe { table.numbers(row, split).store(numbers) };
            }
        }
        entry += NUMBERS_AT_ONCE * threads;
    }
}

/// Puts the weights of all splits of a row in the place of their maxima, and writes the LSE of the row.
///
/// # Safety
/// All lanes of a warp call it together, behind a barrier after [`load_numbers`]. The tile has the row.
#[inline(always)]
unsafe fn weigh<const ID: usize>(args: &AttentionArgs, work: &DecodeWork, table: &Table<ID>, row: u32) {
    let Some((position, head)) = work.row(args, row) else { return };
    let batch_head = work.batch * args.q_heads + head;
    // SAFETY: the caller's contract; a lane reads and writes its own splits.
    unsafe {
        let mut largest = f32::NEG_INFINITY;
        let mut split = lane();
        while split < table.splits {
            largest = max(largest, table.numbers(row, split).load());
            split += LANES;
        }
        let largest = warp_max(largest);
        let weight = |split: u32| {
            let [part_max, sum] = table.numbers(row, split).load::<[u32; 2]>().map(f32::from_bits);
            split_weight(part_max, largest, args.scale_log2) * sum
        };
        let mut total = 0.0;
        let mut split = lane();
        while split < table.splits {
            total += weight(split);
            split += LANES;
        }
        let result = row_result(largest, warp_sum(total), args.scale_log2, sink_of_head(args, batch_head));
        let mut split = lane();
        while split < table.splits {
            // Normalised first: no sum of parts is larger than they are.
            table.numbers(row, split).store(weight(split) * result.normaliser);
            split += LANES;
        }
        if args.lse != 0 && lane() == 0 {
            let row = u64::from(batch_head) * u64::from(args.q_len) + u64::from(position);
            global::store((args.lse as *mut f32).wrapping_add(row as usize), result.lse);
        }
    }
}

/// Writes a row's columns of O.
///
/// # Safety
/// The tile has the row, and the row the columns.
#[inline(always)]
unsafe fn write<E: Element16>(
    args: &AttentionArgs,
    work: &DecodeWork,
    row: u32,
    column: u32,
    values: [f32; SUM_COLUMNS as usize],
) {
    if let Some((position, head)) = work.row(args, row) {
        // SAFETY: the caller's contract.
        unsafe { store_output::<E>(args, work.batch, head, position, column, values) };
    }
}
