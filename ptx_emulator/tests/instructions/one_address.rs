//! Lanes of one instruction that store to one address.

use crate::{fault, kernel, launch};

const DYNAMIC: &str = ".extern .shared .align 16 .b8 dynamic[];";

/// The words that a kernel of one warp stores, or why it is wrong.
fn run(body: &str) -> Result<Vec<u32>, String> {
    launch(&kernel(DYNAMIC, body), 32, 1024, 32).map_err(|error| error.to_string())
}

#[test]
fn lanes_that_store_one_value_are_no_race() {
    for body in [
        // All lanes; those of an address apart; a vector; by generic addresses; narrow parts of other registers.
        "st.global.b32 [%rd9], 7;",
        "and.b32 %r1, %r9, 3; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd9; st.global.b32 [%rd1], %r1;
        ld.global.b32 %r2, [%rd1]; setp.ne.u32 %p1, %r1, %r2; @%p1 trap;",
        "st.global.v2.b32 [%rd9], {5, 6};",
        "mov.b32 %r1, dynamic; st.shared.b32 [%r1], 9; ld.shared.b32 %r2, [%r1];",
        "mov.b64 %rd1, dynamic; cvta.shared.u64 %rd1, %rd1; st.b32 [%rd1], 9; ld.b32 %r2, [%rd1];",
        "shl.b32 %r1, %r9, 8; or.b32 %r1, %r1, 3; st.global.b8 [%rd9], %r1;",
        "mov.b32 %r1, dynamic; mapa.shared::cluster.u32 %r1, %r1, 0; st.shared::cluster.b32 [%r1], 9;",
        // Half of the lanes to shared memory, half to global.
        "mov.b64 %rd1, dynamic; cvta.shared.u64 %rd1, %rd1; setp.lt.u32 %p1, %r9, 16; selp.b64 %rd2, %rd1, %rd9, %p1;
        st.b32 [%rd2], 4; ld.b32 %r1, [%rd2];",
    ] {
        run(body).unwrap_or_else(|error| panic!("{body}: {error}"));
    }
    assert_eq!(run("st.global.b32 [%rd9], 7;").unwrap()[0], 7);
}

#[test]
fn which_of_different_values_stays_is_not_defined() {
    for (body, memory) in [
        ("st.global.b32 [%rd9], %r9;", "global memory"),
        ("mov.b32 %r1, dynamic; st.shared.b32 [%r1], %r9;", "shared memory at 0x0"),
        ("mov.b64 %rd1, dynamic; cvta.shared.u64 %rd1, %rd1; st.b32 [%rd1+16], %r9;", "shared memory at 0x10"),
        ("setp.eq.u32 %p1, %r9, 1; selp.b32 %r1, 8, 7, %p1; st.global.v2.b32 [%rd9], {5, %r1};", "global memory"),
    ] {
        let error = run(body).expect_err(body);
        let lanes = "lane 0 in PTX line";
        let cause = "one instruction stores different values, and which of them stays is not defined";
        assert!(error.contains(memory) && error.contains(lanes) && error.contains(cause), "{body}: {error}");
        assert!(error.contains("warp 0, lane 1, PTX line"), "{body}: {error}");
    }
}

#[test]
fn a_store_of_several_lanes_is_ordered_as_one_of_each() {
    // Other lanes, other warps and other instructions race with it as with any store.
    for body in [
        "setp.lt.u32 %p1, %r9, 2; @%p1 st.global.b32 [%rd9], 7; ld.global.b32 %r1, [%rd9];",
        "setp.eq.u32 %p1, %r9, 0; @%p1 st.global.b32 [%rd9], 6; st.global.b32 [%rd9], 7;",
        "st.global.b32 [%rd9], 7; setp.eq.u32 %p1, %r9, 0; @%p1 st.global.b32 [%rd9], 8; ld.global.b32 %r1, [%rd9];",
    ] {
        let error = run(body).expect_err(body);
        assert!(error.contains("no synchronisation orders them"), "{body}: {error}");
    }
    let two_warps = fault("st.global.b32 [%rd9], 7;").to_string();
    assert!(two_warps.contains("warp 0, lane 0") && two_warps.contains("warp 1, lane 0"), "{two_warps}");
    let ordered = "st.global.b32 [%rd9], 7; bar.warp.sync -1; setp.eq.u32 %p1, %r9, 5; @%p1 st.global.b32 [%rd9], 8;";
    run(ordered).unwrap();
}

#[test]
fn local_memory_has_one_address_for_all_lanes() {
    let body = ".local .align 4 .b8 own[4]; mov.b64 %rd1, own; cvta.local.u64 %rd1, %rd1;
        st.local.b32 [own], %r9; st.b32 [%rd1], %r9; ld.local.b32 %r0, [own]; st.global.b32 [%rd8], %r0;";
    assert_eq!(run(body).unwrap(), (0..32).collect::<Vec<u32>>());
}
