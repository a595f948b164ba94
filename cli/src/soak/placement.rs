//! Where the elements of a tensor lie: any order of dimensions, with gaps, backwards, or the same ones again.

use rand::RngExt;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};

use super::family::Simpler;
use super::sizes::Random;
use super::text::is_default;

/// What makes the strides of a tensor, whatever its shape. The last dimension is always contiguous.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Placement {
    /// Elements before the first one.
    #[serde(skip_serializing_if = "is_default")]
    offset: usize,
    /// The dimensions but the last, innermost first; those that are not named follow from the last to the first.
    #[serde(skip_serializing_if = "is_default")]
    order: Vec<usize>,
    /// Elements after each step of a dimension that belong to nobody.
    #[serde(skip_serializing_if = "is_default")]
    gaps: Vec<usize>,
    /// Dimensions that are walked backwards.
    #[serde(skip_serializing_if = "is_default")]
    reversed: Vec<usize>,
    /// Dimensions that show the same elements at each index.
    #[serde(skip_serializing_if = "is_default")]
    repeated: Vec<usize>,
}

impl Placement {
    /// A place of a tensor of so many dimensions: half of them without gaps, one in three of the others aligned to 16
    /// bytes throughout.
    pub(crate) fn draw(random: &mut Random, rank: usize, may_repeat: bool) -> Placement {
        if random.random_bool(0.5) {
            return Placement::default();
        }
        let step = [16, 8, 1][random.random_range(0..3)];
        let mut order: Vec<usize> = (0..rank - 1).rev().collect();
        if random.random_bool(0.4) {
            order.shuffle(random);
        }
        let mut dimensions = |chance: f64| (0..rank - 1).filter(|_| random.random_bool(chance)).collect();
        let (reversed, repeated): (Vec<usize>, Vec<usize>) = (dimensions(0.07), dimensions(0.1));
        Placement {
            offset: step * random.random_range(0..4),
            order,
            gaps: (0..rank - 1).map(|_| step * random.random_range(0..3)).collect(),
            reversed,
            repeated: if may_repeat { repeated } else { Vec::new() },
        }
    }

    /// A place whose rows start on 16-byte boundaries, and that is walked forwards: one that TMA can express.
    pub(crate) fn draw_regular(random: &mut Random, rank: usize, may_repeat: bool) -> Placement {
        let place = Placement::draw(random, rank, may_repeat);
        let aligned = |elements: usize| elements.next_multiple_of(16);
        let gaps = place.gaps.into_iter().map(aligned).collect();
        Placement { offset: aligned(place.offset), gaps, reversed: Vec::new(), ..place }
    }

    /// Simpler placements, the simplest first: without gaps, offsets, reversed or repeated dimensions.
    pub(crate) fn simpler(&self) -> Vec<Placement> {
        let plain = Placement { reversed: Vec::new(), repeated: Vec::new(), ..self.clone() };
        vec![
            Placement::default(),
            Placement { gaps: Vec::new(), order: Vec::new(), ..self.clone() },
            Placement { order: Vec::new(), ..self.clone() },
            Placement { offset: 0, ..self.clone() },
            plain,
        ]
    }

    /// A problem's neighbours with one tensor placed more simply; `field` has the placements of its tensors.
    pub(crate) fn simpler_each<P: Clone, const N: usize>(
        simpler: &mut Simpler<P>,
        field: impl Fn(&mut P) -> &mut [Placement; N] + Copy,
    ) {
        for (index, placement) in field(&mut simpler.problem().clone()).iter().enumerate() {
            simpler.each(|problem| &mut field(problem)[index], placement.simpler());
        }
    }

    /// The same placement without repeated dimensions: each index has an element of its own.
    pub(crate) fn unrepeated(&self) -> Placement {
        Placement { repeated: Vec::new(), ..self.clone() }
    }

