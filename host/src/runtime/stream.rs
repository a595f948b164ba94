//! Streams, events and graphs.

use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

use crate::backend::Handle;
use crate::checks::same_device;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;

impl Gpu {
    /// Makes a stream. It is not ordered with the default stream or any other.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver refuses.
    pub fn new_stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Makes an event, which records a time.
    ///
    /// # Errors
    /// [`Error::Driver`] where the driver refuses.
    pub fn new_event(&self) -> Result<Event> {
        Event::new(self)
    }
}

/// A queue of work on a card: what is enqueued runs in order, after the call that enqueued it has returned.
///
/// It is not ordered with the default stream. Dropping it does not wait: the work that was enqueued still runs.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let mut buffer = Buffer::<u8>::zeroed(&gpu, 4)?;
/// buffer.fill_bytes(&stream, 7)?; // returns before the bytes are there
/// stream.synchronize()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug)]
pub struct Stream {
    gpu: Gpu,
    handle: Handle,
}

impl Stream {
    pub(crate) fn new(gpu: &Gpu) -> Result<Stream> {
        Ok(Stream { gpu: gpu.clone(), handle: gpu.device().create_stream()? })
    }

    /// The card.
    #[must_use]
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    #[cfg(feature = "cust")]
    pub(crate) const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The reference that every call which enqueues work takes.
    #[must_use]
    pub fn as_ref(&self) -> StreamRef<'_> {
        StreamRef { handle: self.handle, gpu: &self.gpu, foreign: false }
    }

    /// Waits for the work that was enqueued, and reports an error of it.
    ///
    /// # Errors
    /// That of the work, and those of [`StreamRef::synchronize`].
    pub fn synchronize(&self) -> Result<()> {
        self.as_ref().synchronize()
    }

    /// Records the work that `enqueue` puts on the stream as a graph, without running it.
    ///
    /// Within `enqueue`, calls of this thread that wait, allocate or free fail and spoil the capture, also where their
    /// error is dropped. So do copies of pinned memory, which wait for an event outside the capture. Plans are made
    /// before: making one loads kernels.
    ///
    /// Another stream takes part from where it waits for an event that was recorded in the capture. The captured stream
    /// must wait for the last of its work in turn.
    ///
    /// # Errors
    /// The error of `enqueue`, and that of the call which spoiled the capture, or of a call after it.
    pub fn capture(&self, enqueue: impl FnOnce(StreamRef<'_>) -> Result<()>) -> Result<Graph> {
        /// Ends the capture, in a panic of `enqueue` too: the stream would stay unusable otherwise.
        struct Capture<'a>(&'a Stream);
        impl Capture<'_> {
            fn end(&self) -> Result<Graph> {
                let Stream { gpu, handle } = self.0;
                let handle = gpu.device().end_capture(*handle)?;
                Ok(Graph { gpu: gpu.clone(), handle: Mutex::new(handle) })
            }
        }
        impl Drop for Capture<'_> {
            fn drop(&mut self) {
                drop(self.end());
            }
        }
        self.gpu.device().begin_capture(self.handle)?;
        let capture = Capture(self);
        enqueue(self.as_ref())?;
        let graph = capture.end();
        std::mem::forget(capture);
        graph
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.gpu.end_stream(self.handle);
        // SAFETY: the handle is this stream's own; `StreamRef`s borrow the stream.
        unsafe { self.gpu.device().destroy_stream(self.handle) };
    }
}

/// A borrowed stream: one of this crate's, of cust or cudarc (their features), or of any library by its raw handle.
///
/// A stream of another library may be one that this library captures. Its graph would hold addresses of buffers and
/// kernels that nothing keeps alive for it. So calls that enqueue work on such a stream ask the driver, which takes
/// some 0.1 us, and refuse with [`Error::ForeignCapture`]. [`StreamRef::allow_capture`] is for callers that keep
/// everything alive themselves.
///
/// ```
/// use ferrotile::{Arch, Gpu, Result, StreamRef};
///
/// /// Takes a `&Stream` of this library, a `StreamRef`, or one made of a raw handle.
/// fn wait<'s>(stream: impl Into<StreamRef<'s>>) -> Result<()> {
///     stream.into().synchronize()
/// }
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// wait(&gpu.new_stream()?)?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct StreamRef<'a> {
    handle: Handle,
    gpu: &'a Gpu,
    /// Whether work is refused while the stream is being captured.
    foreign: bool,
}

