//! The instructions of ordinary programs in `operation::general`.

use super::access::{Noted, Way};
use super::{Fault, matrix, print};
use crate::float::exact::{rounded_f32, rounded_f64};
use crate::float::{flush, saturate};
use crate::program::{
    Address, Carry, CarryOp, D, Dot, FieldOp, General, IntegerMma, NumberKind, Order, P, Permute, Reduction, Reg,
    Rounded, Space, W,
};
use crate::registers::{Doubles, LANES, Words, lanes, resolve};
use crate::turn::Turn;

type Result<T> = std::result::Result<T, Box<Fault>>;

pub(crate) fn general(turn: &mut Turn<'_, '_>, general: &General) -> Result<()> {
    match *general {
        General::Carry(ref it) => carry(turn, it),
        General::Rounded(ref it) => rounded(turn, it),
        General::Gross { root, d, a } => {
            let values = turn.registers.double(a).map(|bits| gross(f64::from_bits(bits), root).to_bits());
            turn.registers.set_double(d, &values, turn.mask);
        }
        General::RootOf64 { d, a } => {
            let values = turn.registers.double(a).map(|bits| reciprocal_root(f64::from_bits(bits)).to_bits());
            turn.registers.set_double(d, &values, turn.mask);
        }
        General::Dot(ref it) => dot(turn, it),
        General::Field { op, d, s } => {
            let [a, b, c] = s.map(|slot| *turn.registers.word(slot));
            let values = std::array::from_fn(|lane| field(op, a[lane], b[lane], c[lane]));
            turn.registers.set_word(d, &values, turn.mask);
        }
        General::TestNumber { kind, d, a } => {
            let holds = |lane: usize| match a {
                Reg::D(slot) => is(kind, f64::from_bits(turn.registers.double(slot)[lane]).classify()),
                _ => is(kind, f32::from_bits(turn.registers.lane(a, lane) as u32).classify()),
            };
            let bits = lanes(turn.mask).filter(|&lane| holds(lane)).fold(0, |bits, lane| bits | 1 << lane);
            turn.registers.set_predicate(d, bits, turn.mask);
        }
        General::IsSpace { space, constant, d, a } => is_space(turn, (space, constant), d, a),
        General::Discard { address } => discard(turn, address)?,
        General::IntegerMma(ref it) => integer_mma(turn, it)?,
        General::BarrierVote { value } => {
            let bits = turn.registers.test(value) & turn.mask;
            turn.cluster.votes.add(turn.warp, turn.mask.count_ones(), bits.count_ones());
        }
        General::BarrierResult { op, d } => {
            let (all, yes) = turn.cluster.votes.result(turn.warp);
            let value = match op {
                Reduction::And => u64::from(yes == all),
                Reduction::Or => u64::from(yes > 0),
                Reduction::Count => yes.into(),
            };
            turn.registers.set_wide(d, &[value; LANES], turn.mask);
        }
        General::Reserve { bytes } => reserve(turn, bytes)?,
        General::CopyLocal { to, from, bytes } => copy_local(turn, to, from, bytes)?,
        General::Spill { restores, to, ref registers } => spill(turn, restores, to, registers)?,
        General::Print { format, arguments, d } => print::print(turn, format, arguments, d)?,
        General::AssertFail { message, file, line, function } => {
            let lane = turn.mask.trailing_zeros() as usize % LANES;
            let text = |turn: &mut Turn<'_, '_>, slot: D| {
                let address = turn.registers.double(slot)[lane];
                print::text(turn, lane, address)
            };
            let (message, file, function) = (text(turn, message)?, text(turn, file)?, text(turn, function)?);
            let line = turn.registers.word(line)[lane];
            return Err(Fault::lane(lane, format!("assertion `{message}` failed in `{function}`, {file}:{line}")));
        }
    }
    Ok(())
}

