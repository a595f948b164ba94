//! Conversions over every bit pattern of the narrow types and around every rounding tie; fast math within its bounds.

use ferrotile::{Float, LaunchConfig};
use half::{bf16, f16};
use layout::Arch;
use libtest_mimic::Failed;

use crate::{Probe, Test, blocks_of, expect_equal};

pub(crate) const TESTS: &[Test] = &[
    Test::new("convert_narrow", narrow),
    Test::new("convert_tf32", tf32),
    Test::new("convert_widen", widen),
    Test::new("convert_fp8_narrow", fp8_narrow).since(Arch::Sm89),
    Test::new("convert_fp8_widen", fp8_widen).since(Arch::Sm89),
    Test::new("convert_permute_bytes", permute_bytes),
    Test::new("convert_math", math),
    Test::new("convert_fma_f16x2", fma_f16x2),
];

const THREADS: u32 = 256;

fn one_thread_each(len: usize) -> LaunchConfig {
    blocks_of((len as u32).div_ceil(THREADS), THREADS)
}

/// Values that round in every possible way: each of `exact`, which are in ascending order; the middle between two of
/// them, and its neighbours; values beyond all of them, infinities and NaN.
fn around_ties(exact: &[f32]) -> Vec<f32> {
    let mut values = vec![f32::INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, f32::from_bits(1), 0.0];
    for pair in exact.windows(2) {
        let middle = (f64::from(pair[0]) + f64::from(pair[1])) / 2.0;
        let middle = middle as f32;
        values.extend([pair[0], pair[0].next_up(), middle.next_down(), middle, middle.next_up(), pair[1].next_down()]);
    }
    let last = exact.last().copied().unwrap_or_default();
    values.extend([last, last.next_up(), last * 1.015_625, last * 1.031_25, last * 1.062_5, last * 1.125, last * 2.0]);
    let negative: Vec<f32> = values.iter().map(|value| -value).collect();
    values.extend(negative);
    values
}

/// A NaN stands for all of its type: sign and payload are not compared.
fn f16_bits(value: f32) -> u32 {
    canonical(f16::from_f32(value).to_bits().into(), 0x7c00)
}

fn bf16_bits(value: f32) -> u32 {
    canonical(bf16::from_f32(value).to_bits().into(), 0x7f80)
}

/// The bits of a 16-bit float whose exponent field is `infinity`, or 0x7fff for any NaN.
fn canonical(bits: u32, infinity: u32) -> u32 {
    if bits & 0x7fff > infinity { 0x7fff } else { bits }
}

fn canonical_pair(pair: u32, infinity: u32) -> u32 {
    canonical(pair & 0xffff, infinity) | canonical(pair >> 16, infinity) << 16
}

/// The lower 13 bits of a result count for nothing, so they are not compared.
fn tf32(probe: &Probe<'_>) -> Result<(), Failed> {
    const STEP: u32 = 1 << 13;
    // Every step of the smallest and of a few other binades, and one more.
    let exponents = [0, 1, 126, 127, 128, 253];
    let exact = |exponent: u32| move |fraction| f32::from_bits((exponent << 23) + fraction * STEP);
    let exact: Vec<f32> = exponents.iter().flat_map(|&exponent| (0..=1024).map(exact(exponent))).collect();
    let mut values = around_ties(&exact);
    values.retain(|value| value.is_finite() && value.abs() < f32::MAX);
    let input = probe.upload(&values)?;
    let len = values.len() as u32;
    let got = probe.run(&one_thread_each(values.len()), values.len(), &[&input.as_raw(), &len])?;
    let got: Vec<u32> = got.into_iter().map(|bits| bits / STEP).collect();
    // The sign is apart from the magnitude, so adding half a step rounds ties away from zero.
    let expected: Vec<u32> = values.iter().map(|value| (value.to_bits() + STEP / 2) / STEP).collect();
    expect_equal(&got, &expected, |at| format!("{:e}", values[at]))
}

