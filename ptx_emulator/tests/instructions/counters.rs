//! The counters, against numbers that follow by hand from the addresses.

use layout::Arch;
use ptx_emulator::counters::{Counters, Counts, GlobalTraffic, SharedTraffic};
use ptx_emulator::{Device, LaunchShape, Module};

use crate::kernel;

const OUT_BYTES: u64 = 8192;

/// What the kernel with this body does in `blocks` blocks of `threads` threads with 4096 bytes of shared memory,
/// `dynamic`.
fn count(body: &str, blocks: u32, threads: u32) -> Counters {
    let ptx = kernel(".extern .shared .align 16 .b8 dynamic[];", body);
    let module = Module::parse(&ptx).unwrap_or_else(|error| panic!("{body}\n{error}"));
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(OUT_BYTES).unwrap();
    device.write(out, &vec![0; OUT_BYTES as usize]).unwrap();
    let shape =
        LaunchShape { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 4096, ..LaunchShape::default() };
    let counters = module.count(&device, "k", shape, &[&out.to_le_bytes()]);
    counters.unwrap_or_else(|error| panic!("{body}\n{error}"))
}

/// The counts of the instructions with this opcode.
fn of(counters: &Counters, opcode: &str) -> Counts {
    let found: Vec<Counts> =
        counters.instructions.iter().filter(|at| &*at.opcode == opcode).map(|at| at.counts).collect();
    assert!(!found.is_empty(), "{opcode} did not run");
    found.into_iter().sum()
}

#[test]
fn sectors_of_global_memory() {
    for (body, opcode, bytes, sectors, least) in [
        // Lane after lane.
        ("ld.global.b32 %r1, [%rd8];", "ld.global.b32", 128, 4, 4),
        // The same from the middle of a sector.
        ("ld.global.b32 %r1, [%rd8+16];", "ld.global.b32", 128, 5, 4),
        // A sector for each lane.
        ("mad.wide.u32 %rd1, %r9, 32, %rd9; ld.global.b32 %r1, [%rd1];", "ld.global.b32", 128, 32, 4),
        // One word for all.
        ("ld.global.b32 %r1, [%rd9];", "ld.global.b32", 128, 1, 1),
        (
            "mad.wide.u32 %rd1, %r9, 16, %rd9; ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];",
            "ld.global.v4.b32",
            512,
            16,
            16,
        ),
        ("setp.lt.u32 %p1, %r9, 9; @%p1 ld.global.b32 %r1, [%rd8];", "ld.global.b32", 36, 2, 2),
        ("st.global.b8 [%rd8], %r9;", "st.global.b8", 32, 4, 1),
        ("atom.global.add.u32 %r1, [%rd8], 1;", "atom.global.add.u32", 128, 4, 4),
        ("add.s64 %rd1, %rd9, 8; ld.b64 %rd2, [%rd1];", "ld.b64", 256, 1, 1),
    ] {
        let expected = GlobalTraffic { bytes, sectors, least_sectors: least };
        assert_eq!(of(&count(body, 1, 32), opcode).global, expected, "{body}");
    }
}

#[test]
fn wavefronts_of_shared_memory() {
    let stored = |scale: u32, opcode: &str, value: &str| {
        let body = format!("mov.b32 %r1, dynamic; mad.lo.u32 %r1, %r9, {scale}, %r1; {opcode} [%r1], {value};");
        of(&count(&body, 1, 32), opcode).shared
    };
    let four = "{%r2, %r3, %r4, %r5}";
    for (scale, opcode, value, lane_bytes, wavefronts, conflicts) in [
        (4, "st.shared.b32", "%r2", 4, 1, 0),
        (8, "st.shared.b32", "%r2", 4, 2, 1),
        (12, "st.shared.b32", "%r2", 4, 1, 0),
        (128, "st.shared.b32", "%r2", 4, 32, 31),
        (128, "st.shared.b16", "%r2", 2, 32, 31),
        (1, "st.shared.b8", "%r2", 1, 1, 0),
        (8, "st.shared.b64", "%rd1", 8, 2, 0),
        (16, "st.shared.b64", "%rd1", 8, 4, 2),
        (16, "st.shared.v4.b32", four, 16, 4, 0),
        (32, "st.shared.v4.b32", four, 16, 8, 4),
        (128, "st.shared.v4.b32", four, 16, 32, 28),
    ] {
        let expected = SharedTraffic { bytes: 32 * lane_bytes, wavefronts, conflicts };
        assert_eq!(stored(scale, opcode, value), expected, "{opcode} at {scale} bytes");
    }
}

