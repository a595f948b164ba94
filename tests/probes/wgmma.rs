//! `wgmma`: exact products in every type, order and swizzle, with tiles and fragments by the maps of `layout`.

use ferrotile::{KernelParam, LaunchConfig};
use half::{bf16, f16};
use layout::descriptor::Operand;
use layout::fragment;
use layout::{Arch, Dtype};
use libtest_mimic::Failed;
use variants::probe::SETMAXNREG_THREADS;
use variants::probe::wgmma::{GROUPS, M, MAP, THREADS, WGMMA, WgmmaProbe, index_of};

use crate::matrix::entry;
use crate::{Probe, Test, blocks_of, expect_equal};

pub(crate) const TESTS: &[Test] = &[
    Test::new("wgmma_product", |probe| in_new_registers(probe, GROUPS)).since(Arch::Sm90a),
    Test::new("wgmma_product_registers", |probe| {
        in_new_registers(probe, WGMMA[index_of("wgmma_f32_f16_f16_n64_s4_r_k128")])
    })
    .since(Arch::Sm90a),
    Test::new("wgmma_groups", groups).since(Arch::Sm90a),
    Test::new("setmaxnreg_exchange", setmaxnreg).since(Arch::Sm90a),
];

/// The tests of the table of products, which find theirs by the name of the probe.
pub(crate) static PRODUCT_TESTS: [Test; WGMMA.len()] = {
    let mut tests = [const { Test::new("", product).since(Arch::Sm90a) }; WGMMA.len()];
    let mut index = 0;
    while index < WGMMA.len() {
        tests[index] = Test::new(WGMMA[index].name, product).since(Arch::Sm90a);
        index += 1;
    }
    tests
};

/// The argument of a `wgmma` probe.
#[repr(C)]
struct WgmmaOperands {
    a: u64,
    b: u64,
    initial: u64,
    scale_d: u32,
}

// SAFETY: `repr(C)`, three device addresses and a number, as the probes declare it.
unsafe impl KernelParam for WgmmaOperands {}

/// The bits of a small integer, which is exact in every type.
fn bits_of(dtype: Dtype, integer: i32) -> u32 {
    let value = integer as f32;
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_bits().into(),
        Dtype::Bf16 => bf16::from_f32(value).to_bits().into(),
        Dtype::F32 => value.to_bits(),
        // The upper half of f16.
        Dtype::E5M2 => (f16::from_f32(value).to_bits() >> 8).into(),
        Dtype::E4M3 if integer == 0 => 0,
        Dtype::E4M3 => {
            let exponent = (value.to_bits() >> 23 & 0xff) - 127 + 7;
            u32::from(integer < 0) << 7 | exponent << 3 | value.to_bits() >> 20 & 7
        }
        Dtype::U8 => panic!("no product has operands of {dtype}"),
    }
}

/// The image of an operand's tile in shared memory; what is not an element is all ones, a NaN in every type.
fn image(operand: Operand, bytes: u32, (mn, k): (u32, u32), element: impl Fn(u32, u32) -> i32) -> Vec<u8> {
    let mut image = vec![u8::MAX; bytes as usize];
    let size = operand.dtype().size_bytes();
    for mn in 0..mn {
        for k in 0..k {
            let at = operand.offset_bytes(mn, k) as usize;
            let bits = bits_of(operand.dtype(), element(mn, k)).to_le_bytes();
            image[at..at + size].copy_from_slice(&bits[..size]);
        }
    }
    image
}

/// The fragments of A: thread by thread, step by step.
fn fragments(case: &WgmmaProbe, element: impl Fn(u32, u32) -> i32) -> Vec<u8> {
    let dtype = case.a.dtype();
    let size = dtype.size_bytes() as u32;
    let mut bytes = Vec::new();
    for thread in 0..THREADS {
        for step in 0..case.steps {
            for register in 0..4 {
                for part in 0..4 / size {
                    let (row, k) = fragment::wgmma_a(thread, register, part, size);
                    let bits = bits_of(dtype, element(row, step * case.a.k_step_elems() + k));
                    bytes.extend_from_slice(&bits.to_le_bytes()[..size as usize]);
                }
            }
        }
    }
    bytes
}

