//! Conjugate gradient: against the same method in f64, its stopping, its errors, and bits that are the same in every
//! run.

use ferrotile::{
    BreakdownCause, Buffer, CgOptions, CgPlan, CgReport, DeviceBlockMatrix, Error, Gpu, Precision, Stream,
    SymmetricBlockMatrix, TensorMut, TensorRef, reference,
};
use layout::ata::BLOCK;
use layout::cg::{CgStage, GROUP, of_stage};
use libtest_mimic::Failed;
use ndarray::{Array3, Axis, s};
use rand::RngExt;
use tests::guard::Guarded;
use tests::inputs::{Random, random};

use crate::Trials;
use crate::case::{Outcome, Place, Sizes, limits, matrix, normal, vectors};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("solver/agrees_with_the_method_in_f64", agrees);
    trials.each("solver/more_elements_than_threads_hold", large);
    trials.each("solver/every_system_stops_by_itself", stopping);
    trials.each("solver/a_matrix_that_is_not_positive_definite_is_named", indefinite);
    trials.each("solver/nan_and_infinity_are_named", not_finite);
    trials.each("solver/the_same_bits_however_it_is_run", same_bits);
    trials.each("solver/starts_at_the_guess", guess);
    trials.each("solver/refuses_tensors_that_do_not_fit", shapes);
    trials.each("solver/no_frames_are_no_work", no_frames);
}

/// A matrix whose diagonal outweighs the rest of each row, by as little as `share` of it.
fn positive_definite(sizes: Sizes, random: &mut Random, share: f32) -> SymmetricBlockMatrix {
    let mut dense = matrix(sizes, || normal(random)).to_dense();
    for mut of_channel in dense.outer_iter_mut() {
        for i in 0..sizes.n {
            let others: f32 = (0..sizes.n).filter(|&j| j != i).map(|j| of_channel[[i, j]].abs()).sum();
            of_channel[[i, i]] = (1.0 + share) * others + 1.0;
        }
    }
    SymmetricBlockMatrix::from_dense(dense.view(), 0.0).expect("the mirrored elements stay equal")
}

/// Solves into a guarded x; on an error nothing of it may have been written.
fn solve(
    gpu: &Gpu,
    stream: &Stream,
    matrix: &DeviceBlockMatrix,
    b: &Array3<f32>,
    guess: Option<&Array3<f32>>,
    options: &CgOptions,
) -> Result<ferrotile::Result<(Array3<f32>, CgReport)>, Failed> {
    let shape = <[usize; 3]>::from(b.dim());
    let mut plan = CgPlan::new(matrix, shape[0], options)?;
    let device_b = Buffer::upload_array_blocking(stream, b.view())?;
    let device_guess = guess.map(|guess| Buffer::upload_array_blocking(stream, guess.view())).transpose()?;
    let guess = device_guess.as_ref().map(|guess| TensorRef::contiguous(guess, shape)).transpose()?;
    let mut x = Guarded::<f32>::new(gpu, stream, b.len())?;
    let (offset, strides) = (x.offset(), Place::contiguous(shape).strides);
    let out = TensorMut::strided(x.buffer(), offset, shape, strides)?;
    match plan.solve_blocking(stream.as_ref(), TensorRef::contiguous(&device_b, shape)?, guess, out) {
        Ok(report) => Ok(Ok((Array3::from_shape_vec(shape, x.read(stream)?)?, report))),
        Err(error) => {
            x.check_untouched(stream)?;
            Ok(Err(error))
        }
    }
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(message().into()) }
}

fn norm<'a>(elements: impl IntoIterator<Item = &'a f64>) -> f64 {
    elements.into_iter().map(|element| element * element).sum::<f64>().sqrt()
}

