//! What a device is to the rest of the library: memory, streams and kernels behind opaque handles.
//!
//! The public types hold an `Arc<dyn Backend>` and [`Handle`]s that this backend gave them. They never learn which
//! backend it is. A handle that is passed to a backend must be a live one of the same backend.

pub(crate) mod cuda;
#[cfg(feature = "cust")]
pub(crate) mod cust;
#[cfg(feature = "emulator")]
pub(crate) mod emulator;

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::fmt::{self, Debug};

#[cfg(feature = "emulator")]
use ptx_emulator::{Counters, Fp8Sums};

#[cfg(feature = "emulator")]
use crate::error::Error;
use crate::error::Result;

/// An object of a backend: a stream, event, module, function or graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) *mut c_void);

// SAFETY: backends let their objects be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above; backends lock them, but for graphs, which `Graph` locks.
unsafe impl Sync for Handle {}

/// Something that work of a device needs. The device drops it when the work is done, on any thread, so its drop must
/// make no call to the device.
pub(crate) struct Kept(#[expect(dead_code, reason = "it is dropped, and nothing else")] Box<dyn Any + Send + Sync>);

impl Kept {
    pub(crate) fn new(value: impl Send + Sync + 'static) -> Kept {
        Kept(Box::new(value))
    }
}

impl Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

/// What a device is.
#[derive(Debug, Clone)]
pub(crate) struct DeviceFacts {
    pub(crate) ordinal: u32,
    pub(crate) name: String,
    pub(crate) compute_capability: (u32, u32),
    pub(crate) multiprocessors: u32,
    pub(crate) memory_bytes: u64,
    /// The dynamic and static shared memory that a block can have.
    pub(crate) shared_bytes_per_block: u32,
    pub(crate) driver_version: (u32, u32),
}

/// How many threads a launch has, and their dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z; all ones for none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Whether the kernel may start before the one before it on the stream has ended (programmatic dependent launch,
    /// sm_90).
    ///
    /// Only for a kernel that keeps two rules. It reads what an earlier kernel may write, and writes anything at all,
    /// only after a `griddepcontrol.wait` of the same thread, or of a thread that it has waited for. And in every
    /// launch some thread calls `griddepcontrol.wait`: a launch without it would let the next kernel start beside the
    /// kernel before.
    pub overlaps: bool,
}

/// One block of one thread.
impl Default for LaunchConfig {
    fn default() -> Self {
        LaunchConfig::of_blocks(1, 1)
    }
}

impl LaunchConfig {
    /// So many blocks in a row of so many threads in a row.
    ///
    /// ```
    /// use ferrotile::LaunchConfig;
    ///
    /// let config = LaunchConfig { shared_bytes: 4096, ..LaunchConfig::of_blocks(132, 256) };
    /// assert_eq!((config.grid, config.block), ([132, 1, 1], [256, 1, 1]));
    /// ```
    #[must_use]
    pub const fn of_blocks(blocks: u32, threads: u32) -> Self {
        LaunchConfig { grid: [blocks, 1, 1], block: [threads, 1, 1], cluster: [1; 3], shared_bytes: 0, overlaps: false }
    }
}

/// One launch, checked by the caller against the kernel's limits.
pub(crate) struct Launch<'a> {
    pub(crate) config: LaunchConfig,
    /// The address and size of each parameter.
    pub(crate) params: &'a [(*const c_void, usize)],
}

/// What a compiler says about a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FunctionFacts {
    pub(crate) registers: u32,
    pub(crate) local_bytes: u32,
    pub(crate) static_shared_bytes: u32,
    pub(crate) max_threads: u32,
}

/// The arguments of `cuTensorMapEncodeTiled` that this crate varies; the innermost dimension is first.
pub(crate) struct TiledMap<'a> {
    pub(crate) data_type: u32,
    pub(crate) address: u64,
    pub(crate) dims: &'a [u64],
    /// One fewer than there are dimensions: the innermost is contiguous.
    pub(crate) strides_bytes: &'a [u64],
    pub(crate) box_dims: &'a [u32],
    pub(crate) swizzle: u32,
}

/// A device.
pub(crate) trait Backend: Memory + Streams + Modules + Debug + Send + Sync {
    /// What the device is.
    fn facts(&self) -> &DeviceFacts;

    /// Waits for everything that was enqueued.
    fn synchronize(&self) -> Result<()>;

    /// The context of a card as cust has it; `None` for an emulated device.
    #[cfg(feature = "cust")]
    fn cust_context(&self) -> Option<&::cust::context::Context> {
        None
    }

    /// Ends blocks that execute more instructions with an error; an error on a card.
    #[cfg(feature = "emulator")]
    fn limit_instructions(&self, _instructions: u64) -> Result<()> {
        Err(Error::Emulator { problem: "the instructions of a card cannot be limited".to_owned() })
    }

    /// How precise FP8 sums are; an error on a card.
    #[cfg(feature = "emulator")]
    fn set_fp8_sums(&self, _sums: Fp8Sums) -> Result<()> {
        Err(Error::Emulator { problem: "the precision of a card's sums cannot be set".to_owned() })
    }

    /// Does `work` and returns the counters of the launches that it makes on this thread; [`Error::Emulator`] where the
    /// device has none.
    #[cfg(feature = "emulator")]
    fn counted(&self, work: &mut dyn FnMut()) -> Result<Vec<Counters>> {
        let _ = work;
        let name = &self.facts().name;
        Err(Error::Emulator { problem: format!("{name} has no counters: an emulated device has") })
    }
}

/// Device memory and page-locked host memory.
pub(crate) trait Memory {
    /// Device memory of `bytes` bytes (not 0), aligned to 256.
    fn allocate(&self, bytes: usize) -> Result<u64>;

