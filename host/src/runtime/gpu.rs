//! Graphics cards: finding them, what they are, and the modules loaded on them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use layout::Arch;
#[cfg(feature = "emulator")]
use ptx_emulator::{Counters, Fp8Sums};
use rayon::prelude::*;

use crate::backend::cuda;
#[cfg(feature = "emulator")]
use crate::backend::emulator::EmulatedDevice;
use crate::backend::{Backend, Handle, Kept};
use crate::error::{Error, Result};
use crate::runtime::module::{Kernel, Module};
use crate::runtime::ptx::{is_embedded, kernel_ptx};
use crate::runtime::semaphores::Semaphores;

/// The backend of a card, whose objects are those of cust where the feature is on.
#[cfg(feature = "cust")]
type Card = cuda::Device<crate::backend::cust::CustObjects>;
#[cfg(not(feature = "cust"))]
type Card = cuda::Device<cuda::Handles>;

/// A graphics card, ready for work.
///
/// It uses the card's primary context, as the CUDA runtime, cudarc, candle and PyTorch do, so that device addresses are
/// valid across them. The context and the kernels stay loaded until the process ends. Clones are cheap and are the
/// same card; any thread may use any of them, whatever context is current there.
///
/// Work on one stream runs in order; work on different streams is ordered only by [`Event`](crate::Event)s. Unordered
/// accesses to one buffer leave unspecified elements in the buffer and in results that are computed from it. They never
/// touch other memory, and all work ends.
///
/// ```
/// use ferrotile::{Arch, Gpu};
///
/// let gpu = Gpu::new(0).unwrap_or_else(|_| Gpu::emulated(Arch::Sm80));
/// println!("{gpu}, {} multiprocessors", gpu.multiprocessors());
/// assert!(gpu.multiprocessors() > 0);
/// ```
#[derive(Clone)]
pub struct Gpu {
    inner: Arc<Inner>,
}

struct Inner {
    device: Arc<dyn Backend>,
    arch: Arch,
    kernels: Mutex<HashMap<(String, Arch, String), KernelSlot>>,
    semaphores: Mutex<Option<Arc<Semaphores>>>,
}

/// One kernel of a family and architecture, locked while it loads so that others need not wait.
type KernelSlot = Arc<Mutex<Option<Kernel>>>;

/// The numbers of emulated cards, one for each architecture, are beyond those of any driver.
const FIRST_EMULATED: u32 = 1 << 31;

/// The cards that were opened; they stay so, which lets borrowed streams of other libraries refer to them.
static OPEN: Mutex<Vec<&'static Gpu>> = Mutex::new(Vec::new());

/// The architectures whose PTX this build embeds, oldest first.
fn embedded_archs() -> Vec<Arch> {
    let embedded = |arch: &Arch| match arch {
        Arch::Sm80 => cfg!(feature = "sm80"),
        Arch::Sm89 => cfg!(feature = "sm89"),
        Arch::Sm90a => cfg!(feature = "sm90"),
    };
    Arch::ALL.into_iter().filter(embedded).collect()
}

/// The newest of `archs` that runs on a card.
fn newest_for(archs: &[Arch], (major, minor): (u32, u32)) -> Option<Arch> {
    archs.iter().copied().filter(|arch| arch.runs_on(major, minor)).max()
}

