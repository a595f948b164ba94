//! Lanes that spin until others do something: those must go on, and where nobody does it there is an end.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

use crate::{kernel, launch};

/// A lock of one word, which lanes take one by one to add their number to the word behind it.
const CRITICAL: &str = "fence.acq_rel.gpu; ld.relaxed.gpu.global.b32 %r2, [%rd9+4]; add.u32 %r2, %r2, %r9;
    st.relaxed.gpu.global.b32 [%rd9+4], %r2; fence.acq_rel.gpu; atom.global.exch.b32 %r3, [%rd9], 0;";

/// Launches blocks of so many threads on two words that are zero, and returns them.
fn locked(body: &str, grid: u32, threads: u32) -> Result<[u32; 2], Error> {
    let module = Module::parse(&kernel("", body))?;
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(8)?;
    device.write(out, &[0; 8])?;
    let shape = LaunchShape { grid: [grid, 1, 1], block: [threads, 1, 1], ..LaunchShape::default() };
    module.launch(&device, "k", shape, &[&out.to_le_bytes()])?;
    let mut bytes = [0; 8];
    device.read(out, &mut bytes)?;
    Ok([0, 4].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())))
}

#[test]
fn lanes_of_a_warp_take_a_lock_one_by_one() {
    // `while (atomicCAS(lock, 0, 1) != 0) ;`: the winner waits behind the loop, where all lanes would meet.
    let spin = "SPIN: atom.global.cas.b32 %r1, [%rd9], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;";
    // `while (!done) if (atomicCAS(..) == 0) { ..; done = true; }`: it goes round inside of the loop.
    let round = "AGAIN: atom.global.cas.b32 %r1, [%rd9], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra NEXT;";
    let next = "setp.eq.b32 %p2, %r1, %r1; NEXT: @%p1 bra AGAIN;";
    for body in [format!("{spin} {CRITICAL}"), format!("{round} {CRITICAL} {next}")] {
        for (grid, threads) in [(1, 2), (1, 32), (1, 70), (3, 40)] {
            let sum = grid * (threads * (threads - 1) / 2);
            let found = locked(&body, grid, threads).unwrap_or_else(|error| panic!("{body}: {error}"));
            assert_eq!(found, [0, sum], "{grid} blocks of {threads} threads: {body}");
        }
    }
}

#[test]
fn a_lane_waits_for_a_flag_that_a_lane_of_its_warp_sets_behind_the_loop() {
    // Lane 0 leaves the loop at once; the others wait for what it stores behind it.
    let shared = ".shared .align 4 .b8 flag[4];";
    let body = "setp.eq.u32 %p1, %r9, 0; @%p1 st.volatile.shared.b32 [flag], 0; bar.sync 0;
        WAIT: @%p1 bra GO; ld.volatile.shared.b32 %r1, [flag]; setp.eq.b32 %p2, %r1, 0; @%p2 bra WAIT;
        GO: @%p1 st.volatile.shared.b32 [flag], 5; bar.sync 0;
        ld.volatile.shared.b32 %r0, [flag]; st.global.b32 [%rd8], %r0;";
    assert_eq!(launch(&kernel(shared, body), 64, 0, 64).unwrap(), [5; 64]);
}

#[test]
fn lanes_that_went_on_alone_meet_the_others_again() {
    let spin = "SPIN: atom.global.cas.b32 %r1, [%rd9], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;
        atom.global.exch.b32 %r3, [%rd9], 0; bar.warp.sync -1; activemask.b32 %r4; setp.ne.b32 %p3, %r4, -1; @%p3 trap;";
    assert_eq!(locked(spin, 1, 32).unwrap(), [0, 0]);
}

#[test]
fn a_lock_that_nobody_frees_is_an_error_on_a_device_without_a_limit_of_its_own() {
    for (body, grid, threads) in [
        ("SPIN: atom.global.cas.b32 %r1, [%rd9], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;", 1, 32),
        ("SPIN: atom.global.cas.b32 %r1, [%rd9], 0, 1; setp.ne.b32 %p1, %r1, 0; @%p1 bra SPIN;", 2, 1),
        (
            "SPIN: ld.volatile.global.b32 %r1, [%rd9]; setp.eq.b32 %p1, %r1, 0; @%p1 nanosleep.u32 20; @%p1 bra SPIN;",
            1,
            64,
        ),
        ("SPIN: ld.acquire.gpu.global.b32 %r1, [%rd9]; setp.eq.b32 %p1, %r1, 0; @%p1 bra SPIN;", 4, 33),
    ] {
        let error = locked(body, grid, threads).expect_err(body);
        let Error::NoProgress { turns, at, .. } = &error else { panic!("{body}: {error}") };
        assert!(*turns >= 100 && at.contains("PTX line"), "{error}");
    }
}
