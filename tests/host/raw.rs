//! Tensors whose types and ranks the compiler does not know, and slices of buffers.

use ferrotile::{
    AtaOptions, AtaPlan, AttentionTensors, Buffer, ElementType, Error, Gpu, Layout, Precision, RawAttentionTensors,
    RawKeys, RawTensor, SymmetricBlockMatrix, TensorMut, TensorRef,
};
use half::f16;
use ndarray::Array3;
use tests::expect_error;

use crate::call::{Call, LEN, SHAPE, bits, expected_bits, plan};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("erased_tensors_give_the_bits_of_typed_ones", same_bits),
    test("erased_tensors_of_another_type_are_refused", other_types),
    test("tensors_of_another_form_are_refused", other_form),
    test("erased_tensors_of_ata_give_the_bits_of_typed_ones", ata),
    test("the_kernel_of_tensors_is_known_without_an_output", kernel_name),
    test("slices_are_copied_alone", slices),
    test("slices_outside_their_buffer_are_refused", outside),
    test("tensors_are_made_of_slices", of_slices),
];

fn erased(call: &mut Call) -> ferrotile::Result<RawAttentionTensors> {
    let [q, k, v] = call.tensors()?.map(|tensor| tensor.erased());
    let out = TensorMut::contiguous(&mut call.out, SHAPE)?.erased();
    let keys = RawKeys::Batched;
    Ok(RawAttentionTensors {
        q,
        k,
        v,
        out,
        descales: [None; 3],
        lse: None,
        sink: None,
        bias: None,
        workspace: None,
        keys,
    })
}

fn same_bits(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut call = Call::new(stream.as_ref())?;
    let tensors = erased(&mut call)?;
    // SAFETY: the buffers outlive the download, which waits, and nothing else uses the output.
    unsafe { plan(gpu)?.run_raw(&stream, &tensors) }?;
    expect_equal("the bits", &bits(&call.out.download_blocking(&stream)?), &expected_bits(gpu)?)
}

fn other_types(gpu: &Gpu) -> Outcome {
    let (stream, plan) = (gpu.new_stream()?, plan(gpu)?);
    let mut call = Call::new(stream.as_ref())?;
    let right = erased(&mut call)?;
    let of = |tensor: &RawTensor, element| {
        RawTensor::new(tensor.ordinal(), tensor.as_raw(), element, tensor.shape(), tensor.strides())
    };
    let (bf16, f32) = (ElementType::Bf16, ElementType::F32);
    let lse = RawTensor::new(gpu.ordinal(), 256, ElementType::F16, &SHAPE[..3], &[3 * 131, 131, 1])?;
    let wrong = [
        ("element type", RawAttentionTensors { q: of(&right.q, bf16)?, ..right }),
        ("K", RawAttentionTensors { k: of(&right.k, bf16)?, ..right }),
        ("V", RawAttentionTensors { v: of(&right.v, f32)?, ..right }),
        ("O", RawAttentionTensors { out: of(&right.out, f32)?, ..right }),
        ("LSE", RawAttentionTensors { lse: Some(lse), ..right }),
    ];
    for (named, tensors) in wrong {
        // SAFETY: the call is refused, so the memory is not used.
        let refused = unsafe { plan.run_raw(&stream, &tensors) };
        expect_error(refused, |error| matches!(error, Error::Argument { argument, .. } if *argument == named))?;
    }
    Ok(())
}

fn other_form(gpu: &Gpu) -> Outcome {
    let (stream, plan) = (gpu.new_stream()?, plan(gpu)?);
    let mut call = Call::new(stream.as_ref())?;
    let right = erased(&mut call)?;
    let starts = RawTensor::new(gpu.ordinal(), 256, ElementType::I32, &[3], &[1])?;
    let keys = RawKeys::Varlen { cu_seqlens_q: starts, cu_seqlens_k: starts };
    // SAFETY: the call is refused, so the memory is not used.
    let refused = unsafe { plan.run_raw(&stream, &RawAttentionTensors { keys, ..right }) };
    expect_error(refused, |error| matches!(error, Error::Argument { argument: "tensors", .. }))
}