impl<'a> StreamRef<'a> {
    /// Borrows a stream of another library: the `CUstream` (or `cudaStream_t`, which is the same) as a pointer, null
    /// for the legacy default stream.
    ///
    /// # Safety
    /// The stream must be in the primary context of `gpu` and stay live for `'a`. No other thread begins to capture it
    /// during a call that is given this reference.
    #[must_use]
    pub const unsafe fn from_raw(stream: *mut c_void, gpu: &'a Gpu) -> StreamRef<'a> {
        StreamRef { handle: Handle(stream), gpu, foreign: true }
    }

    /// The same stream, on which work may also be enqueued while another library captures it. It becomes part of that
    /// library's graph. Make plans before the capture: making one loads kernels, which a capture may refuse.
    ///
    /// # Safety
    /// Work that is captured through this reference runs in launches of a graph that this library does not know. So
    /// does work on a stream that waits for an event recorded through it. The promise of [`Graph::launch`] must hold
    /// for all these launches: buffers, workspaces, plans, kernels and modules of the work stay alive until the last
    /// launch is done. No two launches of the graph run at once, and neither do launches of two graphs that were made
    /// of the same capture.
    #[must_use]
    pub const unsafe fn allow_capture(self) -> StreamRef<'a> {
        StreamRef { foreign: false, ..self }
    }

    /// The `CUstream` as a pointer. A library that captures the stream by it, and not by [`Stream::capture`], must keep
    /// the promise of [`StreamRef::allow_capture`].
    #[must_use]
    pub const fn as_raw(self) -> *mut c_void {
        self.handle.0
    }

    /// The card that the stream's work runs on.
    #[must_use]
    pub const fn gpu(self) -> &'a Gpu {
        self.gpu
    }

    /// The number of the card that the stream's work runs on.
    #[must_use]
    pub fn ordinal(self) -> u32 {
        self.gpu.ordinal()
    }

    /// Waits for the work that was enqueued, and reports an error of it.
    ///
    /// # Errors
    /// That of the work, and [`Error::Driver`] while the stream is captured.
    pub fn synchronize(self) -> Result<()> {
        self.gpu.device().synchronize_stream(self.handle)
    }

    /// Makes the work that is enqueued from now on wait for an event; the calling thread does not. The event may be one
    /// of another card.
    ///
    /// An event that was never recorded is not waited for.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for an event of another device where either is emulated; [`Error::Driver`].
    pub fn wait_for(self, event: &Event) -> Result<()> {
        // The driver orders across cards, and knows nothing of emulated devices.
        if self.gpu.is_emulated() || event.gpu.is_emulated() {
            same_device("event", event.gpu.ordinal(), self.ordinal())?;
        }
        self.gpu.device().stream_wait_event(self.handle, event.handle)
    }

    /// Whether what is enqueued is recorded as a graph.
    pub(crate) fn is_capturing(self) -> Result<bool> {
        self.gpu.device().is_capturing(self.handle)
    }

    /// The handle, for work that is enqueued.
    pub(crate) fn enqueue(self) -> Result<Handle> {
        if self.foreign && self.is_capturing()? { Err(Error::ForeignCapture) } else { Ok(self.handle) }
    }

    /// The handle, whether or not the stream is being captured.
    pub(crate) const fn handle(self) -> Handle {
        self.handle
    }

    /// The handle, for work that is enqueued, if the stream is on the card of `what`.
    pub(crate) fn on(self, what: &'static str, owner: &Gpu) -> Result<Handle> {
        same_device(what, owner.ordinal(), self.ordinal())?;
        self.enqueue()
    }
}

impl<'a> From<&'a Stream> for StreamRef<'a> {
    fn from(stream: &'a Stream) -> Self {
        stream.as_ref()
    }
}

/// A point in a stream's work, and the time when it is reached.
///
/// ```
/// use ferrotile::{Arch, Event, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let (stream, start, end) = (gpu.new_stream()?, gpu.new_event()?, gpu.new_event()?);
/// start.record(&stream)?;
/// end.record(&stream)?;
/// stream.synchronize()?;
/// assert!(Event::elapsed_ms(&start, &end)? >= 0.0);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug)]
pub struct Event {
    gpu: Gpu,
    handle: Handle,
}

impl Event {
    pub(crate) fn new(gpu: &Gpu) -> Result<Event> {
        Ok(Event { gpu: gpu.clone(), handle: gpu.device().create_event()? })
    }

    /// The card and the handle.
    #[cfg(feature = "cust")]
    pub(crate) const fn parts(&self) -> (&Gpu, &Handle) {
        (&self.gpu, &self.handle)
    }

    /// Puts the event behind the work that was enqueued on the stream, in place of where it was before.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, [`Error::ForeignCapture`], [`Error::Driver`].
    pub fn record<'s>(&self, stream: impl Into<StreamRef<'s>>) -> Result<()> {
        let stream = stream.into().on("event", &self.gpu)?;
        self.gpu.device().record_event(self.handle, stream)
    }

    /// Waits until the event is reached; not at all for one that was never recorded.
    ///
    /// # Errors
    /// That of the work before the event, and [`Error::Driver`] for an event of a capture.
    pub fn synchronize(&self) -> Result<()> {
        self.gpu.device().synchronize_event(self.handle)
    }

    /// The time from one event to a later one in milliseconds, with a resolution of about half a microsecond.
    ///
    /// # Errors
    /// Fails where either was not recorded or has not been reached yet.
    pub fn elapsed_ms(start: &Event, end: &Event) -> Result<f32> {
        same_device("event", start.gpu.ordinal(), end.gpu.ordinal())?;
        end.gpu.device().elapsed_ms(start.handle, end.handle)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle is this event's own.
        unsafe { self.gpu.device().destroy_event(self.handle) };
    }
}

