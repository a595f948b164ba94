//! Conjugate gradient on top of the product: `A x = b` for every frame and channel at once.
//!
//! ```no_run
//! use ferrotile::{CgOptions, Gpu, Precision, SymmetricBlockMatrix};
//! use ndarray::Array3;
//!
//! # fn main() -> ferrotile::Result<()> {
//! let (frames, channels, n) = (8, 3, 2624);
//! // 3 on the diagonal and -1 beside it: positive definite.
//! let data = Array3::from_shape_fn((channels, 2, n), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
//! let matrix = SymmetricBlockMatrix::from_diagonals(n, &[0, 1], data.view())?;
//!
//! let gpu = Gpu::new(0)?;
//! let stream = gpu.new_stream()?;
//! let matrix = matrix.upload_blocking(stream.as_ref(), Precision::Tf32)?;
//! let b = Array3::ones((frames, channels, n));
//! let (x, report) = matrix.cg_array_blocking(stream.as_ref(), b.view(), &CgOptions::default())?;
//! assert!(report.all_converged());
//! # Ok(())
//! # }
//! ```

use std::fmt;

use layout::ata::{AtaStrides, MAX_N};
use layout::cg::{CgArgs, CgStage, CgState, CgStatus, GROUP, STATE_WORDS, of_stage};
use ndarray::Array2;

use super::{AtaOptions, AtaPlan, DeviceBlockMatrix};
use crate::buffer::Buffer;
use crate::error::{Breakdown, BreakdownCause, Error, Result};
use crate::launch::{Kernel, KernelParam, LaunchConfig};
use crate::stream::{Graph, StreamRef, same_device};
use crate::tensor::{TensorMut, TensorRef};

const OP: &str = "cg";

/// The smallest tolerance: elements are f32, and a residual much below their rounding says nothing about x.
const LEAST_TOLERANCE: f64 = 1e-12;

/// The most iterations that a graph holds: a graph takes some 0.5 KB for each. It is replayed for more.
const GRAPH_ITERATIONS: u32 = 64;

/// When to stop, and how to go about it. The precision of the products is that of the matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct CgOptions {
    /// A system has converged when the norm of its residual is at most this share of the norm of b, which is from 1e-12
    /// to below 1.
    ///
    /// The residual meant is the one that the method carries along. What is left of `b - A x` beside it is the error of
    /// the products: [`CgSystem::residual`] is measured anew.
    pub tolerance: f64,
    /// The most iterations of a system, at least 1. Those left over are not converged in the report.
    pub max_iterations: u32,
    /// Iterations from one look at the states to the next, at least 1. Each look waits for the card; a system that has
    /// converged in between stays as it is, so that results do not depend on this number.
    pub test_every: u32,
    /// Whether the iterations from one test to the next are replays of a captured graph, and not a launch a kernel.
    pub graph: bool,
    /// How to compute `A p`.
    pub product: AtaOptions,
}

/// A tolerance of 1e-5, at most 1000 iterations, a test every 8 of them, as a graph.
impl Default for CgOptions {
    fn default() -> Self {
        Self { tolerance: 1e-5, max_iterations: 1000, test_every: 8, graph: true, product: AtaOptions::default() }
    }
}

impl CgOptions {
    fn check(&self) -> Result<()> {
        let wrong = |argument, got: String, expected: String| Err(Error::Argument { op: OP, argument, got, expected });
        if !(LEAST_TOLERANCE..1.0).contains(&self.tolerance) {
            let expected = format!("from {LEAST_TOLERANCE:e} to below 1: a share of the norm of b");
            return wrong("tolerance", self.tolerance.to_string(), expected);
        }
        for (argument, got) in [("max_iterations", self.max_iterations), ("test_every", self.test_every)] {
            if got == 0 {
                return wrong(argument, got.to_string(), "at least 1".to_owned());
            }
        }
        Ok(())
    }
}

/// What became of one system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CgSystem {
    /// Iterations done.
    pub iterations: u32,
    /// The norm of `b - A x` over that of b, with `A x` computed anew by the product; 0 where b is 0.
    pub residual: f64,
    /// Whether the residual that the method carries along fell to the tolerance within the iterations allowed.
    pub converged: bool,
}

/// What became of every system.
#[derive(Debug, Clone, PartialEq)]
#[must_use = "systems that have not converged are told here alone"]
pub struct CgReport {
    /// By frame and channel.
    pub systems: Array2<CgSystem>,
}

