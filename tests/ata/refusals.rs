//! Calls that cannot be served: a typed error before anything is written.

use ferrotile::{AtaOptions, AtaPlan, Buffer, Error, Gpu, Precision, TensorMut, TensorRef};
use tests::catalogue::ata_configs;
use tests::expect_error;
use tests::guard::Guarded;
use tests::inputs::random;

use crate::Trials;
use crate::case::{Outcome, Sizes, matrix, normal};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("refuses/tensors_that_do_not_fit", shapes);
    trials.each("refuses/unknown_kernels", unknown_kernels);
    trials.each("no_frames_are_no_work", no_frames);
}

fn shapes(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let matrix = matrix(Sizes { n: 40, channels: 2, diagonals: 2 }, || normal(&mut random(31)));
    let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
    let right = [3, 2, 40];
    let wrong =
        [("X", [3, 2, 48], right), ("X", [3, 1, 40], right), ("Y", right, [4, 2, 40]), ("Y", right, [3, 2, 39])];
    for (named, x_shape, y_shape) in wrong {
        let x = Buffer::<f32>::zeroed(gpu, x_shape.iter().product())?;
        let mut y = Guarded::<f32>::new(gpu, &stream, y_shape.iter().product())?;
        let (offset, [_, channels, n]) = (y.offset(), y_shape.map(|size| size as i64));
        let out = TensorMut::strided(y.buffer(), offset, y_shape, [channels * n, n, 1])?;
        let result = matrix.multiply(stream.as_ref(), TensorRef::contiguous(&x, x_shape)?, out);
        expect_error(result, |error| matches!(error, Error::Shape { tensor, .. } if *tensor == named))?;
        y.check_untouched(&stream)?;
    }
    // A plan for another number of frames.
    let x = Buffer::<f32>::zeroed(gpu, 240)?;
    let mut y = Guarded::<f32>::new(gpu, &stream, 240)?;
    let offset = y.offset();
    let result = AtaPlan::new(&matrix, 8, &AtaOptions::default())?.run(
        stream.as_ref(),
        TensorRef::contiguous(&x, right)?,
        TensorMut::strided(y.buffer(), offset, right, [80, 40, 1])?,
    );
    expect_error(result, |error| matches!(error, Error::Shape { tensor: "X", .. }))?;
    y.check_untouched(&stream)
}

fn unknown_kernels(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let matrix = matrix(Sizes { n: 40, channels: 1, diagonals: 1 }, || normal(&mut random(32)));
    let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
    let others = Precision::ALL.into_iter().filter(|&other| other != precision).flat_map(ata_configs);
    for name in others.map(|config| config.name).chain(["fastest"]) {
        let options = AtaOptions { kernel: Some(name.to_owned()), ..AtaOptions::default() };
        expect_error(
            AtaPlan::new(&matrix, 8, &options),
            |error| matches!(error, Error::UnknownKernel { name: got, known, .. } if got == name && !known.is_empty()),
        )?;
    }
    // More frames than a grid has blocks.
    expect_error(AtaPlan::new(&matrix, usize::MAX / 2, &AtaOptions::default()), |error| {
        matches!(error, Error::Argument { .. })
    })
}

fn no_frames(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let matrix = matrix(Sizes { n: 40, channels: 2, diagonals: 2 }, || normal(&mut random(33)));
    let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
    let x = Buffer::<f32>::zeroed(gpu, 0)?;
    let mut y = Guarded::<f32>::new(gpu, &stream, 0)?;
    let offset = y.offset();
    let out = TensorMut::strided(y.buffer(), offset, [0, 2, 40], [80, 40, 1])?;
    matrix.multiply(stream.as_ref(), TensorRef::contiguous(&x, [0, 2, 40])?, out)?;
    y.check_untouched(&stream)
}