    /// Gives memory of [`Memory::allocate`] back once all work that was enqueued before has finished: unlike
    /// `cuMemFreeAsync`, the driver's `cuMemFree` synchronises. An error is dropped: it is that of earlier work, which
    /// later calls report too, or the context is capturing, and the memory then stays allocated.
    ///
    /// # Safety
    /// `address` is not used again, by work that is enqueued later neither.
    unsafe fn free(&self, address: u64);

    /// Page-locked host memory of `bytes` bytes (not 0), which every context can copy from and to asynchronously.
    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8>;

    /// # Safety
    /// No copy from or to the memory is in flight, and it is not used again.
    unsafe fn free_pinned(&self, address: *mut u8);

    /// Sets `bytes` bytes of new device memory to 0 before it returns, without waiting for any stream of the caller's.
    ///
    /// # Safety
    /// The bytes are allocated and no other work uses them.
    unsafe fn clear_blocking(&self, address: u64, bytes: usize) -> Result<()>;

    /// Sets device memory, in the order of the stream.
    ///
    /// # Safety
    /// The bytes stay allocated until the work is done.
    unsafe fn fill_bytes(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Result<()>;

    /// Copies host memory to device memory, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges stay allocated, and the host's unchanged, until the work is done.
    unsafe fn copy_to_device(&self, stream: Handle, destination: u64, source: *const u8, bytes: usize) -> Result<()>;

    /// Copies device memory to host memory, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges stay allocated, and nothing else touches the host's, until the work is done.
    unsafe fn copy_to_host(&self, stream: Handle, destination: *mut u8, source: u64, bytes: usize) -> Result<()>;

    /// Copies device memory to other device memory, in the order of the stream.
    ///
    /// # Safety
    /// Both ranges stay allocated until the work is done, and do not overlap.
    unsafe fn copy_on_device(&self, stream: Handle, destination: u64, source: u64, bytes: usize) -> Result<()>;
}

/// Streams, events and graphs.
pub(crate) trait Streams {
    /// A stream that is not ordered with the default stream.
    fn create_stream(&self) -> Result<Handle>;

    /// The driver keeps what it needs until the enqueued work is done.
    ///
    /// # Safety
    /// The handle is not used again.
    unsafe fn destroy_stream(&self, stream: Handle);

    /// The number of a stream, of this library or another, that no other stream of the process ever has.
    fn stream_id(&self, stream: Handle) -> Result<u64>;

    /// Keeps `kept` until the work that was enqueued on the stream is done; for ever where that fails.
    fn keep_until_done(&self, stream: Handle, kept: Kept) -> Result<()>;

    /// Keeps `kept` for the graph that the stream is capturing: until no graph has it any more, and the last launch of
    /// such a graph has ended.
    fn keep_in_capture(&self, stream: Handle, kept: Kept) -> Result<()>;

    fn synchronize_stream(&self, stream: Handle) -> Result<()>;

    fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()>;

    /// Whether what is enqueued on the stream is recorded, by this library or by another.
    fn is_capturing(&self, stream: Handle) -> Result<bool>;

    /// Records what is enqueued on the stream until [`Streams::end_capture`] instead of running it. Meanwhile calls of
    /// this thread that would synchronise or free memory fail, and so does [`Backend::synchronize`] on any thread.
    fn begin_capture(&self, stream: Handle) -> Result<()>;

    /// The work recorded since [`Streams::begin_capture`], ready to launch. The capture is over in any case.
    fn end_capture(&self, stream: Handle) -> Result<Handle>;

    /// # Safety
    /// The memory and kernels of the recorded work are live until it is done.
    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()>;

    /// The driver keeps what it needs until enqueued launches are done.
    ///
    /// # Safety
    /// The handle is not used again.
    unsafe fn destroy_graph(&self, graph: Handle);

    fn create_event(&self) -> Result<Handle>;

    /// The driver keeps what it needs until the event has happened.
    ///
    /// # Safety
    /// The handle is not used again.
    unsafe fn destroy_event(&self, event: Handle);

    fn record_event(&self, event: Handle, stream: Handle) -> Result<()>;

    fn synchronize_event(&self, event: Handle) -> Result<()>;

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32>;
}

/// Modules, their functions and launches, and tensor maps.
pub(crate) trait Modules {
    /// Compiles PTX, or takes it from the driver's cache of compiled kernels. `what` names it in errors.
    fn load_module(&self, what: &str, ptx: &str) -> Result<Handle>;

    /// Unloads a module once all work that was enqueued before has finished. Where it cannot be waited for, as while a
    /// stream captures, kernels may be in flight, and the module stays loaded.
    ///
    /// # Safety
    /// Neither the module nor its functions are used again.
    unsafe fn unload_module(&self, module: Handle);

    /// A function of a live module; `None` if it has none of this name.
    fn function(&self, module: Handle, name: &CStr) -> Result<Option<Handle>>;

    /// What the compiler says about a live function.
    fn function_facts(&self, function: Handle) -> Result<FunctionFacts>;

    /// Lets a live function be launched with up to `bytes` of dynamic shared memory; the driver's own limit is 48 KiB.
    fn allow_shared_bytes(&self, function: Handle, bytes: u32) -> Result<()>;

    /// How many blocks of a live function, of a size that can be launched, fit on a multiprocessor at a time.
    fn blocks_per_multiprocessor(&self, function: Handle, threads: u32, shared_bytes: u32) -> Result<u32>;

    /// # Safety
    /// The parameters are those that the function takes, and what they point to stays valid until the launch is done.
    unsafe fn launch(&self, function: Handle, stream: Handle, launch: Launch<'_>) -> Result<()>;

    /// Encodes a tensor map.
    fn encode_tiled(&self, map: &TiledMap<'_>) -> Result<[u64; 16]>;
}
