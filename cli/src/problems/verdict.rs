//! A result beside the f64 reference: what `--check` says, by one rule for every command.
//!
//! Where both numbers are finite, their distance may be up to a limit, which may differ from element to element. Where
//! both are NaN, or infinite with one sign, they agree. Where only one is NaN or infinite, the result is wrong, with
//! one exception. An element beyond the range of the result's type is infinite, or cut off, in a right result. Such
//! elements are counted apart, and the check fails unless the request allows them.
//!
//! What the inputs are compared with: `--check` computes the reference from the files' own values. Where they were
//! converted first, there are two comparisons:
//!
//! 1. with the f64 result of the converted values. Its limit is that of `host/src/tolerance.rs`, and says whether the
//!    kernel is right.
//! 2. with the f64 result of the files' own values. To the limit of the first comparison comes what rounding the inputs
//!    changes: element by element, the distance between the f64 results of the own and of the rounded values. By the
//!    triangle inequality a right kernel on rounded inputs is always within this limit. Values beyond the type's range
//!    are not rounded for it ([`in_range`](crate::files::convert::in_range)): so the limit does not cover inputs that
//!    were lost.

use std::fmt;

use ferrotile::{Float, tolerance};
use serde::Serialize;

use crate::files::convert::{indices, is_beyond};
use crate::progress;

/// What comes of the comparison of one result.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// What the result is called.
    name: &'static str,
    /// Its shape.
    shape: Vec<usize>,
    /// The largest distance of two finite numbers.
    error: f64,
    /// The largest share of its limit that a distance has; infinite where the limit is 0 and the distance is not.
    share: f64,
    /// The element of that share.
    worst: Option<Element>,
    /// How many are NaN in the result, and in the reference.
    nan: [usize; 2],
    /// How many are infinite.
    infinite: [usize; 2],
    /// How many are NaN or infinite in only one of the two, or infinite with different signs.
    unlike: Count,
    /// How many are infinite or cut off because they are beyond the type of the result.
    overflown: Count,
}

/// A number of the result and of the reference.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Element {
    flat: usize,
    got: f64,
    exact: f64,
}

/// Elements of one kind, and the first of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Count {
    count: usize,
    first: Option<Element>,
}

impl Count {
    fn add(&mut self, element: Element) {
        self.count += 1;
        self.first.get_or_insert(element);
    }
}

impl Verdict {
    /// The verdict on a result of this name and shape before any element is compared.
    pub(crate) fn new(name: &'static str, shape: &[usize]) -> Verdict {
        Verdict {
            name,
            shape: shape.to_vec(),
            error: 0.0,
            share: 0.0,
            worst: None,
            nan: [0; 2],
            infinite: [0; 2],
            unlike: Count::default(),
            overflown: Count::default(),
        }
    }

    /// Compares the elements from `first` on with those of the reference; `limit` is how far from it the element of an
    /// index from 0 may be, a finite number.
    pub(crate) fn compare<T: Float>(
        mut self,
        first: usize,
        got: &[T],
        exact: &[f64],
        limit: impl Fn(usize) -> f64,
    ) -> Verdict {
        assert_eq!(got.len(), exact.len(), "compared arrays have the same length");
        let largest = T::from_f64(f64::INFINITY).to_f64();
        for (index, (&got, &exact)) in got.iter().zip(exact).enumerate() {
            let (got, limit) = (got.to_f64(), limit(index));
            let element = Element { flat: first + index, got, exact };
            self.nan[0] += usize::from(got.is_nan());
            self.nan[1] += usize::from(exact.is_nan());
            self.infinite[0] += usize::from(got.is_infinite());
            self.infinite[1] += usize::from(exact.is_infinite());
            // A sum just below the end of the range may round to either side of it.
            let may_overflow = exact.is_finite() && is_beyond::<T>(exact.abs() + limit);
            if may_overflow && got == largest.copysign(exact) && (got.is_infinite() || is_beyond::<T>(exact)) {
                self.overflown.add(element);
            } else if got.is_finite() && exact.is_finite() {
                let error = (got - exact).abs();
                self.error = self.error.max(error);
                let share = if error == 0.0 { 0.0 } else { error / limit };
                if share > self.share || self.worst.is_none() {
                    (self.share, self.worst) = (share, Some(element));
                }
            } else if tolerance::element_error(got, exact) != 0.0 {
                self.unlike.add(element);
            }
        }
        self
    }

    /// Whether the result is right.
    pub(crate) fn holds(&self, allow_overflow: bool) -> bool {
        self.share <= 1.0 && self.unlike.count == 0 && (allow_overflow || self.overflown.count == 0)
    }

    fn write_element(&self, f: &mut fmt::Formatter<'_>, Element { flat, got, exact }: Element) -> fmt::Result {
        write!(f, "at {:?}: {got:e}, expected {exact:e}", indices(flat, &self.shape))
    }
}

