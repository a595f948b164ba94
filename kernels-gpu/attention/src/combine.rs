//! The sum of partial results: `O = sum_p w_p O_p / sum_p w_p`, `w_p = l_p 2^(c (m_p - max m))`.
//!
//! A partial result of decoding has its maximum m and its sum l. A partial result that a caller merges has its LSE as m
//! and a sum of 1, because the LSE of large scores has no digits left for the sum.
//!
//! One warp takes one row. Its lanes first divide the parts, to find the largest maximum and the sum of the weights,
//! and then the columns: eight each, for the widest head dimension. A part whose maximum is minus infinity does not
//! count, whatever its O holds. Where all parts but one do not count, that part comes out as it is.

use cuda_std::convert::{Element16, fma, max};
use cuda_std::ptx::griddepcontrol;
use cuda_std::warp::{FULL_MASK, warp_max, warp_shuffle_idx, warp_sum};
use cuda_std::{global, thread};
use layout::Dtype;
use variants::attention::{COMBINE, COMBINE_ROWS, CombineArgs, PartialResult};

use crate::lane::{LANES, div_rem, lane, warp};
use crate::softmax::{row_result, split_weight};

/// Columns of a lane.
const COLUMNS: usize = 8;

/// An element type of parts or of the result.
pub(crate) trait Part {
    /// The type as a value.
    const DTYPE: Dtype;
    /// Its size.
    const BYTES: i64;

    /// # Safety
    /// Eight elements are readable at `address`, which is a multiple of 16 where `aligned`.
    unsafe fn load(address: u64, aligned: bool) -> [f32; COLUMNS];

    /// # Safety
    /// Eight elements are writable at `address`, which is a multiple of 16 where `aligned`.
    unsafe fn store(address: u64, aligned: bool, values: [f32; COLUMNS]);
}

/// f32.
pub(crate) enum F32 {}

impl Part for F32 {
    const DTYPE: Dtype = Dtype::F32;
    const BYTES: i64 = 4;

    #[inline(always)]
    unsafe fn load(address: u64, aligned: bool) -> [f32; COLUMNS] {
        let source = address as *const f32;
        // SAFETY: the caller's contract.
        unsafe {
            if aligned {
                let [a, b]: [[u32; 4]; 2] = [global::load(source.cast()), global::load(source.wrapping_add(4).cast())];
                [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]].map(f32::from_bits)
            } else {
                core::array::from_fn(|index| global::load(source.wrapping_add(index)))
            }
        }
    }

    #[inline(always)]
    unsafe fn store(address: u64, aligned: bool, values: [f32; COLUMNS]) {
        let out = address as *mut f32;
        // SAFETY: the caller's contract.
        unsafe {
            if aligned {
                let [a, b, c, d, e, f, g, h] = values.map(f32::to_bits);
                global::store(out.cast(), [a, b, c, d]);
                global::store(out.wrapping_add(4).cast(), [e, f, g, h]);
            } else {
                for index in 0..COLUMNS {
                    global::store(out.wrapping_add(index), values[index]);
                }
            }
        }
    }
}

impl<E: Element16> Part for E {
    const DTYPE: Dtype = <E as Element16>::DTYPE;
    const BYTES: i64 = 2;

    #[inline(always)]
    unsafe fn load(address: u64, aligned: bool) -> [f32; COLUMNS] {
        let source = address as *const u16;
        // SAFETY: the caller's contract.
        unsafe {
            if aligned {
                let words: [u32; 4] = global::load(source.cast());
                let [(a, b), (c, d), (e, f), (g, h)] = words.map(E::unpack);
                [a, b, c, d, e, f, g, h]
            } else {
                core::array::from_fn(|index| E::to_f32(global::load(source.wrapping_add(index))))
            }
        }
    }

    #[inline(always)]
    unsafe fn store(address: u64, aligned: bool, values: [f32; COLUMNS]) {
        let out = address as *mut u16;
        // SAFETY: the caller's contract.
        unsafe {
            if aligned {
                let [a, b, c, d, e, f, g, h] = values;
                global::store(out.cast(), [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)]);
            } else {
                for index in 0..COLUMNS {
                    global::store(out.wrapping_add(index), E::from_f32(values[index]));
                }
            }
        }
    }
}

