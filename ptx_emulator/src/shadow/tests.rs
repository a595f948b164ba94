use super::*;

const WRITE: AccessKind = AccessKind::Write;
const READ: AccessKind = AccessKind::Read;

/// A CTA of two warps.
fn shadow() -> CtaShadow {
    CtaShadow::new(4096, 64)
}

fn by(warp: u32, lane: u32, kind: AccessKind) -> Access {
    Access::new(Threads::lane(warp, lane), kind, warp * 100 + lane)
}

fn by_proxy(access: Access) -> Access {
    Access { proxy: Proxy::Async, ..access }
}

fn cause(result: Result<(), Box<Race>>) -> Option<RaceCause> {
    result.err().map(|race| race.cause)
}

const BOTH: [Threads; 2] = [Threads { warp: 0, lanes: u32::MAX }, Threads { warp: 1, lanes: u32::MAX }];

#[test]
fn only_two_reads_or_two_atomics_may_be_unordered() {
    let kinds = [READ, WRITE, AccessKind::Atomic];
    for first in kinds {
        for second in kinds {
            let mut shadow = shadow();
            shadow.access(&by(0, 0, first), 8, 4).unwrap();
            let race = cause(shadow.access(&by(1, 3, second), 8, 4));
            let allowed = first == second && first != WRITE;
            assert_eq!(race, (!allowed).then_some(RaceCause::Unordered), "{first:?} then {second:?}");
        }
    }
}

#[test]
fn a_race_names_both_sides_and_the_first_common_byte() {
    let mut shadow = shadow();
    shadow.access(&by(0, 7, WRITE), 10, 2).unwrap();
    let race = shadow.access(&by(1, 3, READ), 0, 16).unwrap_err();
    let earlier = Party { thread: Some((0, 7)), kind: WRITE, proxy: Proxy::Generic, line: 7 };
    let later = Party { thread: Some((1, 3)), kind: READ, proxy: Proxy::Generic, line: 103 };
    assert_eq!(*race, Race { space: Space::Shared, address: 10, earlier, later, cause: RaceCause::Unordered });
    let text = "race on shared memory at 0xa: write by warp 0, lane 7 in PTX line 7, read by warp 1, lane 3 in PTX line \
                103: no synchronisation orders them";
    assert_eq!(race.to_string(), text);
}

#[test]
fn the_lane_of_a_joint_record_that_is_not_ordered_is_named() {
    let mut shadow = shadow();
    let all = Access::new(Threads::warp(0), READ, 1);
    shadow.access(&all, 0, 4).unwrap();
    shadow.barrier(&[Threads { warp: 0, lanes: 0x3ff }, Threads::lane(1, 0)]);
    let race = shadow.access(&by(1, 0, WRITE), 0, 4).unwrap_err();
    assert_eq!(race.earlier.thread, Some((0, 10)));
}

#[test]
fn a_write_to_global_memory_races_with_reads_however_many() {
    for reads in [1, 3, 255, 256, 257, 1000] {
        let mut shadow = shadow();
        for read in 0..reads {
            shadow.access_global(&by(0, 9, READ), 1024 + 4 * (read % 256), 4).unwrap();
        }
        let race = shadow.access_global(&by(1, 3, WRITE), 1024, 16).unwrap_err();
        assert_eq!((race.earlier.thread, race.address), (Some((0, 9)), 1024), "{reads} reads");
        // Another generation has nothing of it, and a barrier orders what comes after.
        shadow.restart();
        shadow.access_global(&by(0, 9, READ), 1024, 4).unwrap();
        shadow.barrier(&BOTH);
        shadow.access_global(&by(1, 3, WRITE), 1024, 16).unwrap();
        assert!(shadow.access_global(&by(0, 9, READ), 1024, 4).is_err());
    }
}

#[test]
fn a_thread_does_not_race_with_itself() {
    let mut shadow = shadow();
    for kind in [WRITE, READ, AccessKind::Atomic, WRITE] {
        shadow.access(&by(1, 31, kind), 100, 16).unwrap();
    }
}