fn carry(turn: &mut Turn<'_, '_>, carry: &Carry) {
    let r = &mut *turn.registers;
    let bits = if matches!(carry.d, Reg::D(_)) { 64 } else { 32 };
    let flag = carry.reads.map_or(0, |flag| r.predicate(flag));
    let [a, b, c] = carry.s.map(|register| r.wide(register));
    let (mut values, mut carries): (Doubles, u32) = ([0; LANES], 0);
    for lane in 0..LANES {
        let (a, b, c) = (u128::from(a[lane]), u128::from(b[lane]), u128::from(c[lane]));
        let flag = u128::from(flag >> lane & 1);
        let sign = |value: u128| if bits == 64 { i128::from(value as i64) } else { i128::from(value as i32) };
        let low = |value: u128| value & (u128::MAX >> (128 - bits));
        let sum = match carry.op {
            CarryOp::Add => a + b + flag,
            // A borrow is what is below zero.
            CarryOp::Sub => a.wrapping_sub(b).wrapping_sub(flag),
            CarryOp::MadLow => low(a * b) + c + flag,
            CarryOp::MadHigh { signed: false } => ((a * b) >> bits) + c + flag,
            CarryOp::MadHigh { signed: true } => low(((sign(a) * sign(b)) >> bits) as u128) + c + flag,
        };
        values[lane] = low(sum) as u64;
        carries |= u32::from(sum >> bits != 0) << lane;
    }
    r.set_wide(carry.d, &values, turn.mask);
    if let Some(flag) = carry.sets {
        r.set_predicate(flag, carries, turn.mask);
    }
}

fn rounded(turn: &mut Turn<'_, '_>, it: &Rounded) {
    let r = &mut *turn.registers;
    let operands = it.s.map(|register| r.wide(register));
    let values: Doubles = std::array::from_fn(|lane| {
        let bits = operands.map(|operand| operand[lane]);
        if let Reg::D(_) = it.d {
            return rounded_f64(it.operation, bits.map(f64::from_bits), it.rounding).to_bits();
        }
        let flushed = |value: f32| if it.ftz { flush(value) } else { value };
        let operands = bits.map(|bits| flushed(f32::from_bits(bits as u32)));
        let value = flushed(rounded_f32(it.operation, operands, it.rounding));
        (if it.saturate { saturate(value) } else { value }).to_bits().into()
    });
    r.set_wide(it.d, &values, turn.mask);
}

/// The upper words of the number and of the result, the latter rounded to the nearest.
fn gross(value: f64, root: bool) -> f64 {
    const UPPER: u64 = 0xFFFF_FFFF << 32;
    let flushed = |value: f64| if value.is_subnormal() { 0f64.copysign(value) } else { value };
    let value = flushed(f64::from_bits(value.to_bits() & UPPER));
    let exact = flushed(if root { 1.0 / value.sqrt() } else { 1.0 / value });
    if exact.is_nan() || exact.is_infinite() {
        return crate::float::canonical_f64(exact);
    }
    f64::from_bits((exact.to_bits() + (1 << 31)) & UPPER)
}

/// To about half a unit in the last place.
fn reciprocal_root(value: f64) -> f64 {
    let guess = 1.0 / value.sqrt();
    if !guess.is_normal() || !value.is_normal() {
        return crate::float::canonical_f64(guess);
    }
    // One step of Newton with the error of the square: 1 - value guess^2.
    let square = guess * guess;
    let rest = guess.mul_add(guess, -square);
    let error = (-value).mul_add(rest, (-value).mul_add(square, 1.0));
    (0.5 * guess).mul_add(error, guess)
}

fn dot(turn: &mut Turn<'_, '_>, dot: &Dot) {
    let [a, b, c] = dot.s.map(|slot| *turn.registers.word(slot));
    let element = |word: u32, at: u32, bits: u32, signed: bool| {
        let value = word << (32 - bits * (at + 1)) >> (32 - bits);
        if signed { i64::from((value << (32 - bits)) as i32 >> (32 - bits)) } else { i64::from(value) }
    };
    let first = if dot.high { 2 } else { 0 };
    let values: Words = std::array::from_fn(|lane| {
        let product =
            |at: u32| element(a[lane], at, dot.bits, dot.a_signed) * element(b[lane], first + at, 8, dot.b_signed);
        let sum: i64 = (0..32 / dot.bits).map(product).sum();
        (c[lane]).wrapping_add(sum as u32)
    });
    turn.registers.set_word(dot.d, &values, turn.mask);
}

