//! Barriers of blocks, and `mbarrier`.

use ptx_emulator::Error;

use crate::{fault, kernel, launch};

const SHARED: &str = ".extern .shared .align 16 .b8 dynamic[];";

/// Each thread writes its index and reads that of the thread 32 further.
const EXCHANGE: &str = "mov.b32 %r1, dynamic; shl.b32 %r2, %r9, 2; add.u32 %r3, %r1, %r2; st.shared.b32 [%r3], %r9;
    xor.b32 %r4, %r2, 128; add.u32 %r4, %r4, %r1;";

#[test]
fn a_barrier_orders_the_warps_of_a_block() {
    let body = format!("{EXCHANGE} bar.sync 0; ld.shared.b32 %r5, [%r4]; st.global.b32 [%rd8], %r5;");
    let expected: Vec<u32> = (0..64).map(|thread| thread ^ 32).collect();
    assert_eq!(launch(&kernel(SHARED, &body), 64, 256, 64).unwrap(), expected);
    let error = fault(&body.replace("bar.sync 0;", ""));
    assert!(matches!(&error, Error::Fault { problem, .. } if problem.contains("nothing wrote")), "{error}");
    // A second round overwrites what the first one still reads.
    let error = fault(&format!("{body} st.shared.b32 [%r3], %r5;"));
    assert!(matches!(&error, Error::Fault { problem, .. } if problem.contains("race")), "{error}");
}

#[test]
fn a_named_barrier_of_some_warps_leaves_the_others_alone() {
    // Warp 0 arrives, warp 1 waits, warp 2 goes its way.
    let body = "mov.b32 %r1, dynamic; shr.u32 %r2, %r9, 5; setp.eq.b32 %p1, %r2, 0; setp.eq.b32 %p2, %r2, 1;
        @%p1 bra FIRST; @%p2 bra SECOND; bra END;
        FIRST: setp.eq.b32 %p3, %r9, 0; @%p3 st.shared.b32 [%r1], 77; bar.warp.sync -1; bar.arrive 3, 64; bra END;
        SECOND: bar.sync 3, 64; ld.shared.b32 %r5, [%r1]; st.global.b32 [%rd8], %r5;
        END:";
    let got = launch(&kernel(SHARED, body), 96, 16, 96).unwrap();
    assert_eq!(got[32..64], [77; 32]);
    assert_eq!(got[..32], [u32::MAX; 32]);
}

#[test]
fn phases_of_an_mbarrier_alternate() {
    let body = format!(
        "setp.ne.b32 %p1, %r9, 0; @%p1 bra READY; mov.b32 %r1, dynamic; mbarrier.init.shared.b64 [%r1+512], 64;
        READY: bar.sync 0; {EXCHANGE}
        mbarrier.arrive.shared.b64 _, [dynamic+512];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [dynamic+512], 0; @!%p2 bra W;
        ld.shared.b32 %r5, [%r4];
        mbarrier.arrive.shared.b64 %rd1, [%r1+512];
        V: mbarrier.test_wait.shared.b64 %p2, [%r1+512], %rd1; @!%p2 bra V;
        st.shared.b32 [%r3], 5; st.global.b32 [%rd8], %r5;"
    );
    let expected: Vec<u32> = (0..64).map(|thread| thread ^ 32).collect();
    assert_eq!(launch(&kernel(SHARED, &body), 64, 1024, 64).unwrap(), expected);
}

#[test]
fn an_mbarrier_waits_for_the_bytes_that_it_expects() {
    let one = |body: &str| {
        let body = format!(
            "setp.ne.b32 %p1, %r9, 0; @%p1 ret; mov.b32 %r1, dynamic; mbarrier.init.shared.b64 [%r1], 1; {body}"
        );
        launch(&kernel(SHARED, &body), 64, 1024, 64)
    };
    let wait = "W: mbarrier.try_wait.parity.shared.b64 %p2, [%r1], 0; @!%p2 bra W;";
    assert!(one(&format!("mbarrier.arrive.shared.b64 _, [%r1]; {wait}")).is_ok());
    let missing = one(&format!("mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 64; {wait}"));
    assert!(matches!(missing, Err(Error::Deadlock { .. })), "{missing:?}");
    let twice = one("mbarrier.arrive.shared.b64 _, [%r1], 2;");
    assert!(matches!(&twice, Err(Error::Fault { problem, .. }) if problem.contains("2 arrivals")), "{twice:?}");
}

#[test]
fn warps_that_take_turns_for_long_are_no_deadlock() {
    let body = "mov.b32 %r1, dynamic; setp.ne.b32 %p1, %r9, 0; @%p1 bra READY;
        mbarrier.init.shared.b64 [%r1], 32; mbarrier.init.shared.b64 [%r1+8], 32;
        READY: bar.sync 0; mov.b32 %r2, 0; setp.ge.u32 %p1, %r9, 32; @%p1 bra SECOND;
        FIRST: and.b32 %r3, %r2, 1; mbarrier.arrive.shared.b64 _, [%r1];
        V: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1+8], %r3; @!%p2 bra V;
        add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 11000; @%p2 bra FIRST; bra END;
        SECOND: and.b32 %r3, %r2, 1;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r1], %r3; @!%p2 bra W;
        mbarrier.arrive.shared.b64 _, [%r1+8];
        add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 11000; @%p2 bra SECOND; END:";
    let done = launch(&kernel(SHARED, body), 64, 1024, 64);
    assert!(done.is_ok(), "{done:?}");
}

#[test]
fn warps_that_wait_for_nobody_are_a_deadlock_that_says_where() {
    let error = fault("setp.lt.u32 %p1, %r9, 32; @%p1 bra END; bar.sync 1, 64; END:");
    let Error::Deadlock { waits, .. } = &error else { panic!("{error}") };
    assert!(waits.starts_with("warp 1 (lanes 0xffffffff) waits at barrier 1, PTX line"), "{waits}");
}

#[test]
fn a_barrier_in_one_side_of_a_branch_is_found() {
    let error = fault("and.b32 %r1, %r9, 1; setp.eq.b32 %p1, %r1, 0; @%p1 bra END; bar.sync 0; END: bar.sync 0;");
    let Error::Deadlock { waits, .. } = &error else { panic!("{error}") };
    assert!(waits.contains("lanes 0xaaaaaaaa) waits for lanes of its warp"), "{waits}");
    let error = fault("and.b32 %r1, %r9, 1; setp.eq.b32 %p1, %r1, 0; @%p1 bar.sync 0;");
    assert!(matches!(&error, Error::Fault { problem, .. } if problem.contains("excludes the lanes")), "{error}");
}

#[test]
fn barriers_of_different_counts_do_not_mix() {
    let error = fault("setp.lt.u32 %p1, %r9, 32; @%p1 bra A; bar.sync 1, 64; bra END; A: bar.sync 1; END:");
    assert!(matches!(&error, Error::Fault { problem, .. } if problem.contains("barrier 1 is of")), "{error}");
    let error = fault("bar.sync 16;");
    assert!(matches!(&error, Error::Fault { problem, .. } if problem.contains("no barrier 16")), "{error}");
}
