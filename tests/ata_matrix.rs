//! The constructors of symmetric block matrices: what they hold, and what they refuse.

use ferrotile::{Error, Precision, SymmetricBlockMatrix};
use ndarray::{Array3, Array4, Array5, s};
use rand::RngExt;
use tests::inputs::{self, Random, random};
use variants::ata::{BLOCK, KIND_PREFIX, LIST_PREFIX};

/// A dense symmetric matrix for each channel whose elements are within `bandwidth` of the diagonal.
fn dense(channels: usize, n: usize, bandwidth: usize) -> Array3<f32> {
    let mut random = random(1);
    let mut dense = Array3::zeros((channels, n, n));
    for channel in 0..channels {
        for (row, column) in (0..n).flat_map(|row| (row..n.min(row + bandwidth + 1)).map(move |column| (row, column))) {
            let element = random.random_range(-9.0..9.0);
            dense[[channel, row, column]] = element;
            dense[[channel, column, row]] = element;
        }
    }
    dense
}

const SIZES: [usize; 9] = [1, 2, 15, 16, 17, 33, 48, 64, 101];

const OFFSETS: [usize; 10] = [0, 1, 15, 16, 17, 31, 32, 33, 63, 100];

#[test]
fn dense_matrices_come_back() {
    for n in SIZES {
        for bandwidth in OFFSETS {
            let dense = dense(2, n, bandwidth);
            let matrix = SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap();
            assert_eq!(matrix.to_dense(), dense, "n {n}, bandwidth {bandwidth}");
            assert_eq!((matrix.channels(), matrix.n(), matrix.block_rows()), (2, n, n.div_ceil(BLOCK)));
            assert_eq!(matrix.occupancy(), 1.0, "the block diagonals reach as far as the elements");
            let again = SymmetricBlockMatrix::from_blocks(n, matrix.blocks()).unwrap();
            assert_eq!(again, matrix);
        }
    }
}

#[test]
fn scalar_diagonals_keep_every_element() {
    for n in SIZES {
        let offsets: Vec<usize> = OFFSETS.into_iter().filter(|&offset| offset < n).collect();
        for largest in 1..=offsets.len() {
            let offsets = &offsets[..largest];
            // What lies above the matrix may be anything.
            let data = Array3::from_shape_fn((2, largest, n), |(channel, k, j)| {
                if j < offsets[k] { f32::NAN } else { (1 + channel + 10 * j + 1000 * k) as f32 }
            });
            let numbers: Vec<i64> = offsets.iter().map(|&offset| offset as i64).collect();
            let matrix = SymmetricBlockMatrix::from_diagonals(n, &numbers, data.view()).unwrap();
            let expected = Array3::from_shape_fn((2, n, n), |(channel, row, column)| {
                let (offset, j) = (row.abs_diff(column), row.max(column));
                offsets.iter().position(|&other| other == offset).map_or(0.0, |k| data[[channel, k, j]])
            });
            assert_eq!(matrix.to_dense(), expected, "n {n}, offsets {offsets:?}");
        }
    }
}

#[test]
fn a_toeplitz_matrix_repeats_its_blocks() {
    let mut blocks =
        Array4::from_shape_fn((2, 2, BLOCK, BLOCK), |(c, k, i, j)| (1 + c + 3 * k + 50 * i + 7 * j) as f32);
    for channel in 0..2 {
        let upper = blocks.slice(s![channel, 0, .., ..]).to_owned();
        blocks.slice_mut(s![channel, 0, .., ..]).assign(&(&upper + &upper.t()));
    }
    for n in [33, 48, 70] {
        let matrix = SymmetricBlockMatrix::from_toeplitz(n, &[0, 2], blocks.view()).unwrap();
        let expected = Array3::from_shape_fn((2, n, n), |(channel, row, column)| {
            let (row, column) = (row.min(column), row.max(column));
            let k = [0, 2].iter().position(|&offset| offset == column / BLOCK - row / BLOCK);
            k.map_or(0.0, |k| blocks[[channel, k, row % BLOCK, column % BLOCK]])
        });
        assert_eq!(matrix.to_dense(), expected, "n {n}");
        assert!(matrix.occupancy() < 1.0 && matrix.occupancy() > 0.0);
    }
}

