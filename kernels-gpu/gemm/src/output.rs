//! From sums to elements of D: scale, C, bias, activation, rounding.

use cuda_std::convert::{Bf16, Element16, F16, ex2, fma, rcp};
use cuda_std::global;
use layout::Dtype;
use variants::gemm::{Activation, GROUP, GemmArgs, GemmMatrix, partial_row};

/// Where the elements of one batch entry go, and what is done to them.
pub(crate) struct Output<'a> {
    args: &'a GemmArgs,
    /// What sums are multiplied by: alpha and the scales of A and B.
    pub(crate) alpha: f32,
    /// What is multiplied by before rounding.
    d_scale: f32,
    /// C of the batch entry; 0 where it is not read.
    c: u64,
    /// D of the batch entry.
    d: u64,
}

/// The address of the first element of a batch entry.
#[inline(always)]
fn of_batch(matrix: &GemmMatrix, batch: u32, dtype: u32) -> u64 {
    matrix.address.wrapping_add_signed(i64::from(batch) * matrix.batch_stride * element_bytes(dtype))
}

/// The address of an element.
#[inline(always)]
fn element(start: u64, row_stride: i64, row: u32, column: u32, dtype: u32) -> u64 {
    start.wrapping_add_signed((i64::from(row) * row_stride + i64::from(column)) * element_bytes(dtype))
}

#[inline(always)]
fn element_bytes(dtype: u32) -> i64 {
    if dtype == Dtype::F32 as u32 {
        const { Dtype::F32.size_bytes() as i64 }
    } else if dtype == Dtype::E4M3 as u32 {
        const { Dtype::E4M3.size_bytes() as i64 }
    } else {
        const { Dtype::F16.size_bytes() as i64 }
    }
}

/// The factor at `address`; 1 where there is none.
///
/// # Safety
/// The address is 0 or that of an f32.
#[inline(always)]
unsafe fn factor(address: u64) -> f32 {
    // SAFETY: the caller's contract.
    if address == 0 { 1.0 } else { unsafe { global::load_nc(address as *const f32) } }
}

impl<'a> Output<'a> {
    /// The output of one batch entry.
    ///
    /// # Safety
    /// The addresses of `args` are those of its tensors.
    #[inline(always)]
    pub(crate) unsafe fn new(args: &'a GemmArgs, batch: u32) -> Self {
        // SAFETY: the caller's contract.
        let [a_scale, b_scale, d_scale] =
            [args.a_scale, args.b_scale, args.d_scale].map(|address| unsafe { factor(address) });
        Self {
            args,
            alpha: args.alpha * a_scale * b_scale,
            d_scale: args.d_factor * d_scale,
            c: if args.c.address == 0 { 0 } else { of_batch(&args.c, batch, args.d_dtype) },
            d: of_batch(&args.d, batch, args.d_dtype),
        }
    }

    /// Whether elements are 16-bit numbers, and sums times a factor.
    #[cfg(target_feature = "sm_90a")]
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        let GemmArgs { bias, activation, d_scale, d_factor, d_dtype, .. } = *self.args;
        self.c == 0
            && bias == 0
            && d_scale == 0
            && d_factor == 1.0
            && activation == Activation::None as u32
            && (d_dtype == Dtype::F16 as u32 || d_dtype == Dtype::Bf16 as u32)
    }

    /// Finishes and stores the sums of [`GROUP`] columns of a row, as many of them as D has.
    ///
    /// # Safety
    /// Row and first column are inside D, and no other thread stores them.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, row: u32, column: u32, sums: [f32; GROUP]) {
        let args = self.args;
        let columns = args.n - column;
        let mut values = sums.map(|sum| sum * self.alpha);
        // SAFETY: the caller's contract; elements beyond the last column are neither read nor written.
        unsafe {
            if self.c != 0 {
                let address = element(self.c, args.c.row_stride, row, column, args.d_dtype);
                let c = load(address, args.d_dtype, columns, args.aligned != 0);
                values = core::array::from_fn(|i| fma(args.beta, c[i], values[i]));
            }
            if args.bias != 0 {
                let bias = (args.bias as *const f32).wrapping_add(column as usize);
                let bias = load_rest(columns, |i| global::load_nc(bias.wrapping_add(i)));
                values = core::array::from_fn(|i| values[i] + bias[i]);
            }
            let values = activate(args.activation, values).map(|value| value * self.d_scale);
            let address = element(self.d, args.d.row_stride, row, column, args.d_dtype);
            store(address, args.d_dtype, columns, args.aligned != 0, values);
        }
    }
}

/// Stores [`GROUP`] finished elements of 16 bits.
///
/// # Safety
/// Row and columns are inside D, whose elements are of 16 bits in aligned rows, and no other thread stores them.
#[cfg(target_feature = "sm_90a")]
#[inline(always)]
pub(crate) unsafe fn store_rounded(args: &GemmArgs, batch: u32, row: u32, column: u32, elements: [u32; 4]) {
    let dtype = Dtype::F16 as u32;
    let address = element(of_batch(&args.d, batch, dtype), args.d.row_stride, row, column, dtype);
    // SAFETY: the caller's contract.
    unsafe { global::store(address as *mut [u32; 4], elements) }
}

