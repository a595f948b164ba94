//! Integer arithmetic and bits, lane by lane in loops that the compiler turns into vector instructions.

use crate::program::{D, IntOp, W};
use crate::registers::{LANES, Registers, Words};

#[inline(always)]
fn one(r: &mut Registers, d: W, a: W, mask: u32, f: impl Fn(u32) -> u32) {
    let a = *r.word(a);
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane]);
    }
    r.set_word(d, &out, mask);
}

#[inline(always)]
fn two(r: &mut Registers, d: W, s: [W; 4], mask: u32, f: impl Fn(u32, u32) -> u32) {
    let (a, b) = (*r.word(s[0]), *r.word(s[1]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane]);
    }
    r.set_word(d, &out, mask);
}

#[inline(always)]
fn three(r: &mut Registers, d: W, s: [W; 4], mask: u32, f: impl Fn(u32, u32, u32) -> u32) {
    let (a, b, c) = (*r.word(s[0]), *r.word(s[1]), *r.word(s[2]));
    let mut out = [0; LANES];
    for lane in 0..LANES {
        out[lane] = f(a[lane], b[lane], c[lane]);
    }
    r.set_word(d, &out, mask);
}

/// 32-bit operations. What divides by zero has the result that cards give: all ones, or the dividend for a remainder.
#[inline(always)]
pub(super) fn words(r: &mut Registers, op: IntOp, d: W, s: [W; 4], mask: u32) {
    match op {
        IntOp::Mov => one(r, d, s[0], mask, |a| a),
        IntOp::Add => two(r, d, s, mask, u32::wrapping_add),
        IntOp::Sub => two(r, d, s, mask, u32::wrapping_sub),
        IntOp::AddSat => two(r, d, s, mask, |a, b| (a as i32).saturating_add(b as i32) as u32),
        IntOp::SubSat => two(r, d, s, mask, |a, b| (a as i32).saturating_sub(b as i32) as u32),
        IntOp::Mul => two(r, d, s, mask, u32::wrapping_mul),
        IntOp::MulHi { signed } => two(r, d, s, mask, |a, b| high(a, b, signed)),
        IntOp::Mad => three(r, d, s, mask, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        IntOp::MadHi { signed } => three(r, d, s, mask, |a, b, c| high(a, b, signed).wrapping_add(c)),
        IntOp::Sad { signed: true } => three(r, d, s, mask, |a, b, c| (a as i32).abs_diff(b as i32).wrapping_add(c)),
        IntOp::Sad { signed: false } => three(r, d, s, mask, |a, b, c| a.abs_diff(b).wrapping_add(c)),
        IntOp::Div { signed: true } => {
            two(r, d, s, mask, |a, b| if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 });
        }
        IntOp::Div { signed: false } => two(r, d, s, mask, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
        IntOp::Rem { signed: true } => {
            two(r, d, s, mask, |a, b| if b == 0 { a } else { (a as i32).wrapping_rem(b as i32) as u32 });
        }
        IntOp::Rem { signed: false } => two(r, d, s, mask, |a, b| a.checked_rem(b).unwrap_or(a)),
        IntOp::Min { signed: true } => two(r, d, s, mask, |a, b| (a as i32).min(b as i32) as u32),
        IntOp::Min { signed: false } => two(r, d, s, mask, u32::min),
        IntOp::Max { signed: true } => two(r, d, s, mask, |a, b| (a as i32).max(b as i32) as u32),
        IntOp::Max { signed: false } => two(r, d, s, mask, u32::max),
        IntOp::Abs => one(r, d, s[0], mask, |a| (a as i32).wrapping_abs() as u32),
        IntOp::Neg => one(r, d, s[0], mask, u32::wrapping_neg),
        IntOp::And => two(r, d, s, mask, |a, b| a & b),
        IntOp::Or => two(r, d, s, mask, |a, b| a | b),
        IntOp::Xor => two(r, d, s, mask, |a, b| a ^ b),
        IntOp::Not => one(r, d, s[0], mask, |a| !a),
        IntOp::Cnot => one(r, d, s[0], mask, |a| u32::from(a == 0)),
        IntOp::Shl => two(r, d, s, mask, |a, n| if n > 31 { 0 } else { a << n }),
        IntOp::Shr { signed: true } => two(r, d, s, mask, |a, n| ((a as i32) >> n.min(31)) as u32),
        IntOp::Shr { signed: false } => two(r, d, s, mask, |a, n| if n > 31 { 0 } else { a >> n }),
        IntOp::Bfe { signed } => {
            let (position, length) = (*r.word(s[2]), *r.word(s[3]));
            let a = *r.word(s[0]);
            let field = |lane: usize| extract(a[lane].into(), position[lane], length[lane], 32, signed) as u32;
            r.set_word(d, &std::array::from_fn(field), mask);
        }
        IntOp::Bfi => {
            let (a, b, position, length) = (*r.word(s[0]), *r.word(s[1]), *r.word(s[2]), *r.word(s[3]));
            let field = |lane: usize| insert(a[lane].into(), b[lane].into(), position[lane], length[lane], 32) as u32;
            r.set_word(d, &std::array::from_fn(field), mask);
        }
        IntOp::Popc => one(r, d, s[0], mask, u32::count_ones),
        IntOp::Clz => one(r, d, s[0], mask, u32::leading_zeros),
        IntOp::Brev => one(r, d, s[0], mask, u32::reverse_bits),
        IntOp::Bfind { signed, shift } => {
            one(r, d, s[0], mask, |a| {
                let wide = if signed { i64::from(a as i32) as u64 } else { a.into() };
                find(wide, 32, signed, shift)
            });
        }
        IntOp::Lop3(table) => three(r, d, s, mask, |a, b, c| logic(table, a, b, c)),
        IntOp::Prmt => three(r, d, s, mask, permute),
        IntOp::Shf { left, wrap } => {
            three(r, d, s, mask, |a, b, n| {
                let n = if wrap { n & 31 } else { n.min(32) };
                let both = u64::from(b) << 32 | u64::from(a);
                if left { (both << n >> 32) as u32 } else { (both >> n) as u32 }
            });
        }
    }
}

/// 16-bit operations: those of 32 bits on extended sources.
#[inline(always)]
pub(super) fn halves(r: &mut Registers, op: IntOp, d: W, s: [W; 4], mask: u32) {
    let signed = match op {
        IntOp::MulHi { signed } | IntOp::MadHi { signed } | IntOp::Sad { signed } | IntOp::Div { signed } => signed,
        IntOp::Rem { signed } | IntOp::Min { signed } | IntOp::Max { signed } | IntOp::Shr { signed } => signed,
        IntOp::Abs => true,
        _ => false,
    };
    let extend = |value: u32| if signed { i32::from(value as i16) as u32 } else { value & 0xFFFF };
    let shifts = matches!(op, IntOp::Shl | IntOp::Shr { .. });
    let (a, mut b, c) = (r.word(s[0]).map(extend), *r.word(s[1]), r.word(s[2]).map(extend));
    if !shifts {
        b = b.map(extend);
    }
    let product = |lane: usize| {
        let product = a[lane].wrapping_mul(b[lane]);
        if signed { ((product as i32) >> 16) as u32 } else { product >> 16 }
    };
    let lane = |lane: usize| {
        let (a, b, c) = (a[lane], b[lane], c[lane]);
        match op {
            IntOp::Mov => a,
            IntOp::Add => a.wrapping_add(b),
            IntOp::Sub => a.wrapping_sub(b),
            IntOp::Mul => a.wrapping_mul(b),
            IntOp::MulHi { .. } => product(lane),
            IntOp::Mad => a.wrapping_mul(b).wrapping_add(c),
            IntOp::MadHi { .. } => product(lane).wrapping_add(c),
            IntOp::Sad { .. } => (a as i32).abs_diff(b as i32).wrapping_add(c),
            IntOp::Div { .. } if b == 0 => u32::MAX,
            IntOp::Div { .. } => (a as i32).wrapping_div(b as i32) as u32,
            IntOp::Rem { .. } if b == 0 => a,
            IntOp::Rem { .. } => (a as i32).wrapping_rem(b as i32) as u32,
            IntOp::Min { .. } => (a as i32).min(b as i32) as u32,
            IntOp::Max { .. } => (a as i32).max(b as i32) as u32,
            IntOp::Abs => (a as i32).wrapping_abs() as u32,
            IntOp::Neg => a.wrapping_neg(),
            IntOp::And => a & b,
            IntOp::Or => a | b,
            IntOp::Xor => a ^ b,
            IntOp::Not => !a,
            IntOp::Cnot => u32::from(a == 0),
            IntOp::Shl => a.checked_shl(b).unwrap_or(0),
            // The front gives no other operation 16 bits.
            _ => ((a as i32) >> b.min(31)) as u32,
        }
    };
    let values: Words = std::array::from_fn(lane);
    r.set_word(d, &values.map(|value| value & 0xFFFF), mask);
}

/// 64-bit operations.
#[inline(always)]
pub(super) fn doubles(r: &mut Registers, op: IntOp, d: D, s: [D; 3], n: [W; 2], mask: u32) {
    let (a, b) = (*r.double(s[0]), *r.double(s[1]));
    let mut out = [0; LANES];
    let mut two = |f: &dyn Fn(u64, u64) -> u64| {
        for lane in 0..LANES {
            out[lane] = f(a[lane], b[lane]);
        }
    };
    match op {
        IntOp::Mov => out = a,
        IntOp::Add => {
            for lane in 0..LANES {
                out[lane] = a[lane].wrapping_add(b[lane]);
            }
        }
        IntOp::Sub => {
            for lane in 0..LANES {
                out[lane] = a[lane].wrapping_sub(b[lane]);
            }
        }
        IntOp::Mul => {
            for lane in 0..LANES {
                out[lane] = a[lane].wrapping_mul(b[lane]);
            }
        }
        IntOp::Mad => {
            let c = *r.double(s[2]);
            for lane in 0..LANES {
                out[lane] = a[lane].wrapping_mul(b[lane]).wrapping_add(c[lane]);
            }
        }
        IntOp::Shl | IntOp::Shr { .. } => {
            let n = *r.word(n[0]);
            for lane in 0..LANES {
                out[lane] = match op {
                    IntOp::Shl => a[lane].checked_shl(n[lane]).unwrap_or(0),
                    IntOp::Shr { signed: true } => ((a[lane] as i64) >> n[lane].min(63)) as u64,
                    _ => a[lane].checked_shr(n[lane]).unwrap_or(0),
                };
            }
        }
        IntOp::Bfe { signed } => {
            let (position, length) = (*r.word(n[0]), *r.word(n[1]));
            for lane in 0..LANES {
                out[lane] = extract(a[lane], position[lane], length[lane], 64, signed);
            }
        }
        IntOp::Bfi => {
            let (position, length) = (*r.word(n[0]), *r.word(n[1]));
            for lane in 0..LANES {
                out[lane] = insert(a[lane], b[lane], position[lane], length[lane], 64);
            }
        }
        IntOp::MadHi { signed } | IntOp::Sad { signed } => {
            let c = *r.double(s[2]);
            let sad = matches!(op, IntOp::Sad { .. });
            for lane in 0..LANES {
                let (a, b) = (a[lane], b[lane]);
                let value = match (sad, signed) {
                    (true, true) => (a as i64).abs_diff(b as i64),
                    (true, false) => a.abs_diff(b),
                    (false, _) => high64(a, b, signed),
                };
                out[lane] = value.wrapping_add(c[lane]);
            }
        }
        IntOp::MulHi { signed } => two(&|a, b| high64(a, b, signed)),
        IntOp::Div { signed: true } => {
            two(&|a, b| if b == 0 { u64::MAX } else { (a as i64).wrapping_div(b as i64) as u64 });
        }
        IntOp::Div { signed: false } => two(&|a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        IntOp::Rem { signed: true } => two(&|a, b| if b == 0 { a } else { (a as i64).wrapping_rem(b as i64) as u64 }),
        IntOp::Rem { signed: false } => two(&|a, b| a.checked_rem(b).unwrap_or(a)),
        IntOp::Min { signed: true } => two(&|a, b| (a as i64).min(b as i64) as u64),
        IntOp::Min { signed: false } => two(&|a, b| a.min(b)),
        IntOp::Max { signed: true } => two(&|a, b| (a as i64).max(b as i64) as u64),
        IntOp::Max { signed: false } => two(&|a, b| a.max(b)),
        IntOp::Abs => two(&|a, _| (a as i64).wrapping_abs() as u64),
        IntOp::Neg => two(&|a, _| a.wrapping_neg()),
        IntOp::And => two(&|a, b| a & b),
        IntOp::Or => two(&|a, b| a | b),
        IntOp::Xor => two(&|a, b| a ^ b),
        IntOp::Not => two(&|a, _| !a),
        IntOp::Cnot => two(&|a, _| u64::from(a == 0)),
        // The front gives no other operation 64 bits.
        _ => two(&|a, _| a.reverse_bits()),
    }
    r.set_double(d, &out, mask);
}

#[inline(always)]
pub(super) fn count64(r: &mut Registers, op: IntOp, d: W, a: D, mask: u32) {
    let values = r.double(a).map(|a| match op {
        IntOp::Popc => a.count_ones(),
        IntOp::Clz => a.leading_zeros(),
        IntOp::Bfind { signed, shift } => find(a, 64, signed, shift),
        // The front gives no other operation here.
        _ => a.trailing_zeros(),
    });
    r.set_word(d, &values, mask);
}

#[inline(always)]
pub(super) fn multiply_wide(r: &mut Registers, signed: bool, d: D, s: (W, W), c: Option<D>, mask: u32) {
    let (a, b) = (*r.word(s.0), *r.word(s.1));
    let mut out = c.map_or([0; LANES], |c| *r.double(c));
    for lane in 0..LANES {
        let product = match signed {
            true => (i64::from(a[lane] as i32) * i64::from(b[lane] as i32)) as u64,
            false => u64::from(a[lane]) * u64::from(b[lane]),
        };
        out[lane] = out[lane].wrapping_add(product);
    }
    r.set_double(d, &out, mask);
}

#[inline(always)]
pub(super) fn multiply_wide_halves(r: &mut Registers, signed: bool, d: W, s: [W; 3], mask: u32) {
    let extend = |value: u32| if signed { i32::from(value as i16) as u32 } else { value & 0xFFFF };
    three(r, d, [s[0], s[1], s[2], s[0]], mask, |a, b, c| extend(a).wrapping_mul(extend(b)).wrapping_add(c));
}

fn high(a: u32, b: u32, signed: bool) -> u32 {
    match signed {
        true => ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
        false => ((u64::from(a) * u64::from(b)) >> 32) as u32,
    }
}

fn high64(a: u64, b: u64, signed: bool) -> u64 {
    match signed {
        true => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
        false => ((u128::from(a) * u128::from(b)) >> 64) as u64,
    }
}

/// `bfe`: `length` bits of `a` from `position` on, zero- or sign-extended. Above the highest bit there is its copy
/// where it is signed, else zeros.
#[inline(always)]
fn extract(a: u64, position: u32, length: u32, bits: u32, signed: bool) -> u64 {
    let (position, length) = (position & 0xFF, length & 0xFF);
    if length == 0 {
        return 0;
    }
    let extended = if signed && bits == 32 { i64::from(a as u32 as i32) as u64 } else { a };
    let shifted = match signed {
        true => ((extended as i64) >> position.min(63)) as u64,
        false => extended.checked_shr(position).unwrap_or(0),
    };
    let length = length.min(64);
    match signed {
        true => ((shifted << (64 - length)) as i64 >> (64 - length)) as u64,
        false => shifted & (u64::MAX >> (64 - length)),
    }
}

/// `bfi`: `b` with its `length` bits from `position` on replaced by the low ones of `a`.
#[inline(always)]
fn insert(a: u64, b: u64, position: u32, length: u32, bits: u32) -> u64 {
    let (position, length) = (position & 0xFF, (length & 0xFF).min(bits));
    if length == 0 || position >= bits {
        return b;
    }
    let field = (u64::MAX >> (64 - length)) << position;
    b & !field | (a << position) & field
}

/// `bfind`: the position of the highest bit that is not the sign, or how far to shift it to the top.
fn find(a: u64, bits: u32, signed: bool, shift: bool) -> u32 {
    let magnitude = if signed && (a as i64) < 0 { !a } else { a };
    match magnitude.checked_ilog2() {
        None => u32::MAX,
        Some(position) if shift => bits - 1 - position,
        Some(position) => position,
    }
}

/// `lop3`: bit `4a + 2b + c` of the table for each position.
#[inline(always)]
fn logic(table: u8, a: u32, b: u32, c: u32) -> u32 {
    (0..8).filter(|row| table >> row & 1 != 0).fold(0, |bits, row| {
        let pick = |value: u32, wanted: u32| if row & wanted != 0 { value } else { !value };
        bits | pick(a, 4) & pick(b, 2) & pick(c, 1)
    })
}

/// `prmt` in its default mode: each nibble of the selector picks a byte of `b:a`, or its sign eight times.
#[inline(always)]
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    (0..4).fold(0, |word, at| {
        let nibble = selector >> (4 * at);
        let byte = (both >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        word | u32::from(byte) << (8 * at)
    })
}
