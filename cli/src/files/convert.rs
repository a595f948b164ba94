//! Conversion of the elements of files to the types that kernels read, and what it loses.
//!
//! Rounding is what a type costs, and is not reported. An element that leaves the range of a type is lost. A request
//! that loses an element is refused, unless it allows that. The error names tensor and file, the number of lost
//! elements, the first of them, and what to do. An element is lost in two ways:
//!
//! - The element becomes infinite. In e4m3, which has no infinities, it is beyond 448 and is cut off there.
//! - The element is not 0 and becomes 0, and the tensor as a whole is as small: rounding its largest element changes
//!   that element by less than is lost here. Among larger elements a small one is rounded to 0 like any other number,
//!   and reported without being refused: of normally distributed numbers e4m3 makes one in a thousand 0.

use std::fmt;

use ferrotile::{Dtype, Float, tolerance};

use crate::files::input::{Input, Origin};
use crate::files::tensor::{Number, Stored};

/// Whether a value is beyond the range of a type: it becomes infinite, or is cut off where there are no infinities.
pub(crate) fn is_beyond<T: Float>(value: f64) -> bool {
    let largest = T::from_f64(f64::INFINITY).to_f64();
    if largest.is_infinite() {
        return value.is_finite() && T::from_f64(value).to_f64().is_infinite();
    }
    // Up to half of a step above the largest value, that is the nearest one.
    value.abs() > largest + step(largest, T::DTYPE) / 2.0
}

/// Whether a value other than 0 becomes 0.
fn is_flushed<T: Float>(value: f64) -> bool {
    value != 0.0 && T::from_f64(value).to_f64() == 0.0
}

/// Whether a value leaves the range of a type on either side.
pub(crate) fn leaves_range<T: Float>(value: f64) -> bool {
    is_beyond::<T>(value) || is_flushed::<T>(value)
}

/// A value as a type rounds it, but as it is where it would leave the type's range: what the type ought to cost.
pub(crate) fn in_range<T: Float>(value: f64) -> f64 {
    if leaves_range::<T>(value) { value } else { T::from_f64(value).to_f64() }
}

/// The distance of the values of a type around this one, without regard to its range.
fn step(value: f64, dtype: Dtype) -> f64 {
    if dtype == Dtype::U8 {
        return 2.0 * tolerance::least_number(dtype);
    }
    let exponent = value.abs().log2().floor();
    (exponent + f64::from(dtype.epsilon_exponent())).exp2()
}

/// The elements of a tensor in the type of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct Converted<T> {
    /// The size of each dimension.
    pub(crate) shape: Vec<usize>,
    /// The elements.
    pub(crate) values: Vec<T>,
    /// The file's own elements, where their type is another one and somebody asked for them.
    pub(crate) own: Option<Vec<f64>>,
}

impl<T: Number> Converted<T> {
    /// The file's own elements in f64.
    pub(crate) fn into_own(self) -> Vec<f64> {
        let Converted { values, own, .. } = self;
        own.unwrap_or_else(|| values.into_iter().map(Number::number).collect())
    }
}

/// What is lost of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Loss {
    origin: Origin,
    dtype: Dtype,
    kind: LossKind,
    /// Elements lost, and elements in all.
    count: [usize; 2],
    /// The indices of the first one.
    index: Vec<usize>,
    /// Its value in the file.
    value: f64,
}

/// How an element is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LossKind {
    /// It becomes infinite.
    Infinite,
    /// It is cut off at the largest value of the type.
    CutOff,
    /// It becomes 0.
    Zero,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Loss { origin, dtype, kind, count: [count, all], index, value } = self;
        let becomes = match kind {
            LossKind::Infinite => "become infinite",
            LossKind::CutOff => "are beyond its range and are cut off",
            LossKind::Zero => "become 0",
        };
        write!(f, "{origin}: {count} of {all} elements {becomes} in {dtype}, the first at {index:?}: {value:e}")
    }
}

