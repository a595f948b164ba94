//! Modules and kernels that are loaded on a card.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;

use crate::backend::{Backend, FunctionFacts, Handle};
use crate::error::{Error, Result};

/// The most dynamic and static shared memory that a kernel has without asking for more.
const DEFAULT_SHARED_BYTES: u32 = 48 << 10;

/// Compiled kernels that are loaded on a card. Clones are the same module.
///
/// Dropping the last clone and the last of its kernels unloads it, once all work of the card's context has finished.
///
/// ```
/// use ferrotile::{Arch, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let module = gpu.load_ptx(".version 7.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }")?;
/// assert!(module.kernel("something").is_err());
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Clone)]
pub struct Module {
    inner: Arc<Loaded>,
}

struct Loaded {
    device: Arc<dyn Backend>,
    handle: Handle,
    what: String,
}

impl Module {
    pub(crate) fn load(device: &Arc<dyn Backend>, what: &str, ptx: &str) -> Result<Module> {
        let handle = device.load_module(what, ptx)?;
        Ok(Module { inner: Arc::new(Loaded { device: device.clone(), handle, what: what.to_owned() }) })
    }

    /// The device and the handle.
    #[cfg(feature = "cust")]
    pub(crate) fn parts(&self) -> (&dyn Backend, &Handle) {
        (&*self.inner.device, &self.inner.handle)
    }

    /// The kernel of this name.
    ///
    /// # Errors
    /// [`Error::NoKernel`] where the module has none.
    pub fn kernel(&self, name: &str) -> Result<Kernel> {
        let Loaded { device, handle, what } = &*self.inner;
        let missing = || Error::NoKernel { kernel: name.to_owned(), module: what.clone() };
        let symbol = CString::new(name).map_err(|_| missing())?;
        let function = device.function(*handle, &symbol)?.ok_or_else(missing)?;
        let facts = device.function_facts(function)?;
        let max_shared_bytes = device.facts().shared_bytes_per_block.saturating_sub(facts.static_shared_bytes);
        if facts.static_shared_bytes + max_shared_bytes > DEFAULT_SHARED_BYTES {
            device.allow_shared_bytes(function, max_shared_bytes)?;
        }
        Ok(Kernel { module: self.clone(), function, name: name.into(), facts, max_shared_bytes })
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // SAFETY: the handle is this module's own; kernels hold the module.
        unsafe { self.device.unload_module(self.handle) };
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({} on device {})", self.inner.what, self.inner.device.facts().ordinal)
    }
}

/// One kernel of a loaded module. Clones are the same kernel.
///
/// ```
/// use ferrotile::{Arch, Dtype, Gpu, attention_kernels};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let name = attention_kernels(gpu.arch(), Dtype::F16, [64, 64]).next().unwrap();
/// let kernel = gpu.kernel("attention", name.as_str())?;
/// assert!(kernel.attributes().max_threads >= 32);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Kernel {
    module: Module,
    function: Handle,
    name: Arc<str>,
    facts: FunctionFacts,
    max_shared_bytes: u32,
}

/// The name of a compiled kernel: what a plan runs, and what options may ask for.
///
/// The name says what the kernel is for and which tiles it has: `attention_f16_d128_causal_128x176_s2`. Names come and
/// go from version to version, as kernels are measured anew.
///
/// ```
/// use ferrotile::{Arch, AttentionOptions, Dtype, attention_kernels};
///
/// let name = attention_kernels(Arch::Sm80, Dtype::Bf16, [64, 64]).next().unwrap();
/// let options = AttentionOptions { kernel: Some(name.to_string()), ..AttentionOptions::default() };
/// assert!(name == *options.kernel.unwrap());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelName(&'static str);

impl KernelName {
    pub(crate) const fn new(name: &'static str) -> Self {
        KernelName(name)
    }

    /// The name as text: that of the PTX entry.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl PartialEq<str> for KernelName {
    fn eq(&self, name: &str) -> bool {
        self.0 == name
    }
}

impl PartialEq<&str> for KernelName {
    fn eq(&self, name: &&str) -> bool {
        self.0 == *name
    }
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

/// What a plan says about the kernel that it has chosen, whatever tiles that has.
///
/// ```
/// use ferrotile::{Arch, Dtype, GemmLayout, GemmOptions, GemmPlan, GemmProblem, Gpu};
///
/// let problem = GemmProblem::new([64, 64, 64], Dtype::F16, Dtype::F16, Dtype::F32);
/// let plan = GemmPlan::new(&Gpu::emulated(Arch::Sm80), &problem, &GemmOptions::new(GemmLayout::Nt))?;
/// let facts = plan.facts();
/// println!("{}: {} threads, {} bytes of shared memory", facts.name, facts.threads, facts.shared_bytes);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelFacts {
    /// Its name.
    pub name: KernelName,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// What the driver's compiler made of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelAttributes {
    /// Registers of a thread.
    pub registers: u32,
    /// Local memory of a thread: 0 where nothing spilled.
    pub local_bytes: u32,
    /// Static shared memory of a block.
    pub static_shared_bytes: u32,
    /// Dynamic shared memory that a launch can ask for.
    pub max_shared_bytes: u32,
    /// Threads that a block can have.
    pub max_threads: u32,
}

impl Kernel {
    /// The name of its entry point.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the driver's compiler made of it.
    #[must_use]
    pub fn attributes(&self) -> KernelAttributes {
        let FunctionFacts { registers, local_bytes, static_shared_bytes, max_threads } = self.facts;
        let max_shared_bytes = self.max_shared_bytes;
        KernelAttributes { registers, local_bytes, static_shared_bytes, max_shared_bytes, max_threads }
    }

    /// How many blocks of so many threads, with so much dynamic shared memory each, fit on a multiprocessor at a time;
    /// 0 where the driver refuses such blocks.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn blocks_per_multiprocessor(&self, block_threads: u32, shared_bytes: u32) -> Result<u32> {
        let threads = 1..=self.facts.max_threads;
        if !threads.contains(&block_threads) || shared_bytes > self.max_shared_bytes {
            return Ok(0);
        }
        self.device().blocks_per_multiprocessor(self.function, block_threads, shared_bytes)
    }

    /// The number of the card that it is loaded on.
    pub(crate) fn ordinal(&self) -> u32 {
        self.device().facts().ordinal
    }

    pub(crate) const fn function(&self) -> Handle {
        self.function
    }

    pub(crate) fn device(&self) -> &dyn Backend {
        &*self.module.inner.device
    }
}
