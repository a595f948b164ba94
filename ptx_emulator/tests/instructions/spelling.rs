//! Other ways to write the same: what compilers and people write and `ptxas` takes.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

use crate::{kernel, launch, per_thread};

const HEADER: &str = ".version 8.4\n.target sm_90a\n.address_size 64\n";

#[test]
fn directives_need_no_space_between_them() {
    let text = format!(
        "{HEADER}.shared.align 16 .b8 tile[16];.visible.entry k(.param.u64.ptr.global.align 16 out).maxntid 32,1,1
        .minnctapersm 2{{.reg.pred %p<2>;.reg.b64 %rd<2>;.reg.b32 %r<3>;.shared.align 8 .b8 own[8];
        ld.param.u64%rd1,[out];mov.u32%r1,tile;st.shared.u32[%r1+4],7;ld.shared.u32%r2,[tile+4];st.global.u32[%rd1],%r2;ret;}}"
    );
    assert_eq!(launch(&text, 1, 0, 1).unwrap(), [7]);
}

#[test]
fn modifiers_may_stand_apart_and_comments_anywhere() {
    let body = "setp.ne.u32 %p1, 1, 1; ld /* a */ .param .b64 %rd1, [ /* b */ out ]; // c
        mov /* d\n */ .u32 %r1, 3; st .shared .b32 [word], %r1; ld .volatile .shared .b32 %r2, [word];
        @ ! %p1 mov .b32 %r0 , %r2 ; st .global.b32 [%rd8], %r0;";
    let ptx = kernel(".shared .align 4 .b32 word;", body);
    assert_eq!(launch(&ptx, 1, 0, 1).unwrap(), [3]);
}

#[test]
fn one_line_may_declare_several_variables() {
    let ptx = kernel(
        ".shared .align 8 .b8 a[4], b[2][4]; .shared .v4 .b32 v, w[2];",
        ".reg .b32 x, y<2>, z; .local .align 8 .b8 c[4], d[8]; .shared .b16 e, f[3];
        mov.b32 %r1, a; mov.b32 %r2, b; mov.b32 %r4, v; mov.b32 %r3, w; sub.u32 %r5, %r3, %r4;
        st.local.b32 [d], 3; ld.local.b32 x, [d]; st.shared.b16 [f+4], 9; ld.shared.u16 y1, [f+4]; add.u32 z, x, y1;
        and.b32 %r6, %r2, 7; st.global.b32 [%rd9], z; st.global.b32 [%rd9+4], %r5; st.global.b32 [%rd9+8], %r6;",
    );
    assert_eq!(launch(&ptx, 1, 0, 3).unwrap(), [12, 16, 0]);
}

#[test]
fn vectors_of_registers_have_elements() {
    let ptx = kernel(
        "",
        ".reg .v4 .b32 v; .reg .v2 .f32 w;
        mov.b32 v.x, 1; mov.b32 v.y, 2; mov.b32 v.z, 3; mov.b32 v.w, 4; st.global.v4.b32 [%rd9], v;
        ld.global.v2.b32 w, [%rd9+8]; add.u32 %r1, w.x, w.y; add.u32 %r1, %r1, v.r; st.global.b32 [%rd9+16], %r1;
        { .reg .b32 v; mov.b32 v, 9; st.global.b32 [%rd9+20], v; }",
    );
    assert_eq!(launch(&ptx, 1, 0, 6).unwrap(), [1, 2, 3, 4, 8, 9]);
}

#[test]
fn kernels_may_be_declared_before_they_are_defined() {
    let text = format!(
        "{HEADER}.pragma \"nounroll\";\n.visible .entry k(.param .u64 out);\n.extern .entry other();\n.weak .entry w {{ ret; }}
        .visible .entry k(.param .u64 out) {{ .reg .b64 %rd<2>; ld.param.b64 %rd1, [out]; st.global.b32 [%rd1], 1; ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    assert_eq!(module.kernels().collect::<Vec<_>>(), ["w", "k"]);
    assert_eq!(launch(&text, 1, 0, 1).unwrap(), [1]);
}

#[test]
fn variables_that_no_kernel_names_do_no_harm() {
    let unused = ".common .global .align 4 .u32 count; .common.global.u32 other[4]; .weak .global .u32 third;";
    assert_eq!(launch(&kernel(unused, "st.global.b32 [%rd9], 1;"), 1, 0, 1).unwrap(), [1]);
    let old = format!(".version 4.3\n.target sm_52\n{unused}\n.entry k() {{ ret; }}");
    assert!(matches!(Module::parse(&old), Err(Error::NotInTarget { .. })));
}

#[test]
fn numbers_and_names_have_every_form() {
    let body = ".reg .b32 a$b, _x, $y, %z_0; mov.f32 a$b, 0F3f800000; mov.f32 _x, 15e-1; mov.f32 $y, 1.5;
        mov.b32 %z_0, 0X1F; add.u32 %z_0, %z_0, 0B11; add.u32 %z_0, %z_0, 017; add.u32 %z_0, %z_0, 8U;
        add.f32 a$b, a$b, _x; add.f32 a$b, a$b, $y; cvt.rzi.u32.f32 a$b, a$b; add.u32 %r0, a$b, %z_0;
        setp.eq.u32 %p1, 1, 1; @%p1 bra $L_1; trap; $L_1: @%p1 bra _L2; trap; _L2: mov.u16 %h1, %tid.x; cvt.u32.u16 %r1, %h1; add.u32 %r0, %r0, %r1;
        .pragma \"nounroll\", \"other\";";
    assert_eq!(per_thread(body, 1), [4 + 31 + 3 + 15 + 8]);
}

#[test]
fn a_parameter_is_read_by_the_address_in_a_register() {
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 out, .param .align 4 .b8 s[20], .param .u32 at) {{
        .reg .b64 %rd<8>; .reg .b32 %r<8>;
        ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [at];
        mov.u64 %rd2, s; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd3, %rd2, %rd3; ld.param.u32 %r2, [%rd3+4];
        st.global.u32 [%rd1], %r2;
        mov.u32 %r3, s; mad.lo.u32 %r3, %r1, 4, %r3; ld.param.u32 %r4, [%r3]; st.global.u32 [%rd1+4], %r4;
        cvta.param.u64 %rd4, %rd2; ld.u32 %r5, [%rd4+16]; st.global.u32 [%rd1+8], %r5;
        cvta.to.param.u64 %rd5, %rd4; ld.param.u32 %r6, [%rd5]; st.global.u32 [%rd1+12], %r6;
        cvt.u32.u64 %r7, %rd2; ld.param.u32 %r7, [%r7+8]; st.global.u32 [%rd1+16], %r7;
        mov.u64 %rd6, s+4; ld.param.u32 %r3, [%rd6+4*1]; st.global.u32 [%rd1+20], %r3;
        ret; }}"
    );
    let module = Module::parse(&text).unwrap();
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(24).unwrap();
    let words: Vec<u8> = (10u32..15).flat_map(u32::to_le_bytes).collect();
    let run = |at: u32| {
        let params: [&[u8]; 3] = [&out.to_le_bytes(), &words, &at.to_le_bytes()];
        module.launch(&device, "k", LaunchShape::default(), &params)
    };
    run(2).unwrap();
    let mut bytes = [0; 24];
    device.read(out, &mut bytes).unwrap();
    let found: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    assert_eq!(found, [13, 12, 14, 10, 12, 12]);
    // Beyond all parameters there is nothing.
    let error = run(100).unwrap_err().to_string();
    assert!(error.contains("parameter memory") && error.contains("out of bounds"), "{error}");
}