fn field(op: FieldOp, a: u32, b: u32, c: u32) -> u32 {
    match op {
        FieldOp::SignExtend { signed, wrap } => match if wrap { b & 31 } else { b.min(32) } {
            0 => 0,
            bits if signed => ((a << (32 - bits)) as i32 >> (32 - bits)) as u32,
            bits => a << (32 - bits) >> (32 - bits),
        },
        FieldOp::Mask { wrap } => {
            let (position, width) = if wrap { (a & 31, b & 31) } else { (a.min(32), b.min(32)) };
            let ones = |count: u32| 1u64.wrapping_shl(count).wrapping_sub(1) as u32;
            ones((position + width).min(32)) & !ones(position)
        }
        FieldOp::FindNth => find_nth(a, b, c as i32),
        FieldOp::Permute(mode) => {
            let s = c & 3;
            let byte = |at: u32| match mode {
                Permute::Forward4 => s + at,
                Permute::Backward4 => (8 + s - at) % 8,
                Permute::Replicate8 => s,
                Permute::EdgeLeft => s.max(at),
                Permute::EdgeRight => s.min(at),
                Permute::Replicate16 => 2 * (s & 1) + (at & 1),
            };
            let both = u64::from(b) << 32 | u64::from(a);
            (0..4).fold(0, |word, at| word | u32::from((both >> (8 * byte(at))) as u8) << (8 * at))
        }
    }
}

/// `fns`: the bit of the mask that is the nth set one from `base` on, up or down.
fn find_nth(mask: u32, base: u32, offset: i32) -> u32 {
    let set = |&at: &u32| mask >> at & 1 == 1;
    let found = match offset {
        _ if base > 31 => None,
        0 => Some(base).filter(set),
        1.. => (base..32).filter(set).nth(offset as usize - 1),
        _ => (0..=base).rev().filter(set).nth(offset.unsigned_abs() as usize - 1),
    };
    found.unwrap_or(u32::MAX)
}

fn is(kind: NumberKind, class: std::num::FpCategory) -> bool {
    use std::num::FpCategory::{Infinite, Nan, Normal, Subnormal, Zero};
    match kind {
        NumberKind::Finite => matches!(class, Normal | Subnormal | Zero),
        NumberKind::Infinite => class == Infinite,
        NumberKind::Number => class != Nan,
        NumberKind::NotANumber => class == Nan,
        // Zero is a normal number here.
        NumberKind::Normal => matches!(class, Normal | Zero),
        NumberKind::Subnormal => class == Subnormal,
    }
}

fn is_space(turn: &mut Turn<'_, '_>, (space, constant): (Space, bool), d: P, a: D) {
    let addresses = *turn.registers.double(a);
    let holds = |&lane: &usize| {
        let address = addresses[lane];
        let (found, _) = resolve(Space::Generic, address);
        let is_constant = turn.cluster.variables.is_constant(address);
        match space {
            Space::Global => found == Space::Global && is_constant == constant,
            Space::Cluster => matches!(found, Space::Shared | Space::Cluster),
            _ => found == space,
        }
    };
    let bits = lanes(turn.mask).filter(holds).fold(0, |bits, lane| bits | 1 << lane);
    turn.registers.set_predicate(d, bits, turn.mask);
}

/// Bytes of a line of the caches that `discard` takes.
const LINE_BYTES: u64 = 128;

fn discard(turn: &mut Turn<'_, '_>, address: Address) -> Result<()> {
    let addresses = turn.registers.addresses(address);
    for lane in lanes(turn.mask) {
        if !addresses[lane].is_multiple_of(LINE_BYTES) {
            return Err(Fault::lane(lane, format!("{:#x} is no address of a line of 128 bytes", addresses[lane])));
        }
        // What the line holds then is open; what it held is one possibility. It counts as a write of it all.
        for word in (0..LINE_BYTES).step_by(8) {
            let way = Way { space: Space::Global, order: Order::Weak, noted: Noted::Alone };
            turn.write(way, lane, addresses[lane] + word, &DISCARDED)?;
        }
    }
    Ok(())
}

/// What a discarded line holds.
const DISCARDED: [u8; 8] = [0xDB; 8];

