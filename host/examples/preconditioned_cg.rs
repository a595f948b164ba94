//! Conjugate gradient on ill-conditioned systems, with and without the block-Jacobi preconditioner:
//! `cargo run --release -p ferrotile --example preconditioned_cg [N]`.
//!
//! It prints the iterations of each precision, how the systems ended, the largest residual, and on a card the time of a
//! solution and of an iteration. It fails where f32 takes more iterations with the preconditioner than without, or does
//! not converge with it.

use std::error::Error;
use std::time::Instant;

use ferrotile::{
    Arch, Buffer, CgOptions, CgOutcome, CgPlan, CgReport, Gpu, Precision, Preconditioner, Result, SymmetricBlockMatrix,
    TensorMut, TensorRef,
};
use ndarray::Array3;

/// Systems with one matrix.
const FRAMES: usize = 8;

/// The residual that is asked for, as a share of the norm of b: f32 reaches it in every system.
const TOLERANCE: f64 = 1e-4;

/// Rows on a card, and in the emulator.
const ROWS: [usize; 2] = [2624, 192];

/// Points of a line of the grid problems: a block of A is the strong coupling of one.
const LINE: usize = 16;

/// A number from 0 to 1 that looks drawn.
fn drawn(seed: usize) -> f64 {
    ((seed as f64 * 12.9898).sin() * 43758.5453).fract().abs()
}

/// A symmetric matrix of n rows by its diagonals: `element(k, j)` is that of diagonal `offsets[k]` in column j.
fn banded(n: usize, offsets: &[i64], element: impl Fn(usize, usize) -> f64) -> Result<SymmetricBlockMatrix> {
    let data = Array3::from_shape_fn((1, offsets.len(), n), |(_, k, j)| element(k, j) as f32);
    SymmetricBlockMatrix::from_diagonals(n, offsets, data.view())
}

/// A name for each system, and its matrix.
fn systems(n: usize) -> Result<Vec<(&'static str, SymmetricBlockMatrix)>> {
    // A second difference in lines of a grid, and a weak one across them.
    let grid = |weak: f64| {
        move |k: usize, j: usize| match k {
            0 => 2.0 + 2.0 * weak + 1e-3,
            1 if j.is_multiple_of(LINE) => 0.0,
            1 => -1.0,
            _ => -weak,
        }
    };
    // 3 and -1, each row and column times a number of its own.
    let scale = |j: usize| 10f64.powf(1.5 * drawn(j) - 0.75);
    let scaled = |k: usize, j: usize| [3.0, -1.0][k] * scale(j) * scale(j - k.min(j));
    Ok(vec![
        ("scaled rows", banded(n, &[0, 1], scaled)?),
        ("second difference", banded(n, &[0, 1], |k, _| [2.0 + 1e-3, -1.0][k])?),
        ("grid", banded(n, &[0, 1, LINE as i64], grid(1.0))?),
        ("grid, 1 : 0.01", banded(n, &[0, 1, LINE as i64], grid(0.01))?),
    ])
}

/// What became of the systems, and the least time of a solution in milliseconds.
fn solve(
    gpu: &Gpu,
    host: &SymmetricBlockMatrix,
    precision: Precision,
    with: Preconditioner,
) -> Result<(CgReport, f64)> {
    let stream = gpu.new_stream()?;
    let matrix = host.upload_blocking(&stream, precision)?;
    let options =
        CgOptions { tolerance: TOLERANCE, preconditioner: with, max_iterations: 2000, ..CgOptions::default() };
    let mut plan = CgPlan::new(&matrix, FRAMES, &options)?;
    let shape = [FRAMES, 1, host.n()];
    let b = Array3::from_shape_fn(shape, |(frame, _, i)| drawn(1 + i + 7919 * frame) as f32 - 0.5);
    let b = Buffer::upload_array_blocking(&stream, b.view())?;
    let mut x = Buffer::zeroed(gpu, b.len())?;
    let mut run = || {
        let start = Instant::now();
        let (b, x) = (TensorRef::contiguous(&b, shape)?, TensorMut::contiguous(&mut x, shape)?);
        plan.solve_blocking(&stream, b, None, x).map(|report| (report, start.elapsed().as_secs_f64() * 1e3))
    };
    let (report, mut time) = run()?;
    for _ in 0..if gpu.is_emulated() { 0 } else { 10 } {
        time = time.min(run()?.1);
    }
    Ok((report, time))
}

fn run(gpu: &Gpu, n: usize) -> std::result::Result<(), Box<dyn Error>> {
    println!("device: {gpu}; n = {n}, {FRAMES} frames, tolerance {TOLERANCE:e}");
    println!(
        "{:18} {:9} {:13} {:>10} {:15} {:>9} {:>8} {:>7}",
        "system", "precision", "with", "iterations", "outcome", "residual", "ms", "us/it"
    );
    for (name, host) in systems(n)? {
        for precision in [Precision::F32, Precision::Tf32x3, Precision::Tf32] {
            let mut iterations = [0; 2];
            for (index, with) in [Preconditioner::None, Preconditioner::BlockJacobi].into_iter().enumerate() {
                let (report, time) = solve(gpu, &host, precision, with)?;
                iterations[index] = report.iterations();
                let worst = report.systems.iter().map(|system| system.outcome).find(|&end| end != CgOutcome::Converged);
                let (outcome, with) = (format!("{:?}", worst.unwrap_or(CgOutcome::Converged)), format!("{with:?}"));
                let each = time * 1e3 / f64::from(report.iterations().max(1));
                println!(
                    "{name:18} {precision:9} {with:13} {:10} {outcome:15} {:9.1e} {time:8.3} {each:7.2}",
                    report.iterations(),
                    report.residual()
                );
                if precision == Precision::F32 && index == 1 && !report.all_converged() {
                    return Err(format!("{name} has not converged with the preconditioner").into());
                }
            }
            if precision == Precision::F32 && iterations[1] > iterations[0] {
                return Err(format!("{name} takes more iterations with the preconditioner").into());
            }
        }
    }
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let cards = Gpu::all()?;
    let n = |usual: usize| std::env::args().nth(1).map_or(Ok(usual), |text| text.parse());
    match cards.first() {
        Some(gpu) => run(gpu, n(ROWS[0])?),
        None => run(&Gpu::emulated(Arch::Sm80), n(ROWS[1])?),
    }
}
