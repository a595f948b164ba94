//! Modules, devices and launches.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use layout::Arch;

use crate::counters::{Counters, Tally};
use crate::error::{Error, Result};
use crate::execute::Simd;
use crate::front::{self, Text};
use crate::grid::{Grid, MAX_LOCAL_BYTES, Running};
use crate::memory::{GlobalMemory, MemoryError, OwnedMemory, Space};
use crate::program::Program;
use crate::progress::Watch;
use crate::report::Report;
use crate::shadow::{LaunchShadow, Mark};
use crate::shape::LaunchShape;
use crate::target::{Header, Target, Version};
use crate::tensor_core::wgmma::Fp8Sums;
use crate::variables::{ModuleVariables, Placed, Variable};

/// Threads of a block (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
const MAX_THREADS: u64 = 1024;
/// Blocks of a cluster, where the kernel asks for more than the 8 that every card has.
const MAX_CLUSTER: u64 = 16;
/// Blocks of a launch: many days of work.
const MAX_BLOCKS: u64 = 1 << 26;
/// Clusters that are in flight at a time where they talk to each other: a block on each multiprocessor of an H100.
const RESIDENT_CLUSTERS: usize = 132;

/// The kernels of a PTX text. Clones are the same module.
#[derive(Debug, Clone)]
pub struct Module {
    programs: Vec<Arc<Program>>,
    variables: Arc<Vec<Variable>>,
    version: Version,
    target: Target,
}

/// What a kernel needs of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFacts {
    /// Static shared memory of a block.
    pub static_shared_bytes: u32,
    /// Local memory of a thread.
    pub local_bytes: u32,
    /// Threads that a block may have.
    pub max_threads: u32,
}

/// An emulated card: its memory and its limits.
#[derive(Debug)]
pub struct Device {
    arch: Arch,
    instruction_limit: AtomicU64,
    full_fp8_sums: AtomicBool,
    memory: GlobalMemory,
    variables: ModuleVariables,
    printed: Mutex<String>,
}

impl Device {
    /// The default limit: a launch fails when one of its blocks has executed this many instructions, counted once for a
    /// warp. That is about a minute of work, and more than a block of most kernels needs.
    pub const INSTRUCTION_LIMIT: u64 = 1 << 28;

    /// A card of this architecture with 80 GiB of memory, of which only what is written takes space on the host.
    #[must_use]
    pub fn new(arch: Arch) -> Device {
        let instruction_limit = AtomicU64::new(Self::INSTRUCTION_LIMIT);
        Device {
            arch,
            instruction_limit,
            full_fp8_sums: AtomicBool::new(false),
            memory: GlobalMemory::new(),
            variables: ModuleVariables::default(),
            printed: Mutex::default(),
        }
    }

    /// The same card with another limit than [`INSTRUCTION_LIMIT`](Self::INSTRUCTION_LIMIT): a launch fails when one of
    /// its blocks has executed this many instructions. So a loop without an end is an error. The limit is checked at
    /// the end of each warp's turn.
    #[must_use]
    pub fn with_instruction_limit(self, instructions: u64) -> Device {
        self.set_instruction_limit(instructions);
        self
    }

    /// [`with_instruction_limit`](Self::with_instruction_limit) for the launches from now on.
    pub fn set_instruction_limit(&self, instructions: u64) {
        self.instruction_limit.store(instructions, Ordering::Relaxed);
    }

    /// How precise the FP8 sums of `wgmma` are in the launches from now on; [reduced](Fp8Sums::Reduced), as those of a
    /// card, until this is called.
    pub fn set_fp8_sums(&self, sums: Fp8Sums) {
        self.full_fp8_sums.store(sums == Fp8Sums::Full, Ordering::Relaxed);
    }

    fn fp8_sums(&self) -> Fp8Sums {
        if self.full_fp8_sums.load(Ordering::Relaxed) { Fp8Sums::Full } else { Fp8Sums::Reduced }
    }