/// Locks; a panic elsewhere leaves these maps complete.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Opens card `ordinal`, counted from 0 in the driver's order.
    ///
    /// ```
    /// match ferrotile::Gpu::new(0) {
    ///     Ok(gpu) => println!("{} with CUDA {:?}", gpu.name(), gpu.driver_version()),
    ///     Err(error) => println!("no card: {error}"),
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::NoDriver`] and [`Error::NoDevice`] where there is none, [`Error::UnsupportedDevice`] where the card is
    /// older than every architecture that was compiled.
    pub fn new(ordinal: u32) -> Result<Gpu> {
        Gpu::opened(ordinal).cloned()
    }

    /// As [`Gpu::new`].
    pub(crate) fn opened(ordinal: u32) -> Result<&'static Gpu> {
        let mut open = lock(&OPEN);
        if let Some(gpu) = open.iter().find(|gpu| gpu.ordinal() == ordinal) {
            return Ok(gpu);
        }
        let facts = cuda::facts_of(ordinal)?;
        let archs = match embedded_archs() {
            // A program with kernels of its own alone.
            embedded if embedded.is_empty() => Arch::ALL.to_vec(),
            embedded => embedded,
        };
        let Some(arch) = newest_for(&archs, facts.compute_capability) else {
            let (name, found) = (facts.name, facts.compute_capability);
            return Err(Error::UnsupportedDevice { ordinal, name, found, embedded: archs });
        };
        let device = Arc::new(Card::open(facts)?);
        let inner = Arc::new(Inner { device, arch, kernels: Mutex::default(), semaphores: Mutex::default() });
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu { inner }));
        open.push(gpu);
        Ok(gpu)
    }

    /// An emulated card: the CPU runs the kernels of this architecture, with the same buffers, streams and results.
    ///
    /// It is hundreds of times slower than a card and finds faults that a card hides: [`Error::Emulator`] names the
    /// kernel, the thread and the line. A block without an end is one of them, see
    /// [`limit_instructions`](Self::limit_instructions).
    ///
    /// ```
    /// use ferrotile::{Arch, Gpu};
    ///
    /// let gpu = Gpu::emulated(Arch::Sm90a);
    /// assert!(gpu.is_emulated() && gpu.compute_capability() == (9, 0));
    /// ```
    #[cfg(feature = "emulator")]
    #[must_use]
    pub fn emulated(arch: Arch) -> Gpu {
        let ordinal = FIRST_EMULATED + arch as u32;
        let mut open = lock(&OPEN);
        if let Some(gpu) = open.iter().find(|gpu| gpu.ordinal() == ordinal) {
            return (*gpu).clone();
        }
        let device = Arc::new(EmulatedDevice::new(arch, ordinal));
        let gpu: &'static Gpu = Box::leak(Box::new(Gpu {
            inner: Arc::new(Inner { device, arch, kernels: Mutex::default(), semaphores: Mutex::default() }),
        }));
        open.push(gpu);
        gpu.clone()
    }

    /// Makes launches on this emulated device fail when one of their blocks has executed this many instructions,
    /// counted once for a warp. Until this is called they are 2^28, about a minute of work. All handles of the device
    /// share it.
    ///
    /// # Errors
    /// [`Error::Emulator`] on a card.
    #[cfg(feature = "emulator")]
    pub fn limit_instructions(&self, instructions: u64) -> Result<()> {
        self.device().limit_instructions(instructions)
    }

    /// How precise the FP8 sums of `wgmma` are on this emulated device from now on. Until this is called they are
    /// reduced, as those of a card; with full ones the error of a kernel shows alone. All handles of the device share
    /// it.
    ///
    /// # Errors
    /// [`Error::Emulator`] on a card.
    #[cfg(feature = "emulator")]
    pub fn set_fp8_sums(&self, sums: Fp8Sums) -> Result<()> {
        self.device().set_fp8_sums(sums)
    }

    /// Whether the device is emulated.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.ordinal() >= FIRST_EMULATED
    }

    /// Does `work` on this emulated device and counts what its kernels do: instructions, sectors of global memory, bank
    /// conflicts, each with its PTX and Rust line. The counters are those of the launches of this thread, in their
    /// order.
    ///
    /// ```
    /// use ferrotile::{Arch, Error, Gpu};
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let ((), launches) = gpu.counted(|| Ok::<(), Error>(()))?;
    /// assert!(launches.is_empty());
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// That of `work`; [`Error::Emulator`] on a card, where nothing is done.
    #[cfg(feature = "emulator")]
    pub fn counted<T, E: From<Error>>(&self, work: impl FnOnce() -> Result<T, E>) -> Result<(T, Vec<Counters>), E> {
        let (mut work, mut done) = (Some(work), None);
        let counters = self.device().counted(&mut || done = work.take().map(|work| work()))?;
        match done {
            Some(done) => done.map(|value| (value, counters)),
            None => Err(Error::Emulator { problem: "the work was not done".to_owned() }.into()),
        }
    }

    /// Opens every card that a compiled architecture runs on; none without a driver or a card.
    ///
    /// ```
    /// for gpu in ferrotile::Gpu::all()? {
    ///     println!("{gpu}");
    /// }
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Gpu::new`], but for cards that no architecture runs on.
    pub fn all() -> Result<Vec<Gpu>> {
        let count = match cuda::device_count() {
            Err(Error::NoDriver { .. }) => 0,
            count => count?,
        };
        let supported = |gpu: &Result<Gpu>| !matches!(gpu, Err(Error::UnsupportedDevice { .. }));
        (0..count).map(Gpu::new).filter(supported).collect()
    }

    /// The card's number.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.device().facts().ordinal
    }

    /// The card's name: "NVIDIA H200".
    #[must_use]
    pub fn name(&self) -> &str {
        &self.device().facts().name
    }

    /// The newest compiled architecture that runs on the card.
    #[must_use]
    pub fn arch(&self) -> Arch {
        self.inner.arch
    }

    /// The compute capability as (major, minor): (9, 0) for Hopper.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        self.device().facts().compute_capability
    }

    /// The number of multiprocessors.
    #[must_use]
    pub fn multiprocessors(&self) -> u32 {
        self.device().facts().multiprocessors
    }

    /// The size of the card's memory.
    #[must_use]
    pub fn memory_bytes(&self) -> u64 {
        self.device().facts().memory_bytes
    }

    /// The CUDA version of the driver as (major, minor): (13, 0).
    #[must_use]
    pub fn driver_version(&self) -> (u32, u32) {
        self.device().facts().driver_version
    }

    /// Waits for all work on the card that this process enqueued, other libraries' in the primary context included.
    ///
    /// # Errors
    /// That of earlier work, and [`Error::Driver`] while any thread captures a stream of the card.
    pub fn synchronize(&self) -> Result<()> {
        self.device().synchronize()
    }

    /// Compiles and loads PTX of the caller's own. The driver keeps compiled kernels in a cache on disk.
    ///
    /// ```
    /// use ferrotile::{Arch, Gpu, LaunchConfig};
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let text = ".version 7.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }";
    /// let kernel = gpu.load_ptx(text)?.kernel("nothing")?;
    /// let stream = gpu.new_stream()?;
    /// // SAFETY: the kernel has no parameters and touches no memory.
    /// unsafe { kernel.launch(&stream, &LaunchConfig::of_blocks(1, 32), &[]) }?;
    /// stream.synchronize()?;
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Jit`] with the log of the driver's compiler, or [`Error::Emulator`] for PTX that cannot be run.
    pub fn load_ptx(&self, ptx: &str) -> Result<Module> {
        Module::load(&self.inner.device, "PTX", ptx)
    }

    /// The kernel `entry` of a family, such as `"attention"`, for [`Gpu::arch`]. The first call for each entry has the
    /// driver compile the kernel. That takes some tenths of a second, unless the driver's cache on disk has it.
    ///
    /// ```
    /// use ferrotile::{Arch, Dtype, Gpu, attention_kernels};
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let name = attention_kernels(gpu.arch(), Dtype::F16, [64, 64]).next().unwrap();
    /// assert_eq!(gpu.kernel("attention", name.as_str())?.name(), name.as_str());
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoPtx`] and [`Error::NoKernel`] where there is no such family or entry, [`Error::Jit`].
    pub fn kernel(&self, family: &str, entry: &str) -> Result<Kernel> {
        self.kernel_for(family, self.arch(), entry)
    }

    /// Loads kernels of a family as [`Gpu::kernel`] does, on several threads. A plan loads the kernels that it needs by
    /// itself. This is for a program that makes its plans later and must then be quick.
    ///
    /// Driver 580.159.04 compiles one kernel after the other all the same: 236 kernels for an H200 take 45 s, of which
    /// one core is busy 44 s.
    ///
    /// ```
    /// use ferrotile::{Arch, Gpu, embedded_kernels};
    ///
    /// let gpu = Gpu::emulated(Arch::Sm80);
    /// let names: Vec<&str> = embedded_kernels("ata", gpu.arch()).take(2).collect();
    /// gpu.warm("ata", &names)?;
    /// # Ok::<(), ferrotile::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Gpu::kernel`], for the first kernel that fails. Others may be loaded then.
    pub fn warm(&self, family: &str, entries: &[&str]) -> Result<()> {
        entries.par_iter().try_for_each(|entry| self.kernel(family, entry).map(drop))
    }

    /// As [`Gpu::kernel`], for any architecture that runs on the card. An older one than [`Gpu::arch`] serves to
    /// compare kernels.
    ///
    /// # Errors
    /// As [`Gpu::kernel`].
    pub fn kernel_for(&self, family: &str, arch: Arch, entry: &str) -> Result<Kernel> {
        let slot = lock(&self.inner.kernels).entry((family.to_owned(), arch, entry.to_owned())).or_default().clone();
        let mut loaded = lock(&slot);
        if let Some(kernel) = &*loaded {
            return Ok(kernel.clone());
        }
        let module = format!("{family} ({arch})");
        let ptx = kernel_ptx(family, arch, entry).ok_or_else(|| match is_embedded(family, arch) {
            false => Error::NoPtx { family: family.to_owned(), arch },
            true => Error::NoKernel { kernel: entry.to_owned(), module: module.clone() },
        })?;
        let kernel = Module::load(&self.inner.device, &module, &ptx)?.kernel(entry)?;
        Ok(loaded.insert(kernel).clone())
    }

    /// The device's semaphores, allocated by the first call; not in a capture.
    pub(crate) fn semaphores(&self) -> Result<Arc<Semaphores>> {
        let mut semaphores = lock(&self.inner.semaphores);
        if let Some(semaphores) = &*semaphores {
            return Ok(semaphores.clone());
        }
        let new = Arc::new(Semaphores::new(&**self.device())?);
        Ok(semaphores.insert(new).clone())
    }

    /// Gives back what a stream has that takes no more work, once its work is done.
    pub(crate) fn end_stream(&self, stream: Handle) {
        let semaphores = lock(&self.inner.semaphores).clone();
        if let Some(semaphores) = semaphores
            && let Ok(id) = self.device().stream_id(stream)
            && let Some(owned) = semaphores.of_ended_stream(id)
        {
            // Where it cannot be waited for, as in an error of earlier work, they are lost.
            let _ = self.device().keep_until_done(stream, Kept::new(owned));
        }
    }

    pub(crate) fn device(&self) -> &Arc<dyn Backend> {
        &self.inner.device
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("ordinal", &self.ordinal()).field("name", &self.name()).finish_non_exhaustive()
    }
}

