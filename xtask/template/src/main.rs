//! Runs the kernel on the first card, or in the emulator where there is none.

use ferrotile::{Arch, Buffer, Gpu, Result};
use own_kernel::Kernels;

fn main() -> Result<()> {
    let gpu = Gpu::new(0).unwrap_or_else(|_| Gpu::emulated(Arch::Sm80));
    let stream = gpu.new_stream()?;
    let kernels = Kernels::load(&gpu)?;

    let x = Buffer::upload_blocking(&stream, &vec![1.0; 100_000])?;
    let mut y = Buffer::upload_blocking(&stream, &vec![3.0; x.len()])?;
    kernels.saxpy(&stream, 2.0, &x, &mut y)?;
    let y = y.download_blocking(&stream)?;
    println!(
        "{gpu}: {} of {} elements are 5",
        y.iter().filter(|&&y| y == 5.0).count(),
        y.len()
    );
    Ok(())
}
