//! `wgmma`: what it computes, and what is wrong around it.

use layout::descriptor::{Major, Operand};
use layout::{Dtype, Swizzle};
use ptx_emulator::{Error, Result};

use crate::{kernel, launch};

const SHARED: &str = ".extern .shared .align 1024 .b8 dynamic[];";

/// One warpgroup fills A, 64x16, and B, 16x8, with ones, multiplies them and stores the first register of D.
const PRODUCT: &str = "
    shl.b32 %r1, %r9, 4; mov.b32 %r2, 0x3c003c00; add.u32 %r1, %r1, dynamic;
    st.shared.v4.b32 [%r1], {%r2, %r2, %r2, %r2};
    setp.lt.u32 %p1, %r9, 16; @%p1 st.shared.v4.b32 [%r1+2048], {%r2, %r2, %r2, %r2};
    fence.proxy.async.shared::cta; bar.sync 0;
    mov.b64 %rd1, A; mov.b64 %rd2, B;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r10, %r11, %r12, %r13}, %rd1, %rd2, %p7, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    BEFORE
    wgmma.wait_group.sync.aligned 0;
    st.global.b32 [%rd8], %r10;";

/// The kernel with the descriptors in their places.
fn ptx(body: &str) -> String {
    let operand = |rows| Operand::new(Dtype::F16, Major::K, Swizzle::None, rows);
    let a = operand(64).descriptor(0).as_raw().to_string();
    let b = operand(8).descriptor(2048).as_raw().to_string();
    kernel(SHARED, &body.replace("A;", &format!("{a};")).replace("B;", &format!("{b};")).replace("BEFORE", ""))
}

fn run(body: &str, threads: u32) -> Result<Vec<u32>> {
    launch(&ptx(body), threads, 4096, threads as usize)
}

/// What is wrong with the product if `from` stands as `to` in it.
fn problem(from: &str, to: &str) -> String {
    assert!(PRODUCT.contains(from), "{from}");
    match run(&PRODUCT.replace(from, to), 128) {
        Err(Error::Fault { problem, .. }) => problem,
        other => panic!("{to}: {other:?}"),
    }
}

#[test]
fn a_product_of_ones_is_k() {
    assert_eq!(run(PRODUCT, 128).unwrap(), [16f32.to_bits(); 128]);
    let minus = PRODUCT.replace("%p7, 1, 1,", "%p7, -1, 1,");
    assert_eq!(run(&minus, 128).unwrap(), [(-16f32).to_bits(); 128]);
    let added = PRODUCT
        .replace("wgmma.fence", "setp.eq.u32 %p7, 0, 0; mov.b32 %r10, 0x40000000; wgmma.fence")
        .replace("%p7, 1, 1,", "%p7, -1, -1,");
    assert_eq!(run(&added, 128).unwrap(), [18f32.to_bits(); 128]);
}

#[test]
fn products_in_a_row_add_up_without_a_wait() {
    let again = "setp.eq.u32 %p7, 0, 0;
        wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r10, %r11, %r12, %r13}, %rd1, %rd2, %p7, 1, 1, 0, 0;
        wgmma.commit_group.sync.aligned;";
    assert_eq!(run(&PRODUCT.replace("BEFORE", again), 128).unwrap(), [32f32.to_bits(); 128]);
}

#[test]
fn accumulators_are_not_used_before_the_wait() {
    let read = problem("BEFORE", "add.f32 %r20, %r11, %r11;");
    assert!(read.contains("reads an accumulator of the wgmma in PTX line 22, which no wgmma.wait_group"), "{read}");
    let written = problem("BEFORE", "mov.b32 %r12, 0;");
    assert!(written.contains("overwrites an accumulator"), "{written}");
    assert!(problem("wgmma.wait_group.sync.aligned 0;", "").contains("reads an accumulator"));
    assert!(problem("wait_group.sync.aligned 0;", "wait_group.sync.aligned 1;").contains("reads an accumulator"));
    // A move makes another name of it.
    let moved = problem("BEFORE", "mov.b32 %r20, %r10; add.f32 %r21, %r20, %r20;");
    assert!(moved.contains("reads an accumulator"), "{moved}");
    let named = PRODUCT.replace("BEFORE", "mov.b32 %r20, %r10;").replace("%rd8], %r10", "%rd8], %r20");
    assert_eq!(run(&named, 128).unwrap(), [16f32.to_bits(); 128]);
    let shape = problem(
        "BEFORE",
        "wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r10, %r11}, %rd1, %rd2, %p7, 1, 1, 0, 0;",
    );
    assert!(shape.contains("another shape"), "{shape}");
}

