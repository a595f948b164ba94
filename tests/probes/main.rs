//! The meaning of every wrapper of `cuda_std`: its probe is launched on the device and compared with the CPU.
//!
//! There is one trial for each probe and architecture, named after both, and one more that checks that no probe is left
//! out. Values are chosen so that results are exact, and are compared bit by bit, in every lane and register.

mod convert;
mod copy;
mod matrix;
mod memory;
mod thread;
mod tma;
mod warp;
mod wgmma;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::OnceLock;

use ferrotile::{Buffer, Element, Gpu, KernelParam, LaunchConfig, Module, Stream};
use layout::{Arch, SmemLayout};
use libtest_mimic::{Failed, Trial};
use tests::probe_ptx::probe_ptx;
use tests::{Device, device, device_trial, note_words, run_trials};

/// The test of one probe, which has its name.
struct Test {
    probe: &'static str,
    /// The oldest architecture that has the probe.
    since: Arch,
    body: fn(&Probe<'_>) -> Result<(), Failed>,
}

impl Test {
    const fn new(probe: &'static str, body: fn(&Probe<'_>) -> Result<(), Failed>) -> Test {
        Test { probe, since: Arch::Sm80, body }
    }

    const fn since(self, since: Arch) -> Test {
        Test { since, ..self }
    }
}

/// A probe that is loaded on the device under test.
struct Probe<'a> {
    name: &'a str,
    gpu: Gpu,
    module: Module,
    stream: Stream,
}

/// What an output holds before the launch, and its guard words still after it.
const POISON: u32 = 0xdead_beef;

/// The guard words behind an output.
const GUARD_WORDS: usize = 64;

impl Probe<'_> {
    fn load<'a>(gpu: &Gpu, arch: Arch, name: &'a str) -> Result<Probe<'a>, Failed> {
        // One load an architecture; the trials run on several threads.
        static MODULES: [OnceLock<Result<Module, String>>; Arch::ALL.len()] =
            [const { OnceLock::new() }; Arch::ALL.len()];
        let load = || gpu.load_ptx(probe_ptx(arch)).map_err(|error| error.to_string());
        let module = MODULES[arch as usize].get_or_init(load).clone()?;
        Ok(Probe { name, gpu: gpu.clone(), module, stream: gpu.new_stream()? })
    }

    fn upload<T: Element>(&self, values: &[T]) -> Result<Buffer<T>, Failed> {
        Ok(Buffer::upload_blocking(&self.stream, values)?)
    }

    /// A poisoned output of `words` words and its guard.
    fn output(&self, words: usize) -> Result<Buffer<u32>, Failed> {
        self.upload(&vec![POISON; words + GUARD_WORDS])
    }

    /// The words of an output, whose guard must be untouched.
    fn read(&self, output: &Buffer<u32>) -> Result<Vec<u32>, Failed> {
        let mut words = output.download_blocking(&self.stream)?;
        let guard = words.split_off(words.len() - GUARD_WORDS);
        if guard.iter().any(|&word| word != POISON) {
            return Err(format!("{} wrote behind its output", self.name).into());
        }
        note_words(&words);
        Ok(words)
    }

    /// Launches the probe and waits for it.
    fn launch(&self, config: &LaunchConfig, params: &[&dyn KernelParam]) -> Result<(), Failed> {
        let kernel = self.module.kernel(self.name)?;
        // SAFETY: every test passes the parameters that its probe declares, and buffers that outlive the wait.
        unsafe { kernel.launch(self.stream.as_ref(), config, params)? };
        Ok(self.stream.synchronize()?)
    }

    /// Launches the probe with a fresh output as its first parameter and returns what it wrote.
    fn run(&self, config: &LaunchConfig, words: usize, params: &[&dyn KernelParam]) -> Result<Vec<u32>, Failed> {
        let output = self.output(words)?;
        let address = output.as_raw();
        let first: &dyn KernelParam = &address;
        self.launch(config, &[&[first], params].concat())?;
        self.read(&output)
    }
}

/// So many blocks of so many threads, without dynamic shared memory.
const fn blocks_of(blocks: u32, threads: u32) -> LaunchConfig {
    LaunchConfig { grid: [blocks, 1, 1], block: [threads, 1, 1], cluster: [1; 3], shared_bytes: 0, overlaps: false }
}

/// One warp with the shared memory of a map.
fn one_warp(map: &SmemLayout) -> LaunchConfig {
    LaunchConfig { shared_bytes: map.total_bytes(), ..blocks_of(1, 32) }
}

/// One warp without dynamic shared memory.
const WARP: LaunchConfig = blocks_of(1, 32);

/// Compares a result with what it ought to be; `place` says in words where an index is.
fn expect_equal<T: PartialEq + Debug>(
    got: &[T],
    expected: &[T],
    place: impl Fn(usize) -> String,
) -> Result<(), Failed> {
    if got.len() != expected.len() {
        return Err(format!("{} values, expected {}", got.len(), expected.len()).into());
    }
    match got.iter().zip(expected).position(|(got, expected)| got != expected) {
        None => Ok(()),
        Some(at) => Err(format!("{}: got {:x?}, expected {:x?}", place(at), got[at], expected[at]).into()),
    }
}

/// Compares the words of 32 lanes, `words` in each.
fn expect_lanes(got: &[u32], words: usize, expected: impl Fn(u32) -> Vec<u32>) -> Result<(), Failed> {
    let expected: Vec<u32> = (0..32).flat_map(expected).collect();
    expect_equal(got, &expected, |at| format!("lane {}, word {}", at / words, at % words))
}

fn main() -> ExitCode {
    let groups = [
        thread::TESTS,
        warp::TESTS,
        memory::TESTS,
        copy::TESTS,
        convert::TESTS,
        matrix::TESTS,
        tma::TESTS,
        wgmma::TESTS,
        &wgmma::PRODUCT_TESTS,
    ];
    let wmma = matrix::wmma_tests();
    let tests: Vec<&'static Test> = groups.into_iter().flatten().chain(wmma).collect();
    let mut trials = Vec::new();
    for arch in Arch::ALL {
        if let Device::Gpu(gpu) = device() {
            let (major, minor) = gpu.compute_capability();
            if !arch.runs_on(major, minor) {
                continue;
            }
        }
        for test in tests.iter().filter(|test| arch >= test.since) {
            let Test { probe, body, .. } = **test;
            trials.push(device_trial(format!("{arch}::{probe}"), move |gpu| body(&Probe::load(gpu, arch, probe)?)));
        }
    }
    trials.push(Trial::test("every_probe_has_a_test", move || {
        for arch in Arch::ALL {
            let module = cuda_builder::ptx::Module::parse(probe_ptx(arch))?;
            let probes: BTreeSet<&str> = module.entries.iter().map(|entry| &*entry.name).collect();
            let tested: BTreeSet<&str> =
                tests.iter().filter(|test| arch >= test.since).map(|test| test.probe).collect();
            if probes != tested {
                let difference: Vec<_> = probes.symmetric_difference(&tested).collect();
                return Err(format!("{arch}: probe or test is missing: {difference:?}").into());
            }
        }
        Ok(())
    }));
    run_trials(trials)
}
