//! Captures and replays: also of what cannot be captured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use ferrotile::{Arch, Buffer, Error, Event, Gpu, PinnedBuffer, Stream, StreamRef};
use tests::expect_error;
use variants::attention::ATTENTION;

use crate::call::{Call, bits, expected_bits, plan};
use crate::words::{PTX, add_word, kernel, slow_store};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("replays_do_the_work_each_time", replays),
    test("replays_of_attention_give_the_bits_of_the_call", attention),
    test("replays_on_another_stream", another_stream),
    test("a_graph_of_nothing", nothing),
    test("a_graph_may_be_dropped_while_it_runs", dropped_in_use),
    test("a_capture_that_fails_leaves_the_stream_usable", failing),
    test("a_capture_that_panics_leaves_the_stream_usable", panicking),
    test("a_capture_that_waits_or_allocates_fails_and_leaves_the_stream_usable", waiting),
    test("a_capture_within_a_capture_fails", nested),
    test("other_streams_take_part_in_a_capture", forked),
    test("a_capture_whose_streams_are_not_together_again_fails", not_joined),
    test("a_capture_that_waits_for_an_event_outside_fails", outside),
    test("events_of_a_capture_are_never_reached", captured_events),
    test("a_capture_of_another_library_is_refused", foreign),
    test("a_capture_of_another_library_records_where_it_is_allowed", foreign_allowed),
    test("a_kernel_that_loads_in_a_capture_works_or_fails_cleanly", loading),
    test("other_threads_work_during_a_capture", other_threads),
];

/// Checks that a stream runs work, captures and replays.
fn expect_usable(gpu: &Gpu, stream: &Stream) -> Outcome {
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::upload_blocking(stream, &[5])?;
    add_word(&add, stream.as_ref(), &out, 10)?;
    expect_equal("work afterwards", &out.download_blocking(stream)?, &[15])?;
    let graph = stream.capture(|stream| add_word(&add, stream, &out, 100))?;
    // SAFETY: the buffer and the kernel outlive the replay.
    unsafe { graph.launch(stream.as_ref()) }?;
    expect_equal("a capture afterwards", &out.download_blocking(stream)?, &[115])
}

fn replays(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::upload_blocking(&stream, &[7])?;
    let graph = stream.capture(|stream| {
        add_word(&add, stream, &out, 1)?;
        add_word(&add, stream, &out, 10)?;
        add_word(&add, stream, &out, 100)
    })?;
    expect_equal("before any replay", &out.download_blocking(&stream)?, &[7])?;
    for _ in 0..1000 {
        // SAFETY: the buffer and the kernel outlive the replays.
        unsafe { graph.launch(stream.as_ref()) }?;
    }
    expect_equal("after 1000 replays", &out.download_blocking(&stream)?, &[7 + 111_000])
}

fn attention(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let expected = expected_bits(gpu)?;
    let plan = plan(gpu)?;
    let mut call = Call::new(stream.as_ref())?;
    let graph = stream.capture(|stream| call.enqueue(&plan, stream))?;
    for replay in 0..100 {
        call.out.fill_bytes(&stream, 0xff)?;
        // SAFETY: the buffers and the plan outlive the replay.
        unsafe { graph.launch(stream.as_ref()) }?;
        if replay % 10 == 0 {
            expect_equal("the bits", &bits(&call.out.download_blocking(&stream)?), &expected)?;
        }
    }
    expect_equal("the bits at last", &bits(&call.out.download_blocking(&stream)?), &expected)
}

fn another_stream(gpu: &Gpu) -> Outcome {
    let (recorded, replayed) = (gpu.new_stream()?, gpu.new_stream()?);
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let graph = recorded.capture(|stream| add_word(&add, stream, &out, 1))?;
    drop(recorded);
    for _ in 0..100 {
        // SAFETY: the buffer and the kernel outlive the replays.
        unsafe { graph.launch(replayed.as_ref()) }?;
    }
    expect_equal("the sum", &out.download_blocking(&replayed)?, &[100])
}

fn nothing(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let graph = stream.capture(|_| Ok(()))?;
    // SAFETY: the graph uses nothing.
    unsafe { graph.launch(stream.as_ref()) }?;
    stream.synchronize()?;
    expect_usable(gpu, &stream)
}