/// The residual in f64 is at most the tolerance and the error of the products, the report's as far from it as one
/// product, and the iterations are those of the method in f64.
fn agrees(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(41);
    let stream = gpu.new_stream()?;
    for (n, channels, diagonals, frames) in
        [(1, 1, 1, 1), (17, 2, 2, 3), (48, 3, 3, 8), (100, 1, 4, 9), (132, 2, 3, 17)]
    {
        let sizes = Sizes { n, channels, diagonals };
        let host = positive_definite(sizes, &mut random, 0.1);
        let matrix = host.upload_blocking(stream.as_ref(), precision)?;
        let b = vectors(sizes, frames, || 100.0 * normal(&mut random));
        let options = CgOptions { tolerance: 1e-4, ..CgOptions::default() };
        let (x, report) = solve(gpu, &stream, &matrix, &b, None, &options)??;
        let case = || format!("n {n}, {channels} channels, {frames} frames");
        ensure(report.all_converged(), || format!("{}: {report:?}", case()))?;
        let dense = host.rounded(precision).to_dense().mapv(f64::from);
        let wide = b.mapv(f64::from);
        let residual = &wide - &reference::ata(dense.view(), x.mapv(f64::from).view());
        let of_product = limits(&host, precision, &x);
        let (_, iterations) = reference::cg(dense.view(), wide.view(), options.tolerance, options.max_iterations);
        for ((frame, channel), system) in report.systems.indexed_iter() {
            let [residual, of_b, limit] =
                [&residual, &wide, &of_product].map(|array| norm(array.slice(s![frame, channel, ..])));
            // The products of all iterations err, though ever less; those of the first few as much as that with x.
            let most = options.tolerance * of_b + 4.0 * limit;
            let system_text = || format!("{}, frame {frame}, channel {channel}: {system:?}", case());
            ensure(residual <= most, || format!("{}: residual {residual:e}, allowed {most:e}", system_text()))?;
            let difference = (system.residual * of_b - residual).abs();
            ensure(difference <= limit + 1e-6 * of_b, || format!("{}: the residual is {residual:e}", system_text()))?;
            let expected = iterations[[frame, channel]];
            let near = f64::from(system.iterations.abs_diff(expected)) <= 1.0 + 0.05 * f64::from(expected);
            ensure(near, || format!("{}: {expected} iterations in f64", system_text()))?;
        }
    }
    Ok(())
}

/// Rows of several rounds of a block's threads, the last one in part, with ends of every kind.
fn large(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(49);
    let stream = gpu.new_stream()?;
    let at_once = of_stage(CgStage::Step).threads() as usize * GROUP;
    for n in [at_once + 1, 2 * at_once + 6] {
        let data = Array3::from_shape_fn((1, 2, n), |(_, diagonal, j)| [3.0 + (j % 3) as f32, -1.0][diagonal]);
        let host = SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view())?;
        let matrix = host.upload_blocking(stream.as_ref(), precision)?;
        let b = Array3::from_shape_simple_fn((1, 1, n), || normal(&mut random));
        let options = CgOptions { tolerance: 1e-2, ..CgOptions::default() };
        let (x, report) = solve(gpu, &stream, &matrix, &b, None, &options)??;
        let wide = b.mapv(f64::from);
        let product = reference::ata_blocks(host.blocks().mapv(f64::from).view(), x.mapv(f64::from).view());
        let (system, residual, of_b) = (report.systems[[0, 0]], norm(&(&wide - &product)), norm(&wide));
        let holds = system.converged && (2..=20).contains(&system.iterations);
        // Rounding of x to 8 bits, the fewest of a precision, is well below the tolerance.
        ensure(holds && residual <= 1.2 * options.tolerance * of_b, || {
            format!("n {n}: {system:?}, residual {:e}", residual / of_b)
        })?;
    }
    Ok(())
}

/// A b of 0, an eigenvector, and what takes longer, beside each other; and too few iterations.
fn stopping(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(42);
    let (n, frames) = (64, 9);
    // 1, 2, .. 8 on the diagonal, over and over, in one channel, and 4 alone in the other.
    let diagonal =
        Array3::from_shape_fn((2, 1, n), |(channel, _, j)| if channel == 0 { (1 + j % 8) as f32 } else { 4.0 });
    let host = SymmetricBlockMatrix::from_diagonals(n, &[0], diagonal.view())?;
    let stream = gpu.new_stream()?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let mut b = Array3::from_shape_simple_fn((frames, 2, n), || f32::from(random.random_range(1..=4u8)));
    b.index_axis_mut(Axis(0), 3).fill(0.0);
    b.slice_mut(s![5, 0, ..]).fill(0.0);
    b.slice_mut(s![5, 0, 6..;8]).fill(7.0);
    let options = CgOptions { tolerance: 1e-3, test_every: 3, ..CgOptions::default() };
    let (x, report) = solve(gpu, &stream, &matrix, &b, None, &options)??;
    ensure(report.all_converged() && report.iterations() <= 8, || format!("{report:?}"))?;
    for ((frame, channel), system) in report.systems.indexed_iter() {
        let (expected, exact) = match (frame, channel) {
            (3, _) => (0..=0, true),
            (5, 0) | (_, 1) => (1..=1, true),
            _ => (5..=8, false),
        };
        ensure(expected.contains(&system.iterations), || format!("frame {frame}, channel {channel}: {system:?}"))?;
        let solution = |i: usize| b[[frame, channel, i]] / diagonal[[channel, 0, i]];
        ensure(!exact || (0..n).all(|i| x[[frame, channel, i]] == solution(i)), || {
            format!("frame {frame}, channel {channel}: {:?}", x.slice(s![frame, channel, ..]))
        })?;
        ensure(!exact || system.residual == 0.0, || format!("frame {frame}, channel {channel}: {system:?}"))?;
    }
    // Too few iterations are told, and what was reached is given.
    for max_iterations in [1, 2, 4] {
        let options = CgOptions { max_iterations, ..options.clone() };
        let (_, report) = solve(gpu, &stream, &matrix, &b, None, &options)??;
        let slow = &report.systems[[0, 0]];
        ensure(!slow.converged && slow.iterations == max_iterations, || format!("{slow:?}"))?;
        ensure(slow.residual > options.tolerance && slow.residual < 1.0, || format!("{slow:?}"))?;
        ensure(report.systems[[0, 1]].converged, || format!("{:?}", report.systems[[0, 1]]))?;
    }
    Ok(())
}

