//! Problems of products with symmetric block matrices.

use ferrotile::{
    AtaOptions, AtaPlan, KernelName, Precision, StreamRef, SymmetricBlockMatrix, ata_kernels, reference, tolerance,
};
use ndarray::{Array3, Array4, Array5};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::ata::BLOCK;

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{Input, Output};
use super::outcome::Stop;
use super::placement::Placement;
use super::sizes::{self, Random};
use super::text::{as_text, is_default};
use super::twice::{Call, each, twice};
use super::values::Values;

/// A matrix for each channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Matrix {
    pub(crate) n: usize,
    pub(crate) channels: usize,
    /// Block diagonals; as many as there are where that is fewer.
    pub(crate) diagonals: usize,
    /// How many of ten blocks have elements.
    #[serde(default = "ten")]
    pub(crate) occupied: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) values: Values,
    /// How it is made.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) from: Form,
}

fn ten() -> u32 {
    10
}

/// What a matrix is made from.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    #[default]
    Blocks,
    Dense,
    Diagonals,
    Toeplitz,
}

impl Matrix {
    /// A matrix of at most `most` rows.
    pub(crate) fn draw(random: &mut Random, most: usize) -> Matrix {
        let n = sizes::length(random, most).max(1);
        let diagonals = sizes::log_uniform(random, n.div_ceil(BLOCK));
        Matrix {
            n,
            channels: sizes::log_uniform(random, 4),
            diagonals,
            occupied: [10, 10, 5, 2, 0][random.random_range(0..5)],
            values: Values::draw(random),
            from: [Form::Blocks, Form::Dense, Form::Diagonals, Form::Toeplitz][random.random_range(0..4)],
        }
    }

    /// Elements of a channel that are stored.
    pub(crate) fn elements(&self) -> usize {
        2 * (self.n + BLOCK) * self.diagonals * BLOCK
    }

    /// The matrix, by the constructor of its form.
    pub(crate) fn make(&self, random: &mut Random) -> ferrotile::Result<SymmetricBlockMatrix> {
        let &Matrix { n, channels, values, .. } = self;
        let rows = n.div_ceil(BLOCK);
        let diagonals = self.diagonals.clamp(1, rows);
        match self.from {
            Form::Diagonals => {
                // The scalar diagonals of some distances, the farthest among them.
                let farthest = ((diagonals - 1) * BLOCK).min(n - 1);
                let mut offsets: Vec<i64> =
                    (0..=farthest as i64).filter(|_| random.random_range(0..10) < self.occupied).collect();
                if offsets.is_empty() {
                    offsets.push(0);
                }
                let data = values.fill::<f32>(random, channels * offsets.len() * n);
                let data = Array3::from_shape_vec((channels, offsets.len(), n), data).expect("they fill it");
                SymmetricBlockMatrix::from_diagonals(n, &offsets, data.view())
            }
            Form::Toeplitz => {
                let offsets: Vec<usize> =
                    (0..diagonals).filter(|_| random.random_range(0..10) < self.occupied).collect();
                let blocks = values.fill::<f32>(random, channels * offsets.len() * BLOCK * BLOCK);
                let shape = (channels, offsets.len(), BLOCK, BLOCK);
                let mut blocks = Array4::from_shape_vec(shape, blocks).expect("they fill it");
                if offsets.first() == Some(&0) {
                    for (channel, row) in (0..channels).flat_map(|channel| (0..BLOCK).map(move |row| (channel, row))) {
                        for column in 0..row {
                            blocks[[channel, 0, row, column]] = blocks[[channel, 0, column, row]];
                        }
                    }
                }
                SymmetricBlockMatrix::from_toeplitz(n, &offsets, blocks.view())
            }
            Form::Blocks | Form::Dense => {
                let blocks = values.fill::<f32>(random, channels * diagonals * rows * BLOCK * BLOCK);
                let shape = (channels, diagonals, rows, BLOCK, BLOCK);
                let mut blocks = Array5::from_shape_vec(shape, blocks).expect("they fill it");
                for (channel, d, r) in ndarray::indices((channels, diagonals, rows)) {
                    let is_empty = random.random_range(0..10) >= self.occupied;
                    for (row, column) in ndarray::indices((BLOCK, BLOCK)) {
                        let inside = r * BLOCK + row < n && (r + d) * BLOCK + column < n;
                        let mirrored = blocks[[channel, d, r, column, row]];
                        let element = &mut blocks[[channel, d, r, row, column]];
                        if is_empty || !inside {
                            *element = 0.0;
                        } else if d == 0 && column < row {
                            *element = mirrored;
                        }
                    }
                }
                let matrix = SymmetricBlockMatrix::from_blocks(n, blocks.view())?;
                match self.from {
                    Form::Dense => SymmetricBlockMatrix::from_dense(matrix.to_dense().view(), 0.0),
                    _ => Ok(matrix),
                }
            }
        }
    }

