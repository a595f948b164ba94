//! What each instruction does to registers and memory.

mod access;
mod at_once;
pub(crate) mod bulk;
pub(crate) mod cluster;
pub(crate) mod convert;
mod count;
pub(crate) mod float;
pub(crate) mod general;
pub(crate) mod integer;
pub(crate) mod matrix;
pub(crate) mod mbarrier;
pub(crate) mod memory;
mod one_address;
mod print;
pub(crate) mod warp;
pub(crate) mod wgmma;

use crate::program::{BoolOp, Cmp, Op, Space, Type};
use crate::registers::{LANES, Registers};
use crate::shadow::LaunchRace;
use crate::windows;

/// What an instruction did wrong.
#[derive(Debug)]
pub(crate) struct Fault {
    /// Which lane; none where it is the warp.
    pub(crate) lane: Option<u32>,
    pub(crate) problem: String,
    /// Warp and line of the PTX, where they are others than those of the instruction.
    pub(crate) elsewhere: Option<(u32, u32)>,
    /// The bytes of the stack that a call does not fit in.
    pub(crate) stack_bytes: Option<u32>,
}

impl Fault {
    pub(crate) fn warp(problem: impl Into<String>) -> Box<Fault> {
        Box::new(Fault { lane: None, problem: problem.into(), elsewhere: None, stack_bytes: None })
    }

    pub(crate) fn lane(lane: usize, problem: impl std::fmt::Display) -> Box<Fault> {
        let (lane, problem) = (Some(lane as u32), problem.to_string());
        Box::new(Fault { lane, problem, elsewhere: None, stack_bytes: None })
    }

    /// A race with another block, found when this block published what it did.
    pub(crate) fn race(race: &LaunchRace) -> Box<Fault> {
        let (warp, lane) = race.later.thread;
        let elsewhere = Some((warp, race.later.line));
        Box::new(Fault { lane: Some(lane), problem: race.to_string(), elsewhere, stack_bytes: None })
    }

    /// A call whose frame does not fit in what is left of the stack.
    pub(crate) fn stack(lane: usize, bytes: u32) -> Box<Fault> {
        Box::new(Fault { lane: Some(lane as u32), problem: String::new(), elsewhere: None, stack_bytes: Some(bytes) })
    }
}

/// What goes wrong at the end of a block: by which instruction of which warp and lane.
pub(crate) type EndFault = (u32, (u32, Option<u32>), String);

/// Which vector instructions of the CPU the arithmetic uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Simd {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Simd {
    /// The best that this CPU has.
    pub(crate) fn detect() -> Simd {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Simd::Avx2;
        }
        Simd::Portable
    }
}

