//! An emulated card, and its memory, streams, events, graphs and modules.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use layout::{Arch, Swizzle};
use ptx_emulator::tensor_map::{ElementType, TensorMap};
use ptx_emulator::{Counters, Device, Fp8Sums, LaunchShape, Module};

use super::objects::{Function, Object, Objects, Recorded, Work, dead};
use crate::backend::{
    Backend, DeviceFacts, FunctionFacts, Handle, Kept, Launch, LaunchConfig, Memory, Modules, Streams, TiledMap,
};
use crate::error::{Error, Result};

thread_local! {
    /// The counters of the launches of this thread, while they are asked for. A launch runs on the thread that enqueues
    /// it.
    static COUNTED: RefCell<Option<Vec<Counters>>> = const { RefCell::new(None) };
}

/// A kernel is taken for one without an end after so many instructions of a block, counted once for a warp. That is
/// more than a block of any kernel here needs, and about a minute of work.
const INSTRUCTION_LIMIT: u64 = 1 << 28;

/// An emulated card.
#[derive(Debug)]
pub(crate) struct EmulatedDevice {
    facts: DeviceFacts,
    arch: Arch,
    device: Device,
    objects: Mutex<Objects>,
    /// The sizes of the pinned allocations.
    pinned: Mutex<HashMap<usize, std::alloc::Layout>>,
}

fn emulator_error(error: ptx_emulator::Error) -> Error {
    Error::Emulator { problem: error.to_string() }
}

impl EmulatedDevice {
    /// A card of this architecture, with as many multiprocessors as the CPU has threads.
    pub(crate) fn new(arch: Arch, ordinal: u32) -> EmulatedDevice {
        let device = Device::new(arch).with_instruction_limit(INSTRUCTION_LIMIT);
        let facts = DeviceFacts {
            ordinal,
            name: format!("emulated {arch}"),
            compute_capability: arch.compute_capability(),
            multiprocessors: rayon::current_num_threads() as u32,
            memory_bytes: device.memory().capacity(),
            shared_bytes_per_block: arch.limits().shared_bytes_per_block,
            driver_version: (0, 0),
        };
        EmulatedDevice { facts, arch, device, objects: Mutex::default(), pinned: Mutex::default() }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, object: Object) -> Handle {
        let mut objects = self.objects();
        objects.last += 1;
        let number = objects.last;
        objects.table.insert(number, object);
        Handle(ptr::without_provenance_mut(number))
    }

    fn remove(&self, handle: Handle) {
        self.objects().table.remove(&handle.0.addr());
    }

    /// What `pick` takes of a live object.
    fn get<T>(&self, what: &str, handle: Handle, pick: impl FnOnce(&mut Object) -> Option<T>) -> Result<T> {
        self.objects().table.get_mut(&handle.0.addr()).and_then(pick).ok_or_else(|| dead(what))
    }

    fn module(&self, handle: Handle) -> Result<Arc<Module>> {
        self.get("module", handle, |object| match object {
            Object::Module(module) => Some(module.clone()),
            _ => None,
        })
    }

    fn function_of(&self, handle: Handle) -> Result<Arc<Function>> {
        self.get("kernel", handle, |object| match object {
            Object::Function(function) => Some(function.clone()),
            _ => None,
        })
    }

    /// Does the work, or records it where the stream is captured.
    ///
    /// # Safety
    /// The memory that the work refers to is valid for it: now, or whenever the captured graph is launched.
    unsafe fn enqueue(&self, stream: Handle, work: Work) -> Result<()> {
        let left = self.objects().record(stream, work)?;
        // SAFETY: the caller's promise.
        left.map_or(Ok(()), |work| unsafe { self.run(&work) })
    }

