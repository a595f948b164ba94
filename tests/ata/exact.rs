//! Inputs whose product is exact whatever the order of sums: any difference is a wrong index, use or factor.

use ferrotile::{Gpu, Precision, SymmetricBlockMatrix};
use ndarray::{Array3, Array4};
use rand::RngExt;
use tests::inputs::random;
use tests::is_small;

use crate::Trials;
use crate::case::{Case, Outcome, Sizes, check_exact, expected, frames, integer, matrix, sizes, vectors};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("small_integers_are_exact", small_integers);
    trials.each("the_identity_gives_x", identity);
    trials.each("unit_vectors_give_columns", unit_vectors);
    trials.each("scalar_diagonals_of_every_offset", offsets);
    trials.each("sparse_blocks_are_skipped_and_kept", sparse);
    trials.each("a_block_toeplitz_matrix", toeplitz);
    trials.each("an_empty_matrix_gives_zero", empty);
    trials.each("a_large_matrix", large);
}

fn compare(gpu: &Gpu, matrix: &SymmetricBlockMatrix, precision: Precision, x: Array3<f32>) -> Outcome {
    let expected = expected(matrix, precision, &x);
    let case = Case::new(gpu, matrix, precision, x)?;
    case.for_each_config(|config| check_exact(&case.run(config)?, &expected))
}

/// Products up to 16 times 16 and sums of at most 900 of them have 18 bits.
fn small_integers(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(1);
    for sizes in sizes(gpu) {
        for &frames in frames(gpu, sizes) {
            let matrix = matrix(sizes, || integer(&mut random, 16));
            let x = vectors(sizes, frames, || integer(&mut random, 16));
            compare(gpu, &matrix, precision, x)?;
        }
    }
    Ok(())
}

/// X of 8 significant bits comes back in every precision: for f16 where the elements of a frame are within 2^22 of each
/// other, so that none loses bits beside a larger one.
fn identity(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(2);
    let exponents = if precision == Precision::F16 { -7..7 } else { -20..20 };
    for n in [1, 16, 40, 48, 77, if is_small(gpu) { 496 } else { 2608 }] {
        let ones = Array3::ones((2, 1, n));
        let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0], ones.view())?;
        let sizes = Sizes { n, channels: 2, diagonals: 1 };
        for frames in [1, 8, 11] {
            let x = vectors(sizes, frames, || {
                integer(&mut random, 255) * 2f32.powi(random.random_range(exponents.clone()))
            });
            let case = Case::new(gpu, &matrix, precision, x.clone())?;
            case.for_each_config(|config| check_exact(&case.run(config)?, &x.mapv(f64::from)))?;
        }
    }
    Ok(())
}

/// Every unit vector once, as a frame of its own, in channels that each have another one.
fn unit_vectors(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(3);
    for (n, channels, diagonals) in [(1, 1, 1), (16, 1, 1), (48, 3, 2), (70, 2, 5), (131, 1, 4)] {
        let sizes = Sizes { n, channels, diagonals };
        let matrix = matrix(sizes, || random.random_range(-3.0..3.0));
        let unit = |frame: usize, channel: usize| (frame + 7 * channel) % n;
        let x = Array3::from_shape_fn(
            (n, channels, n),
            |(frame, channel, i)| {
                if i == unit(frame, channel) { 1.0 } else { 0.0 }
            },
        );
        let dense = matrix.rounded(precision).to_dense();
        let columns = Array3::from_shape_fn((n, channels, n), |(frame, channel, i)| {
            f64::from(dense[[channel, i, unit(frame, channel)]])
        });
        let case = Case::new(gpu, &matrix, precision, x)?;
        case.for_each_config(|config| check_exact(&case.run(config)?, &columns))?;
    }
    Ok(())
}