#[test]
fn words_that_lanes_share_are_read_once_and_changed_in_turns() {
    let body = "mov.b32 %r1, dynamic; setp.eq.u32 %p1, %r9, 0; @%p1 st.shared.b32 [%r1], 7; bar.warp.sync -1;
        ld.shared.b32 %r2, [%r1]; bar.warp.sync -1; atom.shared.add.u32 %r3, [%r1], 1;";
    let counters = count(body, 1, 32);
    let traffic = |opcode: &str| of(&counters, opcode).shared;
    assert_eq!(traffic("st.shared.b32"), SharedTraffic { bytes: 4, wavefronts: 1, conflicts: 0 });
    assert_eq!(traffic("ld.shared.b32"), SharedTraffic { bytes: 128, wavefronts: 1, conflicts: 0 });
    assert_eq!(traffic("atom.shared.add.u32"), SharedTraffic { bytes: 128, wavefronts: 32, conflicts: 31 });
}

#[test]
fn matrices_of_eight_rows_conflict_unless_they_are_swizzled() {
    // 32 rows of 128 bytes; each lane fills one and points at its first 16 bytes, or at those that the swizzle moved.
    let body = |chunk: &str| {
        let fill: String = (0..8).map(|at| format!("st.shared.v2.b64 [%r1+{}], {{%rd1, %rd1}};\n", 16 * at)).collect();
        format!(
            "mov.b32 %r1, dynamic; mad.lo.u32 %r1, %r9, 128, %r1; mov.b64 %rd1, 0; {fill} bar.warp.sync -1;
            {chunk} add.u32 %r1, %r1, %r2;
            ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r3, %r4, %r5, %r6}}, [%r1];
            ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r3}}, [%r1]; bar.warp.sync -1;
            stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {{%r3, %r4}};"
        )
    };
    let (x4, x1) = ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.m8n8.x1.shared.b16");
    let x2 = "stmatrix.sync.aligned.m8n8.x2.shared.b16";
    let plain = count(&body("mov.b32 %r2, 0;"), 1, 32);
    assert_eq!(of(&plain, x4).shared, SharedTraffic { bytes: 512, wavefronts: 32, conflicts: 28 });
    assert_eq!(of(&plain, x1).shared, SharedTraffic { bytes: 128, wavefronts: 8, conflicts: 7 });
    assert_eq!(of(&plain, x2).shared, SharedTraffic { bytes: 256, wavefronts: 16, conflicts: 14 });
    let swizzled = count(&body("and.b32 %r2, %r9, 7; shl.b32 %r2, %r2, 4;"), 1, 32);
    assert_eq!(of(&swizzled, x4).shared, SharedTraffic { bytes: 512, wavefronts: 4, conflicts: 0 });
    assert_eq!(of(&swizzled, x1).shared, SharedTraffic { bytes: 128, wavefronts: 1, conflicts: 0 });
    assert_eq!(of(&swizzled, x2).shared, SharedTraffic { bytes: 256, wavefronts: 2, conflicts: 0 });
}

#[test]
fn fragments_of_wmma_are_rows_of_sixteen_bytes() {
    let registers = "{%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17}";
    let load = "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16";
    let fill: String = (0..8).map(|at| format!("st.shared.v2.b64 [%r1+{}], {{%rd1, %rd1}};\n", 512 * at)).collect();
    let body = |stride: u32| {
        format!(
            "mov.b32 %r1, dynamic; mad.lo.u32 %r1, %r9, 16, %r1; mov.b64 %rd1, 0; {fill} bar.warp.sync -1;
            mov.b32 %r1, dynamic; {load} {registers}, [%r1], {stride};"
        )
    };
    // Rows of 32 bytes side by side: rows 0 and 4 of a matrix share their banks. Padded to 48 bytes none do.
    for (stride, wavefronts, conflicts) in [(16, 8, 4), (24, 4, 0), (64, 32, 28), (72, 4, 0)] {
        let expected = SharedTraffic { bytes: 512, wavefronts, conflicts };
        assert_eq!(of(&count(&body(stride), 1, 32), load).shared, expected, "a stride of {stride}");
    }
}