    /// # Safety
    /// The host memory that the work refers to is valid for it.
    unsafe fn run(&self, work: &Work) -> Result<()> {
        match work {
            &Work::Fill { address, value, bytes } => {
                let filled = self.device.memory().view().fill(address, bytes as u64, value);
                filled.map_err(|error| Error::Emulator { problem: error.to_string() })
            }
            &Work::ToDevice { destination, source, bytes } => {
                // SAFETY: the caller's promise: `bytes` bytes of host memory that nothing changes.
                let source = unsafe { std::slice::from_raw_parts(ptr::with_exposed_provenance(source), bytes) };
                self.device.write(destination, source).map_err(emulator_error)
            }
            &Work::ToHost { destination, source, bytes } => {
                let destination = ptr::with_exposed_provenance_mut(destination);
                // SAFETY: the caller's promise: `bytes` bytes of host memory that nothing else touches.
                let destination = unsafe { std::slice::from_raw_parts_mut(destination, bytes) };
                self.device.read(source, destination).map_err(emulator_error)
            }
            &Work::OnDevice { destination, source, bytes } => {
                let mut copied = vec![0; bytes];
                self.device.read(source, &mut copied).map_err(emulator_error)?;
                self.device.write(destination, &copied).map_err(emulator_error)
            }
            Work::Launch { function, shape, params } => {
                let params: Vec<&[u8]> = params.iter().map(Vec::as_slice).collect();
                let (module, name) = (&function.module, &function.name);
                let outcome = if COUNTED.with_borrow(Option::is_none) {
                    module.launch(&self.device, name, *shape, &params).map(drop)
                } else {
                    module.count(&self.device, name, *shape, &params).map(|counters| {
                        COUNTED.with_borrow_mut(|counted| counted.get_or_insert_default().push(counters));
                    })
                };
                // As the driver of a card does with what kernels print.
                print!("{}", self.device.take_printed());
                outcome.map_err(emulator_error)
            }
            // SAFETY: as for the graph's launch.
            Work::Graph(graph) => graph.iter().try_for_each(|work| unsafe { self.run(work) }),
            Work::Keep(_) => Ok(()),
        }
    }
}

impl Backend for EmulatedDevice {
    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn synchronize(&self) -> Result<()> {
        if self.objects().are_capturing() {
            let problem = "a device of which a stream is captured cannot be waited for".to_owned();
            return Err(Error::Emulator { problem });
        }
        Ok(())
    }

    fn limit_instructions(&self, instructions: u64) -> Result<()> {
        self.device.set_instruction_limit(instructions);
        Ok(())
    }

    fn set_fp8_sums(&self, sums: Fp8Sums) -> Result<()> {
        self.device.set_fp8_sums(sums);
        Ok(())
    }

    fn counted(&self, work: &mut dyn FnMut()) -> Result<Vec<Counters>> {
        /// Puts back what was counted outside, after a panic of the work too.
        struct Outer(Option<Vec<Counters>>);
        impl Drop for Outer {
            fn drop(&mut self) {
                COUNTED.set(self.0.take());
            }
        }
        let _outer = Outer(COUNTED.replace(Some(Vec::new())));
        work();
        Ok(COUNTED.take().unwrap_or_default())
    }
}