#[test]
fn factors_in_registers_are_not_written_before_the_wait() {
    let body = |before: &str| {
        PRODUCT
            .replace(
                "wgmma.fence",
                "mov.b32 %r20, %r2; mov.b32 %r21, %r2; mov.b32 %r22, %r2; mov.b32 %r23, %r2; wgmma.fence",
            )
            .replace("%rd1, %rd2, %p7, 1, 1, 0, 0", "{%r20, %r21, %r22, %r23}, %rd2, %p7, 1, 1, 0")
            .replace("BEFORE", before)
    };
    assert_eq!(run(&body("add.u32 %r24, %r20, 1;"), 128).unwrap(), [16f32.to_bits(); 128]);
    let error = run(&body("add.u32 %r20, %r20, 1;"), 128).unwrap_err().to_string();
    assert!(error.contains("overwrites a register that the wgmma in PTX line 22 reads"), "{error}");
}

#[test]
fn registers_are_fenced_before_the_first_product() {
    for (from, to) in [
        ("wgmma.fence.sync.aligned;", ""),
        ("wgmma.fence.sync.aligned;", "wgmma.fence.sync.aligned; mov.b32 %r11, 0;"),
        ("wgmma.fence.sync.aligned;", "setp.lt.u32 %p2, %r2, 9; @%p2 bra S; wgmma.fence.sync.aligned; S:"),
    ] {
        let problem = problem(from, to);
        assert!(problem.contains("no wgmma.fence"), "{to}: {problem}");
    }
    // Between two products of the same shape none is needed, after a use of the result one is.
    let second = |fence: &str| {
        format!(
            "{PRODUCT} {fence}
            wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%r10, %r11, %r12, %r13}}, %rd1, %rd2, %p7, 1, 1, 0, 0;
            wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
        )
    };
    assert!(run(&second("wgmma.fence.sync.aligned;"), 128).is_ok());
    assert!(run(&second(""), 128).unwrap_err().to_string().contains("no wgmma.fence"));
}

#[test]
fn tiles_are_written_before_a_proxy_fence_and_not_again_before_the_wait() {
    let unfenced = problem("fence.proxy.async.shared::cta;", "");
    assert!(unfenced.contains("no proxy fence is between them"), "{unfenced}");
    let unordered = problem("bar.sync 0;", "");
    assert!(unordered.contains("nothing wrote") || unordered.contains("race"), "{unordered}");
    let early = problem("BEFORE", "st.shared.b32 [%r1], 0;");
    assert!(early.contains("the first is asynchronous and not waited for"), "{early}");
    assert!(run(&format!("{PRODUCT} bar.sync 0; st.shared.b32 [%r1], 0;"), 128).is_ok());
    let unordered = run(&format!("{PRODUCT} st.shared.b32 [%r1+2048], 0;"), 128).unwrap_err().to_string();
    assert!(unordered.contains("race on shared memory"), "{unordered}");
}

#[test]
fn a_warpgroup_comes_to_its_products_together() {
    let warps = run(PRODUCT, 96).unwrap_err().to_string();
    assert!(warps.contains("no warpgroup"), "{warps}");
    let skipped = PRODUCT.replace("mov.b64 %rd1", "setp.ge.u32 %p3, %r9, 96; @%p3 bra END; mov.b64 %rd1") + " END:";
    let skipped = run(&skipped, 128).unwrap_err().to_string();
    assert!(skipped.contains("warp 0, PTX line 22") && skipped.contains("did not execute it"), "{skipped}");
    let other = PRODUCT.replace("wgmma.fence", "setp.ge.u32 %p3, %r9, 96; @%p3 sub.u64 %rd2, %rd2, 64; wgmma.fence");
    let other = run(&other, 128).unwrap_err().to_string();
    assert!(other.contains("different descriptors"), "{other}");
    let lanes = PRODUCT.replace("wgmma.fence", "setp.eq.u32 %p3, %r9, 40; @%p3 add.u64 %rd2, %rd2, 8; wgmma.fence");
    let lanes = run(&lanes, 128).unwrap_err().to_string();
    assert!(lanes.contains("warp 1, lane 8"), "{lanes}");
}

#[test]
fn tiles_outside_of_shared_memory_are_out_of_bounds() {
    let body = PRODUCT.replace("wgmma.fence", "add.u64 %rd2, %rd2, 256; wgmma.fence");
    let error = run(&body, 128).unwrap_err().to_string();
    assert!(error.contains("out of bounds"), "{error}");
}
