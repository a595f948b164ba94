//! Clusters: their barrier, each other's shared memory, and the registers of a block.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module, Result};

use crate::kernel;

const SHARED: &str = ".extern .shared .align 16 .b8 dynamic[];";

/// Launches one cluster of `blocks` blocks of a warp, and returns a word of each block.
fn run(body: &str, blocks: u32) -> Result<Vec<u32>> {
    let body = format!("mov.u32 %r8, %cluster_ctarank; {body}");
    let module = Module::parse(&kernel(SHARED, &body))?;
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(4 * u64::from(blocks))?;
    device.write(out, &vec![0xFF; 4 * blocks as usize])?;
    let shape = LaunchShape { grid: [blocks, 1, 1], block: [32, 1, 1], cluster: [blocks, 1, 1], shared_bytes: 64 };
    module.launch(&device, "k", shape, &[&out.to_le_bytes()])?;
    let mut bytes = vec![0; 4 * blocks as usize];
    device.read(out, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

const SYNC: &str = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
/// Only the first lane goes on to `store`, which writes `%r5` for the block.
const STORE: &str = "setp.ne.u32 %p1, %r9, 0; @%p1 bra END; mul.wide.u32 %rd1, %r8, 4; add.s64 %rd1, %rd1, %rd9;
    st.global.b32 [%rd1], %r5; END:";

#[test]
fn blocks_read_each_others_shared_memory() {
    let body = |middle: &str, end: &str| {
        format!(
            "add.u32 %r1, %r8, 100; setp.eq.u32 %p2, %r9, 0; @%p2 st.shared.b32 [dynamic+8], %r1;
            {middle}
            add.u32 %r2, %r8, 1; rem.u32 %r2, %r2, 3; mov.b32 %r3, dynamic; add.u32 %r3, %r3, 8;
            mapa.shared::cluster.u32 %r4, %r3, %r2; ld.shared::cluster.b32 %r5, [%r4];
            getctarank.shared::cluster.u32 %r6, %r4; setp.ne.u32 %p3, %r6, %r2; @%p3 trap;
            mov.b64 %rd2, dynamic; cvta.shared.u64 %rd2, %rd2; mapa.u64 %rd3, %rd2, %r2; ld.b32 %r7, [%rd3+8];
            setp.ne.u32 %p3, %r5, %r7; @%p3 trap;
            {end} {STORE}"
        )
    };
    assert_eq!(run(&body(SYNC, SYNC), 3).unwrap(), [101, 102, 100]);
    let unordered = run(&body("", SYNC), 3).unwrap_err().to_string();
    assert!(unordered.contains("nothing wrote") || unordered.contains("race"), "{unordered}");
    let beyond = "mov.b32 %r3, dynamic; mapa.shared::cluster.u32 %r4, %r3, 3;";
    assert!(run(beyond, 3).unwrap_err().to_string().contains("rank 3 of a cluster of 3 blocks"));
    let outside = "mov.b32 %r3, dynamic; mapa.shared::cluster.u32 %r4, %r3, 1; ld.shared::cluster.b32 %r5, [%r4+64];";
    assert!(run(outside, 2).unwrap_err().to_string().contains("out of bounds"));
}

#[test]
fn a_block_that_has_exited_has_no_shared_memory() {
    let body = "setp.eq.u32 %p1, %r8, 1; @%p1 ret; mov.b32 %r1, 0;
        LOOP: add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5000; @%p2 bra LOOP;
        mov.b32 %r3, dynamic; mapa.shared::cluster.u32 %r4, %r3, 1; st.shared::cluster.b32 [%r4], %r1;";
    let error = run(body, 2).unwrap_err().to_string();
    assert!(error.contains("block of rank 1, whose shared memory it is, has exited"), "{error}");
}

#[test]
fn the_barrier_of_a_cluster_is_used_in_turns() {
    let twice = run("barrier.cluster.arrive.release.aligned; barrier.cluster.arrive.release.aligned;", 2);
    assert!(twice.unwrap_err().to_string().contains("arrives at the barrier of the cluster twice"));
    let unannounced = run("barrier.cluster.wait.acquire.aligned;", 2).unwrap_err().to_string();
    assert!(unannounced.contains("where it did not arrive"), "{unannounced}");
    // Blocks that have exited are not waited for.
    assert!(run(&format!("setp.eq.u32 %p1, %r8, 1; @%p1 ret; {SYNC} {SYNC}"), 2).is_ok());
    let body = format!("{SYNC} setp.eq.u32 %p1, %r8, 1; @%p1 bra ON; bar.sync 1, 64; ON: {SYNC}");
    let error = run(&body, 2).unwrap_err();
    let Error::Deadlock { waits, .. } = &error else { panic!("{error}") };
    assert!(waits.contains("block [0, 0, 0], warp 0 (lanes 0xffffffff) waits at barrier 1"), "{waits}");
    assert!(
        waits.contains("block [1, 0, 0], warp 0 (lanes 0xffffffff) waits at the barrier of the cluster"),
        "{waits}"
    );
}

#[test]
fn an_mbarrier_takes_arrivals_from_other_blocks() {
    let body = format!(
        "setp.ne.u32 %p1, %r9, 0; setp.ne.u32 %p2, %r8, 0; or.pred %p3, %p1, %p2;
        @%p3 bra READY; mbarrier.init.shared.b64 [dynamic], 2; fence.mbarrier_init.release.cluster;
        READY: {SYNC} @%p1 bra DONE; mov.b32 %r1, dynamic; mapa.shared::cluster.u32 %r2, %r1, 0;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
        DONE: @%p2 bra OUT;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [dynamic], 0; @!%p4 bra W;
        OUT: {SYNC}"
    );
    assert!(run(&body, 2).is_ok());
    let error = run(&body.replace("[dynamic], 2;", "[dynamic], 3;"), 2).unwrap_err();
    let Error::Deadlock { waits, .. } = &error else { panic!("{error}") };
    assert!(
        waits.contains("waits for the mbarrier at shared address 0x0, in phase 0: 2 of 3 arrivals came"),
        "{waits}"
    );
}

/// Four lanes of either block store two words each to the other one, which waits for them and shows the second word of
/// the last.
fn stores(store: &str, wait: &str) -> String {
    format!(
        "setp.ne.u32 %p1, %r9, 0; @%p1 bra READY; mbarrier.init.shared.b64 [dynamic], 1;
        fence.mbarrier_init.release.cluster; mbarrier.arrive.expect_tx.shared::cta.b64 _, [dynamic], 32;
        READY: {SYNC} mov.b32 %r3, dynamic; xor.b32 %r2, %r8, 1; mapa.shared::cluster.u32 %r4, %r3, %r2;
        shl.b32 %r5, %r9, 3; add.u32 %r5, %r5, %r4; mad.lo.u32 %r6, %r8, 100, %r9; setp.lt.u32 %p2, %r9, 4;
        {store} {wait} ld.shared.b32 %r5, [dynamic+44]; {STORE}"
    )
}

#[test]
fn words_are_stored_in_other_blocks_and_counted_there() {
    let store = "@%p2 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r5+16], {%r9, %r6}, [%r4];";
    let wait = "W: mbarrier.try_wait.parity.shared::cta.b64 %p4, [dynamic], 0; @!%p4 bra W;";
    assert_eq!(run(&stores(store, wait), 2).unwrap(), [103, 3]);
    let error = |store: &str, wait: &str| run(&stores(store, wait), 2).unwrap_err().to_string();
    let early = error(store, "");
    assert!(early.contains("nobody waited") || early.contains("nothing wrote"), "{early}");
    let three = error(&store.replace("@%p2", "setp.lt.u32 %p2, %r9, 3; @%p2"), wait);
    assert!(three.contains("in phase 0: 1 of 1 arrivals came, 24 of 32 expected bytes"), "{three}");
    let elsewhere = error(&store.replace("[%r4]", "[%r3]"), wait);
    assert!(elsewhere.contains("is not in the block that it copies to"), "{elsewhere}");
    let askew = error(&store.replace("%r5+16", "%r5+20"), wait);
    assert!(askew.contains("is no multiple of the 8 bytes stored"), "{askew}");
    let own = error(&store.replace("shared::cluster", "global"), wait);
    assert!(own.contains("the form is not covered"), "{own}");
}

/// A block of two warps in which the first gives up registers and the second takes some.
fn exchange(decrease: &str, increase: &str) -> Result<()> {
    let text =
        kernel("", &format!("setp.lt.u32 %p1, %r9, 32; @%p1 bra FIRST; {increase} bra END; FIRST: {decrease} END:"));
    let text = text.replace("(.param .u64 out)", "(.param .u64 out)\n.maxntid 512");
    let shape = LaunchShape { block: [64, 1, 1], ..LaunchShape::default() };
    Module::parse(&text)?.launch(&Device::new(Arch::Sm90a), "k", shape, &[&[0; 8]]).map(drop)
}

#[test]
fn registers_move_between_the_warps_of_a_block() {
    let (dec, inc) = ("setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg.inc.sync.aligned.u32 232;");
    exchange(dec, inc).unwrap();
    let error = exchange("setmaxnreg.dec.sync.aligned.u32 32;", inc).unwrap_err();
    let Error::Deadlock { waits, .. } = &error else { panic!("{error}") };
    assert!(waits.contains("waits for 104 more registers a thread, of which 96 are free"), "{waits}");
    let error = exchange("setmaxnreg.dec.sync.aligned.u32 240;", "").unwrap_err().to_string();
    assert!(error.contains("a decrease to 240 registers of threads that have 128"), "{error}");
    let error = exchange("", "setmaxnreg.inc.sync.aligned.u32 120;").unwrap_err().to_string();
    assert!(error.contains("an increase to 120 registers of threads that have 128"), "{error}");
}
