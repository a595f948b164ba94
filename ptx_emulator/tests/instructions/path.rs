//! Lanes that part at branches and meet again.

use crate::{fault, per_thread};

#[test]
fn both_sides_of_a_branch_meet() {
    let body = "and.b32 %r1, %r9, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;
        mov.b32 %r2, 100; bra MEET;
        EVEN: mov.b32 %r2, 200;
        MEET: activemask.b32 %r3; setp.eq.b32 %p2, %r3, -1; selp.b32 %r4, 1, 0, %p2; add.u32 %r0, %r2, %r4;";
    let expected: Vec<u32> = (0..32).map(|lane| if lane % 2 == 0 { 201 } else { 101 }).collect();
    assert_eq!(per_thread(body, 32), expected);
}

#[test]
fn code_out_of_line_meets_before_what_follows_the_branch() {
    // The rare side stands behind the end of the common path, as compilers put it.
    let body = "setp.eq.u32 %p1, %r9, 5; mov.b32 %r2, 1; @%p1 bra RARE;
        BACK: activemask.b32 %r3; popc.b32 %r4, %r3; add.u32 %r0, %r2, %r4; bra END;
        RARE: mov.b32 %r2, 1000; bra BACK;
        END:";
    let expected: Vec<u32> = (0..32).map(|lane| if lane == 5 { 1032 } else { 33 }).collect();
    assert_eq!(per_thread(body, 32), expected);
}

#[test]
fn lanes_leave_a_loop_when_they_are_done() {
    let body = "mov.b32 %r0, 0; mov.b32 %r1, 0;
        LOOP: add.u32 %r0, %r0, %r1; add.u32 %r1, %r1, 1; setp.le.u32 %p1, %r1, %r9; @%p1 bra LOOP;
        activemask.b32 %r3; not.b32 %r3, %r3; or.b32 %r0, %r0, %r3;";
    assert_eq!(per_thread(body, 32), (0..32).map(|lane: u32| lane * (lane + 1) / 2).collect::<Vec<_>>());
}

#[test]
fn nested_branches_and_loops_meet() {
    let body = "mov.b32 %r0, 0; mov.b32 %r1, 0;
        OUTER: mov.b32 %r2, 0; and.b32 %r5, %r1, 1; setp.eq.b32 %p3, %r5, 0; @%p3 bra SKIP;
        INNER: add.u32 %r0, %r0, 1; add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, %r9; @%p1 bra INNER;
        SKIP: add.u32 %r1, %r1, 1; and.b32 %r4, %r9, 3; add.u32 %r4, %r4, 2; setp.lt.u32 %p2, %r1, %r4; @%p2 bra OUTER;
        activemask.b32 %r3; not.b32 %r3, %r3; or.b32 %r0, %r0, %r3;";
    let count = |lane: u32| ((lane % 4 + 2) / 2) * lane.max(1);
    assert_eq!(per_thread(body, 32), (0..32).map(count).collect::<Vec<_>>());
}

#[test]
fn lanes_that_exit_are_not_waited_for() {
    let body = "mov.b32 %r0, 7; st.global.b32 [%rd8], %r0; setp.lt.u32 %p1, %r9, 40; @%p1 ret;
        bar.sync 0; activemask.b32 %r0;";
    let mut expected = vec![7; 40];
    expected.extend([0xFFFF_FF00; 24]);
    assert_eq!(per_thread(body, 64), expected);
}

#[test]
fn lanes_on_two_paths_meet_in_a_warp_barrier() {
    // Each side waits for the other inside of its own path: the stack of a simple machine would not end.
    let body = "setp.lt.u32 %p1, %r9, 16; @%p1 bra LOW;
        mov.b32 %r0, 1; bar.warp.sync -1; add.u32 %r0, %r0, 10; bra MEET;
        LOW: mov.b32 %r0, 2; bar.warp.sync -1; add.u32 %r0, %r0, 20;
        MEET:";
    assert_eq!(per_thread(body, 32), (0..32).map(|lane| if lane < 16 { 22 } else { 11 }).collect::<Vec<_>>());
}

#[test]
fn lanes_of_a_part_of_the_warp_meet_in_a_warp_barrier() {
    let body = "mov.b32 %r0, 0; setp.ge.u32 %p1, %r9, 8; @%p1 bra MEET;
        setp.lt.u32 %p2, %r9, 4; @%p2 bra LOW;
        bar.warp.sync 255; mov.b32 %r0, 1; bra MEET;
        LOW: bar.warp.sync 255; mov.b32 %r0, 2;
        MEET:";
    let expected: Vec<u32> = (0..32).map(|lane| [2, 1, 0][(lane / 4).min(2)]).collect();
    assert_eq!(per_thread(body, 32), expected);
}

#[test]
fn scopes_hide_registers_and_labels() {
    let body = ".reg .b32 t; mov.b32 t, 1; mov.b32 %r0, 0;
        { .reg .b32 t; mov.b32 t, 10; setp.eq.u32 %p1, t, 10; @%p1 bra L; mov.b32 t, 99; L: add.u32 %r0, %r0, t; }
        { .reg .b32 t; mov.b32 t, 20; bra L; mov.b32 t, 99; L: add.u32 %r0, %r0, t; }
        add.u32 %r0, %r0, t;";
    assert_eq!(per_thread(body, 1), [31]);
}

#[test]
fn an_indexed_branch_takes_each_lane_to_its_target() {
    let body = "and.b32 %r1, %r9, 3; mov.b32 %r2, 0;
        LIST: .branchtargets A, B, C, B;
        brx.idx %r1, LIST;
        A: add.u32 %r2, %r2, 1; bra MEET;
        B: add.u32 %r2, %r2, 10;
        C: add.u32 %r2, %r2, 100;
        MEET: activemask.b32 %r3; not.b32 %r3, %r3; or.b32 %r0, %r2, %r3;";
    let expected: Vec<u32> = (0..32).map(|lane| [1, 110, 100, 110][lane % 4]).collect();
    assert_eq!(per_thread(body, 32), expected);
}

#[test]
fn an_index_beyond_the_targets_is_found() {
    let error = fault("LIST: .branchtargets A, A; brx.idx %r9, LIST; A:").to_string();
    assert!(error.contains("the lanes 0xfffffffc branch to none of the targets"), "{error}");
}
