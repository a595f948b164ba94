//! Strided views of host memory: where the elements of a tensor lie.

use ferrotile::{Buffer, Element, Layout, TensorMut, TensorRef};

use crate::poison::Poison;

/// A 4-dimensional view of a storage: batch, head, row, element of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// The storage index of the first element.
    pub offset: usize,
    /// The size of each dimension.
    pub shape: [usize; 4],
    /// Storage elements from one index to the next, in each dimension.
    pub strides: [i64; 4],
}

impl View {
    /// A tensor without gaps whose dimensions lie in memory in the order of `layout`; `shape` is batch, heads, rows,
    /// elements.
    #[must_use]
    pub fn contiguous(shape: [usize; 4], layout: Layout) -> View {
        let [_, second, third, last] = layout.reorder(shape).map(|size| size as i64);
        View { offset: 0, shape, strides: layout.reorder([second * third * last, third * last, last, 1]) }
    }

    /// The same view `elements` further on.
    #[must_use]
    pub fn moved(self, elements: usize) -> View {
        View { offset: self.offset + elements, ..self }
    }

    /// The number of elements, those that repeat included.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Storage elements up to and including the last that the view reaches.
    #[must_use]
    pub fn storage_len(&self) -> usize {
        self.places().max().map_or(self.offset, |last| last + 1)
    }

    /// The storage index of each element, in C order of the indices.
    pub fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let View { offset, shape: [batch, heads, rows, elements], strides } = *self;
        let place = move |index: [usize; 4]| {
            let steps: i64 = index.iter().zip(strides).map(|(&index, stride)| index as i64 * stride).sum();
            offset.checked_add_signed(steps as isize).expect("a view starts far enough into its storage")
        };
        (0..batch).flat_map(move |b| {
            (0..heads).flat_map(move |h| (0..rows).flat_map(move |r| (0..elements).map(move |e| place([b, h, r, e]))))
        })
    }

    /// Puts elements, in C order, where the view has them.
    pub fn scatter<T: Copy>(&self, values: &[T], storage: &mut [T]) {
        assert_eq!(values.len(), self.count(), "one value for each element");
        for (place, &value) in self.places().zip(values) {
            storage[place] = value;
        }
    }

    /// The elements in C order.
    #[must_use]
    pub fn gather<T: Copy>(&self, storage: &[T]) -> Vec<T> {
        self.places().map(|place| storage[place]).collect()
    }

    /// As [`View::gather`], of a storage that had the pattern of [`Poison`] everywhere before these elements were
    /// written.
    ///
    /// # Errors
    /// Something else of the storage was written.
    pub fn gather_alone<T: Poison>(&self, storage: &[T]) -> Result<Vec<T>, &'static str> {
        let mut rest = storage.to_vec();
        self.scatter(&vec![T::poison(); self.count()], &mut rest);
        match rest.iter().all(|element| element.is_poison()) {
            true => Ok(self.gather(storage)),
            false => Err("the storage was written between the elements of the output"),
        }
    }

    /// The view of a buffer for reading, with its dimensions in the order of `layout`.
    ///
    /// # Errors
    /// As [`TensorRef::strided`].
    pub fn tensor<'a, T: Element>(
        &self,
        buffer: &'a Buffer<T>,
        layout: Layout,
    ) -> ferrotile::Result<TensorRef<'a, T, 4>> {
        TensorRef::strided(buffer, self.offset, layout.reorder(self.shape), layout.reorder(self.strides))
    }

    /// As [`View::tensor`], for writing.
    ///
    /// # Errors
    /// As [`TensorMut::strided`].
    pub fn tensor_mut<'a, T: Element>(
        &self,
        buffer: &'a mut Buffer<T>,
        layout: Layout,
    ) -> ferrotile::Result<TensorMut<'a, T, 4>> {
        TensorMut::strided(buffer, self.offset, layout.reorder(self.shape), layout.reorder(self.strides))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: [usize; 4] = [2, 3, 4, 8];

    #[test]
    fn a_contiguous_view_is_the_storage() {
        let view = View::contiguous(SHAPE, Layout::Bhsd);
        assert!(view.places().eq(0..view.count()));
        assert_eq!(view.storage_len(), 2 * 3 * 4 * 8);
    }

    #[test]
    fn bshd_swaps_heads_and_rows() {
        let view = View::contiguous(SHAPE, Layout::Bshd);
        assert_eq!(view.strides, [96, 8, 24, 1]);
        let mut places: Vec<_> = view.places().collect();
        places.sort_unstable();
        assert!(places.into_iter().eq(0..view.count()));
    }

    #[test]
    fn what_is_scattered_is_gathered() {
        let values: Vec<usize> = (1..=192).collect();
        let view = View { offset: 5, shape: SHAPE, strides: [200, 8, 30, 1] };
        let mut storage = vec![0; view.storage_len()];
        view.scatter(&values, &mut storage);
        assert_eq!(view.gather(&storage), values);
        assert_eq!(storage.iter().filter(|&&value| value != 0).count(), 192);
        let reversed = View { offset: 3 * 8, shape: [1, 1, 4, 8], strides: [0, 0, -8, 1] };
        assert_eq!(reversed.gather(&(0..32).collect::<Vec<_>>())[..9], [24, 25, 26, 27, 28, 29, 30, 31, 16]);
    }
}
