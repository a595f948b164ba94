//! Bulk copies of boxes of tensors, and what is wrong around them.

use layout::{Arch, Swizzle};
use ptx_emulator::tensor_map::{ElementType, TensorMap};
use ptx_emulator::{Device, Error, LaunchShape, Module, Result};

/// A launch of one block of a warp on a tensor of 8x8 words that count up, in boxes of 8x4.
struct Run {
    swizzle: Swizzle,
    element: ElementType,
    cluster: u32,
    map_align: u32,
    /// Rows of the map before the tensor.
    rows_before: u64,
}

const RUN: Run = Run { swizzle: Swizzle::None, element: ElementType::U32, cluster: 1, map_align: 64, rows_before: 0 };

const WORDS: usize = 64;

impl Run {
    /// The words of the output, one for each thread, and of the tensor after it.
    fn words(&self, body: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        let ptx = format!(
            ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 dynamic[];\n\
            .visible .entry k(.param .u64 out, .param .align {} .b8 map[128])\n{{\n\
            .reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<10>;\n\
            ld.param.b64 %rd9, [out];\nmov.u32 %r9, %tid.x;\nmul.wide.u32 %rd8, %r9, 4;\nadd.s64 %rd8, %rd8, %rd9;\n\
            mov.b64 %rd7, map; cvta.param.u64 %rd7, %rd7;\nsetp.ne.u32 %p1, %r9, 0;\nmov.u32 %r8, %cluster_ctarank;\n\
            shl.b32 %r7, %r9, 2; add.u32 %r7, %r7, dynamic;\n{body}\nret;\n}}\n",
            self.map_align
        );
        let module = Module::parse(&ptx)?;
        let device = Device::new(Arch::Sm90a);
        let (out, tensor) = (device.allocate(128 * 4)?, device.allocate(4 * WORDS as u64)?);
        device.write(out, &[0xFF; 128 * 4])?;
        let value = |word: u32| if self.element == ElementType::F32 { (word as f32).to_bits() } else { word };
        device.write(tensor, &(0..WORDS as u32).flat_map(|word| value(word).to_le_bytes()).collect::<Vec<_>>())?;
        let map = TensorMap {
            element: self.element,
            address: tensor - 32 * self.rows_before,
            dims: vec![8, 8],
            strides_bytes: vec![32],
            box_dims: vec![8, 4],
            swizzle: self.swizzle,
        };
        let map: Vec<u8> = map.encode().unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
        let shape = LaunchShape {
            grid: [self.cluster, 1, 1],
            block: [32, 1, 1],
            cluster: [self.cluster, 1, 1],
            shared_bytes: 8192,
        };
        module.launch(&device, "k", shape, &[&out.to_le_bytes(), &map])?;
        let read = |address: u64, words: usize| {
            let mut bytes = vec![0; 4 * words];
            device
                .read(address, &mut bytes)
                .map(|()| bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
        };
        Ok((read(out, 32 * self.cluster as usize)?, read(tensor, WORDS)?))
    }

    fn error(&self, body: &str) -> String {
        self.words(body).expect_err("the kernel is wrong").to_string()
    }
}

/// The first thread loads the box at (0, 2).
const COPY: &str = "@%p1 bra READY; mbarrier.init.shared.b64 [dynamic+4096], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [dynamic+4096], 128;
    mov.b32 %r1, dynamic; mov.b32 %r2, 0; mov.b32 %r3, 2; mov.b32 %r4, dynamic; add.u32 %r4, %r4, 4096;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd7, {%r2, %r3}], [%r4];
    READY: bar.sync 0;";
/// All threads wait for it.
const WAIT: &str = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [dynamic+4096], 0; @!%p2 bra W;";
/// Each thread stores a word of it.
const SHOW: &str = "ld.shared.b32 %r5, [%r7]; st.global.b32 [%rd8], %r5;";

fn load() -> String {
    [COPY, WAIT, SHOW].concat()
}

