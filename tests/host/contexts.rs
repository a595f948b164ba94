//! Contexts, streams and memory that other code made: here cust.

use std::ffi::c_void;
use std::ptr;

use cust::context::legacy::{self, ContextStack, CurrentContext};
use cust::device::Device;
use cust::memory::DeviceBuffer;
use cust::stream::{Stream as CustStream, StreamFlags};
use ferrotile::{AttentionTensors, Buffer, Error, Gpu, PinnedBuffer, StreamRef, TensorMut, TensorRef, attention};
use half::f16;
use tests::expect_error;

use crate::call::{Call, LEN, SHAPE, bits, expected_bits, host_inputs, options, plan};
use crate::words::{add_word, kernel, slow_store};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("a_thread_without_a_context", without_context),
    test("a_thread_with_another_context", with_another_context).on_a_card("contexts are the driver's"),
    test("what_one_thread_made_another_may_drop", dropped_elsewhere),
    test("a_stream_of_cust", cust_stream).on_a_card("the stream is the driver's"),
    test("a_stream_of_cust_in_another_context_is_refused", foreign_stream).on_a_card("the stream is the driver's"),
    test("a_raw_stream", raw_stream).on_a_card("the stream is the driver's"),
    test("the_legacy_default_stream", default_stream).on_a_card("the stream is the driver's"),
    test("memory_of_cust_is_memory_like_any_other", cust_memory).on_a_card("the memory is the driver's"),
];

/// The context that is current on this thread; null for none.
fn current() -> *mut c_void {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is written.
    unsafe { cust::sys::cuCtxGetCurrent(&mut context) };
    context.cast()
}

/// Runs on a new thread, where no context is current at first.
fn on_new_thread(body: impl FnOnce() -> Outcome + Send) -> Outcome {
    std::thread::scope(|scope| scope.spawn(body).join().unwrap_or_else(|_| Err("the thread panicked".into())))
}

/// A bit of everything: memory, copies, a kernel, attention, a graph, an event.
fn use_everything(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut words = Buffer::upload_blocking(&stream, &[1_u32, 2])?;
    let add = kernel(gpu, "add_word")?;
    add_word(&add, stream.as_ref(), &words, 10)?;
    let mut pinned = PinnedBuffer::zeroed(gpu, 2)?;
    words.copy_to_pinned(&stream, &mut pinned)?;
    expect_equal("the words", pinned.as_slice_blocking()?, &[11, 2])?;
    words.fill_bytes(&stream, 0)?;
    let graph = stream.capture(|stream| add_word(&add, stream, &words, 4))?;
    // SAFETY: the buffer and the kernel outlive the replay.
    unsafe { graph.launch(stream.as_ref()) }?;
    let event = gpu.new_event()?;
    event.record(stream.as_ref())?;
    event.synchronize()?;
    expect_equal("the words", &words.download_blocking(&stream)?, &[4, 0])?;
    let mut call = Call::new(stream.as_ref())?;
    call.enqueue(&plan(gpu)?, stream.as_ref())?;
    stream.synchronize()?;
    crate::call::check(&call.out.download_blocking(&stream)?)
}

fn without_context(gpu: &Gpu) -> Outcome {
    on_new_thread(|| {
        expect_equal("the context before", &current(), &ptr::null_mut::<c_void>())?;
        use_everything(gpu)?;
        use_everything(&Gpu::new(gpu.ordinal())?)?;
        expect_equal("the context after", &current(), &ptr::null_mut::<c_void>())
    })
}

/// Runs with a context current that is not the card's primary one, and checks that it still is afterwards.
fn in_another_context(gpu: &Gpu, body: impl FnOnce() -> Outcome + Send) -> Outcome {
    let ordinal = gpu.ordinal();
    on_new_thread(move || {
        let context = legacy::Context::create_and_push(legacy::ContextFlags::SCHED_AUTO, Device::get_device(ordinal)?)?;
        let before = current();
        let result = body();
        expect_equal("the context after", &current(), &before)?;
        ContextStack::pop()?;
        drop(context);
        result
    })
}

fn with_another_context(gpu: &Gpu) -> Outcome {
    in_another_context(gpu, || {
        use_everything(gpu)?;
        let is_there = CurrentContext::get_device()?.as_raw() as u32;
        expect_equal("the device of the context", &is_there, &gpu.ordinal())?;
        use_everything(&Gpu::new(gpu.ordinal())?)
    })
}

