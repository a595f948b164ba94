//! Those of CUDA C++ that came later.

use half::{bf16, f16};

use super::{Expected, SMALL, floats, layer_norm, prefix_sums, product, ramp, singles, wide, words};
use crate::Near::{Double, Exact};

pub(super) const EXPECTED: &[Expected] = &[
    ("constant", Exact, || {
        singles(
            floats(64, 1)
                .iter()
                .map(|x| [2.0, 0.25, -0.5, 1.0].iter().fold(0.0, |sum, c| f64::from((sum * x + c) as f32))),
        )
    }),
    ("dot4", Exact, || {
        let dot = |(a, b): (i64, i64)| {
            let bytes = |number: i64| (number as i32 - 125).to_le_bytes().map(|byte| i32::from(byte as i8));
            1 + bytes(a).iter().zip(bytes(b)).map(|(x, y)| x * y).sum::<i32>()
        };
        words(ramp(64, 1).zip(ramp(64, 2)).map(|pair| dot(pair) as u32))
    }),
    ("dot2", Exact, dot2),
    ("bitonic", Exact, || {
        let mut numbers: Vec<i64> = ramp(512, 1).map(|number| number - 125).collect();
        numbers.sort_unstable();
        words(numbers.into_iter().map(|number| number as u32))
    }),
    ("stencil", Exact, || {
        let x = floats(2000, 1);
        let at = |i: usize, j: usize| {
            if (1..41).contains(&i) && (1..51).contains(&j) { x[(i - 1) * 50 + j - 1] } else { 0.0 }
        };
        let point = |i, j| 0.5 * at(i, j) + 0.125 * (at(i - 1, j) + at(i + 1, j) + at(i, j - 1) + at(i, j + 1));
        singles((0..2000).map(|k| point(k / 50 + 1, k % 50 + 1)))
    }),
    ("standardize", SMALL, layer_norm),
    ("wmma_bf16", Exact, || product(32, false)),
    ("mma_int8", Exact, mma_int8),
    ("mma_tf32", Exact, || {
        let (a, b) = (floats(512, 1), floats(256, 2));
        let sum = |i: usize, j: usize| (0..32).map(|k| a[i * 32 + k] * b[j * 32 + k]).sum();
        singles((0..128).map(|at| sum(at / 8, at % 8)))
    }),
    ("locks", Exact, || words([0, ramp(128, 1).map(|number| number as u32 + 1).sum(), 128])),
    ("print", Exact, || words(0..4)),
    ("structs", Exact, || {
        let (offsets, kinds): (Vec<i64>, Vec<i64>) = (ramp(8, 3).collect(), ramp(4, 2).collect());
        let name = ramp(1, 5).map(|number| number - 125).sum::<i64>() as f64;
        let value = |(i, pick): (usize, i64)| {
            let offset = (offsets[(pick - 125) as usize & 7] - 125) as f64;
            offset * floats(1, 4)[0] + (kinds[i & 3] - 125) as f64 + name
        };
        singles(ramp(64, 1).enumerate().map(value))
    }),
    ("recursion", Exact, recursion),
    ("math64", Double(4e-16), math64),
    ("atomics16", Exact, atomics16),
    ("philox", Exact, || words((0..64).flat_map(|i| philox([i, 0, 7, 0], [7, 9])))),
    ("fft", SMALL, || {
        let x = floats(256, 1);
        let turn = |k: usize, n: usize| (std::f64::consts::TAU * ((k * n) % 256) as f64 / 256.0).sin_cos();
        let term = |k: usize| (0..256).fold((0.0, 0.0), |(r, i), n| (r + x[n] * turn(k, n).1, i - x[n] * turn(k, n).0));
        singles((0..256).flat_map(|k| [term(k).0, term(k).1]))
    }),
    ("lookback", Exact, || words(prefix_sums(ramp(1536, 1).map(|number| number as u32 + 1)))),
    ("strided", Exact, || {
        let x: Vec<i64> = ramp(300, 1).map(|number| number - 125).collect();
        let element = |at: usize| x[200 - 35 * (at / 35) + at / 7 % 5 + 5 * (at % 7)] as i16;
        (0..210).flat_map(|at| element(at).to_le_bytes()).collect()
    }),
    ("bigint", Exact, bigint),
    ("rounding", Exact, rounding),
    ("votes", Exact, votes),
    ("fields", Exact, fields),
    ("variables", Exact, || {
        let x: Vec<u32> = ramp(128, 1).map(|number| number as u32 + 1).collect();
        let sum = |block: usize| -> u32 { (0..32).map(|i| x[block * 32 + i] * 10u32.pow(i as u32 % 4)).sum() };
        words([1000, 2000, 3000, 0, sum(3), sum(2), sum(1), sum(0)])
    }),
    ("groups", Exact, groups),
    ("nbody", SMALL, nbody),
    ("checked", Exact, || words(ramp(64, 1).map(|number| number as u32 + 2))),
    ("machine", Exact, || words((0..128).map(|thread| 31 + 32 * (thread % 32 + 1)))),
    ("quantize", Exact, quantize),
    ("mandelbrot", Exact, mandelbrot),
    ("hints", Exact, || {
        let (x, numbers) = (floats(64, 1), [floats(64, 1)[0], 7.0, 0.0, 5.0]);
        let value = |i: usize| {
            x[i] + f64::from(1 << (i % 4))
                + if i % 4 == 2 { f64::from(1 + i32::from(x[i] > 0.0)) } else { numbers[i % 4] }
        };
        singles((0..64).map(value))
    }),
];

