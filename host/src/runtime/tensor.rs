//! Borrowed views of device memory with a shape and strides.

use std::fmt;
use std::marker::PhantomData;

use crate::checks::same_device;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::runtime::buffer::Buffer;
use crate::runtime::buffer_slice::{BufferSlice, BufferSliceMut, same_length};
use crate::runtime::raw_tensor::{RawTensor, check_last_stride};
use crate::runtime::stream::StreamRef;

/// Row-major strides of a shape.
fn contiguous_strides<const RANK: usize>(shape: [usize; RANK]) -> [i64; RANK] {
    let mut strides = [1_i64; RANK];
    for dim in (1..RANK).rev() {
        strides[dim - 1] = strides[dim].saturating_mul(i64::try_from(shape[dim].max(1)).unwrap_or(i64::MAX));
    }
    strides
}

/// The number of elements of a shape, where a buffer of `T` could hold them.
fn element_count<T>(shape: &[usize]) -> Result<usize> {
    shape
        .iter()
        .try_fold(1_usize, |count, &dim| count.checked_mul(dim))
        .filter(|&count| count <= isize::MAX as usize / size_of::<T>())
        .ok_or_else(|| Error::TooLarge { shape: shape.to_vec(), element_bytes: size_of::<T>(), available_bytes: None })
}

/// Checks that every element of a view that starts at element `offset` is one of a buffer's `len`.
fn check_bounds(shape: &[usize], strides: &[i64], offset: usize, len: usize) -> Result<()> {
    let (mut first, mut last) = (offset as i128, offset as i128);
    for (&dim, &stride) in shape.iter().zip(strides) {
        let reach = (dim as i128 - 1).max(0) * i128::from(stride);
        first = first.saturating_add(reach.min(0));
        last = last.saturating_add(reach.max(0));
    }
    let inside = if shape.contains(&0) { offset <= len } else { first >= 0 && last < len as i128 };
    if inside {
        Ok(())
    } else {
        Err(Error::OutOfBounds { shape: shape.to_vec(), strides: strides.to_vec(), offset, len })
    }
}

/// Checks that no two indices are the same element.
///
/// It suffices that, from the smallest stride up, each stride is larger than what all smaller strides reach together.
/// Views that slicing and permuting cut out of one row-major tensor fulfil this. Interleavings that are free of overlap
/// only by the arithmetic of their strides are refused.
fn check_no_overlap(shape: &[usize], strides: &[i64]) -> Result<()> {
    if shape.contains(&0) {
        return Ok(());
    }
    let mut dims: Vec<(u64, usize)> = std::iter::zip(strides, shape)
        .filter(|&(_, &dim)| dim > 1)
        .map(|(stride, &dim)| (stride.unsigned_abs(), dim))
        .collect();
    dims.sort_unstable();
    let mut reach = 0_u128;
    for (stride, dim) in dims {
        if u128::from(stride) <= reach {
            return Err(Error::Overlap { shape: shape.to_vec(), strides: strides.to_vec() });
        }
        reach = reach.saturating_add((dim as u128 - 1) * u128::from(stride));
    }
    Ok(())
}

/// What both views are.
#[derive(Clone, Copy)]
struct View<const RANK: usize> {
    ordinal: u32,
    address: u64,
    shape: [usize; RANK],
    strides: [i64; RANK],
}

impl<const RANK: usize> View<RANK> {
    fn contiguous<T>(op: &'static str, memory: BufferSlice<'_, T>, shape: [usize; RANK]) -> Result<Self> {
        same_length(op, element_count::<T>(&shape)?, memory.len())?;
        let strides = contiguous_strides(shape);
        Ok(View { ordinal: memory.gpu().ordinal(), address: memory.as_raw(), shape, strides })
    }

    fn strided<T>(buffer: &Buffer<T>, offset: usize, shape: [usize; RANK], strides: [i64; RANK]) -> Result<Self> {
        check_last_stride(&shape, &strides)?;
        check_bounds(&shape, &strides, offset, buffer.len())?;
        let address = buffer.as_raw() + (offset * size_of::<T>()) as u64;
        Ok(View { ordinal: buffer.gpu().ordinal(), address, shape, strides })
    }

    fn is_contiguous(&self) -> bool {
        let row_major = contiguous_strides(self.shape);
        self.shape.contains(&0) || (0..RANK).all(|dim| self.shape[dim] == 1 || self.strides[dim] == row_major[dim])
    }

