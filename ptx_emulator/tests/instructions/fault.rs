//! What running kernels do wrong, and how it is said.

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module};

use crate::{fault, kernel, launch};

fn problem(body: &str) -> String {
    match fault(body) {
        Error::Fault { problem, .. } => problem,
        error => panic!("{body}: {error}"),
    }
}

#[test]
fn accesses_out_of_bounds_misaligned_or_of_nothing_written() {
    for (body, expected) in [
        ("st.global.b32 [%rd9+256], 1;", "out of bounds"),
        ("ld.global.b32 %r1, [%rd9+-4];", "out of bounds"),
        ("ld.global.b32 %r1, [%rd9+2];", "not aligned"),
        ("mov.b64 %rd1, 0; ld.global.b32 %r1, [%rd1];", "out of bounds"),
        ("mov.b64 %rd1, -1; ld.b8 %r1, [%rd1];", "out of bounds"),
        ("mov.b32 %r1, dynamic; ld.shared.b32 %r2, [%r1+1024];", "out of bounds"),
        ("mov.b32 %r1, dynamic; ld.shared.v4.b32 {%r2, %r3, %r4, %r5}, [%r1+8];", "not aligned"),
        ("mov.b32 %r1, dynamic; ld.shared.b32 %r2, [%r1];", "nothing wrote"),
        ("mov.b32 %r1, -8; mbarrier.init.shared.b64 [%r1], 1;", "no mbarrier can be at"),
        ("mov.b64 %rd1, -8; mbarrier.init.shared.b64 [%rd1], 1;", "no mbarrier can be at"),
        ("mov.b32 %r1, dynamic; mbarrier.arrive.shared.b64 _, [%r1];", "not initialised"),
        ("mov.b32 %r1, dynamic; cp.async.ca.shared.global [%r1], [%rd9+2], 4;", "not aligned"),
        ("mov.b32 %r1, dynamic; cp.async.ca.shared.global [%r1+1024], [%rd9], 4;", "out of bounds"),
        ("ld.local.b32 %r1, [0];", "out of bounds"),
        ("trap;", "trap"),
        ("shfl.sync.idx.b32 %r0, %r1, 0, 31, 1;", "not in its own mask"),
        (
            "setp.lt.u32 %p1, %r9, 16; @%p1 ret; mov.b32 %r1, 0; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r2}, [%r1];",
            "only the lanes",
        ),
    ] {
        let problem = problem(body);
        assert!(problem.contains(expected), "{body}: {problem}");
    }
}

#[test]
fn a_call_that_never_returns_is_a_panic() {
    let functions = ".func gives_up\n()\n.noreturn;\n.func gives_up() .noreturn\n{ trap; { exit; } }";
    let ptx = kernel(functions, "setp.eq.u32 %p1, %r9, 3; @%p1 call.uni gives_up, ();");
    let error = launch(&ptx, 32, 0, 32).unwrap_err().to_string();
    assert!(error.contains("the lanes 0x00000008 panic"), "{error}");
}