fn dot2() -> Vec<u8> {
    let numbers =
        |seed, factor: i32| -> Vec<i32> { ramp(64, seed).map(|n| (n as i32 - 125).wrapping_mul(factor)).collect() };
    let (x, y, plain) = (numbers(1, 65599), numbers(2, 40503), numbers(1, 1));
    let byte = |word: i32, at: usize, signed: bool| {
        let byte = word.to_le_bytes()[at];
        if signed { i64::from(byte as i8) } else { i64::from(byte) }
    };
    let half = |word: i32, at: usize, signed: bool| {
        let half = (word >> (16 * at)) as u16;
        if signed { i64::from(half as i16) } else { i64::from(half) }
    };
    let dot2 = |first: usize, a_signed, b_signed| {
        move |a: i32, b: i32| (0..2).map(|at| half(a, at, a_signed) * byte(b, first + at, b_signed)).sum::<i64>()
    };
    let dot4 =
        |b_signed| move |a: i32, b: i32| (0..4).map(|at| byte(a, at, false) * byte(b, at, b_signed)).sum::<i64>();
    let parts: [&dyn Fn(i32, i32) -> i64; 6] = [
        &dot2(0, true, true),
        &dot2(2, true, true),
        &dot2(0, false, false),
        &dot4(false),
        &dot4(true),
        &dot2(2, true, false),
    ];
    words(parts.iter().flat_map(|part| (0..64).map(|i| (part(x[i], y[i]) as i32).wrapping_add(plain[i ^ 1]) as u32)))
}

fn mma_int8() -> Vec<u8> {
    let bytes = |count, seed| -> Vec<u8> { ramp(count, seed).map(|number| (number - 125) as u8).collect() };
    let (a, b) = (bytes(512, 1), bytes(256, 2));
    let number = |byte: u8, signed: bool| if signed { i64::from(byte as i8) } else { i64::from(byte) };
    let sum = |at: usize, a_signed, b_signed| -> i64 {
        (0..32).map(|k| number(a[at / 8 * 32 + k], a_signed) * number(b[at % 8 * 32 + k], b_signed)).sum()
    };
    let start = 0x7fff_ff00;
    let signed = |at: usize| sum(at, true, true) as u32;
    let above = |at: usize| (start + sum(at, false, false)) as u32;
    let saturated = |at: usize| (start + sum(at, false, true)).clamp(i32::MIN.into(), i32::MAX.into()) as u32;
    let upper = |at: usize| if at < 64 { signed(at) } else { 0 };
    let parts: [&dyn Fn(usize) -> u32; 5] = [&signed, &signed, &upper, &above, &saturated];
    words(parts.iter().flat_map(|part| (0..128).map(part)))
}

fn recursion() -> Vec<u8> {
    let x: Vec<i32> = ramp(64, 1).map(|number| number as i32 - 125).collect();
    let fibonacci = |n: i32| (0..n).fold((0u32, 1u32), |(a, b), _| (b, a + b)).0;
    words((0..64).map(|i| {
        let mut values: Vec<i32> = (0..16).map(|k| x[(i * 5 + k * k) % 64]).collect();
        values.sort_unstable();
        let first = fibonacci((x[i] + 125) % 12);
        values.iter().fold(first, |sum, &value| sum.wrapping_mul(31).wrapping_add(value as u32))
    }))
}

fn math64() -> Vec<u8> {
    let x = floats(64, 1);
    let results = |v: f64| {
        let w = v.abs() + 0.5;
        let (exp, sin) = (v.exp(), (50.0 * v).sin());
        [
            exp,
            w.ln(),
            sin,
            v.cos(),
            w.sqrt(),
            1.0 / w.sqrt(),
            1.0 / w,
            v / 3.0,
            w.powf(1.7),
            v.tanh(),
            v.cbrt(),
            v.atan2(w),
        ]
    };
    (0..12).flat_map(|k| x.iter().flat_map(move |&v| results(v)[k].to_le_bytes())).collect()
}

