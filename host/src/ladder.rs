//! The steps of the WGMMA ladder (`docs/wgmma.md`), for the benchmark and the tests: `C = A B^T` by one of the small
//! kernels.

use std::fmt;

use half::f16;
use layout::Swizzle;
use variants::ladder::{LadderSizes, LadderStep, Pipeline, STORE_COLUMNS, WGMMA_ROWS};

use crate::backend::LaunchConfig;
use crate::checks::{argument, has_shape, same_device};
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};
use crate::runtime::tensor_map::TensorMap;

const OP: &str = "ladder";

/// A step with its matrices, ready to run: A is `[M, K]`, B `[N, K]`, C `[M, N]`, all contiguous.
#[must_use = "a plan computes nothing until it is run"]
pub struct LadderPlan<'a> {
    step: &'static LadderStep,
    kernel: Kernel,
    config: LaunchConfig,
    sizes: LadderSizes,
    a: TensorRef<'a, f16, 2>,
    b: TensorRef<'a, f16, 2>,
    c: TensorMut<'a, f32, 2>,
    /// Of A, B and C, for the steps that copy by TMA.
    maps: Option<[TensorMap; 3]>,
}

// SAFETY: three numbers, `repr(C)`.
unsafe impl KernelParam for LadderSizes {}

impl<'a> LadderPlan<'a> {
    /// Loads the step's kernel and describes the matrices to it.
    ///
    /// # Errors
    /// [`Error::Shape`] for sizes that do not fit each other, or that the step does not take; [`Error::Argument`] for
    /// matrices with gaps; [`Error::WrongDevice`]; those of loading the kernel and of [`TensorMap::tiled`].
    pub fn new(
        gpu: &Gpu,
        step: &'static LadderStep,
        a: TensorRef<'a, f16, 2>,
        b: TensorRef<'a, f16, 2>,
        c: TensorMut<'a, f32, 2>,
    ) -> Result<Self> {
        let ([m, k], [n, _]) = (*a.shape(), *b.shape());
        for (tensor, got, expected) in [("B", *b.shape(), [n, k]), ("C", *c.shape(), [m, n])] {
            has_shape(OP, tensor, &got, &expected)?;
        }
        if !(a.is_contiguous() && b.is_contiguous() && c.is_contiguous()) {
            return Err(argument(OP, "strides", "a matrix with gaps", "contiguous matrices"));
        }
        for (what, ordinal) in [("A", a.ordinal()), ("B", b.ordinal()), ("C", c.ordinal())] {
            same_device(what, ordinal, gpu.ordinal())?;
        }
        let number = |size: usize| u32::try_from(size).ok().filter(|&size| size <= 1 << 20);
        let sizes = match (number(m), number(n), number(k)) {
            (Some(m), Some(n), Some(k)) if step.takes(LadderSizes { m, n, k }) => LadderSizes { m, n, k },
            _ => {
                let expected = [step.m * step.cluster, step.n, step.k].map(|size| size as usize).to_vec();
                return Err(Error::Shape {
                    op: OP,
                    tensor: "multiples of the tile: C and K",
                    got: vec![m, n, k],
                    expected,
                });
            }
        };
        let maps = match step.pipeline {
            Pipeline::Threads => None,
            Pipeline::Tma | Pipeline::Specialised | Pipeline::Persistent => Some([
                TensorMap::tiled(gpu, &a, [step.m, step.k], step.swizzle())?,
                TensorMap::tiled(gpu, &b, [step.b_rows_loaded(), step.k], step.swizzle())?,
                TensorMap::tiled(gpu, &c.as_ref(), [WGMMA_ROWS, STORE_COLUMNS], Swizzle::B128)?,
            ]),
        };
        let config = LaunchConfig {
            cluster: [step.cluster, 1, 1],
            shared_bytes: step.smem().total_bytes(),
            ..LaunchConfig::of_blocks(step.blocks(sizes, gpu.multiprocessors()), step.threads())
        };
        Ok(Self { step, kernel: gpu.kernel("ladder", step.name)?, config, sizes, a, b, c, maps })
    }

    /// The loaded kernel, for its registers.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Computes `C = A B^T` on `stream` and returns before it is done.
    ///
    /// # Errors
    /// Those of [`Kernel::launch`].
    pub fn run<'s>(&mut self, stream: impl Into<StreamRef<'s>>) -> Result<()> {
        let stream = stream.into();
        let (a, b, c, sizes) = (self.a.as_raw(), self.b.as_raw(), self.c.as_raw(), &self.sizes);
        // SAFETY: the parameters are those of the step's pipeline; the matrices have the sizes, which the step takes,
        // and the plan borrows them, C for writing. Grid, block, cluster and shared memory are the step's.
        unsafe {
            match (&self.maps, self.step.pipeline) {
                (None, _) => self.kernel.launch(stream, &self.config, &[&a, &b, &c, sizes]),
                (Some([a, b, c]), Pipeline::Persistent) => self.kernel.launch(stream, &self.config, &[a, b, c, sizes]),
                (Some([a, b, _]), _) => self.kernel.launch(stream, &self.config, &[a, b, &c, sizes]),
            }
        }
    }
}

impl fmt::Debug for LadderPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LadderPlan").field("step", &self.step.name).field("sizes", &self.sizes).finish_non_exhaustive()
    }
}
