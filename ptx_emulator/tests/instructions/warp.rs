//! Shuffles, votes, reductions, matches and elections.

use crate::per_thread;

#[test]
fn shuffles_move_values_within_segments() {
    let lanes = |body: &str| per_thread(&format!("mul.lo.u32 %r1, %r9, 3; {body}"), 32);
    let of = |source: fn(u32) -> u32| (0..32).map(|lane| 3 * source(lane)).collect::<Vec<u32>>();
    assert_eq!(lanes("shfl.sync.bfly.b32 %r0, %r1, 5, 31, -1;"), of(|lane| lane ^ 5));
    assert_eq!(lanes("shfl.sync.idx.b32 %r0, %r1, 9, 31, -1;"), of(|_| 9));
    assert_eq!(lanes("shfl.sync.up.b32 %r0, %r1, 2, 0, -1;"), of(|lane| if lane < 2 { lane } else { lane - 2 }));
    assert_eq!(lanes("shfl.sync.down.b32 %r0, %r1, 2, 31, -1;"), of(|lane| if lane > 29 { lane } else { lane + 2 }));
    // Segments of 8 lanes.
    assert_eq!(lanes("shfl.sync.idx.b32 %r0, %r1, 1, 0x181f, -1;"), of(|lane| lane / 8 * 8 + 1));
    let inside = lanes("shfl.sync.down.b32 %r2|%p1, %r1, 6, 0x181f, -1; selp.u32 %r0, 1, 0, %p1;");
    assert_eq!(inside, (0..32).map(|lane| u32::from(lane % 8 < 2)).collect::<Vec<_>>());
}

#[test]
fn votes_reductions_and_matches_are_of_the_named_lanes() {
    let body = "setp.lt.u32 %p1, %r9, 10; vote.sync.ballot.b32 %r0, %p1, -1;";
    assert_eq!(per_thread(body, 32), [0x3FF; 32]);
    let body = "setp.lt.u32 %p1, %r9, 10; vote.sync.uni.pred %p2, !%p1, -1; vote.sync.any.pred %p3, %p1, -1;
        selp.u32 %r1, 2, 0, %p2; selp.u32 %r0, 1, 0, %p3; or.b32 %r0, %r0, %r1;";
    assert_eq!(per_thread(body, 32), [1; 32]);
    assert_eq!(per_thread("redux.sync.add.u32 %r0, %r9, -1;", 32), [496; 32]);
    assert_eq!(per_thread("sub.s32 %r1, %r9, 5; redux.sync.min.s32 %r0, %r1, -1;", 32), [(-5i32) as u32; 32]);
    let matches = per_thread("and.b32 %r1, %r9, 1; match.any.sync.b32 %r0, %r1, -1;", 32);
    assert_eq!(matches, [0x5555_5555, 0xAAAA_AAAA].repeat(16));
    // Two halves of the warp, each with its own mask, in one instruction.
    let body = "setp.lt.u32 %p1, %r9, 16; selp.b32 %r1, 0xFFFF, 0xFFFF0000, %p1; redux.sync.max.u32 %r0, %r9, %r1;";
    assert_eq!(per_thread(body, 32), [vec![15; 16], vec![31; 16]].concat());
    let body = "elect.sync %r0|%p1, 0xFFFFFFF0; selp.u32 %r1, 100, 0, %p1; add.u32 %r0, %r0, %r1; ";
    let guarded = format!("mov.b32 %r0, 0; setp.lt.u32 %p2, %r9, 4; @%p2 bra END; {body} END:");
    let expected: Vec<u32> = (0..32).map(|lane| [0, 104, 4][usize::from(lane >= 4) + usize::from(lane > 4)]).collect();
    assert_eq!(per_thread(&guarded, 32), expected);
}