impl CgReport {
    /// Whether every system has converged.
    #[must_use]
    pub fn all_converged(&self) -> bool {
        self.systems.iter().all(|system| system.converged)
    }

    /// The most iterations that a system took; 0 without systems.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.systems.iter().map(|system| system.iterations).max().unwrap_or(0)
    }

    /// The largest residual; 0 without systems.
    #[must_use]
    pub fn residual(&self) -> f64 {
        self.systems.iter().map(|system| system.residual).fold(0.0, f64::max)
    }
}

/// Loaded kernels and memory for repeated solutions with one matrix and one number of frames.
#[must_use = "a plan computes nothing until it is run"]
pub struct CgPlan<'a> {
    matrix: &'a DeviceBlockMatrix,
    frames: usize,
    options: CgOptions,
    product: AtaPlan<'a>,
    start: Kernel,
    step: Kernel,
    finish: Kernel,
    vectors: Vectors,
    states: Buffer<u32>,
    /// Some iterations, and how many.
    graph: Option<(Graph, u32)>,
}

/// The vectors of all systems, `[frames, channels, row_elems]`.
struct Vectors {
    shape: [usize; 3],
    row_elems: usize,
    x: Buffer<f32>,
    r: Buffer<f32>,
    p: Buffer<f32>,
    q: Buffer<f32>,
}

impl Vectors {
    fn strides(&self) -> [i64; 3] {
        let [_, channels, _] = self.shape;
        [(channels * self.row_elems) as i64, self.row_elems as i64, 1]
    }
}

impl<'a> CgPlan<'a> {
    /// Loads the kernels and takes memory: four vectors for each system.
    ///
    /// # Errors
    /// [`Error::Argument`] for options out of range or more systems than a grid has blocks, those of [`AtaPlan::new`],
    /// and those of allocating and of capturing a graph.
    pub fn new(matrix: &'a DeviceBlockMatrix, frames: usize, options: &CgOptions) -> Result<Self> {
        options.check()?;
        // What the states look like after the last iteration is looked at anyway.
        let test_every = options.test_every.min(options.max_iterations);
        let options = CgOptions { test_every, ..options.clone() };
        let product = AtaPlan::new(matrix, frames, &options.product)?;
        let shape = [frames, matrix.channels(), matrix.n()];
        let systems = frames.checked_mul(matrix.channels()).filter(|&systems| i32::try_from(systems).is_ok());
        let systems = systems.ok_or_else(|| Error::Argument {
            op: OP,
            argument: "frames * channels",
            got: format!("{frames} * {}", matrix.channels()),
            expected: "at most 2^31 - 1: split the frames".to_owned(),
        })?;
        const { assert!(MAX_N.is_multiple_of(GROUP)) };
        let row_elems = matrix.n().next_multiple_of(GROUP);
        let elements = systems
            .checked_mul(row_elems)
            .ok_or_else(|| Error::TooLarge { shape: shape.to_vec(), element_bytes: size_of::<f32>() })?;
        let gpu = matrix.gpu();
        let vector = || Buffer::zeroed(gpu, elements);
        let kernel = |stage| gpu.kernel("ata", of_stage(stage).name);
        let mut plan = Self {
            matrix,
            frames,
            options,
            product,
            start: kernel(CgStage::Start)?,
            step: kernel(CgStage::Step)?,
            finish: kernel(CgStage::Finish)?,
            vectors: Vectors { shape, row_elems, x: vector()?, r: vector()?, p: vector()?, q: vector()? },
            states: Buffer::zeroed(gpu, systems * STATE_WORDS)?,
            graph: None,
        };
        if plan.options.graph && systems > 0 {
            let stream = gpu.new_stream()?;
            // As many in each replay of those from one test to the next.
            let iterations = test_every.div_ceil(test_every.div_ceil(GRAPH_ITERATIONS));
            plan.graph = Some((stream.capture(|stream| plan.iterate(stream, iterations))?, iterations));
        }
        Ok(plan)
    }

