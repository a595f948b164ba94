//! The pipeline on a small device crate, for every architecture.

use std::path::Path;

use cuda_builder::{Arch, Build, CudaBuilder, Error};

fn build(arch: Arch) -> Build {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    CudaBuilder::new(fixture).arch(arch).build().unwrap_or_else(|error| panic!("{error}"))
}

// Each architecture has a `core` of its own to compile, and the tests of the families build for sm_89 too.
#[test]
fn ptx_of_sm_80_is_pinned_marked_and_free_of_local_paths() {
    check_ptx(Arch::Sm80);
}

#[test]
fn ptx_of_sm_90a_is_pinned_marked_and_free_of_local_paths() {
    check_ptx(Arch::Sm90a);
}

fn check_ptx(arch: Arch) {
    let build = build(arch);
    let module = build.module();
    assert_eq!(module.version, arch.ptx_version());
    assert_eq!(module.target, arch.target_cpu(), "line tables leave no `debug` behind the target");

    let mut names: Vec<_> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
    names.sort();
    let expected: &[_] = if arch == Arch::Sm90a { &["cluster", "scale", "tensor_map"] } else { &["scale"] };
    assert_eq!(names, expected);

    let scale = module.entry("scale").unwrap();
    assert_eq!((scale.max_threads, scale.min_blocks), (Some(128), Some(2)));
    assert_eq!(scale.count("shfl.sync"), 2, "the two shuffles stay in their branches:\n{}", build.ptx());
    assert_eq!((scale.count("bar.sync"), scale.uses_local, scale.generic_accesses()), (1, false, 0));
    let sizes: Vec<_> = scale.parameters.iter().map(|parameter| parameter.size_bytes).collect();
    assert_eq!(sizes, [8, 16]);

    if arch == Arch::Sm90a {
        let map = &module.entry("tensor_map").unwrap().parameters[1];
        assert_eq!((map.size_bytes, map.align_bytes), (128, 64));
        let cluster = module.entry("cluster").unwrap();
        assert_eq!((cluster.cluster, cluster.max_threads), (Some([2, 1, 1]), Some(32)));
    }

    let ptx = build.ptx();
    assert!(ptx.contains(".loc") && ptx.contains("./src/lib.rs\""), "{ptx}");
    for absent in [env!("CARGO_MANIFEST_DIR"), ".rustup", ".section", "__kernel_record"] {
        assert!(!ptx.contains(absent), "{absent} in:\n{ptx}");
    }
}

#[test]
fn compile_errors_are_shown_as_rustc_prints_them() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("Cargo.toml"), "[package]\nname = \"broken\"\nedition = \"2024\"\n[workspace]\n")
        .unwrap();
    std::fs::write(folder.join("src/lib.rs"), "#![no_std]\npub fn f() -> u32 { \"text\" }\n").unwrap();
    // The toolchain is that of this repository.
    let toolchain = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml");
    std::fs::copy(toolchain, folder.join("rust-toolchain.toml")).unwrap();
    match CudaBuilder::new(&folder).build() {
        Err(Error::Compile { output, .. }) => {
            assert!(output.contains("error[E0308]: mismatched types") && output.contains("src/lib.rs:2"), "{output}");
        }
        other => panic!("{other:?}"),
    }
}