fn indefinite(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(43);
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 50, channels: 3, diagonals: 2 };
    let mut dense = positive_definite(sizes, &mut random, 0.5).to_dense();
    // Negative definite in one channel, and nothing at all in another.
    dense.index_axis_mut(Axis(0), 1).mapv_inplace(|element| -element);
    dense.index_axis_mut(Axis(0), 2).fill(0.0);
    let host = SymmetricBlockMatrix::from_dense(dense.view(), 0.0)?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let mut b = vectors(sizes, 5, || normal(&mut random));
    b.slice_mut(s![2, 1, ..]).fill(0.0);
    match solve(gpu, &stream, &matrix, &b, None, &CgOptions::default())? {
        Err(Error::Breakdown { systems, .. }) => {
            let named: Vec<_> = systems.iter().map(|system| (system.frame, system.channel)).collect();
            let expected = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)];
            ensure(named == expected, || format!("{systems:?}"))?;
            let is_right = |cause: BreakdownCause, channel: usize| match cause {
                BreakdownCause::NotPositiveDefinite { curvature } => (curvature < 0.0) == (channel == 1),
                _ => false,
            };
            let all = systems.iter().all(|system| is_right(system.cause, system.channel) && system.iteration == 0);
            ensure(all, || format!("{systems:?}"))
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn not_finite(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(44);
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 40, channels: 2, diagonals: 2 };
    let matrix = positive_definite(sizes, &mut random, 0.5).upload_blocking(stream.as_ref(), precision)?;
    let good = vectors(sizes, 4, || normal(&mut random));
    let mut bad = good.clone();
    bad[[1, 0, 39]] = f32::NAN;
    bad[[3, 1, 0]] = f32::NEG_INFINITY;
    for (b, guess) in [(&bad, None), (&good, Some(&bad))] {
        match solve(gpu, &stream, &matrix, b, guess, &CgOptions::default())? {
            Err(Error::Breakdown { systems, .. }) => {
                let found: Vec<_> = systems.iter().map(|system| (system.frame, system.channel, system.cause)).collect();
                let expected = [(1, 0, BreakdownCause::NotFinite), (3, 1, BreakdownCause::NotFinite)];
                ensure(found == expected, || format!("{systems:?}"))?;
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    Ok(())
}

/// Repeated, launch by launch, with other tests in between, from strided tensors.
fn same_bits(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(45);
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 75, channels: 2, diagonals: 3 };
    let host = positive_definite(sizes, &mut random, 0.05);
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let b = vectors(sizes, 3, || normal(&mut random));
    let options = CgOptions::default();
    let (expected, report) = solve(gpu, &stream, &matrix, &b, None, &options)??;
    for (graph, test_every) in [(true, 8), (false, 8), (true, 1), (false, 5), (true, 65)] {
        let options = CgOptions { graph, test_every, ..options.clone() };
        let again = solve(gpu, &stream, &matrix, &b, None, &options)??;
        ensure(again == (expected.clone(), report.clone()), || format!("graph {graph}, test every {test_every}"))?;
    }
    // A test after the last iteration that is allowed, however late it is asked for.
    let never = CgOptions { test_every: u32::MAX, max_iterations: report.iterations(), graph: true, ..options.clone() };
    ensure(solve(gpu, &stream, &matrix, &b, None, &never)?? == (expected.clone(), report.clone()), || {
        "late".to_owned()
    })?;
    let (array, array_report) = matrix.cg_array_blocking(stream.as_ref(), b.view(), &options)?;
    ensure((&array, &array_report) == (&expected, &report), || "the array".to_owned())?;

    // The same plan twice, b in reverse order of frames, x with gaps between channels.
    let mut plan = CgPlan::new(&matrix, 3, &options)?;
    let reversed = b.slice(s![..;-1, .., ..]).to_owned();
    let device_b = Buffer::upload_array_blocking(&stream, reversed.view())?;
    for _ in 0..2 {
        let mut x = Guarded::<f32>::new(gpu, &stream, 3 * 2 * 90)?;
        let (offset, shape) = (x.offset(), [3, 2, 75]);
        let out = TensorMut::strided(x.buffer(), offset, shape, [180, 90, 1])?;
        let again =
            plan.solve_blocking(stream.as_ref(), TensorRef::strided(&device_b, 300, shape, [-150, 75, 1])?, None, out)?;
        let placed = Array3::from_shape_vec((3, 2, 90), x.read(&stream)?)?;
        ensure(placed.slice(s![.., .., ..75]) == expected && again == report, || "a strided run".to_owned())?;
        ensure(placed.slice(s![.., .., 75..]).iter().all(|element| element.to_bits() == u32::MAX), || {
            "a gap of x was written".to_owned()
        })?;
    }
    Ok(())
}

/// The solution as the guess is done at once; one of another right-hand side helps; b of 0 gives 0 whatever the guess.
fn guess(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(46);
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 2 * BLOCK + 3, channels: 2, diagonals: 2 };
    let matrix = positive_definite(sizes, &mut random, 0.1).upload_blocking(stream.as_ref(), precision)?;
    let mut b = vectors(sizes, 3, || normal(&mut random));
    b.index_axis_mut(Axis(0), 1).fill(0.0);
    let options = CgOptions { tolerance: 1e-2, ..CgOptions::default() };
    let (x, cold) = solve(gpu, &stream, &matrix, &b, None, &options)??;
    let mut start = x.clone();
    start.index_axis_mut(Axis(0), 1).fill(3.0);
    let (again, warm) = solve(gpu, &stream, &matrix, &b, Some(&start), &options)??;
    ensure(again == x && warm.iterations() == 0 && warm.all_converged(), || format!("{warm:?}, {again}"))?;
    let nearly = start.mapv(|element| element * 1.05);
    let (_, warm) = solve(gpu, &stream, &matrix, &b, Some(&nearly), &options)??;
    ensure(warm.all_converged() && warm.iterations() < cold.iterations(), || format!("{warm:?}, {cold:?}"))
}