    fn fmt(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let View { ordinal, address, shape, strides } = self;
        write!(f, "{name}({shape:?}, strides {strides:?}, at {address:#x} on device {ordinal})")
    }
}

/// A view of device memory for reading: `shape`, and `strides` in elements, of which the last is 1.
///
/// A stride of 0 repeats the elements along its dimension; a negative one walks backwards.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, TensorRef};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let buffer = Buffer::<f32>::zeroed(&gpu, 3 * 8 * 64)?;
/// // The second of three tensors that share a buffer: `[8, 3, 64]` in memory, as fused projections write it.
/// let k = TensorRef::strided(&buffer, 64, [8, 64], [3 * 64, 1])?;
/// assert!(!k.is_contiguous() && *k.shape() == [8, 64]);
/// # Ok::<(), ferrotile::Error>(())
/// ```
pub struct TensorRef<'a, T, const RANK: usize> {
    view: View<RANK>,
    memory: PhantomData<&'a [T]>,
}

impl<T, const RANK: usize> Clone for TensorRef<'_, T, RANK> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, const RANK: usize> Copy for TensorRef<'_, T, RANK> {}

impl<'a, T: Element, const RANK: usize> TensorRef<'a, T, RANK> {
    /// The whole buffer in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] unless the shape has as many elements as the buffer.
    pub fn contiguous(buffer: &'a Buffer<T>, shape: [usize; RANK]) -> Result<Self> {
        Ok(TensorRef {
            view: View::contiguous("TensorRef::contiguous", buffer.as_slice(), shape)?,
            memory: PhantomData,
        })
    }

    /// The elements of a slice in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] unless the shape has as many elements as the slice.
    pub fn of_slice(slice: BufferSlice<'a, T>, shape: [usize; RANK]) -> Result<Self> {
        Ok(TensorRef { view: View::contiguous("TensorRef::of_slice", slice, shape)?, memory: PhantomData })
    }

    /// The elements from `offset` on with these strides.
    ///
    /// # Errors
    /// [`Error::OutOfBounds`] where an element is outside the buffer, [`Error::LastStride`] where the last dimension is
    /// not contiguous.
    pub fn strided(buffer: &'a Buffer<T>, offset: usize, shape: [usize; RANK], strides: [i64; RANK]) -> Result<Self> {
        Ok(TensorRef { view: View::strided(buffer, offset, shape, strides)?, memory: PhantomData })
    }

    /// Memory of another library, from its device address.
    ///
    /// # Safety
    /// Every element must be in memory that is accessible from the primary context of device `ordinal` and stays
    /// allocated until the work that is given this view is done; `address` must be aligned for `T`.
    ///
    /// # Errors
    /// [`Error::LastStride`] where the last dimension is not contiguous.
    pub unsafe fn from_raw(ordinal: u32, address: u64, shape: [usize; RANK], strides: [i64; RANK]) -> Result<Self> {
        check_last_stride(&shape, &strides)?;
        Ok(TensorRef { view: View { ordinal, address, shape, strides }, memory: PhantomData })
    }
}

impl<T: Element, const RANK: usize> TensorRef<'_, T, RANK> {
    /// The same view with its element type and rank as values.
    #[must_use]
    pub fn erased(&self) -> RawTensor {
        let View { ordinal, address, shape, strides } = self.view;
        RawTensor::of_view(ordinal, address, T::TYPE, shape, strides)
    }

    /// Copies the elements to the host in row-major order, and waits for the stream. `what` names the view in errors.
    pub(crate) fn download_blocking(&self, what: &'static str, stream: StreamRef<'_>) -> Result<Vec<T>> {
        same_device(what, self.ordinal(), stream.ordinal())?;
        let View { address, shape, strides, .. } = self.view;
        let mut data = vec![T::default(); element_count::<T>(&shape)?];
        if data.is_empty() {
            return Ok(data);
        }
        let (handle, device) = (stream.enqueue()?, stream.gpu().device());
        let row_elems = shape.last().copied().unwrap_or(1);
        let copied = data.chunks_exact_mut(row_elems).enumerate().try_for_each(|(mut row, elements)| {
            let mut start = address;
            for dim in (0..RANK.saturating_sub(1)).rev() {
                let step = (row % shape[dim]) as i64 * strides[dim];
                start = start.wrapping_add_signed(step * size_of::<T>() as i64);
                row /= shape[dim];
            }
            // SAFETY: the row is one of the view, whose owner keeps it until the wait below; every pattern of its bytes
            // is a `T`, and `data` is borrowed until then too.
            unsafe { device.copy_to_host(handle, elements.as_mut_ptr().cast(), start, size_of_val(elements)) }
        });
        // Copies that were enqueued before one that failed write to `data` too.
        device.synchronize_stream(handle)?;
        copied.map(|()| data)
    }
}

