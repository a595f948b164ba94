//! What a text says it is for, and what it may then contain and where it runs.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module, Version};

fn with(version: &str, target: &str, body: &str) -> String {
    format!(
        ".version {version}\n.target {target}\n.address_size 64\n.visible .entry k()\n{{\n.reg .pred %p<4>;\n\
        .reg .b16 %h<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n{body}\nret;\n}}\n"
    )
}

#[test]
fn a_text_begins_with_its_version_and_target() {
    let entry = ".entry k() { ret; }";
    for (header, line, problem) in [
        ("", 1, "begins with `.version` and `.target`"),
        (".target sm_80\n", 1, "begins with `.version`"),
        ("// nothing\n\n.version 8.0\n", 4, "begins with `.target`"),
        (".file 1 \"a\"\n.version 8.0\n.target sm_80\n", 1, "begins with `.version`"),
        (".version 8.9\n.target sm_80\n", 1, "`.version 8.9` is none"),
        (".version 99.0\n.target sm_80\n", 1, "`.version 99.0` is none"),
        (".version 8\n.target sm_80\n", 1, "`.version 8` is none"),
        (".version 8.0\n.target sm_81\n", 2, "no target `sm_81`"),
        (".version 8.0\n.target hopper\n", 2, "no target `hopper`"),
        (".version 8.0\n.target sm_80a\n", 2, "no target `sm_80a`"),
        (".version 6.0\n.target sm_80\n", 2, "PTX 6.0 has no target sm_80"),
        (".version 7.8\n.target sm_90a\n", 2, "PTX 7.8 has no target sm_90a"),
        (".version 8.0\n.target sm_80, fast\n", 2, "no option `fast`"),
        (".version 8.0\n.target sm_80\n.address_size 32\n", 3, "addresses of `32` bits"),
    ] {
        let text = format!("{header}{entry}");
        match Module::parse(&text) {
            Err(Error::Header { place, problem: found }) => {
                assert!(place.line == line && found.contains(problem), "{text}: line {}: {found}", place.line);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for header in [
        ".version 8.0 .target sm_80",
        "/* a */ .version 8.0 // b\n.target sm_80 .address_size 64",
        ".version 8.0 .target sm_80, texmode_independent",
        ".version 8.0 .target sm_80 .target sm_90",
    ] {
        let module = Module::parse(&format!("{header} {entry}")).unwrap_or_else(|error| panic!("{header}: {error}"));
        assert_eq!(module.version(), Version { major: 8, minor: 0 });
    }
    // Behind the header it is no directive.
    for late in [".version 8.0", ".target sm_90", ".address_size 64"] {
        let text = format!(".version 8.0 .target sm_80 {entry} {late}");
        assert!(matches!(Module::parse(&text), Err(Error::Unsupported { .. })), "{text}");
    }
}

#[test]
fn a_text_runs_where_a_driver_would_load_it() {
    for (version, target, runs) in [
        ("6.0", "sm_52", [true, true, true]),
        ("7.0", "sm_80", [true, true, true]),
        ("7.1", "sm_86", [false, true, true]),
        ("7.8", "sm_89", [false, true, true]),
        ("7.8", "sm_90", [false, false, true]),
        ("8.0", "sm_90a", [false, false, true]),
        ("8.6", "sm_100", [false, false, false]),
        ("8.6", "sm_100a", [false, false, false]),
        ("8.8", "sm_100f", [false, false, false]),
    ] {
        let module = Module::parse(&with(version, target, "")).unwrap();
        assert_eq!(module.target().to_string(), target);
        for (arch, runs) in Arch::ALL.into_iter().zip(runs) {
            let device = Device::new(arch);
            let result = module.launch(&device, "k", LaunchShape::default(), &[]);
            assert_eq!(result.is_ok(), runs, "{target} on {arch}: {result:?}");
            match result {
                Err(error @ Error::Device { .. }) => {
                    assert_eq!(error.to_string(), format!("the text is for {target}, which {arch} does not run"));
                    assert!(module.count(&device, "k", LaunchShape::default(), &[]).is_err());
                }
                other => drop(other.unwrap()),
            }
        }
    }
}

#[test]
fn what_the_version_or_the_target_does_not_have_is_an_error_when_it_is_loaded() {
    for (version, target, body, needs) in [
        ("5.0", "sm_60", "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", Some("6.0 sm_30")),
        ("6.0", "sm_60", "shfl.sync.idx.b32 %r1, %r2, 0, 31, -1;", None),
        ("7.0", "sm_75", "redux.sync.add.s32 %r1, %r2, -1;", Some("7.0 sm_80")),
        ("7.0", "sm_75", "cp.async.wait_all;", Some("7.0 sm_80")),
        ("7.0", "sm_80", "cp.async.wait_all;", None),
        ("8.0", "sm_80", "elect.sync %r1|%p1, -1;", Some("8.0 sm_90")),
        ("7.8", "sm_90", "elect.sync %r1|%p1, -1;", Some("8.0 sm_90")),
        ("8.0", "sm_90", "wgmma.fence.sync.aligned;", Some("8.0 sm_90a")),
        ("8.6", "sm_100a", "wgmma.fence.sync.aligned;", Some("8.0 sm_90a")),
        ("8.0", "sm_90a", "wgmma.fence.sync.aligned;", None),
        ("8.0", "sm_90", "setmaxnreg.dec.sync.aligned.u32 24;", Some("8.0 sm_90a")),
        ("8.6", "sm_100a", "setmaxnreg.dec.sync.aligned.u32 24;", None),
        ("8.0", "sm_80", "mov.u32 %r1, %cluster_nctaid.x;", Some("7.8 sm_90")),
        ("8.0", "sm_80", "mbarrier.arrive.shared.b64 %rd1, [%r1];", None),
        ("8.0", "sm_80", "mbarrier.arrive.shared.b64 %rd1, [%r1], 2;", Some("7.8 sm_90")),
        ("8.0", "sm_80", "mbarrier.try_wait.parity.shared.b64 %p1, [%r1], 0;", Some("7.8 sm_90")),
        ("7.0", "sm_80", "mbarrier.test_wait.parity.shared.b64 %p1, [%r1], 0;", Some("7.1 sm_80")),
        ("7.0", "sm_80", "add.rn.bf16x2 %r1, %r2, %r3;", Some("7.8 sm_90")),
        ("7.0", "sm_80", "fma.rn.bf16x2 %r1, %r2, %r3, %r4;", None),
        ("8.0", "sm_89", "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2;", Some("7.8 sm_90")),
        ("8.1", "sm_89", "cvt.rn.satfinite.e4m3x2.f32 %h1, %r1, %r2;", None),
        ("7.0", "sm_80", "ld.global.L1::no_allocate.b32 %r1, [%rd1];", Some("7.4 sm_70")),
        ("6.0", "sm_60", "ld.acquire.gpu.global.b32 %r1, [%rd1];", Some("6.0 sm_70")),
        ("8.7", "sm_90a", "ld.global.v4.b64 {%rd1, %rd2, %rd3, %rd4}, [%rd1];", Some("8.8 sm_100")),
        ("6.0", "sm_52", "atom.global.add.f64 %rd1, [%rd1], 0d3FF0000000000000;", Some("5.0 sm_60")),
    ] {
        let text = with(version, target, body);
        match (Module::parse(&text), needs) {
            (Ok(_), None) => {}
            (Err(Error::NotInTarget { place, needed_version, needed_target, .. }), Some(needs)) => {
                let found = format!("{needed_version} {needed_target}");
                assert_eq!((place.line, found.as_str()), (10, needs), "{text}");
            }
            (other, _) => panic!("{body} in PTX {version} for {target}: {:?}", other.map(drop)),
        }
    }
    let clusters = ".version 8.0\n.target sm_80\n.entry k()\n.reqnctapercluster 2\n{ ret; }";
    let error = Module::parse(clusters).unwrap_err().to_string();
    let expected = "PTX line 4: `reqnctapercluster` needs PTX 7.8 and sm_90; the text is of PTX 8.0 for sm_80";
    assert_eq!(error, expected);
}