/// Every selector; bit 3 of a digit asks for the sign of the byte, eight times.
fn permute_bytes(probe: &Probe<'_>) -> Result<(), Failed> {
    let (a, b) = (0x3382_7104_u32, 0x77E6_95F5_u32);
    let got = probe.run(&blocks_of(256, 256), 65536, &[&a, &b])?;
    let bytes = [a.to_le_bytes(), b.to_le_bytes()].concat();
    let pick = |digit: u32| {
        let byte = bytes[(digit & 7) as usize];
        if digit & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
    };
    let expected = |selector: u32| u32::from_le_bytes([0, 4, 8, 12].map(|shift| pick(selector >> shift & 0xF)));
    let expected: Vec<u32> = (0..65536).map(expected).collect();
    expect_equal(&got, &expected, |at| format!("selector {at:04x}"))
}

fn narrow(probe: &Probe<'_>) -> Result<(), Failed> {
    let f16s: Vec<f32> = (0..0x7c00).map(|bits| f16::from_bits(bits).to_f32()).collect();
    let bf16s: Vec<f32> = (0..0x7f80).map(|bits| bf16::from_bits(bits).to_f32()).collect();
    let input = [around_ties(&f16s), around_ties(&bf16s)].concat();
    let buffer = probe.upload(&input)?;
    let got = probe.run(&one_thread_each(input.len()), 4 * input.len(), &[&buffer.as_raw(), &(input.len() as u32)])?;
    let (f16_infinity, bf16_infinity) = (0x7c00, 0x7f80);
    let got: Vec<[u32; 4]> = got
        .as_chunks()
        .0
        .iter()
        .map(|&[a, b, c, d]: &[u32; 4]| {
            [
                canonical(a, f16_infinity),
                canonical(b, bf16_infinity),
                canonical_pair(c, f16_infinity),
                canonical_pair(d, bf16_infinity),
            ]
        })
        .collect();
    let expected: Vec<[u32; 4]> = input
        .iter()
        .map(|&x| {
            let (a, b) = (f16_bits(x), bf16_bits(x));
            [a, b, a | f16_bits(-x) << 16, b | bf16_bits(-x) << 16]
        })
        .collect();
    expect_equal(&got, &expected, |at| format!("f16, bf16 and pairs of {:e}", input[at]))
}

/// The bits of an f32, or one NaN for all.
fn f32_bits(value: f32) -> u32 {
    if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }
}

fn widen(probe: &Probe<'_>) -> Result<(), Failed> {
    const PATTERNS: usize = 1 << 16;
    let got = probe.run(&one_thread_each(PATTERNS), 6 * PATTERNS, &[])?;
    let got: Vec<u32> = got.into_iter().map(|word| f32_bits(f32::from_bits(word))).collect();
    let expected: Vec<u32> = (0..=u16::MAX)
        .flat_map(|bits| {
            let f16 = |bits| f32_bits(f16::from_bits(bits).to_f32());
            let bf16 = |bits| f32_bits(bf16::from_bits(bits).to_f32());
            let other = bits ^ 0x8000;
            [f16(bits), f16(bits), f16(other), bf16(bits), bf16(bits), bf16(other)]
        })
        .collect();
    expect_equal(&got, &expected, |at| format!("pattern {:#06x}, conversion {}", at / 6, at % 6))
}

/// An 8-bit float: its exponent and fraction bits, and whether the largest exponent has infinities.
#[derive(Clone, Copy)]
struct Fp8 {
    fraction_bits: u32,
    bias: i32,
    has_infinities: bool,
}

const E4M3: Fp8 = Fp8 { fraction_bits: 3, bias: 7, has_infinities: false };
const E5M2: Fp8 = Fp8 { fraction_bits: 2, bias: 15, has_infinities: true };