    /// Takes what kernels printed by `printf` since this was called last, of which the first 2^20 bytes are kept.
    ///
    /// ```
    /// use layout::Arch;
    /// use ptx_emulator::{Device, LaunchShape, Module};
    ///
    /// let module = Module::parse(
    ///     ".version 7.0 .target sm_80 .address_size 64
    ///     .extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
    ///     .global .align 1 .b8 text[7] = {104, 101, 108, 108, 111, 10, 0};
    ///     .visible .entry greet() {
    ///         .reg .b64 %rd<2>;
    ///         mov.u64 %rd1, text;
    ///         { .param .b64 format; st.param.b64 [format], %rd1;
    ///           .param .b64 arguments; st.param.b64 [arguments], 0;
    ///           .param .b32 count; call.uni (count), vprintf, (format, arguments); }
    ///         ret;
    ///     }",
    /// )?;
    /// let device = Device::new(Arch::Sm80);
    /// module.launch(&device, "greet", LaunchShape { block: [2, 1, 1], ..LaunchShape::default() }, &[])?;
    /// assert_eq!(device.take_printed(), "hello\nhello\n");
    /// # Ok::<(), ptx_emulator::Error>(())
    /// ```
    pub fn take_printed(&self) -> String {
        std::mem::take(&mut *self.printed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Its architecture.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &GlobalMemory {
        &self.memory
    }

    /// The most shared memory of a block, static and dynamic.
    #[must_use]
    pub fn shared_bytes_per_block(&self) -> u32 {
        self.arch.limits().shared_bytes_per_block
    }

    /// Allocates memory that nothing wrote yet.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is not as much.
    pub fn allocate(&self, bytes: u64) -> Result<u64> {
        self.memory.allocate(bytes).map_err(memory_error)
    }

    /// Frees what [`allocate`](Self::allocate) gave.
    ///
    /// # Errors
    /// [`Error::Memory`] where it is no such address.
    pub fn free(&self, address: u64) -> Result<()> {
        self.memory.free(address).map_err(memory_error)
    }

    /// Copies from the device.
    ///
    /// Bytes that nothing wrote read as zero, as from new memory of a card.
    ///
    /// # Errors
    /// [`Error::Memory`] where the bytes are not in one allocation.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<()> {
        match self.memory.view().copy_out(address, into) {
            Ok(()) | Err(MemoryError::Uninitialised { .. }) => Ok(()),
            Err(error) => Err(memory_error(error)),
        }
    }

    /// Copies to the device.
    ///
    /// # Errors
    /// [`Error::Memory`] where the bytes are not in one allocation.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.view().copy_in(address, bytes).map_err(memory_error)
    }
}

fn memory_error(error: MemoryError) -> Error {
    Error::Memory { problem: error.to_string() }
}

impl Module {
    /// Reads a PTX text.
    ///
    /// # Errors
    /// [`Error::Header`] where the text does not say what it is for; [`Error::Syntax`] where it is not PTX;
    /// [`Error::NotInTarget`] at the first instruction that its own version or target lacks; [`Error::Unsupported`] at
    /// the first instruction that the emulator does not know, whether or not it would ever be executed.
    pub fn parse(ptx: &str) -> Result<Module> {
        let Text { programs, header: Header { version, target }, variables } = front::parse(ptx)?;
        Ok(Module { programs, variables: Arc::new(variables), version, target })
    }

    /// The address and the bytes of a variable of the module, in global or constant memory of the device; `None` where
    /// no variable has this name. The variable has its initial value until a kernel or the host writes it.
    ///
    /// # Errors
    /// [`Error::Memory`] where the variables do not fit on the device.
    pub fn variable(&self, device: &Device, name: &str) -> Result<Option<(u64, u64)>> {
        let Some(index) = self.variables.iter().position(|variable| variable.name == name) else { return Ok(None) };
        Ok(Some((self.placed(device)?.addresses[index], self.variables[index].bytes)))
    }

    fn placed(&self, device: &Device) -> Result<Arc<Placed>> {
        device.variables.of(&device.memory, &self.variables).map_err(memory_error)
    }

    /// The version of PTX that the text is written in.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// What the text is for.
    #[must_use]
    pub fn target(&self) -> Target {
        self.target
    }

    /// Fails where a driver would not load the text on such a device.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn check_device(&self, device: Arch) -> Result<()> {
        let target = self.target;
        if target.runs_on(device) { Ok(()) } else { Err(Error::Device { target, device }) }
    }

    /// The names of its kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|program| program.name.as_str())
    }

    fn program(&self, kernel: &str) -> Result<&Program> {
        let program = self.programs.iter().find(|program| program.name == kernel);
        program.map(|program| &**program).ok_or_else(|| Error::NoKernel { kernel: kernel.to_owned() })
    }

    fn program_for(&self, device: &Device, kernel: &str) -> Result<&Program> {
        self.check_device(device.arch)?;
        self.program(kernel)
    }

    /// What a kernel needs of a launch.
    ///
    /// # Errors
    /// [`Error::NoKernel`] where there is none of this name.
    pub fn facts(&self, kernel: &str) -> Result<KernelFacts> {
        let program = self.program(kernel)?;
        Ok(KernelFacts {
            static_shared_bytes: program.shared_bytes,
            local_bytes: program.local_bytes,
            max_threads: program.max_threads.unwrap_or(MAX_THREADS as u32).min(MAX_THREADS as u32),
        })
    }

    /// Runs a kernel to its end. `params` are the bytes of its parameters.
    ///
    /// The blocks run on all cores of the CPU. Where a kernel has atomics, or volatile or ordered accesses to global
    /// memory, their order would show: then up to 132 blocks take turns on one core. The results do not depend on the
    /// number of cores.
    ///
    /// # Errors
    /// [`Error::NoKernel`], [`Error::Device`] and [`Error::Launch`] before anything runs; [`Error::Fault`],
    /// [`Error::Deadlock`], [`Error::NoProgress`] and [`Error::InstructionLimit`] of the first block, in the order of
    /// the grid, that has one. What other blocks wrote is then in memory.
    pub fn launch(&self, device: &Device, kernel: &str, shape: LaunchShape, params: &[&[u8]]) -> Result<Report> {
        Launch::new(self, self.program_for(device, kernel)?, device, (shape, params))?.run(None)
    }

    /// [`launch`](Self::launch), with counts of what each instruction did.
    ///
    /// # Errors
    /// Those of [`launch`](Self::launch).
    pub fn count(&self, device: &Device, kernel: &str, shape: LaunchShape, params: &[&[u8]]) -> Result<Counters> {
        let program = self.program_for(device, kernel)?;
        let tally = Mutex::new(Tally::new(program));
        Launch::new(self, program, device, (shape, params))?.run(Some(&tally))?;
        let tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Counters::new(program, shape, &tally))
    }
}

