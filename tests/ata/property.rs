//! Random matrices, numbers of frames and strides.
//!
//! The seed is new in every run unless `FERROTILE_SEED` sets it; a failure names it.

use ferrotile::{Buffer, Error, Gpu, Precision, SymmetricBlockMatrix, TensorMut, TensorRef};
use libtest_mimic::Failed;
use rand::RngExt;
use rand::seq::SliceRandom;
use tests::guard::Guarded;
use tests::inputs::{self, Random};

use crate::Trials;
use crate::case::{Case, Outcome, Placement, Sizes, check, expected, limits, matrix, normal, vectors};

/// Random cases in one trial.
const CASES: u64 = 12;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("random_cases_match_the_reference", random_cases);
    trials.each("random_arrays_are_multiplied", random_arrays);
    trials.each("refuses/strides_that_do_not_fit_a_buffer", strides);
}

/// Calls `body` with a generator for each case; a failure names the seed.
fn for_each_case(body: impl Fn(&mut Random) -> Outcome) -> Outcome {
    let seed = inputs::property_seed();
    println!("{}={seed}", inputs::VARIABLE);
    for index in 0..CASES {
        body(&mut inputs::random(seed.wrapping_add(index))).map_err(|failure| {
            let message = failure.message().unwrap_or("failed").to_owned();
            Failed::from(format!("{}={seed}, case {index}: {message}", inputs::VARIABLE))
        })?;
    }
    Ok(())
}

fn random_cases(gpu: &Gpu, precision: Precision) -> Outcome {
    for_each_case(|random| {
        let (sizes, frames) = (draw_sizes(random), random.random_range(1..=33));
        let matrix = draw_matrix(random, sizes);
        let x = vectors(sizes, frames, || normal(random));
        let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
        let shape = [frames, sizes.channels, sizes.n];
        let [x_place, y_place] = [(); 2].map(|()| draw_place(random, shape));
        let case = Case::new(gpu, &matrix, precision, x)?;
        case.for_each_config(|config| {
            check(&case.run_placed(config, x_place, y_place)?, &expected, &limits).map_err(|failure| {
                format!("{x_place:?}, {y_place:?}: {}", failure.message().unwrap_or("failed")).into()
            })
        })
    })
}

/// Arrays whose dimensions lie in any order in memory, backwards too.
fn random_arrays(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    for_each_case(|random| {
        let (sizes, frames) = (draw_sizes(random), random.random_range(1..=9));
        let matrix = draw_matrix(random, sizes);
        let x = vectors(sizes, frames, || normal(random));
        let (expected, limits) = (expected(&matrix, precision, &x), limits(&matrix, precision, &x));
        let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
        // The same elements, stored as [n, channels, frames], or as [frames, n, channels] with n backwards.
        let mut stored = x.clone().permuted_axes([2, 1, 0]).as_standard_layout().into_owned().permuted_axes([2, 1, 0]);
        if random.random() {
            stored = x.permuted_axes([0, 2, 1]).as_standard_layout().into_owned();
            stored.invert_axis(ndarray::Axis(1));
            stored = stored.as_standard_layout().into_owned();
            stored.invert_axis(ndarray::Axis(1));
            stored = stored.permuted_axes([0, 2, 1]);
        }
        let y = matrix.multiply_array_blocking(stream.as_ref(), stored.view(), &ferrotile::AtaOptions::default())?;
        check(&y, &expected, &limits)
    })
}

fn draw_sizes(random: &mut Random) -> Sizes {
    let n = if random.random() { 16 * random.random_range(1..=12) } else { random.random_range(1..=200) };
    Sizes { n, channels: random.random_range(1..=4), diagonals: random.random_range(1..=n.div_ceil(16)) }
}

/// A matrix of which a random share of the blocks is zeros.
fn draw_matrix(random: &mut Random, sizes: Sizes) -> SymmetricBlockMatrix {
    let mut blocks = matrix(sizes, || normal(random)).blocks().to_owned();
    let occupancy = random.random_range(0.0..1.2);
    for mut block in
        blocks.outer_iter_mut().flat_map(|channel| channel.into_outer_iter_mut().flat_map(|d| d.into_outer_iter_mut()))
    {
        if random.random_range(0.0..1.0) >= occupancy {
            block.fill(0.0);
        }
    }
    SymmetricBlockMatrix::from_blocks(sizes.n, blocks.view()).expect("blocks of zeros are symmetric")
}

/// A tensor without overlap: frames and channels in either order, with random gaps, some of them backwards.
fn draw_place(random: &mut Random, shape: [usize; 3]) -> Placement {
    let mut order = [0, 1];
    order.shuffle(random);
    let gap_step = if random.random() { 4 } else { 1 };
    let mut place = Placement { offset: gap_step * random.random_range(0..3), strides: [0, 0, 1], len: 0 };
    let mut reach = shape[2];
    for dimension in order {
        let stride = reach + gap_step * random.random_range(0..3);
        place.strides[dimension] = stride as i64;
        reach = stride * shape[dimension];
    }
    place.len = place.offset + reach;
    for (dimension, &size) in shape.iter().enumerate().take(2) {
        if random.random_bool(0.3) {
            place.offset += (place.strides[dimension] * (size as i64 - 1)) as usize;
            place.strides[dimension] = -place.strides[dimension];
        }
    }
    place
}

/// Frames that overlap or leave the buffer are refused where the view is made: no product can be asked for.
fn strides(gpu: &Gpu, _: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    for_each_case(|random| {
        let [frames, channels, n] =
            [random.random_range(2..=5), random.random_range(1..=3), random.random_range(2..=50)];
        let (shape, len) = ([frames, channels, n], frames * channels * n);
        let row = n as i64;
        let frame = channels as i64 * row;
        let x = Buffer::<f32>::zeroed(gpu, len)?;
        let mut y = Guarded::<f32>::new(gpu, &stream, len)?;
        let short = random.random_range(0..frame);
        let last = y.buffer().len() - len;
        let refused = [
            TensorMut::strided(y.buffer(), 0, shape, [short, row, 1]).map(drop),
            TensorMut::strided(y.buffer(), last + 1, shape, [frame, row, 1]).map(drop),
            TensorMut::strided(y.buffer(), 0, shape, [frame, row, 2]).map(drop),
            TensorRef::strided(&x, 0, shape, [frame + 1, row, 1]).map(drop),
            TensorRef::strided(&x, 0, shape, [-frame, row, 1]).map(drop),
            TensorRef::contiguous(&x, [frames, channels, n + 1]).map(drop),
        ];
        let kinds = refused.map(|result| match result {
            Err(Error::Overlap { .. }) => "overlap",
            Err(Error::OutOfBounds { .. }) => "bounds",
            Err(Error::LastStride { .. }) => "last stride",
            Err(Error::Length { .. }) => "length",
            _ => "accepted",
        });
        if kinds != ["overlap", "bounds", "last stride", "bounds", "bounds", "length"] {
            return Err(format!("{shape:?}, frame stride {short}: {kinds:?}").into());
        }
        y.check_untouched(&stream)
    })
}