impl Memory for EmulatedDevice {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.objects().refuse_in_capture("allocates memory")?;
        self.device.allocate(bytes as u64).map_err(emulator_error)
    }

    unsafe fn free(&self, address: u64) {
        // As on a card, a capture keeps the memory allocated. Otherwise only an address that is not is refused.
        if self.objects().refuse_in_capture("frees memory").is_ok() {
            let _ = self.device.free(address);
        }
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8> {
        self.objects().refuse_in_capture("allocates pinned memory")?;
        let layout = std::alloc::Layout::from_size_align(bytes, 256).map_err(|_| Error::TooLarge {
            shape: vec![bytes],
            element_bytes: 1,
            available_bytes: None,
        })?;
        // SAFETY: the size is not 0.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        if memory.is_null() {
            return Err(Error::TooLarge { shape: vec![bytes], element_bytes: 1, available_bytes: None });
        }
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner).insert(memory.addr(), layout);
        Ok(memory)
    }

    unsafe fn free_pinned(&self, address: *mut u8) {
        if self.objects().refuse_in_capture("frees pinned memory").is_err() {
            return;
        }
        let layout = self.pinned.lock().unwrap_or_else(PoisonError::into_inner).remove(&address.addr());
        if let Some(layout) = layout {
            // SAFETY: it was allocated with this layout, and the caller gives it up.
            unsafe { std::alloc::dealloc(address, layout) };
        }
    }

    unsafe fn clear_blocking(&self, address: u64, bytes: usize) -> Result<()> {
        // SAFETY: the work refers to no host memory.
        unsafe { self.run(&Work::Fill { address, value: 0, bytes }) }
    }

    unsafe fn fill_bytes(&self, stream: Handle, address: u64, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, Work::Fill { address, value, bytes }) }
    }

    unsafe fn copy_to_device(&self, stream: Handle, destination: u64, source: *const u8, bytes: usize) -> Result<()> {
        let source = source.expose_provenance();
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, Work::ToDevice { destination, source, bytes }) }
    }

    unsafe fn copy_to_host(&self, stream: Handle, destination: *mut u8, source: u64, bytes: usize) -> Result<()> {
        let destination = destination.expose_provenance();
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, Work::ToHost { destination, source, bytes }) }
    }

    unsafe fn copy_on_device(&self, stream: Handle, destination: u64, source: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, Work::OnDevice { destination, source, bytes }) }
    }
}

impl Streams for EmulatedDevice {
    fn create_stream(&self) -> Result<Handle> {
        Ok(self.insert(Object::Stream(None)))
    }

    unsafe fn destroy_stream(&self, stream: Handle) {
        self.remove(stream);
    }

    fn stream_id(&self, stream: Handle) -> Result<u64> {
        Ok(stream.0.addr() as u64)
    }

    fn keep_until_done(&self, _stream: Handle, kept: Kept) -> Result<()> {
        // It is: work is done when it is enqueued.
        drop(kept);
        Ok(())
    }

    fn keep_in_capture(&self, stream: Handle, kept: Kept) -> Result<()> {
        // SAFETY: the work refers to no host memory.
        unsafe { self.enqueue(stream, Work::Keep(Arc::new(kept))) }
    }

    fn synchronize_stream(&self, stream: Handle) -> Result<()> {
        self.objects().refuse_to_wait(stream)
    }

    fn stream_wait_event(&self, stream: Handle, event: Handle) -> Result<()> {
        self.objects().wait_event(stream, event)
    }

    fn is_capturing(&self, stream: Handle) -> Result<bool> {
        self.objects().capture_of(stream).map(|capture| capture.is_some())
    }

    fn begin_capture(&self, stream: Handle) -> Result<()> {
        self.objects().begin_capture(stream)
    }

    fn end_capture(&self, stream: Handle) -> Result<Handle> {
        let recorded = self.objects().end_capture(stream)?;
        Ok(self.insert(Object::Graph(Arc::new(recorded))))
    }

    unsafe fn launch_graph(&self, graph: Handle, stream: Handle) -> Result<()> {
        let work = self.get("graph", graph, |object| match object {
            Object::Graph(work) => Some(work.clone()),
            _ => None,
        })?;
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, Work::Graph(work)) }
    }

    unsafe fn destroy_graph(&self, graph: Handle) {
        self.remove(graph);
    }

    fn create_event(&self) -> Result<Handle> {
        Ok(self.insert(Object::Event(Recorded::Never)))
    }

    unsafe fn destroy_event(&self, event: Handle) {
        self.remove(event);
    }

    fn record_event(&self, event: Handle, stream: Handle) -> Result<()> {
        self.objects().record_event(event, stream)
    }

    fn synchronize_event(&self, event: Handle) -> Result<()> {
        self.objects().reached(event).map(drop)
    }

    fn elapsed_ms(&self, start: Handle, end: Handle) -> Result<f32> {
        let (start, end) = {
            let mut objects = self.objects();
            (objects.reached(start)?, objects.reached(end)?)
        };
        let recorded =
            start.zip(end).ok_or_else(|| Error::Emulator { problem: "the event was never recorded".to_owned() });
        recorded.map(|(start, end)| end.saturating_duration_since(start).as_secs_f32() * 1e3)
    }
}

