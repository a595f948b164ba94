//! Conjugate gradient: against the same method in f64, its verdict, its stopping, its errors, and bits that are the
//! same in every run.

use ferrotile::{
    BreakdownCause, Buffer, CgOptions, CgOutcome, CgPlan, CgReport, DeviceBlockMatrix, Error, Gpu, Precision,
    Preconditioner, Stream, SymmetricBlockMatrix, TensorMut, TensorRef, reference,
};
use libtest_mimic::Failed;
use ndarray::{Array2, Array3, Axis, s};
use rand::RngExt;
use tests::device::runs_all;
use tests::guard::Guarded;
use tests::inputs::{Random, random};
use variants::ata::BLOCK;
use variants::cg::{CgStage, GROUP, of_stage};

use crate::Trials;
use crate::case::{Outcome, Placement, Sizes, limits, matrix, normal, vectors};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.each("solver/agrees_with_the_method_in_f64", agrees);
    trials.each("solver/the_verdict_is_of_the_true_residual", far_guesses);
    trials.each("solver/says_where_the_precision_can_do_no_more", stagnation);
    trials.each("solver/preconditioned_takes_fewer_iterations", preconditioned);
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
    let (offset, strides) = (x.offset(), Placement::contiguous(shape).strides);
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

/// The residuals in f64 of the matrix as it was given, as shares of the norms of b, and what an f32 product may add.
fn residuals(host: &SymmetricBlockMatrix, b: &Array3<f32>, x: &Array3<f32>) -> Array2<(f64, f64)> {
    let wide = b.mapv(f64::from);
    let residual = &wide - &reference::ata_blocks(host.blocks().mapv(f64::from).view(), x.mapv(f64::from).view());
    let limit = limits(host, Precision::F32, x);
    let (frames, channels, _) = b.dim();
    Array2::from_shape_fn((frames, channels), |(frame, channel)| {
        let [residual, of_b, limit] = [&residual, &wide, &limit].map(|array| norm(array.slice(s![frame, channel, ..])));
        if of_b == 0.0 { (residual, limit) } else { (residual / of_b, limit / of_b) }
    })
}

/// What a report says of each system is so: its residual as far as an f32 product tells, and the outcome by it.
fn check_report(
    host: &SymmetricBlockMatrix,
    b: &Array3<f32>,
    (x, report): &(Array3<f32>, CgReport),
    options: &CgOptions,
) -> Outcome {
    for ((index, system), (residual, limit)) in report.systems.indexed_iter().zip(residuals(host, b, x)) {
        // Rounding of the difference and of its squares.
        let near = limit + 1e-6 * residual;
        let text = || format!("{index:?}: {system:?}, the residual is {residual:e}");
        ensure((system.residual - residual).abs() <= near, text)?;
        let is_right = match system.outcome {
            CgOutcome::Converged => residual <= options.tolerance + near,
            CgOutcome::IterationLimit => {
                system.iterations == options.max_iterations && system.residual > options.tolerance
            }
            _ => system.residual > options.tolerance,
        };
        ensure(is_right, text)?;
    }
    Ok(())
}

/// The residual in f64 is at most the tolerance, and the iterations are about those of the method in f64.
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
        let dense = host.to_dense().mapv(f64::from);
        let wide = b.mapv(f64::from);
        let (_, iterations) = reference::cg(dense.view(), wide.view(), options.tolerance, options.max_iterations);
        for ((frame, channel), system) in report.systems.indexed_iter() {
            let expected = iterations[[frame, channel]];
            // Replacing the residual costs directions that were made for another one: the more, the coarser products
            // are.
            let share = if precision == Precision::Bf16 { 0.3 } else { 0.15 };
            let near = f64::from(system.iterations.abs_diff(expected)) <= 2.0 + share * f64::from(expected);
            let text = || format!("{}, frame {frame}, channel {channel}: {system:?}", case());
            ensure(near, || format!("{}: {expected} iterations in f64", text()))?;
        }
        check_report(&host, &b, &(x, report), &options)?;
    }
    Ok(())
}