    /// The view of a tensor of this shape.
    pub(crate) fn view<const RANK: usize>(&self, shape: [usize; RANK]) -> View<RANK> {
        let rest = (0..RANK - 1).rev().filter(|dimension| !self.order.contains(dimension));
        let order = self.order.iter().copied().filter(|&dimension| dimension + 1 < RANK).chain(rest);
        let mut view = View { offset: self.offset, shape, strides: [0; RANK] };
        view.strides[RANK - 1] = 1;
        let mut reach = shape[RANK - 1].max(1);
        for dimension in order {
            if self.repeated.contains(&dimension) {
                continue;
            }
            let (stride, steps) = (reach + self.gaps.get(dimension).copied().unwrap_or(0), shape[dimension].max(1));
            view.strides[dimension] = stride as i64;
            reach = stride * steps;
            if self.reversed.contains(&dimension) {
                view.offset += stride * (steps - 1);
                view.strides[dimension] = -(stride as i64);
            }
        }
        view
    }
}

/// The place of each element of a tensor in its storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View<const RANK: usize> {
    /// The first element.
    pub(crate) offset: usize,
    /// The size of each dimension.
    pub(crate) shape: [usize; RANK],
    /// Elements of the storage from one index to the next.
    pub(crate) strides: [i64; RANK],
}

impl<const RANK: usize> View<RANK> {
    /// The number of elements.
    pub(crate) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The storage index of each element, in C order.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + use<RANK> {
        let View { offset, shape, strides } = *self;
        let mut index = [0; RANK];
        let mut at = offset as i64;
        (0..self.count()).map(move |_| {
            let place = at as usize;
            for dimension in (0..RANK).rev() {
                index[dimension] += 1;
                at += strides[dimension];
                if index[dimension] < shape[dimension] {
                    break;
                }
                at -= index[dimension] as i64 * strides[dimension];
                index[dimension] = 0;
            }
            place
        })
    }

    /// Storage elements up to the last one that the view reaches, and at least the offset.
    pub(crate) fn storage_len(&self) -> usize {
        if self.count() == 0 {
            return self.offset;
        }
        let steps = self.shape.iter().zip(self.strides);
        let forward: i64 = steps.map(|(&size, stride)| (size as i64 - 1) * stride.max(0)).sum();
        self.offset + forward as usize + 1
    }

    /// Puts elements where the view has them. Where several indices share an element, the last value stays.
    pub(crate) fn scatter<T: Copy>(&self, values: &[T], storage: &mut [T]) {
        for (place, &value) in self.places().zip(values) {
            storage[place] = value;
        }
    }

    /// The elements, in C order.
    pub(crate) fn gather<T: Copy>(&self, storage: &[T]) -> Vec<T> {
        self.places().map(|place| storage[place]).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_place_without_features_is_row_major() {
        let view = Placement::default().view([2, 3, 4]);
        assert_eq!((view.offset, view.strides, view.storage_len()), (0, [12, 4, 1], 24));
        assert!(view.places().eq(0..24));
        assert_eq!(Placement::default().view([2, 0, 4]).places().count(), 0);
    }

    #[test]
    fn what_is_scattered_is_gathered_and_overlaps_nothing() {
        let values: Vec<usize> = (1..=60).collect();
        for seed in 0..200 {
            let view = Placement::draw(&mut Random::seed_from_u64(seed), 3, false).view([3, 4, 5]);
            let mut storage = vec![0; view.storage_len()];
            view.scatter(&values, &mut storage);
            assert_eq!(view.gather(&storage), values, "{view:?}");
        }
    }

    #[test]
    fn a_repeated_dimension_shows_what_was_stored_last() {
        let place = Placement { repeated: vec![0], ..Placement::default() };
        let view = place.view([2, 1, 3]);
        let mut storage = vec![0; view.storage_len()];
        view.scatter(&[1, 2, 3, 4, 5, 6], &mut storage);
        assert_eq!(view.gather(&storage), [4, 5, 6, 4, 5, 6]);
    }
}
