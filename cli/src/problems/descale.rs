//! The factors of Q, K and V of FP8 or u8: from files, or computed from the elements.
//!
//! A stored element times its factor is what it stands for. Computed factors make the largest magnitude of a tensor, or
//! of one head of a batch entry, the largest number of the type: elements are divided by them before they are rounded.

use ferrotile::{BatchedSizes, Dtype};
use ndarray::Array2;
use variants::quantize::least_factor;

use crate::files::convert::{Converted, Converter};
use crate::files::input::Input;
use crate::files::tensor::Half;
use crate::problems::error::AttentionError;

/// The factors of Q, K and V, `[batch or 1, heads or 1]`, of those that have any. Heads of Q may share theirs.
pub(crate) type Factors = [Option<Array2<f32>>; 3];

/// Where factors come from.
#[derive(Debug, Clone, Default)]
pub(crate) enum FactorSource {
    /// There are none.
    #[default]
    None,
    /// Files of those of Q, K and V.
    Files(Box<[Option<Input>; 3]>),
    /// The elements of the files.
    Computed(Sharing),
}

/// Which elements share a computed factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// All of a tensor.
    Tensor,
    /// Those of one head of a batch entry.
    Head,
}

/// Which batch entry and head the elements of a tensor belong to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order<'a> {
    /// Of `[batch, heads, rows, columns]`.
    Bhsd,
    /// Of `[batch, rows, heads, columns]`.
    Bshd,
    /// Of `[rows, heads, columns]`, where batch entries start at these rows.
    Sequences(&'a [usize]),
}

impl Order<'_> {
    /// Batch entry and head of the element of this index in C order.
    pub(crate) fn place(self, flat: usize, shape: &[usize]) -> [usize; 2] {
        let [.., middle, columns] = *shape else { return [0; 2] };
        match self {
            Order::Bhsd => {
                let head = flat / (middle * columns);
                [head / shape[1], head % shape[1]]
            }
            Order::Bshd => [flat / (shape[1] * middle * columns), flat / columns % middle],
            Order::Sequences(starts) => {
                let row = flat / (middle * columns);
                [starts.partition_point(|&start| start <= row).saturating_sub(1), flat / columns % middle]
            }
        }
    }
}

/// The factor of a head of `heads` in a batch entry.
pub(crate) fn factor_of(factors: &Array2<f32>, [batch, head]: [usize; 2], heads: usize) -> f64 {
    let (batches, of_heads) = factors.dim();
    factors[[batch % batches, head * of_heads / heads]].into()
}