fn dropped_in_use(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let graph = stream.capture(|stream| add_word(&add, stream, &out, 1))?;
    slow_store(stream.as_ref(), &out, 10)?;
    // SAFETY: the buffer and the kernel outlive the replay.
    unsafe { graph.launch(stream.as_ref()) }?;
    drop(graph);
    expect_equal("the sum", &out.download_blocking(&stream)?, &[11])
}

fn failing(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let error = Error::NoKernel { kernel: "none".to_owned(), module: "the closure's".to_owned() };
    let captured = stream.capture(|stream| {
        add_word(&add, stream, &out, 1)?;
        Err(error.clone())
    });
    expect_error(captured, |got| *got == error)?;
    expect_equal("nothing ran", &out.download_blocking(&stream)?, &[0])?;
    expect_usable(gpu, &stream)
}

fn panicking(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let captured = catch_unwind(AssertUnwindSafe(|| {
        stream.capture(|stream| {
            add_word(&add, stream, &out, 1)?;
            // Unlike a panic, this prints nothing.
            std::panic::resume_unwind(Box::new(()))
        })
    }));
    expect_equal("the panic goes on", &captured.is_err(), &true)?;
    expect_equal("nothing ran", &out.download_blocking(&stream)?, &[0])?;
    expect_usable(gpu, &stream)
}

/// Whether the driver refused something, or the emulator in its place.
pub(crate) fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Driver { .. } | Error::Emulator { .. })
}

/// A capture fails by what `call` does, whatever that says.
fn expect_spoiled(stream: &Stream, call: impl FnOnce(StreamRef<'_>)) -> Outcome {
    let captured = stream.capture(|stream| {
        call(stream);
        Ok(())
    });
    expect_error(captured, is_refused)
}

fn waiting(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    expect_error(stream.capture(|stream| stream.synchronize()), is_refused)?;
    expect_usable(gpu, &stream)?;
    let data = [1_u32; 8];
    let mut buffer = Buffer::zeroed(gpu, 8)?;
    expect_error(stream.capture(|stream| buffer.overwrite_blocking(stream, &data)), is_refused)?;
    expect_error(stream.capture(|stream| buffer.download_blocking(stream).map(drop)), is_refused)?;
    // What comes after a call that was refused is so too.
    let again = stream.capture(|stream| {
        let _ = stream.synchronize();
        buffer.fill_bytes(stream, 1)
    });
    expect_error(again, is_refused)?;
    expect_equal("nothing ran", &buffer.download_blocking(&stream)?, &[0; 8])?;
    // The call's error may be ignored, or be none; the capture fails all the same.
    let (freed, pinned) = (Buffer::<u32>::zeroed(gpu, 8)?, PinnedBuffer::<u32>::zeroed(gpu, 8)?);
    expect_spoiled(&stream, |stream| drop(stream.synchronize()))?;
    expect_spoiled(&stream, |_| drop(freed))?;
    expect_spoiled(&stream, |_| drop(pinned))?;
    expect_spoiled(&stream, |_| drop(Buffer::<u32>::zeroed(gpu, 8)))?;
    expect_spoiled(&stream, |_| drop(PinnedBuffer::<u32>::zeroed(gpu, 8)))?;
    expect_usable(gpu, &stream)
}

fn nested(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let captured = stream.capture(|_| stream.capture(|_| Ok(())).map(drop));
    expect_error(captured, is_refused)?;
    expect_usable(gpu, &stream)
}

/// Work on a stream that waits for an event of a capture is part of the graph, between what is before and after it.
fn forked(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.new_stream()?, gpu.new_stream()?);
    let add = kernel(gpu, "add_word")?;
    let mut out = Buffer::upload_blocking(&first, &[1])?;
    let two = Buffer::upload_blocking(&first, &[2])?;
    let (there, back) = (gpu.new_event()?, gpu.new_event()?);
    let graph = first.capture(|stream| {
        out.copy_from(stream, 0, &two)?;
        there.record(stream)?;
        second.as_ref().wait_for(&there)?;
        add_word(&add, second.as_ref(), &out, 10)?;
        back.record(second.as_ref())?;
        stream.wait_for(&back)?;
        add_word(&add, stream, &out, 100)
    })?;
    expect_equal("nothing ran", &out.download_blocking(&second)?, &[1])?;
    for _ in 0..2 {
        // SAFETY: the buffers and the kernel outlive the replay.
        unsafe { graph.launch(first.as_ref()) }?;
        expect_equal("a replay", &out.download_blocking(&first)?, &[112])?;
    }
    [&first, &second].into_iter().try_for_each(|stream| expect_usable(gpu, stream))
}