struct Launch<'a> {
    program: &'a Program,
    shape: LaunchShape,
    threads: u32,
    params: OwnedMemory,
    memory: &'a GlobalMemory,
    shared_bytes: u32,
    instruction_limit: u64,
    fp8_sums: Fp8Sums,
    simd: Simd,
    variables: Arc<Placed>,
    printed: &'a Mutex<String>,
}

impl<'a> Launch<'a> {
    fn new(
        module: &Module,
        program: &'a Program,
        device: &'a Device,
        (shape, params): (LaunchShape, &[&[u8]]),
    ) -> Result<Launch<'a>> {
        let refuse = |problem: String| Err(Error::Launch { kernel: program.name.clone(), problem });
        let product = |dims: [u32; 3]| dims.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim.into()));
        let threads = product(shape.block);
        let most = program.max_threads.map_or(MAX_THREADS, |most| MAX_THREADS.min(most.into()));
        if !(1..=most).contains(&threads) {
            return refuse(format!("a block of {threads} threads, of which there may be 1 to {most}"));
        }
        if let Some(required) = program.required_threads
            && required != shape.block
        {
            return refuse(format!("a block of {:?} threads, where the kernel requires {required:?}", shape.block));
        }
        if let Some(required) = program.cluster
            && required != shape.cluster
        {
            return refuse(format!("a cluster of {:?} blocks, where the kernel requires {required:?}", shape.cluster));
        }
        if product(shape.cluster) > MAX_CLUSTER {
            let problem = format!("a cluster of {:?} blocks, of which there may be up to {MAX_CLUSTER}", shape.cluster);
            return refuse(problem);
        }
        let divides = |(grid, cluster): (u32, u32)| cluster != 0 && grid % cluster == 0;
        if product(shape.grid) == 0 || !shape.grid.into_iter().zip(shape.cluster).all(divides) {
            return refuse(format!("a grid of {:?} blocks in clusters of {:?}", shape.grid, shape.cluster));
        }
        let shared_bytes = u64::from(program.shared_bytes) + u64::from(shape.shared_bytes);
        if shared_bytes > device.shared_bytes_per_block().into() {
            let most = device.shared_bytes_per_block();
            return refuse(format!("{shared_bytes} bytes of shared memory, of which a block may have {most}"));
        }
        if program.local_bytes > MAX_LOCAL_BYTES {
            return refuse(format!("{} bytes of local memory of a thread", program.local_bytes));
        }
        if params.len() != program.params.len() {
            return refuse(format!("{} parameters, where the kernel has {}", params.len(), program.params.len()));
        }
        let mut bytes = vec![0; program.param_bytes as usize];
        for (index, (given, param)) in params.iter().zip(&program.params).enumerate() {
            if given.len() != param.bytes as usize {
                return refuse(format!(
                    "parameter {index} of {} bytes, where the kernel has {}",
                    given.len(),
                    param.bytes
                ));
            }
            bytes[param.offset as usize..][..given.len()].copy_from_slice(given);
        }
        Ok(Launch {
            program,
            shape,
            threads: threads as u32,
            params: OwnedMemory::of(Space::Param, &bytes),
            memory: &device.memory,
            shared_bytes: shared_bytes as u32,
            instruction_limit: device.instruction_limit.load(Ordering::Relaxed),
            fp8_sums: device.fp8_sums(),
            simd: Simd::detect(),
            variables: if program.variables.is_empty() { Arc::default() } else { module.placed(device)? },
            printed: &device.printed,
        })
    }

    fn run(self, tally: Option<&Mutex<Tally>>) -> Result<Report> {
        let product = |dims: [u32; 3]| dims.iter().fold(1, |product: u64, &dim| product.saturating_mul(dim.into()));
        let blocks = product(self.shape.grid);
        let Launch { program, shape, threads, ref params, memory, shared_bytes, instruction_limit, fp8_sums, .. } =
            self;
        let (simd, variables, printed) = (self.simd, &*self.variables, self.printed);
        if blocks > MAX_BLOCKS {
            let problem = format!("{blocks} blocks, of which the emulator runs up to {MAX_BLOCKS}");
            return Err(Error::Launch { kernel: program.name.clone(), problem });
        }
        let clusters = blocks / product(shape.cluster);
        let grid = Grid {
            program,
            launch: shape,
            threads,
            params,
            shared_bytes,
            instruction_limit,
            fp8_sums,
            simd,
            variables,
            printed,
            tally,
        };
        if program.ordered { interleaved(&grid, memory, clusters) } else { parallel(&grid, memory, clusters) }
    }
}