/// Parts that are loaded side by side.
const AT_ONCE: u32 = 4;

/// # Safety
/// The launch is that of configuration `ID` of [`COMBINE`], and `args` describes the parts and the result.
#[inline(always)]
pub(crate) unsafe fn combine<I: Part, O: Part, const ID: usize>(args: &CombineArgs) {
    const { assert!(I::DTYPE as u8 == COMBINE[ID].part as u8 && O::DTYPE as u8 == COMBINE[ID].out as u8) };
    // The kernel before may still run: it wrote the parts.
    griddepcontrol::wait();
    let row = thread::block_idx_x() * COMBINE_ROWS as u32 + warp();
    if row >= args.rows {
        return;
    }
    let (head_row, in_head) = div_rem(row, args.row_len);
    let (batch, head) = div_rem(head_row, args.heads);
    let column = lane() * COLUMNS as u32;
    let offset = |strides: &variants::attention::AttentionStrides| {
        i64::from(batch) * strides.batch
            + i64::from(head) * strides.head
            + i64::from(in_head) * strides.row
            + i64::from(column)
    };
    let of_part = |part: u32, address: fn(&PartialResult) -> u64| {
        let base = address(if part == 0 { &args.first } else { &args.second });
        let index = i64::from(row) + i64::from(part.max(1) - 1) * args.row_step;
        // SAFETY: each part has a number for each row.
        unsafe { global::load((base as *const f32).wrapping_offset(index as isize)) }
    };
    let max_of = |part: u32| of_part(part, |part| part.max);
    // SAFETY: the whole warp has the same row, so all its lanes are here.
    unsafe {
        let mut largest = f32::NEG_INFINITY;
        let mut part = lane();
        while part < args.parts {
            largest = max(largest, max_of(part));
            part += LANES;
        }
        let largest = warp_max(largest);
        let weight = |part: u32| {
            if part >= args.parts {
                return 0.0;
            }
            let sum = if args.first.sum == 0 { 1.0 } else { of_part(part, |part| part.sum) };
            split_weight(max_of(part), largest, args.scale_log2) * sum
        };
        let mut total = 0.0;
        let mut part = lane();
        while part < args.parts {
            total += weight(part);
            part += LANES;
        }
        let sink = if args.sink == 0 {
            f32::NEG_INFINITY
        } else {
            // SAFETY: there is a sink for each head.
            global::load((args.sink as *const f32).wrapping_add(head as usize))
        };
        let result = row_result(largest, warp_sum(total), args.scale_log2, sink);

        let mine = column < args.head_dim;
        let values_of = |part: u32| {
            let (source, step): (&PartialResult, u32) =
                if part == 0 { (&args.first, 0) } else { (&args.second, part - 1) };
            let elements = offset(&source.strides) + i64::from(step) * args.o_step;
            let address = source.o.wrapping_add_signed(elements * I::BYTES);
            if mine && part < args.parts { I::load(address, args.inputs_aligned != 0) } else { [0.0; COLUMNS] }
        };
        let mut sums = [0f32; COLUMNS];
        let mut first = 0;
        while first < args.parts {
            // Normalised first: no sum of parts is larger than they are.
            let own = weight(first + lane()) * result.normaliser;
            let mut group = first;
            while group < args.parts.min(first + LANES) {
                let values: [[f32; COLUMNS]; AT_ONCE as usize] = core::array::from_fn(|n| values_of(group + n as u32));
                for n in 0..AT_ONCE {
                    let weight = warp_shuffle_idx(FULL_MASK, own, group - first + n, LANES).0;
                    for index in 0..COLUMNS {
                        let sum = fma(weight, values[n as usize][index], sums[index]);
                        sums[index] = if weight == 0.0 { sums[index] } else { sum };
                    }
                }
                group += AT_ONCE;
            }
            first += LANES;
        }

        if mine {
            let address = args.o.wrapping_add_signed(offset(&args.o_strides) * O::BYTES);
            O::store(address, args.output_aligned != 0, sums);
        }
        if args.lse != 0 && lane() == 0 {
            global::store((args.lse as *mut f32).wrapping_add(row as usize), result.lse);
        }
    }
}
