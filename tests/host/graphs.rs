//! Captures and replays: also of what cannot be captured.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;

use ferrotile::{Arch, Buffer, Error, Gpu, Stream};
use layout::attention::ATTENTION;
use tests::expect_error;

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
    test("a_capture_that_waits_fails_and_leaves_the_stream_usable", waiting).on_a_card("the error is the driver's"),
    test("a_capture_within_a_capture_fails", nested).on_a_card("the error is the driver's"),
    test("a_kernel_that_loads_in_a_capture_works_or_fails_cleanly", loading),
    test("other_threads_work_during_a_capture", other_threads)
        .on_a_card("the driver refuses to wait for a card that captures"),
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

fn waiting(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let is_right = |error: &Error| matches!(error, Error::Driver { .. });
    expect_error(stream.capture(|stream| stream.synchronize()), is_right)?;
    expect_usable(gpu, &stream)?;
    let data = [1_u32; 8];
    let mut buffer = Buffer::zeroed(gpu, 8)?;
    expect_error(stream.capture(|stream| buffer.overwrite_blocking(stream, &data)), is_right)?;
    expect_error(stream.capture(|stream| buffer.download_blocking(stream).map(drop)), is_right)?;
    let freed = Buffer::<u32>::zeroed(gpu, 8)?;
    expect_error(
        stream.capture(|_| {
            drop(freed);
            Ok(())
        }),
        is_right,
    )?;
    // The call's error may be ignored; the capture fails all the same.
    let ignored = stream.capture(|stream| {
        let _ = stream.synchronize();
        Ok(())
    });
    expect_error(ignored, is_right)?;
    expect_usable(gpu, &stream)
}

fn nested(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let captured = stream.capture(|_| stream.capture(|_| Ok(())).map(drop));
    expect_error(captured, |error| matches!(error, Error::Driver { .. }))?;
    expect_usable(gpu, &stream)
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
    let row = ATTENTION.last().ok_or("the table has rows")?;
    let captured = stream.capture(|_| gpu.kernel_for("attention", Arch::Sm80, row.name).map(drop));
    match captured {
        Ok(_) | Err(Error::Driver { .. } | Error::Jit { .. }) => {}
        Err(error) => return Err(format!("neither the driver's error nor a success: {error}").into()),
    }
    gpu.kernel_for("attention", Arch::Sm80, row.name)?;
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
        Err(Error::Driver { call: "cuCtxSynchronize", .. }) => Ok(()),
        other => Err(format!("waiting for a card of which a stream is capturing gave {other:?}").into()),
    }
}