/// Stores the box at (0, 2) from words that count up from 100.
const STORE: &str = "add.u32 %r1, %r9, 100; st.shared.b32 [%r7], %r1; fence.proxy.async.shared::cta; bar.sync 0;
    @%p1 bra END; mov.b32 %r1, dynamic; mov.b32 %r2, 0; mov.b32 %r3, 2;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd7, {%r2, %r3}], [%r1];
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; END: bar.sync 0;";

#[test]
fn a_box_is_loaded_with_its_swizzle() {
    let expected: Vec<u32> = (16..48).collect();
    assert_eq!(RUN.words(&load()).unwrap().0, expected);
    let swizzled: Vec<u32> = (0..32).map(|word| expected[Swizzle::B32.apply(4 * word) as usize / 4]).collect();
    assert_eq!(Run { swizzle: Swizzle::B32, ..RUN }.words(&load()).unwrap().0, swizzled);
    // Rows behind the tensor are zeros.
    let edge = RUN.words(&load().replace("%r3, 2;", "%r3, 6;")).unwrap().0;
    assert_eq!(edge, (48..64).chain([0; 16]).collect::<Vec<_>>());
}

#[test]
fn a_tensor_begins_in_an_allocation() {
    // The box at row 2 itself is in the allocation.
    let error = Run { rows_before: 2, ..RUN }.error(&load());
    assert!(error.contains("where the tensor of the map begins") && error.contains("out of bounds"), "{error}");
}

#[test]
fn lines_of_bytes_are_copied_too() {
    let copy = COPY
        .replace("[dynamic+4096], 128;", "[dynamic+4096], 64;")
        .replace("bulk.tensor.2d", "bulk")
        .replace(".tile", "")
        .replace("[%rd7, {%r2, %r3}], [%r4]", "[%rd9], 64, [%r4]");
    let show =
        "setp.ge.u32 %p3, %r9, 16; @%p3 ret; ld.shared.b32 %r5, [%r7]; add.u32 %r5, %r5, 7; st.global.b32 [%rd8], %r5;";
    let (out, _) = RUN.words(&[&copy, WAIT, show].concat()).unwrap();
    // The bytes before are all ones.
    assert_eq!(out, [6; 16].into_iter().chain([u32::MAX; 16]).collect::<Vec<_>>());
    assert!(RUN.error(&copy.replace("[%rd9], 64", "[%rd9], 60")).contains("neither may be off 16"));
}

#[test]
fn a_box_is_stored_or_added() {
    let tensor = |body: &str| RUN.words(body).unwrap().1;
    let expected = |start: u32, rows: usize, value: fn(u32, u32) -> u32| {
        let mut words: Vec<u32> = (0..64).collect();
        for (word, old) in words[start as usize..][..8 * rows].iter_mut().enumerate() {
            *old = value(*old, 100 + word as u32);
        }
        words
    };
    assert_eq!(tensor(STORE), expected(16, 4, |_, new| new));
    assert_eq!(tensor(&STORE.replace("%r3, 2;", "%r3, 6;")), expected(48, 2, |_, new| new));
    let reduce = |op: &str| {
        STORE.replace(
            "cp.async.bulk.tensor.2d.global.shared::cta",
            &format!("cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}"),
        )
    };
    assert_eq!(tensor(&reduce("add")), expected(16, 4, |old, new| old + new));
    assert_eq!(tensor(&reduce("and")), expected(16, 4, |old, new| old & new));
    let floats = Run { element: ElementType::F32, ..RUN };
    let body = reduce("add").replace("st.shared.b32", "cvt.rn.f32.u32 %r1, %r1; st.shared.b32");
    let sums: Vec<f32> = floats.words(&body).unwrap().1.into_iter().map(f32::from_bits).collect();
    assert_eq!(sums[16..48], (0..32).map(|word| (116 + 2 * word) as f32).collect::<Vec<_>>());
    assert!(floats.error(&reduce("and")).contains("other than a sum"));
}

