//! Instructions of ordinary programs: carries, directions of rounding, dot products, fields, integer products.

use crate::{doubles, fault, kernel, launch, per_thread, words};

fn single(value: f32) -> u32 {
    value.to_bits()
}

#[test]
fn carries_go_from_word_to_word() {
    for (body, a, b, c, expected) in [
        ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0;", u32::MAX, 1, 5, 6),
        ("add.cc.u32 %r4, %r1, %r2; addc.u32 %r0, %r3, 0;", u32::MAX, 0, 5, 5),
        ("add.cc.u32 %r4, %r1, %r2; addc.cc.u32 %r4, %r1, 0; addc.u32 %r0, 0, 0;", u32::MAX, 1, 0, 1),
        ("sub.cc.u32 %r4, %r1, %r2; subc.u32 %r0, %r3, 0;", 1, 2, 5, 4),
        ("sub.cc.s32 %r4, %r1, %r2; subc.s32 %r0, %r3, 0;", 2, 2, 5, 5),
        ("mad.lo.cc.u32 %r4, %r1, %r2, %r3; madc.hi.u32 %r0, %r1, %r2, 0;", u32::MAX, u32::MAX, u32::MAX, u32::MAX),
        ("mad.lo.cc.s32 %r4, %r1, %r2, 0; madc.hi.s32 %r0, %r1, %r2, 1;", u32::MAX, 7, 0, 0),
        // A flag that no instruction set is zero, and one that does not set it leaves it.
        ("addc.u32 %r0, %r1, %r2;", 3, 4, 0, 7),
        ("add.cc.u32 %r4, %r1, 1; add.u32 %r4, 1, 1; addc.u32 %r0, 0, 0;", u32::MAX, 0, 0, 1),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
    let body = "add.cc.u64 %rd4, %rd1, %rd2; addc.u64 %rd0, %rd3, 0;";
    assert_eq!(doubles(body, u64::MAX, 1, 9), 10);
    let body = "mad.lo.cc.u64 %rd4, %rd1, %rd2, %rd3; madc.hi.u64 %rd0, %rd1, %rd2, 0;";
    assert_eq!(doubles(body, u64::MAX, u64::MAX, u64::MAX), u64::MAX);
}

#[test]
fn floats_are_rounded_in_the_direction_that_is_named() {
    let (third, above) = (1f32 / 3.0, (1f32 / 3.0).next_down());
    for (body, a, b, c, expected) in [
        ("add.rz.f32 %r0, %r1, %r2;", 1.0, 1e-10, 0.0, 1.0),
        ("add.rp.f32 %r0, %r1, %r2;", 1.0, 1e-10, 0.0, 1f32.next_up()),
        ("sub.rm.f32 %r0, %r1, %r2;", 1.0, 1e-10, 0.0, 1f32.next_down()),
        ("mul.rm.f32 %r0, %r1, %r2;", 1f32.next_up(), 1f32.next_up(), 0.0, 1f32.next_up().next_up()),
        ("mul.rp.ftz.f32 %r0, %r1, %r2;", 1e-30, 1e-30, 0.0, 0.0),
        ("mul.rp.f32 %r0, %r1, %r2;", 1e-30, 1e-30, 0.0, 1e-45),
        ("fma.rz.sat.f32 %r0, %r1, %r2, %r3;", 1.0, 1.0, 1.0, 1.0),
        ("fma.rp.f32 %r0, %r1, %r2, %r3;", 1.0, 1.0, 1e-10, 1f32.next_up()),
        ("div.rn.f32 %r0, %r1, %r2;", 1.0, 3.0, 0.0, third),
        ("div.rz.f32 %r0, %r1, %r2;", 1.0, 3.0, 0.0, above),
        ("rcp.rm.f32 %r0, %r2;", 0.0, 3.0, 0.0, above),
        ("sqrt.rp.f32 %r0, %r1;", 2.0, 0.0, 0.0, 2f32.sqrt().next_up()),
        ("sqrt.rm.f32 %r0, %r1;", 2.0, 0.0, 0.0, 2f32.sqrt()),
    ] {
        let got = words(body, single(a), single(b), single(c));
        assert_eq!(f32::from_bits(got), expected, "{body} {a:e} {b:e} {c:e}");
    }
    let (third, tenth) = (1f64 / 3.0, 0.1f64);
    for (body, a, b, expected) in [
        ("add.rm.f64 %rd0, %rd1, %rd2;", 1.0, -1e-20, 1f64.next_down()),
        ("mul.rp.f64 %rd0, %rd1, %rd2;", tenth, tenth, (tenth * tenth).max((tenth * tenth).next_down())),
        ("div.rp.f64 %rd0, %rd1, %rd2;", 1.0, 3.0, third.next_up()),
        ("div.rz.f64 %rd0, %rd1, %rd2;", -1.0, 3.0, -third),
        ("rcp.rn.f64 %rd0, %rd2;", 0.0, 3.0, third),
        ("rcp.rp.f64 %rd0, %rd2;", 0.0, 3.0, third.next_up()),
        ("sqrt.rz.f64 %rd0, %rd1;", 2.0, 0.0, 2f64.sqrt().next_down()),
        ("fma.rm.f64 %rd0, %rd1, %rd2, %rd3;", 1.0, 1.0, 1.0),
        ("rsqrt.approx.f64 %rd0, %rd1;", 4.0, 0.0, 0.5),
    ] {
        let got = f64::from_bits(doubles(body, a.to_bits(), b.to_bits(), 0));
        assert_eq!(got, expected, "{body} {a:e} {b:e}");
    }
}

#[test]
fn gross_approximations_have_the_upper_word_alone() {
    let rcp = |value: f64| doubles("rcp.approx.ftz.f64 %rd0, %rd1;", value.to_bits(), 0, 0);
    let rsqrt = |value: f64| doubles("rsqrt.approx.ftz.f64 %rd0, %rd1;", value.to_bits(), 0, 0);
    for value in [3.0, 0.7, 1e200, -5.5] {
        assert_eq!(rcp(value) as u32, 0);
        assert!((f64::from_bits(rcp(value)) * value - 1.0).abs() < 2e-6, "{value}");
    }
    assert!((f64::from_bits(rsqrt(3.0)).powi(2) * 3.0 - 1.0).abs() < 4e-6);
    assert_eq!(f64::from_bits(rcp(0.0)), f64::INFINITY);
    assert_eq!(f64::from_bits(rcp(5e-324)), f64::INFINITY);
    assert_eq!(f64::from_bits(rcp(f64::NEG_INFINITY)).to_bits(), (-0f64).to_bits());
}

#[test]
fn bytes_and_halves_are_multiplied_and_summed() {
    for (body, a, b, c, expected) in [
        ("dp4a.s32.s32 %r0, %r1, %r2, %r3;", 0x01FF_0203, 0x0405_FE07, 10, (21 - 4 - 5 + 4 + 10) as u32),
        ("dp4a.u32.u32 %r0, %r1, %r2, %r3;", 0xFF00_00FF, 0xFF00_0002, 1, 255 * 255 + 510 + 1),
        ("dp4a.u32.s32 %r0, %r1, %r2, %r3;", 0x0000_00FF, 0x0000_00FF, 0, (-255i32) as u32),
        ("dp2a.lo.s32.s32 %r0, %r1, %r2, %r3;", 0xFFFF_0003, 0x0000_0504, 1, (12 - 5 + 1) as u32),
        ("dp2a.hi.u32.u32 %r0, %r1, %r2, %r3;", 0x0002_FFFF, 0x0304_0000, 0, 4 * 65535 + 6),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn fields_are_extended_masked_and_found() {
    for (body, a, b, c, expected) in [
        ("szext.clamp.s32 %r0, %r1, %r2;", 0x80, 8, 0, 0xFFFF_FF80),
        ("szext.clamp.u32 %r0, %r1, %r2;", 0x180, 8, 0, 0x80),
        ("szext.clamp.s32 %r0, %r1, %r2;", 0x8000_0000, 40, 0, 0x8000_0000),
        ("szext.wrap.s32 %r0, %r1, %r2;", 0xFF, 32, 0, 0),
        ("bmsk.clamp.b32 %r0, %r1, %r2;", 4, 8, 0, 0xFF0),
        ("bmsk.clamp.b32 %r0, %r1, %r2;", 28, 40, 0, 0xF000_0000),
        ("bmsk.clamp.b32 %r0, %r1, %r2;", 0, 32, 0, u32::MAX),
        ("bmsk.clamp.b32 %r0, %r1, %r2;", 32, 4, 0, 0),
        ("bmsk.wrap.b32 %r0, %r1, %r2;", 33, 34, 0, 6),
        ("fns.b32 %r0, %r1, %r2, %r3;", 0b1010_0100, 2, 0, 2),
        ("fns.b32 %r0, %r1, %r2, %r3;", 0b1010_0100, 1, 0, u32::MAX),
        ("fns.b32 %r0, %r1, %r2, %r3;", 0b1010_0100, 0, 2, 5),
        ("fns.b32 %r0, %r1, %r2, %r3;", 0b1010_0100, 6, (-1i32) as u32, 5),
        ("fns.b32 %r0, %r1, %r2, %r3;", 0b1010_0100, 7, (-4i32) as u32, u32::MAX),
        ("prmt.b32.f4e %r0, %r1, %r2, %r3;", 0x3322_1100, 0x7766_5544, 1, 0x4433_2211),
        ("prmt.b32.b4e %r0, %r1, %r2, %r3;", 0x3322_1100, 0x7766_5544, 1, 0x6677_0011),
        ("prmt.b32.rc8 %r0, %r1, %r2, %r3;", 0x3322_1100, 0, 2, 0x2222_2222),
        ("prmt.b32.ecl %r0, %r1, %r2, %r3;", 0x3322_1100, 0, 2, 0x3322_2222),
        ("prmt.b32.ecr %r0, %r1, %r2, %r3;", 0x3322_1100, 0, 2, 0x2222_1100),
        ("prmt.b32.rc16 %r0, %r1, %r2, %r3;", 0x3322_1100, 0, 1, 0x3322_3322),
        ("mov.u32 %r0, %nsmid;", 0, 0, 0, 132),
        ("mov.u32 %r0, %smid;", 0, 0, 0, 0),
        ("createpolicy.fractional.L2::evict_last.b64 %rd1, 0.5; mov.u32 %r0, 7;", 0, 0, 0, 7),
        ("prefetch.global.L2 [%rd9]; prefetchu.L1 [%rd9]; mov.u32 %r0, 7;", 0, 0, 0, 7),
        ("applypriority.global.L2::evict_normal [%rd9], 128; mov.u32 %r0, 7;", 0, 0, 0, 7),
    ] {
        assert_eq!(words(body, a, b, c), expected, "{body} {a:#x} {b:#x} {c:#x}");
    }
}

#[test]
fn kinds_of_numbers_are_told_apart() {
    let test = |kind: &str, value: f32| {
        words(&format!("testp.{kind}.f32 %p1, %r1; selp.u32 %r0, 1, 0, %p1;"), value.to_bits(), 0, 0) == 1
    };
    for (kind, holds) in [
        ("finite", [true, true, true, false, false]),
        ("infinite", [false, false, false, true, false]),
        ("number", [true, true, true, true, false]),
        ("notanumber", [false, false, false, false, true]),
        ("normal", [true, true, false, false, false]),
        ("subnormal", [false, false, true, false, false]),
    ] {
        assert_eq!([0.0, -2.5, 1e-40, f32::INFINITY, f32::NAN].map(|value| test(kind, value)), holds, "{kind}");
    }
    let body = "testp.subnormal.f64 %p1, %rd1; selp.u64 %rd0, 1, 0, %p1;";
    assert_eq!((doubles(body, 1, 0, 0), doubles(body, 1f64.to_bits(), 0, 0)), (1, 0));
}

#[test]
fn generic_addresses_are_told_apart() {
    let declarations = ".shared .align 4 .b8 tile[4]; .const .align 4 .b32 table = 5; .global .align 4 .b32 word;";
    let test = |space: &str, address: &str| {
        let body = format!(
            ".local .align 8 .b8 own[8]; {address} isspacep.{space} %p1, %rd1; selp.u32 %r0, 1, 0, %p1; st.global.b32 [%rd8], %r0;"
        );
        launch(&kernel(declarations, &body), 1, 0, 1).unwrap_or_else(|error| panic!("{body}: {error}"))[0]
    };
    let addresses = [
        "mov.b64 %rd1, word;",
        "mov.b64 %rd1, table;",
        "mov.b64 %rd1, tile; cvta.shared.u64 %rd1, %rd1;",
        "mov.b64 %rd1, own; cvta.local.u64 %rd1, %rd1;",
    ];
    for (space, holds) in [("global", 0), ("const", 1), ("shared", 2), ("local", 3)] {
        let found = addresses.map(|address| test(space, address));
        assert_eq!(found, std::array::from_fn(|at| u32::from(at == holds)), "{space}");
    }
}

#[test]
fn a_discarded_line_is_written() {
    let ptx = kernel("", "discard.global.L2 [%rd9], 128;");
    let words = launch(&ptx, 1, 0, 40).unwrap();
    assert!(words[..32].iter().all(|&word| word != u32::MAX) && words[32..].iter().all(|&word| word == u32::MAX));
    assert!(
        fault("add.s64 %rd9, %rd9, 4; discard.global.L2 [%rd9], 128;").to_string().contains("no address of a line")
    );
}

#[test]
fn a_barrier_combines_what_its_threads_give() {
    let body = "setp.lt.u32 %p1, %r9, 40; bar.red.popc.u32 %r1, 0, %p1; bar.red.and.pred %p2, 0, %p1;
        bar.red.or.pred %p3, 1, 64, !%p1; selp.u32 %r2, 1000, 0, %p2; selp.u32 %r3, 2000, 0, %p3;
        add.u32 %r0, %r1, %r2; add.u32 %r0, %r0, %r3;";
    assert_eq!(per_thread(body, 64), [2040; 64]);
    let all = "setp.ge.u32 %p1, %r9, 0; barrier.cta.red.and.aligned.pred %p2, 0, %p1; selp.u32 %r0, 1, 0, %p2;";
    assert_eq!(per_thread(all, 96), [1; 96]);
}

#[test]
fn atomics_of_sixteen_bits_and_of_pairs() {
    let shared = ".shared .align 8 .b8 cell[8];";
    let body = "setp.eq.u32 %p1, %r9, 0; @%p1 st.shared.b64 [cell], 0; bar.sync 0;
        mov.b32 %r1, 0x3C003800; red.shared.add.noftz.f16x2 [cell], %r1;
        mov.b32 %r2, 0x3F804000; atom.shared.add.noftz.bf16x2 %r3, [cell+4], %r2; bar.sync 0;
        ld.shared.b32 %r4, [cell]; ld.shared.b32 %r5, [cell+4]; and.b32 %r6, %r9, 1; setp.eq.u32 %p2, %r6, 0;
        selp.b32 %r0, %r4, %r5, %p2; st.global.b32 [%rd8], %r0;";
    let words = launch(&kernel(shared, body), 4, 0, 4).unwrap();
    // Four times 1 and 0.5, and four times 1 and 2.
    assert_eq!(words, [0x4400_4000, 0x4080_4100, 0x4400_4000, 0x4080_4100]);
    let body = "setp.eq.u32 %p1, %r9, 0; @%p1 st.shared.b64 [cell], 0; bar.sync 0; mov.b16 %h1, 0; cvt.u16.u32 %h2, %r9;
        add.u16 %h2, %h2, 1; atom.shared.cas.b16 %h3, [cell+2], %h1, %h2; cvt.u32.u16 %r0, %h3; st.global.b32 [%rd8], %r0;";
    // One of the lanes finds zero, and all others what it wrote.
    let words = launch(&kernel(shared, body), 4, 0, 4).unwrap();
    assert_eq!(words.iter().filter(|&&word| word == 0).count(), 1);
    assert!(
        words.iter().all(|&word| word == 0 || word == words.iter().position(|&word| word == 0).unwrap() as u32 + 1)
    );
}

#[test]
fn cache_hints_are_one_operand_more() {
    let body = "createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0; mov.u32 %r1, 5;
        st.global.L2::cache_hint.b32 [%rd8], %r1, %rd1; ld.global.L1::no_allocate.L2::cache_hint.b32 %r0, [%rd8], %rd1;
        red.global.add.L2::cache_hint.u32 [%rd8], %r1, %rd1; ld.global.b32 %r0, [%rd8];";
    assert_eq!(per_thread(body, 32), [10; 32]);
}

/// The product of bytes, by the map of fragments that PTX gives.
#[test]
fn bytes_are_multiplied_on_tensor_cores() {
    let a = |row: u32, k: u32| (row * 7 + k * 3) % 256;
    let b = |k: u32, column: u32| (k * 5 + column * 11) % 256;
    let signed = |byte: u32| i64::from(byte as u8 as i8);
    // Rows of 32 bytes of A, then columns of 32 bytes of B, four bytes a word.
    let mut tables = Vec::new();
    for row in 0..16 {
        tables.extend((0..8).map(|word| (0..4).fold(0, |bits, at| bits | a(row, word * 4 + at) << (8 * at))));
    }
    for column in 0..8 {
        tables.extend((0..8).map(|word| (0..4).fold(0, |bits, at| bits | b(word * 4 + at, column) << (8 * at))));
    }
    let list: Vec<String> = tables.iter().map(u32::to_string).collect();
    let declarations = format!(".const .align 4 .b32 tables[{}] = {{{}}};", tables.len(), list.join(", "));
    let load = "shr.u32 %r10, %r9, 2; and.b32 %r11, %r9, 3; mad.lo.u32 %r12, %r10, 8, %r11; mul.wide.u32 %rd1, %r12, 4;
        mov.b64 %rd2, tables; add.s64 %rd1, %rd1, %rd2;
        ld.const.b32 %r1, [%rd1]; ld.const.b32 %r2, [%rd1+256]; ld.const.b32 %r3, [%rd1+16]; ld.const.b32 %r4, [%rd1+272];
        ld.const.b32 %r5, [%rd1+512]; ld.const.b32 %r6, [%rd1+528]; mov.b32 %r20, 0; mov.b32 %r21, 0; mov.b32 %r22, 0; mov.b32 %r23, 0;";
    let store = "mad.lo.u32 %r12, %r10, 4, %r11; mul.wide.u32 %rd1, %r12, 8; add.s64 %rd1, %rd1, %rd9;
        st.global.v2.b32 [%rd1], {%r20, %r21}; st.global.v2.b32 [%rd1+256], {%r22, %r23};";
    let run = |mma: &str| launch(&kernel(&declarations, &format!("{load}\n{mma}\n{store}")), 32, 0, 128).unwrap();
    let product = |k: u32, at: u32, of: &dyn Fn(u32) -> i64, of_b: &dyn Fn(u32) -> i64| -> i64 {
        (0..k).map(|k| of(a(at / 8, k)) * of_b(b(k, at % 8))).sum()
    };
    let plain = |byte: u32| i64::from(byte);
    let d = "{%r20, %r21, %r22, %r23}";
    let wide = run(&format!(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {d}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {d};"
    ));
    let half = run(&format!("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {d}, {{%r1, %r2}}, {{%r5}}, {d};"));
    let small = run("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%r20, %r21}, {%r1}, {%r5}, {%r20, %r21};");
    for at in 0..128 {
        assert_eq!(wide[at as usize] as i32 as i64, product(32, at, &signed, &plain), "{at}");
        assert_eq!(half[at as usize] as i32 as i64, product(16, at, &plain, &signed), "{at}");
        let expected = if at < 64 { product(16, at, &signed, &signed) } else { 0 };
        assert_eq!(small[at as usize] as i32 as i64, expected, "{at}");
    }
    let start = "mov.b32 %r20, 0x7FFFFFFF; mov.b32 %r21, %r20; mov.b32 %r22, %r20; mov.b32 %r23, %r20;";
    let mma = format!(
        "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.u8.u8.s32 {d}, {{%r1, %r2, %r3, %r4}}, {{%r5, %r6}}, {d};"
    );
    assert_eq!(run(&format!("{start}\n{mma}")), [i32::MAX as u32; 128]);
}