#[test]
fn an_error_says_who_and_where() {
    let body = ".loc 3 17 5\nsetp.eq.u32 %p1, %r9, 37;\n@%p1 st.global.b32 [%rd9+4096], 1;";
    let ptx = kernel("", body) + ".file 3 \"src/kernel.rs\"\n";
    let error = launch(&ptx, 64, 0, 64).unwrap_err().to_string();
    let expected = "`k`, block (0, 0, 0), warp 1, lane 5, PTX line 17 (src/kernel.rs:17): 4 bytes of global memory at";
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn the_first_block_with_a_fault_is_named_whatever_runs_first() {
    let body = "mov.u32 %r1, %ctaid.x; setp.ge.u32 %p1, %r1, 57; @%p1 trap;";
    let module = Module::parse(&kernel("", body)).unwrap();
    let device = Device::new(Arch::Sm90a);
    let shape = LaunchShape { grid: [200, 1, 1], ..LaunchShape::default() };
    for _ in 0..20 {
        let error = module.launch(&device, "k", shape, &[&[0; 8]]).unwrap_err();
        assert!(matches!(error, Error::Fault { thread, .. } if thread.block == [57, 0, 0]), "{error}");
    }
}

#[test]
fn launches_that_do_not_fit_run_nothing() {
    let bounds = ".visible .entry k(.param .u64 out)\n.maxntid 64\n{ ret; }";
    let module = Module::parse(&format!(".version 7.0\n.target sm_80\n.address_size 64\n{bounds}")).unwrap();
    let device = Device::new(Arch::Sm80);
    let fits = LaunchShape { block: [64, 1, 1], ..LaunchShape::default() };
    let params: &[&[u8]] = &[&[0; 8]];
    assert!(module.launch(&device, "k", fits, params).is_ok());
    for shape in [
        LaunchShape { block: [65, 1, 1], ..fits },
        LaunchShape { block: [0, 1, 1], ..fits },
        LaunchShape { grid: [1, 0, 1], ..fits },
        LaunchShape { grid: [3, 1, 1], cluster: [2, 1, 1], ..fits },
        LaunchShape { cluster: [0, 1, 1], ..fits },
        LaunchShape { shared_bytes: u32::MAX, ..fits },
    ] {
        assert!(matches!(module.launch(&device, "k", shape, params), Err(Error::Launch { .. })), "{shape:?}");
    }
    assert!(matches!(module.launch(&device, "k", fits, &[]), Err(Error::Launch { .. })));
    assert!(matches!(module.launch(&device, "none", fits, params), Err(Error::NoKernel { .. })));
}

#[test]
fn blocks_that_touch_the_same_bytes_race() {
    let run = |body: &str| {
        let module = Module::parse(&kernel("", body)).unwrap();
        let device = Device::new(Arch::Sm90a);
        let out = device.allocate(64).unwrap();
        device.write(out, &[0; 64]).unwrap();
        let shape = LaunchShape { grid: [8, 1, 1], ..LaunchShape::default() };
        module.launch(&device, "k", shape, &[&out.to_le_bytes()]).map(|_| {
            let mut word = [0; 4];
            device.read(out, &mut word).unwrap();
            u32::from_le_bytes(word)
        })
    };
    let index = "mov.u32 %r1, %ctaid.x; mul.wide.u32 %rd1, %r1, 4; add.s64 %rd1, %rd1, %rd9;";
    let own = run(&format!("{index} st.global.b32 [%rd1], 5; ld.global.b32 %r2, [%rd1];"));
    assert_eq!(own.unwrap(), 5);
    assert_eq!(run("atom.global.add.u32 %r2, [%rd9], 3;").unwrap(), 24);
    assert!(run("ld.global.b32 %r2, [%rd9];").is_ok());
    assert!(run("st.relaxed.gpu.global.b32 [%rd9], 7;").is_ok());
    for body in ["st.global.b32 [%rd9], 7;", &format!("{index} st.global.b32 [%rd1], 7; ld.global.b32 %r2, [%rd9];")] {
        let error = run(body).unwrap_err().to_string();
        assert!(error.contains("race on global memory"), "{error}");
    }
}

#[test]
fn a_loop_without_an_end_is_an_error_where_there_is_a_limit() {
    let module = Module::parse(&kernel("", "FOREVER: add.u32 %r1, %r1, 1;\nbra FOREVER;")).unwrap();
    let device = Device::new(Arch::Sm90a).with_instruction_limit(1 << 20);
    let error = module.launch(&device, "k", LaunchShape::default(), &[&[0; 8]]).unwrap_err();
    let Error::InstructionLimit { limit, at, .. } = &error else { panic!("{error}") };
    assert_eq!(*limit, 1 << 20);
    assert!(at.starts_with("warp 0 (lanes 0x00000001) runs, PTX line 1"), "{at}");
}
