//! `cp.async` and its groups.

use ptx_emulator::Error;

use crate::{kernel, launch};

/// The thread copies the 16 bytes of the output to shared memory and back; `wait` is what it does in between.
fn copy(wait: &str) -> ptx_emulator::Result<Vec<u32>> {
    let body = format!(
        "st.global.v4.b32 [%rd9], {{1, 2, 3, 4}}; mov.b32 %r1, dynamic;
        cp.async.cg.shared.global [%r1], [%rd9], 16; cp.async.commit_group;
        cp.async.ca.shared.global [%r1+16], [%rd9], 8, 4; cp.async.commit_group; {wait}
        ld.shared.v4.b32 {{%r2, %r3, %r4, %r5}}, [%r1]; ld.shared.v2.b32 {{%r6, %r7}}, [%r1+16];
        st.global.v4.b32 [%rd9+16], {{%r2, %r3, %r4, %r5}}; st.global.v2.b32 [%rd9+32], {{%r6, %r7}};"
    );
    launch(&kernel(".extern .shared .align 16 .b8 dynamic[];", &body), 1, 32, 10)
}

#[test]
fn groups_arrive_when_they_are_waited_for() {
    for wait in ["cp.async.wait_group 0;", "cp.async.wait_all;"] {
        assert_eq!(copy(wait).unwrap()[4..], [1, 2, 3, 4, 1, 0], "{wait}");
    }
}

#[test]
fn a_missing_wait_is_found() {
    for wait in ["", "cp.async.wait_group 1;", "cp.async.wait_group 2;"] {
        let error = copy(wait).unwrap_err();
        assert!(matches!(error, Error::Fault { thread, .. } if thread.lane == Some(0)), "{wait}: {error}");
    }
}

#[test]
fn bytes_that_are_not_asked_for_are_not_read() {
    let body = "mov.b32 %r1, dynamic; mov.b64 %rd1, 16;
        cp.async.cg.shared.global [%r1], [%rd1], 16, 0; cp.async.wait_all;
        ld.shared.b32 %r2, [%r1+12]; st.global.b32 [%rd9], %r2;";
    assert_eq!(launch(&kernel(".extern .shared .align 16 .b8 dynamic[];", body), 1, 16, 1).unwrap(), [0]);
}
