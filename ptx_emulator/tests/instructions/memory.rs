//! Loads, stores and atomics in every memory.

use layout::Arch;
use ptx_emulator::{Class, Device, LaunchShape, Module};

use crate::{kernel, launch, per_thread};

#[test]
fn vectors_and_narrow_elements_in_shared_memory() {
    let ptx = kernel(
        ".shared .align 16 .b8 tile[64];",
        "mov.b32 %r1, 0x11223344; mov.b32 %r2, 0xF5667788;
        st.shared.v2.b32 [tile+8], {%r1, %r2};
        ld.shared.s8 %r3, [tile+15]; st.global.b32 [%rd9], %r3;
        ld.shared.u16 %r4, [tile+14]; st.global.b32 [%rd9+4], %r4;
        ld.shared.v2.u16 {%h1, %h2}, [tile+8]; mov.b32 %r5, {%h2, %h1}; st.global.b32 [%rd9+8], %r5;
        mov.b32 %r6, tile; st.shared.b8 [%r6+15], 7; ld.shared.b32 %r7, [%r6+12]; st.global.b32 [%rd9+12], %r7;
        ld.shared.v2.b32 {_, %r8}, [%r6+8]; st.global.b32 [%rd9+16], %r8;",
    );
    assert_eq!(launch(&ptx, 1, 0, 5).unwrap(), [0xFFFF_FFF5, 0xF566, 0x3344_1122, 0x0766_7788, 0x0766_7788]);
}

#[test]
fn generic_addresses_reach_every_memory() {
    let ptx = kernel(
        ".shared .align 4 .b32 word; .extern .shared .align 16 .b8 dynamic[];",
        ".local .align 4 .b8 own[8];
        mov.b64 %rd1, word; cvta.shared.u64 %rd1, %rd1; st.b32 [%rd1], 5; ld.shared.b32 %r1, [word];
        mov.b64 %rd2, own; cvta.local.u64 %rd2, %rd2; st.b32 [%rd2+4], 6; ld.local.b32 %r2, [own+4];
        mov.b64 %rd3, out; cvta.param.u64 %rd3, %rd3; ld.b64 %rd4, [%rd3];
        mov.b64 %rd5, dynamic; cvta.shared.u64 %rd6, %rd5; cvta.to.shared.u64 %rd6, %rd6; cvt.u32.u64 %r3, %rd6;
        st.v2.b32 [%rd4], {%r1, %r2}; st.b32 [%rd4+8], %r3;",
    );
    assert_eq!(launch(&ptx, 1, 32, 3).unwrap(), [5, 6, 16]);
}

#[test]
fn local_memory_is_each_thread_s_own() {
    let body = ".local .align 4 .b8 own[4];
        st.local.b32 [own], %r9; bar.sync 0; ld.local.b32 %r0, [own];";
    assert_eq!(per_thread(body, 64), (0..64).collect::<Vec<u32>>());
}

#[test]
fn atomics_return_what_was_there() {
    let ptx = kernel(
        ".shared .align 8 .b8 word[8];",
        "setp.ne.b32 %p1, %r9, 0;
        @!%p1 st.shared.b32 [word], 10;
        @!%p1 st.global.b32 [%rd9], 100;
        bar.sync 0;
        atom.shared.add.u32 %r1, [word], 2;
        atom.global.add.u32 %r2, [%rd9], %r1;
        bar.sync 0;
        @%p1 bra DONE;
        ld.shared.b32 %r3, [word];
        atom.shared.exch.b32 %r4, [word], 1;
        atom.shared.cas.b32 %r5, [word], 1, 9;
        atom.shared.inc.u32 %r6, [word], 9;
        atom.shared.dec.u32 %r7, [word], 4;
        atom.shared.max.s32 %r8, [word], -1;
        atom.shared.min.s32 %r10, [word], -1;
        red.global.or.b32 [%rd9+4], 0;
        st.global.b32 [%rd9+8], %r3; st.global.b32 [%rd9+12], %r4; st.global.b32 [%rd9+16], %r5;
        st.global.b32 [%rd9+20], %r6; st.global.b32 [%rd9+24], %r7; st.global.b32 [%rd9+28], %r8;
        st.global.b32 [%rd9+32], %r10;
        DONE:",
    );
    // 64 threads add 2 to 10, and the 64 old values 10, 12, .. to 100.
    let sum = 100 + 64 * 10 + 2 * (63 * 64 / 2);
    assert_eq!(launch(&ptx, 64, 0, 9).unwrap(), [sum, u32::MAX, 138, 138, 1, 9, 0, 4, 4]);
}