/// The number, name and architecture: "0: NVIDIA H200 (sm_90a)". An emulated one has no number: "emulated sm_80".
impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_emulated() {
            return f.write_str(self.name());
        }
        write!(f, "{}: {} ({})", self.ordinal(), self.name(), self.arch())
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;

    #[test]
    fn the_newest_architecture_that_runs_is_chosen() {
        assert_eq!(newest_for(&Arch::ALL, (9, 0)), Some(Arch::Sm90a));
        assert_eq!(newest_for(&Arch::ALL, (10, 0)), Some(Arch::Sm89));
        assert_eq!(newest_for(&Arch::ALL, (8, 6)), Some(Arch::Sm80));
        assert_eq!(newest_for(&Arch::ALL, (7, 0)), None);
        assert_eq!(newest_for(&[Arch::Sm90a], (8, 0)), None);
    }

    #[test]
    fn a_card_that_is_absent_is_a_typed_error() {
        let absent = u32::MAX;
        match Gpu::new(absent) {
            Err(Error::NoDriver { .. }) => assert!(Gpu::all().is_ok_and(|gpus| gpus.is_empty())),
            Err(Error::NoDevice { ordinal, count }) => assert!(ordinal == absent && count < absent),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_emulated_device_is_shown_by_its_name_alone() {
        assert_eq!(Gpu::emulated(Arch::Sm80).to_string(), "emulated sm_80");
    }

    #[test]
    fn a_gpu_may_be_used_from_any_thread() {
        fn shared<T: Send + Sync>() {}
        shared::<Gpu>();
    }
}