#[test]
fn bytes_of_one_word_are_told_apart() {
    let mut shadow = shadow();
    for lane in 0..4 {
        shadow.access(&by(0, lane, WRITE), 64 + lane, 1).unwrap();
    }
    shadow.access(&by(0, 2, WRITE), 66, 1).unwrap();
    assert!(shadow.access(&by(0, 2, READ), 67, 1).is_err());
}

#[test]
fn a_barrier_orders_its_participants_only() {
    let mut shadow = CtaShadow::new(64, 96);
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    shadow.barrier(&BOTH);
    shadow.access(&by(1, 9, READ), 0, 4).unwrap();
    assert!(shadow.access(&by(2, 0, READ), 0, 4).is_err());
    // What is done after the barrier needs the next one.
    shadow.access(&by(0, 0, WRITE), 4, 4).unwrap();
    assert!(shadow.access(&by(1, 0, READ), 4, 4).is_err());
}

#[test]
fn a_write_needs_all_readers_to_be_done() {
    let mut shadow = shadow();
    for warp in 0..2 {
        for lane in 0..32 {
            shadow.access(&by(warp, lane, READ), 0, 4).unwrap();
        }
    }
    shadow.barrier(&[Threads::warp(0)]);
    let race = shadow.clone().access(&by(0, 0, WRITE), 0, 4).unwrap_err();
    assert_eq!(race.earlier.thread, Some((1, 0)));
    shadow.barrier(&BOTH);
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
}

#[test]
fn a_warp_barrier_orders_the_lanes_of_its_mask() {
    let mut shadow = shadow();
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    assert!(shadow.clone().access(&by(0, 1, READ), 0, 4).is_err());
    shadow.barrier(&[Threads { warp: 0, lanes: 0b11 }]);
    shadow.access(&by(0, 1, READ), 0, 4).unwrap();
    assert!(shadow.access(&by(0, 2, READ), 0, 4).is_err());
}

#[test]
fn order_is_passed_on() {
    // Lane 0 of warp 0 tells its warp, its lane 5 tells warp 1.
    let mut shadow = shadow();
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    shadow.barrier(&[Threads::warp(0)]);
    let mut point = shadow.sync_point();
    shadow.release(Threads::lane(0, 5), &mut point);
    shadow.acquire(Threads::warp(1), &point);
    shadow.access(&by(1, 17, WRITE), 0, 4).unwrap();
}

#[test]
fn a_release_covers_what_comes_before_it_by_its_threads() {
    let mut shadow = shadow();
    let mut point = shadow.sync_point();
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    shadow.access(&by(0, 1, WRITE), 4, 4).unwrap();
    shadow.release(Threads::lane(0, 0), &mut point);
    shadow.access(&by(0, 0, WRITE), 8, 4).unwrap();
    shadow.acquire(Threads::lane(1, 0), &point);
    shadow.access(&by(1, 0, READ), 0, 4).unwrap();
    assert!(shadow.access(&by(1, 0, READ), 4, 4).is_err(), "lane 1 did not release");
    assert!(shadow.access(&by(1, 0, READ), 8, 4).is_err(), "after the release");
    assert!(shadow.access(&by(1, 1, WRITE), 0, 4).is_err(), "lane 1 did not acquire");
}

#[test]
fn points_merge_and_clear() {
    let mut shadow = shadow();
    let (mut point, mut other) = (shadow.sync_point(), shadow.sync_point());
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    shadow.release(Threads::lane(0, 0), &mut other);
    point.merge(&other);
    other.clear();
    shadow.acquire(Threads::lane(1, 1), &other);
    assert!(shadow.clone().access(&by(1, 1, READ), 0, 4).is_err());
    shadow.acquire(Threads::lane(1, 1), &point);
    shadow.access(&by(1, 1, READ), 0, 4).unwrap();
}

#[test]
fn a_collective_access_is_one() {
    let mut shadow = shadow();
    let matrix = Access::collective(Threads::warp(0), READ, 1);
    // All lanes must be ordered after the write.
    shadow.access(&by(0, 3, WRITE), 0, 4).unwrap();
    assert!(shadow.clone().access(&matrix, 0, 16).is_err());
    shadow.barrier(&[Threads::warp(0)]);
    shadow.access(&matrix, 0, 16).unwrap();
    // One lane orders it before what follows.
    let mut point = shadow.sync_point();
    shadow.release(Threads::lane(0, 9), &mut point);
    assert!(shadow.clone().access(&by(1, 0, WRITE), 0, 16).is_err());
    shadow.acquire(Threads::lane(1, 0), &point);
    shadow.access(&by(1, 0, WRITE), 0, 16).unwrap();
}

