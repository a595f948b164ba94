//! Conjugate gradient on top of the product: `A x = b` for every frame and channel at once.
//!
//! The products of the iteration use the matrix as its precision stores it, and are rounded. What counts is the true
//! residual: `b - A x` of the matrix as it was given, multiplied in f32. The method carries a residual of its own
//! along. Whenever that has fallen so far that the two may differ, the true residual takes its place. The true residual
//! alone says what has converged.

use std::fmt;

use ndarray::Array2;
use variants::ata::{AtaStrides, MAX_N, Precision};
use variants::cg::{CgArgs, CgStage, CgState, CgStatus, ROW_ALIGN, STATE_WORDS, of_stage};

use super::device::DeviceBlockMatrix;
use super::options::AtaOptions;
use super::plan::AtaPlan;
use crate::backend::LaunchConfig;
use crate::checks::{argument, has_shape, same_device};
use crate::error::{Breakdown, BreakdownCause, Error, Result};
use crate::runtime::buffer::Buffer;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::stream::{Graph, StreamRef};
use crate::runtime::tensor::{TensorMut, TensorRef};

const OP: &str = "cg";

/// The smallest tolerance: elements are f32, and a residual much below their rounding says nothing about x.
const LEAST_TOLERANCE: f64 = 1e-12;

/// The most iterations that a graph holds: a graph takes some 0.5 KB for each. It is replayed for more.
const GRAPH_ITERATIONS: u32 = 64;

/// When to stop, and how to go about it. The precision of the products is that of the matrix.
///
/// ```
/// use ferrotile::{CgOptions, Preconditioner};
///
/// let options =
///     CgOptions { tolerance: 1e-6, preconditioner: Preconditioner::BlockJacobi, ..CgOptions::default() };
/// assert_eq!(options.max_iterations, 1000);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct CgOptions {
    /// A system has converged when the norm of `b - A x` is at most this share of the norm of b, which is from 1e-12 to
    /// below 1. A is the matrix as it was given, whatever the precision of the iteration, and `A x` is computed in f32.
    ///
    /// With x in f32 that share is not below about 1e-7 times the norms of A and x over that of b. A system that asks
    /// for less ends as [`CgOutcome::Stagnated`].
    pub tolerance: f64,
    /// The most iterations of a system, at least 1. Those left over are not converged in the report.
    pub max_iterations: u32,
    /// Iterations from one look at the states to the next, at least 1. Each look waits for the card. A system that has
    /// converged in between, or waits for its true residual, stays as it is. So results do not depend on this number.
    pub test_every: u32,
    /// Whether the iterations from one test to the next are replays of a captured graph, and not a launch a kernel.
    pub graph: bool,
    /// What brings the system closer to the identity.
    pub preconditioner: Preconditioner,
    /// How to compute `A p`.
    pub product: AtaOptions,
}

/// A tolerance of 1e-5, at most 1000 iterations, a test every 8 of them, as a graph, without a preconditioner.
impl Default for CgOptions {
    fn default() -> Self {
        Self {
            tolerance: 1e-5,
            max_iterations: 1000,
            test_every: 8,
            graph: true,
            preconditioner: Preconditioner::None,
            product: AtaOptions::default(),
        }
    }
}

/// What residuals are multiplied by before they become directions: the nearer to the inverse of A, the fewer
/// iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Preconditioner {
    /// Nothing.
    #[default]
    None,
    /// The inverses of the 16x16 blocks of the main diagonal, which are made on the host, in f64, for the first plan of
    /// a matrix. A block that is not positive definite counts as its diagonal.
    ///
    /// It takes fewer iterations where the scale of rows differs, or where the diagonal blocks are what makes the
    /// matrix ill-conditioned; an iteration takes longer. Examples: `docs/measurements/conjugate_gradient.md`.
    BlockJacobi,
}

impl CgOptions {
    fn check(&self) -> Result<()> {
        if !(LEAST_TOLERANCE..1.0).contains(&self.tolerance) {
            let expected = format!("from {LEAST_TOLERANCE:e} to below 1: a share of the norm of b");
            return Err(argument(OP, "tolerance", self.tolerance, expected));
        }
        for (name, got) in [("max_iterations", self.max_iterations), ("test_every", self.test_every)] {
            if got == 0 {
                return Err(argument(OP, name, got, "at least 1"));
            }
        }
        Ok(())
    }
}

/// How a system ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CgOutcome {
    /// The residual is at most the tolerance.
    Converged,
    /// The residual is above the tolerance and falls no further in this precision. Another one, such as
    /// [`Precision::Tf32x3`] or [`Precision::F32`], a preconditioner, or a larger tolerance may help.
    Stagnated,
    /// The residual was still falling, and no iterations were left.
    IterationLimit,
}

