//! Integer arithmetic and bits.

use crate::{doubles, words};

const MIN: u32 = i32::MIN as u32;

#[test]
fn words_are_added_multiplied_and_compared() {
    for (body, a, b, c, expected) in [
        ("add.s32 %r0, %r1, %r2;", u32::MAX, 2, 0, 1),
        ("sub.u32 %r0, %r1, %r2;", 1, 3, 0, 0xFFFF_FFFE),
        ("add.sat.s32 %r0, %r1, %r2;", 0x7FFF_FFFF, 1, 0, 0x7FFF_FFFF),
        ("sub.sat.s32 %r0, %r1, %r2;", MIN, 1, 0, MIN),
        ("mul.lo.s32 %r0, %r1, %r2;", 0x1_0001, 0x1_0001, 0, 0x2_0001),
        ("mul.hi.u32 %r0, %r1, %r2;", u32::MAX, u32::MAX, 0, 0xFFFF_FFFE),
        ("mul.hi.s32 %r0, %r1, %r2;", u32::MAX, u32::MAX, 0, 0),
        ("mad.lo.s32 %r0, %r1, %r2, %r3;", 7, 6, 5, 47),
        ("mad.hi.u32 %r0, %r1, %r2, %r3;", MIN, 4, 5, 7),
        ("sad.s32 %r0, %r1, %r2, %r3;", u32::MAX, 3, 10, 14),
        ("sad.u32 %r0, %r1, %r2, %r3;", 3, 9, 10, 16),
        ("div.u32 %r0, %r1, %r2;", 100, 7, 0, 14),
        ("div.s32 %r0, %r1, %r2;", (-100i32) as u32, 7, 0, (-14i32) as u32),
        ("div.s32 %r0, %r1, %r2;", MIN, u32::MAX, 0, MIN),
        ("rem.u32 %r0, %r1, %r2;", 100, 7, 0, 2),
        ("rem.s32 %r0, %r1, %r2;", (-100i32) as u32, 7, 0, (-2i32) as u32),
        ("min.s32 %r0, %r1, %r2;", u32::MAX, 1, 0, u32::MAX),
        ("min.u32 %r0, %r1, %r2;", u32::MAX, 1, 0, 1),
        ("max.s32 %r0, %r1, %r2;", u32::MAX, 1, 0, 1),
        ("max.u32 %r0, %r1, %r2;", u32::MAX, 1, 0, u32::MAX),
        ("abs.s32 %r0, %r1;", (-5i32) as u32, 0, 0, 5),
        ("neg.s32 %r0, %r1;", 5, 0, 0, (-5i32) as u32),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn bits_of_words_are_moved_and_counted() {
    for (body, a, b, c, expected) in [
        ("and.b32 %r0, %r1, %r2;", 0b1100, 0b1010, 0, 0b1000),
        ("or.b32 %r0, %r1, %r2;", 0b1100, 0b1010, 0, 0b1110),
        ("xor.b32 %r0, %r1, %r2;", 0b1100, 0b1010, 0, 0b0110),
        ("not.b32 %r0, %r1;", 1, 0, 0, 0xFFFF_FFFE),
        ("cnot.b32 %r0, %r1;", 0, 0, 0, 1),
        ("cnot.b32 %r0, %r1;", 9, 0, 0, 0),
        ("shl.b32 %r0, %r1, %r2;", 3, 31, 0, MIN),
        ("shl.b32 %r0, %r1, %r2;", 3, 32, 0, 0),
        ("shr.u32 %r0, %r1, %r2;", MIN, 31, 0, 1),
        ("shr.u32 %r0, %r1, %r2;", MIN, 40, 0, 0),
        ("shr.s32 %r0, %r1, %r2;", MIN, 40, 0, u32::MAX),
        ("bfe.u32 %r0, %r1, %r2, %r3;", 0xABCD_1234, 8, 8, 0x12),
        ("bfe.s32 %r0, %r1, %r2, %r3;", 0x0000_F000, 12, 4, u32::MAX),
        ("bfe.s32 %r0, %r1, %r2, %r3;", 0xF000_0000, 28, 16, u32::MAX),
        ("bfe.u32 %r0, %r1, %r2, %r3;", 0xF000_0000, 28, 16, 0xF),
        ("bfe.u32 %r0, %r1, %r2, %r3;", u32::MAX, 4, 0, 0),
        ("bfe.s32 %r0, %r1, %r2, %r3;", MIN, 200, 3, u32::MAX),
        ("bfi.b32 %r0, %r1, %r2, 8, 8;", 0x12, u32::MAX, 0, 0xFFFF_12FF),
        ("bfi.b32 %r0, %r1, %r2, 28, 8;", 0x12, 0, 0, 0x2000_0000),
        ("popc.b32 %r0, %r1;", 0xF0F0, 0, 0, 8),
        ("clz.b32 %r0, %r1;", 1, 0, 0, 31),
        ("clz.b32 %r0, %r1;", 0, 0, 0, 32),
        ("brev.b32 %r0, %r1;", 1, 0, 0, MIN),
        ("bfind.u32 %r0, %r1;", 0x100, 0, 0, 8),
        ("bfind.u32 %r0, %r1;", 0, 0, 0, u32::MAX),
        ("bfind.s32 %r0, %r1;", (-9i32) as u32, 0, 0, 3),
        ("bfind.shiftamt.u32 %r0, %r1;", 0x100, 0, 0, 23),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0xE8;", 0b0011, 0b0101, 0b1001, 0b0001),
        ("lop3.b32 %r0, %r1, %r2, %r3, 0x96;", 0b0011, 0b0101, 0b1001, 0b1111),
        ("prmt.b32 %r0, %r1, %r2, %r3;", 0x3322_1180, 0x7766_5544, 0x7408, 0x7744_80FF),
        ("shf.l.wrap.b32 %r0, %r1, %r2, %r3;", 0x8000_0000, 1, 33, 3),
        ("shf.r.clamp.b32 %r0, %r1, %r2, %r3;", 7, 9, 40, 9),
        ("shf.r.wrap.b32 %r0, %r1, %r2, %r3;", 0, 1, 1, MIN),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn halves_wrap_in_sixteen_bits() {
    let halves = |operation: &str, a: u32, b: u32| {
        let body = format!("cvt.u16.u32 %h1, %r1;\ncvt.u16.u32 %h2, %r2;\n{operation}\ncvt.u32.u16 %r0, %h0;");
        words(&body, a, b, 0)
    };
    for (operation, a, b, expected) in [
        ("add.s16 %h0, %h1, %h2;", 0xFFFF, 2, 1),
        ("mul.lo.s16 %h0, %h1, %h2;", 0x101, 0x101, 0x201),
        ("mul.hi.s16 %h0, %h1, %h2;", 0xFFFF, 2, 0xFFFF),
        ("mul.hi.u16 %h0, %h1, %h2;", 0xFFFF, 2, 1),
        ("div.s16 %h0, %h1, %h2;", 0xFFF6, 2, 0xFFFB),
        ("div.u16 %h0, %h1, %h2;", 0xFFF6, 2, 0x7FFB),
        ("min.s16 %h0, %h1, %h2;", 0xFFFF, 1, 0xFFFF),
        ("max.u16 %h0, %h1, %h2;", 0xFFFF, 1, 0xFFFF),
        ("xor.b16 %h0, %h1, %h2;", 0xFF00, 0x0FF0, 0xF0F0),
        ("not.b16 %h0, %h1;", 0xFF00, 0, 0x00FF),
        ("shl.b16 %h0, %h1, %r2;", 0x1234, 8, 0x3400),
        ("shr.s16 %h0, %h1, %r2;", 0x8000, 20, 0xFFFF),
        ("shr.u16 %h0, %h1, %r2;", 0x8000, 15, 1),
        ("abs.s16 %h0, %h1;", 0xFFFB, 0, 5),
    ] {
        assert_eq!(halves(operation, a, b), expected, "{operation} {a:#x} {b:#x}");
    }
}

#[test]
fn doubles_are_added_multiplied_and_moved() {
    let top = 1u64 << 63;
    for (body, a, b, c, expected) in [
        ("add.s64 %rd0, %rd1, %rd2;", u64::MAX, 2, 0, 1),
        ("sub.s64 %rd0, %rd1, %rd2;", 1, 2, 0, u64::MAX),
        ("mul.lo.s64 %rd0, %rd1, %rd2;", 1 << 40, 3 << 20, 0, 3 << 60),
        ("mul.hi.u64 %rd0, %rd1, %rd2;", u64::MAX, u64::MAX, 0, u64::MAX - 1),
        ("mul.hi.s64 %rd0, %rd1, %rd2;", u64::MAX, u64::MAX, 0, 0),
        ("mad.lo.s64 %rd0, %rd1, %rd2, %rd3;", 1 << 33, 5, 7, (5 << 33) + 7),
        ("div.s64 %rd0, %rd1, %rd2;", (-9i64) as u64, 2, 0, (-4i64) as u64),
        ("rem.u64 %rd0, %rd1, %rd2;", 1 << 40, 1000, 0, (1 << 40) % 1000),
        ("min.s64 %rd0, %rd1, %rd2;", u64::MAX, 1, 0, u64::MAX),
        ("max.u64 %rd0, %rd1, %rd2;", u64::MAX, 1, 0, u64::MAX),
        ("and.b64 %rd0, %rd1, %rd2;", 0xFF00, 0x0FF0, 0, 0x0F00),
        ("shl.b64 %rd0, %rd1, 63;", 3, 0, 0, top),
        ("shl.b64 %rd0, %rd1, 64;", 3, 0, 0, 0),
        ("shr.s64 %rd0, %rd1, 100;", top, 0, 0, u64::MAX),
        ("shr.u64 %rd0, %rd1, 63;", top, 0, 0, 1),
        ("not.b64 %rd0, %rd1;", 0, 0, 0, u64::MAX),
        ("neg.s64 %rd0, %rd1;", 5, 0, 0, (-5i64) as u64),
        ("brev.b64 %rd0, %rd1;", 1, 0, 0, top),
        ("bfe.u64 %rd0, %rd1, 36, 8;", 0xABC_0000_0000_u64 << 4, 0, 0, 0xBC),
        ("bfi.b64 %rd0, %rd1, %rd2, 60, 8;", 0x12, 0, 0, 2 << 60),
        ("popc.b64 %r1, %rd1; cvt.u64.u32 %rd0, %r1;", u64::MAX, 0, 0, 64),
        ("clz.b64 %r1, %rd1; cvt.u64.u32 %rd0, %r1;", 1, 0, 0, 63),
        ("bfind.s64 %r1, %rd1; cvt.u64.u32 %rd0, %r1;", (-9i64) as u64, 0, 0, 3),
        ("cvt.u32.u64 %r1, %rd1; mul.wide.s32 %rd0, %r1, -3;", 7, 0, 0, (-21i64) as u64),
        ("cvt.u32.u64 %r1, %rd1; mad.wide.u32 %rd0, %r1, %r1, %rd2;", 0xFFFF_FFFF, 1, 0, 0xFFFF_FFFE_0000_0002),
        ("selp.b64 %rd0, %rd1, %rd2, 0;", 1, 2, 0, 2),
        ("mov.b64 {%r1, %r2}, %rd1; mov.b64 %rd0, {%r2, %r1};", 1 << 32 | 2, 0, 0, 2 << 32 | 1),
    ] {
        assert_eq!(doubles(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn comparisons_know_their_types() {
    for (comparison, a, b, expected) in [
        ("lt.s32", u32::MAX, 1, 1),
        ("lt.u32", u32::MAX, 1, 0),
        ("lo.u32", 1, 2, 1),
        ("hs.u32", 1, 2, 0),
        ("eq.b32", 7, 7, 1),
        ("ne.b32", 7, 7, 0),
        ("ge.s32", 1, u32::MAX, 1),
        ("le.f32", 0x3F80_0000, 0x4000_0000, 1),
        ("eq.f32", 0, 0x8000_0000, 1),
        ("ne.f32", 0x7FC0_0000, 0, 0),
        ("neu.f32", 0x7FC0_0000, 0, 1),
        ("ltu.f32", 0x7FC0_0000, 0, 1),
        ("geu.f32", 0x3F80_0000, 0x4000_0000, 0),
        ("num.f32", 0, 0x7FC0_0000, 0),
        ("nan.f32", 0, 0x7FC0_0000, 1),
        ("eq.f32", 1, 0, 0),
        ("eq.ftz.f32", 1, 0, 1),
    ] {
        let body = format!("setp.{comparison} %p1, %r1, %r2;\nselp.u32 %r0, 1, 0, %p1;");
        assert_eq!(words(&body, a, b, 0), expected, "{comparison} {a:#x} {b:#x}");
    }
    // With a second predicate and a combination: p = (a < b) and q, q = !(a < b) and q.
    let body = "setp.ne.b32 %p3, %r3, 0;\nsetp.lt.and.u32 %p1|%p2, %r1, %r2, %p3;\n\
        selp.u32 %r4, 2, 0, %p2;\nselp.u32 %r0, 1, 0, %p1;\nor.b32 %r0, %r0, %r4;";
    assert_eq!([words(body, 1, 2, 1), words(body, 2, 1, 1), words(body, 1, 2, 0), words(body, 2, 1, 0)], [1, 2, 0, 0]);
    let logic = "setp.ne.b32 %p1, %r1, 0;\nsetp.ne.b32 %p2, %r2, 0;\nand.pred %p3, %p1, !%p2;\nxor.pred %p4, %p3, %p2;\n\
        not.pred %p5, %p4;\nmov.pred %p6, %p5;\nselp.u32 %r0, 1, 0, %p6;";
    assert_eq!([words(logic, 0, 0, 0), words(logic, 1, 0, 0), words(logic, 0, 1, 0)], [1, 0, 0]);
}