impl Fp8 {
    fn decode(self, bits: u8) -> f32 {
        let (magnitude, ones) = (u32::from(bits & 0x7f), 1 << self.fraction_bits);
        let (exponent, fraction) = ((magnitude / ones) as i32, (magnitude % ones) as f32 / ones as f32);
        let largest = 0x7f / ones as i32;
        let value = match (exponent, fraction == 0.0) {
            (0, _) => fraction * 2f32.powi(1 - self.bias),
            _ if magnitude == 0x7f => f32::NAN,
            (e, true) if e == largest && self.has_infinities => f32::INFINITY,
            (e, false) if e == largest && self.has_infinities => f32::NAN,
            _ => (1.0 + fraction) * 2f32.powi(exponent - self.bias),
        };
        if bits & 0x80 == 0 { value } else { -value }
    }

    /// All finite values from 0 up; the index is the bits.
    fn finite(self) -> Vec<f32> {
        (0..0x80).map(|bits| self.decode(bits)).take_while(|value| value.is_finite()).collect()
    }

    /// The nearest finite value, ties to even bits; 0x7f for NaN.
    fn encode(self, value: f32) -> u32 {
        if value.is_nan() {
            return 0x7f;
        }
        let distance = |candidate: f32| (f64::from(candidate) - f64::from(value.abs()).min(1e6)).abs();
        let finite = self.finite();
        let nearest = (0..finite.len()).min_by(|&a, &b| {
            let by_distance = distance(finite[a]).total_cmp(&distance(finite[b]));
            by_distance.then((a % 2).cmp(&(b % 2)))
        });
        nearest.unwrap_or_default() as u32 | if value.is_sign_negative() { 0x80 } else { 0 }
    }

    /// The bits, or 0x7f for any NaN.
    fn canonical(self, bits: u32) -> u32 {
        if self.decode(bits as u8).is_nan() { 0x7f } else { bits }
    }
}

fn fp8_narrow(probe: &Probe<'_>) -> Result<(), Failed> {
    let input = [around_ties(&E4M3.finite()), around_ties(&E5M2.finite())].concat();
    let buffer = probe.upload(&input)?;
    let got = probe.run(&one_thread_each(input.len()), 2 * input.len(), &[&buffer.as_raw(), &(input.len() as u32)])?;
    let types = [E4M3, E5M2];
    let split = |at: usize, pair: u32| [pair & 0xff, pair >> 8].map(|bits| types[at % 2].canonical(bits));
    let got: Vec<[u32; 2]> = got.iter().enumerate().map(|(at, &pair)| split(at, pair)).collect();
    let expected: Vec<[u32; 2]> =
        input.iter().flat_map(|&x| types.map(|fp8| [fp8.encode(x), fp8.encode(-x)])).collect();
    expect_equal(&got, &expected, |at| format!("{} of {:e}", ["e4m3", "e5m2"][at % 2], input[at / 2]))
}

fn fp8_widen(probe: &Probe<'_>) -> Result<(), Failed> {
    const PATTERNS: usize = 1 << 16;
    let got = probe.run(&one_thread_each(PATTERNS), 4 * PATTERNS, &[])?;
    let got: Vec<u32> = got.into_iter().map(|pair| canonical_pair(pair, 0x7c00)).collect();
    let expected: Vec<u32> = (0..=u16::MAX)
        .flat_map(|pair| {
            [(E4M3, pair), (E5M2, pair), (E4M3, pair), (E4M3, !pair)].map(|(fp8, pair)| {
                let [lo, hi] = pair.to_le_bytes();
                f16_bits(fp8.decode(lo)) | f16_bits(fp8.decode(hi)) << 16
            })
        })
        .collect();
    let words = ["e4m3", "e5m2", "the first pair", "the second pair"];
    expect_equal(&got, &expected, |at| format!("pattern {:#06x}, {}", at / 4, words[at % 4]))
}

