//! Conversions.

use crate::{doubles, words};

#[test]
fn integers_are_extended_cut_and_clamped() {
    for (body, a, expected) in [
        ("cvt.u32.u16 %r0, %h1;", 0xABCD_8001, 0x8001),
        ("cvt.s32.s16 %r0, %h1;", 0xABCD_8001, 0xFFFF_8001),
        ("cvt.s32.s8 %r0, %r1;", 0x1280, 0xFFFF_FF80),
        ("cvt.u32.u8 %r0, %r1;", 0x1280, 0x80),
        ("cvt.sat.u8.s32 %r0, %r1;", 0x1280, 0xFF),
        ("cvt.sat.s8.s32 %r0, %r1;", 0xFFFF_0000, 0xFFFF_FF80),
        ("cvt.sat.u32.s32 %r0, %r1;", 0xFFFF_0000, 0),
    ] {
        let body = format!("mov.b32 {{%h1, %h2}}, %r1;\n{body}");
        assert_eq!(words(&body, a, 0, 0), expected, "{body} {a:#x}");
    }
    assert_eq!(doubles("cvt.u32.u64 %r1, %rd1; cvt.s64.s32 %rd0, %r1;", 0x1_8000_0000, 0, 0), 0xFFFF_FFFF_8000_0000);
    assert_eq!(doubles("cvt.u32.u64 %r1, %rd1; cvt.u64.u32 %rd0, %r1;", 0x1_8000_0000, 0, 0), 0x8000_0000);
}

#[test]
fn floats_become_integers_and_integers_floats() {
    for (body, a, expected) in [
        ("cvt.rzi.s32.f32 %r0, %r1;", (-2.7f32).to_bits(), (-2i32) as u32),
        ("cvt.rni.s32.f32 %r0, %r1;", 2.5f32.to_bits(), 2),
        ("cvt.rmi.s32.f32 %r0, %r1;", (-2.2f32).to_bits(), (-3i32) as u32),
        ("cvt.rpi.u32.f32 %r0, %r1;", 2.2f32.to_bits(), 3),
        ("cvt.rzi.u32.f32 %r0, %r1;", (-2.0f32).to_bits(), 0),
        ("cvt.rzi.u32.f32 %r0, %r1;", 1e20f32.to_bits(), u32::MAX),
        ("cvt.rzi.s32.f32 %r0, %r1;", f32::NAN.to_bits(), 0),
        ("cvt.rn.f32.u32 %r0, %r1;", 0xFFFF_FFFF, 4_294_967_296f32.to_bits()),
        ("cvt.rz.f32.u32 %r0, %r1;", 0xFFFF_FFFF, 4_294_967_040f32.to_bits()),
        ("cvt.rn.f32.s32 %r0, %r1;", (-3i32) as u32, (-3f32).to_bits()),
        ("cvt.rni.f32.f32 %r0, %r1;", 3.5f32.to_bits(), 4f32.to_bits()),
        ("cvt.sat.f32.f32 %r0, %r1;", 3.5f32.to_bits(), 1f32.to_bits()),
    ] {
        assert_eq!(words(body, a, 0, 0), expected, "{body} {a:#x}");
    }
    let double = |body: &str, a: f64| doubles(body, a.to_bits(), 0, 0);
    assert_eq!(double("cvt.rn.f32.f64 %r1, %rd1; cvt.f64.f32 %rd0, %r1;", 0.1), f64::from(0.1f32).to_bits());
    assert_eq!(double("cvt.rzi.s64.f64 %rd0, %rd1;", -1e12), (-1_000_000_000_000i64) as u64);
    assert_eq!(doubles("cvt.rn.f64.u64 %rd0, %rd1;", u64::MAX, 0, 0), 18_446_744_073_709_551_616f64.to_bits());
    assert_eq!(doubles("cvt.rz.f64.u64 %rd0, %rd1;", u64::MAX, 0, 0), 18_446_744_073_709_549_568f64.to_bits());
}

#[test]
fn narrow_floats_are_packed_and_unpacked() {
    let (one, two) = (1f32.to_bits(), 2f32.to_bits());
    assert_eq!(words("cvt.rn.f16x2.f32 %r0, %r1, %r2;", one, two, 0), 0x3C00_4000);
    assert_eq!(words("cvt.rn.bf16x2.f32 %r0, %r1, %r2;", one, two, 0), 0x3F80_4000);
    assert_eq!(words("cvt.rn.relu.f16x2.f32 %r0, %r1, %r2;", (-1f32).to_bits(), two, 0), 0x0000_4000);
    assert_eq!(words("cvt.rn.f16.f32 %h1, %r1; cvt.u32.u16 %r0, %h1;", 1e6f32.to_bits(), 0, 0), 0x7C00);
    assert_eq!(words("mov.b32 {%h1, %h2}, %r1; cvt.f32.f16 %r0, %h2;", 0x4000_3C00, 0, 0), two);
    assert_eq!(words("mov.b32 {%h1, _}, %r1; cvt.f32.bf16 %r0, %h1;", 0x4000_3F80, 0, 0), one);
    let quarters = "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2; cvt.rn.f16x2.e4m3x2 %r0, %h1;";
    assert_eq!(words(quarters, one, 1e6f32.to_bits(), 0), 0x3C00_5F00);
    assert_eq!(words("mov.b32 {%h1, %h2}, %r1; mov.b32 %r0, {%h2, %h1};", 0x1234_5678, 0, 0), 0x5678_1234);
}