/// Work that [`Stream::capture`] recorded, launched as a whole at the cost of one call.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let mut buffer = Buffer::<u8>::zeroed(&gpu, 2)?;
/// let graph = stream.capture(|stream| buffer.fill_bytes(stream, 7))?;
/// assert_eq!(buffer.download_blocking(&stream)?, [0, 0]);
/// // SAFETY: the buffer outlives the work, which the download waits for.
/// unsafe { graph.launch(&stream) }?;
/// assert_eq!(buffer.download_blocking(&stream)?, [7, 7]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug)]
pub struct Graph {
    gpu: Gpu,
    /// Unlike its other objects, the driver does not lock a graph against calls from several threads.
    handle: Mutex<Handle>,
}

impl Graph {
    /// Enqueues the recorded work. Launches of one graph run one after the other.
    ///
    /// # Safety
    /// The graph holds the addresses of the buffers, pinned buffers and kernels of the recorded work, and does not
    /// borrow them. Each of them must still be alive, and stay alive until the work is done. Host memory that the work
    /// reads or writes must not be used otherwise meanwhile.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for a stream of another card, [`Error::ForeignCapture`], [`Error::Driver`].
    pub unsafe fn launch<'s>(&self, stream: impl Into<StreamRef<'s>>) -> Result<()> {
        let stream = stream.into().on("graph", &self.gpu)?;
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's promise.
        unsafe { self.gpu.device().launch_graph(*handle, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is this graph's own.
        unsafe { self.gpu.device().destroy_graph(handle) };
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use layout::Arch;

    use super::*;
    use crate::backend::Kept;

    /// Keeps the token for what the stream records.
    fn keep(stream: StreamRef<'_>, token: &Arc<()>) -> Result<()> {
        stream.gpu().device().keep_in_capture(stream.handle, Kept::new(token.clone()))
    }

    /// Whether nothing but the caller has the token any more; a driver drops what it has a while after its last use.
    fn is_released(token: &Arc<()>) -> bool {
        let start = Instant::now();
        while Arc::strong_count(token) > 1 && start.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Arc::strong_count(token) == 1
    }

    fn for_each_device(check: impl Fn(&Gpu) -> Result<()>) {
        for gpu in Gpu::all().unwrap().into_iter().chain([Gpu::emulated(Arch::Sm80)]) {
            check(&gpu).unwrap();
        }
    }

    #[test]
    fn what_a_capture_keeps_goes_with_its_graph() {
        for_each_device(|gpu| {
            let (stream, token) = (gpu.new_stream()?, Arc::new(()));
            let graph = stream.capture(|stream| keep(stream, &token))?;
            // SAFETY: the graph uses nothing.
            unsafe { graph.launch(stream.as_ref()) }?;
            stream.synchronize()?;
            assert_eq!(Arc::strong_count(&token), 2, "{gpu}: the graph may be launched again");
            drop(graph);
            assert!(is_released(&token), "{gpu}");
            Ok(())
        });
    }

    #[test]
    fn what_a_capture_keeps_outlives_the_graph_in_another() {
        let gpu = Gpu::emulated(Arch::Sm80);
        let (stream, token) = (gpu.new_stream().unwrap(), Arc::new(()));
        let inner = stream.capture(|stream| keep(stream, &token)).unwrap();
        // SAFETY: the graph uses nothing.
        let outer = stream.capture(|stream| unsafe { inner.launch(stream) }).unwrap();
        drop(inner);
        assert_eq!(Arc::strong_count(&token), 2);
        drop(outer);
        assert!(is_released(&token));
    }

    #[test]
    fn a_capture_that_fails_keeps_nothing() {
        for_each_device(|gpu| {
            let (stream, token) = (gpu.new_stream()?, Arc::new(()));
            let failed = stream.capture(|stream| {
                keep(stream, &token)?;
                Err(Error::NoKernel { kernel: "none".to_owned(), module: "the closure's".to_owned() })
            });
            assert!(failed.is_err() && is_released(&token), "{gpu}");
            Ok(())
        });
    }

    #[test]
    fn what_work_keeps_goes_when_it_is_done() {
        for_each_device(|gpu| {
            let (stream, token) = (gpu.new_stream()?, Arc::new(()));
            gpu.device().keep_until_done(stream.handle, Kept::new(token.clone()))?;
            drop(stream);
            assert!(is_released(&token), "{gpu}");
            Ok(())
        });
    }

    #[test]
    fn no_two_streams_have_one_number() {
        let id = |stream: &Stream| stream.gpu.device().stream_id(stream.handle);
        for_each_device(|gpu| {
            let mut numbers = std::collections::HashSet::new();
            for _ in 0..100 {
                let stream = gpu.new_stream()?;
                assert_eq!(id(&stream)?, id(&stream)?);
                assert!(numbers.insert(id(&stream)?), "{gpu}: that of a stream which is gone");
            }
            Ok(())
        });
    }
}
