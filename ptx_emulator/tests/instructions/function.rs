//! Functions that are called, variables of the module, and what is printed.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

use crate::{kernel, launch};

fn per_thread(declarations: &str, body: &str, threads: u32) -> Vec<u32> {
    let ptx = kernel(declarations, &format!("{body}\nst.global.b32 [%rd8], %r0;"));
    launch(&ptx, threads, 0, threads as usize).unwrap_or_else(|error| panic!("{error}"))
}

/// `f(n) = n < 2 ? n : f(n - 1) + f(n - 2)`, as nvcc writes it.
const FIBONACCI: &str = ".func (.param .b32 result) fibonacci(.param .b32 n) {
    .reg .pred %p<2>; .reg .b32 %r<9>;
    ld.param.u32 %r8, [n]; setp.lt.u32 %p1, %r8, 2; @%p1 bra DONE;
    add.s32 %r4, %r8, -1;
    { .param .b32 param0; st.param.b32 [param0+0], %r4; .param .b32 retval0; call.uni (retval0), fibonacci, (param0);
      ld.param.b32 %r5, [retval0+0]; }
    add.s32 %r6, %r8, -2;
    { .param .b32 param0; st.param.b32 [param0+0], %r6; .param .b32 retval0; call.uni (retval0), fibonacci, (param0);
      ld.param.b32 %r7, [retval0+0]; }
    add.s32 %r8, %r7, %r5;
    DONE: st.param.b32 [result+0], %r8; ret; }";

const CALL: &str =
    "{ .param .b32 a; st.param.b32 [a], %r1; .param .b32 r; call.uni (r), fibonacci, (a); ld.param.b32 %r0, [r]; }";

#[test]
fn functions_call_themselves_in_lanes_that_part() {
    let found = per_thread(FIBONACCI, &format!("rem.u32 %r1, %r9, 11;\n{CALL}"), 40);
    let expected = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55];
    assert!(found.iter().enumerate().all(|(thread, &value)| value == expected[thread % 11]), "{found:?}");
}

#[test]
fn a_function_may_be_declared_first_and_defined_behind_the_kernel() {
    let declaration = ".func (.param .b32 result) fibonacci(.param .b32 n);";
    let text = kernel(declaration, &format!("mov.b32 %r1, 9;\n{CALL}\nst.global.b32 [%rd8], %r0;")) + FIBONACCI;
    assert_eq!(launch(&text, 1, 0, 1).unwrap(), [34]);
}

#[test]
fn recursion_without_an_end_fills_the_stack() {
    let endless = ".func endless(.param .b32 n) { .local .align 4 .b8 own[16]; .reg .b32 %r<3>; ld.param.b32 %r1, [n];
        { .param .b32 a; st.param.b32 [a], %r1; call endless, (a); } ret; }";
    let call = "{ .param .b32 a; st.param.b32 [a], 1; call endless, (a); }";
    let error = launch(&kernel(endless, call), 32, 0, 1).unwrap_err();
    assert!(matches!(error, Error::StackOverflow { .. }), "{error}");
    assert!(error.to_string().contains("no room for another call"), "{error}");
}

#[test]
fn registers_are_parameters_and_results() {
    let declarations = ".func (.reg .b32 s, .reg .b64 w) both(.reg .b32 a, .reg .b64 b) {
        add.u32 s, a, 1; add.u64 w, b, 2; ret; }";
    let body = "call (%r1, %rd1), both, (%r9, 40); cvt.u32.u64 %r2, %rd1; add.u32 %r0, %r1, %r2;";
    assert_eq!(per_thread(declarations, body, 3), [43, 44, 45]);
}

#[test]
fn structs_go_in_and_out_with_their_holes() {
    // A result of which four bytes are never written, and a parameter that is read at an index of each lane.
    let declarations = ".func (.param .align 8 .b8 r[16]) pick(.param .align 8 .b8 s[16], .param .b32 at) {
        .reg .b32 %r<4>; .reg .b64 %rd<4>; ld.param.b32 %r1, [at]; mov.b64 %rd1, s; mul.wide.u32 %rd2, %r1, 4;
        add.s64 %rd2, %rd1, %rd2; ld.param.b32 %r2, [%rd2]; st.param.b32 [r+4], %r2; ret; }";
    let body = "{ .param .align 8 .b8 s[16]; st.param.v2.b32 [s], {10, 20}; st.param.b32 [s+12], 40; and.b32 %r1, %r9, 1;
        .param .b32 at; st.param.b32 [at], %r1; .param .align 8 .b8 r[16]; call (r), pick, (s, at); ld.param.b32 %r0, [r+4]; }";
    assert_eq!(per_thread(declarations, body, 4), [10, 20, 10, 20]);
}