fn not_joined(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.new_stream()?, gpu.new_stream()?);
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let (there, back) = (gpu.new_event()?, gpu.new_event()?);
    let captured = first.capture(|stream| {
        there.record(stream)?;
        second.as_ref().wait_for(&there)?;
        back.record(second.as_ref())?;
        add_word(&add, second.as_ref(), &out, 10)?;
        stream.wait_for(&back)
    });
    expect_error(captured, is_refused)?;
    expect_equal("nothing ran", &out.download_blocking(&second)?, &[0])?;
    [&first, &second].into_iter().try_for_each(|stream| expect_usable(gpu, stream))
}

fn outside(gpu: &Gpu) -> Outcome {
    let (stream, other) = (gpu.new_stream()?, gpu.new_stream()?);
    let event = gpu.new_event()?;
    event.record(other.as_ref())?;
    expect_error(stream.capture(|stream| stream.wait_for(&event)), is_refused)?;
    let ignored = stream.capture(|stream| {
        let _ = stream.wait_for(&event);
        Ok(())
    });
    expect_error(ignored, is_refused)?;
    // An event of another capture is outside too.
    let of_other = gpu.new_event()?;
    let captured = other.capture(|other| {
        of_other.record(other)?;
        stream.capture(|stream| stream.wait_for(&of_other)).map(drop)
    });
    expect_error(captured, is_refused)?;
    [&stream, &other].into_iter().try_for_each(|stream| expect_usable(gpu, stream))
}

fn captured_events(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let (event, start) = (gpu.new_event()?, gpu.new_event()?);
    start.record(stream.as_ref())?;
    let graph = stream.capture(|stream| event.record(stream))?;
    // SAFETY: the graph uses nothing.
    unsafe { graph.launch(stream.as_ref()) }?;
    stream.synchronize()?;
    expect_error(event.synchronize(), is_refused)?;
    expect_error(Event::elapsed_ms(&start, &event), is_refused)?;
    event.record(stream.as_ref())?;
    event.synchronize()?;
    expect_equal("it is reached again", &(Event::elapsed_ms(&start, &event)? >= 0.0), &true)
}

/// A stream as another library gives it. The driver does not tell whose capture of it is under way.
fn as_foreign(stream: &Stream) -> StreamRef<'_> {
    // SAFETY: the stream is in the primary context, lives as long, and no other thread captures it.
    unsafe { StreamRef::from_raw(stream.as_ref().as_raw(), stream.gpu()) }
}

fn foreign(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let foreign = as_foreign(&stream);
    let add = kernel(gpu, "add_word")?;
    let mut out = Buffer::upload_blocking(foreign, &[7])?;
    add_word(&add, foreign, &out, 10)?;
    expect_equal("outside of a capture", &out.download_blocking(foreign)?, &[17])?;
    let (source, mut pinned) = (Buffer::zeroed(gpu, 1)?, PinnedBuffer::zeroed(gpu, 1)?);
    let (event, nothing) = (gpu.new_event()?, stream.capture(|_| Ok(()))?);
    let (plan, mut call) = (plan(gpu)?, Call::new(stream.as_ref())?);
    let is_right = |error: &Error| *error == Error::ForeignCapture;
    let mut outcome = Ok(());
    let graph = stream.capture(|stream| {
        outcome = (|| {
            expect_error(add_word(&add, foreign, &out, 1), is_right)?;
            expect_error(out.fill_bytes(foreign, 1), is_right)?;
            expect_error(out.copy_from(foreign, 0, &source), is_right)?;
            expect_error(out.copy_to_pinned(foreign, &mut pinned), is_right)?;
            expect_error(out.copy_from_pinned(foreign, &pinned), is_right)?;
            expect_error(out.overwrite_blocking(foreign, &[1]), is_right)?;
            expect_error(out.download_blocking(foreign), is_right)?;
            expect_error(event.record(foreign), is_right)?;
            expect_error(call.enqueue(&plan, foreign), is_right)?;
            // SAFETY: the graph uses nothing.
            expect_error(unsafe { nothing.launch(foreign) }, is_right)
        })();
        // None of them has spoiled the capture.
        add_word(&add, stream, &out, 100)
    })?;
    outcome?;
    // SAFETY: the buffer and the kernel outlive the replay.
    unsafe { graph.launch(foreign) }?;
    expect_equal("the replay", &out.download_blocking(foreign)?, &[117])?;
    expect_usable(gpu, &stream)
}