    /// The plan of the products.
    pub const fn product(&self) -> &AtaPlan<'a> {
        &self.product
    }

    /// Solves `A x = b` for every frame and channel, and waits for the stream. `b`, `guess` and `x` are
    /// `[frames, channels, n]`; it starts at `guess`, or at 0 without one. The result is the same, bit by bit, in every
    /// run.
    ///
    /// # Errors
    /// Nothing is written to `x` on one: [`Error::Breakdown`] where A is not positive definite for some system, or a
    /// number is or becomes NaN or infinite; [`Error::Shape`] and [`Error::WrongDevice`] for tensors that do not fit;
    /// [`Error::Driver`]. To run out of iterations is none: see [`CgReport`].
    pub fn solve_blocking(
        &mut self,
        stream: StreamRef<'_>,
        b: TensorRef<'_, f32, 3>,
        guess: Option<TensorRef<'_, f32, 3>>,
        x: TensorMut<'_, f32, 3>,
    ) -> Result<CgReport> {
        self.check(stream, b, guess, &x)?;
        if self.states.is_empty() {
            return Ok(self.report(&[]));
        }
        if let Some(guess) = guess {
            let (shape, strides) = (self.vectors.shape, self.vectors.strides());
            self.product.run(stream, guess, TensorMut::strided(&mut self.vectors.q, 0, shape, strides)?)?;
        }
        let strides = |&[frame, channel, _]: &[i64; 3]| AtaStrides { frame, channel };
        let args = CgArgs {
            b: b.as_raw(),
            guess: guess.map_or(0, |guess| guess.as_raw()),
            out: x.as_raw(),
            b_strides: strides(b.strides()),
            guess_strides: guess.map_or_else(AtaStrides::default, |guess| strides(guess.strides())),
            out_strides: strides(x.strides()),
            ..self.args()
        };
        self.launch(stream, &self.start, CgStage::Start, &args)?;
        let mut left = self.options.max_iterations;
        let states = loop {
            let iterations = left.min(self.options.test_every);
            match &self.graph {
                // A few iterations more than are left do nothing: systems count their own.
                Some((graph, each)) => (0..iterations.div_ceil(*each)).try_for_each(|_| {
                    // SAFETY: what the graph refers to is this plan's, and dropping a buffer waits for the work that
                    // uses it.
                    unsafe { graph.launch(stream) }
                })?,
                None => self.iterate(stream, iterations)?,
            }
            left -= iterations;
            let states = self.states(stream)?;
            if left == 0 || states.iter().all(|state| state.status != CgStatus::Active) {
                break states;
            }
        };
        self.check_states(&states)?;
        let (shape, row) = (self.vectors.shape, self.vectors.strides());
        let solution = TensorRef::strided(&self.vectors.x, 0, shape, row)?;
        self.product.run(stream, solution, TensorMut::strided(&mut self.vectors.q, 0, shape, row)?)?;
        self.launch(stream, &self.finish, CgStage::Finish, &args)?;
        Ok(self.report(&self.states(stream)?))
    }

    fn check(
        &self,
        stream: StreamRef<'_>,
        b: TensorRef<'_, f32, 3>,
        guess: Option<TensorRef<'_, f32, 3>>,
        x: &TensorMut<'_, f32, 3>,
    ) -> Result<()> {
        same_device("A", self.matrix.gpu().ordinal(), stream.ordinal())?;
        let guess = guess.map(|guess| ("the guess", *guess.shape(), guess.ordinal()));
        let tensors = [("b", *b.shape(), b.ordinal()), ("x", *x.shape(), x.ordinal())];
        for (tensor, got, ordinal) in tensors.into_iter().chain(guess) {
            let expected = self.vectors.shape;
            if got != expected {
                return Err(Error::Shape { op: OP, tensor, got: got.to_vec(), expected: expected.to_vec() });
            }
            same_device(tensor, ordinal, stream.ordinal())?;
        }
        Ok(())
    }

    /// What every kernel needs of the plan's own memory.
    fn args(&self) -> CgArgs {
        let Vectors { row_elems, x, r, p, q, .. } = &self.vectors;
        CgArgs {
            x: x.as_raw(),
            r: r.as_raw(),
            p: p.as_raw(),
            q: q.as_raw(),
            states: self.states.as_raw(),
            tolerance: self.options.tolerance,
            max_iterations: self.options.max_iterations,
            channels: self.matrix.channels() as u32,
            n: self.matrix.n() as u32,
            row_elems: *row_elems as u32,
            ..CgArgs::default()
        }
    }

    /// Enqueues as many iterations.
    fn iterate(&mut self, stream: StreamRef<'_>, iterations: u32) -> Result<()> {
        let (shape, strides) = (self.vectors.shape, self.vectors.strides());
        for _ in 0..iterations {
            let p = TensorRef::strided(&self.vectors.p, 0, shape, strides)?;
            self.product.run(stream, p, TensorMut::strided(&mut self.vectors.q, 0, shape, strides)?)?;
            self.launch(stream, &self.step, CgStage::Step, &self.args())?;
        }
        Ok(())
    }

    fn launch(&self, stream: StreamRef<'_>, kernel: &Kernel, stage: CgStage, args: &CgArgs) -> Result<()> {
        let row = of_stage(stage);
        let config = LaunchConfig {
            grid: [(self.states.len() / STATE_WORDS) as u32, 1, 1],
            block: [row.threads(), 1, 1],
            shared_bytes: row.smem().total_bytes(),
            ..LaunchConfig::default()
        };
        // SAFETY: grid, block and shared memory are the row's; the vectors are the plan's own and of its sizes, and the
        // tensors were checked; the memory of all of them is kept by its owners until the stream has done the work.
        unsafe { kernel.launch(stream, &config, &[args]) }
    }

    fn states(&self, stream: StreamRef<'_>) -> Result<Vec<CgState>> {
        let words = self.states.download_blocking(stream)?;
        Ok(words.as_chunks().0.iter().map(|&words| CgState::decode(words)).collect())
    }

    fn check_states(&self, states: &[CgState]) -> Result<()> {
        let broken = states.iter().enumerate().filter_map(|(system, state)| {
            let cause = match state.status {
                CgStatus::Active | CgStatus::Converged => return None,
                CgStatus::NotPositiveDefinite => BreakdownCause::NotPositiveDefinite { curvature: state.curvature },
                CgStatus::NotFinite => BreakdownCause::NotFinite,
            };
            let (frame, channel) = (system / self.matrix.channels(), system % self.matrix.channels());
            Some(Breakdown { frame, channel, iteration: state.iterations, cause })
        });
        let systems: Vec<_> = broken.collect();
        if systems.is_empty() { Ok(()) } else { Err(Error::Breakdown { op: OP, systems }) }
    }

    fn report(&self, states: &[CgState]) -> CgReport {
        let systems = states.iter().map(|state| CgSystem {
            iterations: state.iterations,
            residual: if state.norm > 0.0 { (state.residual / state.norm).sqrt() } else { 0.0 },
            converged: state.status == CgStatus::Converged,
        });
        let shape = (self.frames, self.matrix.channels());
        CgReport { systems: Array2::from_shape_vec(shape, systems.collect()).expect("there is a state a system") }
    }
}

