//! What cudarc makes and this library uses: `cargo test -p tests --features cudarc --test host -- cudarc`.

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use ferrotile::{
    AttentionTensors, CudarcSlice, CudarcSliceMut, Error, Gpu, StreamRef, TensorMut, TensorRef, attention,
};
use half::f16;
use tests::expect_error;

use crate::call::{LEN, SHAPE, bits, expected_bits, host_inputs, options};
use crate::contexts::{attention_on, on_new_thread};
use crate::{Outcome, Tests, expect_equal, test};

const CARD: &str = "cudarc knows cards alone";

pub(crate) const TESTS: Tests = &[
    test("contexts_and_streams_come_in", streams).on_a_card(CARD),
    test("another_context_is_refused", other_context).on_a_card(CARD),
    test("memory_comes_in_as_slices_and_views", memory).on_a_card(CARD),
    test("memory_may_be_dropped_while_a_kernel_uses_it", dropped).on_a_card(CARD),
];

fn context(gpu: &Gpu) -> Result<Arc<CudaContext>, cudarc::driver::DriverError> {
    CudaContext::new(gpu.ordinal() as usize)
}

fn streams(gpu: &Gpu) -> Outcome {
    on_new_thread(|| {
        let context = context(gpu)?;
        expect_equal("the card", &Gpu::from_cudarc(&context)?.ordinal(), &gpu.ordinal())?;
        for stream in [context.new_stream()?, context.default_stream(), context.per_thread_stream()] {
            let borrowed = StreamRef::try_from(&*stream)?;
            expect_equal("the handle", &borrowed.as_raw(), &stream.cu_stream().cast())?;
            attention_on(gpu, borrowed)?;
        }
        Ok(())
    })
}

fn other_context(gpu: &Gpu) -> Outcome {
    let ordinal = gpu.ordinal();
    on_new_thread(move || {
        let context = CudaContext::new_non_primary(ordinal as usize, 0)?;
        let is_right = |error: &Error| *error == Error::ForeignContext { ordinal };
        expect_error(Gpu::from_cudarc(&context), is_right)?;
        let stream = context.new_stream()?;
        expect_error(StreamRef::try_from(&*stream), is_right)?;
        let words = stream.clone_htod(&[1_u32])?;
        // SAFETY: the slice is refused, so no work uses it.
        expect_error(unsafe { CudarcSlice::new(&words, &stream) }, is_right)
    })
}

/// Attention on memory of cudarc, which one stream writes and another uses.
fn enqueue(stream: &CudaStream, inputs: &CudaSlice<f16>, out: &mut CudaSlice<f16>) -> Outcome {
    let [q, k, v] = [0, LEN, 2 * LEN].map(|start| inputs.slice(start..start + LEN));
    // SAFETY: the work that uses the memory is enqueued on `stream` before the slices are dropped.
    let (q, k, v, mut out) = unsafe {
        let [q, k, v] = [&q, &k, &v].map(|view| CudarcSlice::new(view, stream));
        (q?, k?, v?, CudarcSliceMut::new(out, stream)?)
    };
    let [q, k, v] = [&q, &k, &v].map(|slice| TensorRef::of_slice(slice.as_slice(), SHAPE));
    let tensors = AttentionTensors::new(q?, k?, v?, TensorMut::of_slice(out.as_mut_slice(), SHAPE)?);
    Ok(attention(StreamRef::try_from(stream)?, tensors, &options().params(), &options().options())?)
}

/// Inputs and output, which `stream` fills.
fn slices(stream: &Arc<CudaStream>) -> Result<(CudaSlice<f16>, CudaSlice<f16>), cudarc::driver::DriverError> {
    Ok((stream.clone_htod(&host_inputs().concat())?, stream.clone_htod(&vec![f16::NAN; LEN])?))
}

fn memory(gpu: &Gpu) -> Outcome {
    let expected = expected_bits(gpu)?;
    on_new_thread(|| {
        let context = context(gpu)?;
        let (writer, reader) = (context.new_stream()?, context.new_stream()?);
        let (inputs, mut out) = slices(&writer)?;
        enqueue(&reader, &inputs, &mut out)?;
        // cudarc makes `writer` wait for what was enqueued on `reader`.
        expect_equal("the bits", &bits(&writer.clone_dtoh(&out)?), &expected)
    })
}

fn dropped(gpu: &Gpu) -> Outcome {
    let expected = expected_bits(gpu)?;
    on_new_thread(|| {
        let context = context(gpu)?;
        let (writer, reader) = (context.new_stream()?, context.new_stream()?);
        let (inputs, mut out) = slices(&writer)?;
        enqueue(&reader, &inputs, &mut out)?;
        drop(inputs);
        // The allocator may give the same memory out again, and does not before the kernel has read it.
        let others = [(); 4].map(|()| writer.clone_htod(&vec![f16::NAN; 3 * LEN]));
        expect_equal("the bits", &bits(&writer.clone_dtoh(&out)?), &expected)?;
        for other in others {
            drop(other?);
        }
        Ok(())
    })
}
