//! Comparison of results with a reference, element by element.

use std::fmt;

use ferrotile::tolerance::{element_error, max_error};

/// How far a result is from its reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The largest absolute error of an element.
    pub max_abs: f64,
    /// Frobenius norm of the error over that of the reference (the bare norm of the error for a zero reference).
    pub relative: f64,
}

/// An element that differs by more than it may.
#[derive(Debug, Clone, PartialEq)]
pub struct Mismatch {
    /// The index of the first such element.
    pub index: Vec<usize>,
    /// What the element is.
    pub got: f64,
    /// What it ought to be.
    pub expected: f64,
    /// How far it may be from that.
    pub limit: f64,
    /// How many elements differ by more than they may.
    pub count: usize,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { index, got, expected, limit, count } = self;
        write!(f, "{count} bad elements, the first at {index:?}: got {got:e}, expected {expected:e}, limit {limit:.3e}")
    }
}

impl std::error::Error for Mismatch {}

/// Measures a result that has no limit to keep.
///
/// Infinities and NaNs that both sides share count as equal; any that only one side has makes the difference infinite.
pub fn difference<T: Copy + Into<f64>>(got: &[T], expected: &[f64]) -> Difference {
    let max_abs = max_error(got, expected);
    let (mut squares, mut norm) = (0f64, 0f64);
    for (&got, &expected) in got.iter().zip(expected) {
        squares += element_error(got.into(), expected).powi(2);
        norm += if expected.is_finite() { expected * expected } else { 0.0 };
    }
    Difference { max_abs, relative: squares.sqrt() / if norm > 0.0 { norm.sqrt() } else { 1.0 } }
}

/// Checks that no element is further than `limit` from its reference and that none is NaN unless the reference is.
pub fn check<T: Copy + Into<f64>>(
    got: &[T],
    expected: &[f64],
    shape: &[usize],
    limit: f64,
) -> Result<Difference, Mismatch> {
    assert_eq!(expected.len(), shape.iter().product::<usize>(), "the shape is that of the arrays");
    assert!(limit.is_finite(), "a limit of {limit} holds nothing back");
    let difference = difference(got, expected);
    if difference.max_abs <= limit {
        return Ok(difference);
    }
    let mut bad = got.iter().zip(expected).enumerate().filter(|(_, (got, expected))| {
        let within = element_error((**got).into(), **expected) <= limit;
        !within
    });
    let (flat, (&got, &expected)) = bad.next().expect("an element exceeds the limit when the maximum does");
    Err(Mismatch { index: unravel(flat, shape), got: got.into(), expected, limit, count: 1 + bad.count() })
}

/// Checks that two results are the same, bit by bit (signed zeros differ; any NaN is the same as any other).
pub fn check_same<T: Copy + Into<f64>>(got: &[T], expected: &[T], shape: &[usize]) -> Result<(), Mismatch> {
    assert_eq!(got.len(), expected.len(), "compared arrays have the same length");
    let mut pairs = got.iter().zip(expected).map(|(&a, &b)| (a.into(), b.into())).enumerate();
    let differs = |(_, (a, b)): &(usize, (f64, f64))| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    match pairs.find(differs) {
        None => Ok(()),
        Some((flat, (got, expected))) => Err(Mismatch {
            index: unravel(flat, shape),
            got,
            expected,
            limit: 0.0,
            count: 1 + pairs.filter(differs).count(),
        }),
    }
}

fn unravel(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (at, &size) in index.iter_mut().zip(shape).rev() {
        *at = flat % size;
        flat /= size;
    }
    index
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: [usize; 3] = [2, 3, 4];

    fn ramp() -> Vec<f64> {
        (0..24).map(f64::from).collect()
    }

    #[test]
    fn a_planted_error_is_found_where_it_was_planted() {
        let expected = ramp();
        let mut got = ramp();
        got[23] += 1.0;
        got[18] -= 0.125;
        let mismatch = check(&got, &expected, &SHAPE, 0.1).unwrap_err();
        assert_eq!((mismatch.index.as_slice(), mismatch.count), (&[1, 1, 2][..], 2));
        assert_eq!(check(&got, &expected, &SHAPE, 1.0).unwrap().max_abs, 1.0);
    }

    #[test]
    fn nan_fails_unless_it_is_expected() {
        let mut expected = ramp();
        let mut got = ramp();
        got[5] = f64::NAN;
        assert_eq!(check(&got, &expected, &SHAPE, f64::MAX).unwrap_err().index, [0, 1, 1]);
        expected[5] = f64::NAN;
        assert_eq!(check(&got, &expected, &SHAPE, 0.0).unwrap().max_abs, 0.0);
        got[5] = 0.0;
        assert!(check(&got, &expected, &SHAPE, f64::MAX).is_err());
    }

    #[test]
    fn infinities_match_by_sign_alone() {
        let same = [f64::INFINITY, f64::NEG_INFINITY];
        assert!(check(&same, &same, &[2], 0.0).is_ok());
        assert!(check(&same, &[f64::INFINITY, f64::INFINITY], &[2], f64::MAX).is_err());
        assert!(check(&same, &[f64::INFINITY, -1e300], &[2], f64::MAX).is_err());
    }

    #[test]
    fn the_relative_error_is_that_of_the_norms() {
        assert_eq!(difference(&[3.0, 4.5], &[3.0, 4.0]).relative, 0.1);
        assert_eq!(difference(&[0.5f32], &[0.0]).relative, 0.5);
        assert_eq!(difference::<f64>(&[], &[]), Difference { max_abs: 0.0, relative: 0.0 });
    }

    #[test]
    fn equality_is_exact() {
        assert!(check_same(&[1.0f32, 2.0], &[1.0, 2.0], &[2]).is_ok());
        assert!(check_same(&[1.0f32, 2.0], &[1.0, 2.0f32.next_up()], &[2]).is_err());
        assert!(check_same(&[0.0f32], &[-0.0], &[1]).is_err());
    }
}
