//! Tensor-core products and matrix moves; their fragment maps are tested with `tensor_core`.

use crate::{fault, kernel, launch, per_thread};

/// All products of a matrix of ones are k.
#[test]
fn products_of_ones_count_their_terms() {
    for (shape, one, k) in [
        ("m16n8k16.row.col.f32.f16.f16.f32", 0x3C00_3C00_u32, 16),
        ("m16n8k16.row.col.f32.bf16.bf16.f32", 0x3F80_3F80, 16),
        ("m16n8k8.row.col.f32.tf32.tf32.f32", 0x3F80_0000, 8),
        ("m16n8k32.row.col.f32.e4m3.e4m3.f32", 0x3838_3838, 32),
        ("m16n8k32.row.col.f32.e5m2.e5m2.f32", 0x3C3C_3C3C, 32),
    ] {
        let body = format!(
            "mov.b32 %r1, {one}; mov.f32 %r2, 0f3F800000;
            mma.sync.aligned.{shape} {{%r3, %r4, %r5, %r6}}, {{%r1, %r1, %r1, %r1}}, {{%r1, %r1}}, {{%r2, %r2, %r2, %r2}};
            add.f32 %r3, %r3, %r4; add.f32 %r5, %r5, %r6; add.f32 %r3, %r3, %r5; cvt.rzi.u32.f32 %r0, %r3;"
        );
        assert_eq!(per_thread(&body, 32), [4 * (k + 1); 32], "{shape}");
    }
}

#[test]
fn a_matrix_comes_back_as_it_was_stored() {
    let body = "mov.b32 %r1, dynamic; shl.b32 %r2, %r9, 4; add.u32 %r2, %r2, %r1; mul.lo.u32 %r3, %r9, 0x10003;
        stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%r2], {%r3, %r9};
        ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%r4, %r5}, [%r2];
        setp.eq.b32 %p1, %r4, %r3; setp.eq.and.b32 %p1, %r5, %r9, %p1; selp.b32 %r0, 1, 0, %p1; st.global.b32 [%rd8], %r0;";
    let body = body.replace("ldmatrix", "bar.warp.sync -1; ldmatrix");
    let ptx = kernel(".extern .shared .align 16 .b8 dynamic[];", &body);
    assert_eq!(launch(&ptx, 32, 512, 32).unwrap(), [1; 32]);
}

#[test]
fn a_matrix_that_its_lanes_did_not_wait_for_is_a_race() {
    let body = "mov.b32 %r1, dynamic; shl.b32 %r2, %r9, 4; and.b32 %r2, %r2, 511; add.u32 %r2, %r2, %r1;
        shr.u32 %r3, %r9, 5; setp.ne.b32 %p1, %r3, 0; @%p1 bra END;
        st.shared.v4.b32 [%r2], {%r9, %r9, %r9, %r9};
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r2]; END:";
    let error = fault(body).to_string();
    assert!(error.contains("race on shared memory"), "{error}");
}