/// What became of one system.
///
/// ```
/// use ferrotile::{CgOutcome, CgSystem};
///
/// let system = CgSystem { iterations: 12, residual: 2e-6, outcome: CgOutcome::Converged };
/// assert!(system.converged());
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CgSystem {
    /// Iterations done.
    pub iterations: u32,
    /// The norm of `b - A x` over that of b, for the x that is returned and the matrix as it was given; 0 where b is 0.
    pub residual: f64,
    /// How it ended.
    pub outcome: CgOutcome,
}

impl CgSystem {
    /// Whether the residual is at most the tolerance.
    #[must_use]
    pub fn converged(&self) -> bool {
        self.outcome == CgOutcome::Converged
    }
}

/// What became of every system.
///
/// ```
/// use ferrotile::{Arch, CgOptions, Gpu, Precision, SymmetricBlockMatrix};
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let matrix = host.upload_blocking(&stream, Precision::F32)?;
/// let b = Array3::ones((2, 1, 32)); // frames, channels, n
/// let (x, report) = matrix.cg_array_blocking(&stream, b.view(), &CgOptions::default())?;
/// assert!(report.all_converged() && report.residual() <= 1e-5);
/// assert!((3.0 * x[[0, 0, 0]] - x[[0, 0, 1]] - 1.0).abs() < 1e-4);
/// # Ok::<(), ferrotile::Error>(())
/// ```
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
        self.systems.iter().all(CgSystem::converged)
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
///
/// ```
/// use ferrotile::{Arch, Buffer, CgOptions, CgPlan, Gpu, Precision, SymmetricBlockMatrix, TensorMut, TensorRef};
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let matrix = host.upload_blocking(&stream, Precision::F32)?;
/// let mut plan = CgPlan::new(&matrix, 2, &CgOptions::default())?;
/// let (b, mut x) = (Buffer::upload_blocking(&stream, &[1.0_f32; 64])?, Buffer::<f32>::zeroed(&gpu, 64)?);
/// let (b, out) = (TensorRef::contiguous(&b, [2, 1, 32])?, TensorMut::contiguous(&mut x, [2, 1, 32])?);
/// assert!(plan.solve_blocking(&stream, b, None, out)?.all_converged());
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[must_use = "a plan computes nothing until it is run"]
pub struct CgPlan<'a> {
    matrix: &'a DeviceBlockMatrix,
    frames: usize,
    options: CgOptions,
    product: AtaPlan<'a>,
    /// The product of the matrix as it was given.
    exact: AtaPlan<'a>,
    inverses: Option<&'a Buffer<f32>>,
    start: Kernel,
    step: Kernel,
    replace: Kernel,
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
    /// Loads the kernels and takes memory: four vectors for each system. The first plan of a matrix also brings a copy
    /// in f32 to the card, unless that is its precision, and the preconditioner.
    ///
    /// # Errors
    /// [`Error::Argument`] for options out of range or more systems than a grid has blocks, those of [`AtaPlan::new`],
    /// and those of allocating, copying and capturing a graph.
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
        const { assert!(MAX_N.is_multiple_of(ROW_ALIGN)) };
        let row_elems = matrix.n().next_multiple_of(ROW_ALIGN);
        let elements = systems.checked_mul(row_elems).ok_or_else(|| Error::TooLarge {
            shape: shape.to_vec(),
            element_bytes: size_of::<f32>(),
            available_bytes: None,
        })?;
        let gpu = matrix.gpu();
        let vector = || Buffer::zeroed(gpu, elements);
        let exact_options = AtaOptions { kernel: None, ..options.product.clone() };
        let inverses = match options.preconditioner {
            Preconditioner::None => None,
            Preconditioner::BlockJacobi => Some(matrix.inverses()?),
        };
        let kernel = |stage| gpu.kernel("ata", of_stage(stage, inverses.is_some()).name);
        let mut plan = Self {
            matrix,
            frames,
            options,
            product,
            exact: AtaPlan::new(matrix.exact()?, frames, &exact_options)?,
            inverses,
            start: kernel(CgStage::Start)?,
            step: kernel(CgStage::Step)?,
            replace: kernel(CgStage::Replace)?,
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
    /// [`Error::Driver`]. To run out of iterations or of precision is none: see [`CgReport`].
    pub fn solve_blocking<'s>(
        &mut self,
        stream: impl Into<StreamRef<'s>>,
        b: TensorRef<'_, f32, 3>,
        guess: Option<TensorRef<'_, f32, 3>>,
        x: TensorMut<'_, f32, 3>,
    ) -> Result<CgReport> {
        let stream = stream.into();
        self.check(stream, b, guess, &x)?;
        if self.states.is_empty() {
            return Ok(self.report(&[]));
        }
        if let Some(guess) = guess {
            let (shape, strides) = (self.vectors.shape, self.vectors.strides());
            self.exact.run(stream, guess, TensorMut::strided(&mut self.vectors.q, 0, shape, strides)?)?;
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
        let max_iterations = self.options.max_iterations;
        let goes_on = |states: &[CgState]| {
            states.iter().any(|state| state.status == CgStatus::Active && state.iterations < max_iterations)
        };
        let waits = |states: &[CgState]| states.iter().any(|state| state.status == CgStatus::Waiting);
        let mut states = loop {
            match &self.graph {
                // A few iterations more than are left do nothing: systems count their own.
                Some((graph, each)) => (0..self.options.test_every.div_ceil(*each)).try_for_each(|_| {
                    // SAFETY: what the graph refers to is this plan's, and dropping a buffer waits for the work that
                    // uses it.
                    unsafe { graph.launch(stream) }
                })?,
                None => self.iterate(stream, self.options.test_every)?,
            }
            let mut states = self.states(stream)?;
            // Systems that wait get a look of their own only where nothing else is to be done meanwhile.
            while waits(&states) {
                self.replace(stream, &args)?;
                if goes_on(&states) {
                    break;
                }
                states = self.states(stream)?;
            }
            if !goes_on(&states) {
                break states;
            }
        };
        if states.iter().any(|state| state.status == CgStatus::Active) {
            self.replace(stream, &args)?;
            states = self.states(stream)?;
        }
        self.check_states(&states)?;
        self.launch(stream, &self.finish, CgStage::Finish, &args)?;
        stream.synchronize()?;
        Ok(self.report(&states))
    }

    /// Enqueues the true residuals of systems that wait for them or have no iterations left.
    fn replace(&mut self, stream: StreamRef<'_>, args: &CgArgs) -> Result<()> {
        let (shape, strides) = (self.vectors.shape, self.vectors.strides());
        let x = TensorRef::strided(&self.vectors.x, 0, shape, strides)?;
        self.exact.run(stream, x, TensorMut::strided(&mut self.vectors.q, 0, shape, strides)?)?;
        self.launch(stream, &self.replace, CgStage::Replace, args)
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
            has_shape(OP, tensor, &got, &self.vectors.shape)?;
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
            inverses: self.inverses.map_or(0, Buffer::as_raw),
            tolerance: self.options.tolerance,
            replaced_at: unit(self.matrix.precision()),
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
        let cg_config = of_stage(stage, self.inverses.is_some());
        let config = LaunchConfig {
            shared_bytes: cg_config.smem().total_bytes(),
            ..LaunchConfig::of_blocks((self.states.len() / STATE_WORDS) as u32, cg_config.threads())
        };
        // SAFETY: grid, block and shared memory are the configuration's; the vectors are the plan's own and of its
        // sizes, and the tensors were checked; the memory of all of them is kept by its owners until the stream has
        // done the work.
        unsafe { kernel.launch(stream, &config, &[args]) }
    }

    fn states(&self, stream: StreamRef<'_>) -> Result<Vec<CgState>> {
        let words = self.states.download_blocking(stream)?;
        Ok(words.as_chunks().0.iter().map(|&words| CgState::decode(words)).collect())
    }

    fn check_states(&self, states: &[CgState]) -> Result<()> {
        let broken = states.iter().enumerate().filter_map(|(system, state)| {
            let cause = match state.status {
                CgStatus::Active | CgStatus::Waiting | CgStatus::Converged | CgStatus::Stagnated => return None,
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
            outcome: match state.status {
                CgStatus::Converged => CgOutcome::Converged,
                CgStatus::Stagnated => CgOutcome::Stagnated,
                _ => CgOutcome::IterationLimit,
            },
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

/// What a product in a precision loses of a number, at most. The residual is replaced when its square has fallen to
/// this share, and so its norm to the root of the share. The difference of the two residuals, relative to the smaller
/// one, is about as large then. Before that there is nothing to replace, and much later there is nothing left to keep
/// directions for (van der Vorst and Ye).
const fn unit(precision: Precision) -> f64 {
    match precision {
        Precision::F32 | Precision::Tf32x3 => 1.0 / (1 << 22) as f64,
        Precision::Tf32 | Precision::F16 => 1.0 / (1 << 11) as f64,
        Precision::Bf16 => 1.0 / (1 << 9) as f64,
    }
}

// SAFETY: plain `repr(C)` data without padding between what the kernels read.
unsafe impl KernelParam for CgArgs {}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use layout::Arch;
    use ndarray::Array3;
    use variants::ata::Precision;

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