impl FactorSource {
    /// Q, K and V in the type of kernels, whose elements lie in these orders, with their factors.
    pub(crate) fn convert<T: Half>(
        self,
        inputs: [Input; 3],
        orders: [Order<'_>; 3],
        sizes: &BatchedSizes,
        converter: &mut Converter,
    ) -> Result<([Converted<T>; 3], Factors), AttentionError> {
        if T::DTYPE.size_bytes() != 1 && !matches!(self, FactorSource::None) {
            return Err(AttentionError::FactorsOfHalves(T::DTYPE.name()));
        }
        let is_whole = match &self {
            FactorSource::None => false,
            FactorSource::Files(files) => files.iter().all(Option::is_some),
            FactorSource::Computed(_) => true,
        };
        if T::DTYPE == Dtype::U8 && !is_whole {
            return Err(AttentionError::NeedsFactors);
        }
        let heads = [sizes.q_heads, sizes.kv_heads, sizes.kv_heads];
        match self {
            FactorSource::None => Ok((inputs.map(|input| converter.convert(input)), Factors::default())),
            FactorSource::Files(files) => {
                let mut factors = Factors::default();
                for ((factors, file), heads) in factors.iter_mut().zip(*files).zip(heads) {
                    *factors = file.map(|file| from_file(file, sizes, heads, converter)).transpose()?;
                }
                let mut converted = inputs.map(|input| converter.convert::<T>(input));
                for (index, Converted { shape, own, .. }) in converted.iter_mut().enumerate() {
                    if let (Some(factors), Some(own)) = (&factors[index], own) {
                        for (flat, own) in own.iter_mut().enumerate() {
                            *own *= factor_of(factors, orders[index].place(flat, shape), heads[index]);
                        }
                    }
                }
                Ok((converted, factors))
            }
            FactorSource::Computed(sharing) => {
                let is_quantized = |input: &&Input| ["e4m3", "u8"].contains(&input.tensor.elements.dtype_name());
                if let Some(stored) = inputs.iter().find(is_quantized) {
                    let (tensor, dtype) = (stored.origin.clone(), stored.tensor.elements.dtype_name());
                    return Err(AttentionError::AlreadyQuantized { tensor, dtype });
                }
                let dims = match sharing {
                    Sharing::Tensor => [[1, 1]; 3],
                    Sharing::Head => heads.map(|heads| [sizes.batch.max(1), heads]),
                };
                let factors = [0, 1, 2].map(|index| computed::<T>(&inputs[index], orders[index], dims[index]));
                let mut index = 0;
                let converted = inputs.map(|input| {
                    let (order, factors, heads, shape) =
                        (orders[index], &factors[index], heads[index], input.tensor.shape.clone());
                    index += 1;
                    converter.convert_divided(input, |flat| factor_of(factors, order.place(flat, &shape), heads))
                });
                Ok((converted, factors.map(Some)))
            }
        }
    }
}

/// The factors of a file for a tensor of so many heads: of `[]`, `[heads]` or `[batch, heads]`, where each may be 1.
fn from_file(
    input: Input,
    sizes: &BatchedSizes,
    heads: usize,
    converter: &mut Converter,
) -> Result<Array2<f32>, AttentionError> {
    let shape = match input.tensor.shape[..] {
        [] => Some([1, 1]),
        [heads] => Some([1, heads]),
        [batch, heads] => Some([batch, heads]),
        _ => None,
    };
    let is_one_of = |got: usize, expected: &[usize]| got == 1 || expected.contains(&got);
    // Heads of Q that see one head of K may share a factor.
    let fits = |[batch, of_heads]: [usize; 2]| {
        is_one_of(batch, &[sizes.batch]) && is_one_of(of_heads, &[heads, sizes.kv_heads])
    };
    let Some([batch, of_heads]) = shape.filter(|&shape| fits(shape)) else {
        let expected =
            format!("[{}, {heads}] (batch, heads): each may be 1, and the first may be left out", sizes.batch);
        return Err(AttentionError::Shape { tensor: input.origin, shape: input.tensor.shape, expected });
    };
    let values = converter.convert::<f32>(input).values;
    Ok(Array2::from_shape_vec((batch, of_heads), values).expect("a file has an element for each index"))
}

/// The factors that make the largest finite magnitude of what shares one the largest number of `T`; 1 where that factor
/// is as small as [`least_factor`] says.
fn computed<T: Half>(input: &Input, order: Order<'_>, [batch, heads]: [usize; 2]) -> Array2<f32> {
    let shape = &input.tensor.shape;
    let mut largest = Array2::<f64>::zeros((batch, heads));
    for flat in 0..shape.iter().product() {
        let [entry, head] = order.place(flat, shape);
        let magnitude = input.tensor.elements.value(flat).abs();
        let seen = &mut largest[[entry % batch, head % heads]];
        if magnitude.is_finite() && magnitude > *seen {
            *seen = magnitude;
        }
    }
    let end = T::from_f64(f64::INFINITY).to_f64();
    largest.mapv(|largest| {
        let factor = (largest / end) as f32;
        if factor >= least_factor(T::DTYPE) { factor } else { 1.0 }
    })
}

#[cfg(test)]
mod tests {
    use ferrotile::{F8E4M3, Float};

    use super::*;
    use crate::files::input::Origin;
    use crate::files::tensor::{Elements, Tensor};