fn atomics16() -> Vec<u8> {
    let (mut pairs, mut most) = ([0; 7], [0u16; 2]);
    for number in ramp(128, 1).map(|number| number as usize + 1) {
        pairs[number % 4] += 1;
        pairs[5 + number % 2] += 1;
        most[number % 2] = most[number % 2].max(number as u16);
    }
    let word = |at: usize| {
        let count = f32::from(pairs[at] as i16);
        match at {
            4 => u32::from(f16::from_f32(32.0).to_bits()),
            0..4 => u32::from(f16::from_f32(count).to_bits()) | u32::from(f16::from_f32(-0.5 * count).to_bits()) << 16,
            _ => u32::from(bf16::from_f32(count).to_bits()) | u32::from(bf16::from_f32(0.5 * count).to_bits()) << 16,
        }
    };
    words((0..7).map(word).chain([u32::from(most[0]) | u32::from(most[1]) << 16]))
}

/// Philox 4x32-10.
pub(super) fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let (p, q) = (0xD251_1F53 * u64::from(c[0]), 0xCD9E_8D57 * u64::from(c[2]));
        c = [(q >> 32) as u32 ^ c[1] ^ key[0], q as u32, (p >> 32) as u32 ^ c[3] ^ key[1], p as u32];
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    c
}

fn bigint() -> Vec<u8> {
    let x: Vec<u64> = ramp(128, 1).map(wide).collect();
    let number = |i: usize| u128::from(x[2 * i + 1]) << 64 | u128::from(x[2 * i]);
    let results = |i: usize| {
        let (a, b) = (number(i), number(i ^ 1));
        let product = u128::from(a as u64) * u128::from(b as u64);
        [a.wrapping_add(b), a.wrapping_sub(b), product, a.wrapping_mul(1_000_003).wrapping_add(a >> 77)]
    };
    (0..64).flat_map(|i| results(i).into_iter().flat_map(u128::to_le_bytes)).collect()
}

/// Rounded to the nearest, and whether the exact number is above or below it; the other directions follow.
#[derive(Clone, Copy)]
enum To {
    Zero,
    Down,
    Up,
}

/// f64 that is `near`, off by a number of the sign of `error`.
fn directed(near: f64, error: f64, to: To) -> f64 {
    let (down, up) = match error {
        _ if error > 0.0 => (near, near.next_up()),
        _ if error < 0.0 => (near.next_down(), near),
        _ => (near, near),
    };
    match to {
        To::Down => down,
        To::Up => up,
        To::Zero => {
            if near > 0.0 {
                down
            } else {
                up
            }
        }
    }
}

/// f32 of a number of f64, off by a number of the sign of `error`.
fn directed_f32(value: f64, error: f64, to: To) -> f32 {
    let near = value as f32;
    let error = if f64::from(near) == value { error } else { value - f64::from(near) };
    let (down, up) = match error {
        _ if error > 0.0 => (near, near.next_up()),
        _ if error < 0.0 => (near.next_down(), near),
        _ => (near, near),
    };
    match to {
        To::Down => down,
        To::Up => up,
        To::Zero => {
            if near > 0.0 {
                down
            } else {
                up
            }
        }
    }
}

/// A sum and its error (Knuth).
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let other = sum - a;
    (sum, (a - (sum - other)) + (b - other))
}

/// A quotient, and a number of the sign of its error.
fn quotient(a: f64, b: f64) -> (f64, f64) {
    let near = a / b;
    (near, (-near).mul_add(b, a) * b.signum())
}

fn root(a: f64) -> (f64, f64) {
    let near = a.sqrt();
    (near, (-near).mul_add(near, a))
}

/// `a b + c`, and a number of the sign of its error.
fn fused(a: f64, b: f64, c: f64) -> (f64, f64) {
    let near = a.mul_add(b, c);
    let product = a * b;
    let low = a.mul_add(b, -product);
    // near is off by (product + c - near) + low, both of which are sums without a rounding worth the name.
    let (sum, rest) = two_sum(product, c);
    (near, (sum - near) + (rest + low))
}