fn foreign_allowed(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    // SAFETY: what is captured outlives the replays.
    let allowed = unsafe { as_foreign(&stream).allow_capture() };
    let expected = expected_bits(gpu)?;
    let (plan, mut call) = (plan(gpu)?, Call::new(stream.as_ref())?);
    let graph = stream.capture(|_| call.enqueue(&plan, allowed))?;
    for _ in 0..2 {
        call.out.fill_bytes(&stream, 0xff)?;
        // SAFETY: the buffers and the plan outlive the replay.
        unsafe { graph.launch(allowed) }?;
        expect_equal("the bits", &bits(&call.out.download_blocking(allowed)?), &expected)?;
    }
    Ok(())
}

/// The documents advise to load kernels before a capture. In one, either everything works or the capture fails; the
/// kernel can be loaded afterwards, and the stream is usable.
fn loading(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::upload_blocking(&stream, &[1])?;
    let mut loaded = None;
    let captured = stream.capture(|stream| {
        let add = loaded.insert(gpu.load_ptx(PTX)?).kernel("add_word")?;
        add_word(&add, stream, &out, 10)
    });
    match captured {
        Ok(graph) => {
            // SAFETY: the buffer and the module outlive the replay.
            unsafe { graph.launch(stream.as_ref()) }?;
            expect_equal("the replay", &out.download_blocking(&stream)?, &[11])?;
        }
        Err(Error::Driver { .. } | Error::Jit { .. }) => {
            expect_equal("nothing ran", &out.download_blocking(&stream)?, &[1])?;
        }
        Err(error) => return Err(format!("neither the driver's error nor a success: {error}").into()),
    }
    expect_usable(gpu, &stream)?;
    // A kernel of the library that no other trial of this program loads: a failure is not kept in the cache.
    let config = ATTENTION.iter().rfind(|config| config.compiled_for(Arch::Sm80));
    let config = config.ok_or("the table has configurations")?;
    let captured = stream.capture(|_| gpu.kernel_for("attention", Arch::Sm80, config.name).map(drop));
    match captured {
        Ok(_) | Err(Error::Driver { .. } | Error::Jit { .. }) => {}
        Err(error) => return Err(format!("neither the driver's error nor a success: {error}").into()),
    }
    gpu.kernel_for("attention", Arch::Sm80, config.name)?;
    expect_usable(gpu, &stream)
}

/// What other threads do at the same time neither fails nor spoils the capture.
fn other_threads(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let (begun, until_begun) = mpsc::channel();
    let (done, until_done) = mpsc::channel();
    let graph = std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            until_begun.recv().map_err(|_| "the capture did not begin")?;
            let result = work_and_wait(gpu);
            // Nobody waits where the capture has failed.
            let _ = done.send(());
            result
        });
        let (add, out) = (&add, &out);
        let graph = stream.capture(move |stream| {
            add_word(add, stream, out, 1)?;
            let _ = begun.send(());
            let _ = until_done.recv();
            add_word(add, stream, out, 10)
        });
        other.join().map_err(|_| "the other thread panicked")??;
        Ok::<_, libtest_mimic::Failed>(graph?)
    })?;
    // SAFETY: the buffer and the kernel outlive the replay.
    unsafe { graph.launch(stream.as_ref()) }?;
    expect_equal("the replay", &out.download_blocking(&stream)?, &[11])
}

/// Allocates, copies, frees, loads, unloads and waits: for a stream and for the card.
fn work_and_wait(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::upload_blocking(&stream, &[1_u32])?;
    slow_store(stream.as_ref(), &out, 5)?;
    expect_equal("a stream beside a capture", &out.download_blocking(&stream)?, &[5])?;
    drop(out);
    drop(gpu.load_ptx(PTX)?);
    match gpu.synchronize() {
        Err(error) if is_refused(&error) => Ok(()),
        other => Err(format!("waiting for a card of which a stream is capturing gave {other:?}").into()),
    }
}