impl Loss {
    fn cure(&self) -> &'static str {
        match (self.origin.name, self.dtype, self.kind) {
            ("bias", _, LossKind::Infinite) => "hide keys by -inf or by a bias of bool, true where a key is visible",
            ("C", Dtype::F16 | Dtype::E4M3, _) => "use --out-dtype bf16 or f32",
            ("q" | "k" | "v" | "A" | "B", Dtype::F16, _) => "use --dtype bf16, or scale them",
            ("q" | "k" | "v", Dtype::E4M3 | Dtype::U8, _) => "give --quantize tensor or head, or use --dtype bf16",
            ("A" | "B", Dtype::E4M3, _) => "scale them and give --alpha, or use --dtype bf16",
            _ => "scale them",
        }
    }
}

/// How a conversion loses an element, if it does.
fn lost<T: Float>(own: f64, value: T) -> Option<LossKind> {
    let (value, largest) = (value.to_f64(), T::from_f64(f64::INFINITY).to_f64());
    if own != 0.0 && value == 0.0 {
        return Some(LossKind::Zero);
    }
    // Rounding may end at the largest value of a type as well.
    let is_beyond = value.abs() == largest && is_beyond::<T>(own);
    is_beyond.then_some(if largest.is_infinite() { LossKind::Infinite } else { LossKind::CutOff })
}

/// Elements that a request would lose, and does not allow to be lost.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub(crate) struct Lossy {
    losses: Vec<Loss>,
}

impl fmt::Display for Lossy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for loss in &self.losses {
            write!(f, "{loss} ({}); ", loss.cure())?;
        }
        f.write_str("--allow-overflow converts them all the same")
    }
}

/// Converts the tensors of one request.
#[derive(Debug)]
pub(crate) struct Converter {
    /// Whether the file's own elements are kept beside converted ones.
    keep_own: bool,
    /// Whether elements may be lost.
    allow_loss: bool,
    losses: Vec<Loss>,
    /// What is worth saying about elements that are not lost.
    notes: Vec<String>,
    all_finite: bool,
}

impl Converter {
    /// A converter that keeps the file's own elements, and allows elements to be lost, or not.
    pub(crate) fn new(keep_own: bool, allow_loss: bool) -> Converter {
        Converter { keep_own, allow_loss, losses: Vec::new(), notes: Vec::new(), all_finite: true }
    }

    /// Adds a finding about the tensors as a whole.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    /// Converts a tensor. Elements that have the type stay as they are: rounding takes some 30 ns each.
    pub(crate) fn convert<T: Stored>(&mut self, input: Input) -> Converted<T> {
        let Input { origin, tensor } = input;
        let shape = tensor.shape;
        match T::from_elements(tensor.elements) {
            Ok(values) => {
                self.count_not_finite(&origin, values.iter().map(|&value| value.number()));
                Converted { shape, values, own: None }
            }
            Err(others) => {
                let own = others.into_f64();
                self.count_not_finite(&origin, own.iter().copied());
                let values: Vec<T> = own.iter().map(|&value| T::from_f64(value)).collect();
                self.count_losses::<T>(&origin, &shape, &own, &values);
                Converted { shape, values, own: self.keep_own.then_some(own) }
            }
        }
    }

    /// Converts a tensor whose elements are divided first, by what `factor` gives for their index.
    pub(crate) fn convert_divided<T: Stored>(&mut self, input: Input, factor: impl Fn(usize) -> f64) -> Converted<T> {
        let Input { origin, tensor } = input;
        let (shape, own) = (tensor.shape, tensor.elements.into_f64());
        self.count_not_finite(&origin, own.iter().copied());
        let divided: Vec<f64> = own.iter().enumerate().map(|(flat, own)| own / factor(flat)).collect();
        let values: Vec<T> = divided.iter().map(|&value| T::from_f64(value)).collect();
        self.count_losses::<T>(&origin, &shape, &divided, &values);
        Converted { shape, values, own: self.keep_own.then_some(own) }
    }