#[test]
fn functions_have_local_variables_shared_ones_and_barriers() {
    let declarations = ".shared .align 4 .b8 tile[256];
        .func (.param .b32 r) other(.param .b32 t) { .local .align 8 .b8 own[8]; .reg .b32 %r<6>; .reg .b64 %rd<4>;
        ld.param.b32 %r1, [t]; st.local.b32 [own+4], %r1; mov.b32 %r2, tile; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
        st.shared.b32 [%r2], %r1; bar.sync 0; xor.b32 %r3, %r3, 4; mov.b32 %r4, tile; add.u32 %r4, %r4, %r3;
        ld.shared.b32 %r5, [%r4]; ld.local.b32 %r1, [own+4]; mad.lo.u32 %r5, %r1, 100, %r5; st.param.b32 [r], %r5; ret; }";
    let body = "{ .param .b32 t; st.param.b32 [t], %r9; .param .b32 r; call (r), other, (t); ld.param.b32 %r0, [r]; }";
    let found = per_thread(declarations, body, 64);
    assert!(found.iter().enumerate().all(|(t, &value)| value == (t * 100 + (t ^ 1)) as u32), "{found:?}");
}

#[test]
fn a_guarded_call_is_one_of_its_lanes() {
    let body = "mov.b32 %r0, 7; mov.b32 %r1, 10; setp.lt.u32 %p1, %r9, 2; .param .b32 a; st.param.b32 [a], %r1;
        .param .b32 r; st.param.b32 [r], 9; @!%p1 call (r), fibonacci, (a); ld.param.b32 %r0, [r];";
    assert_eq!(per_thread(FIBONACCI, body, 4), [9, 9, 55, 55]);
}

#[test]
fn what_cannot_be_called_is_named() {
    for (declarations, body, named) in [
        (
            ".extern .func (.param .b64 r) malloc(.param .b64 n);",
            "{ .param .b64 n; st.param.b64 [n], 8; .param .b64 r; call (r), malloc, (n); }",
            "`malloc`",
        ),
        ("", "call nothing;", "`nothing`"),
        ("", "mov.b64 %rd1, 0; call %rd1, (%r1), prototype;", "`%rd1`"),
        (".func f() { ret; } .global .u64 table[1] = {f};", "mov.b64 %rd1, table;", "`f`"),
        (".func f() { .reg .b32 %r<2>; vadd.s32.s32.s32 %r1, %r1, %r1; ret; }", "call f;", "vadd"),
        (".extern .global .b32 elsewhere;", "mov.b64 %rd1, elsewhere;", "elsewhere"),
    ] {
        let error = Module::parse(&kernel(declarations, body)).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(named), "{error}");
    }
}

#[test]
fn variables_keep_their_values_from_launch_to_launch() {
    let declarations = ".global .align 4 .u32 count; .const .align 2 .u16 steps[3] = {5, 7, 0x0b};
        .global .align 8 .f32 halves[2][2] = {{0.5, -1.0}, {0f40000000, 3}}; .global .u64 second = generic(halves)+8;
        .global .b8 open[] = {1, 2, 3}; .global .align 4 .s32 negative = -5;";
    let body = "ld.const.u16 %r1, [steps+4]; atom.global.add.u32 %r2, [count], %r1; ld.global.b64 %rd1, [second];
        ld.global.b32 %r3, [%rd1+4]; ld.global.s32 %r4, [negative]; mov.b64 %rd2, open; ld.global.u8 %r5, [%rd2+2];
        st.global.b32 [%rd9], %r2; st.global.b32 [%rd9+4], %r3; st.global.b32 [%rd9+8], %r4; st.global.b32 [%rd9+12], %r5;";
    let module = Module::parse(&kernel(declarations, body)).unwrap();
    let run = |device: &Device| {
        let out = device.allocate(16).unwrap();
        module.launch(device, "k", LaunchShape::default(), &[&out.to_le_bytes()]).unwrap();
        let mut bytes = [0; 16];
        device.read(out, &mut bytes).unwrap();
        bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect::<Vec<u32>>()
    };
    let (device, other) = (Device::new(Arch::Sm90a), Device::new(Arch::Sm90a));
    let rest = [3f32.to_bits(), (-5i32) as u32, 3];
    for (device, count) in [(&device, 0), (&device, 11), (&other, 0)] {
        let found = run(device);
        assert_eq!((found[0], &found[1..]), (count, &rest[..]));
    }
    let (address, bytes) = module.variable(&device, "count").unwrap().unwrap();
    let mut count = [0; 4];
    device.read(address, &mut count).unwrap();
    assert_eq!((u32::from_le_bytes(count), bytes), (22, 4));
    assert_eq!(module.variable(&device, "nothing").unwrap(), None);
}