#[test]
fn asynchronous_copies_count_on_both_sides() {
    let body = "mov.b32 %r1, dynamic; mad.lo.u32 %r1, %r9, 16, %r1; mad.wide.u32 %rd1, %r9, 16, %rd9;
        setp.lt.u32 %p1, %r9, 8; selp.b32 %r2, 16, 0, %p1;
        cp.async.cg.shared.global [%r1], [%rd1], 16, %r2; cp.async.wait_all;";
    let counts = of(&count(body, 1, 32), "cp.async.cg.shared.global");
    assert_eq!(counts.global, GlobalTraffic { bytes: 128, sectors: 4, least_sectors: 4 });
    assert_eq!(counts.shared, SharedTraffic { bytes: 512, wavefronts: 4, conflicts: 0 });
}

#[test]
fn executions_lanes_and_products_are_counted() {
    let registers = "{%r1, %r2, %r3, %r4}";
    let mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    let body = format!(
        "mov.b32 %r5, 0;\nAGAIN: add.u32 %r5, %r5, 1;\n{mma} {registers}, {registers}, {{%r1, %r2}}, {registers};
        setp.lt.u32 %p1, %r5, 10;\n@%p1 bra AGAIN;\nsetp.lt.u32 %p2, %r9, 5;\n@%p2 st.global.b32 [%rd8+64], 1;"
    );
    let counters = count(&body, 1, 64);
    let product = of(&counters, mma);
    assert_eq!((product.executed, product.lanes), (20, 640));
    assert_eq!(product.tensor_operations, 20 * 2 * 16 * 8 * 16);
    let store = of(&counters, "st.global.b32");
    assert_eq!((store.executed, store.lanes, store.global.bytes), (2, 5, 20));
    assert_eq!(counters.total().tensor_operations, product.tensor_operations);
    assert_eq!(counters.of_class(ptx_emulator::Class::TensorCore), product);
}

#[test]
fn lines_of_rust_collect_what_their_instructions_do() {
    let body = ".loc 1 5 1\nld.global.b32 %r1, [%rd8];\nld.global.b32 %r2, [%rd8];\n.loc 1 9 1\nadd.u32 %r1, %r1, %r2;";
    let ptx = kernel("", body) + ".file 1 \"k.rs\"";
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(128).unwrap();
    device.write(out, &[0; 128]).unwrap();
    let shape = LaunchShape { block: [32, 1, 1], ..LaunchShape::default() };
    let counters = Module::parse(&ptx).unwrap().count(&device, "k", shape, &[&out.to_le_bytes()]).unwrap();
    let lines: Vec<(u32, u64, u64)> =
        counters.by_rust_line().iter().map(|(at, counts)| (at.line, counts.executed, counts.global.sectors)).collect();
    // The `ret` behind the body has the line before it.
    assert_eq!(lines, [(5, 2, 8), (9, 2, 0)]);
}

#[test]
fn counts_do_not_depend_on_the_number_of_cores() {
    let body = "mov.u32 %r1, %ctaid.x; and.b32 %r2, %r1, 7; setp.lt.u32 %p1, %r9, %r2;
        @%p1 ld.global.b32 %r3, [%rd8]; mov.b32 %r4, dynamic; mad.lo.u32 %r4, %r9, %r2, %r4; and.b32 %r4, %r4, -4;
        bar.sync 0; atom.global.add.u32 %r5, [%rd9+4096], 1;";
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| (count(body, 50, 96), count(&body.replace("atom", "//atom"), 50, 96)))
    };
    assert_eq!(with(1), with(5));
}