    fn count_losses<T: Stored>(&mut self, origin: &Origin, shape: &[usize], own: &[f64], values: &[T]) {
        for kind in [LossKind::Infinite, LossKind::CutOff, LossKind::Zero] {
            let is_lost = |flat: &usize| lost(own[*flat], values[*flat]) == Some(kind);
            let Some(first) = (0..own.len()).find(is_lost) else { continue };
            let count = (first..own.len()).filter(is_lost).count();
            let loss = Loss {
                origin: origin.clone(),
                dtype: T::DTYPE,
                kind,
                count: [count, own.len()],
                index: indices(first, shape),
                value: own[first],
            };
            let largest = own.iter().filter(|value| value.is_finite()).fold(0f64, |largest, x| largest.max(x.abs()));
            let most = (first..own.len()).filter(is_lost).fold(0f64, |most, flat| most.max(own[flat].abs()));
            if kind == LossKind::Zero && most <= step(largest, T::DTYPE) / 2.0 {
                self.notes.push(loss.to_string());
            } else {
                self.losses.push(loss);
            }
        }
    }

    /// NaN and infinities of a file are no loss. A bias hides keys by infinities below 0.
    fn count_not_finite(&mut self, origin: &Origin, values: impl Iterator<Item = f64>) {
        let (mut nan, mut infinite, mut all) = (0usize, 0usize, 0usize);
        for value in values {
            all += 1;
            if value.is_finite() {
                continue;
            }
            if value.is_nan() {
                nan += 1;
            } else if origin.name != "bias" || value > 0.0 {
                infinite += 1;
            }
        }
        if nan + infinite > 0 {
            self.all_finite = false;
            self.notes.push(format!("{origin}: of {all} elements {nan} are NaN and {infinite} infinite"));
        }
    }

    /// What the conversions come to.
    ///
    /// # Errors
    /// Elements are lost, which the request does not allow.
    pub(crate) fn finish(self) -> Result<Findings, Lossy> {
        let Converter { allow_loss, losses, mut notes, all_finite, .. } = self;
        if !(losses.is_empty() || allow_loss) {
            return Err(Lossy { losses });
        }
        notes.extend(losses.iter().map(Loss::to_string));
        Ok(Findings { notes, all_finite })
    }
}

/// What is worth saying about the tensors of a request.
#[derive(Debug)]
pub(crate) struct Findings {
    /// In words.
    pub(crate) notes: Vec<String>,
    /// Whether no element of a file is NaN or infinite, other than a bias that hides keys.
    pub(crate) all_finite: bool,
}

impl Findings {
    /// Says it on stderr.
    pub(crate) fn print(&self) {
        self.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
}

/// The index in each dimension of an element of a tensor in C order.
pub(crate) fn indices(mut flat: usize, shape: &[usize]) -> Vec<usize> {
    let mut indices = vec![0; shape.len()];
    for (index, &size) in indices.iter_mut().zip(shape).rev() {
        *index = flat % size;
        flat /= size;
    }
    indices
}

#[cfg(test)]
mod tests {
    use ferrotile::F8E4M3;
    use half::{bf16, f16};

    use super::*;
    use crate::files::tensor::{Elements, Tensor};

    fn input(name: &'static str, values: &[f64]) -> Input {
        let tensor = Tensor { shape: vec![1, values.len()], elements: Elements::F64(values.to_vec()) };
        Input { origin: Origin { name, path: "x.npy".into() }, tensor }
    }

    /// What a request says that converts these values.
    fn refused<T: Stored>(name: &'static str, values: &[f64]) -> Option<String> {
        let mut converter = Converter::new(false, false);
        converter.convert::<T>(input(name, values));
        converter.finish().err().map(|error| error.to_string())
    }

    fn notes<T: Stored>(values: &[f64]) -> Vec<String> {
        let mut converter = Converter::new(false, true);
        converter.convert::<T>(input("q", values));
        converter.finish().unwrap().notes
    }

