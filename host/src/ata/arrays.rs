//! Products and solutions of arrays in host memory.

use ndarray::{Array3, ArrayView3};

use super::cg::{CgOptions, CgPlan, CgReport};
use super::device::DeviceBlockMatrix;
use super::options::AtaOptions;
use super::plan::AtaPlan;
use crate::error::Result;
use crate::runtime::buffer::Buffer;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor::{TensorMut, TensorRef};

impl DeviceBlockMatrix {
    /// Computes `Y = A X` of an array `[frames, channels, n]` with any strides, and waits for the stream.
    ///
    /// It copies X to the card and Y back, which takes far longer than the product: for repeated products keep X and Y
    /// there ([`DeviceBlockMatrix::multiply`]).
    ///
    /// # Errors
    /// As [`DeviceBlockMatrix::multiply`], and those of allocating and copying.
    pub fn multiply_array_blocking<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        x: ArrayView3<'_, f32>,
        options: &AtaOptions,
    ) -> Result<Array3<f32>> {
        let stream = stream.into();
        let shape = <[usize; 3]>::from(x.dim());
        let plan = AtaPlan::new(self, shape[0], options)?;
        let device_x = Buffer::upload_array_blocking(stream, x)?;
        let mut y = Buffer::zeroed(self.gpu(), device_x.len())?;
        plan.run(stream, TensorRef::contiguous(&device_x, shape)?, TensorMut::contiguous(&mut y, shape)?)?;
        y.download_array_blocking(stream, shape)
    }

    /// Solves `A x = b` by conjugate gradient for an array `[frames, channels, n]` with any strides, from x = 0, and
    /// waits for the stream.
    ///
    /// # Errors
    /// As [`CgPlan::new`] and [`CgPlan::solve_blocking`], and those of allocating and copying.
    pub fn cg_array_blocking<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        b: ArrayView3<'_, f32>,
        options: &CgOptions,
    ) -> Result<(Array3<f32>, CgReport)> {
        let stream = stream.into();
        let shape = <[usize; 3]>::from(b.dim());
        let mut plan = CgPlan::new(self, shape[0], options)?;
        let device_b = Buffer::upload_array_blocking(stream, b)?;
        let mut x = Buffer::zeroed(self.gpu(), device_b.len())?;
        let (b, out) = (TensorRef::contiguous(&device_b, shape)?, TensorMut::contiguous(&mut x, shape)?);
        let report = plan.solve_blocking(stream, b, None, out)?;
        Ok((x.download_array_blocking(stream, shape)?, report))
    }
}