/// 3 on the diagonal and -1 beside it, in one channel.
fn tridiagonal(n: usize) -> ferrotile::Result<SymmetricBlockMatrix> {
    let data = Array3::from_shape_fn((1, 2, n), |(_, diagonal, _)| [3.0, -1.0][diagonal]);
    SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view())
}

/// Guesses so far off that the residual carried along and the true one are worlds apart at the end.
fn far_guesses(gpu: &Gpu, precision: Precision) -> Outcome {
    let stream = gpu.new_stream()?;
    let host = tridiagonal(40)?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let scales = [1.0, 1e4, 1e9, 1e20];
    let b = Array3::ones((scales.len(), 1, 40));
    let guess = Array3::from_shape_fn(b.dim(), |(frame, _, i)| scales[frame] * (1.0 + (0.7 * i as f32).sin()));
    for preconditioner in [Preconditioner::None, Preconditioner::BlockJacobi] {
        let options = CgOptions { preconditioner, ..CgOptions::default() };
        let solved = solve(gpu, &stream, &matrix, &b, Some(&guess), &options)??;
        ensure(solved.1.all_converged() && solved.1.iterations() < 200, || format!("{:?}", solved.1))?;
        check_report(&host, &b, &solved, &options)?;
    }
    Ok(())
}

/// A tolerance that f32 numbers cannot reach: the solver reaches what they can, and says so.
fn stagnation(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(50);
    let stream = gpu.new_stream()?;
    let host = tridiagonal(40)?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let mut b = Array3::from_shape_simple_fn((3, 1, 40), || normal(&mut random));
    b.index_axis_mut(Axis(0), 1).fill(0.0);
    for preconditioner in [Preconditioner::None, Preconditioner::BlockJacobi] {
        let options = CgOptions { tolerance: 1e-11, preconditioner, ..CgOptions::default() };
        let solved = solve(gpu, &stream, &matrix, &b, None, &options)??;
        check_report(&host, &b, &solved, &options)?;
        let outcomes: Vec<_> = solved.1.systems.iter().map(|system| system.outcome).collect();
        ensure(outcomes == [CgOutcome::Stagnated, CgOutcome::Converged, CgOutcome::Stagnated], || {
            format!("{:?}", solved.1)
        })?;
        ensure(solved.1.residual() < 1e-6 && solved.1.iterations() < 200, || format!("{:?}", solved.1))?;
    }
    Ok(())
}

/// Rows of different scale, and diagonal blocks that are far from diagonal.
fn preconditioned(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(51);
    let stream = gpu.new_stream()?;
    let sizes = Sizes { n: 100, channels: 2, diagonals: 2 };
    let mut dense = positive_definite(sizes, &mut random, 0.2).to_dense();
    for ((_, i, j), element) in dense.indexed_iter_mut() {
        let scale = |i: usize| [1.0, 2.0, 4.0, 8.0][i % 4];
        *element *= scale(i) * scale(j);
    }
    let host = SymmetricBlockMatrix::from_dense(dense.view(), 0.0)?;
    let matrix = host.upload_blocking(stream.as_ref(), precision)?;
    let b = vectors(sizes, 3, || normal(&mut random));
    let solved = [Preconditioner::None, Preconditioner::BlockJacobi].map(|preconditioner| {
        let options = CgOptions { preconditioner, ..CgOptions::default() };
        let solved = solve(gpu, &stream, &matrix, &b, None, &options)??;
        check_report(&host, &b, &solved, &options)?;
        ensure(solved.1.all_converged(), || format!("{preconditioner:?}: {:?}", solved.1))?;
        Ok::<_, Failed>(solved.1.iterations())
    });
    let [plain, preconditioned] = solved;
    let (plain, preconditioned) = (plain?, preconditioned?);
    ensure(2 * preconditioned < plain, || format!("{preconditioned} iterations, {plain} without"))
}