#[test]
fn records_of_a_word_stay_few() {
    let mut shadow = shadow();
    for round in 0..100 {
        for warp in 0..2 {
            for lane in 0..32 {
                let access = Access::new(Threads::lane(warp, lane), READ, 1);
                shadow.access(&access, 0, 4).unwrap();
            }
            shadow.access(&Access::collective(Threads::warp(warp), READ, 2), 0, 4).unwrap();
        }
        shadow.barrier(&BOTH);
        let records = shadow.shared[0].of(shadow.generation).len();
        assert!(records <= 8, "{records} records after round {round}");
    }
}

#[test]
fn a_copy_is_pending_until_its_thread_waits() {
    let mut shadow = shadow();
    let mut groups = CopyGroups::new(64);
    groups.copy(&mut shadow, (0, 0), 1, (0, 16)).unwrap();
    groups.commit(Threads::warp(0));
    shadow.barrier(&BOTH);
    for kind in [READ, WRITE] {
        assert_eq!(cause(shadow.clone().access(&by(0, 0, kind), 12, 4)), Some(RaceCause::Pending));
        assert_eq!(cause(shadow.clone().access(&by(1, 0, kind), 12, 4)), Some(RaceCause::Pending));
    }
    groups.wait(&mut shadow, Threads::warp(0), 0);
    shadow.access(&by(0, 0, READ), 12, 4).unwrap();
    assert_eq!(cause(shadow.clone().access(&by(0, 1, READ), 12, 4)), Some(RaceCause::Unordered));
    shadow.barrier(&BOTH);
    shadow.access(&by(1, 0, READ), 12, 4).unwrap();
}

#[test]
fn a_wait_leaves_the_newest_groups_pending() {
    let mut shadow = shadow();
    let mut groups = CopyGroups::new(64);
    let thread = Threads::lane(1, 2);
    for group in 0..3 {
        groups.copy(&mut shadow, (1, 2), 1, (group * 64, 16)).unwrap();
        groups.commit(thread);
    }
    // An empty group counts as one.
    groups.commit(thread);
    groups.wait(&mut shadow, thread, 2);
    let read = by(1, 2, READ);
    assert_eq!([0, 64, 128].map(|at| shadow.access(&read, at, 4).is_ok()), [true, true, false]);
    groups.copy(&mut shadow, (1, 2), 1, (256, 4)).unwrap();
    groups.wait(&mut shadow, thread, 0);
    assert!(shadow.access(&read, 128, 4).is_ok());
    assert!(shadow.access(&read, 256, 4).is_err(), "not committed");
    groups.wait_all(&mut shadow, thread);
    assert!(shadow.access(&read, 256, 4).is_ok());
}

#[test]
fn a_copy_must_not_overtake_the_readers_of_its_stage() {
    let mut shadow = shadow();
    let mut groups = CopyGroups::new(64);
    shadow.access(&Access::collective(Threads::warp(1), READ, 5), 0, 16).unwrap();
    let race = groups.clone().copy(&mut shadow.clone(), (0, 0), 9, (0, 16)).unwrap_err();
    assert_eq!((race.earlier.line, race.later.line, race.cause), (5, 9, RaceCause::Unordered));
    shadow.barrier(&BOTH);
    groups.copy(&mut shadow, (0, 0), 9, (0, 16)).unwrap();
}

