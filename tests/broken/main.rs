//! Kernels with one fault each. The emulator finds the fault by the check that is meant for it, and names its line of
//! Rust. It reports nothing for the same kernel without the fault.
//!
//! The kernels are those of `kernels-gpu/broken`, where a comment marks the line; what Rust cannot say is PTX in
//! `text`.

mod text;

use std::fs;
use std::path::Path;

use layout::Arch;
use layout::Swizzle;
use ptx_emulator::tensor_map::{ElementType, TensorMap};
use ptx_emulator::{Device, Error, LaunchShape, Module, Result};
use variants::broken::{FACTOR_ROWS, HOPPER, MAP, TENSOR_ROWS, THREADS, TILES, WARPGROUP, WORDS};

/// A kernel with a fault.
struct Case {
    /// The kernels are `<name>_broken` and `<name>_correct`.
    name: &'static str,
    /// What the error says.
    says: &'static str,
    blocks: u32,
    /// Whether the output has values before the launch.
    output_is_written: bool,
    /// Whether it is one of a warpgroup with a tensor map.
    hopper: bool,
}

const fn case(name: &'static str, says: &'static str) -> Case {
    Case { name, says, blocks: 1, output_is_written: true, hopper: false }
}

const fn hopper(name: &'static str, says: &'static str) -> Case {
    Case { hopper: true, ..case(name, says) }
}

const CASES: &[Case] = &[
    case("copy_wait", "the first is asynchronous and not waited for"),
    case("copy_group", "the first is asynchronous and not waited for"),
    case("copy_barrier", "no synchronisation orders them"),
    case("copy_overwritten", "the first is asynchronous and not waited for"),
    case("stage_reuse", "no synchronisation orders them"),
    case("copy_misaligned", "not aligned"),
    case("copy_tail", "out of bounds"),
    case("block_barrier", "no synchronisation orders them"),
    case("second_barrier", "no synchronisation orders them"),
    case("divergent_barrier", "waits for lanes of its warp"),
    case("barrier_count", "barrier 1 is of 64 threads for others, of 96 threads here"),
    case("barrier_arrival", "waits at barrier 2"),
    Case { blocks: 2, ..case("block_race", "race on global memory") },
    Case { blocks: 2, ..case("block_flag", "race on global memory") },
    case("tail", "out of bounds"),
    case("head", "out of bounds"),
    case("misaligned", "not aligned"),
    case("shared_end", "out of bounds"),
    case("shared_unwritten", "nothing wrote"),
    Case { output_is_written: false, ..case("global_unwritten", "nothing wrote") },
    case("swizzle", "nothing wrote"),
    case("matrix_row", "not aligned"),
    case("arrivals_exceeded", "64 arrivals at an mbarrier that waits for 63"),
    case("arrivals_missing", "deadlock"),
    case("mbarrier_uninitialised", "not initialised"),
    case("mbarrier_race", "no synchronisation orders them"),
    case("phase_wait", "no synchronisation orders them"),
    case("shuffle_source", "takes no part"),
    case("shuffle_lanes", "waits for lanes of its warp"),
    case("warp_barrier", "no synchronisation orders them"),
    hopper("proxy_fence", "no proxy fence is between them"),
    hopper("store_fence", "no proxy fence is between them"),
    hopper("early_accumulator", "which no wgmma.wait_group waited for"),
    hopper("product_wait", "the first is asynchronous and not waited for"),
    hopper("product_warps", "other warps of the warpgroup have exited and did not execute it"),
    hopper("bytes_many", "8192 of 8208 expected bytes"),
    hopper("bytes_few", "no synchronisation orders them"),
    hopper("box_wait", "the first is asynchronous and not waited for"),
    hopper("box_parity", "the first is asynchronous and not waited for"),
    hopper("box_reuse", "no synchronisation orders them"),
    hopper("box_source", "the first is asynchronous and not waited for"),
    hopper("box_align", "no multiple of 1024 bytes, the period of its swizzle"),
    hopper("box_column", "8 bytes: no multiple of 16"),
];