fn ata(gpu: &Gpu) -> Outcome {
    const SIZES: [usize; 3] = [3, 1, 48];
    let stream = gpu.new_stream()?;
    let diagonals = Array3::from_shape_fn((1, 2, 48), |(_, diagonal, i)| (diagonal + i % 5) as f32);
    let host = SymmetricBlockMatrix::from_diagonals(48, &[0, 17], diagonals.view())?;
    let matrix = host.upload_blocking(&stream, Precision::Tf32)?;
    let plan = AtaPlan::new(&matrix, SIZES[0], &AtaOptions::default())?;
    let elements: Vec<f32> = (0..144_i16).map(|i| f32::from(i % 7) - 3.0).collect();
    let x = Buffer::upload_blocking(&stream, &elements)?;
    let x = TensorRef::contiguous(&x, SIZES)?;
    let [mut typed, mut raw] = [Buffer::<f32>::zeroed(gpu, 144)?, Buffer::<f32>::zeroed(gpu, 144)?];
    plan.run(&stream, x, TensorMut::contiguous(&mut typed, SIZES)?)?;
    let (x, y) = (x.erased(), TensorMut::contiguous(&mut raw, SIZES)?.erased());
    // SAFETY: the buffers outlive the downloads, which wait, and nothing else uses the output.
    unsafe { plan.run_raw(&stream, &x, &y) }?;
    let typed = typed.download_blocking(&stream)?.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    let raw = raw.download_blocking(&stream)?.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    expect_equal("the bits", &raw, &typed)?;
    let of =
        |element, shape: &[usize], strides: &[i64]| RawTensor::new(gpu.ordinal(), x.as_raw(), element, shape, strides);
    let other_type = of(ElementType::F16, x.shape(), x.strides())?;
    // SAFETY: the calls are refused, so the memory is not used.
    let refused = unsafe { plan.run_raw(&stream, &other_type, &y) };
    expect_error(refused, |error| matches!(error, Error::Argument { argument: "X", .. }))?;
    let other_rank = of(ElementType::F32, &[3, 48], &[48, 1])?;
    // SAFETY: as above.
    let refused = unsafe { plan.run_raw(&stream, &other_rank, &y) };
    expect_error(refused, |error| matches!(error, Error::Shape { tensor: "X", .. }))
}

/// On Hopper the chosen kernel copies by TMA, and another one takes its place for rows that start anywhere.
fn kernel_name(gpu: &Gpu) -> Outcome {
    let (stream, plan) = (gpu.new_stream()?, plan(gpu)?);
    let call = Call::new(stream.as_ref())?;
    let [q, k, v] = call.tensors()?;
    expect_equal("the kernel", &plan.kernel_name_for(&q, &k, &v)?, &plan.kernel_name())?;
    let odd = Buffer::<f16>::zeroed(gpu, LEN + 1)?;
    let strides = *q.strides();
    let odd = TensorRef::strided(&odd, 1, SHAPE, strides)?;
    let other = plan.kernel_name_for(&odd, &k, &v)?;
    expect_equal(
        "another kernel is named",
        &(other != plan.kernel_name()),
        &plan.kernel_name().as_str().contains("wgmma"),
    )?;
    let mut out = Buffer::<f16>::zeroed(gpu, LEN)?;
    let out_tensor = TensorMut::contiguous(&mut out, Layout::Bhsd.reorder(SHAPE))?;
    plan.run(&stream, AttentionTensors::new(odd, k, v, out_tensor))?;
    stream.synchronize()?;
    Ok(())
}

fn slices(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut buffer = Buffer::upload_blocking(&stream, &[0, 1, 2, 3, 4, 5, 6, 7])?;
    let source = Buffer::upload_blocking(&stream, &[30, 40, 50])?;
    expect_equal("a download", &buffer.slice(2..5)?.download_blocking(&stream)?, &[2, 3, 4])?;
    expect_equal("nothing", &buffer.slice(8..)?.download_blocking(&stream)?, &[0_i32; 0])?;
    buffer.slice_mut(..2)?.overwrite_blocking(&stream, &[-1, -2])?;
    buffer.slice_mut(3..=4)?.copy_from(&stream, source.slice(..2)?)?;
    buffer.slice_mut(7..)?.fill_bytes(&stream, 0xFF)?;
    expect_equal("the buffer", &buffer.download_blocking(&stream)?, &[-1, -2, 2, 30, 40, 5, 6, -1])?;
    let [mut first, second] = buffer.as_mut_slice().split_at_mut(4)?;
    first.copy_from(&stream, second.as_slice())?;
    expect_equal("the halves", &buffer.download_blocking(&stream)?, &[40, 5, 6, -1, 40, 5, 6, -1])
}

fn outside(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut buffer = Buffer::<u32>::zeroed(gpu, 8)?;
    let is_outside = |error: &Error| matches!(error, Error::OutOfBounds { len: 8, .. });
    expect_error(buffer.slice(4..9), is_outside)?;
    expect_error(buffer.slice_mut(9..), is_outside)?;
    expect_error(buffer.slice(2..6)?.slice(3..5), |error| matches!(error, Error::OutOfBounds { len: 4, .. }))?;
    let short = buffer.slice_mut(..3)?.overwrite_blocking(&stream, &[1, 2]);
    expect_error(short, |error| matches!(error, Error::Length { got: 2, expected: 3, .. }))?;
    expect_equal("the buffer", &buffer.download_blocking(&stream)?, &[0; 8])
}

fn of_slices(gpu: &Gpu) -> Outcome {
    let mut buffer = Buffer::<f16>::zeroed(gpu, 64)?;
    let address = buffer.as_raw();
    let tensor = TensorRef::of_slice(buffer.slice(16..48)?, [4, 8])?;
    expect_equal("the address", &tensor.as_raw(), &(address + 32))?;
    expect_error(TensorRef::of_slice(buffer.slice(16..48)?, [4, 9]), |error| matches!(error, Error::Length { .. }))?;
    let tensor = TensorMut::of_slice(buffer.slice_mut(48..)?, [2, 8])?;
    expect_equal("the other address", &tensor.as_raw(), &(address + 96))
}
