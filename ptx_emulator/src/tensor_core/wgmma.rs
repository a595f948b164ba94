//! `wgmma`, by the part of one warp: 16 rows of D are those rows of A times B.
//!
//! The precision is that of `mma`: the accumulator and the products of one instruction are added in f64, and the sum is
//! rounded once, to f32 or f16. [`Sums::Hopper`] gives FP8 products the precision that the tensor cores of Hopper have
//! instead: the accumulator and the products are aligned to the largest of them, 13 bits below its leading one are
//! kept, what is lower is cut off, and the sum is cut to that too.

use layout::descriptor::{Descriptor, K_STEP_BYTES, Major};
use layout::fragment;

use super::{Half, Quarter, Register};
use crate::float::{Conversion, F16, NAN};

/// The rows of a warp.
pub const ROWS: usize = 16;

/// Bits below the leading one in the sums of FP8 products on Hopper.
const HOPPER_FP8_BITS: i32 = 13;

/// The precision of sums of FP8 products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Sums {
    /// As for all other types.
    #[default]
    Exact,
    /// That of the tensor cores of Hopper.
    Hopper,
}

/// The type of a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// `.f16` or `.bf16`
    Half(Half),
    /// `.tf32`, of which the 13 low bits are ignored.
    Tf32,
    /// `.e4m3` or `.e5m2`
    Quarter(Quarter),
}

impl Element {
    /// The size of an element.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Element::Half(_) => 2,
            Element::Tf32 => 4,
            Element::Quarter(_) => 1,
        }
    }

    /// The length of the sums of one instruction.
    #[must_use]
    pub const fn k(self) -> usize {
        (K_STEP_BYTES / self.bytes()) as usize
    }

    /// The numbers in some bytes, in their order.
    fn decode(self, bytes: &[u8], mut put: impl FnMut(usize, f32)) {
        match self {
            Element::Half(half) => {
                for (at, &bytes) in bytes.as_chunks().0.iter().enumerate() {
                    put(at, half.decode(u16::from_le_bytes(bytes)));
                }
            }
            Element::Tf32 => {
                for (at, &bytes) in bytes.as_chunks().0.iter().enumerate() {
                    put(at, f32::from_bits(u32::from_le_bytes(bytes) & !0x1fff));
                }
            }
            Element::Quarter(quarter) => {
                let table = quarter.table();
                bytes.iter().enumerate().for_each(|(at, &bits)| put(at, table[bits as usize]));
            }
        }
    }
}

/// A factor: `mn` numbers for each of the `k` that are summed over.
#[derive(Debug, Clone, PartialEq)]
pub struct Factor {
    mn: usize,
    values: Vec<f32>,
}

/// The bytes that one read of a matrix in shared memory takes.
pub const UNIT_BYTES: u32 = 16;

impl Factor {
    /// `count` rows or columns from `first` of the matrix that a descriptor describes; `read` gets the addresses of its
    /// units of 16 bytes.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn from_shared<E>(
        element: Element,
        (descriptor, major): (Descriptor, Major),
        (first, count): (usize, usize),
        mut read: impl FnMut(u32) -> Result<[u8; 16], E>,
    ) -> Result<Factor, E> {
        let k = element.k();
        let mut values = vec![0.0; count * k];
        let unit = (UNIT_BYTES / element.bytes()) as usize;
        let mut place = |mn: usize, depth: usize| {
            read(descriptor.element_address(major, element.bytes(), (first + mn) as u32, depth as u32))
        };
        match major {
            Major::K => {
                for mn in 0..count {
                    for depth in (0..k).step_by(unit) {
                        let bytes = place(mn, depth)?;
                        element.decode(&bytes, |at, value| values[(depth + at) * count + mn] = value);
                    }
                }
            }
            Major::Mn => {
                for depth in 0..k {
                    for mn in (0..count).step_by(unit) {
                        let bytes = place(mn, depth)?;
                        element.decode(&bytes, |at, value| values[depth * count + mn + at] = value);
                    }
                }
            }
        }
        Ok(Factor { mn: count, values })
    }

    /// The rows of A that a warp has in registers.
    #[must_use]
    pub fn from_registers(element: Element, registers: [&Register; 4]) -> Factor {
        let mut values = vec![0.0; ROWS * element.k()];
        for (register, lanes) in registers.into_iter().enumerate() {
            for (lane, word) in lanes.iter().enumerate() {
                element.decode(&word.to_le_bytes(), |part, value| {
                    let (row, k) = fragment::wgmma_a(lane as u32, register as u32, part as u32, element.bytes());
                    values[k as usize * ROWS + row as usize] = value;
                });
            }
        }
        Factor { mn: ROWS, values }
    }
}