/// A view of device memory for writing: like [`TensorRef`], but no two indices are the same element.
///
/// ```
/// use ferrotile::{Arch, Buffer, Gpu, TensorMut};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let mut buffer = Buffer::<f32>::zeroed(&gpu, 64)?;
/// assert!(TensorMut::contiguous(&mut buffer, [8, 8])?.is_contiguous());
/// assert!(TensorMut::strided(&mut buffer, 0, [8, 8], [0, 1]).is_err()); // rows over each other
/// # Ok::<(), ferrotile::Error>(())
/// ```
pub struct TensorMut<'a, T, const RANK: usize> {
    view: View<RANK>,
    memory: PhantomData<&'a mut [T]>,
}

impl<'a, T: Element, const RANK: usize> TensorMut<'a, T, RANK> {
    /// The whole buffer in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] unless the shape has as many elements as the buffer.
    pub fn contiguous(buffer: &'a mut Buffer<T>, shape: [usize; RANK]) -> Result<Self> {
        Ok(TensorMut {
            view: View::contiguous("TensorMut::contiguous", buffer.as_slice(), shape)?,
            memory: PhantomData,
        })
    }

    /// The elements of a slice in row-major order.
    ///
    /// # Errors
    /// [`Error::Length`] unless the shape has as many elements as the slice.
    pub fn of_slice(slice: BufferSliceMut<'a, T>, shape: [usize; RANK]) -> Result<Self> {
        Ok(TensorMut { view: View::contiguous("TensorMut::of_slice", slice.as_slice(), shape)?, memory: PhantomData })
    }

    /// The elements from `offset` on with these strides.
    ///
    /// # Errors
    /// As [`TensorRef::strided`], and [`Error::Overlap`] where a smaller stride reaches a larger one.
    pub fn strided(
        buffer: &'a mut Buffer<T>,
        offset: usize,
        shape: [usize; RANK],
        strides: [i64; RANK],
    ) -> Result<Self> {
        let view = View::strided(buffer, offset, shape, strides)?;
        check_no_overlap(&shape, &strides)?;
        Ok(TensorMut { view, memory: PhantomData })
    }

    /// Memory of another library, from its device address.
    ///
    /// # Safety
    /// As for [`TensorRef::from_raw`], and nothing else may read or write the elements until that work is done.
    ///
    /// # Errors
    /// [`Error::LastStride`] and [`Error::Overlap`].
    pub unsafe fn from_raw(ordinal: u32, address: u64, shape: [usize; RANK], strides: [i64; RANK]) -> Result<Self> {
        check_last_stride(&shape, &strides)?;
        check_no_overlap(&shape, &strides)?;
        Ok(TensorMut { view: View { ordinal, address, shape, strides }, memory: PhantomData })
    }

    /// The same view for a shorter time, for calls that take it by value.
    #[must_use]
    pub fn reborrow(&mut self) -> TensorMut<'_, T, RANK> {
        TensorMut { view: self.view, memory: PhantomData }
    }

    /// The same view with its element type and rank as values.
    #[must_use]
    pub fn erased(&self) -> RawTensor {
        self.as_ref().erased()
    }

    /// The same view for reading.
    #[must_use]
    pub fn as_ref(&self) -> TensorRef<'_, T, RANK> {
        TensorRef { view: self.view, memory: PhantomData }
    }
}

impl<T, const RANK: usize> TensorRef<'_, T, RANK> {
    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize; RANK] {
        &self.view.shape
    }

    /// The distance along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[i64; RANK] {
        &self.view.strides
    }

    /// The device address of the first element.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.view.address
    }

    /// The number of the card that holds the memory.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.view.ordinal
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.view.is_contiguous()
    }
}

impl<T, const RANK: usize> TensorMut<'_, T, RANK> {
    /// The size of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize; RANK] {
        &self.view.shape
    }

    /// The distance along each dimension, in elements.
    #[must_use]
    pub fn strides(&self) -> &[i64; RANK] {
        &self.view.strides
    }

    /// The device address of the first element.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.view.address
    }

    /// The number of the card that holds the memory.
    #[must_use]
    pub fn ordinal(&self) -> u32 {
        self.view.ordinal
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.view.is_contiguous()
    }
}