#[test]
fn a_bulk_copy_is_ordered_by_its_point() {
    let mut shadow = shadow();
    let (mut full, mut other) = (shadow.sync_point(), shadow.sync_point());
    let producer = by_proxy(by(0, 0, WRITE));
    let [first, second] = [0, 128].map(|address| {
        let operation = shadow.start();
        shadow.access_pending(operation, &producer, address, 128).unwrap();
        operation
    });
    let read = by(1, 4, READ);
    assert_eq!(cause(shadow.access(&read, 0, 4)), Some(RaceCause::Pending));
    shadow.finish_into(first, 0, &mut full);
    shadow.finish_into(second, 1, &mut other);
    assert_eq!(cause(shadow.clone().access(&read, 0, 4)), Some(RaceCause::Unordered));
    let race = shadow.clone().access(&by(0, 0, READ), 0, 4).unwrap_err();
    assert_eq!(race.earlier.thread, None, "the issuing thread has to wait too");
    shadow.acquire(Threads::lane(1, 4), &full);
    shadow.access(&read, 0, 4).unwrap();
    assert_eq!(cause(shadow.access(&read, 128, 4)), Some(RaceCause::Unordered), "another barrier");
}

#[test]
fn an_asynchronous_read_is_pending_too() {
    let mut shadow = shadow();
    let operation = shadow.start();
    let read = by_proxy(Access::collective(Threads::warp(0), READ, 3));
    shadow.access_pending(operation, &read, 0, 64).unwrap();
    shadow.access(&by(1, 0, READ), 0, 4).unwrap();
    assert_eq!(cause(shadow.clone().access(&by(0, 0, WRITE), 60, 4)), Some(RaceCause::Pending));
    shadow.finish(operation, Threads::warp(0));
    shadow.access(&by(0, 0, WRITE), 60, 4).unwrap();
}

#[test]
fn a_generic_write_needs_a_fence_for_the_asynchronous_proxy() {
    for (writer_fences, reader_fences) in [(false, false), (true, false), (false, true)] {
        let mut shadow = shadow();
        shadow.access(&by(1, 6, WRITE), 0, 4).unwrap();
        if writer_fences {
            shadow.proxy_fence(Threads::warp(1));
        }
        shadow.barrier(&BOTH);
        if reader_fences {
            shadow.proxy_fence(Threads::lane(0, 0));
        }
        let result = cause(shadow.access(&by_proxy(by(0, 0, READ)), 0, 4));
        let expected = (!writer_fences && !reader_fences).then_some(RaceCause::ProxyFence);
        assert_eq!(result, expected, "fence of the writer {writer_fences}, of the reader {reader_fences}");
    }
    // A write after the fence is not covered by it, and one's own write needs it as well.
    let mut shadow = shadow();
    shadow.proxy_fence(Threads::lane(0, 0));
    shadow.access(&by(0, 0, WRITE), 0, 4).unwrap();
    assert_eq!(cause(shadow.access(&by_proxy(by(0, 0, READ)), 0, 4)), Some(RaceCause::ProxyFence));
}

#[test]
fn lanes_that_are_not_there_take_part_in_barriers() {
    let mut shadow = CtaShadow::new(64, 48);
    shadow.access(&by(1, 15, WRITE), 0, 4).unwrap();
    shadow.barrier(&BOTH);
    shadow.access(&Access::collective(Threads::warp(0), READ, 1), 0, 4).unwrap();
}

/// The same by definition: every access of every thread is kept, and each thread has a clock of all threads.
struct ByDefinition {
    /// `known[t][u]` accesses of thread `u` come before what thread `t` does next.
    known: Vec<Vec<usize>>,
    counts: Vec<usize>,
    accesses: Vec<Kept>,
}

struct Kept {
    /// Each thread, and how many accesses it made with this one.
    by: Vec<(usize, usize)>,
    collective: bool,
    kind: AccessKind,
    bytes: std::ops::Range<u32>,
}

impl ByDefinition {
    fn races(&mut self, access: &Access, address: u32, bytes: u32) -> bool {
        let threads: Vec<usize> = access.threads.each().collect();
        let race = self.accesses.iter().any(|old| {
            let overlaps = old.bytes.start < address + bytes && address < old.bytes.end;
            let ordered = |&thread: &usize| {
                let mut known =
                    old.by.iter().map(|&(other, count)| other == thread || self.known[thread][other] >= count);
                if old.collective { known.any(|known| known) } else { known.all(|known| known) }
            };
            overlaps && old.kind.conflicts(access.kind) && !threads.iter().all(ordered)
        });
        for &thread in &threads {
            self.counts[thread] += 1;
        }
        let by = threads.iter().map(|&thread| (thread, self.counts[thread])).collect();
        let bytes = address..address + bytes;
        self.accesses.push(Kept { by, collective: access.collective, kind: access.kind, bytes });
        race
    }

