//! Device memory: copies, lengths, arrays, running out of it, and dropping what is in use.

use ferrotile::{Buffer, Element, Error, Gpu, PinnedBuffer, TensorMut, TensorRef};
use half::{bf16, f16};
use ndarray::{Array, Array2, Array3, ArrayView, Dimension, IxDyn, s};
use tests::expect_error;

use crate::words::slow_store;
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("every_type_comes_back/f16", |gpu| round_trips(gpu, |i| f16::from_bits(i as u16))),
    test("every_type_comes_back/bf16", |gpu| round_trips(gpu, |i| bf16::from_bits(i as u16))),
    test("every_type_comes_back/f32", |gpu| round_trips(gpu, |i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)))),
    test("every_type_comes_back/u32", |gpu| round_trips(gpu, |i| i.wrapping_mul(0x9e37_79b9))),
    test("every_type_comes_back/i32", |gpu| round_trips(gpu, |i| i.wrapping_mul(0x9e37_79b9) as i32)),
    test("every_type_comes_back/u16", |gpu| round_trips(gpu, |i| i as u16)),
    test("every_type_comes_back/u8", |gpu| round_trips(gpu, |i| (i ^ i >> 8) as u8)),
    test("zeroed_and_filled/f16", zeroed_and_filled::<f16>),
    test("zeroed_and_filled/bf16", zeroed_and_filled::<bf16>),
    test("zeroed_and_filled/f32", zeroed_and_filled::<f32>),
    test("zeroed_and_filled/u32", zeroed_and_filled::<u32>),
    test("zeroed_and_filled/i32", zeroed_and_filled::<i32>),
    test("zeroed_and_filled/u16", zeroed_and_filled::<u16>),
    test("zeroed_and_filled/u8", zeroed_and_filled::<u8>),
    test("wrong_lengths_change_nothing", wrong_lengths),
    test("arrays_arrive_in_row_major_order", arrays),
    test("too_large_is_an_error_and_the_library_goes_on", out_of_memory).on_a_card("the error is the driver's"),
    test("a_buffer_may_be_dropped_while_a_kernel_writes_to_it", dropped_in_use),
];

/// Around nothing, one, the alignment of an allocation, and more than one copy's worth.
const LENGTHS: [usize; 9] = [0, 1, 2, 255, 256, 257, 4097, 65536, (1 << 20) + 3];

/// The bytes of elements: NaNs are compared too.
fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain data without padding.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn expect_bytes<T: Element>(what: &str, got: &[T], expected: &[T]) -> Outcome {
    expect_equal(&format!("length {what}"), &got.len(), &expected.len())?;
    match (0..got.len()).find(|&at| bytes_of(&got[at..=at]) != bytes_of(&expected[at..=at])) {
        None => Ok(()),
        Some(at) => Err(format!("{what}, element {at}: got {:?}, expected {:?}", got[at], expected[at]).into()),
    }
}

fn round_trips<T: Element>(gpu: &Gpu, element: fn(u32) -> T) -> Outcome {
    let stream = gpu.new_stream()?;
    for len in LENGTHS {
        let first: Vec<T> = (0..len as u32).map(element).collect();
        let mut buffer = Buffer::upload_blocking(&stream, &first)?;
        expect_equal("length", &(buffer.len(), buffer.is_empty()), &(len, len == 0))?;
        expect_equal("address", &(buffer.as_raw().is_multiple_of(256), buffer.as_raw() == 0), &(true, len == 0))?;
        expect_bytes(&format!("{len} uploaded"), &buffer.download_blocking(&stream)?, &first)?;
        let second: Vec<T> = (0..len as u32).map(|i| element(!i)).collect();
        buffer.overwrite_blocking(&stream, &second)?;
        expect_bytes(&format!("{len} overwritten"), &buffer.download_blocking(&stream)?, &second)?;
    }
    Ok(())
}

fn expect_every_byte<T: Element>(gpu: &Gpu, buffer: &Buffer<T>, byte: u8) -> Outcome {
    let got = buffer.download_blocking(&gpu.new_stream()?)?;
    match bytes_of(&got).iter().position(|&got| got != byte) {
        None => Ok(()),
        Some(at) => Err(format!("byte {at} of {} elements is not {byte:#x}", got.len()).into()),
    }
}

fn zeroed_and_filled<T: Element>(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    for len in LENGTHS {
        for byte in [0xa5, 0xff] {
            // The second time it may be the memory that was filled.
            let mut buffer = Buffer::<T>::zeroed(gpu, len)?;
            expect_every_byte(gpu, &buffer, 0)?;
            buffer.fill_bytes(&stream, byte)?;
            stream.synchronize()?;
            expect_every_byte(gpu, &buffer, byte)?;
        }
    }
    Ok(())
}