/// The largest error against f64 and how much of its limit that is; then what is not finite, and what is wrong.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict { name, error, share, nan, infinite, unlike, overflown, .. } = self;
        if self.worst.is_none() && nan.iter().chain(infinite).any(|&count| count > 0) {
            f.write_str("no element is finite in both")?;
        } else {
            write!(f, "{error:.3e}, {share:.2} of the tolerance")?;
        }
        if let Some(worst) = self.worst.filter(|_| *share > 1.0) {
            f.write_str(" ")?;
            self.write_element(f, worst)?;
        }
        for ([got, exact], what) in [(nan, "NaN"), (infinite, "infinite")] {
            if got + exact > 0 {
                write!(f, "; {what}: {got} elements of {name}, {exact} in f64")?;
            }
        }
        if let Some(first) = unlike.first {
            write!(f, "; {} of them differ, the first ", unlike.count)?;
            self.write_element(f, first)?;
        }
        if let Some(first) = overflown.first {
            write!(f, "; {} elements are beyond the type of {name}, the first ", overflown.count)?;
            self.write_element(f, first)?;
        }
        Ok(())
    }
}

/// The largest distance of two results where both are finite: infinities and NaN say nothing about the size of errors.
pub(crate) fn finite_error<T: Copy + Into<f64>>(got: &[T], exact: &[f64]) -> f64 {
    let distances = got.iter().zip(exact).map(|(&got, &exact)| (got.into() - exact).abs());
    distances.filter(|distance| distance.is_finite()).fold(0.0, f64::max)
}

/// The comparisons of a result: with the f64 result of converted values, and where they are not those of the files,
/// with that of the files' own values.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdicts {
    /// The comparison for the values that the kernel was given.
    pub(crate) given: Verdict,
    /// The comparison for the files' own values, where these are others.
    pub(crate) own: Option<Verdict>,
}

/// One comparison with f64 as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Comparison {
    /// What f64 computes with: `given`, the values that the kernel was given, or `files`, the files' own.
    values: &'static str,
    /// The largest distance of two finite numbers.
    error: f64,
    /// The largest share of its limit that a distance has.
    share_of_tolerance: f64,
    /// How many elements are NaN in the result, and in f64.
    nan: usize,
    nan_in_f64: usize,
    /// How many are infinite.
    infinite: usize,
    infinite_in_f64: usize,
    /// How many are infinite or cut off because they are beyond the type of the result.
    overflown: usize,
}

impl Comparison {
    fn new(values: &'static str, verdict: &Verdict) -> Comparison {
        let &Verdict { error, share, nan, infinite, overflown, .. } = verdict;
        let ([nan, nan_in_f64], [infinite, infinite_in_f64]) = (nan, infinite);
        let (share_of_tolerance, overflown) = (share, overflown.count);
        Comparison { values, error, share_of_tolerance, nan, nan_in_f64, infinite, infinite_in_f64, overflown }
    }
}

/// A result is further from the f64 reference than its type and its inputs explain.
#[derive(Debug, thiserror::Error)]
#[error("the check failed: {text}")]
pub(crate) struct CheckFailed {
    text: String,
}

/// What a check has found: nothing where none was asked for.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    /// The comparisons as JSON.
    pub(crate) comparisons: Vec<Comparison>,
    /// The line that says so, with its end.
    pub(crate) text: String,
}

impl Checked {
    /// Makes the comparisons, where they are wanted.
    ///
    /// # Errors
    /// As [`Verdicts::line`].
    pub(crate) fn new(
        verdicts: Option<impl FnOnce() -> Verdicts>,
        allow_overflow: bool,
        cure: &str,
    ) -> Result<Checked, CheckFailed> {
        let Some(verdicts) = verdicts else { return Ok(Checked::default()) };
        let shown = progress::spinner("computing in f64 on the CPU");
        let verdicts = verdicts();
        drop(shown);
        let text = verdicts.line(allow_overflow, cure)? + "\n";
        let own = verdicts.own.as_ref().map(|own| Comparison::new("files", own));
        let comparisons = own.into_iter().chain([Comparison::new("given", &verdicts.given)]).collect();
        Ok(Checked { comparisons, text })
    }
}

impl Verdicts {
    /// The line of a result that is right.
    ///
    /// # Errors
    /// The result is wrong; `cure` is what helps where its type ends too early.
    pub(crate) fn line(&self, allow_overflow: bool, cure: &str) -> Result<String, CheckFailed> {
        let Verdicts { given, own } = self;
        let of_given = if own.is_some() { " of the converted values" } else { "" };
        let of_own = own.as_ref().map(|own| (own, " of the files' values"));
        let all = [Some((given, of_given)), of_own].into_iter().flatten();
        if let Some((wrong, of_what)) = all.clone().find(|(verdict, _)| !verdict.holds(allow_overflow)) {
            let mut text = format!("largest error against f64{of_what}: {wrong}");
            if wrong.overflown.count > 0 && !allow_overflow {
                text += &format!(": {cure}, or allow it by --allow-overflow");
            }
            return Err(CheckFailed { text });
        }
        let texts = all.rev().map(|(verdict, of_what)| format!("{of_what}: {verdict}"));
        Ok(format!("largest error against f64{}", texts.collect::<Vec<_>>().join(";")))
    }
}