    fn release(&self, threads: Threads, point: &mut [usize]) {
        for thread in threads.each() {
            point.iter_mut().zip(&self.known[thread]).for_each(|(entry, &known)| *entry = known.max(*entry));
            point[thread] = self.counts[thread];
        }
    }

    fn acquire(&mut self, threads: Threads, point: &[usize]) {
        for thread in threads.each() {
            self.known[thread].iter_mut().zip(point).for_each(|(known, &entry)| *known = entry.max(*known));
        }
    }
}

/// Random programs of accesses, barriers, releases and acquires: the first race is found, and nothing before it.
#[test]
fn the_first_race_of_random_programs_is_found() {
    let mut seed = 7u64;
    let mut random = |below: u32| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((seed >> 33) % u64::from(below)) as u32
    };
    let mut steps_to_race = Vec::new();
    for _ in 0..6000 {
        let mut shadow = CtaShadow::new(64, 96);
        let mut reference = ByDefinition { known: vec![vec![0; 96]; 96], counts: vec![0; 96], accesses: Vec::new() };
        let mut points = [(shadow.sync_point(), vec![0; 96]), (shadow.sync_point(), vec![0; 96])];
        for step in 0..200 {
            let warp = random(3);
            // Few lanes, so that they meet; now and then all of them.
            let lanes = [1 << random(2), 0b11, u32::MAX][random(3) as usize];
            let threads = Threads { warp, lanes };
            let point = random(2) as usize;
            match random(11) {
                10 => {
                    // Lanes with bytes of their own, one behind another.
                    let lanes = [0b11, 0b1111, 0b101][random(3) as usize];
                    let access = Access::new(Threads { warp, lanes }, [READ, WRITE][random(2) as usize], step);
                    let each = 1 << random(3);
                    let address = random(16 / each + 1 - lanes.count_ones()) * each;
                    let mut expected = false;
                    for (at, lane) in bits(lanes).enumerate() {
                        let own = Access { threads: Threads::lane(warp, lane as u32), ..access };
                        expected |= reference.races(&own, address + each * at as u32, each);
                    }
                    assert_eq!(shadow.access_each(&access, address, each as u8).is_err(), expected, "step {step}");
                    if expected {
                        steps_to_race.push(step);
                        break;
                    }
                }
                0..4 => {
                    let kind = [READ, READ, READ, WRITE, AccessKind::Atomic][random(5) as usize];
                    let collective = random(2) == 0;
                    // Several lanes that write the same bytes in one instruction are for the caller to tell apart.
                    let lanes = if collective || kind == READ { lanes } else { 1 << random(2) };
                    let access = Access { collective, ..Access::new(Threads { warp, lanes }, kind, step) };
                    let bytes = 1 << random(4);
                    let address = random(16 / bytes) * bytes;
                    let expected = reference.races(&access, address, bytes);
                    assert_eq!(shadow.access(&access, address, bytes).is_err(), expected, "step {step}");
                    if expected {
                        steps_to_race.push(step);
                        break;
                    }
                }
                4..6 => {
                    shadow.release(threads, &mut points[point].0);
                    reference.release(threads, &mut points[point].1);
                }
                6..8 => {
                    shadow.acquire(threads, &points[point].0);
                    reference.acquire(threads, &points[point].1);
                }
                _ => {
                    let all = [Threads::warp(0), Threads::warp(1), Threads::warp(2)];
                    let participants = if random(2) == 0 { &all[..] } else { &[threads] };
                    shadow.barrier(participants);
                    let mut joined = vec![0; 96];
                    participants.iter().for_each(|&threads| reference.release(threads, &mut joined));
                    participants.iter().for_each(|&threads| reference.acquire(threads, &joined));
                }
            }
        }
    }
    let late = steps_to_race.iter().filter(|&&step| step > 30).count();
    assert!(late > 100, "{late} of {} programs race after much synchronisation", steps_to_race.len());
}