fn shapes(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 40, channels: 2, diagonals: 2 };
    let matrix = positive_definite(sizes, &mut random(47), 0.1).upload_blocking(stream.as_ref(), precision)?;
    let mut plan = CgPlan::new(&matrix, 3, &CgOptions::default())?;
    let right = [3, 2, 40];
    for (named, wrong) in [("b", [2, 2, 40]), ("the guess", [3, 1, 40]), ("x", [3, 2, 39])] {
        let shape_of = |tensor| if tensor == named { wrong } else { right };
        let buffer = |tensor| Buffer::<f32>::zeroed(gpu, shape_of(tensor).iter().product());
        let (b, guess) = (buffer("b")?, buffer("the guess")?);
        let x_shape = shape_of("x");
        let mut x = Guarded::<f32>::new(gpu, &stream, x_shape.iter().product())?;
        let (offset, strides) = (x.offset(), Place::contiguous(x_shape).strides);
        let guess = TensorRef::contiguous(&guess, shape_of("the guess"))?;
        let b = TensorRef::contiguous(&b, shape_of("b"))?;
        let out = TensorMut::strided(x.buffer(), offset, x_shape, strides)?;
        match plan.solve_blocking(stream.as_ref(), b, Some(guess), out) {
            Err(Error::Shape { tensor, got, .. }) if tensor == named && got == wrong => {}
            other => return Err(format!("{named}: {other:?}").into()),
        }
        x.check_untouched(&stream)?;
    }
    let options = CgOptions { tolerance: 0.0, ..CgOptions::default() };
    match CgPlan::new(&matrix, 3, &options) {
        Err(Error::Argument { argument: "tolerance", .. }) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

fn no_frames(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 40, channels: 2, diagonals: 2 };
    let matrix = positive_definite(sizes, &mut random(48), 0.1).upload_blocking(stream.as_ref(), precision)?;
    let (x, report) = solve(gpu, &stream, &matrix, &Array3::zeros((0, 2, 40)), None, &CgOptions::default())??;
    ensure(x.is_empty() && report.systems.dim() == (0, 2) && report.all_converged(), || format!("{report:?}"))
}
