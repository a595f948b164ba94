//! What is refused when a module is loaded.

use ptx_emulator::{Error, Module};

use crate::kernel;

#[test]
fn an_instruction_that_is_not_covered_is_named_with_its_line() {
    for instruction in [
        "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16 {%r1, %r2, %r3, %r4, %r5, %r6}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.bf16.bf16 {%r1, %r2}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "wgmma.mma_async.sync.aligned.m64n8k32.f16.e4m3.e4m3 {%r1, %r2}, %rd1, %rd2, %p1, 1, 1, 0, 0;",
        "cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3, %r4}], [%r5];",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd1, {%r2}], [%r1];",
        "setmaxnreg.inc.sync.aligned.u32 20;",
        "mbarrier.try_wait.parity.shared::cluster.b64 %p1, [%r1], 0;",
        "add.s32 %r0, %r1, %rd1;",
        "add.s32 %r0, %r1;",
        "mul.s32 %r0, %r1, %r2;",
        "fma.f32 %r0, %r1, %r2, %r3;",
        "ld.shared.v3.b32 {%r0, %r1, %r2}, [%r3];",
        "ld.shared.b64 %r0, [%r3];",
        "cvt.rn.f16.e4m3x2 %h0, %h1;",
        "cvt.f16.f32 %h0, %r0;",
        "setp.ltu.s32 %p1, %r1, %r2;",
        "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r0, %r1, %r2, %r3};",
        "cp.async.cg.shared.global [%r1], [%rd1], 8;",
        "barrier.sync 0;",
        "call foo;",
        "bra.fancy L;",
        "mov.u32 %r0, %nothing;",
        "ld.global.b32.sideways %r0, [%rd1];",
        "copysign.ftz.f32 %r0, %r1, %r2;",
        "add.cc.u16 %h0, %h1, %h2;",
        "div.rz.sat.f32 %r0, %r1, %r2;",
        "mul.rz.ftz.f64 %rd0, %rd1, %rd2;",
        "max.rz.f32 %r0, %r1, %r2;",
        "rcp.approx.f64 %rd0, %rd1;",
        "dp4a.s32.s64 %r0, %r1, %r2, %r3;",
        "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
        "mma.sync.aligned.m16n8k16.row.col.satfinite.f32.f16.f16.f32 {%r0, %r1, %r2, %r3}, {%r0, %r1, %r2, %r3}, {%r0, %r1}, {%r0, %r1, %r2, %r3};",
        "atom.global.add.f16x2 %r0, [%rd1], %r2;",
        "atom.global.exch.b128 %r0, [%rd1], %r2;",
        "discard.global.L2 [%rd1], 64;",
        "st.const.b32 [table], %r0;",
        "vadd.s32.s32.s32 %r0, %r1, %r2;",
    ] {
        let table = ".global .align 4 .b8 table[4] = {1, 2, 3, 4};";
        let ptx = kernel(table, &format!(".loc 1 7 1\n{instruction}")) + ".file 1 \"a.rs\"";
        let error = Module::parse(&ptx).expect_err(instruction);
        let Error::Unsupported { place, .. } = &error else { panic!("{instruction}: {error}") };
        assert_eq!(place.line, 16, "{instruction}");
        assert_eq!(place.rust.as_ref().map(|rust| (&*rust.file, rust.line)), Some(("a.rs", 7)), "{instruction}");
    }
}

#[test]
fn text_that_is_not_ptx_is_an_error_with_a_line() {
    for (text, line) in [
        ("hello", 1),
        (".entry k(", 1),
        (".entry k() {\n\n@", 3),
        (".entry k() {\nadd.s32 %r1, , ;\n}", 2),
        (".entry k() {\nbra NOWHERE;\n}", 2),
        (".entry k() {\nL:\nL:\n}", 3),
        (".entry k() { .reg .b32 %r<99999999999>; }", 1),
        (".entry k() { .reg .b32 a; mov.b32 a, 0f12; }", 1),
        (".func f(.param .b32 x) { ret;", 1),
        (".func f(.param .pred x) { ret; }", 1),
        (".func f(.reg .pred x) { ret; }", 1),
        (".func f() .sideways { ret; }", 1),
        (".global .b32 x = ;", 1),
        (".global .b32 x[2] = {1, 2, 3};", 1),
        (".global .align 4 .b32 x[];", 1),
        (".global .b32 x = {{{{{{{{{{{{{{{{{{{{1}}}}}}}}}}}}}}}}}}}};", 1),
        (".func f(.param .b32 x) { ret; }\n.entry k() { call f; }", 2),
        (".func f() .noreturn {", 1),
        (".shared .align 3 .b8 x[4];", 1),
        (".shared .align 4 .b8 x[4];\n.shared .align 4 .b8 x[4];", 2),
    ] {
        match Module::parse(&format!(".version 8.0 .target sm_90a .address_size 64 {text}")) {
            Err(Error::Syntax { place, .. } | Error::Unsupported { place, .. }) => {
                assert_eq!(place.line, line, "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(Module::parse(".version 8.0 .target sm_90a").unwrap().kernels().count(), 0);
}

/// Mutations of a kernel that has everything: errors or modules, never a panic, and all of them soon.
#[test]
fn hostile_text_never_panics() {
    let base = kernel(
        ".shared .align 16 .b8 tile[64]; .extern .shared .align 16 .b8 dynamic[];",
        ".loc 1 2 3\n{ .reg .b32 t; mov.b64 {t, _}, %rd1; L: @!%p1 bra L; setp.lt.and.u32 %p1|%p2, t, 0f3F800000, !%p3; }
        ld.shared.v4.b32 {%r1, %r2, _, %r4}, [tile+-8]; cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;
        wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1},
        {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1}, {%r1,%r1,%r1,%r1,%r1,%r1,%r1,%r1};",
    );
    assert!(Module::parse(&base).is_ok());
    let mut state = 12345u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let letters = b"{}[]()<>.,;:@!|+-_%$\"/*0x9f \nrbs\xC3\xBC";
    for _ in 0..4000 {
        let mut bytes = base.clone().into_bytes();
        for _ in 0..1 + random(4) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = letters[random(letters.len())],
                1 => bytes.insert(at, letters[random(letters.len())]),
                2 => {
                    bytes.drain(at..(at + 1 + random(20)).min(bytes.len()));
                }
                _ => {
                    let piece = bytes[at..(at + 1 + random(40)).min(bytes.len())].to_vec();
                    let to = random(bytes.len());
                    bytes.splice(to..to, piece);
                }
            }
        }
        let _ = Module::parse(&String::from_utf8_lossy(&bytes));
    }
    for inside in ["{ ", "mov.b32 {", "-", "(", "~(", "!", "1?"] {
        let deep = format!(".version 8.0 .target sm_90a .entry k() {{ mov.b32 %r1, {}", inside.repeat(100_000));
        assert!(matches!(Module::parse(&deep), Err(Error::Syntax { .. })), "{inside}");
    }
}