#[test]
fn rounding_is_within_the_precision_and_done_once() {
    let dense = dense(2, 40, 40);
    let matrix = SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap();
    for (precision, bits) in [
        (Precision::F32, 60),
        (Precision::Tf32, 11),
        (Precision::Tf32x3, 22),
        (Precision::F16, 11),
        (Precision::Bf16, 8),
    ] {
        let rounded = matrix.rounded(precision);
        assert_eq!(rounded.rounded(precision), rounded, "{precision}");
        for (&got, &exact) in rounded.to_dense().iter().zip(&dense) {
            assert!((got - exact).abs() <= exact.abs() * 2f32.powi(-bits), "{precision}: {got} {exact}");
        }
    }
}

#[test]
fn memory_is_that_of_the_pairs() {
    let matrix = SymmetricBlockMatrix::from_dense(dense(1, 64, 0).view(), 0.0).unwrap();
    let bytes = |precision| matrix.footprint_bytes(precision).unwrap();
    // Four pairs of a diagonal block each, and one of zeros; two tile references, the list prefix and both prefixes by
    // kind of one strip, of four words each, two starts, one scale.
    let words = 4 * (2 + LIST_PREFIX + 2 * KIND_PREFIX) + 2 + 1;
    assert_eq!(matrix.pair_classes().stored(), 4);
    assert_eq!(bytes(Precision::F32), 5 * 2048 + 4 * words);
    assert_eq!(bytes(Precision::Tf32), 5 * 1280 + 4 * words);
    assert_eq!(bytes(Precision::F16), 5 * 1024 + 4 * words);
    assert_eq!(bytes(Precision::Tf32x3), 5 * 2560 + 4 * words);
}

fn argument_of<T: std::fmt::Debug>(result: ferrotile::Result<T>) -> &'static str {
    match result {
        Err(Error::Argument { argument, .. }) => argument,
        other => panic!("{other:?}"),
    }
}

#[test]
fn asymmetry_is_found_where_it_is() {
    let mut matrix = dense(2, 40, 40);
    matrix[[1, 33, 4]] += 0.5;
    match SymmetricBlockMatrix::from_dense(matrix.view(), 0.0) {
        Err(Error::Asymmetric { channel: 1, row: 4, column: 33, got, mirrored, .. }) => {
            assert_eq!((got, mirrored), (matrix[[1, 4, 33]], matrix[[1, 33, 4]]));
        }
        other => panic!("{other:?}"),
    }
    assert!(SymmetricBlockMatrix::from_dense(matrix.view(), 0.1).is_ok(), "elements are as large as 9");

    let mut blocks = Array5::zeros((2, 2, 3, BLOCK, BLOCK));
    blocks[[0, 1, 0, 2, 5]] = 1.0;
    assert!(SymmetricBlockMatrix::from_blocks(48, blocks.view()).is_ok(), "other blocks need not be symmetric");
    blocks[[1, 0, 2, 5, 3]] = 1.0;
    let result = SymmetricBlockMatrix::from_blocks(48, blocks.view());
    assert!(matches!(result, Err(Error::Asymmetric { channel: 1, row: 35, column: 37, .. })), "{result:?}");

    let mut block = Array4::zeros((1, 1, BLOCK, BLOCK));
    block[[0, 0, 1, 0]] = 1.0;
    let result = SymmetricBlockMatrix::from_toeplitz(48, &[0], block.view());
    assert!(matches!(result, Err(Error::Asymmetric { row: 0, column: 1, .. })), "{result:?}");
    assert!(SymmetricBlockMatrix::from_toeplitz(48, &[1], block.view()).is_ok());
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let is_shape = |result: ferrotile::Result<SymmetricBlockMatrix>| matches!(result, Err(Error::Shape { .. }));
    assert!(is_shape(SymmetricBlockMatrix::from_dense(Array3::zeros((1, 4, 5)).view(), 0.0)));
    for shape in [(1, 0, 3, 16, 16), (1, 4, 3, 16, 16), (1, 1, 2, 16, 16), (1, 1, 3, 8, 16), (1, 1, 3, 16, 17)] {
        assert!(is_shape(SymmetricBlockMatrix::from_blocks(40, Array5::zeros(shape).view())), "{shape:?}");
    }
    assert!(is_shape(SymmetricBlockMatrix::from_diagonals(40, &[0, 1], Array3::zeros((1, 2, 41)).view())));
    assert!(is_shape(SymmetricBlockMatrix::from_diagonals(40, &[0, 1], Array3::zeros((1, 1, 40)).view())));
    assert!(is_shape(SymmetricBlockMatrix::from_toeplitz(40, &[0, 1], Array4::zeros((1, 1, 16, 16)).view())));
    assert!(is_shape(SymmetricBlockMatrix::from_toeplitz(40, &[0], Array4::zeros((1, 1, 15, 16)).view())));
}

