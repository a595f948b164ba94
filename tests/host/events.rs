//! Events, their times, and what waits for what.

use ferrotile::{Buffer, Error, Event, Gpu};
use tests::expect_error;

use crate::words::{SLOW_MS, add_word, kernel, slow_store};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("times_grow_by_what_lies_between", times),
    test("times_of_events_that_were_not_reached_are_errors", unreached)
        .on_a_card("emulated work is done when it is enqueued: every event is reached"),
    test("a_stream_waits_for_an_event_of_another", waits_across_streams),
    test("an_event_that_was_never_recorded_is_not_waited_for", never_recorded),
    test("an_event_may_be_dropped_while_a_stream_waits_for_it", dropped_in_use),
    test("work_runs_in_order_and_after_its_stream_is_dropped", order),
    test("the_card_waits_for_all_streams", synchronize).alone(),
];

fn times(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::zeroed(gpu, 1)?;
    let events = [gpu.new_event()?, gpu.new_event()?, gpu.new_event()?, gpu.new_event()?];
    events[0].record(stream.as_ref())?;
    events[1].record(stream.as_ref())?;
    slow_store(stream.as_ref(), &out, 1)?;
    events[2].record(stream.as_ref())?;
    slow_store(stream.as_ref(), &out, 2)?;
    events[3].record(stream.as_ref())?;
    events[3].synchronize()?;
    let [nothing, one, two] = [1, 2, 3].map(|end| Event::elapsed_ms(&events[0], &events[end]));
    let (nothing, one, two) = (nothing?, one?, two?);
    // The card's timer may tick as rarely as every millisecond.
    let least = SLOW_MS as f32 - 2.0;
    let is_right = nothing >= 0.0 && one >= nothing + least && two >= one + least;
    expect_equal(&format!("times of {nothing}, {one} and {two} ms grow"), &is_right, &true)?;
    expect_equal("the result", &out.download_blocking(&stream)?, &[2])
}

fn unreached(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::zeroed(gpu, 1)?;
    let (start, end, never) = (gpu.new_event()?, gpu.new_event()?, gpu.new_event()?);
    let is_right = |error: &Error| matches!(error, Error::Driver { call: "cuEventElapsedTime", .. });
    start.record(stream.as_ref())?;
    start.synchronize()?;
    expect_error(Event::elapsed_ms(&start, &never), is_right)?;
    // Long enough that the host asks before the work is done.
    for _ in 0..5 {
        slow_store(stream.as_ref(), &out, 1)?;
    }
    end.record(stream.as_ref())?;
    expect_error(Event::elapsed_ms(&start, &end), is_right)?;
    end.synchronize()?;
    expect_equal("positive", &(Event::elapsed_ms(&start, &end)? > 0.0), &true)
}

fn waits_across_streams(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.new_stream()?, gpu.new_stream()?);
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    let (there, back) = (gpu.new_event()?, gpu.new_event()?);
    let mut expected = 0;
    for round in 1..=5 {
        slow_store(first.as_ref(), &out, round)?;
        there.record(first.as_ref())?;
        second.as_ref().wait_for(&there)?;
        add_word(&add, second.as_ref(), &out, 100)?;
        back.record(second.as_ref())?;
        first.as_ref().wait_for(&back)?;
        expected = round + 100;
    }
    expect_equal("the sum", &out.download_blocking(&first)?, &[expected])
}

fn never_recorded(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let event = gpu.new_event()?;
    event.synchronize()?;
    stream.as_ref().wait_for(&event)?;
    Ok(stream.synchronize()?)
}

fn dropped_in_use(gpu: &Gpu) -> Outcome {
    let (first, second) = (gpu.new_stream()?, gpu.new_stream()?);
    let out = Buffer::zeroed(gpu, 1)?;
    let event = gpu.new_event()?;
    slow_store(first.as_ref(), &out, 3)?;
    event.record(first.as_ref())?;
    second.as_ref().wait_for(&event)?;
    drop(event);
    expect_equal("the result", &out.download_blocking(&second)?, &[3])
}

fn order(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::zeroed(gpu, 1)?;
    slow_store(stream.as_ref(), &out, 1000)?;
    for word in 0..100 {
        add_word(&add, stream.as_ref(), &out, word)?;
    }
    let done = gpu.new_event()?;
    done.record(stream.as_ref())?;
    drop(stream);
    done.synchronize()?;
    expect_equal("the sum", &out.download_blocking(&gpu.new_stream()?)?, &[1000 + 99 * 50])
}

fn synchronize(gpu: &Gpu) -> Outcome {
    let streams = [gpu.new_stream()?, gpu.new_stream()?, gpu.new_stream()?];
    let out = Buffer::zeroed(gpu, 1)?;
    let done = [gpu.new_event()?, gpu.new_event()?, gpu.new_event()?];
    let start = gpu.new_event()?;
    start.record(streams[0].as_ref())?;
    for (stream, done) in streams.iter().zip(&done) {
        slow_store(stream.as_ref(), &out, 1)?;
        done.record(stream.as_ref())?;
    }
    gpu.synchronize()?;
    // A time is an error until its event is reached.
    for done in &done {
        Event::elapsed_ms(&start, done)?;
    }
    Ok(())
}