/// 16 rows of D, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct Accumulators {
    n: usize,
    values: Vec<f64>,
}

impl Accumulators {
    /// Zeros, `n` columns.
    #[must_use]
    pub fn zero(n: usize) -> Accumulators {
        Accumulators { n, values: vec![0.0; ROWS * n] }
    }

    /// Those in registers: of an f32 each, or of two f16.
    #[must_use]
    pub fn from_registers<'a>(n: usize, f16: bool, registers: impl Iterator<Item = &'a Register>) -> Accumulators {
        let mut d = Accumulators::zero(n);
        for (register, lanes) in registers.enumerate() {
            for (lane, &word) in lanes.iter().enumerate() {
                if f16 {
                    for (half, bits) in [word as u16, (word >> 16) as u16].into_iter().enumerate() {
                        let (row, column) = fragment::wgmma_d_f16(lane as u32, register as u32, half as u32);
                        d.values[row as usize * n + column as usize] = Half::F16.decode(bits).into();
                    }
                } else {
                    let (row, column) = fragment::wgmma_d(lane as u32, register as u32);
                    d.values[row as usize * n + column as usize] = f32::from_bits(word).into();
                }
            }
        }
        d
    }

    /// Register `register`, rounded to its type.
    #[must_use]
    pub fn register(&self, f16: bool, register: usize) -> Register {
        let at = |(row, column): (u32, u32)| self.values[row as usize * self.n + column as usize];
        std::array::from_fn(|lane| {
            let (lane, register) = (lane as u32, register as u32);
            if f16 {
                let [low, high] =
                    [0, 1].map(|half| F16.encode(at(fragment::wgmma_d_f16(lane, register, half)), Conversion::NEAREST));
                return low | high << 16;
            }
            let sum = at(fragment::wgmma_d(lane, register));
            if sum.is_nan() { NAN.to_bits() } else { (sum as f32).to_bits() }
        })
    }

    /// Adds `a` times `b`, or subtracts it.
    ///
    /// # Panics
    /// If the factors are of different lengths, or not of 16 rows and as many columns as D has.
    pub fn add_product(&mut self, a: &Factor, b: &Factor, negated: bool, sums: Sums) {
        assert!(
            a.mn == ROWS && b.mn == self.n && a.values.len() * self.n == b.values.len() * ROWS,
            "factors of a product"
        );
        if sums == Sums::Hopper {
            return self.add_truncated(a, b, negated);
        }
        let sign = if negated { -1.0 } else { 1.0 };
        let a: Vec<f64> = a.values.iter().map(|&value| f64::from(value) * sign).collect();
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the CPU has both features.
            unsafe { add_avx2(&a, &b.values, &mut self.values, self.n) };
            return;
        }
        add(&a, &b.values, &mut self.values, self.n);
    }

    fn add_truncated(&mut self, a: &Factor, b: &Factor, negated: bool) {
        let sign = if negated { -1.0 } else { 1.0 };
        let mut terms = Vec::new();
        for (index, sum) in self.values.iter_mut().enumerate() {
            let (row, column) = (index / self.n, index % self.n);
            terms.clear();
            terms.push(*sum);
            let rows = a.values.as_chunks::<ROWS>().0.iter().zip(b.values.chunks_exact(self.n));
            terms.extend(rows.map(|(a, b)| sign * f64::from(a[row]) * f64::from(b[column])));
            let largest = terms.iter().fold(0.0, |largest: f64, term| largest.max(term.abs()));
            if largest == 0.0 || !largest.is_finite() || terms.iter().any(|term| term.is_nan()) {
                *sum = terms.iter().sum();
                continue;
            }
            let cut = |value: f64, largest: f64| {
                let unit = 2f64.powi(exponent(largest) - HOPPER_FP8_BITS);
                (value / unit).trunc() * unit
            };
            let total: f64 = terms.iter().map(|&term| cut(term, largest)).sum();
            *sum = if total == 0.0 { 0.0 } else { cut(total, total.abs()) };
        }
    }
}

