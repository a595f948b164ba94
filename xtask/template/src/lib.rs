//! The kernels of this crate behind safe functions.

use ferrotile::{Buffer, Gpu, LaunchConfig, Module, Result, Stream};

/// What `build.rs` has made of the crate `kernels`.
const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.ptx"));

/// The kernels, loaded on a card.
pub struct Kernels {
    module: Module,
}

impl Kernels {
    /// Loads the kernels.
    pub fn load(gpu: &Gpu) -> Result<Kernels> {
        Ok(Kernels {
            module: gpu.load_ptx(PTX)?,
        })
    }

    /// Adds `a * x` to `y`, in the order of the stream.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn saxpy(
        &self,
        stream: &Stream,
        a: f32,
        x: &Buffer<f32>,
        y: &mut Buffer<f32>,
    ) -> Result<()> {
        let len = x.len();
        assert_eq!(len, y.len(), "x and y have different lengths");
        if len == 0 {
            return Ok(());
        }
        let blocks = len.div_ceil(kernels::THREADS as usize) as u32;
        let config = LaunchConfig::of_blocks(blocks, kernels::THREADS);
        let saxpy = self.module.typed_kernel(kernels::saxpy)?;
        // SAFETY: both buffers have `len` elements, and `y` is borrowed for writing.
        unsafe { saxpy.launch(stream, &config, (a, x, y, len)) }
    }
}
