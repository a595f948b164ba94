//! The kernel, for either type of the inputs and of the cache.
//!
//! ```text
//! token, head, unit of the thread
//! two chunks of a row of Q, K or V -> registers      16 bytes each
//! rotated part: cos and sin of the position           (a, b) -> (a cos - b sin, a sin + b cos), in f32
//! out and cache <- the chunks                         rounded once each
//! ```
//!
//! Bound by memory: no thread waits for another, and the units of a token follow each other, so that its heads find
//! their row of the tables in L1.

use cuda_std::convert::{Bf16, Element16, F16, fma};
use cuda_std::ptx::griddepcontrol;
use cuda_std::{global, thread};
use variants::rotary::{CHUNK, RotaryArgs, RotaryKernel, RotaryRows, TABLE_BF16, TABLE_F16};

use crate::chunk::{Columns, values, words};
use crate::token::{Token, div_rem};

/// # Safety
/// As for the entry.
#[inline(always)]
pub(crate) unsafe fn rotary<E: Element16, const E4M3: bool>(args: &RotaryArgs) {
    // The kernel behind may start: it waits for this one to end. The kernel before may have written the tensors.
    griddepcontrol::launch_dependents();
    griddepcontrol::wait();
    let index = thread::block_idx_x() * RotaryKernel::THREADS + thread::thread_idx_x();
    let (token, of_token) = div_rem(index, args.token_units);
    let (head, unit) = div_rem(of_token, args.units);
    if token >= args.tokens {
        return;
    }
    // SAFETY: `args` describes the numbers and the tensors; heads are below those of their tensor.
    unsafe {
        let Some(token) = Token::find(args, token) else { return };
        let k_head = head.wrapping_sub(args.q.heads);
        if head < args.q.heads {
            rows::<E, E4M3>(args, args.q, token, head, Unit::rotated(args, args.q.columns, unit));
        } else if k_head < args.k.heads {
            rows::<E, E4M3>(args, args.k, token, k_head, Unit::rotated(args, args.k.columns, unit));
        } else {
            rows::<E, E4M3>(args, args.v, token, k_head - args.k.heads, Unit::rest(unit, 0, args.v.columns));
        }
    }
}

/// The columns of a thread.
#[derive(Clone, Copy)]
struct Unit {
    columns: [Columns; 2],
    /// The pairs that they are; none where they are not rotated.
    pairs: Columns,
}

impl Unit {
    /// Unit `unit` of a row whose first columns are rotated.
    #[inline(always)]
    fn rotated(args: &RotaryArgs, end: u32, unit: u32) -> Self {
        let half = args.rotary_dim / 2;
        let pairs = Columns::below(unit * CHUNK as u32, half);
        let of_pairs = half.div_ceil(CHUNK as u32);
        if unit >= of_pairs {
            return Self::rest(unit - of_pairs, args.rotary_dim, end);
        }
        let columns = if args.interleaved != 0 {
            let first = 2 * pairs.first;
            [first, first + CHUNK as u32].map(|first| Columns::below(first, args.rotary_dim))
        } else {
            [pairs, Columns { first: half + pairs.first, ..pairs }]
        };
        Self { columns, pairs }
    }

    /// Unit `unit` of the columns from `start` on, which are not rotated.
    #[inline(always)]
    fn rest(unit: u32, start: u32, end: u32) -> Self {
        let first = start + unit * 2 * CHUNK as u32;
        let columns = [first, first + CHUNK as u32].map(|first| Columns::below(first, end));
        Self { columns, pairs: Columns { first: 0, count: 0 } }
    }
}

