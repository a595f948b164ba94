//! `wgmma`, by the part of one warp: 16 rows of D are those rows of A times B.
//!
//! The precision is that of Hopper, bit by bit, as far as 215,000 results of random factors on an H100 tell. Sums of
//! f16, bf16 and tf32 are those of [`sum`]. Sums of FP8 keep only 13 bits below the largest exponent, and a sum in f32
//! is cut to 13 bits below its own leading one. Sums that are accumulated in f16 are rounded to nearest.

use layout::descriptor::{Descriptor, K_STEP_BYTES, Major};
use layout::fragment;

use super::sum::{self, FRACTION_BITS, LOWEST, LOWEST_OF_E4M3, LOWEST_OF_F16, Rule};
use super::{Half, Quarter, Register};
use crate::float::{Conversion, F16};

/// The rows of a warp.
pub const ROWS: usize = 16;

/// The bits of -0 in f16.
const MINUS_ZERO: u32 = 1 << 15;

/// Bits of a term in the sums of FP8 products, below the largest exponent.
const FP8_BITS: i32 = 13;

/// How precise the sums of FP8 products are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Fp8Sums {
    /// As Hopper's: 13 bits below the largest exponent are kept.
    #[default]
    Reduced,
    /// As those of f16, which tells the error of a kernel from that of the card's sums.
    Full,
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

    /// The lowest exponent.
    const fn lowest(self) -> i32 {
        match self {
            Element::Quarter(Quarter::E4m3) => LOWEST_OF_E4M3,
            Element::Quarter(Quarter::E5m2) | Element::Half(Half::F16) => LOWEST_OF_F16,
            Element::Half(Half::Bf16) | Element::Tf32 => LOWEST,
        }
    }

    /// The precision of sums, in f16 or in f32, of products of A of this type and B.
    #[must_use]
    pub const fn rule(self, b: Element, f16: bool, fp8: Fp8Sums) -> Rule {
        let (fraction_bits, result_bits) = match (self, fp8) {
            (Element::Quarter(_), Fp8Sums::Reduced) => (FP8_BITS, if f16 { None } else { Some(FP8_BITS) }),
            _ => (FRACTION_BITS, None),
        };
        Rule { lowest: [self.lowest(), b.lowest()], fraction_bits, result_bits, is_rounded_again: f16 }
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
    values: Vec<f32>,
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
                        d.values[row as usize * n + column as usize] = Half::F16.decode(bits);
                    }
                } else {
                    let (row, column) = fragment::wgmma_d(lane as u32, register as u32);
                    d.values[row as usize * n + column as usize] = f32::from_bits(word);
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
                let [low, high] = [0, 1].map(|half| {
                    let sum = at(fragment::wgmma_d_f16(lane, register, half));
                    let bits = F16.encode(sum.into(), Conversion::NEAREST);
                    // What is rounded to zero loses its sign.
                    if bits == MINUS_ZERO { 0 } else { bits }
                });
                return low | high << 16;
            }
            at(fragment::wgmma_d(lane, register)).to_bits()
        })
    }

    /// Adds `a` times `b`, or subtracts it.
    ///
    /// # Panics
    /// If the factors are of different lengths, or not of 16 rows and as many columns as D has.
    pub fn add_product(&mut self, a: &Factor, b: &Factor, negated: bool, rule: Rule) {
        assert!(a.mn == ROWS && b.mn == self.n, "factors of a product of 16 rows and {} columns", self.n);
        match a.values.len() / ROWS {
            8 => self.add_long::<8>(a, b, negated, rule),
            16 => self.add_long::<16>(a, b, negated, rule),
            _ => self.add_long::<32>(a, b, negated, rule),
        }
    }

    fn add_long<const K: usize>(&mut self, a: &Factor, b: &Factor, negated: bool, rule: Rule) {
        const COLUMNS: usize = 8;
        let sign = if negated { -1.0 } else { 1.0 };
        let rows: [[f32; K]; ROWS] =
            std::array::from_fn(|row| std::array::from_fn(|k| sign * a.values[k * ROWS + row]));
        for first in (0..self.n).step_by(COLUMNS) {
            let columns: [[f32; COLUMNS]; K] =
                std::array::from_fn(|k| std::array::from_fn(|column| b.values[k * self.n + first + column]));
            let mut sums: [[f32; COLUMNS]; ROWS] =
                std::array::from_fn(|row| std::array::from_fn(|column| self.values[row * self.n + first + column]));
            sum::multiply_by(rule, &rows, &columns, &mut sums);
            for (row, sums) in sums.iter().enumerate() {
                self.values[row * self.n + first..][..COLUMNS].copy_from_slice(sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Measured on an H200.
    #[test]
    fn a_subnormal_of_e4m3_counts_with_the_lowest_exponent_of_its_type() {
        let a = factor(ROWS, 32, |_, k| [1.0, -(2f32.powi(-9))].get(k).copied().unwrap_or(0.0));
        let b = factor(8, 32, |_, k| [1.25 * 2f32.powi(-12), -64.0].get(k).copied().unwrap_or(0.0));
        let mut d = Accumulators::zero(8);
        let rule = Element::Quarter(Quarter::E4m3).rule(Element::Quarter(Quarter::E5m2), false, Fp8Sums::Reduced);
        d.add_product(&a, &b, false, rule);
        assert!(d.values.iter().all(|&sum| sum == 0.125_244_14), "{:?}", d.values);
    }

    fn factor(mn: usize, k: usize, value: impl Fn(usize, usize) -> f32) -> Factor {
        Factor { mn, values: (0..k * mn).map(|at| value(at % mn, at / mn)).collect() }
    }

    #[test]
    fn a_product_is_the_sum_over_k() {
        let (a, b) =
            (factor(ROWS, 16, |row, k| (row * 3 + k) as f32 - 20.0), factor(24, 16, |n, k| (n + 5 * k) as f32));
        for negated in [false, true] {
            let mut d = Accumulators::zero(24);
            d.values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f32);
            d.add_product(&a, &b, negated, Element::Tf32.rule(Element::Tf32, false, Fp8Sums::Reduced));
            for row in 0..ROWS {
                for column in 0..24 {
                    let product: f32 =
                        (0..16).map(|k| (row as f32 * 3.0 + k as f32 - 20.0) * (column as f32 + 5.0 * k as f32)).sum();
                    let expected = (row * 24 + column) as f32 + if negated { -product } else { product };
                    assert_eq!(d.values[row * 24 + column], expected);
                }
            }
        }
    }

    #[test]
    fn sums_of_fp8_keep_13_bits() {
        let (fp8, half) = (Element::Quarter(Quarter::E4m3), Element::Half(Half::F16));
        let sum = |a: fn(usize) -> f32, b: &dyn Fn(usize) -> f32, rule: Rule| {
            let mut d = Accumulators::zero(8);
            d.add_product(&factor(ROWS, 32, |_, k| a(k)), &factor(8, 32, |_, k| b(k)), false, rule);
            d.values[0]
        };
        // One product of 1 and one of 2^-13 stay, one of 2^-14 is lost.
        let two = |k: usize| if k < 2 { 1.0 } else { 0.0 };
        for (small, expected) in [(-13, 1.0 + 2f32.powi(-13)), (-14, 1.0)] {
            let b = |k: usize| if k == 0 { 1.0 } else { 2f32.powi(small) };
            assert_eq!(sum(two, &b, fp8.rule(fp8, false, Fp8Sums::Reduced)), expected, "{small}");
            assert_eq!(sum(two, &b, half.rule(half, false, Fp8Sums::Reduced)), 1.0 + 2f32.powi(small), "{small}");
        }
        // Of 31 and 2^-13 the smaller is cut off a result in f32.
        let b = |k: usize| if k == 0 { 2f32.powi(-13) } else { 1.0 };
        assert_eq!(sum(|_| 1.0, &b, fp8.rule(fp8, false, Fp8Sums::Reduced)), 31.0);
        assert_eq!(sum(|_| 1.0, &b, fp8.rule(fp8, true, Fp8Sums::Reduced)), 31.0 + 2f32.powi(-13));
        assert_eq!(
            sum(|_| 1.0, &b, fp8.rule(fp8, false, Fp8Sums::Full)),
            sum(|_| 1.0, &b, half.rule(half, false, Fp8Sums::Full))
        );
    }

    #[test]
    fn registers_of_d_hold_every_element_once() {
        for f16 in [false, true] {
            let mut d = Accumulators::zero(16);
            d.values.iter_mut().enumerate().for_each(|(at, value)| *value = at as f32);
            let registers: Vec<Register> = (0..if f16 { 4 } else { 8 }).map(|at| d.register(f16, at)).collect();
            assert_eq!(Accumulators::from_registers(16, f16, registers.iter()), d);
        }
    }
}