fn rounding() -> Vec<u8> {
    use To::{Down, Up, Zero};
    let x: Vec<f32> = floats(64, 1).iter().map(|&x| x as f32).collect();
    let (mut singles, mut doubles) = (vec![Vec::new(); 17], vec![Vec::new(); 16]);
    for i in 0..64 {
        let (a, b, c) = (x[i] / 3.0, x[i ^ 1] / 7.0 + 0.01, x[i ^ 2] * 1e-4);
        // The compiler fuses what it may.
        let b = if b.is_nan() { c } else { b };
        let (p, q, r) = (f64::from(a), f64::from(b), f64::from(c));
        let sum = |to| {
            let (near, error) = two_sum(p, q);
            directed_f32(near, error, to)
        };
        let minus = |to| {
            let (near, error) = two_sum(p, -q);
            directed_f32(near, error, to)
        };
        let times = |to| directed_f32(p * q, 0.0, to);
        let over = |to| {
            let (near, error) = quotient(p, q);
            directed_f32(near, error, to)
        };
        let fma = |to| {
            let (near, error) = two_sum(p * q, r);
            directed_f32(near, error, to)
        };
        let inverse = |to| {
            let (near, error) = quotient(1.0, q);
            directed_f32(near, error, to)
        };
        let square = |to| {
            let (near, error) = root(p.abs());
            directed_f32(near, error, to)
        };
        let values = [
            sum(Zero),
            sum(Down),
            sum(Up),
            minus(Zero),
            times(Zero),
            times(Down),
            times(Up),
            over(Zero),
            over(Down),
            over(Up),
            fma(Zero),
            fma(Down),
            fma(Up),
            inverse(Zero),
            inverse(Up),
            square(Down),
            square(Up),
        ];
        singles.iter_mut().zip(values).for_each(|(list, value)| list.push(value));
        let p = 1e-12f64.mul_add(i as f64, p);
        let r = r * 1e-9;
        let at = |(near, error): (f64, f64), to| directed(near, error, to);
        let product = |to| at((p * q, p.mul_add(q, -(p * q))), to);
        let values = [
            at(two_sum(p, r), Zero),
            at(two_sum(p, r), Down),
            at(two_sum(p, r), Up),
            product(Zero),
            product(Down),
            product(Up),
            at(quotient(p, q), Zero),
            at(quotient(p, q), Down),
            at(quotient(p, q), Up),
            at(fused(p, q, r), Zero),
            at(fused(p, q, r), Down),
            at(fused(p, q, r), Up),
            at(quotient(1.0, q), Down),
            at(quotient(1.0, q), Up),
            at(root(p.abs()), Zero),
            at(root(p.abs()), Up),
        ];
        doubles.iter_mut().zip(values).for_each(|(list, value)| list.push(value));
    }
    let singles = singles.concat().into_iter().flat_map(f32::to_le_bytes);
    singles.chain(doubles.concat().into_iter().flat_map(f64::to_le_bytes)).collect()
}

fn votes() -> Vec<u8> {
    let x: Vec<u32> = ramp(128, 1).map(|number| number as u32 + 1).collect();
    let odd = x.iter().filter(|&&v| v % 2 == 1).count() as u32;
    let block = odd + 1000 * u32::from(x.iter().all(|&v| v > 0)) + 2000 * u32::from(x.contains(&251));
    let value = |i: usize| {
        let (v, warp) = (x[i], &x[i / 32 * 32..][..32]);
        let ballot =
            |holds: &dyn Fn(u32) -> bool| (0..32).filter(|&at| holds(warp[at])).fold(0u32, |bits, at| bits | 1 << at);
        let mut sum = block ^ (ballot(&|v| v % 2 == 1) + u32::from(warp.contains(&7)) + 2);
        sum = sum.wrapping_add(ballot(&|other| other % 5 == v % 5));
        sum = sum.wrapping_add(u32::MAX).wrapping_add(1);
        let (all, most, mixed) = (
            warp.iter().sum::<u32>(),
            warp.iter().copied().max().unwrap_or(0),
            warp.iter().fold(0, |bits, v| bits ^ v << 8),
        );
        sum.wrapping_add(all ^ most ^ mixed).wrapping_add(v % 2)
    };
    words((0..128).map(value))
}