/// Runs a kernel on an input of `TILES` tiles.
fn launch(module: &Module, kernel: &str, case: &Case) -> Result<()> {
    let device = Device::new(Arch::Sm90a);
    let bytes = (4 * TILES * WORDS) as usize;
    let (out, input) = (device.allocate(bytes as u64)?, device.allocate(bytes as u64)?);
    device.write(input, &vec![1; bytes])?;
    if case.output_is_written {
        device.write(out, &vec![0; bytes])?;
    }
    let (threads, map) = if case.hopper { (WARPGROUP, HOPPER) } else { (THREADS, MAP) };
    let shape = LaunchShape {
        grid: [case.blocks, 1, 1],
        block: [threads, 1, 1],
        shared_bytes: map.total_bytes(),
        ..LaunchShape::default()
    };
    let second = if case.hopper { tensor_map(&device)? } else { input.to_le_bytes().to_vec() };
    module.launch(&device, kernel, shape, &[&out.to_le_bytes(), &second]).map(drop)
}

/// The map of a tensor of two factors.
fn tensor_map(device: &Device) -> Result<Vec<u8>> {
    let row_bytes = u64::from(2 * FACTOR_ROWS);
    let tensor = device.allocate(u64::from(TENSOR_ROWS) * row_bytes)?;
    device.write(tensor, &vec![0; (u64::from(TENSOR_ROWS) * row_bytes) as usize])?;
    let map = TensorMap {
        element: ElementType::F16,
        address: tensor,
        dims: vec![FACTOR_ROWS.into(), TENSOR_ROWS.into()],
        strides_bytes: vec![row_bytes],
        box_dims: vec![FACTOR_ROWS, FACTOR_ROWS],
        swizzle: Swizzle::B128,
    };
    Ok(map.encode().expect("the map is valid").iter().flat_map(|word| word.to_le_bytes()).collect())
}

/// The places `file:line` with a comment that marks this fault: both sides of a race, where the order of warps decides
/// which of them finds it.
fn marked(name: &str) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels-gpu/broken/src");
    let mut places = Vec::new();
    for file in fs::read_dir(folder).expect("the sources are beside the tests").flatten() {
        let text = fs::read_to_string(file.path()).unwrap();
        let is_marked = |line: &str| {
            let names = line.split_once("// fault: ").map_or("", |parts| parts.1);
            names.split(", ").any(|marked| marked == name)
        };
        let lines = text.lines().enumerate().filter(|(_, line)| is_marked(line));
        places.extend(lines.map(|(at, _)| format!("broken/src/{}:{}", file.file_name().display(), at + 1)));
    }
    places
}

#[test]
fn every_fault_is_found_at_its_line() {
    let module = Module::parse(include_str!(concat!(env!("OUT_DIR"), "/broken.ptx"))).unwrap();
    let mut wrong = Vec::new();
    for case in CASES {
        let places = marked(case.name);
        assert!(!places.is_empty(), "{} has no mark", case.name);
        match launch(&module, &format!("{}_broken", case.name), case) {
            Ok(()) => wrong.push(format!("{}: no error", case.name)),
            Err(error) => {
                // A deadlock names the place of every warp.
                let at = match &error {
                    Error::Fault { place, .. } => place.to_string(),
                    other => other.to_string(),
                };
                let text = error.to_string();
                if !text.contains(case.says) || !places.iter().any(|place| at.contains(&format!("{place})"))) {
                    wrong.push(format!("{}: expected `{}` at {places:?}, got: {text}", case.name, case.says));
                }
            }
        }
        if let Err(error) = launch(&module, &format!("{}_correct", case.name), case) {
            wrong.push(format!("{} without its fault: {error}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kernel_has_a_case() {
    let module = Module::parse(include_str!(concat!(env!("OUT_DIR"), "/broken.ptx"))).unwrap();
    let mut kernels: Vec<&str> = module.kernels().collect();
    let mut expected: Vec<String> =
        CASES.iter().flat_map(|case| ["broken", "correct"].map(|kind| format!("{}_{kind}", case.name))).collect();
    kernels.sort_unstable();
    expected.sort_unstable();
    assert_eq!(kernels, expected);
}