/// The exponent of the leading bit of a normal number.
fn exponent(value: f64) -> i32 {
    (value.to_bits() >> 52 & 0x7ff) as i32 - 1023
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn add_avx2(a: &[f64], b: &[f32], d: &mut [f64], n: usize) {
    add(a, b, d, n);
}

/// Blocks of 4 rows and 8 columns, whose sums stay in vector registers.
#[inline(always)]
fn add(a: &[f64], b: &[f32], d: &mut [f64], n: usize) {
    for (block, d) in d.chunks_exact_mut(4 * n).enumerate() {
        for column in (0..n).step_by(8) {
            let mut sums: [[f64; 8]; 4] = std::array::from_fn(|row| std::array::from_fn(|at| d[row * n + column + at]));
            for (a, b) in a.as_chunks::<ROWS>().0.iter().zip(b.chunks_exact(n)) {
                let (a, b) = (&a[4 * block..][..4], &b[column..][..8]);
                let b: [f64; 8] = std::array::from_fn(|at| b[at].into());
                for (sums, &a) in sums.iter_mut().zip(a) {
                    for (sum, b) in sums.iter_mut().zip(b) {
                        *sum += a * b;
                    }
                }
            }
            for (row, sums) in sums.iter().enumerate() {
                d[row * n + column..][..8].copy_from_slice(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factor(mn: usize, k: usize, value: impl Fn(usize, usize) -> f32) -> Factor {
        Factor { mn, values: (0..k * mn).map(|at| value(at % mn, at / mn)).collect() }
    }

    #[test]
    fn a_product_is_the_sum_over_k() {
        let (a, b) =
            (factor(ROWS, 16, |row, k| (row * 3 + k) as f32 - 20.0), factor(24, 16, |n, k| (n + 5 * k) as f32));
        for negated in [false, true] {
            let mut d = Accumulators::zero(24);
            d.values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f64);
            d.add_product(&a, &b, negated, Sums::Exact);
            for row in 0..ROWS {
                for column in 0..24 {
                    let product: f64 =
                        (0..16).map(|k| (row as f64 * 3.0 + k as f64 - 20.0) * (column as f64 + 5.0 * k as f64)).sum();
                    let expected = (row * 24 + column) as f64 + if negated { -product } else { product };
                    assert_eq!(d.values[row * 24 + column], expected);
                }
            }
        }
    }

    #[test]
    fn hopper_cuts_fp8_products_13_bits_below_the_largest() {
        // One product of 1 and one of 2^-13 stay, one of 2^-14 is lost.
        for (small, expected) in [(-13, 1.0 + 2f64.powi(-13)), (-14, 1.0)] {
            let a = factor(ROWS, 32, |_, k| if k < 2 { 1.0 } else { 0.0 });
            let b = factor(8, 32, |_, k| if k == 0 { 1.0 } else { 2f32.powi(small) });
            let mut d = Accumulators::zero(8);
            d.add_product(&a, &b, false, Sums::Hopper);
            assert_eq!(d.values, vec![expected; ROWS * 8], "{small}");
            let mut d = Accumulators::zero(8);
            d.add_product(&a, &b, false, Sums::Exact);
            assert_eq!(d.values, vec![1.0 + 2f64.powi(small); ROWS * 8], "{small}");
        }
        // A large accumulator takes the place of the small products.
        let ones = factor(ROWS, 32, |_, _| 1.0);
        let mut d = Accumulators { n: 8, values: vec![f64::from(1 << 20); ROWS * 8] };
        d.add_product(&ones, &factor(8, 32, |_, _| 1.0), false, Sums::Hopper);
        assert_eq!(d.values, vec![f64::from(1 << 20); ROWS * 8]);
    }

    #[test]
    fn registers_of_d_hold_every_element_once() {
        for f16 in [false, true] {
            let mut d = Accumulators::zero(16);
            d.values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f64);
            let registers: Vec<Register> = (0..if f16 { 4 } else { 8 }).map(|at| d.register(f16, at)).collect();
            assert_eq!(Accumulators::from_registers(16, f16, registers.iter()), d);
        }
        let nan = Accumulators { n: 8, values: vec![f64::NAN; ROWS * 8] };
        assert_eq!(nan.register(false, 0), [0x7fff_ffff; super::super::LANES]);
    }
}