impl<T, const RANK: usize> fmt::Debug for TensorRef<'_, T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt("TensorRef", f)
    }
}

impl<T, const RANK: usize> fmt::Debug for TensorMut<'_, T, RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view.fmt("TensorMut", f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_strides_are_row_major() {
        assert_eq!(contiguous_strides([2, 3, 4]), [12, 4, 1]);
        assert_eq!(contiguous_strides([2, 0, 4]), [4, 4, 1]);
        assert_eq!(contiguous_strides([usize::MAX, usize::MAX, usize::MAX])[0], i64::MAX);
    }

    #[test]
    fn bounds_are_exact_in_both_directions() {
        assert!(check_bounds(&[2, 3], &[4, 1], 1, 8).is_ok());
        assert!(check_bounds(&[2, 3], &[4, 1], 2, 8).is_err());
        assert!(check_bounds(&[2, 3], &[-4, 1], 4, 7).is_ok());
        assert!(check_bounds(&[2, 3], &[-4, 1], 3, 7).is_err());
        assert!(check_bounds(&[9, 3], &[0, 1], 0, 3).is_ok());
        assert!(check_bounds(&[], &[], 0, 0).is_err());
        assert!(check_bounds(&[], &[], 0, 1).is_ok());
    }

    #[test]
    fn bounds_of_empty_views_allow_any_stride_but_no_start_outside() {
        assert!(check_bounds(&[5, 0], &[i64::MAX, 1], 3, 3).is_ok());
        assert!(check_bounds(&[5, 0], &[1, 1], 4, 3).is_err());
    }

    #[test]
    fn bounds_do_not_overflow() {
        assert!(check_bounds(&[usize::MAX, usize::MAX], &[i64::MAX, 1], usize::MAX, usize::MAX).is_err());
        assert!(check_bounds(&[usize::MAX; 4], &[i64::MIN; 4], 0, usize::MAX).is_err());
    }

    #[test]
    fn overlap_agrees_with_counting_elements_for_slices_and_refuses_every_collision() {
        let sizes = [1_usize, 2, 3];
        let strides = [-4_i64, -1, 0, 1, 2, 3, 6];
        for (&a, &b) in sizes.iter().flat_map(|a| sizes.iter().map(move |b| (a, b))) {
            for (&s, &t) in strides.iter().flat_map(|s| strides.iter().map(move |t| (s, t))) {
                let elements = (0..a).flat_map(|i| (0..b).map(move |j| i as i64 * s + j as i64 * t));
                let mut seen = std::collections::HashSet::new();
                let distinct = elements.into_iter().all(|element| seen.insert(element));
                let accepted = check_no_overlap(&[a, b], &[s, t]).is_ok();
                assert!(distinct || !accepted, "[{a}, {b}] with strides [{s}, {t}] collides");
            }
        }
        assert!(check_no_overlap(&[2, 3, 4], &[12, 4, 1]).is_ok());
        assert!(check_no_overlap(&[3, 2, 4], &[4, 12, 1]).is_ok());
        assert!(check_no_overlap(&[2, 3, 4], &[100, 8, 1]).is_ok());
        assert!(check_no_overlap(&[2, 4], &[3, 1]).is_err());
        assert!(check_no_overlap(&[2, 4], &[0, 1]).is_err());
        assert!(check_no_overlap(&[1, 4], &[0, 1]).is_ok());
        assert!(check_no_overlap(&[0, 4], &[0, 1]).is_ok());
    }

    #[test]
    fn contiguity_ignores_strides_that_are_never_taken() {
        let view = |shape, strides| View { ordinal: 0, address: 0, shape, strides };
        assert!(view([1, 3, 4], [999, 4, 1]).is_contiguous());
        assert!(!view([2, 3, 4], [999, 4, 1]).is_contiguous());
        assert!(view([2, 0, 4], [999, 7, 1]).is_contiguous());
    }

    #[test]
    fn raw_views_are_checked_where_they_can_be() {
        // SAFETY: the views are not used.
        unsafe {
            assert!(TensorRef::<f32, 2>::from_raw(0, 256, [2, 2], [0, 1]).is_ok());
            assert!(matches!(TensorMut::<f32, 2>::from_raw(0, 256, [2, 2], [0, 1]), Err(Error::Overlap { .. })));
            assert!(matches!(
                TensorRef::<f32, 2>::from_raw(0, 256, [2, 2], [2, 2]),
                Err(Error::LastStride { stride: 2 })
            ));
        }
    }
}