/// Runs clusters that do not talk to each other, each on one core of the CPU, and looks for races between them in the
/// order of the grid. A block of a launch without clusters is a cluster of one.
fn parallel(grid: &Grid<'_>, memory: &GlobalMemory, clusters: u64) -> Result<Report> {
    let (next, ended) = (AtomicU64::new(0), Mutex::new(Ended::new()));
    let work = || {
        let mut running: Option<Running<'_>> = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= clusters {
                return;
            }
            let started = match &mut running {
                Some(running) => {
                    running.restart(index);
                    Ok(running)
                }
                // A view is for one thread at a time.
                none => grid.start(memory.view(), None, index).map(|started| none.insert(started)),
            };
            let outcome = started.and_then(|running| {
                let report = running.finish()?;
                // A single one races with no other.
                Ok((report, if clusters > 1 { running.publish() } else { Vec::new() }))
            });
            if outcome.is_err() {
                // Those behind it need not begin.
                next.fetch_max(clusters, Ordering::Relaxed);
            }
            ended.lock().unwrap_or_else(PoisonError::into_inner).add(grid, index, outcome);
        }
    };
    let others = clusters.min(rayon::current_num_threads() as u64) - 1;
    rayon::in_place_scope(|scope| {
        for _ in 0..others {
            scope.spawn(|_| work());
        }
        work();
    });
    let Ended { report, failure, .. } = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(report), Err)
}

/// The clusters that came to their end.
struct Ended {
    /// The first that did not, or whose predecessors did not.
    next: u64,
    /// Those behind it.
    waiting: BTreeMap<u64, Outcome>,
    shadow: LaunchShadow,
    report: Report,
    /// That of the first cluster of the grid that has one.
    failure: Option<Error>,
}

/// The counts of a cluster, and what it did to global memory.
type Outcome = Result<(Report, Vec<Mark>)>;

impl Ended {
    fn new() -> Ended {
        let (shadow, report) = (LaunchShadow::new(), Report::default());
        Ended { next: 0, waiting: BTreeMap::new(), shadow, report, failure: None }
    }

    fn add(&mut self, grid: &Grid<'_>, index: u64, outcome: Outcome) {
        self.waiting.insert(index, outcome);
        while self.failure.is_none()
            && let Some(outcome) = self.waiting.remove(&self.next)
        {
            let index = self.next;
            self.next += 1;
            let merged = outcome.and_then(|(report, marks)| {
                self.report.merge(&report);
                self.shadow.end(index as u32, &marks).map_err(|race| grid.race(index, &race))
            });
            self.failure = merged.err();
        }
    }
}

/// Runs clusters that talk to each other: round-robin, as many at a time as a card would, always in the same order.
fn interleaved(grid: &Grid<'_>, memory: &GlobalMemory, clusters: u64) -> Result<Report> {
    let shadow = Mutex::new(LaunchShadow::new());
    let (mut report, mut under_way, mut next) = (Report::default(), VecDeque::new(), 0);
    let (mut ended, mut watch): (Option<Running<'_>>, _) = (None, Watch::default());
    loop {
        while next < clusters && under_way.len() < RESIDENT_CLUSTERS {
            under_way.push_back(match ended.take() {
                Some(mut running) => {
                    running.restart(next);
                    running
                }
                None => grid.start(memory.view(), Some(&shadow), next)?,
            });
            next += 1;
        }
        let Some(mut running) = under_way.pop_front() else { return Ok(report) };
        match running.round(&mut watch, under_way.len() as u64 + 1)? {
            Some(counts) => {
                report.merge(&counts);
                let (index, marks) = (running.index(), running.publish());
                let mut shadow = shadow.lock().unwrap_or_else(PoisonError::into_inner);
                shadow.end(index as u32, &marks).map_err(|race| grid.race(index, &race))?;
                ended = Some(running);
            }
            None => under_way.push_back(running),
        }
    }
}
