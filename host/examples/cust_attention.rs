//! Attention on memory and a stream of the crate cust:
//! `cargo run --release -p ferrotile --features cust --example cust_attention`.
//!
//! V is 1 everywhere, so every element of O is 1. The example fails where one is not, and does nothing without a card.

use std::error::Error;

use cust::context::Context;
use cust::device::Device;
use cust::memory::DeviceBuffer;
use cust::stream::{Stream, StreamFlags};
use ferrotile::{
    AttentionOptions, AttentionParams, AttentionTensors, BufferSlice, BufferSliceMut, Gpu, Layout, Mask, StreamRef,
    TensorMut, TensorRef, attention,
};
use half::f16;

/// Batch, heads, sequence, head dimension.
const SHAPE: [usize; 4] = [2, 8, 512, 64];

fn main() -> Result<(), Box<dyn Error>> {
    if Gpu::all()?.is_empty() {
        println!("no card: cust has nothing to work on");
        return Ok(());
    }
    cust::init(cust::CudaFlags::empty())?;
    let context = Context::new(Device::get_device(0)?)?;
    let stream = Stream::new(StreamFlags::DEFAULT, None)?;
    // cust knows no f16 of half 2: its buffers hold the bits.
    let ones = vec![f16::ONE.to_bits(); SHAPE.iter().product()];
    let input = DeviceBuffer::from_slice(&ones)?;
    let mut out = DeviceBuffer::<u16>::zeroed(ones.len())?;

    let gpu = Gpu::from_cust(&context)?;
    // SAFETY: both buffers outlive the work, which `synchronize` waits for. They were not allocated asynchronously.
    let (input, written) = unsafe { (BufferSlice::from_cust(&gpu, &input), BufferSliceMut::from_cust(&gpu, &mut out)) };
    let input = TensorRef::of_slice(input.cast::<f16>(), SHAPE)?;
    let tensors = AttentionTensors::new(input, input, input, TensorMut::of_slice(written.cast::<f16>(), SHAPE)?);
    let params = AttentionParams { mask: Mask::Causal, ..AttentionParams::new(Layout::Bhsd) };
    attention(StreamRef::try_from(&stream)?, tensors, &params, &AttentionOptions::default())?;

    stream.synchronize()?;
    if out.as_host_vec()? != ones {
        return Err("an element of O is not 1".into());
    }
    println!("{gpu}: attention on memory and a stream of cust is right");
    Ok(())
}
