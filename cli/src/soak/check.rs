//! Comparisons of outputs with what is expected, and with each other.

use ferrotile::{Dtype, tolerance};

use super::cell::Cell;
use super::outcome::{Failure, Kind};
use super::values::Range;
use crate::files::convert::indices;

/// Compares the elements `[got, expected, limits]` of a tensor. Returns the largest share of its limit that an error
/// has. Nothing is expected where the limit is infinite.
///
/// A value beyond the largest number of the type is infinite in a right result. E4M3 has no infinities, and keeps the
/// largest number.
pub(crate) fn elements(
    tensor: &str,
    dtype: Dtype,
    shape: &[usize],
    [got, expected, limits]: [&[f64]; 3],
) -> Result<f64, Failure> {
    let mut bad = got.iter().zip(expected).zip(limits).enumerate().filter(|(_, ((got, expected), limit))| {
        let is_right = accepts(dtype, **got, **expected, **limit);
        !is_right
    });
    let Some((flat, ((&got, &expected), &limit))) = bad.next() else {
        let all = got.iter().zip(expected).zip(limits);
        return Ok(all.map(|((&got, &expected), &limit)| share(got, expected, limit)).fold(0.0, f64::max));
    };
    let kind = if !got.is_finite() && expected.is_finite() { Kind::NotFinite } else { Kind::Wrong };
    let text = format!(
        "{tensor} has {} bad elements of {}, the first at {:?}: got {got:e}, expected {expected:e}, limit {limit:.3e}",
        1 + bad.count(),
        shape.iter().product::<usize>(),
        indices(flat, shape),
    );
    Err(Failure::new(kind, text))
}

/// The share of its limit that the error of an element has; 0 where one is not finite.
fn share(got: f64, expected: f64, limit: f64) -> f64 {
    let error = tolerance::element_error(got, expected);
    if error == 0.0 || !error.is_finite() { 0.0 } else { error / limit }
}

fn accepts(dtype: Dtype, got: f64, expected: f64, limit: f64) -> bool {
    if limit == f64::INFINITY {
        return true;
    }
    if expected.is_nan() || got.is_nan() {
        return expected.is_nan() && (got.is_nan() || dtype == Dtype::E4M3);
    }
    if tolerance::element_error(got, expected) <= limit {
        return true;
    }
    let largest = Range::of(dtype).largest;
    let end = if dtype == Dtype::E4M3 { largest } else { f64::INFINITY };
    // Half a step beyond the largest number rounds down to it.
    got.abs() == end && expected * got.signum() + limit >= largest
}

/// Compares the outputs of two runs, bit by bit.
pub(crate) fn same<T: Cell>(tensor: &str, [first, second]: [&[T]; 2], shape: &[usize]) -> Result<(), Failure> {
    let Some(flat) = first.iter().zip(second).position(|(first, second)| first.bits() != second.bits()) else {
        return Ok(());
    };
    let (first, second) = (first[flat], second[flat]);
    let at = indices(flat, shape);
    let text = format!("{tensor} is not the same in two runs, first at {at:?}: {first:?} and {second:?}");
    Err(Failure::new(Kind::Unrepeatable, text))
}

/// Checks that no element was left as it was before the run.
pub(crate) fn written<T: Cell>(tensor: &str, output: &[T], shape: &[usize]) -> Result<(), Failure> {
    match output.iter().position(|x| x.is_poison()) {
        None => Ok(()),
        Some(flat) => Err(Failure::new(Kind::Wrong, format!("{tensor} was not written at {:?}", indices(flat, shape)))),
    }
}

/// Checks that an output which nobody asked for is as it was before the run.
pub(crate) fn untouched<T: Cell>(tensor: &str, output: &[T]) -> Result<(), Failure> {
    if output.iter().all(|x| x.is_poison()) {
        return Ok(());
    }
    Err(Failure::new(Kind::StrayWrite, format!("{tensor} was written by a call that was not asked for it")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_a_type_become_its_ends() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let right = [
            (Dtype::F16, 1.0, 1.5, 0.5),
            (Dtype::F16, inf, 7e4, 1.0),
            (Dtype::F16, -inf, -inf, 1.0),
            (Dtype::E4M3, 448.0, 1e9, 1.0),
            (Dtype::F32, inf, 1e39, 1.0),
            (Dtype::F32, nan, nan, 1.0),
            (Dtype::F32, nan, 0.0, inf),
            (Dtype::F16, inf, -1e20, 1e22),
        ];
        let wrong = [
            (Dtype::F16, 1.0, 1.6, 0.5),
            (Dtype::F16, inf, 6e4, 1.0),
            (Dtype::F16, -inf, 7e4, 1.0),
            (Dtype::F16, nan, 0.0, 1.0),
            (Dtype::F16, 65504.0, 1e9, 1.0),
            (Dtype::E4M3, 100.0, 1e9, 1.0),
            (Dtype::F32, 0.0, nan, 1.0),
        ];
        for (expected, cases) in [(true, &right[..]), (false, &wrong)] {
            for &(dtype, got, exact, limit) in cases {
                assert_eq!(accepts(dtype, got, exact, limit), expected, "{dtype} {got} {exact} {limit}");
            }
        }
    }

    #[test]
    fn the_first_bad_element_is_named() {
        let failure =
            elements("D", Dtype::F32, &[2, 2], [&[0.0, 1.0, 2.0, f64::NAN], &[0.0; 4], &[0.5; 4]]).unwrap_err();
        assert!(failure.message.contains("3 bad elements of 4, the first at [0, 1]"), "{}", failure.message);
        let right = elements("D", Dtype::F32, &[3], [&[0.25, 1.0, f64::INFINITY], &[0.0, 1.0, 1e39], &[0.5, 0.0, 1.0]]);
        assert_eq!(right, Ok(0.5), "what overflows has no share");
        assert_eq!(same("D", [&[1f32, 2.0], &[1.0, 2.5]], &[2]).unwrap_err().kind, Kind::Unrepeatable);
        assert_eq!(written("D", &[1f32, f32::POISON], &[2]).unwrap_err().kind, Kind::Wrong);
    }
}
