//! Contexts and streams that other code made.

use std::ffi::c_void;
use std::ptr;

use ferrotile::{Buffer, Gpu, PinnedBuffer, StreamRef};

use crate::call::{Call, bits, expected_bits, plan};
use crate::driver::{ForeignStream, OtherContext, current_context, enter_primary_context};
use crate::words::{add_word, kernel, slow_store};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("a_thread_without_a_context", without_context),
    test("a_thread_with_another_context", with_another_context).on_a_card("contexts are the driver's"),
    test("what_one_thread_made_another_may_drop", dropped_elsewhere),
    test("a_raw_stream", raw_stream).on_a_card("the stream is the driver's"),
    test("the_legacy_default_stream", default_stream).on_a_card("the stream is the driver's"),
];

/// Runs on a new thread, where no context is current at first.
pub(crate) fn on_new_thread(body: impl FnOnce() -> Outcome + Send) -> Outcome {
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
        expect_equal("the context before", &current_context(), &ptr::null_mut::<c_void>())?;
        use_everything(gpu)?;
        use_everything(&Gpu::new(gpu.ordinal())?)?;
        expect_equal("the context after", &current_context(), &ptr::null_mut::<c_void>())
    })
}

/// Runs with a context current that is not the card's primary one, and checks that it still is afterwards.
fn in_another_context(gpu: &Gpu, body: impl FnOnce() -> Outcome + Send) -> Outcome {
    let ordinal = gpu.ordinal();
    on_new_thread(move || {
        let context = OtherContext::enter(ordinal);
        let before = current_context();
        let result = body();
        expect_equal("the context after", &current_context(), &before)?;
        drop(context);
        result
    })
}

fn with_another_context(gpu: &Gpu) -> Outcome {
    in_another_context(gpu, || {
        use_everything(gpu)?;
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
pub(crate) fn attention_on(gpu: &Gpu, stream: StreamRef<'_>) -> Outcome {
    let expected = expected_bits(gpu)?;
    let mut call = Call::new(stream)?;
    call.enqueue(&plan(gpu)?, stream)?;
    expect_equal("the bits", &bits(&call.out.download_blocking(stream)?), &expected)?;
    let event = gpu.new_event()?;
    event.record(stream)?;
    stream.wait_for(&event)?;
    Ok(stream.synchronize()?)
}

fn raw_stream(gpu: &Gpu) -> Outcome {
    on_new_thread(|| {
        enter_primary_context(gpu.ordinal());
        let stream = ForeignStream::new();
        // SAFETY: the stream is in the primary context and outlives the reference.
        attention_on(gpu, unsafe { StreamRef::from_raw(stream.as_raw(), gpu) })
    })
}

fn default_stream(gpu: &Gpu) -> Outcome {
    // SAFETY: the legacy default stream of the primary context always lives.
    let stream = unsafe { StreamRef::from_raw(ptr::null_mut(), gpu) };
    attention_on(gpu, stream)?;
    in_another_context(gpu, || attention_on(gpu, stream))
}