/// A diagonal far from the main one makes the band wider than any memory.
#[test]
fn bands_beyond_memory_are_refused() {
    let n = 1 << 22;
    let too_large = |matrix| matches!(matrix, Err(Error::TooLarge { .. }));
    let data = Array3::ones((1, 2, n));
    assert!(too_large(SymmetricBlockMatrix::from_diagonals(n, &[0, n as i64 - 1], data.view())));
    let blocks = Array4::ones((1, 2, BLOCK, BLOCK));
    assert!(too_large(SymmetricBlockMatrix::from_toeplitz(n, &[0, n / BLOCK - 1], blocks.view())));
}

#[test]
fn numbers_that_do_not_fit_are_refused() {
    let diagonals = |n, offsets: &[i64]| {
        SymmetricBlockMatrix::from_diagonals(n, offsets, Array3::zeros((1, offsets.len(), n)).view())
    };
    assert_eq!(argument_of(diagonals(0, &[])), "n");
    for offsets in [[0, -1], [0, 40], [3, 3], [0, i64::MAX]] {
        assert_eq!(argument_of(diagonals(40, &offsets)), "offset of a diagonal");
    }
    assert!(diagonals(40, &[39, 0]).is_ok() && diagonals(40, &[]).is_ok());
    for offsets in [[0, 3], [1, 1]] {
        let result = SymmetricBlockMatrix::from_toeplitz(40, &offsets, Array4::zeros((1, 2, 16, 16)).view());
        assert_eq!(argument_of(result), "offset of a block diagonal");
    }
    let mut matrix = dense(1, 20, 3);
    for tolerance in [-1.0, f32::NAN] {
        assert_eq!(argument_of(SymmetricBlockMatrix::from_dense(matrix.view(), tolerance)), "tolerance");
    }
    matrix[[0, 7, 7]] = f32::INFINITY;
    assert_eq!(argument_of(SymmetricBlockMatrix::from_dense(matrix.view(), 0.0)), "element of the dense matrix");

    // n is 40: the last block row has 8 rows, and the last block diagonal one block.
    for index in [[0, 0, 2, 8, 8], [0, 1, 1, 0, 8], [0, 1, 2, 0, 0]] {
        let mut blocks = Array5::zeros((1, 2, 3, BLOCK, BLOCK));
        blocks[index] = 1.0;
        assert_eq!(argument_of(SymmetricBlockMatrix::from_blocks(40, blocks.view())), "blocks", "{index:?}");
        blocks[index] = f32::NAN;
        assert_eq!(argument_of(SymmetricBlockMatrix::from_blocks(40, blocks.view())), "element of a block");
    }
}