#[test]
fn float_atomics_add_in_the_order_of_the_lanes() {
    let ptx = kernel(
        ".shared .align 4 .b32 sum;",
        "st.shared.f32 [sum], 0f00000000; bar.sync 0; cvt.rn.f32.u32 %r1, %r9; atom.shared.add.f32 %r2, [sum], %r1;
        st.global.b32 [%rd8], %r2;",
    );
    let one = ptx
        .replace("st.shared.f32 [sum], 0f00000000;", "setp.eq.u32 %p1, %r9, 0; @%p1 st.shared.f32 [sum], 0f00000000;");
    let expected: Vec<u32> = (0..32).map(|lane: u32| ((lane * lane.saturating_sub(1) / 2) as f32).to_bits()).collect();
    assert_eq!(launch(&one, 32, 0, 32).unwrap(), expected);
    // Every lane writes the first word, and the same.
    assert_eq!(launch(&ptx, 32, 0, 32).unwrap(), expected);
}

#[test]
fn parameters_lie_at_their_alignment() {
    let module = Module::parse(
        ".version 7.0 .target sm_80 .address_size 64
        .visible .entry k(.param .u16 small, .param .u64 .ptr .global .align 16 out, .param .align 16 .b8 block[24])
        { .reg .b16 %h; .reg .b32 %r<3>; .reg .b64 %rd<3>;
        ld.param.b64 %rd0, [out]; ld.param.u16 %h, [small]; cvt.u32.u16 %r0, %h; ld.param.v2.b32 {%r1, %r2}, [block+16];
        st.global.b32 [%rd0], %r0; st.global.b32 [%rd0+4], %r1; st.global.b32 [%rd0+8], %r2; ret; }",
    )
    .unwrap();
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(12).unwrap();
    let block: Vec<u8> = (0..24).collect();
    let params: [&[u8]; 3] = [&7u16.to_le_bytes(), &out.to_le_bytes(), &block];
    let report = module.launch(&device, "k", LaunchShape::default(), &params).unwrap();
    let mut bytes = [0; 12];
    device.read(out, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 0, 0, 0, 16, 17, 18, 19, 20, 21, 22, 23]);
    assert_eq!((report.count(Class::Load), report.count(Class::Store), report.total()), (3, 3, 8));
    let too_short: [&[u8]; 3] = [&[0; 2], &out.to_le_bytes(), &block[1..]];
    let error = module.launch(&device, "k", LaunchShape::default(), &too_short).unwrap_err().to_string();
    assert_eq!(error, "launch of `k`: parameter 2 of 23 bytes, where the kernel has 24");
}

#[test]
fn blocks_of_a_grid_have_their_indices() {
    let module = Module::parse(&kernel(
        "",
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %ctaid.z; mov.u32 %r4, %nctaid.x; mov.u32 %r5, %nctaid.y;
        mov.u32 %r6, %tid.y; mov.u32 %r7, %ntid.x; mov.u32 %r8, %laneid; mov.u32 %r10, %warpid;
        mad.lo.u32 %r11, %r3, %r5, %r2; mad.lo.u32 %r11, %r11, %r4, %r1;
        mad.lo.u32 %r12, %r6, %r7, %r9; mad.lo.u32 %r12, %r11, 40, %r12;
        mad.lo.u32 %r13, %r10, 32, %r8; mad.lo.u32 %r13, %r11, 40, %r13;
        mul.wide.u32 %rd1, %r12, 4; add.s64 %rd1, %rd1, %rd9; st.global.b32 [%rd1], %r13;",
    ))
    .unwrap();
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(24 * 40 * 4).unwrap();
    let shape = LaunchShape { grid: [2, 3, 4], block: [8, 5, 1], ..LaunchShape::default() };
    module.launch(&device, "k", shape, &[&out.to_le_bytes()]).unwrap();
    let mut bytes = vec![0; 24 * 40 * 4];
    device.read(out, &mut bytes).unwrap();
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    assert_eq!(words, (0..24 * 40).collect::<Vec<u32>>());
}

/// Each block waits for the next one, so that none can end before the last has begun.
#[test]
fn blocks_that_talk_to_each_other_take_turns() {
    let module = Module::parse(&kernel(
        "",
        "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd9;
        setp.eq.b32 %p1, %r1, 99; mov.b32 %r2, 1; @%p1 bra READY;
        WAIT: ld.acquire.gpu.global.b32 %r2, [%rd1+4]; setp.eq.b32 %p2, %r2, 0; @%p2 bra WAIT; add.u32 %r2, %r2, 1;
        READY: st.release.gpu.global.b32 [%rd1], %r2;",
    ))
    .unwrap();
    let device = Device::new(Arch::Sm90a).with_instruction_limit(1 << 30);
    let out = device.allocate(400).unwrap();
    device.write(out, &[0; 400]).unwrap();
    let shape = LaunchShape { grid: [100, 1, 1], ..LaunchShape::default() };
    let report = module.launch(&device, "k", shape, &[&out.to_le_bytes()]).unwrap();
    let mut bytes = [0; 400];
    device.read(out, &mut bytes).unwrap();
    let words: Vec<u32> = bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect();
    assert_eq!(words, (1..=100).rev().collect::<Vec<u32>>());
    // Even the number of times that they looked is always the same.
    device.write(out, &[0; 400]).unwrap();
    assert_eq!(module.launch(&device, "k", shape, &[&out.to_le_bytes()]).unwrap(), report);
}