    /// Smaller and simpler matrices.
    pub(crate) fn simpler<P: Clone>(
        simpler: &mut Simpler<P>,
        field: impl Fn(&mut P) -> &mut Matrix + Copy,
        of: &Matrix,
    ) {
        simpler.each(|problem| &mut field(problem).from, [Form::Blocks]);
        simpler.size(|problem| &mut field(problem).channels, 1, 1);
        simpler.each(|problem| &mut field(problem).values, of.values.simpler());
        simpler.size(|problem| &mut field(problem).diagonals, 1, 1);
        simpler.each(|problem| &mut field(problem).occupied, [10]);
        simpler.size(|problem| &mut field(problem).n, 1, 1);
    }
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ata {
    #[serde(with = "as_text")]
    precision: Precision,
    matrix: Matrix,
    frames: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    values: Values,
    /// Where X and Y lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 2],
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    isolated: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    kernel: Option<String>,
    seed: u64,
}

/// What an element of X loses at most where f16 multiplies it by the smallest power of two: half of the least number of
/// f16 over it.
const LEAST_X: f64 = 1.0 / (1u128 << 104) as f64;

/// The largest element of X, 2^127: beyond it one that is rounded to TF32 may be infinite.
const LARGEST_X: f32 = f32::from_bits((127 + 127) << 23);

impl Ata {
    fn draw_sizes(random: &mut Random, most: usize) -> Ata {
        let precision = Precision::ALL[random.random_range(0..5)];
        let is_named = random.random_bool(0.5);
        let kernel = if is_named { sizes::pick(random, ata_kernels(precision).map(KernelName::as_str)) } else { None };
        let mut matrix = Matrix::draw(random, most);
        let mut values = Values::draw(random);
        if matrix.values.are_vast() && values.are_vast() {
            if random.random() {
                matrix.values = Values::draw_tame(random);
            } else {
                values = Values::draw_tame(random);
            }
        }
        Ata {
            precision,
            matrix,
            frames: sizes::length(random, 40),
            values,
            places: [true, false].map(|may_repeat| Placement::draw(random, 3, may_repeat)),
            call: [Call::Plan, Call::Function][random.random_range(0..2)],
            isolated: random.random_bool(0.2),
            kernel,
            seed: random.random_range(0..1 << 32),
        }
    }
}

impl Family for Ata {
    fn draw(random: &mut Random, scope: &Scope) -> Ata {
        let cost = |problem: &Ata| {
            // The reference multiplies dense matrices.
            let dense = problem.matrix.n * problem.matrix.n;
            let channels = problem.matrix.channels * (problem.frames + 8);
            channels * dense.max(problem.matrix.elements())
        };
        sizes::within(random, [scope.most, scope.work], Ata::draw_sizes, cost)
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let host = self.matrix.make(&mut random)?;
        let shape = [self.frames, self.matrix.channels, self.matrix.n];
        let mut x = self.values.fill::<f32>(&mut random, shape.iter().product());
        x.iter_mut().for_each(|x| *x = x.clamp(-LARGEST_X, LARGEST_X));
        let x = Input::new(bench, &self.places[0], shape, &x)?;
        let matrix = host.upload_blocking(bench.streams[0].as_ref(), self.precision)?;
        let options = AtaOptions { kernel: self.kernel.clone(), isolated: self.isolated, ..AtaOptions::default() };
        let plan = AtaPlan::new(&matrix, self.frames, &options)?;
        let outputs = each(bench, |stream| Output::<f32, 3>::new(bench, stream, "Y", &self.places[1], shape))?;
        let run = |stream: StreamRef<'_>, out: &mut Output<f32, 3>, _: &mut Output<u8, 1>| match self.call {
            Call::Function if self.kernel.is_none() => matrix.multiply(stream, x.plain(), out.plain()),
            _ => plan.run(stream, x.plain(), out.plain()),
        };
        let first = twice(bench, (self.call, false), outputs, 0, run)?;
        check::written("Y", &first, &shape)?;
        let dense = host.rounded(self.precision).to_dense().mapv(f64::from);
        let x = x.array3();
        let exact = reference::ata(dense.view(), x.view());
        let of_a = dense.mapv(f64::abs);
        let sizes = tolerance::ata_magnitudes(self.precision, x.mapv(|x| x as f32).view());
        let magnitudes = reference::ata(of_a.view(), sizes.view());
        // Numbers below the normal ones of f32 may be lost, in X and A and in their remainders. Where f16 has several
        // channels of very different sizes, more of X is.
        let least = f64::from(f32::MIN_POSITIVE);
        let least_x = if self.precision == Precision::F16 && self.matrix.channels > 1 { LEAST_X } else { least };
        let of_x = reference::ata(of_a.view(), Array3::from_elem(x.dim(), least_x).view());
        let stored = dense.mapv(|element| if element == 0.0 { 0.0 } else { least });
        let lost = of_x + reference::ata(stored.view(), x.mapv(f64::abs).view());
        let terms = (2 * host.block_diagonals() * BLOCK).min(host.block_rows() * BLOCK);
        let limits: Vec<f64> = magnitudes
            .iter()
            .zip(&lost)
            .map(|(&magnitude, &lost)| match magnitude {
                _ if magnitude > tolerance::LARGEST_SUM => f64::INFINITY,
                _ => tolerance::ata_limit(self.precision, magnitude, terms) + lost,
            })
            .collect();
        let got: Vec<f64> = first.iter().map(|&y| y.into()).collect();
        let exact = exact.into_raw_vec_and_offset().0;
        Ok(check::elements("Y", ferrotile::Dtype::F32, &shape, [&got, &exact, &limits])?)
    }

    fn simpler(&self) -> Vec<Ata> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.isolated, [false]);
        simpler.each(|problem| &mut problem.values, self.values.simpler());
        simpler.size(|problem| &mut problem.frames, 1, 1);
        Matrix::simpler(&mut simpler, |problem| &mut problem.matrix, &self.matrix);
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.matrix.values.tame();
        self.values.tame();
    }
}
