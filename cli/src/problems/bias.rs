//! The bias of attention as files have it: of any dimensions that stand for those of the scores, or a mask of bool.

use ferrotile::BatchedSizes;
use ndarray::ArrayViewD;

use crate::files::convert::{Converted, Converter};
use crate::files::input::{Input, SizesError, listed_shapes};
use crate::files::tensor::{Elements, Stored};
use crate::memory::array_bytes;
use crate::problems::error::AttentionError;

/// The names of the dimensions of scores, for errors.
const DIMENSIONS: &str = "(batch, heads, rows, keys): any may be 1, and the first ones may be left out";

/// Converts a bias to `[batch or 1, heads or 1, rows, keys]`.
///
/// As in NumPy, dimensions of 1 are repeated, and those that are missing at the front are 1: `[keys]` is the same for
/// every row, `[rows, keys]` for every head. Of bool, true is a key that the row sees: 0, and false minus infinity.
pub(crate) fn convert<T: Stored>(
    input: Input,
    sizes: &BatchedSizes,
    converter: &mut Converter,
) -> Result<(Converted<T>, [usize; 4]), AttentionError> {
    let Input { origin, mut tensor } = input;
    let scores = [sizes.batch, sizes.q_heads, sizes.q_len, sizes.k_len];
    let Some(shape) = repeated(&tensor.shape, scores) else {
        let expected = format!("{scores:?} {DIMENSIONS}");
        return Err(AttentionError::Shape { tensor: origin, shape: tensor.shape, expected });
    };
    tensor.elements = match tensor.elements {
        Elements::Bool(visible) => {
            let of_key = |visible| if visible { 0.0 } else { f32::NEG_INFINITY };
            Elements::F32(visible.into_iter().map(of_key).collect())
        }
        Elements::Integers(dtype, _) => return Err(AttentionError::IntegerBias { tensor: origin, dtype }),
        floats => floats,
    };
    let input = Input { origin, tensor };
    let too_large = |reason| SizesError::new(reason, listed_shapes([&input]));
    array_bytes::<f64>(&shape).map_err(too_large)?;
    let Converted { shape: stored, values, own } = converter.convert::<T>(input);
    let own = own.map(|own| repeat(&own, &stored, shape));
    Ok((Converted { shape: shape.to_vec(), values: repeat(&values, &stored, shape), own }, shape))
}

/// The shape that a bias of this shape is repeated to; `None` where it does not stand for these scores.
fn repeated(shape: &[usize], scores: [usize; 4]) -> Option<[usize; 4]> {
    let missing = scores.len().checked_sub(shape.len())?;
    let mut full = [1; 4];
    full[missing..].copy_from_slice(shape);
    let [batch, heads, ..] = full;
    let fits = full.iter().zip(scores).all(|(&size, score)| size == 1 || size == score);
    fits.then_some([batch, heads, scores[2], scores[3]])
}

/// Repeats elements along the dimensions of 1, or that are missing.
fn repeat<T: Copy>(values: &[T], stored: &[usize], shape: [usize; 4]) -> Vec<T> {
    let stored = ArrayViewD::from_shape(stored, values).expect("a file has an element for each index");
    let repeated = stored.broadcast(shape.as_slice()).expect("the shape has been checked");
    repeated.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_of_one_are_repeated_and_missing_ones_are_one() {
        let scores = [2, 4, 3, 5];
        let cases: [(&[usize], Option<[usize; 4]>); 12] = [
            (&[], Some([1, 1, 3, 5])),
            (&[5], Some([1, 1, 3, 5])),
            (&[3, 5], Some([1, 1, 3, 5])),
            (&[3, 1], Some([1, 1, 3, 5])),
            (&[4, 3, 5], Some([1, 4, 3, 5])),
            (&[2, 1, 1, 5], Some([2, 1, 3, 5])),
            (&[2, 4, 3, 5], Some([2, 4, 3, 5])),
            (&[3], None),
            (&[2, 5], None),
            (&[5, 3], None),
            (&[2, 3, 5], None),
            (&[1, 1, 1, 1, 5], None),
        ];
        for (shape, expected) in cases {
            assert_eq!(repeated(shape, scores), expected, "{shape:?}");
        }
        assert_eq!(repeat(&[1, 2], &[2], [1, 1, 2, 2]), [1, 2, 1, 2]);
        assert_eq!(repeat(&[1, 2], &[2, 1], [1, 1, 2, 2]), [1, 1, 2, 2]);
        assert_eq!(repeat(&[1], &[1], [1, 1, 0, 2]), [0; 0]);
    }
}