fn math(probe: &Probe<'_>) -> Result<(), Failed> {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let special = [0.0, -0.0, 1.0, -1.0, infinity, -infinity, nan, f32::MAX, f32::MIN_POSITIVE, 1e-40, -130.0, 128.5];
    let mut input = Vec::new();
    for a in special {
        input.extend(special.map(|b| [a, b, 1.5]));
    }
    // Every exponent and 41 fractions for the logarithm and the reciprocal, whose negatives go through the exponential
    // too.
    input.extend((1..255).flat_map(|exponent| {
        (0..41).map(move |step| {
            let a = f32::from_bits((exponent << 23) | (step * 204_600));
            [a, 3.0 - step as f32, f32::from_bits(exponent << 23)]
        })
    }));
    input.extend((0..20_000).map(|step| [step as f32 * 0.0127 - 126.0, step as f32, -1.0 / 3.0]));
    let buffer = probe.upload(&input.concat())?;
    let got = probe.run(&one_thread_each(input.len()), 5 * input.len(), &[&buffer.as_raw(), &(input.len() as u32)])?;
    for (&[a, b, c], got) in input.iter().zip(got.as_chunks::<5>().0) {
        let got = got.map(f32::from_bits);
        // The approximate instructions take subnormal inputs, and give subnormal results, as zeros.
        let flushed = if a.is_subnormal() { 0.0_f32.copysign(a) } else { a };
        let exact = f64::from(flushed);
        let bounds = [
            ("ex2", got[0], exact.exp2(), 2f64.powi(-22), 0.0),
            (
                "lg2",
                got[1],
                if exact == 0.0 { f64::NEG_INFINITY } else { exact.log2() },
                2f64.powi(-22),
                2f64.powi(-22),
            ),
            ("rcp", got[2], exact.recip(), 2f64.powi(-23), 0.0),
            ("fma", got[3], f64::from(a.mul_add(b, c)), 0.0, 0.0),
            ("max", got[4], f64::from(a.max(b)), 0.0, 0.0),
        ];
        for (at, (name, got, expected, relative, absolute)) in bounds.into_iter().enumerate() {
            let approximate = at < 3;
            let tiny = f64::from(f32::MIN_POSITIVE);
            let got = f64::from(got);
            let close = (got - expected).abs() <= expected.abs() * relative + absolute;
            let overflown =
                got.is_infinite() && expected.abs() > f64::from(f32::MAX) && got.signum() == expected.signum();
            let underflown = approximate && got == 0.0 && expected.abs() < tiny * (1.0 + relative);
            let same = got == expected || (got.is_nan() && expected.is_nan());
            if !(same || close || overflown || underflown) {
                return Err(format!("{name} of {a:e}, {b:e}, {c:e}: got {got:e}, expected {expected:e}").into());
            }
        }
    }
    Ok(())
}

/// Every pattern, and its complement beside it. Sums that f64 holds, of which half take subnormal numbers to others.
fn fma_f16x2(probe: &Probe<'_>) -> Result<(), Failed> {
    const PATTERNS: usize = 1 << 16;
    let (b, c) = ([0x7800, 0x3e00], [0xb3f8, 0x3555]);
    let word = |[low, high]: [u16; 2]| u32::from(low) | u32::from(high) << 16;
    let got = probe.run(&one_thread_each(PATTERNS), PATTERNS, &[&word(b), &word(c)])?;
    let got: Vec<u32> = got.into_iter().map(|pair| canonical_pair(pair, 0x7c00)).collect();
    let exact = |bits| f16::from_bits(bits).to_f64();
    let sum = |a, half: usize| <f16 as Float>::from_f64(exact(a) * exact(b[half]) + exact(c[half])).to_bits();
    let expected = (0..=u16::MAX).map(|bits| canonical_pair(word([sum(bits, 0), sum(!bits, 1)]), 0x7c00));
    expect_equal(&got, &expected.collect::<Vec<u32>>(), |at| format!("pattern {at:#06x}"))
}