#[test]
fn reads_beyond_a_variable_are_found() {
    let error = launch(
        &kernel(".global .align 4 .u32 one; .global .align 4 .u32 two;", "ld.global.b32 %r1, [one+4];"),
        1,
        0,
        1,
    );
    assert!(error.unwrap_err().to_string().contains("out of bounds"), "beyond the end of `one`");
}

#[test]
fn printed_text_is_kept_in_order() {
    let text = "lane %d of %5u|%-6.2f|%s|%c%%\n";
    let bytes: Vec<String> = text.bytes().chain([0]).map(|byte| byte.to_string()).collect();
    let declarations = format!(
        ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
        .global .align 1 .b8 format[{}] = {{{}}}; .global .align 1 .b8 name[4] = {{97, 98, 99}};",
        bytes.len(),
        bytes.join(", ")
    );
    let body = ".local .align 8 .b8 list[40]; st.local.v2.b32 [list], {%r9, 7}; cvt.rn.f64.u32 %rd1, %r9; st.local.f64 [list+8], %rd1;
        mov.b64 %rd2, name; st.local.b64 [list+16], %rd2; st.local.b32 [list+24], 120;
        mov.b64 %rd3, list; cvta.local.u64 %rd3, %rd3; mov.b64 %rd4, format;
        { .param .b64 f; st.param.b64 [f], %rd4; .param .b64 a; st.param.b64 [a], %rd3; .param .b32 r;
          call.uni (r), vprintf, (f, a); ld.param.b32 %r0, [r]; } st.global.b32 [%rd8], %r0;";
    let module = Module::parse(&kernel(&declarations, body)).unwrap();
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(8).unwrap();
    let shape = LaunchShape { block: [2, 1, 1], ..LaunchShape::default() };
    module.launch(&device, "k", shape, &[&out.to_le_bytes()]).unwrap();
    assert_eq!(device.take_printed(), "lane 0 of     7|0.00  |abc|x%\nlane 1 of     7|1.00  |abc|x%\n");
    assert_eq!(device.take_printed(), "");
    let mut counts = [0; 8];
    device.read(out, &mut counts).unwrap();
    assert_eq!(counts, [5, 0, 0, 0, 5, 0, 0, 0]);
}

#[test]
fn a_failed_assertion_says_which() {
    let declarations =
        ".extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
        .global .align 1 .b8 what[6] = {120, 32, 62, 32, 48, 0}; .global .align 1 .b8 file[5] = {97, 46, 99, 117, 0};";
    let body = "setp.ne.u32 %p1, %r9, 3; @%p1 bra DONE; mov.b64 %rd1, what; mov.b64 %rd2, file;
        { .param .b64 a; st.param.b64 [a], %rd1; .param .b64 b; st.param.b64 [b], %rd2; .param .b32 c; st.param.b32 [c], 17;
          .param .b64 d; st.param.b64 [d], %rd2; .param .b64 e; st.param.b64 [e], 1; call.uni __assertfail, (a, b, c, d, e); }
        DONE:";
    let error = launch(&kernel(declarations, body), 8, 0, 8).unwrap_err();
    assert!(error.to_string().contains("lane 3"), "{error}");
    assert!(error.to_string().contains("assertion `x > 0` failed in `a.cu`, a.cu:17"), "{error}");
}
