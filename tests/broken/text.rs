//! Faults that Rust has no words for.

use layout::Arch;
use ptx_emulator::{Device, LaunchShape, Module, Result};

/// Runs a kernel of one warp with this body and 64 bytes of local memory, `array`.
fn launch(body: &str) -> Result<()> {
    let module = Module::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{{\n.local .align 8 .b8 array[64];\n\
        .reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<4>;\nmov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n.file 1 \"text.rs\"\n"
    ))?;
    let shape = LaunchShape { block: [32, 1, 1], ..LaunchShape::default() };
    // A loop without an end is an error soon.
    module.launch(&Device::new(Arch::Sm90a).with_instruction_limit(1 << 16), "k", shape, &[]).map(drop)
}

#[test]
fn faults_of_local_memory_votes_and_loops_are_found() {
    for (broken, correct, says) in [
        (
            ".loc 1 7 1\nld.local.b32 %r1, [array+4];",
            "st.local.b32 [array+4], 0;\nld.local.b32 %r1, [array+4];",
            "nothing wrote",
        ),
        (".loc 1 7 1\nst.local.b32 [array+64], 0;", "st.local.b32 [array+60], 0;", "out of bounds"),
        (".loc 1 7 1\nst.local.b64 [array+4], 0;", "st.local.b64 [array+8], 0;", "not aligned"),
        (
            "setp.lt.u32 %p1, %r0, 16;\n.loc 1 7 1\n@%p1 vote.sync.all.pred %p2, %p1, -1;",
            "vote.sync.all.pred %p2, %p1, -1;",
            "excludes the lanes",
        ),
        (
            "setp.lt.u32 %p1, %r0, 16;\n.loc 1 7 1\nselp.b32 %r1, 0xFFFF, 1, %p1;\nbar.warp.sync %r1;",
            "bar.warp.sync -1;",
            "not in its own mask",
        ),
        (".loc 1 7 1\nAGAIN: bra AGAIN;", "bra ONCE;\nONCE:", "more than 65536 instructions"),
        (".loc 1 7 1\ntrap;", "", "trap"),
    ] {
        let error = launch(broken).expect_err(broken).to_string();
        assert!(error.contains(says) && error.contains("(text.rs:7)"), "{broken}: {error}");
        launch(correct).unwrap_or_else(|error| panic!("{correct}: {error}"));
    }
}

/// What a kernel does with its parameter, a tensor map that is aligned like this.
fn launch_with_map(align: u32) -> Result<()> {
    let module = Module::parse(&format!(
        ".version 8.0\n.target sm_90a\n.address_size 64\n\
        .visible .entry k(.param .b32 first, .param .align {align} .b8 map[128])\n{{\n.shared .align 128 .b8 tile[128];\n\
        .reg .b64 %rd<2>;\n.reg .b32 %r<2>;\nmov.b64 %rd1, map;\nmov.b32 %r1, 0;\n.loc 1 7 1\n\
        cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%rd1, {{%r1}}], [tile];\nret;\n}}\n.file 1 \"text.rs\"\n"
    ))?;
    module.launch(&Device::new(Arch::Sm90a), "k", LaunchShape::default(), &[&[0; 4], &[0; 128]]).map(drop)
}

#[test]
fn a_tensor_map_off_its_alignment_is_found() {
    let error = launch_with_map(16).unwrap_err().to_string();
    assert!(error.contains("is not aligned to 64 bytes") && error.contains("(text.rs:7)"), "{error}");
    // Aligned, it is looked at, and is no map.
    let error = launch_with_map(64).unwrap_err().to_string();
    assert!(error.contains("there is no tensor map"), "{error}");
}