fn fields() -> Vec<u8> {
    let x: Vec<u32> = ramp(64, 1).map(|number| number as u32 + 1).collect();
    let ones = |count: u32| if count > 31 { u32::MAX } else { (1 << count) - 1 };
    let row = |i: usize| {
        let (a, b, n, j) = (x[i].wrapping_mul(2654435761), x[i ^ 1].wrapping_mul(2246822519), x[i ^ 2] % 40, i as u32);
        let both = u64::from(b) << 32 | u64::from(a);
        let bytes = |picks: [u32; 4]| {
            picks.iter().enumerate().fold(0, |word, (at, &pick)| word | ((both >> (8 * pick)) as u32 & 255) << (8 * at))
        };
        let field = (i64::from(a as i32) >> n.min(31)) as i32;
        let extract = if n >= 32 { a as i32 >> 31 } else { field << 23 >> 23 };
        let insert = if n >= 32 { b } else { b & !(127 << n) | (a & 127) << n };
        let extend = |n: u32| if n == 0 { 0 } else { (a << (32 - n.min(32))) as i32 >> (32 - n.min(32)) };
        let mask = |from: u32, width: u32| if from > 31 { 0 } else { ones(width.min(32 - from)) << from };
        let (base, offset) = ((n % 32) as usize, i as i32 % 9 - 4);
        let set = |&at: &usize| a >> at & 1 == 1;
        let found = match offset {
            0 => Some(base).filter(set),
            1.. => (base..32).filter(set).nth(offset as usize - 1),
            _ => (0..=base).rev().filter(set).nth(offset.unsigned_abs() as usize - 1),
        };
        let left = ((u64::from(b) << 32 | u64::from(a)) << (n & 31) >> 32) as u32;
        let right = (both >> n.min(32)) as u32;
        let selector = 0x7b21 ^ j;
        // The sign of a selector does nothing in `__byte_perm`.
        let permuted = bytes([0, 4, 8, 12].map(|at| selector >> at & 7));
        let s = j & 3;
        [
            extract as u32,
            insert,
            extend(n) as u32,
            a & ones(n & 31),
            mask(n, j),
            mask(n & 31, j & 31),
            found.map_or(u32::MAX, |at| at as u32),
            left ^ right,
            permuted,
            bytes([s, s + 1, s + 2, s + 3]),
            bytes([s, (s + 7) % 8, (s + 6) % 8, (s + 5) % 8]),
            bytes([s; 4]),
            bytes([s, s.max(1), s.max(2), 3]),
            bytes([0, s.min(1), s.min(2), s]),
            bytes([s % 2 * 2, s % 2 * 2 + 1, s % 2 * 2, s % 2 * 2 + 1]),
            a & b | a & n | b & n,
        ]
    };
    words((0..16).flat_map(|k| (0..64).map(move |i| row(i)[k])))
}

fn groups() -> Vec<u8> {
    let x: Vec<u32> = ramp(64, 1).map(|number| number as u32 + 1).collect();
    let value = |i: usize| {
        let tile = &x[i / 8 * 8..][..8];
        let warp = i / 32 * 32;
        let odd: Vec<usize> = (warp..warp + 32).filter(|&at| x[at] % 2 == 1).collect();
        let together =
            odd.iter().position(|&at| at == i).map_or(0, |rank| 1000 * odd.len() as u32 + 100_000 * rank as u32);
        tile.iter().sum::<u32>().wrapping_add(together).wrapping_add(tile[3].wrapping_mul(1_000_000))
    };
    words((0..64).map(value))
}

fn nbody() -> Vec<u8> {
    let bodies: Vec<[f64; 4]> = floats(512, 1).as_chunks().0.to_vec();
    let force = |mine: &[f64; 4]| {
        let mut sum = [0.0; 4];
        for other in &bodies {
            let apart = [0, 1, 2].map(|axis| other[axis] - mine[axis]);
            let inverse = 1.0 / (apart.iter().map(|d| d * d).sum::<f64>() + 0.25).sqrt();
            (0..3).for_each(|axis| sum[axis] += apart[axis] * other[3].abs() * inverse.powi(3));
        }
        sum
    };
    singles(bodies.iter().flat_map(force))
}

fn quantize() -> Vec<u8> {
    let row = |row: &[f64]| {
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.abs())) as f32;
        let scale = most / 127.0;
        let byte = |&x: &f64| ((x as f32 / scale).round_ties_even() as i32).clamp(-127, 127) as u8;
        row.iter().map(byte).chain(scale.to_le_bytes()).collect::<Vec<u8>>()
    };
    floats(512, 1).chunks(128).flat_map(row).collect()
}

fn mandelbrot() -> Vec<u8> {
    let count = |i: usize, j: usize| {
        let (cr, ci) = ((i as f32).mul_add(3.0 / 64.0, -2.25), (j as f32).mul_add(2.0 / 32.0, -1.0));
        let (mut r, mut s, mut count) = (0f32, 0f32, 0);
        while count < 100 && r.mul_add(r, s * s) <= 4.0 {
            (r, s) = (r.mul_add(r, -(s * s)) + cr, (2.0 * r).mul_add(s, ci));
            count += 1;
        }
        count
    };
    words((0..2048).map(|at| count(at % 64, at / 64)))
}
