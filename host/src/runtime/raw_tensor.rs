//! Tensors whose type and rank are values: what other languages and libraries pass.

use std::fmt;

use crate::element::ElementType;
use crate::error::{Error, Result};

/// The most dimensions that a [`RawTensor`] has: no kernel takes more.
const MAX_RANK: usize = 4;

/// The type-erased form of [`TensorRef`] and [`TensorMut`], for bindings to other languages and libraries: device
/// memory with a shape of up to four dimensions and any element type, without a borrow.
///
/// A raw tensor is plain data: making one touches no memory and promises nothing. Functions that take raw tensors are
/// `unsafe` and say what must hold of the memory. They check element types, shapes and devices like the functions for
/// typed tensors.
///
/// ```
/// use ferrotile::{ElementType, RawTensor};
///
/// // What a DLPack tensor of shape [2, 8, 64] says about itself, on device 0.
/// let tensor = RawTensor::new(0, 0x7f00_0000_0000, ElementType::F16, &[2, 8, 64], &[512, 64, 1])?;
/// assert!(tensor.is_contiguous());
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// [`TensorRef`]: crate::TensorRef
/// [`TensorMut`]: crate::TensorMut
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RawTensor {
    address: u64,
    element: ElementType,
    ordinal: u32,
    rank: u32,
    shape: [usize; MAX_RANK],
    strides: [i64; MAX_RANK],
}

impl RawTensor {
    /// The memory at device address `address` on card `ordinal`, with `strides` in elements.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than four dimensions or another number of strides, [`Error::LastStride`] where the
    /// last dimension is not contiguous.
    pub fn new(ordinal: u32, address: u64, element: ElementType, shape: &[usize], strides: &[i64]) -> Result<Self> {
        if shape.len() != strides.len() || shape.len() > MAX_RANK {
            return Err(Error::Argument {
                op: "RawTensor::new",
                argument: "dimensions",
                got: format!("{} sizes and {} strides", shape.len(), strides.len()),
                expected: format!("as many of both, at most {MAX_RANK}"),
            });
        }
        check_last_stride(shape, strides)?;
        let mut tensor = RawTensor {
            address,
            element,
            ordinal,
            rank: shape.len() as u32,
            shape: [1; MAX_RANK],
            strides: [0; MAX_RANK],
        };
        tensor.shape[..shape.len()].copy_from_slice(shape);
        tensor.strides[..strides.len()].copy_from_slice(strides);
        Ok(tensor)
    }

    /// The erased form of a view that was checked.
    pub(crate) fn of_view<const RANK: usize>(
        ordinal: u32,
        address: u64,
        element: ElementType,
        view_shape: [usize; RANK],
        view_strides: [i64; RANK],
    ) -> Self {
        const { assert!(RANK <= MAX_RANK, "tensors have at most four dimensions") };
        let (mut shape, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
        shape[..RANK].copy_from_slice(&view_shape);
        strides[..RANK].copy_from_slice(&view_strides);
        RawTensor { address, element, ordinal, rank: RANK as u32, shape, strides }
    }

    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape[..self.rank as usize]
    }

    /// The distance along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[i64] {
        &self.strides[..self.rank as usize]
    }

    /// The device address of the first element.
    #[must_use]
    pub const fn as_raw(&self) -> u64 {
        self.address
    }

    /// The type of the elements.
    #[must_use]
    pub const fn element_type(&self) -> ElementType {
        self.element
    }

    /// The number of the card that holds the memory.
    #[must_use]
    pub const fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        let (shape, strides) = (self.shape(), self.strides());
        let mut row_major = 1_i64;
        let steps_alike = shape.iter().zip(strides).rev().all(|(&dim, &stride)| {
            let expected = row_major;
            row_major = row_major.saturating_mul(i64::try_from(dim).unwrap_or(i64::MAX));
            dim == 1 || stride == expected
        });
        shape.contains(&0) || steps_alike
    }

    /// The size of a dimension, which a check of the shape has found.
    pub(crate) const fn dim(&self, dim: usize) -> usize {
        self.shape[dim]
    }

    /// The stride of a dimension, or 0 for a dimension of one element, whose stride can be anything. Copies form the
    /// addresses of rows beyond the last. They do not read them, but the addresses must be aligned like all others.
    pub(crate) const fn step(&self, dim: usize) -> i64 {
        if self.shape[dim] > 1 { self.strides[dim] } else { 0 }
    }

    /// The same elements with a dimension of one before the others.
    pub(crate) fn as_one_batch_entry(&self) -> Self {
        let (mut shape, mut strides) = ([1; MAX_RANK], [0; MAX_RANK]);
        shape[1..].copy_from_slice(&self.shape[..MAX_RANK - 1]);
        strides[1..].copy_from_slice(&self.strides[..MAX_RANK - 1]);
        RawTensor { rank: self.rank + 1, shape, strides, ..*self }
    }
}

impl fmt::Debug for RawTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shape, strides) = (self.shape(), self.strides());
        let RawTensor { address, element, ordinal, .. } = self;
        write!(f, "RawTensor({shape:?} of {element}, strides {strides:?}, at {address:#x} on device {ordinal})")
    }
}

/// Checks that the last dimension is contiguous, as kernels load several of its elements at once.
pub(crate) fn check_last_stride(shape: &[usize], strides: &[i64]) -> Result<()> {
    match (shape.last(), strides.last()) {
        (Some(&dim), Some(&stride)) if dim > 1 && stride != 1 => Err(Error::LastStride { stride }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize], strides: &[i64]) -> Result<RawTensor> {
        RawTensor::new(0, 256, ElementType::F16, shape, strides)
    }

    #[test]
    fn the_last_dimension_must_be_contiguous_where_it_has_two_elements() {
        assert_eq!(tensor(&[4, 2], &[2, 2]), Err(Error::LastStride { stride: 2 }));
        assert!(tensor(&[4, 1], &[2, 2]).is_ok());
        assert!(matches!(tensor(&[4, 1], &[2]), Err(Error::Argument { .. })));
        assert!(matches!(tensor(&[1; 6], &[1; 6]), Err(Error::Argument { .. })));
    }

    #[test]
    fn contiguity_ignores_strides_that_are_never_taken() {
        assert!(tensor(&[1, 3, 4], &[999, 4, 1]).unwrap().is_contiguous());
        assert!(!tensor(&[2, 3, 4], &[999, 4, 1]).unwrap().is_contiguous());
        assert!(tensor(&[2, 0, 4], &[999, 7, 1]).unwrap().is_contiguous());
        assert!(tensor(&[], &[]).unwrap().is_contiguous());
    }

    #[test]
    fn a_batch_entry_comes_first() {
        let one = tensor(&[3, 2, 8], &[16, 8, 1]).unwrap().as_one_batch_entry();
        assert_eq!((one.shape(), one.strides()), (&[1, 3, 2, 8][..], &[0, 16, 8, 1][..]));
        assert_eq!((one.step(0), one.step(1), one.dim(2)), (0, 16, 2));
    }
}