/// Calls `body` with a generator for each of many cases, and names the seed of one that panics.
fn for_each_case(body: impl Fn(&mut Random) + std::panic::RefUnwindSafe) {
    let seed = inputs::property_seed();
    for index in 0..60 {
        let case = || body(&mut inputs::random(seed.wrapping_add(index)));
        if let Err(panic) = std::panic::catch_unwind(case) {
            eprintln!("{}={seed}, case {index}", inputs::VARIABLE);
            std::panic::resume_unwind(panic);
        }
    }
}

/// A dense matrix with random bandwidth and share of elements other than 0, of numbers from 1 to 9.
fn draw_dense(random: &mut Random) -> Array3<f32> {
    let (channels, n) = (random.random_range(1..=4), random.random_range(1..=130));
    let (bandwidth, occupancy) = (random.random_range(0..n), random.random_range(0.0..1.0));
    let mut dense = Array3::zeros((channels, n, n));
    for channel in 0..channels {
        for (row, column) in (0..n).flat_map(|row| (row..n.min(row + bandwidth + 1)).map(move |column| (row, column))) {
            if random.random_bool(occupancy) {
                let element = f32::from(random.random_range(1..=9u8));
                dense[[channel, row, column]] = element;
                dense[[channel, column, row]] = element;
            }
        }
    }
    dense
}

/// The diagonals of the upper half that have an element other than 0, in random order, and what they hold.
fn diagonals_of(dense: &Array3<f32>, random: &mut Random) -> (Vec<i64>, Array3<f32>) {
    use rand::seq::SliceRandom;

    let (channels, n, _) = dense.dim();
    let element =
        |channel: usize, offset: usize, j: usize| if j < offset { f32::NAN } else { dense[[channel, j - offset, j]] };
    let mut offsets: Vec<usize> = (0..n)
        .filter(|&offset| (0..channels).any(|channel| (offset..n).any(|j| element(channel, offset, j) != 0.0)))
        .collect();
    offsets.shuffle(random);
    let data = Array3::from_shape_fn((channels, offsets.len(), n), |(channel, k, j)| element(channel, offsets[k], j));
    (offsets.into_iter().map(|offset| offset as i64).collect(), data)
}

#[test]
fn all_constructors_agree_on_random_matrices() {
    for_each_case(|random| {
        let dense = draw_dense(random);
        let n = dense.dim().1;
        let matrix = SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap();
        assert_eq!(matrix.to_dense(), dense);
        let (offsets, data) = diagonals_of(&dense, random);
        assert_eq!(SymmetricBlockMatrix::from_diagonals(n, &offsets, data.view()).unwrap().to_dense(), dense);
        assert_eq!(SymmetricBlockMatrix::from_blocks(n, matrix.blocks()).unwrap(), matrix);
        // Small integers are stored exactly in every precision.
        assert!(Precision::ALL.into_iter().all(|precision| matrix.rounded(precision) == matrix));

        let (rows, diagonals) = (matrix.block_rows(), matrix.block_diagonals());
        let has_element = |channel: usize, r: usize, c: usize| {
            let block = s![channel, 16 * r..n.min(16 * r + 16), 16 * c..n.min(16 * c + 16)];
            dense.slice(block).iter().any(|&element| element != 0.0)
        };
        let places: Vec<_> = (0..matrix.channels())
            .flat_map(|channel| (0..diagonals).flat_map(move |d| (0..rows - d).map(move |r| (channel, r, r + d))))
            .collect();
        let present = places.iter().filter(|&&(channel, r, c)| has_element(channel, r, c)).count();
        assert_eq!(matrix.occupancy(), present as f64 / places.len() as f64);
        assert!((diagonals..rows).all(|d| (0..rows - d).all(|r| (0..matrix.channels()).all(|c| !has_element(
            c,
            r,
            r + d
        )))));
        let stored = matrix.pair_classes().stored();
        for precision in Precision::ALL {
            let bytes = matrix.footprint_bytes(precision).unwrap();
            assert!(bytes >= stored * precision.pair_bytes() && (stored == 0) == (present == 0), "{precision}");
        }
    });
}

