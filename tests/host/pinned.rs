//! Page-locked host memory: copies in the order of the stream, and access that waits for them.

use ferrotile::{Buffer, Gpu, PinnedBuffer};
use tests::expect_error;

use crate::graphs::is_refused;
use crate::words::slow_store;
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("copies_both_ways", both_ways),
    test("copies_run_in_the_order_of_the_stream", stream_order),
    test("writing_waits_for_copies_that_read", writing_waits),
    test("copies_on_two_streams_are_one_after_the_other", two_streams),
    test("may_be_dropped_while_it_is_copied", dropped_in_use),
    test("copies_are_refused_in_a_capture/after_a_copy", |gpu| captured(gpu, true)),
    test("copies_are_refused_in_a_capture/before_any_copy", |gpu| captured(gpu, false)),
];

/// Elements of each buffer.
const LEN: usize = 4099;

fn ramp(len: usize) -> Vec<u32> {
    (1..=len as u32).collect()
}

fn pinned_ramp(gpu: &Gpu, len: usize) -> ferrotile::Result<PinnedBuffer<u32>> {
    let mut pinned = PinnedBuffer::zeroed(gpu, len)?;
    pinned.as_mut_slice_blocking()?.copy_from_slice(&ramp(len));
    Ok(pinned)
}

fn both_ways(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    for len in [0, 1, LEN] {
        let source = pinned_ramp(gpu, len)?;
        let mut destination = PinnedBuffer::zeroed(gpu, len)?;
        expect_equal("before", &destination.as_slice_blocking()?, &&*vec![0; len])?;
        let mut buffer = Buffer::zeroed(gpu, len)?;
        buffer.copy_from_pinned(&stream, &source)?;
        buffer.copy_to_pinned(&stream, &mut destination)?;
        expect_equal("after", destination.as_slice_blocking()?, &ramp(len))?;
        expect_equal("length", &(source.len(), source.is_empty()), &(len, len == 0))?;
    }
    Ok(())
}

fn stream_order(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let source = pinned_ramp(gpu, LEN)?;
    let mut first = PinnedBuffer::zeroed(gpu, LEN)?;
    let mut second = PinnedBuffer::zeroed(gpu, LEN)?;
    let mut third = PinnedBuffer::zeroed(gpu, LEN)?;
    let mut buffer = Buffer::zeroed(gpu, LEN)?;
    buffer.copy_from_pinned(&stream, &source)?;
    slow_store(stream.as_ref(), &buffer, 77)?;
    buffer.copy_to_pinned(&stream, &mut first)?;
    buffer.fill_bytes(&stream, 0x11)?;
    buffer.copy_to_pinned(&stream, &mut second)?;
    buffer.copy_from_pinned(&stream, &source)?;
    buffer.copy_to_pinned(&stream, &mut third)?;
    expect_equal("the last copy", third.as_slice_blocking()?, &ramp(LEN))?;
    expect_equal("the one before", &second.as_slice_blocking()?, &&*vec![0x1111_1111; LEN])?;
    let stored: Vec<u32> = std::iter::once(77).chain(ramp(LEN).into_iter().skip(1)).collect();
    expect_equal("the first", first.as_slice_blocking()?, &stored)
}

fn writing_waits(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut source = pinned_ramp(gpu, LEN)?;
    let (mut buffer, other) = (Buffer::zeroed(gpu, LEN)?, Buffer::zeroed(gpu, 1)?);
    slow_store(stream.as_ref(), &other, 1)?;
    buffer.copy_from_pinned(&stream, &source)?;
    source.as_mut_slice_blocking()?.fill(0);
    expect_equal("the copy", &buffer.download_blocking(&stream)?, &ramp(LEN))
}

fn two_streams(gpu: &Gpu) -> Outcome {
    let (slow, fast) = (gpu.new_stream()?, gpu.new_stream()?);
    let (late, early) = (Buffer::zeroed(gpu, LEN)?, Buffer::upload_blocking(&fast, &vec![5; LEN])?);
    let mut pinned = PinnedBuffer::zeroed(gpu, LEN)?;
    slow_store(slow.as_ref(), &late, 9)?;
    late.copy_to_pinned(&slow, &mut pinned)?;
    early.copy_to_pinned(&fast, &mut pinned)?;
    expect_equal("the later copy", &pinned.as_slice_blocking()?, &&*vec![5; LEN])
}

fn dropped_in_use(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let (mut buffer, other) = (Buffer::zeroed(gpu, LEN)?, Buffer::zeroed(gpu, 1)?);
    let source = pinned_ramp(gpu, LEN)?;
    slow_store(stream.as_ref(), &other, 1)?;
    buffer.copy_from_pinned(&stream, &source)?;
    drop(source);
    let _next = PinnedBuffer::<u32>::zeroed(gpu, LEN)?;
    expect_equal("the copy", &buffer.download_blocking(&stream)?, &ramp(LEN))
}

/// Pinned memory that was never copied, or was.
fn captured(gpu: &Gpu, used: bool) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut buffer = Buffer::upload_blocking(&stream, &ramp(LEN))?;
    let pinned = || -> ferrotile::Result<_> {
        let mut pinned = PinnedBuffer::zeroed(gpu, LEN)?;
        if used {
            buffer.copy_to_pinned(&stream, &mut pinned)?;
        }
        Ok(pinned)
    };
    let (mut destination, source) = (pinned()?, pinned()?);
    expect_error(stream.capture(|stream| buffer.copy_to_pinned(stream, &mut destination)), is_refused)?;
    expect_error(stream.capture(|stream| buffer.copy_from_pinned(stream, &source)), is_refused)?;
    buffer.copy_to_pinned(&stream, &mut destination)?;
    expect_equal("after the captures", destination.as_slice_blocking()?, &ramp(LEN))
}