/// Executes an instruction that touches registers alone; false if it is another one.
#[inline]
pub(crate) fn arithmetic(simd: Simd, registers: &mut Registers, op: &Op, mask: u32) -> bool {
    match simd {
        Simd::Portable => arithmetic_inline(registers, op, mask),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Simd::detect` found both features.
        Simd::Avx2 => unsafe { arithmetic_avx2(registers, op, mask) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn arithmetic_avx2(registers: &mut Registers, op: &Op, mask: u32) -> bool {
    arithmetic_inline(registers, op, mask)
}

#[inline(always)]
fn arithmetic_inline(r: &mut Registers, op: &Op, mask: u32) -> bool {
    match *op {
        Op::Int32 { op, d, s } => integer::words(r, op, d, s, mask),
        Op::Int16 { op, d, s } => integer::halves(r, op, d, s, mask),
        Op::Int64 { op, d, s, n } => integer::doubles(r, op, d, s, n, mask),
        Op::Count64 { op, d, a } => integer::count64(r, op, d, a, mask),
        Op::MulWide { signed, d, a, b } => integer::multiply_wide(r, signed, d, (a, b), None, mask),
        Op::MadWide { signed, d, a, b, c } => integer::multiply_wide(r, signed, d, (a, b), Some(c), mask),
        Op::MulWide16 { signed, d, a, b, c } => integer::multiply_wide_halves(r, signed, d, [a, b, c], mask),
        Op::Float32 { op, ftz, saturate, d, s } => float::singles(r, op, (ftz, saturate), d, s, mask),
        Op::Float64 { op, d, s } => float::doubles(r, op, d, s, mask),
        Op::Narrow { op, bf16, pair, ftz, d, s } => float::narrow(r, op, (bf16, pair, ftz), d, s, mask),
        Op::Set { ty, cmp, ftz, d, q, a, b, with } => {
            let bits = compare(r, ty, cmp, ftz, a, b);
            let combine = |bits: u32| match with {
                None => bits,
                Some((BoolOp::And, test)) => bits & r.test(test),
                Some((BoolOp::Or, test)) => bits | r.test(test),
                Some((BoolOp::Xor, test)) => bits ^ r.test(test),
            };
            let (value, opposite) = (combine(bits), combine(!bits));
            if let Some(d) = d {
                r.set_predicate(d, value, mask);
            }
            if let Some(q) = q {
                r.set_predicate(q, opposite, mask);
            }
        }
        Op::Select32 { d, a, b, p } => {
            let (bits, a, b) = (r.test(p), *r.word(a), *r.word(b));
            r.set_word(d, &std::array::from_fn(|lane| if bits >> lane & 1 != 0 { a[lane] } else { b[lane] }), mask);
        }
        Op::Select64 { d, a, b, p } => {
            let (bits, a, b) = (r.test(p), *r.double(a), *r.double(b));
            r.set_double(d, &std::array::from_fn(|lane| if bits >> lane & 1 != 0 { a[lane] } else { b[lane] }), mask);
        }
        Op::Predicate { op, d, a, b } => {
            let (a, b) = (r.test(a), r.test(b));
            let bits = match op {
                BoolOp::And => a & b,
                BoolOp::Or => a | b,
                BoolOp::Xor => a ^ b,
            };
            r.set_predicate(d, bits, mask);
        }
        Op::Pack { d, ref parts } => {
            let mut values = [0; LANES];
            let width = if matches!(d, crate::program::Reg::D(_)) { 64 } else { 32 } / parts.len();
            for (at, &part) in parts.iter().enumerate() {
                let part = r.wide(part);
                for lane in 0..LANES {
                    values[lane] |= part[lane] << (at * width);
                }
            }
            r.set_wide(d, &values, mask);
        }
        Op::Unpack { ref parts, a } => {
            let values = r.wide(a);
            let width = if matches!(a, crate::program::Reg::D(_)) { 64 } else { 32 } / parts.len();
            for (at, part) in parts.iter().enumerate() {
                if let Some(part) = *part {
                    r.set_wide(part, &values.map(|value| value >> (at * width)), mask);
                }
            }
        }
        Op::Cvt(ref cvt) => convert::convert(r, cvt, mask),
        Op::Cvta { space, to, d, a } => {
            let base = match space {
                Space::Shared | Space::Cluster => windows::SHARED,
                Space::Local => windows::LOCAL,
                Space::Param => windows::PARAM,
                Space::Global | Space::Generic => 0,
            };
            // The address of a parameter is taken by its generic address from the start.
            let known = |address: u64| space == Space::Param && address >= base;
            let values = r.double(a).map(|address| match to {
                true => address.wrapping_sub(base),
                false if known(address) => address,
                false => address.wrapping_add(base),
            });
            r.set_double(d, &values, mask);
        }
        _ => return false,
    }
    true
}

#[inline(always)]
fn compare(r: &Registers, ty: Type, cmp: Cmp, ftz: bool, a: crate::program::Reg, b: crate::program::Reg) -> u32 {
    use crate::program::Reg;
    match (a, b, ty) {
        (Reg::W(a), Reg::W(b), Type::F32) => {
            let flush = |bits: u32| {
                let value = f32::from_bits(bits);
                if ftz { crate::float::flush(value) } else { value }
            };
            let (a, b) = (r.word(a).map(flush), r.word(b).map(flush));
            floats(cmp, &a, &b)
        }
        (Reg::D(a), Reg::D(b), Type::F64) => {
            floats(cmp, &r.double(a).map(f64::from_bits), &r.double(b).map(f64::from_bits))
        }
        (Reg::W(a) | Reg::H(a), Reg::W(b) | Reg::H(b), Type::Int { bits: 16, signed: true }) => {
            integers(cmp, &r.word(a).map(|value| value as i16), &r.word(b).map(|value| value as i16))
        }
        (Reg::W(a) | Reg::H(a), Reg::W(b) | Reg::H(b), Type::Int { signed: true, .. }) => {
            integers(cmp, &r.word(a).map(|value| value as i32), &r.word(b).map(|value| value as i32))
        }
        (Reg::W(a) | Reg::H(a), Reg::W(b) | Reg::H(b), _) => integers(cmp, r.word(a), r.word(b)),
        (Reg::D(a), Reg::D(b), Type::Int { signed: true, .. }) => {
            integers(cmp, &r.double(a).map(|value| value as i64), &r.double(b).map(|value| value as i64))
        }
        (a, b, _) => integers(cmp, &r.wide(a), &r.wide(b)),
    }
}

#[inline(always)]
fn bits_where<T: Copy>(a: &[T; LANES], b: &[T; LANES], holds: impl Fn(T, T) -> bool) -> u32 {
    let mut bits = 0;
    for lane in 0..LANES {
        bits |= u32::from(holds(a[lane], b[lane])) << lane;
    }
    bits
}

#[inline(always)]
fn integers<T: Copy + Ord>(cmp: Cmp, a: &[T; LANES], b: &[T; LANES]) -> u32 {
    match cmp {
        Cmp::Eq => bits_where(a, b, |a, b| a == b),
        Cmp::Ne => bits_where(a, b, |a, b| a != b),
        Cmp::Lt => bits_where(a, b, |a, b| a < b),
        Cmp::Le => bits_where(a, b, |a, b| a <= b),
        Cmp::Gt => bits_where(a, b, |a, b| a > b),
        // The comparisons of floats are refused for integers when the module is loaded.
        _ => bits_where(a, b, |a, b| a >= b),
    }
}

#[inline(always)]
fn floats<T: Copy + PartialOrd>(cmp: Cmp, a: &[T; LANES], b: &[T; LANES]) -> u32 {
    let unordered = |a: T, b: T| a.partial_cmp(&b).is_none();
    match cmp {
        Cmp::Eq => bits_where(a, b, |a, b| a == b),
        Cmp::Ne => bits_where(a, b, |a, b| a.partial_cmp(&b).is_some_and(std::cmp::Ordering::is_ne)),
        Cmp::Lt => bits_where(a, b, |a, b| a < b),
        Cmp::Le => bits_where(a, b, |a, b| a <= b),
        Cmp::Gt => bits_where(a, b, |a, b| a > b),
        Cmp::Ge => bits_where(a, b, |a, b| a >= b),
        Cmp::Equ => bits_where(a, b, |a, b| a == b || unordered(a, b)),
        Cmp::Neu => bits_where(a, b, |a, b| a != b),
        Cmp::Ltu => !bits_where(a, b, |a, b| a >= b),
        Cmp::Leu => !bits_where(a, b, |a, b| a > b),
        Cmp::Gtu => !bits_where(a, b, |a, b| a <= b),
        Cmp::Geu => !bits_where(a, b, |a, b| a < b),
        Cmp::Num => !bits_where(a, b, unordered),
        Cmp::Nan => bits_where(a, b, unordered),
    }
}