    const SIZES: BatchedSizes = BatchedSizes { batch: 2, q_heads: 4, kv_heads: 2, q_len: 1, k_len: 3, head_dim: 2 };

    fn input(shape: &[usize], value: impl Fn(usize) -> f64) -> Input {
        let values = (0..shape.iter().product()).map(value).collect();
        let tensor = Tensor { shape: shape.to_vec(), elements: Elements::F64(values) };
        Input { origin: Origin { name: "k", path: "k.npy".into() }, tensor }
    }

    #[test]
    fn places_follow_the_order_of_dimensions() {
        let shape = [2, 3, 5, 7];
        for flat in 0..210 {
            let [a, b, c] = [flat / 105, flat / 35 % 3, flat / 7 % 5];
            assert_eq!(Order::Bhsd.place(flat, &shape), [a, b]);
            assert_eq!(Order::Bshd.place(flat, &shape), [a, c]);
        }
        // Sequences of two, no and three rows, of two heads.
        let entries = (0..5 * 2 * 4).map(|flat| Order::Sequences(&[0, 2, 2, 5]).place(flat, &[5, 2, 4]));
        assert!(entries.enumerate().all(|(flat, place)| place == [if flat < 16 { 0 } else { 2 }, flat / 4 % 2]));
    }

    #[test]
    fn the_largest_magnitude_becomes_the_largest_number() {
        // Heads of magnitude 1, 2, 3 and nothing.
        let largest = [1.0, -2.0, 3.0, 0.0];
        let keys =
            input(&[2, 2, 3, 2], |flat| if flat % 6 == 4 { largest[flat / 6] } else { 0.25 * largest[flat / 6] });
        let factors = computed::<F8E4M3>(&keys, Order::Bhsd, [2, 2]);
        assert_eq!(factors.into_raw_vec_and_offset().0, [1.0 / 448.0, 2.0 / 448.0, 3.0 / 448.0, 1.0]);
        assert_eq!(computed::<F8E4M3>(&keys, Order::Bhsd, [1, 1])[[0, 0]], 3.0 / 448.0);
        let mut converter = Converter::new(true, false);
        let inputs = [input(&[2, 4, 1, 2], |_| 1.0), keys.clone(), keys];
        let source = FactorSource::Computed(Sharing::Head);
        let (converted, factors) = source.convert::<F8E4M3>(inputs, [Order::Bhsd; 3], &SIZES, &mut converter).unwrap();
        assert_eq!([0, 1, 2].map(|index| factors[index].as_ref().unwrap().dim()), [(2, 4), (2, 2), (2, 2)]);
        assert!(converted[0].values.iter().all(|x| x.to_f64() == 448.0));
        assert_eq!([4, 10, 16].map(|flat| converted[1].values[flat].to_f64()), [448.0, -448.0, 448.0]);
        assert_eq!(converted[1].own.as_ref().unwrap()[10], -2.0);
        assert!(converter.finish().is_ok());
    }

    #[test]
    fn factors_of_files_have_the_shape_of_batch_and_heads() {
        let mut converter = Converter::new(false, false);
        let mut dims = |shape: &[usize], heads: usize| {
            from_file(input(shape, |_| 0.5), &SIZES, heads, &mut converter).map(|factors| factors.dim()).ok()
        };
        for (shape, expected) in
            [(&[][..], (1, 1)), (&[1], (1, 1)), (&[2], (1, 2)), (&[2, 1], (2, 1)), (&[1, 2], (1, 2))]
        {
            assert_eq!(dims(shape, 2), Some(expected), "{shape:?}");
        }
        assert_eq!((dims(&[4], 4), dims(&[2, 2], 4)), (Some((1, 4)), Some((2, 2))));
        for shape in [&[3][..], &[3, 2], &[2, 4], &[1, 1, 1]] {
            assert_eq!(dims(shape, 2), None, "{shape:?}");
        }
    }
}