#[test]
fn a_box_goes_to_every_block_of_its_mask() {
    let body = |mask: u32| {
        let sync = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;";
        format!(
            "@%p1 bra SYNC; mbarrier.init.shared.b64 [dynamic+4096], 1; fence.mbarrier_init.release.cluster;
            mbarrier.arrive.expect_tx.shared::cta.b64 _, [dynamic+4096], 128;
            SYNC: {sync} setp.ne.u32 %p4, %r8, 0; or.pred %p4, %p4, %p1; @%p4 bra READY; mov.b16 %h1, {mask};
            mov.b32 %r1, dynamic; mov.b32 %r2, 0; mov.b32 %r3, 2; add.u32 %r4, %r1, 4096;
            cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
                [%r1], [%rd7, {{%r2, %r3}}], [%r4], %h1;
            READY: {WAIT} mul.wide.u32 %rd1, %r8, 128; add.s64 %rd8, %rd8, %rd1; {SHOW} {sync}"
        )
    };
    let two = Run { cluster: 2, ..RUN };
    assert_eq!(two.words(&body(3)).unwrap().0, (16..48).chain(16..48).collect::<Vec<_>>());
    let error = two.error(&body(1));
    assert!(error.contains("0 of 128 expected bytes"), "{error}");
    assert!(two.error(&body(7)).contains("blocks 0b111 of a cluster of 2"));
}

#[test]
fn a_box_is_waited_for_before_it_is_read() {
    let error = RUN.error(&[COPY, SHOW].concat());
    assert!(error.contains("nothing wrote"), "{error}");
    let fill = "st.shared.b32 [%r7], 1; fence.proxy.async.shared::cta; bar.warp.sync -1;";
    let filled = format!("{fill} {}", load());
    assert!(RUN.words(&filled).is_ok());
    let error = RUN.error(&filled.replace("READY:", "READY: ld.shared.b32 %r6, [%r7];"));
    assert!(error.contains("asynchronous write"), "{error}");
    // What is in the place of the box is written before the copy begins.
    let error = RUN.error(&filled.replace("fence.proxy.async.shared::cta;", ""));
    assert!(error.contains("no proxy fence"), "{error}");
    let error = RUN.error(&filled.replace("bar.warp.sync -1;", ""));
    assert!(error.contains("no synchronisation orders them"), "{error}");
    let error = RUN.error(COPY);
    assert!(error.contains("exits while the copy is under way") && error.contains("warp 0, lane 0"), "{error}");
}

#[test]
fn the_bytes_of_a_phase_are_those_that_arrive() {
    let expecting = |bytes: u32| load().replace("[dynamic+4096], 128;", &format!("[dynamic+4096], {bytes};"));
    for bytes in [127, 129] {
        let error = RUN.error(&expecting(bytes));
        let expected = format!("in phase 0: 1 of 1 arrivals came, 128 of {bytes} expected bytes");
        assert!(error.contains("deadlock") && error.contains(&expected), "{error}");
    }
    assert!(RUN.error(&expecting(1 << 20)).contains("it counts no difference above 1048575"));
    let error = RUN.error(&load().replace("fence.mbarrier_init.release.cluster;", ""));
    assert!(error.contains("fence.mbarrier_init is missing"), "{error}");
    let error = RUN.error(
        &load()
            .replace("mbarrier.init.shared.b64 [dynamic+4096], 1;", "")
            .replace("mbarrier.arrive.expect_tx.shared::cta.b64 _, [dynamic+4096], 128;", ""),
    );
    assert!(error.contains("was not initialised"), "{error}");
}

#[test]
fn a_box_is_not_written_before_it_is_stored() {
    let error = RUN.error(&STORE.replace("fence.proxy.async.shared::cta;", ""));
    assert!(error.contains("no proxy fence is between them"), "{error}");
    let again =
        STORE.replace("cp.async.bulk.wait_group.read 0;", "st.shared.b32 [%r7], 5; cp.async.bulk.wait_group.read 0;");
    let error = RUN.error(&again);
    assert!(error.contains("asynchronous read") && error.contains("not waited for"), "{error}");
    assert!(RUN.words(&format!("{STORE} st.shared.b32 [%r7], 5;")).is_ok());
    for (from, to) in [
        ("cp.async.bulk.wait_group.read 0;", ""),
        ("wait_group.read 0", "wait_group.read 1"),
        ("cp.async.bulk.commit_group;", ""),
    ] {
        let error = RUN.error(&STORE.replace(from, to));
        assert!(error.contains("exits while the copy may still read"), "{error}");
    }
}