/// Partial sums in f32.
pub(crate) struct Partial<'a> {
    args: &'a GemmArgs,
}

impl<'a> Partial<'a> {
    #[inline(always)]
    pub(crate) fn new(args: &'a GemmArgs) -> Self {
        Self { args }
    }

    /// The address of the first of [`GROUP`] columns.
    #[inline(always)]
    fn address(&self, split: u32, batch: u32, row: u32, column: u32) -> u64 {
        let args = self.args;
        let matrix = u64::from(split) * u64::from(args.batch) + u64::from(batch);
        let row = matrix * u64::from(args.m) + u64::from(row);
        args.partial + (row * u64::from(partial_row(args.n)) + u64::from(column)) * size_of::<f32>() as u64
    }

    /// Stores the partial sums of a split of k.
    ///
    /// # Safety
    /// Row and column are inside D, and no other thread stores them.
    #[inline(always)]
    pub(crate) unsafe fn store(&self, split: u32, batch: u32, row: u32, column: u32, sums: [f32; GROUP]) {
        let address = self.address(split, batch, row, column);
        // SAFETY: rows are padded to whole groups.
        unsafe { store_floats(address, sums) }
    }

    /// Adds up the partial sums, in the order of the splits.
    ///
    /// # Safety
    /// Row and column are inside D, and every split is stored.
    #[inline(always)]
    pub(crate) unsafe fn total(&self, batch: u32, row: u32, column: u32) -> [f32; GROUP] {
        let mut total = [0.0; GROUP];
        let mut split = 0;
        while split < self.args.splits {
            // SAFETY: rows are padded to whole groups.
            let partial = unsafe { load_floats(self.address(split, batch, row, column)) };
            total = core::array::from_fn(|i| total[i] + partial[i]);
            split += 1;
        }
        total
    }
}

/// # Safety
/// A group of f32 on a 16-byte boundary is readable there.
#[inline(always)]
unsafe fn load_floats(address: u64) -> [f32; GROUP] {
    // SAFETY: the caller's contract.
    let [low, high] = [0, 1].map(|half| unsafe { global::load((address as *const [u32; 4]).wrapping_add(half)) });
    core::array::from_fn(|i| f32::from_bits(if i < 4 { low[i] } else { high[i - 4] }))
}

/// # Safety
/// A group of f32 on a 16-byte boundary is this thread's to write.
#[inline(always)]
unsafe fn store_floats(address: u64, values: [f32; GROUP]) {
    let bits = values.map(f32::to_bits);
    // SAFETY: the caller's contract.
    unsafe {
        global::store(address as *mut [u32; 4], [bits[0], bits[1], bits[2], bits[3]]);
        global::store((address as *mut [u32; 4]).wrapping_add(1), [bits[4], bits[5], bits[6], bits[7]]);
    }
}

/// `x * sigmoid(t)`: SiLU with t = x, and GELU in its form with tanh with t = 2 sqrt(2 / pi) (x + 0.044715 x^3).
#[inline(always)]
fn gated(x: f32, t: f32) -> f32 {
    x * rcp(1.0 + ex2(t * -core::f32::consts::LOG2_E))
}

#[inline(always)]
fn activate(activation: u32, values: [f32; GROUP]) -> [f32; GROUP] {
    const GELU_CUBE: f32 = 0.044715;
    const GELU_SLOPE: f32 = 2.0 * core::f32::consts::FRAC_2_SQRT_PI * core::f32::consts::FRAC_1_SQRT_2;
    if activation == Activation::Relu as u32 {
        // NaN stays NaN.
        values.map(|x| if x < 0.0 { 0.0 } else { x })
    } else if activation == Activation::Gelu as u32 {
        values.map(|x| gated(x, GELU_SLOPE * fma(GELU_CUBE * x * x, x, x)))
    } else if activation == Activation::Silu as u32 {
        values.map(|x| gated(x, x))
    } else {
        values
    }
}

/// Loads a group of elements of C, zeros beyond `columns`.
///
/// # Safety
/// The elements are readable, on a 16-byte boundary where `aligned`.
#[inline(always)]
unsafe fn load(address: u64, dtype: u32, columns: u32, aligned: bool) -> [f32; GROUP] {
    let whole = aligned && columns >= GROUP as u32;
    // SAFETY: the caller's contract.
    unsafe {
        if dtype == Dtype::F32 as u32 {
            if whole {
                load_floats(address)
            } else {
                load_rest(columns, |i| global::load((address as *const f32).wrapping_add(i)))
            }
        } else if dtype == Dtype::Bf16 as u32 {
            load_16bit::<Bf16>(address as *const u16, columns, whole)
        } else if dtype == Dtype::E4M3 as u32 {
            load_e4m3(address as *const u8, columns, whole)
        } else {
            load_16bit::<F16>(address as *const u16, columns, whole)
        }
    }
}