/// A result of finite inputs that is not finite.
#[derive(Debug, thiserror::Error)]
#[error(
    "{count} of {all} elements of {name} are NaN or infinite, the first at {index:?}, though no input is: {cure}, or \
     allow it by --allow-overflow"
)]
pub(crate) struct NotFinite {
    name: &'static str,
    count: usize,
    all: usize,
    index: Vec<usize>,
    cure: String,
}

impl NotFinite {
    /// Refuses a result with an element that is not finite; `cure` is what helps.
    pub(crate) fn check<T: Float>(
        name: &'static str,
        shape: &[usize],
        result: &[T],
        cure: &str,
    ) -> Result<(), NotFinite> {
        let is_not_finite = |value: &T| !value.to_f64().is_finite();
        let Some(first) = result.iter().position(is_not_finite) else { return Ok(()) };
        let count = result.iter().filter(|value| is_not_finite(value)).count();
        let index = indices(first, shape);
        Err(NotFinite { name, count, all: result.len(), index, cure: cure.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use ferrotile::F8E4M3;
    use half::f16;

    use super::*;

    const NAN: f64 = f64::NAN;
    const INFINITY: f64 = f64::INFINITY;

    fn compared<T: Float>(got: &[f64], exact: &[f64]) -> Verdict {
        let got: Vec<T> = got.iter().map(|&value| T::from_f64(value)).collect();
        Verdict::new("O", &[1, got.len()]).compare(0, &got, exact, |_| 0.5)
    }

    fn line(given: Verdict) -> Result<String, String> {
        Verdicts { given, own: None }.line(false, "use f32").map_err(|error| error.to_string())
    }

    #[test]
    fn errors_within_the_limit_are_right() {
        let verdict = compared::<f32>(&[1.0, 2.0], &[1.25, 2.0]);
        assert_eq!(line(verdict), Ok("largest error against f64: 2.500e-1, 0.50 of the tolerance".to_owned()));
        assert_eq!(
            line(compared::<f32>(&[], &[])).unwrap(),
            "largest error against f64: 0.000e0, 0.00 of the tolerance"
        );
    }

    #[test]
    fn an_error_beyond_the_limit_is_named() {
        let text = line(compared::<f32>(&[1.0, 2.0], &[1.0, 3.0])).unwrap_err();
        assert!(text.contains("1.000e0, 2.00 of the tolerance at [0, 1]: 2e0, expected 3e0"), "{text}");
    }

    #[test]
    fn what_both_have_agrees_and_is_counted() {
        let text = line(compared::<f32>(&[NAN, INFINITY, 1.0], &[NAN, INFINITY, 1.0])).unwrap();
        assert!(text.contains("; NaN: 1 elements of O, 1 in f64; infinite: 1 elements of O, 1 in f64"), "{text}");
    }

    #[test]
    fn what_one_alone_has_is_wrong() {
        let cases = [(NAN, 1.0), (1.0, NAN), (INFINITY, -INFINITY), (INFINITY, NAN), (0.0, INFINITY), (INFINITY, 2.0)];
        for (got, exact) in cases {
            let text = line(compared::<f32>(&[1.0, got], &[1.0, exact])).unwrap_err();
            assert!(text.contains("; 1 of them differ, the first at [0, 1]"), "{text}");
        }
    }

    #[test]
    fn a_type_that_ends_too_early_is_named_with_its_cure() {
        for verdict in [compared::<f16>(&[1.0, -1e5], &[1.0, -1e5]), compared::<F8E4M3>(&[1.0, -1e5], &[1.0, -1e5])] {
            assert!(!verdict.holds(false) && verdict.holds(true));
            let text = line(verdict).unwrap_err();
            assert!(text.contains("1 elements are beyond the type of O, the first at [0, 1]"), "{text}");
            assert!(text.ends_with(": use f32, or allow it by --allow-overflow"), "{text}");
        }
        // The last value before the end, and one that may round to either side of it.
        assert!(compared::<f16>(&[65504.0], &[65504.25]).holds(false));
        assert!(!compared::<f16>(&[65504.0], &[1e5]).holds(true));
        assert!(compared::<f16>(&[INFINITY], &[65519.75]).holds(true));
        assert!(!compared::<f16>(&[INFINITY], &[65504.0]).holds(true));
    }

    #[test]
    fn limits_are_those_of_finite_numbers() {
        assert_eq!(finite_error(&[1.0, NAN, INFINITY], &[1.5, 1.0, 1.0]), 0.5);
    }

    #[test]
    fn a_result_that_is_not_finite_is_refused() {
        let text = NotFinite::check("D", &[2, 2], &[1.0f32, 2.0, f32::NAN, f32::INFINITY], "scale").unwrap_err();
        let text = text.to_string();
        assert!(text.starts_with("2 of 4 elements of D are NaN or infinite, the first at [1, 0]"), "{text}");
        assert!(NotFinite::check("D", &[1], &[1.0f32], "scale").is_ok());
    }
}