#[test]
fn maps_boxes_and_coordinates_are_aligned() {
    let error = Run { map_align: 8, ..RUN }.error(&load());
    assert!(error.contains("the tensor map at 0x300000008 is not aligned to 64 bytes"), "{error}");
    assert!(
        RUN.error(&load().replace("%r1, dynamic;", "%r1, dynamic; add.u32 %r1, %r1, 64;"))
            .contains("no multiple of 128 bytes")
    );
    let swizzled = Run { swizzle: Swizzle::B128, ..RUN };
    let error = swizzled.error(&load().replace("%r1, dynamic;", "%r1, dynamic; add.u32 %r1, %r1, 128;"));
    assert!(error.contains("no multiple of 1024 bytes, the period of its swizzle of 128"), "{error}");
    let error = RUN.error(&load().replace("%r2, 0;", "%r2, 2;"));
    assert!(error.contains("the box starts at element 2 of a row, 8 bytes"), "{error}");
    assert!(
        RUN.error(&load().replace("bulk.tensor.2d", "bulk.tensor.1d").replace("{%r2, %r3}", "{%r2}"))
            .contains("1 coordinates in a tensor of 2")
    );
    let error = RUN.error(&STORE.replace("%r3, 2;", "%r3, -1;"));
    assert!(error.contains("negative"), "{error}");
    assert!(RUN.words(&load().replace("%r3, 2;", "%r3, -1;")).is_ok());
    let error = RUN.error(&load().replace("%r1, dynamic;", "%r1, dynamic; add.u32 %r1, %r1, 8192;"));
    assert!(error.contains("out of bounds"), "{error}");
    let prefetch =
        "mov.b32 %r2, 4; mov.b32 %r3, 2; cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd7, {%r2, %r3}];";
    assert!(RUN.words(prefetch).is_ok());
    assert!(RUN.error(&prefetch.replace("4;", "2;")).contains("the box starts at element 2 of a row, 8 bytes"));
    assert!(RUN.error(&prefetch.replace("2d", "1d").replace(", %r3}", "}")).contains("1 coordinates in a tensor of 2"));
    assert!(RUN.words("cp.async.bulk.prefetch.L2.global [%rd8], 16;").is_err(), "an address off 16 bytes");
    assert!(RUN.words("cp.async.bulk.prefetch.L2.global [%rd9], 16;").is_ok());
    assert!(RUN.words("prefetch.tensormap [%rd7];").is_ok());
    assert!(RUN.error("prefetch.tensormap [%rd9];").contains("no tensor map"));
}

#[test]
fn an_error_of_a_copy_says_where() {
    let error = RUN.words(&load().replace("%r2, 0;", "%r2, 2;")).unwrap_err();
    let Error::Fault { thread, place, .. } = &error else { panic!("{error}") };
    assert_eq!((thread.warp, thread.lane, place.line), (0, Some(0), 22));
}

/// The first thread writes a word of the tensor, and copies it after what `between` does.
fn written_before_the_copy(between: &str) -> Result<Vec<u32>> {
    let write = format!("@%p1 bra ON; mov.b32 %r1, 7; st.global.b32 [%rd6], %r1; {between} ON:");
    // The emulator's map has the address of the tensor as its second word; the box begins with the row 2.
    let address = "ld.b64 %rd6, [%rd7+8]; add.s64 %rd6, %rd6, 64;";
    RUN.words(&[address, &write, &load()].concat()).map(|words| words.0)
}

#[test]
fn a_generic_write_to_global_memory_needs_a_proxy_fence_before_a_copy() {
    assert_eq!(written_before_the_copy("fence.proxy.async;").unwrap()[0], 7);
    let error = written_before_the_copy("").expect_err("no fence").to_string();
    assert!(error.contains("global memory") && error.contains("proxy"), "{error}");
}