/// The accumulators: thread by thread, register by register.
fn accumulators(case: &WgmmaProbe, element: impl Fn(u32, u32) -> i32) -> Vec<u32> {
    let word = |thread: u32, register: u32| {
        let bits = |(row, column)| bits_of(case.d, element(row, column));
        match case.d {
            Dtype::F32 => bits(fragment::wgmma_d(thread, register)),
            _ => {
                let half = |half| bits(fragment::wgmma_d_f16(thread, register, half));
                half(0) | half(1) << 16
            }
        }
    };
    (0..THREADS).flat_map(|thread| (0..case.d_registers()).map(move |register| word(thread, register))).collect()
}

/// The inputs of one launch, and the product that it must give.
struct Inputs {
    seed: u32,
    case: WgmmaProbe,
}

impl Inputs {
    fn a(&self, row: u32, k: u32) -> i32 {
        entry(3 * self.seed, row, k)
    }

    fn b(&self, k: u32, column: u32) -> i32 {
        entry(3 * self.seed + 1, k, column)
    }

    fn initial(&self, row: u32, column: u32) -> i32 {
        entry(3 * self.seed + 2, row, column)
    }

    /// The element of A B, with the signs of the case.
    fn product(&self, row: u32, column: u32) -> i32 {
        let sum: i32 = (0..self.case.k()).map(|k| self.a(row, k) * self.b(k, column)).sum();
        assert!(self.case.d == Dtype::F32 || sum.abs() < 2040, "{sum} plus an initial value is not exact in f16");
        if self.case.negate_a != self.case.negate_b { -sum } else { sum }
    }

    /// What the probe writes, `results` accumulators.
    fn run(&self, probe: &Probe<'_>, scale_d: bool, results: usize) -> Result<Vec<u32>, Failed> {
        let case = &self.case;
        let a = if case.a.is_in_registers() {
            fragments(case, |row, k| self.a(row, k))
        } else {
            image(case.a, case.a_bytes(), (M, case.k()), |row, k| self.a(row, k))
        };
        let b = image(case.b, case.b_bytes(), (case.n, case.k()), |column, k| self.b(k, column));
        let initial = accumulators(case, |row, column| self.initial(row, column));
        let words = initial.len() * results;
        let (a, b, initial) = (probe.upload(&a)?, probe.upload(&b)?, probe.upload(&initial)?);
        let operands =
            WgmmaOperands { a: a.as_raw(), b: b.as_raw(), initial: initial.as_raw(), scale_d: scale_d.into() };
        let config = LaunchConfig { shared_bytes: MAP.total_bytes(), ..blocks_of(1, THREADS) };
        probe.run(&config, words, &[&operands])
    }

    fn expect(&self, what: &str, got: &[u32], element: impl Fn(u32, u32) -> i32) -> Result<(), Failed> {
        let registers = self.case.d_registers() as usize;
        expect_equal(got, &accumulators(&self.case, element), |at| {
            format!("seed {}, {what}: thread {}, register {}", self.seed, at / registers, at % registers)
        })
    }
}

fn product(probe: &Probe<'_>) -> Result<(), Failed> {
    let case = WGMMA[index_of(probe.name)];
    for seed in 0..3 {
        let inputs = Inputs { seed, case };
        let got = inputs.run(probe, true, 1)?;
        inputs.expect("added", &got, |row, column| inputs.product(row, column) + inputs.initial(row, column))?;
        let got = inputs.run(probe, false, 1)?;
        inputs.expect("overwritten", &got, |row, column| inputs.product(row, column))?;
    }
    Ok(())
}

fn in_new_registers(probe: &Probe<'_>, case: WgmmaProbe) -> Result<(), Failed> {
    let inputs = Inputs { seed: 5, case };
    let got = inputs.run(probe, true, 1)?;
    inputs.expect("in new registers", &got, |row, column| inputs.product(row, column))
}

fn groups(probe: &Probe<'_>) -> Result<(), Failed> {
    for seed in 0..20 {
        let inputs = Inputs { seed, case: GROUPS };
        let got = inputs.run(probe, true, 3)?;
        for ((factor, name), got) in [(1, "first"), (2, "second"), (-1, "third")].iter().zip(got.chunks(got.len() / 3))
        {
            let element = |row, column| inputs.product(row, column) + factor * inputs.initial(row, column);
            inputs.expect(name, got, element)?;
        }
    }
    Ok(())
}

fn setmaxnreg(probe: &Probe<'_>) -> Result<(), Failed> {
    let got = probe.run(&blocks_of(1, SETMAXNREG_THREADS), SETMAXNREG_THREADS as usize, &[])?;
    let expected: Vec<u32> = (0..SETMAXNREG_THREADS).collect();
    expect_equal(&got, &expected, |at| format!("thread {at}"))
}