impl Modules for EmulatedDevice {
    fn load_module(&self, what: &str, ptx: &str) -> Result<Handle> {
        let loaded = Module::parse(ptx).and_then(|module| module.check_device(self.device.arch()).map(|()| module));
        let module = loaded.map_err(|error| Error::Emulator { problem: format!("cannot load {what}: {error}") })?;
        Ok(self.insert(Object::Module(Arc::new(module))))
    }

    unsafe fn unload_module(&self, module: Handle) {
        self.remove(module);
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Option<Handle>> {
        let module = self.module(module)?;
        let Ok(name) = name.to_str() else { return Ok(None) };
        if module.kernels().all(|kernel| kernel != name) {
            return Ok(None);
        }
        Ok(Some(self.insert(Object::Function(Arc::new(Function { module, name: name.to_owned() })))))
    }

    fn function_facts(&self, function: Handle) -> Result<FunctionFacts> {
        let function = self.function_of(function)?;
        let facts = function.module.facts(&function.name).map_err(emulator_error)?;
        Ok(FunctionFacts {
            // Registers are allocated by the compiler of a card.
            registers: 0,
            local_bytes: facts.local_bytes,
            static_shared_bytes: facts.static_shared_bytes,
            max_threads: facts.max_threads,
        })
    }

    fn allow_shared_bytes(&self, _function: Handle, _bytes: u32) -> Result<()> {
        Ok(())
    }

    fn blocks_per_multiprocessor(&self, function: Handle, threads: u32, shared_bytes: u32) -> Result<u32> {
        let facts = self.function_facts(function)?;
        let limits = self.arch.limits();
        // Each resident block takes 1 KiB more of shared memory.
        let shared_bytes = shared_bytes + facts.static_shared_bytes + 1024;
        Ok((limits.threads / threads.max(1)).min(limits.shared_bytes / shared_bytes).min(limits.blocks))
    }

    unsafe fn launch(&self, function: Handle, stream: Handle, launch: Launch<'_>) -> Result<()> {
        // Launches of a stream run one after another here, so that none overlaps.
        let LaunchConfig { grid, block, cluster, shared_bytes, overlaps: _ } = launch.config;
        // SAFETY: each parameter is a live value of that size without padding.
        let bytes = |&(address, bytes): &(*const c_void, usize)| unsafe {
            std::slice::from_raw_parts(address.cast::<u8>(), bytes).to_vec()
        };
        let work = Work::Launch {
            function: self.function_of(function)?,
            shape: LaunchShape { grid, block, cluster, shared_bytes },
            params: launch.params.iter().map(bytes).collect(),
        };
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, work) }
    }

    fn encode_tiled(&self, map: &TiledMap<'_>) -> Result<[u64; 16]> {
        let invalid = |problem: String| Error::Emulator { problem };
        let element = ElementType::from_code(map.data_type);
        let swizzle = Swizzle::ALL.get(map.swizzle as usize);
        let (Some(element), Some(&swizzle)) = (element, swizzle) else {
            return Err(invalid(format!("no tensor map has type {} and swizzle {}", map.data_type, map.swizzle)));
        };
        let map = TensorMap {
            element,
            address: map.address,
            dims: map.dims.to_vec(),
            strides_bytes: map.strides_bytes.to_vec(),
            box_dims: map.box_dims.to_vec(),
            swizzle,
        };
        map.encode().map_err(|error| invalid(error.to_string()))
    }
}