impl fmt::Debug for CgPlan<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CgPlan").field("product", &self.product).field("options", &self.options).finish_non_exhaustive()
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for CgArgs {}

#[cfg(test)]
mod tests {
    use layout::Arch;
    use layout::ata::Precision;
    use ndarray::Array3;

    use super::*;
    use crate::{Gpu, SymmetricBlockMatrix};

    #[test]
    fn a_graph_holds_few_iterations_however_rare_the_tests_are() {
        let gpu = Gpu::emulated(Arch::Sm80);
        let host = SymmetricBlockMatrix::from_diagonals(16, &[0], Array3::ones((1, 1, 16)).view()).unwrap();
        let matrix = host.upload_blocking(gpu.new_stream().unwrap().as_ref(), Precision::Tf32).unwrap();
        for (test_every, held) in [(1, 1), (8, 8), (64, 64), (65, 33), (200, 50), (1_000_000, 64), (u32::MAX, 64)] {
            let options = CgOptions { test_every, max_iterations: u32::MAX, ..CgOptions::default() };
            let plan = CgPlan::new(&matrix, 1, &options).unwrap();
            assert_eq!(plan.graph.map(|(_, iterations)| iterations), Some(held), "tests every {test_every}");
        }
    }

    #[test]
    fn options_out_of_range_are_refused_by_name() {
        assert_eq!(CgOptions::default().check(), Ok(()));
        let with_tolerance = |tolerance| CgOptions { tolerance, ..CgOptions::default() };
        let wrong =
            [0.0, -1.0, 1.0, 1e-13, f64::NAN, f64::INFINITY].map(|tolerance| ("tolerance", with_tolerance(tolerance)));
        let none = [
            ("max_iterations", CgOptions { max_iterations: 0, ..CgOptions::default() }),
            ("test_every", CgOptions { test_every: 0, ..CgOptions::default() }),
        ];
        for (named, options) in wrong.into_iter().chain(none) {
            assert!(
                matches!(options.check(), Err(Error::Argument { argument, .. }) if argument == named),
                "{options:?}"
            );
        }
    }
}