fn integer_mma(turn: &mut Turn<'_, '_>, mma: &IntegerMma) -> Result<()> {
    matrix::check_whole(turn)?;
    turn.count_product(mma.m, 8, mma.k);
    let registers = &mut *turn.registers;
    let byte = |slots: &[W], lane: usize, register: usize, at: usize, signed: bool| {
        let byte = (registers.word(slots[register])[lane] >> (8 * at)) as u8;
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    // Four lanes hold a row of A or a column of B, four bytes each; then come the other rows, then the rest of k.
    let halves = mma.m as usize / 8;
    let a =
        |row: usize, k: usize| byte(&mma.a, row % 8 * 4 + k % 16 / 4, k / 16 * halves + row / 8, k % 4, mma.a_signed);
    let b = |k: usize, column: usize| byte(&mma.b, column * 4 + k % 16 / 4, k / 16, k % 4, mma.b_signed);
    let mut d = vec![[0; LANES]; mma.d.len()];
    for row in 0..mma.m as usize {
        for column in 0..8 {
            let (lane, register) = (row % 8 * 4 + column / 2, row / 8 * 2 + column % 2);
            let product: i64 = (0..mma.k as usize).map(|k| a(row, k) * b(k, column)).sum();
            let sum = product + i64::from(registers.word(mma.c[register])[lane] as i32);
            let limits = (i32::MIN.into(), i32::MAX.into());
            d[register][lane] = if mma.saturate { sum.clamp(limits.0, limits.1) } else { sum } as u32;
        }
    }
    for (&slot, values) in mma.d.iter().zip(&d) {
        *turn.registers.word_mut(slot) = *values;
    }
    Ok(())
}

/// The place in local memory of a generic address of it, or of its own.
fn local(address: u64) -> u32 {
    address as u32
}

/// Fails where the frame of a function, which the frame register points to, does not fit in the stack.
fn reserve(turn: &mut Turn<'_, '_>, bytes: u32) -> Result<()> {
    let (Some(frame), most) = (turn.cluster.program.frame, turn.cluster.program.local_bytes) else { return Ok(()) };
    let frames = turn.registers.double(frame);
    match lanes(turn.mask).find(|&lane| frames[lane].saturating_add(bytes.into()) > most.into()) {
        Some(lane) => Err(Fault::stack(lane, most)),
        None => Ok(()),
    }
}

fn copy_local(turn: &mut Turn<'_, '_>, to: Address, from: Address, bytes: u32) -> Result<()> {
    let (to, from) = (turn.registers.addresses(to), turn.registers.addresses(from));
    for lane in lanes(turn.mask) {
        let Some(memory) = turn.local.get_mut(lane) else { return Err(Fault::lane(lane, "it has no local memory")) };
        memory.copy_within(local(from[lane]), local(to[lane]), bytes).map_err(|error| Fault::lane(lane, error))?;
    }
    Ok(())
}

fn spill(turn: &mut Turn<'_, '_>, restores: bool, to: Address, registers: &[Reg]) -> Result<()> {
    let addresses = turn.registers.addresses(to);
    for lane in lanes(turn.mask) {
        let Some(memory) = turn.local.get_mut(lane) else { return Err(Fault::lane(lane, "it has no local memory")) };
        for (at, &register) in (local(addresses[lane])..).step_by(8).zip(registers) {
            let mut bytes = [0; 8];
            if restores {
                memory.load(at, &mut bytes).map_err(|error| Fault::lane(lane, error))?;
                turn.registers.set_lane(register, lane, u64::from_le_bytes(bytes));
            } else {
                bytes = turn.registers.lane(register, lane).to_le_bytes();
                memory.store(at, &bytes).map_err(|error| Fault::lane(lane, error))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_are_within_a_unit_of_the_last_place() {
        for value in [2.0, 3.0, 0.1, 1e300, 1e-300, 4.0, 7.25e-3] {
            let root = reciprocal_root(value);
            let error = (root * root).mul_add(value, -1.0).abs();
            assert!(error < 4.0 * f64::EPSILON, "{value:e}: {error:e}");
        }
        assert_eq!(
            (reciprocal_root(4.0), reciprocal_root(0.0), reciprocal_root(f64::INFINITY)),
            (0.5, f64::INFINITY, 0.0)
        );
        assert!(reciprocal_root(-1.0).is_nan());
    }
}