/// One unit of one row.
///
/// # Safety
/// `args` and `tensor` describe the tensors, of which the thread has the unit for itself.
#[inline(always)]
unsafe fn rows<E: Element16, const E4M3: bool>(
    args: &RotaryArgs,
    tensor: RotaryRows,
    token: Token,
    head: u32,
    unit: Unit,
) {
    let Unit { columns, pairs } = unit;
    let row = |base: u64, [batch, of_head, of_row]: [i64; 3], entry: u32, row: u32, bytes: i64| {
        let distance = i64::from(entry) * batch + i64::from(head) * of_head + i64::from(row) * of_row;
        base.wrapping_add_signed(bytes * distance)
    };
    let [x_aligned, out_aligned, cache_aligned] = tensor.aligned;
    let x = row(tensor.x, tensor.x_strides, token.batch, token.row, 2);
    // SAFETY: the columns are inside the row, and so are tables and cache where `token` has a place in them.
    unsafe {
        let mut bits = columns.map(|columns| columns.load(x, x_aligned));
        let mut numbers = bits.map(values::<E>);
        if pairs.count > 0 {
            let position = token.position(args);
            let [cos, sin] = [0, 1].map(|table| table_values(args, table, position, pairs));
            numbers = rotate(args.interleaved != 0, numbers, cos, sin);
            bits = numbers.map(words::<E>);
        }
        if tensor.out != 0 {
            let out = row(tensor.out, tensor.out_strides, token.batch, token.row, 2);
            for index in 0..2 {
                columns[index].store(out, out_aligned, bits[index]);
            }
        }
        if tensor.cache == 0 {
            return;
        }
        let Some((page, page_row)) = token.slot(args) else { return };
        let cache = row(tensor.cache, tensor.cache_strides, page, page_row, if E4M3 { 1 } else { 2 });
        let factor = if E4M3 { descale(tensor, token.member, head) } else { 1.0 };
        for index in 0..2 {
            if E4M3 {
                columns[index].store_e4m3(cache, cache_aligned, numbers[index].map(|value| value / factor));
            } else {
                columns[index].store(cache, cache_aligned, bits[index]);
            }
        }
    }
}

/// The pairs of two chunks, rotated.
#[inline(always)]
fn rotate(
    interleaved: bool,
    [first, second]: [[f32; CHUNK]; 2],
    cos: [f32; CHUNK],
    sin: [f32; CHUNK],
) -> [[f32; CHUNK]; 2] {
    let pair =
        |index: usize, a: f32, b: f32| (fma(a, cos[index], -(b * sin[index])), fma(a, sin[index], b * cos[index]));
    let mut rotated = [[0.0; CHUNK]; 2];
    if interleaved {
        for index in 0..CHUNK / 2 {
            let (even, odd) = (2 * index, 2 * index + 1);
            (rotated[0][even], rotated[0][odd]) = pair(index, first[even], first[odd]);
            (rotated[1][even], rotated[1][odd]) = pair(CHUNK / 2 + index, second[even], second[odd]);
        }
    } else {
        for index in 0..CHUNK {
            (rotated[0][index], rotated[1][index]) = pair(index, first[index], second[index]);
        }
    }
    rotated
}

/// The cosines or sines of some pairs; NaN without a position.
///
/// # Safety
/// `args` describes the tables, which have the position.
#[inline(always)]
unsafe fn table_values(args: &RotaryArgs, table: usize, position: Option<u32>, pairs: Columns) -> [f32; CHUNK] {
    let Some(position) = position else { return [f32::NAN; CHUNK] };
    let bytes = if args.table_type == TABLE_F16 || args.table_type == TABLE_BF16 { 2 } else { 4 };
    let distance = bytes * i64::from(position) * args.table_strides[table];
    let row = args.tables[table].wrapping_add_signed(distance);
    // SAFETY: as required of the caller.
    unsafe {
        match args.table_type {
            TABLE_F16 => values::<F16>(pairs.load(row, args.table_aligned)),
            TABLE_BF16 => values::<Bf16>(pairs.load(row, args.table_aligned)),
            _ => pairs.load_f32(row, args.table_aligned),
        }
    }
}

/// What elements of the cache are multiplied by.
///
/// # Safety
/// `tensor` describes the factors.
#[inline(always)]
unsafe fn descale(tensor: RotaryRows, member: u32, head: u32) -> f32 {
    if tensor.descale == 0 {
        return 1.0;
    }
    let [of_member, of_head] = tensor.descale_strides;
    let distance = i64::from(member) * of_member + i64::from(head) * of_head;
    // SAFETY: as required of the caller.
    unsafe { global::load(tensor.descale.wrapping_add_signed(4 * distance) as *const f32) }
}
