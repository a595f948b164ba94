//! Results that must be the same, bit by bit: in every run, wherever the tensors lie, whatever the other frames.

use ferrotile::{AtaOptions, AtaPlan, Buffer, Gpu, Precision, TensorMut, TensorRef, reference};
use ndarray::{Array3, s};
use tests::catalogue::ata_configs;
use tests::guard::Guarded;
use tests::inputs::random;
use tests::is_small;

use crate::Trials;
use crate::case::{Case, Outcome, Placement, Sizes, check_exact, integer, matrix, normal, vectors};

/// Runs of one kernel on one input; the emulator, which has one order of everything, makes fewer.
const REPEATS: usize = 100;

/// Products each of the result of the one before.
const CHAINED: usize = 40;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("repeated_runs_are_the_same", repeated_runs);
    trials.each("overlapping_products_wait_for_each_other", chained);
    trials.each("placement_does_not_matter", placed);
    trials.each("strides_never_taken_do_not_matter", single);
    trials.each("other_frames_do_not_matter", other_frames);
    trials.each("a_captured_graph_and_the_library_s_choice", graph);
}

fn check_same(got: &Array3<f32>, expected: &Array3<f32>) -> Outcome {
    match got.indexed_iter().zip(expected).find(|((_, got), expected)| got.to_bits() != expected.to_bits()) {
        None => Ok(()),
        Some(((index, got), expected)) => Err(format!("element {index:?}: {got:e} and {expected:e}").into()),
    }
}

fn repeated_runs(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(21);
    let sizes = Sizes { n: 515, channels: 3, diagonals: 9 };
    let matrix = matrix(sizes, || normal(&mut random));
    let case = Case::new(gpu, &matrix, precision, vectors(sizes, 19, || normal(&mut random)))?;
    case.for_each_config(|config| {
        let first = case.run(config)?;
        let repeats = if is_small(gpu) { 3 } else { REPEATS };
        (1..repeats).try_for_each(|_| check_same(&case.run(config)?, &first))
    })
}

/// Products start while the product before still writes what they read, and still reads what they overwrite. They give
/// what isolated products give.
fn chained(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(24);
    let sizes = Sizes { n: 515, channels: 3, diagonals: 9 };
    // Small enough that nothing overflows in 40 products.
    let matrix = matrix(sizes, || normal(&mut random) / 16.0);
    let stream = gpu.new_stream()?;
    let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
    for config in ata_configs(precision) {
        let frames = config.frames + 1;
        let (shape, x) = ([frames, 3, 515], vectors(sizes, frames, || normal(&mut random)));
        let x = x.as_slice().expect("a new array is contiguous");
        let chain = |isolated: bool| -> ferrotile::Result<Vec<f32>> {
            let options = AtaOptions { kernel: Some(config.name.to_owned()), isolated, ..AtaOptions::default() };
            let plan = AtaPlan::new(&matrix, frames, &options)?;
            let mut buffers = [Buffer::upload_blocking(&stream, x)?, Buffer::<f32>::zeroed(gpu, x.len())?];
            for _ in 0..if is_small(gpu) { 2 } else { CHAINED } {
                let [from, to] = &mut buffers;
                plan.run(stream.as_ref(), TensorRef::contiguous(from, shape)?, TensorMut::contiguous(to, shape)?)?;
                buffers.swap(0, 1);
            }
            buffers[0].download_blocking(&stream)
        };
        let (overlapping, isolated) = (chain(false)?, chain(true)?);
        if overlapping.iter().any(|element| !element.is_finite()) {
            return Err(format!("{config}: a result is not finite").into());
        }
        if overlapping.iter().zip(&isolated).any(|(one, other)| one.to_bits() != other.to_bits()) {
            return Err(format!("{config}: overlapping products differ from isolated ones").into());
        }
    }
    Ok(())
}