/// Rows of several rounds of a block's threads, the last one in part, with ends of every kind.
fn large(gpu: &Gpu, precision: Precision) -> Outcome {
    let mut random = random(49);
    let stream = gpu.new_stream()?;
    let at_once = of_stage(CgStage::Step, false).threads() as usize * GROUP;
    for (n, preconditioner) in [(at_once + 1, Preconditioner::None), (2 * at_once + 6, Preconditioner::BlockJacobi)] {
        let data = Array3::from_shape_fn((1, 2, n), |(_, diagonal, j)| [3.0 + (j % 3) as f32, -1.0][diagonal]);
        let host = SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view())?;
        let matrix = host.upload_blocking(stream.as_ref(), precision)?;
        let b = Array3::from_shape_simple_fn((1, 1, n), || normal(&mut random));
        let options = CgOptions { tolerance: 1e-2, preconditioner, ..CgOptions::default() };
        let solved = solve(gpu, &stream, &matrix, &b, None, &options)??;
        check_report(&host, &b, &solved, &options)?;
        let system = solved.1.systems[[0, 0]];
        ensure(system.converged() && (2..=20).contains(&system.iterations), || format!("n {n}: {system:?}"))?;
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
        let is_limited = slow.outcome == CgOutcome::IterationLimit && slow.iterations == max_iterations;
        ensure(is_limited, || format!("{slow:?}"))?;
        ensure(slow.residual > options.tolerance && slow.residual < 1.0, || format!("{slow:?}"))?;
        ensure(report.systems[[0, 1]].converged(), || format!("{:?}", report.systems[[0, 1]]))?;
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
    for preconditioner in [Preconditioner::None, Preconditioner::BlockJacobi] {
        let options = CgOptions { preconditioner, ..CgOptions::default() };
        let systems = match solve(gpu, &stream, &matrix, &b, None, &options)? {
            Err(Error::Breakdown { systems, .. }) => systems,
            other => return Err(format!("{other:?}").into()),
        };
        let named: Vec<_> = systems.iter().map(|system| (system.frame, system.channel)).collect();
        let expected = [(0, 1), (0, 2), (1, 1), (1, 2), (2, 2), (3, 1), (3, 2), (4, 1), (4, 2)];
        ensure(named == expected, || format!("{systems:?}"))?;
        let is_right = |cause: BreakdownCause, channel: usize| match cause {
            BreakdownCause::NotPositiveDefinite { curvature } => (curvature < 0.0) == (channel == 1),
            _ => false,
        };
        let all = systems.iter().all(|system| is_right(system.cause, system.channel) && system.iteration == 0);
        ensure(all, || format!("{systems:?}"))?;
    }
    Ok(())
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
    // Systems that wait for their true residuals at different times, once, often or until they stagnate.
    let far = Array3::from_shape_fn(b.dim(), |(frame, channel, i)| {
        [0.0, 1e3, 1e8][frame] * (1 + channel) as f32 * (0.3 * i as f32).sin()
    });
    let ways = [
        (1e-5, Preconditioner::None, Some(&far)),
        (1e-5, Preconditioner::BlockJacobi, Some(&far)),
        (1e-10, Preconditioner::None, None),
    ];
    // The iterations of every precision are the same kernels: where time is short each takes one way.
    let own = Precision::ALL.iter().position(|&other| other == precision).unwrap_or_default() % ways.len();
    let taken = |index: &usize| runs_all() || *index == own;
    for (tolerance, preconditioner, guess) in (0..ways.len()).filter(taken).map(|index| ways[index]) {
        let options = CgOptions { tolerance, preconditioner, ..CgOptions::default() };
        let expected = solve(gpu, &stream, &matrix, &b, guess, &options)??;
        for (graph, test_every) in [(false, 1), (true, 3), (false, 50)] {
            let options = CgOptions { graph, test_every, ..options.clone() };
            let again = solve(gpu, &stream, &matrix, &b, guess, &options)??;
            ensure(again == expected, || format!("graph {graph}, test every {test_every}, {options:?}"))?;
        }
    }
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
        let (offset, strides) = (x.offset(), Placement::contiguous(x_shape).strides);
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