/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn load_e4m3(address: *const u8, columns: u32, whole: bool) -> [f32; GROUP] {
    // SAFETY: the caller's contract.
    unsafe {
        if whole {
            let words: [u32; 2] = global::load(address.cast());
            return core::array::from_fn(|i| widen_e4m3((words[i / 4] >> (i % 4 * 8)) as u8));
        }
        load_rest(columns, |i| widen_e4m3(global::load(address.wrapping_add(i))))
    }
}

/// Widens an e4m3 value. E4M3 has no infinities: the bits are those of an f16 whose exponent is too small by 8, but for
/// NaN.
#[inline(always)]
fn widen_e4m3(bits: u8) -> f32 {
    const NAN: u8 = 0x7f;
    const EXPONENT_GAP: f32 = 256.0;
    let f16 = u16::from(bits & 0x80) << 8 | u16::from(bits & NAN) << 7;
    if bits & NAN == NAN { f32::NAN } else { F16::to_f32(f16) * EXPONENT_GAP }
}

/// # Safety
/// As [`load`].
#[inline(always)]
unsafe fn load_16bit<E: Element16>(address: *const u16, columns: u32, whole: bool) -> [f32; GROUP] {
    // SAFETY: the caller's contract.
    unsafe {
        if whole {
            let pairs: [u32; 4] = global::load(address.cast());
            let pairs = pairs.map(E::unpack);
            return core::array::from_fn(|i| if i % 2 == 0 { pairs[i / 2].0 } else { pairs[i / 2].1 });
        }
        load_rest(columns, |i| E::to_f32(global::load(address.wrapping_add(i))))
    }
}

/// The first `columns` of a group, then zeros. Elements move up as they come, from the last on: an index that is not
/// known would put the group into local memory.
#[inline(always)]
fn load_rest(columns: u32, element: impl Fn(usize) -> f32) -> [f32; GROUP] {
    let mut values = [0.0; GROUP];
    let mut left = if columns < GROUP as u32 { columns } else { GROUP as u32 };
    while left > 0 {
        left -= 1;
        for i in (1..GROUP).rev() {
            values[i] = values[i - 1];
        }
        values[0] = element(left as usize);
    }
    values
}

/// Rounds and stores a group of elements, those beyond `columns` not.
///
/// # Safety
/// The elements are this thread's to write, on a 16-byte boundary where `aligned`.
#[inline(always)]
unsafe fn store(address: u64, dtype: u32, columns: u32, aligned: bool, values: [f32; GROUP]) {
    let whole = aligned && columns >= GROUP as u32;
    // SAFETY: the caller's contract.
    unsafe {
        if dtype == Dtype::F32 as u32 {
            if whole {
                store_floats(address, values);
            } else {
                store_rest(columns, values, |i, value| global::store((address as *mut f32).wrapping_add(i), value));
            }
        } else if dtype == Dtype::Bf16 as u32 {
            store_16bit::<Bf16>(address as *mut u16, columns, whole, values);
        } else if dtype == Dtype::E4M3 as u32 {
            store_e4m3(address as *mut u8, columns, whole, values);
        } else {
            store_16bit::<F16>(address as *mut u16, columns, whole, values);
        }
    }
}

/// # Safety
/// As [`store`].
#[cfg(target_feature = "sm_89")]
#[inline(always)]
unsafe fn store_e4m3(address: *mut u8, columns: u32, whole: bool, values: [f32; GROUP]) {
    use cuda_std::convert::pack_e4m3x2;
    // SAFETY: the caller's contract.
    unsafe {
        if whole {
            let pair = |i: usize| u32::from(pack_e4m3x2(values[i], values[i + 1]));
            global::store(address.cast(), [pair(0) | pair(2) << 16, pair(4) | pair(6) << 16]);
        } else {
            store_rest(columns, values, |i, value| {
                global::store(address.wrapping_add(i), pack_e4m3x2(value, 0.0) as u8);
            });
        }
    }
}

/// Products whose D is e4m3 have operands that no row of this architecture multiplies.
///
/// # Safety
/// It is never called.
#[cfg(not(target_feature = "sm_89"))]
#[inline(always)]
unsafe fn store_e4m3(_: *mut u8, _: u32, _: bool, _: [f32; GROUP]) {}

/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_16bit<E: Element16>(address: *mut u16, columns: u32, whole: bool, values: [f32; GROUP]) {
    // SAFETY: the caller's contract.
    unsafe {
        if whole {
            let pairs: [u32; 4] = core::array::from_fn(|i| E::pack(values[2 * i], values[2 * i + 1]));
            global::store(address.cast(), pairs);
        } else {
            store_rest(columns, values, |i, value| global::store(address.wrapping_add(i), E::from_f32(value)));
        }
    }
}

/// Stores the first `columns` of a group. Elements move down as they go, as in [`load_rest`].
#[inline(always)]
fn store_rest(columns: u32, mut values: [f32; GROUP], store: impl Fn(usize, f32)) {
    let count = if columns < GROUP as u32 { columns } else { GROUP as u32 };
    let mut index = 0;
    while index < count {
        store(index as usize, values[0]);
        for i in 1..GROUP {
            values[i - 1] = values[i];
        }
        index += 1;
    }
}