fn wrong_lengths(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    for (len, given) in [(0, 1), (1, 0), (1, 2), (256, 255), (256, 257), (256, 0)] {
        let before = vec![7_u32; len];
        let mut buffer = Buffer::upload_blocking(&stream, &before)?;
        let mut pinned = PinnedBuffer::<u32>::zeroed(gpu, given)?;
        let is_right = |got: usize, expected: usize| move |error: &Error| matches!(error, Error::Length { got: g, expected: e, .. } if (*g, *e) == (got, expected));
        expect_error(buffer.overwrite_blocking(&stream, &vec![9; given]), is_right(given, len))?;
        expect_error(buffer.copy_from_pinned(&stream, &pinned), is_right(given, len))?;
        expect_error(buffer.copy_to_pinned(&stream, &mut pinned), is_right(given, len))?;
        expect_error(buffer.download_array_blocking(&stream, given), is_right(given, len))?;
        expect_error(TensorRef::contiguous(&buffer, [given, 1]), is_right(given, len))?;
        expect_error(TensorMut::contiguous(&mut buffer, [1, given]), is_right(given, len))?;
        expect_equal("the buffer", &buffer.download_blocking(&stream)?, &before)?;
        expect_equal("the pinned memory", pinned.as_slice_blocking()?, &vec![0; given])?;
    }
    Ok(())
}

/// Uploads a view and checks that its elements lie in the order of its indices.
fn check_array<D: Dimension>(gpu: &Gpu, what: &str, view: ArrayView<'_, u32, D>) -> Outcome {
    let stream = gpu.new_stream()?;
    let buffer = Buffer::upload_array_blocking(&stream, view.view())?;
    let elements: Vec<u32> = view.iter().copied().collect();
    expect_equal(what, &buffer.download_blocking(&stream)?, &elements)?;
    let array: Array<u32, D> = buffer.download_array_blocking(&stream, view.raw_dim())?;
    expect_equal(what, &array.view(), &view)
}

fn arrays(gpu: &Gpu) -> Outcome {
    let array = Array3::from_shape_fn((5, 7, 11), |(i, j, k)| (i * 10_000 + j * 100 + k) as u32);
    check_array(gpu, "contiguous", array.view())?;
    check_array(gpu, "transposed", array.t())?;
    check_array(gpu, "permuted", array.view().permuted_axes([1, 0, 2]))?;
    check_array(gpu, "every other", array.slice(s![1..;2, ..;3, ..]))?;
    check_array(gpu, "reversed", array.slice(s![..;-1, .., ..;-2]))?;
    check_array(gpu, "a slice of the middle", array.slice(s![.., 2..5, 3..4]))?;
    check_array(gpu, "a plane", array.slice(s![.., 3, ..]))?;
    check_array(gpu, "empty", array.slice(s![.., 2..2, ..]))?;
    check_array(gpu, "dynamic", array.view().into_dyn())?;
    let row = Array2::from_shape_vec((1, 6), (0..6).collect())?;
    check_array(gpu, "broadcast", row.broadcast((4, 6)).ok_or("a row is broadcast")?)?;
    check_array(gpu, "one element", Array::from_elem(IxDyn(&[]), 3).view())
}

fn out_of_memory(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let kept = Buffer::upload_blocking(&stream, &[1_u32, 2, 3])?;
    let beyond = 2 * gpu.memory_bytes() as usize;
    let is_out_of_memory = |error: &Error| matches!(error, Error::Driver { error, .. } if error.code() == 2);
    expect_error(Buffer::<u8>::zeroed(gpu, beyond), is_out_of_memory)?;
    expect_error(Buffer::<f32>::zeroed(gpu, beyond / 4), is_out_of_memory)?;
    let is_too_large = |error: &Error| matches!(error, Error::TooLarge { element_bytes: 4, .. });
    expect_error(Buffer::<f32>::zeroed(gpu, usize::MAX), is_too_large)?;
    expect_error(PinnedBuffer::<f32>::zeroed(gpu, usize::MAX / 4), is_too_large)?;
    expect_error(kept.download_array_blocking(&stream, (usize::MAX, 2)), is_too_large)?;
    expect_error(TensorRef::contiguous(&kept, [usize::MAX, 2]), is_too_large)?;
    expect_equal("what was there", &kept.download_blocking(&stream)?, &[1, 2, 3])?;
    round_trips(gpu, |i| i)
}

fn dropped_in_use(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    for round in 0..5 {
        let buffer = Buffer::<u32>::zeroed(gpu, 1024)?;
        let mut copy = PinnedBuffer::zeroed(gpu, 1024)?;
        slow_store(stream.as_ref(), &buffer, 42 + round)?;
        buffer.copy_to_pinned(&stream, &mut copy)?;
        slow_store(stream.as_ref(), &buffer, 13)?;
        drop(buffer);
        // Memory that the driver may take from where the dropped buffer was.
        let next = Buffer::<u32>::zeroed(gpu, 1024)?;
        stream.synchronize()?;
        expect_equal("the copy", &copy.as_slice_blocking()?[..2], &[42 + round, 0])?;
        expect_equal("the next buffer", &next.download_blocking(&stream)?, &vec![0; 1024])?;
    }
    Ok(())
}