/// Frames far apart, channels outermost, rows that start anywhere, frames in reverse.
fn placed(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(22);
    for n in [45, 64] {
        let sizes = Sizes { n, channels: 3, diagonals: 2 };
        let (frames, channels) = (10, 3);
        let matrix = matrix(sizes, || normal(&mut random));
        let case = Case::new(gpu, &matrix, precision, vectors(sizes, frames, || normal(&mut random)))?;
        let contiguous = Placement::contiguous([frames, channels, n]);
        let (row, frame) = (n as i64, (channels * n) as i64);
        let places = [
            Placement { offset: 1, len: contiguous.len + 1, ..contiguous },
            Placement { offset: 4, len: contiguous.len + 4, ..contiguous },
            Placement { strides: [row, frames as i64 * row, 1], ..contiguous },
            Placement { strides: [3 * (row + 5) + 1, row + 5, 1], len: frames * (3 * (n + 5) + 1), offset: 0 },
            Placement { strides: [3 * (row + 16), row + 16, 1], len: frames * 3 * (n + 16), offset: 0 },
            Placement { strides: [-frame, row, 1], offset: (frames - 1) * channels * n, ..contiguous },
        ];
        case.for_each_config(|config| {
            let expected = case.run(config)?;
            for place in places {
                check_same(&case.run_placed(config, place, contiguous)?, &expected)?;
                check_same(&case.run_placed(config, contiguous, place)?, &expected)?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// The strides of one frame and one channel, which no element is found by.
fn single(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(25);
    let sizes = Sizes { n: 45, channels: 1, diagonals: 2 };
    let matrix = matrix(sizes, || normal(&mut random));
    let case = Case::new(gpu, &matrix, precision, vectors(sizes, 1, || normal(&mut random)))?;
    let contiguous = Placement::contiguous([1, 1, 45]);
    case.for_each_config(|config| {
        let expected = case.run(config)?;
        [[0, 0], [3, 5], [-1, -1], [i64::MAX, i64::MIN]].into_iter().try_for_each(|[frame, channel]| {
            let place = Placement { strides: [frame, channel, 1], ..contiguous };
            check_same(&case.run_placed(config, place, place)?, &expected)
        })
    })
}

/// A frame alone gives what it gives among others.
fn other_frames(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(23);
    let sizes = Sizes { n: 131, channels: 2, diagonals: 4 };
    let matrix = matrix(sizes, || normal(&mut random));
    let x = vectors(sizes, 18, || normal(&mut random));
    let together = Case::new(gpu, &matrix, precision, x.clone())?;
    for frame in [0, 7, 8, 17] {
        let alone = Case::new(gpu, &matrix, precision, x.slice(s![frame..=frame, .., ..]).to_owned())?;
        alone.for_each_config(|config| {
            check_same(&alone.run(config)?, &together.run(config)?.slice(s![frame..=frame, .., ..]).to_owned())
        })?;
    }
    Ok(())
}

/// A graph of a plan, replayed after X has changed, and the call that chooses a kernel itself.
fn graph(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(24);
    let sizes = Sizes { n: 100, channels: 2, diagonals: 3 };
    let host = matrix(sizes, || integer(&mut random, 8));
    let stream = gpu.new_stream()?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let dense = host.to_dense().mapv(f64::from);
    for frames in [1, 8, 16, 33] {
        let shape = [frames, 2, 100];
        let mut x = Buffer::<f32>::zeroed(gpu, frames * 200)?;
        let mut y = Guarded::<f32>::new(gpu, &stream, x.len())?;
        let (offset, strides) = (y.offset(), Placement::contiguous(shape).strides);
        let plan = AtaPlan::new(&matrix, frames, &AtaOptions::default())?;
        let graph = {
            let y = y.buffer();
            stream.capture(|stream| {
                plan.run(stream, TensorRef::contiguous(&x, shape)?, TensorMut::strided(y, offset, shape, strides)?)
            })?
        };
        for _ in 0..3 {
            let values = vectors(sizes, frames, || integer(&mut random, 8));
            x.overwrite_blocking(&stream, values.as_slice().expect("a new array is contiguous"))?;
            y.buffer().fill_bytes(&stream, 0xFF)?;
            // SAFETY: plan, matrix and tensors outlive the wait of `read`.
            unsafe { graph.launch(stream.as_ref())? };
            let expected = reference::ata(dense.view(), values.mapv(f64::from).view());
            let result = |y: &Guarded<f32>| -> Result<Array3<f32>, libtest_mimic::Failed> {
                Ok(Array3::from_shape_vec(shape, y.read(&stream)?)?)
            };
            check_exact(&result(&y)?, &expected)?;
            y.buffer().fill_bytes(&stream, 0xFF)?;
            let out = TensorMut::strided(y.buffer(), offset, shape, strides)?;
            matrix.multiply(stream.as_ref(), TensorRef::contiguous(&x, shape)?, out)?;
            check_exact(&result(&y)?, &expected)?;
        }
    }
    Ok(())
}
