//! The kernels against the CPU, in the emulator.

use ferrotile::{Arch, Buffer, Gpu, Result};
use own_kernel::Kernels;

#[test]
fn saxpy_is_that_of_the_cpu() -> Result<()> {
    let gpu = Gpu::emulated(Arch::Sm80);
    let stream = gpu.new_stream()?;
    let kernels = Kernels::load(&gpu)?;
    // Around the sizes of a warp and of a block, and nothing.
    for len in [0, 1, 31, 32, 33, 255, 256, 257, 1000] {
        let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
        let y: Vec<f32> = (0..len).map(|i| 0.5 * i as f32 - 3.0).collect();
        let x_on_gpu = Buffer::upload_blocking(&stream, &x)?;
        let mut y_on_gpu = Buffer::upload_blocking(&stream, &y)?;
        kernels.saxpy(&stream, 2.0, &x_on_gpu, &mut y_on_gpu)?;
        let expected: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 2.0 * x + y).collect();
        assert_eq!(
            y_on_gpu.download_blocking(&stream)?,
            expected,
            "{len} elements"
        );
    }
    Ok(())
}
