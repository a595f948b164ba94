//! Problems of systems of equations.

use ferrotile::{CgOptions, CgPlan, Precision, Preconditioner, SymmetricBlockMatrix, reference, tolerance};
use ndarray::{Array3, s};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::ata::BLOCK;

use super::ata::Matrix;
use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{Input, Output};
use super::outcome::{Failure, Kind, Stop};
use super::placement::Placement;
use super::sizes::{self, Random};
use super::text::{as_text, is_default};
use super::values::Values;

/// A problem: the diagonal outweighs the rest of each row of the matrix, which is hence positive definite.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cg {
    #[serde(with = "as_text")]
    precision: Precision,
    matrix: Matrix,
    frames: usize,
    /// By how many tenths of the rest the diagonal outweighs it.
    excess: u32,
    /// The powers of ten of the tolerance, of b, and of the guess where there is one.
    tolerance: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    size_of_b: i32,
    #[serde(default, skip_serializing_if = "is_default")]
    guess: Option<i32>,
    max_iterations: u32,
    test_every: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    graph: bool,
    /// Whether directions come of the residual times the inverses of the diagonal blocks.
    #[serde(default, skip_serializing_if = "is_default")]
    block_jacobi: bool,
    /// Where b and x lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 2],
    seed: u64,
}

impl Cg {
    fn draw_sizes(random: &mut Random, most: usize) -> Cg {
        let matrix = Matrix {
            values: [Values::Normal, Values::Integers][random.random_range(0..2)],
            ..Matrix::draw(random, most)
        };
        Cg {
            precision: Precision::ALL[random.random_range(0..5)],
            matrix,
            frames: sizes::length(random, 17),
            excess: random.random_range(0..10),
            tolerance: -random.random_range(1..=6),
            size_of_b: if random.random() { 0 } else { random.random_range(-12..=12) },
            guess: random.random_bool(0.4).then(|| random.random_range(-6..=9)),
            max_iterations: [1, 7, 40, 200][random.random_range(0..4)],
            test_every: [1, 3, 8, 50][random.random_range(0..4)],
            graph: random.random(),
            block_jacobi: random.random(),
            places: [true, false].map(|may_repeat| Placement::draw(random, 3, may_repeat)),
            seed: random.random_range(0..1 << 32),
        }
    }

    /// The matrix with its diagonal.
    fn make(&self, random: &mut Random) -> ferrotile::Result<SymmetricBlockMatrix> {
        let mut dense = self.matrix.make(random)?.to_dense();
        for mut of_channel in dense.outer_iter_mut() {
            for i in 0..self.matrix.n {
                let rest: f32 = of_channel.row(i).iter().map(|x| x.abs()).sum::<f32>() - of_channel[[i, i]].abs();
                of_channel[[i, i]] = (1.05 + self.excess as f32 / 10.0) * rest + 1.0;
            }
        }
        SymmetricBlockMatrix::from_dense(dense.view(), 0.0)
    }
}

impl Family for Cg {
    fn draw(random: &mut Random, scope: &Scope) -> Cg {
        let cost = |problem: &Cg| {
            let dense = problem.matrix.channels * problem.matrix.n * problem.matrix.n;
            dense * (problem.frames + 8) * problem.max_iterations.min(40) as usize
        };
        sizes::within(random, [scope.most, scope.work], Cg::draw_sizes, cost)
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let host = self.make(&mut random)?;
        let shape = [self.frames, self.matrix.channels, self.matrix.n];
        let scaled = |random: &mut Random, power: i32| -> Vec<f32> {
            let values = Values::Normal.fill::<f32>(random, shape.iter().product());
            values.into_iter().map(|x| x * 10f32.powi(power)).collect()
        };
        let b = Input::new(bench, &self.places[0], shape, &scaled(&mut random, self.size_of_b))?;
        let guess = self
            .guess
            .map(|power| Input::new(bench, &Placement::default(), shape, &scaled(&mut random, self.size_of_b + power)));
        let guess = guess.transpose()?;
        let matrix = host.upload_blocking(bench.streams[0].as_ref(), self.precision)?;
        let options = CgOptions {
            tolerance: 10f64.powi(self.tolerance),
            max_iterations: self.max_iterations,
            test_every: self.test_every,
            graph: self.graph,
            preconditioner: if self.block_jacobi { Preconditioner::BlockJacobi } else { Preconditioner::None },
            ..CgOptions::default()
        };
        let mut plan = CgPlan::new(&matrix, self.frames, &options)?;
        let mut results = Vec::new();
        for stream in &bench.streams {
            let mut x = Output::<f32, 3>::new(bench, stream, "x", &self.places[1], shape)?;
            let start = guess.as_ref().map(Input::plain);
            let report = plan.solve_blocking(stream.as_ref(), b.plain(), start, x.plain())?;
            results.push((x.read(stream)?, report));
        }
        let (second, first) = (results.pop().expect("two runs"), results.pop().expect("two runs"));
        check::same("x", [&first.0, &second.0], &shape)?;
        check::written("x", &first.0, &shape)?;
        let x = first.0.iter().map(|&x| f64::from(x)).collect();
        let x = Array3::from_shape_vec(shape, x).expect("it has the shape");
        // The residual that counts is of the matrix as it was given, whose product is one in f32.
        let dense = host.to_dense().mapv(f64::from);
        let b = b.array3();
        let residual = &b - &reference::ata(dense.view(), x.view());
        let magnitudes = reference::ata(dense.mapv(f64::abs).view(), x.mapv(f64::abs).view());
        let terms = (2 * host.block_diagonals() * BLOCK).min(host.block_rows() * BLOCK);
        let errors = magnitudes.mapv(|magnitude| tolerance::ata_limit(Precision::F32, magnitude, terms));
        let norm = |array: &Array3<f64>, frame: usize, channel: usize| {
            array.slice(s![frame, channel, ..]).iter().map(|x| x * x).sum::<f64>().sqrt()
        };
        let mut share = 0f64;
        for ((frame, channel), system) in first.1.systems.indexed_iter() {
            let [residual, of_b, error] = [&residual, &b, &errors].map(|array| norm(array, frame, channel));
            let wrong = |what: &str| {
                let text = format!(
                    "{what} in frame {frame}, channel {channel}: {system:?}, but the residual in f64 is {:e}, and a \
                     product errs by {:e}",
                    residual / of_b,
                    error / of_b,
                );
                Err(Failure::new(Kind::Wrong, text).into())
            };
            if !residual.is_finite() {
                return wrong("x is not finite");
            }
            let most = 1.01 * options.tolerance * of_b + 2.0 * error;
            if system.converged() && residual > most {
                return wrong("not converged");
            }
            if system.converged() && residual > 0.0 {
                share = share.max(residual / most);
            }
            // The report's is the norm over that of b, of f32 sums.
            let reported = system.residual * of_b;
            if of_b > 0.0 && (reported - residual).abs() > 2.0 * error + 1e-5 * residual + 1e-6 * of_b {
                return wrong("another residual");
            }
        }
        Ok(share)
    }

    fn simpler(&self) -> Vec<Cg> {
        let mut simpler = Simpler::of(self);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.graph, [false]);
        simpler.each(|problem| &mut problem.block_jacobi, [false]);
        simpler.each(|problem| &mut problem.guess, [None]);
        simpler.each(|problem| &mut problem.size_of_b, [0]);
        simpler.each(|problem| &mut problem.test_every, [1]);
        simpler.size(|problem| &mut problem.frames, 1, 1);
        Matrix::simpler(&mut simpler, |problem| &mut problem.matrix, &self.matrix);
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.guess = self.guess.map(|_| 0);
    }
}
