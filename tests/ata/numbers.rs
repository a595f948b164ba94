//! Real numbers: each element within the error that its precision has.

use ferrotile::{Gpu, Precision};
use rand::RngExt;
use tests::inputs::random;

use crate::Trials;
use crate::case::{Case, Outcome, Sizes, check, expected, limits, matrix, normal, sizes, vectors};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("normal_numbers", normal_numbers);
    trials.each("huge_and_tiny_elements", huge_and_tiny);
    trials.each("relative_error_of_positive_numbers", relative_error);
    trials.each("infinity_and_nan_stay_in_their_frame", special);
}

fn normal_numbers(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(11);
    for sizes in sizes() {
        for frames in [1, 8, 19] {
            let matrix = matrix(sizes, || normal(&mut random));
            let x = vectors(sizes, frames, || normal(&mut random));
            let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
            let case = Case::new(gpu, &matrix, precision, x)?;
            case.for_each_row(|row| check(&case.run(row)?, &expected, &limits))?;
        }
    }
    Ok(())
}

/// Elements from those of A^T A of 8-bit images down to 1e-6 in one matrix, and X beyond the range of f16.
fn huge_and_tiny(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(12);
    for (n, channels, diagonals) in [(48, 1, 3), (200, 3, 5)] {
        let sizes = Sizes { n, channels, diagonals };
        let matrix = matrix(sizes, || [2.7e8, -1e-6, 3.0, 1e3, 0.0][random.random_range(0..5)] * normal(&mut random));
        let x = vectors(sizes, 9, || [1e9, 1e-9, 1.0][random.random_range(0..3)] * normal(&mut random));
        let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
        let case = Case::new(gpu, &matrix, precision, x)?;
        case.for_each_row(|row| check(&case.run(row)?, &expected, &limits))?;
    }
    Ok(())
}

/// The error against the matrix as it was given, rounding of A included, where no sum cancels.
fn relative_error(gpu: &Gpu, precision: Precision) -> Outcome {
    let (worst, mean) = match precision {
        Precision::F32 | Precision::Tf32x3 => (3e-6, 1e-6),
        Precision::Tf32 | Precision::F16 => (1e-3, 3e-4),
        Precision::Bf16 => (5e-3, 1e-3),
    };
    let mut random = random(13);
    let sizes = Sizes { n: 2608, channels: 1, diagonals: 27 };
    let matrix = matrix(sizes, || random.random_range(0.0..1.0));
    let x = vectors(sizes, 16, || random.random_range(0.0..1.0));
    // What is stored in f32 is the matrix as it was given.
    let expected = expected(&matrix, Precision::F32, &x);
    let case = Case::new(gpu, &matrix, precision, x)?;
    case.for_each_row(|row| {
        let got = case.run(row)?;
        let errors: Vec<f64> =
            got.iter().zip(&expected).map(|(&got, expected)| ((f64::from(got) - expected) / expected).abs()).collect();
        let (largest, sum) =
            errors.iter().fold((0f64, 0f64), |(largest, sum), &error| (largest.max(error), sum + error));
        let average = sum / errors.len() as f64;
        // A NaN is not within the limits either.
        if largest <= worst && average <= mean && !average.is_nan() {
            return Ok(());
        }
        Err(format!("relative error {largest:e}, {average:e} on average; allowed {worst:e} and {mean:e}").into())
    })
}

/// A frame with an infinity and one with a NaN: they show in it, and the frames beside them are as without.
fn special(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(14);
    let sizes = Sizes { n: 70, channels: 2, diagonals: 3 };
    let matrix = matrix(sizes, || normal(&mut random));
    let x = vectors(sizes, 11, || normal(&mut random));
    let mut special = x.clone();
    special[[2, 1, 40]] = f32::INFINITY;
    special[[9, 0, 69]] = f32::NAN;
    let (without, with) = (Case::new(gpu, &matrix, precision, x)?, Case::new(gpu, &matrix, precision, special)?);
    with.for_each_row(|row| {
        let (without, with) = (without.run(row)?, with.run(row)?);
        for ((frame, channel, i), &got) in with.indexed_iter() {
            let hit = (frame, channel) == (2, 1) || (frame, channel) == (9, 0);
            if !hit && got.to_bits() != without[[frame, channel, i]].to_bits() {
                return Err(format!("element {:?} of another frame changed to {got}", (frame, channel, i)).into());
            }
        }
        for index in [[2, 1, 40], [9, 0, 69]] {
            if with[index].is_finite() {
                return Err(format!("element {index:?} is {}", with[index]).into());
            }
        }
        Ok(())
    })
}