fn dropped_elsewhere(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let buffer = Buffer::upload_blocking(&stream, &[1_u32])?;
    let pinned = PinnedBuffer::<u32>::zeroed(gpu, 1)?;
    let event = gpu.new_event()?;
    let graph = stream.capture(|_| Ok(()))?;
    let module = gpu.load_ptx(crate::words::PTX)?;
    slow_store(stream.as_ref(), &buffer, 3)?;
    event.record(stream.as_ref())?;
    on_new_thread(move || {
        event.synchronize()?;
        expect_equal("the word", &buffer.download_blocking(&stream)?, &[3])?;
        drop((graph, module, event, pinned, buffer, stream));
        Ok(())
    })
}

/// Runs attention on a borrowed stream and compares its bits with those of a stream of the library.
fn attention_on(gpu: &Gpu, stream: StreamRef<'_>) -> Outcome {
    let expected = expected_bits(gpu)?;
    let mut call = Call::new(stream)?;
    call.enqueue(&plan(gpu)?, stream)?;
    expect_equal("the bits", &bits(&call.out.download_blocking(stream)?), &expected)?;
    let event = gpu.new_event()?;
    event.record(stream)?;
    stream.wait_for(&event)?;
    Ok(stream.synchronize()?)
}

fn cust_stream(gpu: &Gpu) -> Outcome {
    let expected = gpu.ordinal();
    on_new_thread(|| {
        let _primary = cust::context::Context::new(Device::get_device(gpu.ordinal())?)?;
        let stream = CustStream::new(StreamFlags::DEFAULT, None)?;
        let borrowed = StreamRef::try_from(&stream)?;
        expect_equal("the device", &borrowed.ordinal(), &expected)?;
        expect_equal("the handle", &borrowed.as_raw(), &stream.as_inner().cast::<c_void>())?;
        attention_on(gpu, borrowed)?;
        // Also where no context is current.
        // SAFETY: no condition.
        unsafe { cust::sys::cuCtxSetCurrent(ptr::null_mut()) };
        attention_on(gpu, StreamRef::try_from(&stream)?)
    })
}

fn foreign_stream(gpu: &Gpu) -> Outcome {
    let ordinal = gpu.ordinal();
    in_another_context(gpu, move || {
        let stream = CustStream::new(StreamFlags::DEFAULT, None)?;
        let is_right = |error: &Error| *error == Error::ForeignContext { ordinal };
        expect_error(StreamRef::try_from(&stream), is_right)?;
        Ok(stream.synchronize()?)
    })
}

fn raw_stream(gpu: &Gpu) -> Outcome {
    on_new_thread(|| {
        let _primary = cust::context::Context::new(Device::get_device(gpu.ordinal())?)?;
        let stream = CustStream::new(StreamFlags::DEFAULT, None)?;
        // SAFETY: the stream is in the primary context and outlives the reference.
        attention_on(gpu, unsafe { StreamRef::from_raw(stream.as_inner().cast(), gpu) })
    })
}

fn default_stream(gpu: &Gpu) -> Outcome {
    // SAFETY: the legacy default stream of the primary context always lives.
    let stream = unsafe { StreamRef::from_raw(ptr::null_mut(), gpu) };
    attention_on(gpu, stream)?;
    in_another_context(gpu, || attention_on(gpu, stream))
}

fn cust_memory(gpu: &Gpu) -> Outcome {
    let expected = expected_bits(gpu)?;
    on_new_thread(|| {
        let _primary = cust::context::Context::new(Device::get_device(gpu.ordinal())?)?;
        let inputs = host_inputs().map(|values| DeviceBuffer::from_slice(&bits(&values)));
        let [q, k, v] = inputs;
        let (q, k, v) = (q?, k?, v?);
        let out = DeviceBuffer::from_slice(&vec![u16::MAX; LEN])?;
        // cust copies on the legacy default stream, with which the library's streams are not ordered.
        // SAFETY: that stream always lives.
        unsafe { StreamRef::from_raw(ptr::null_mut(), gpu) }.synchronize()?;
        let strides = *Call::new(gpu.new_stream()?.as_ref())?.tensors()?[0].strides();
        let raw = |memory: &DeviceBuffer<u16>| memory.as_device_ptr().as_raw();
        // SAFETY: the memory is in the primary context, holds the tensor and outlives the work.
        let tensor = |memory| unsafe { TensorRef::<f16, 4>::from_raw(gpu.ordinal(), raw(memory), SHAPE, strides) };
        // SAFETY: as above, and nothing else uses the output.
        let written = unsafe { TensorMut::<f16, 4>::from_raw(gpu.ordinal(), raw(&out), SHAPE, strides) }?;
        let stream = gpu.new_stream()?;
        let tensors = AttentionTensors::new(tensor(&q)?, tensor(&k)?, tensor(&v)?, written);
        attention(&stream, tensors, &options().params(), &options().options())?;
        stream.synchronize()?;
        let got = out.as_host_vec()?;
        expect_equal("the bits", &got, &expected)
    })
}