/// One diagonal at a time beside the main one, so that a lost element shows.
fn offsets(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(4);
    for n in [34, 48, 100] {
        for offset in [1, 15, 16, 17, 31, 32, 33, 47, 99].into_iter().filter(|&offset| offset < n) {
            let data = Array3::from_shape_simple_fn((2, 2, n), || integer(&mut random, 8));
            let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, offset as i64], data.view())?;
            let x = vectors(Sizes { n, channels: 2, diagonals: 1 }, 9, || integer(&mut random, 8));
            let mut y = Array3::<f64>::zeros(x.dim());
            for ((frame, channel, j), _) in x.indexed_iter() {
                let mut add = |row: usize, column: usize, element: f32| {
                    y[[frame, channel, row]] += f64::from(element) * f64::from(x[[frame, channel, column]]);
                };
                add(j, j, data[[channel, 0, j]]);
                if j >= offset {
                    add(j - offset, j, data[[channel, 1, j]]);
                    add(j, j - offset, data[[channel, 1, j]]);
                }
            }
            let case = Case::new(gpu, &matrix, precision, x)?;
            case.for_each_config(|config| check_exact(&case.run(config)?, &y))?;
        }
    }
    Ok(())
}

/// Bands of which most blocks are zeros: pairs of every class, pair rows without uses.
fn sparse(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(5);
    for percent in [3, 20, 60] {
        for (n, channels, diagonals) in [(48, 2, 3), (336, 3, 9), (529, 1, 34)] {
            let sizes = Sizes { n, channels, diagonals };
            let full = matrix(sizes, || integer(&mut random, 8));
            let mut blocks = full.blocks().to_owned();
            for mut channel in blocks.outer_iter_mut() {
                for mut diagonal in channel.outer_iter_mut() {
                    for mut block in diagonal.outer_iter_mut() {
                        if random.random_range(0..100) >= percent {
                            block.fill(0.0);
                        }
                    }
                }
            }
            let matrix = SymmetricBlockMatrix::from_blocks(n, blocks.view())?;
            compare(gpu, &matrix, precision, vectors(sizes, 9, || integer(&mut random, 8)))?;
        }
    }
    Ok(())
}

fn toeplitz(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(6);
    for n in [33, 48, 170] {
        let mut blocks = Array4::from_shape_simple_fn((2, 3, 16, 16), || integer(&mut random, 8));
        for channel in 0..2 {
            for (row, column) in (0..16).flat_map(|row| (0..row).map(move |column| (row, column))) {
                blocks[[channel, 1, row, column]] = blocks[[channel, 1, column, row]];
            }
        }
        let matrix = SymmetricBlockMatrix::from_toeplitz(n, &[2, 0, 1], blocks.view())?;
        let x = vectors(Sizes { n, channels: 2, diagonals: 3 }, 5, || integer(&mut random, 8));
        compare(gpu, &matrix, precision, x)?;
    }
    Ok(())
}

fn empty(gpu: &Gpu, precision: Precision) -> Outcome {
    let matrix = SymmetricBlockMatrix::from_diagonals(77, &[0, 40], Array3::zeros((2, 2, 77)).view())?;
    let x = vectors(Sizes { n: 77, channels: 2, diagonals: 1 }, 3, || 1.0);
    let zeros = Array3::zeros(x.dim());
    let case = Case::new(gpu, &matrix, precision, x)?;
    case.for_each_config(|config| check_exact(&case.run(config)?, &zeros))
}

/// The size that the speed is measured at, and one with an odd number of block rows; where trials are small a shorter
/// one of one channel, with an odd number too.
fn large(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(7);
    let all = [(2608, 3), (2624, 3)];
    for &(n, channels) in if is_small(gpu) { &[(1040, 1)][..] } else { &all } {
        let sizes = Sizes { n, channels, diagonals: 27 };
        let matrix = matrix(sizes, || integer(&mut random, 16));
        compare(gpu, &matrix, precision, vectors(sizes, 8, || integer(&mut random, 16)))?;
    }
    Ok(())
}
