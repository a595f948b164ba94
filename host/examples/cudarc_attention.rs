//! Attention on memory and a stream of the crate cudarc:
//! `cargo run --release -p ferrotile --features cudarc --example cudarc_attention`.
//!
//! V is 1 everywhere, so every element of O is 1. The example fails where one is not, and does nothing without a card.

use std::error::Error;

use cudarc::driver::{CudaContext, CudaSlice};
use ferrotile::{
    AttentionOptions, AttentionParams, AttentionTensors, CudarcSlice, CudarcSliceMut, Gpu, Layout, Mask, StreamRef,
    TensorMut, TensorRef, attention,
};
use half::f16;

/// Batch, heads, sequence, head dimension.
const SHAPE: [usize; 4] = [2, 8, 512, 64];

/// The elements of a tensor.
const LEN: usize = SHAPE[0] * SHAPE[1] * SHAPE[2] * SHAPE[3];

fn main() -> Result<(), Box<dyn Error>> {
    if Gpu::all()?.is_empty() {
        println!("no card: cudarc has nothing to work on");
        return Ok(());
    }
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    // Q, K and V beside each other: views of one slice.
    let inputs: CudaSlice<f16> = stream.clone_htod(&vec![f16::ONE; 3 * LEN])?;
    let mut out: CudaSlice<f16> = stream.alloc_zeros(LEN)?;
    {
        let [q, k, v] = [0, LEN, 2 * LEN].map(|start| inputs.slice(start..start + LEN));
        // SAFETY: the work that uses the memory is enqueued on `stream` before the slices are dropped.
        let (q, k, v, mut o) = unsafe {
            (
                CudarcSlice::new(&q, &stream)?,
                CudarcSlice::new(&k, &stream)?,
                CudarcSlice::new(&v, &stream)?,
                CudarcSliceMut::new(&mut out, &stream)?,
            )
        };
        let [q, k, v] = [&q, &k, &v].map(|slice| TensorRef::of_slice(slice.as_slice(), SHAPE));
        let tensors = AttentionTensors::new(q?, k?, v?, TensorMut::of_slice(o.as_mut_slice(), SHAPE)?);
        let params = AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bhsd) };
        attention(StreamRef::try_from(&*stream)?, tensors, &params, &AttentionOptions::default())?;
    }
    if stream.clone_dtoh(&out)?.iter().any(|&element| element != f16::ONE) {
        return Err("an element of O is not 1".into());
    }
    println!("{}: attention on memory and a stream of cudarc is right", Gpu::from_cudarc(&context)?);
    Ok(())
}
