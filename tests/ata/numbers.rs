//! Real numbers: each element within the error that its precision has.

use ferrotile::{Gpu, Precision, SymmetricBlockMatrix};
use ndarray::Array3;
use rand::RngExt;
use tests::inputs::random;
use tests::is_small;

use crate::Trials;
use crate::case::{Case, Outcome, Sizes, check, check_exact, expected, limits, matrix, normal, sizes, vectors};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("normal_numbers", normal_numbers);
    trials.each("huge_and_tiny_elements", huge_and_tiny);
    trials.each("relative_error_of_positive_numbers", relative_error);
    trials.each("infinity_and_nan_stay_in_their_frame", special);
    trials.each("powers_of_two_over_the_range_of_f32", powers_of_two);
    trials.each("averages_of_the_largest_numbers_are_finite", averages);
    trials.each("one_huge_number_among_tiny_ones", one_huge);
}

fn normal_numbers(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(11);
    for sizes in sizes(gpu) {
        let all = [1, 8, 19];
        for &frames in if is_small(gpu) && sizes.n > 300 { &all[1..2] } else { &all } {
            let matrix = matrix(sizes, || normal(&mut random));
            let x = vectors(sizes, frames, || normal(&mut random));
            let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
            let case = Case::new(gpu, &matrix, precision, x)?;
            case.for_each_config(|config| check(&case.run(config)?, &expected, &limits))?;
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
        case.for_each_config(|config| check(&case.run(config)?, &expected, &limits))?;
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
    let sizes = Sizes { n: if is_small(gpu) { 1040 } else { 2608 }, channels: 1, diagonals: 27 };
    let matrix = matrix(sizes, || random.random_range(0.0..1.0));
    let x = vectors(sizes, 16, || random.random_range(0.0..1.0));
    // What is stored in f32 is the matrix as it was given.
    let expected = expected(&matrix, Precision::F32, &x);
    let case = Case::new(gpu, &matrix, precision, x)?;
    case.for_each_config(|config| {
        let got = case.run(config)?;
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

/// One frame has an infinity, and one a NaN. They show in their frames. Other frames, and rows of these frames out of
/// their reach, are as without them.
fn special(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(14);
    let sizes = Sizes { n: 70, channels: 2, diagonals: 3 };
    let matrix = matrix(sizes, || normal(&mut random));
    let x = vectors(sizes, 11, || normal(&mut random));
    let mut special = x.clone();
    let dense = matrix.to_dense();
    special[[2, 1, 40]] = f32::INFINITY;
    special[[9, 0, 69]] = f32::NAN;
    let (without, with) = (Case::new(gpu, &matrix, precision, x)?, Case::new(gpu, &matrix, precision, special)?);
    with.for_each_config(|config| {
        let (without, with) = (without.run(config)?, with.run(config)?);
        for ((frame, channel, i), &got) in with.indexed_iter() {
            // What is in an ATA tile that has an element in the column of the special number.
            let reaches = |column: usize| {
                (0..70).any(|row| {
                    let tile = |element: usize| element / 32;
                    tile(row) == tile(i)
                        && (32 * tile(column)..).take(32).any(|c| c < 70 && dense[[channel, row, c]] != 0.0)
                })
            };
            let hit = (frame, channel) == (2, 1) && reaches(40) || (frame, channel) == (9, 0) && reaches(69);
            if !hit && got.to_bits() != without[[frame, channel, i]].to_bits() {
                return Err(format!("element {:?} out of reach changed to {got}", (frame, channel, i)).into());
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

/// A power of two times the identity, in channels of different size, and X that is the same power of two everywhere:
/// the product is exact as long as it is a normal number.
fn powers_of_two(gpu: &Gpu, precision: Precision) -> Outcome {
    let n = 40;
    for of_channels in [[0, 0], [-14, 1], [-40, -20], [27, 100], [-100, -99]] {
        let data = Array3::from_shape_fn((2, 1, n), |(channel, ..)| 2f32.powi(of_channels[channel]));
        let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0], data.view())?;
        for exponents in [[-126, -120, -60], [-30, 0, 14], [60, 112, 113], [114, 126, 127]] {
            let x = Array3::from_shape_fn((3, 2, n), |(frame, channel, i)| {
                let exponent: i32 = exponents[frame];
                // The channels of f16 share a range of sums.
                let least = if precision == Precision::F16 { of_channels[0] } else { of_channels[channel] };
                let is_normal = exponent + least >= -126 && exponent + of_channels[channel] <= 127;
                let sign = if i % 3 == 0 { -1.0 } else { 1.0 };
                if is_normal { sign * 2f32.powi(exponent) } else { sign }
            });
            let expected =
                Array3::from_shape_fn(x.dim(), |index| f64::from(x[index]) * f64::from(of_channels[index.1]).exp2());
            let case = Case::new(gpu, &matrix, precision, x)?;
            case.for_each_config(|config| check_exact(&case.run(config)?, &expected))?;
        }
    }
    Ok(())
}

/// Rows of weights that sum up to 1, or to a small power of two, over numbers near the end of the range: neither
/// the sums nor the result leave it.
fn averages(gpu: &Gpu, precision: Precision) -> Outcome {
    for (n, exponent) in [(70, 0), (70, -30), (520, -3)] {
        let weights = [0.5, 0.125, 0.125].map(|weight: f32| weight * 2f32.powi(exponent));
        let data = Array3::from_shape_fn((1, 3, n), |(_, k, _)| weights[k]);
        let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, 1, 33], data.view())?;
        for sign in [1.0, -1.0] {
            let x = Array3::from_elem((2, 1, n), sign * 2f32.powi(127));
            let expected = expected(&matrix, precision, &x);
            let case = Case::new(gpu, &matrix, precision, x)?;
            case.for_each_config(|config| check_exact(&case.run(config)?, &expected))?;
        }
    }
    Ok(())
}

/// A number of 2^100 in each frame, and others from 2^-100 on: each row keeps what its precision has of its own.
fn one_huge(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(15);
    let sizes = Sizes { n: 100, channels: 2, diagonals: 2 };
    let matrix = matrix(sizes, || normal(&mut random));
    let mut x = vectors(sizes, 9, || normal(&mut random) * 2f32.powi(random.random_range(-100..20)));
    for (frame, mut of_frame) in x.outer_iter_mut().enumerate() {
        of_frame[[frame % 2, 11 * frame]] = 2f32.powi(100);
    }
    let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
    let case = Case::new(gpu, &matrix, precision, x)?;
    case.for_each_config(|config| check(&case.run(config)?, &expected, &limits))
}
