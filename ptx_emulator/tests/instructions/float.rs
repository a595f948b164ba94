//! Arithmetic on floats.

use crate::{doubles, words};

fn singles(body: &str, a: f32, b: f32, c: f32) -> f32 {
    f32::from_bits(words(body, a.to_bits(), b.to_bits(), c.to_bits()))
}

#[test]
fn singles_are_rounded_once() {
    let tiny = f32::from_bits(1);
    for (body, a, b, c, expected) in [
        ("add.rn.f32 %r0, %r1, %r2;", 1.5, 2.25, 0.0, 3.75),
        ("sub.f32 %r0, %r1, %r2;", 1.5, 2.25, 0.0, -0.75),
        ("mul.rn.f32 %r0, %r1, %r2;", 1.5, -2.0, 0.0, -3.0),
        ("fma.rn.f32 %r0, %r1, %r2, %r3;", 1.000_000_1, 1.000_000_1, -1.0, 1.000_000_1f32.mul_add(1.000_000_1, -1.0)),
        ("fma.rm.f32 %r0, %r1, %r2, %r3;", 1.0, 1.0, -tiny, 1f32.next_down()),
        ("copysign.f32 %r0, %r1, %r2;", -1.0, 2.0, 0.0, -2.0),
        ("div.rn.f32 %r0, %r1, %r2;", 1.0, 3.0, 0.0, 1.0 / 3.0),
        ("min.f32 %r0, %r1, %r2;", f32::NAN, 2.0, 0.0, 2.0),
        ("max.f32 %r0, %r1, %r2;", -0.0, 0.0, 0.0, 0.0),
        ("abs.f32 %r0, %r1;", -2.0, 0.0, 0.0, 2.0),
        ("neg.f32 %r0, %r1;", 2.0, 0.0, 0.0, -2.0),
        ("sqrt.rn.f32 %r0, %r1;", 2.0, 0.0, 0.0, std::f32::consts::SQRT_2),
        ("rcp.rn.f32 %r0, %r1;", 3.0, 0.0, 0.0, 1.0 / 3.0),
        ("ex2.approx.ftz.f32 %r0, %r1;", 10.0, 0.0, 0.0, 1024.0),
        ("lg2.approx.f32 %r0, %r1;", 1024.0, 0.0, 0.0, 10.0),
        ("rcp.approx.ftz.f32 %r0, %r1;", 4.0, 0.0, 0.0, 0.25),
        ("rsqrt.approx.f32 %r0, %r1;", 4.0, 0.0, 0.0, 0.5),
        ("add.ftz.f32 %r0, %r1, %r2;", tiny, tiny, 0.0, 0.0),
        ("add.f32 %r0, %r1, %r2;", tiny, tiny, 0.0, f32::from_bits(2)),
        ("add.sat.f32 %r0, %r1, %r2;", 1.0, 2.0, 0.0, 1.0),
        ("selp.f32 %r0, 0f40000000, %r2, 1;", 0.0, 1.0, 0.0, 2.0),
        ("add.f32 %r0, %r1, 1.5;", 1.0, 0.0, 0.0, 2.5),
    ] {
        assert_eq!(singles(body, a, b, c).to_bits(), expected.to_bits(), "{body} {a} {b} {c}");
    }
}

#[test]
fn a_nan_result_has_the_bits_of_the_device() {
    for body in ["add.f32 %r0, %r1, %r2;", "mul.f32 %r0, %r1, %r2;", "max.NaN.f32 %r0, %r1, %r2;"] {
        assert_eq!(words(body, 0xFFC1_2345, 0x3F80_0000, 0), 0x7FFF_FFFF, "{body}");
    }
    assert_eq!(words("sqrt.rn.f32 %r0, %r1;", (-1f32).to_bits(), 0, 0), 0x7FFF_FFFF);
}

#[test]
fn doubles_are_rounded_once() {
    let run = |body: &str, a: f64, b: f64, c: f64| f64::from_bits(doubles(body, a.to_bits(), b.to_bits(), c.to_bits()));
    for (body, a, b, c, expected) in [
        ("add.f64 %rd0, %rd1, %rd2;", 0.1, 0.2, 0.0, 0.1 + 0.2),
        ("sub.rn.f64 %rd0, %rd1, %rd2;", 0.1, 0.2, 0.0, 0.1 - 0.2),
        ("mul.f64 %rd0, %rd1, %rd2;", 0.1, 0.2, 0.0, 0.1 * 0.2),
        ("fma.rn.f64 %rd0, %rd1, %rd2, %rd3;", 0.1, 10.0, -1.0, 0.1f64.mul_add(10.0, -1.0)),
        ("div.rn.f64 %rd0, %rd1, %rd2;", 1.0, 3.0, 0.0, 1.0 / 3.0),
        ("min.f64 %rd0, %rd1, %rd2;", f64::NAN, 2.0, 0.0, 2.0),
        ("max.f64 %rd0, %rd1, %rd2;", -0.0, 0.0, 0.0, 0.0),
        ("sqrt.rn.f64 %rd0, %rd1;", 2.0, 0.0, 0.0, std::f64::consts::SQRT_2),
        ("neg.f64 %rd0, %rd1;", 2.0, 0.0, 0.0, -2.0),
        ("add.f64 %rd0, %rd1, 0d3FF0000000000000;", 2.0, 0.0, 0.0, 3.0),
    ] {
        assert_eq!(run(body, a, b, c).to_bits(), expected.to_bits(), "{body} {a} {b} {c}");
    }
}

#[test]
fn narrow_floats_are_rounded_once() {
    for (body, a, b, c, expected) in [
        ("add.rn.f16x2 %r0, %r1, %r2;", 0x3C00_4000, 0x3C00_C000, 0, 0x4000_0000),
        ("sub.f16x2 %r0, %r1, %r2;", 0x3C00_4000, 0x3C00_3C00, 0, 0x0000_3C00),
        ("mul.bf16x2 %r0, %r1, %r2;", 0x3F80_4000, 0x4000_4000, 0, 0x4000_4080),
        ("fma.rn.f16x2 %r0, %r1, %r2, %r3;", 0x4000_3C00, 0x4200_3C00, 0x3C00_0000, 0x4700_3C00),
        ("max.NaN.f16x2 %r0, %r1, %r2;", 0x7E00_3C00, 0x3C00_4000, 0, 0x7FFF_4000),
        ("min.bf16x2 %r0, %r1, %r2;", 0x7FC0_3F80, 0x3F80_4000, 0, 0x3F80_3F80),
        ("neg.f16x2 %r0, %r1;", 0x3C00_C000, 0, 0, 0xBC00_4000),
        ("abs.bf16x2 %r0, %r1;", 0xBF80_3F80, 0, 0, 0x3F80_3F80),
        ("mov.b32 {%h1, %h2}, %r1; add.f16 %h0, %h1, %h2; cvt.u32.u16 %r0, %h0;", 0x3C00_3C00, 0, 0, 0x4000),
        ("mov.b32 {%h1, %h2}, %r1; add.ftz.f16 %h0, %h1, %h2; cvt.u32.u16 %r0, %h0;", 0x0001_0001, 0, 0, 0),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}