#[test]
fn random_toeplitz_blocks_agree_with_their_dense_matrix() {
    for_each_case(|random| {
        let n: usize = random.random_range(1..=130);
        let (channels, rows) = (random.random_range(1..=3), n.div_ceil(BLOCK));
        let offsets: Vec<usize> = (0..rows).filter(|_| random.random()).collect();
        let mut blocks = Array4::from_shape_simple_fn((channels, offsets.len(), BLOCK, BLOCK), || {
            f32::from(random.random_range(1..=9u8))
        });
        if offsets.first() == Some(&0) {
            for (channel, row, column) in (0..channels).flat_map(|c| (0..256).map(move |i| (c, i / 16, i % 16))) {
                blocks[[channel, 0, row, column]] = blocks[[channel, 0, column, row]];
            }
        }
        let expected = Array3::from_shape_fn((channels, n, n), |(channel, row, column)| {
            let (row, column) = (row.min(column), row.max(column));
            let k = offsets.iter().position(|&offset| offset == column / BLOCK - row / BLOCK);
            k.map_or(0.0, |k| blocks[[channel, k, row % BLOCK, column % BLOCK]])
        });
        let matrix = SymmetricBlockMatrix::from_toeplitz(n, &offsets, blocks.view()).unwrap();
        assert_eq!(matrix.to_dense(), expected);
        assert_eq!(SymmetricBlockMatrix::from_dense(expected.view(), 0.0).unwrap().to_dense(), expected);
    });
}

#[test]
fn random_mistakes_are_typed_errors() {
    for_each_case(|random| {
        let dense = draw_dense(random);
        let (channels, n, _) = dense.dim();
        let channel = random.random_range(0..channels);
        let (row, column) = (random.random_range(0..n), random.random_range(0..n));
        let mut wrong = dense.clone();
        wrong[[channel, row, column]] = f32::NAN;
        let result = SymmetricBlockMatrix::from_dense(wrong.view(), 0.0);
        assert_eq!(argument_of(result), "element of the dense matrix");
        if row != column {
            wrong[[channel, row, column]] = dense[[channel, row, column]] + 1.0;
            let at = (row.min(column), row.max(column));
            match SymmetricBlockMatrix::from_dense(wrong.view(), 0.0) {
                Err(Error::Asymmetric { channel: found, row, column, .. }) => {
                    assert_eq!((found, row, column), (channel, at.0, at.1))
                }
                other => panic!("{other:?}"),
            }
        }
        let ragged = dense.slice(s![.., .., ..n - 1]);
        assert!(matches!(SymmetricBlockMatrix::from_dense(ragged, 0.0), Err(Error::Shape { .. })));

        let (mut offsets, data) = diagonals_of(&dense, random);
        let short = data.slice(s![.., .., ..n - 1]);
        assert!(matches!(SymmetricBlockMatrix::from_diagonals(n, &offsets, short), Err(Error::Shape { .. })));
        let longer = [&offsets[..], &[0]].concat();
        assert!(matches!(SymmetricBlockMatrix::from_diagonals(n, &longer, data.view()), Err(Error::Shape { .. })));
        if !offsets.is_empty() {
            let index = random.random_range(0..offsets.len());
            offsets[index] =
                if random.random() { -random.random_range(1..=200) } else { n as i64 + random.random_range(0..=200) };
            let result = SymmetricBlockMatrix::from_diagonals(n, &offsets, data.view());
            assert_eq!(argument_of(result), "offset of a diagonal");
        }

        let mut blocks = SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap().blocks().to_owned();
        assert!(matches!(SymmetricBlockMatrix::from_blocks(n + 16, blocks.view()), Err(Error::Shape { .. })));
        if row / BLOCK == column / BLOCK && row != column {
            blocks[[channel, 0, row / BLOCK, row % BLOCK, column % BLOCK]] += 1.0;
            let result = SymmetricBlockMatrix::from_blocks(n, blocks.view());
            assert!(matches!(result, Err(Error::Asymmetric { .. })), "{result:?}");
        }
    });
}