    #[test]
    fn what_leaves_the_range_of_a_type_is_refused() {
        let text = refused::<f16>("q", &[1.0, 65519.0, -65520.0, 1e6]).unwrap();
        let expected = "q (x.npy): 2 of 4 elements become infinite in f16, the first at [0, 2]: -6.552e4 (use --dtype \
                        bf16, or scale them); --allow-overflow converts them all the same";
        assert_eq!(text, expected);
        let text = refused::<F8E4M3>("A", &[464.0, 464.1, f64::NEG_INFINITY]).unwrap();
        assert!(text.contains("2 of 3 elements are beyond its range and are cut off in e4m3, the first at [0, 1]"));
        let text = refused::<bf16>("bias", &[-3.4e38]).unwrap();
        assert!(text.contains("become infinite in bf16") && text.contains("true where a key is visible"), "{text}");
        assert!(refused::<f32>("X", &[1e39]).unwrap().contains("infinite in f32"));
        assert!(refused::<f16>("q", &[1e-9, -1e-8]).unwrap().contains("2 of 2 elements become 0 in f16"));
        assert!(refused::<f32>("X", &[1e-60]).is_some());
    }

    #[test]
    fn what_stays_in_the_range_of_a_type_is_not() {
        assert_eq!(refused::<f16>("q", &[65519.0, -65504.0, 6e-8, 0.1, 0.0]), None);
        assert_eq!(refused::<bf16>("q", &[65519e9, 1e-38, 3.3895e38]), None);
        assert_eq!(refused::<F8E4M3>("A", &[464.0, -448.0, 0.002]), None);
        assert_eq!(refused::<u8>("q", &[449.0, -448.0, 0.0, 1e-9]), None);
        assert!(refused::<u8>("q", &[450.0]).unwrap().contains("give --quantize"));
        // NaN and infinities stay what they are.
        assert_eq!(refused::<f16>("q", &[f64::NAN, f64::INFINITY]), None);
        assert_eq!(refused::<F8E4M3>("A", &[f64::NAN]), None);
    }

    #[test]
    fn elements_that_become_zero_among_larger_ones_are_rounded_as_those() {
        assert_eq!(refused::<f16>("q", &[1.0, 1e-9]), None);
        assert!(notes::<f16>(&[1.0, 1e-9])[0].contains("1 of 2 elements become 0 in f16, the first at [0, 1]: 1e-9"));
        assert_eq!(refused::<F8E4M3>("A", &[0.9, 9e-4]), None);
        assert_eq!(notes::<f16>(&[0.1, 0.0]), [""; 0]);
    }

    #[test]
    fn nan_and_infinities_are_counted() {
        let counted = notes::<f16>(&[f64::NAN, 1.0, f64::NAN, f64::INFINITY]);
        assert_eq!(counted, ["q (x.npy): of 4 elements 2 are NaN and 1 infinite"]);
        let mut converter = Converter::new(false, false);
        converter.convert::<f16>(input("bias", &[f64::NEG_INFINITY, 0.0]));
        let findings = converter.finish().unwrap();
        assert!(findings.all_finite && findings.notes.is_empty());
    }

    #[test]
    fn what_a_type_costs_is_rounding_alone() {
        assert_eq!(in_range::<f16>(1.0 + 1e-9), 1.0);
        assert_eq!(in_range::<f16>(1e6), 1e6);
        assert_eq!(in_range::<f16>(1e-9), 1e-9);
        assert_eq!(in_range::<F8E4M3>(500.0), 500.0);
        assert_eq!(in_range::<F8E4M3>(460.0), 448.0);
        assert!(in_range::<f16>(f64::NAN).is_nan());
    }

    #[test]
    fn own_elements_are_kept_where_they_are_wanted() {
        let mut converter = Converter::new(true, false);
        let converted = converter.convert::<f16>(input("q", &[0.1, 2.0]));
        assert_eq!(converted.own, Some(vec![0.1, 2.0]));
        assert_eq!(converted.into_own(), [0.1, 2.0]);
        let mut same = input("q", &[]);
        same.tensor = Tensor { shape: vec![1], elements: Elements::F16(vec![f16::ONE]) };
        assert_eq!(converter.convert::<f16>(same).own, None);
    }

    #[test]
    fn indices_count_in_c_order() {
        assert_eq!(indices(0, &[2, 3]), [0, 0]);
        assert_eq!(indices(5, &[2, 3]), [1, 2]);
        assert_eq!(indices(0, &[]), [0; 0]);
    }
}
