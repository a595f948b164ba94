//! One product: its inputs, what is expected of it, where its tensors lie, and a run of one kernel on it.

use std::fmt;

use ferrotile::reference::{self, GemmTerms};
use ferrotile::{
    Accumulation, Activation, Buffer, Float, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, Stream,
    TensorMut, TensorRef, tolerance,
};
use libtest_mimic::Failed;
use ndarray::{Array1, Array3, ArrayView3};
use tests::catalogue::gemm_configs;
use tests::compare;
use tests::guard::{Guarded, Poison};
use tests::inputs;
use tests::view::View;
use variants::gemm::{CHUNK_BYTES, GemmConfig, GemmUnit};

/// What a trial returns.
pub(crate) type Outcome = Result<(), Failed>;

/// An element type of D.
pub(crate) trait Stored: Float + Poison + Into<f64> {}
impl<T: Float + Poison + Into<f64>> Stored for T {}

/// Workspace for whatever a plan of these tests may need.
const WORKSPACE_BYTES: usize = 64 << 20;

/// Sizes, layout, factors and what follows the product.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Case {
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) layout: GemmLayout,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) bias: bool,
    pub(crate) activation: Activation,
    pub(crate) accumulation: Accumulation,
}

impl Case {
    /// `D = A B`.
    pub(crate) const fn new([m, n, k]: [usize; 3], layout: GemmLayout) -> Case {
        Case {
            batch: 1,
            m,
            n,
            k,
            layout,
            alpha: 1.0,
            beta: 0.0,
            bias: false,
            activation: Activation::None,
            accumulation: Accumulation::TwoLevel,
        }
    }

    /// The same with several products.
    pub(crate) const fn batched(self, batch: usize) -> Case {
        Case { batch, ..self }
    }

    /// The problem, of aligned operands.
    pub(crate) fn problem<A: Float, B: Float, D: Float>(&self) -> GemmProblem {
        let Case { batch, m, n, k, .. } = *self;
        GemmProblem { batch, ..GemmProblem::new([m, n, k], A::DTYPE, B::DTYPE, D::DTYPE) }
    }

    /// The options, for a configuration and splits of k.
    pub(crate) fn options(&self, way: &Way) -> GemmOptions {
        GemmOptions {
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            accumulation: self.accumulation,
            kernel: Some(way.config.name.to_owned()),
            splits: Some(way.splits),
            max_workspace_bytes: WORKSPACE_BYTES,
            ..GemmOptions::new(self.layout)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { batch, m, n, k, layout, alpha, beta, bias, activation, .. } = self;
        write!(f, "{batch}x{m}x{n}x{k} {layout} alpha {alpha} beta {beta} bias {bias} {activation}")
    }
}

/// One way to compute a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) config: &'static GemmConfig,
    pub(crate) splits: usize,
}

/// Runs `body` for every configuration that serves the case, with k in one split and, where there are as many tiles, in
/// three. The failures of all of them are told.
pub(crate) fn for_each_way<A: Float, B: Float>(
    gpu: &Gpu,
    case: &Case,
    aligned: bool,
    body: impl Fn(&Way) -> Outcome,
) -> Outcome {
    let mut failures = Vec::new();
    let mut count = 0;
    for config in gemm_configs(A::DTYPE, B::DTYPE, case.accumulation).filter(|config| config.is_in(gpu.arch())) {
        // What is copied first, FP8 alone, has contiguous k.
        let layout = if A::DTYPE.size_bytes() == 1 { GemmLayout::Nt } else { case.layout };
        if !config.takes(layout, aligned || A::DTYPE.size_bytes() == 1) {
            continue;
        }
        if config.unit == GemmUnit::Wgmma && case.k == 0 {
            // Tensor maps of nothing do not exist.
            continue;
        }
        let k_tiles = case.k.div_ceil(config.tile.k).max(1);
        for splits in [1, 3].into_iter().filter(|&splits| k_tiles.div_ceil(k_tiles.div_ceil(splits)) == splits) {
            count += 1;
            if let Err(failure) = body(&Way { config, splits }) {
                let message = failure.message().unwrap_or("failed");
                failures.push(format!("{case}, {config} in {splits} splits of k: {message}"));
            }
        }
    }
    if count == 0 {
        failures.push(format!("{case}: no configuration serves it"));
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Elements of the tensors, in the order that they are stored in.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<A, B, D> {
    pub(crate) a: Vec<A>,
    pub(crate) b: Vec<B>,
    pub(crate) c: Vec<D>,
    pub(crate) bias: Vec<f32>,
}

impl<A: Float, B: Float, D: Stored> Inputs<A, B, D> {
    /// Elements that `draw` gives: of A and B, then of C and the bias.
    fn drawn(case: &Case, mut draw: impl FnMut() -> f64) -> Self {
        let Case { batch, m, n, k, .. } = *case;
        let mut elements = |count: usize| (0..count).map(|_| draw()).collect::<Vec<f64>>();
        let (a, b) = (elements(batch * m * k), elements(batch * k * n));
        let (c, bias) = (elements(batch * m * n), elements(n));
        Self {
            a: a.into_iter().map(A::from_f64).collect(),
            b: b.into_iter().map(B::from_f64).collect(),
            c: c.into_iter().map(D::from_f64).collect(),
            bias: bias.into_iter().map(|x| x as f32).collect(),
        }
    }

    /// Normally distributed elements.
    pub(crate) fn normal(case: &Case, seed: u64) -> Self {
        let mut random = inputs::random(seed);
        Self::drawn(case, || inputs::normal_number(&mut random))
    }

    /// Integers from -2 to 2, with which every sum is exact.
    pub(crate) fn integers(case: &Case, seed: u64) -> Self {
        let mut random = inputs::random(seed);
        Self::drawn(case, || inputs::integer(&mut random, 2))
    }

    /// What the case gives on these inputs.
    pub(crate) fn expected(&self, case: &Case) -> Expected {
        let problem = case.problem::<A, B, D>();
        let wide = |values: Vec<f64>, shape: [usize; 3], transposed: bool| {
            let array = Array3::from_shape_vec(shape, values).expect("elements fill the shape");
            if transposed { array.permuted_axes([0, 2, 1]) } else { array }
        };
        let a = wide(self.a.iter().map(|x| x.to_f64()).collect(), problem.a_shape(case.layout), {
            matches!(case.layout, GemmLayout::Tn | GemmLayout::Tt)
        });
        let b = wide(self.b.iter().map(|x| x.to_f64()).collect(), problem.b_shape(case.layout), {
            matches!(case.layout, GemmLayout::Nt | GemmLayout::Tt)
        });
        let c = wide(self.c.iter().map(|x| x.to_f64()).collect(), problem.d_shape(), false);
        let bias = Array1::from_iter(self.bias.iter().map(|&x| f64::from(x)));
        let terms = GemmTerms {
            alpha: case.alpha.into(),
            beta: case.beta.into(),
            c: (case.beta != 0.0).then(|| c.view()),
            bias: case.bias.then(|| bias.view()),
            activation: case.activation,
            d_scale: 1.0,
        };
        Expected::new(&problem, case.accumulation, a.view(), b.view(), &terms)
    }
}

/// The result in f64 and how far from it a kernel may be.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) d: Vec<f64>,
    pub(crate) limit: f64,
}

/// How much tensor cores cut off normally distributed numbers, as a share of what they may cut off. Cuts of numbers of
/// either sign cancel, and most of these numbers have fewer bits than are kept.
const SHARE_OF_NORMAL: f64 = 1.0 / 24.0;

impl Expected {
    fn new(
        problem: &GemmProblem,
        accumulation: Accumulation,
        a: ArrayView3<'_, f64>,
        b: ArrayView3<'_, f64>,
        terms: &GemmTerms<'_>,
    ) -> Expected {
        let d = reference::gemm(a, b, terms).into_raw_vec_and_offset().0;
        let rounded = reference::gemm_rounded(a, b, terms, problem.d).into_raw_vec_and_offset().0;
        let magnitude = reference::gemm_magnitude(a, b, terms, [problem.a, problem.b]);
        let cost = tolerance::max_error(&rounded, &d);
        let limit = |magnitude| tolerance::gemm_limit(problem, accumulation, cost, magnitude);
        let of_functions = magnitude * (-20f64).exp2();
        let limit = limit(0.0) + (limit(magnitude) - limit(0.0)) * SHARE_OF_NORMAL + of_functions;
        Expected { limit, d }
    }
}

/// Where the tensors of a call lie: batch, row and column are the last three dimensions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) a: View,
    pub(crate) b: View,
    pub(crate) c: View,
    pub(crate) d: View,
}

/// A tensor without gaps.
pub(crate) fn dense([batch, rows, columns]: [usize; 3]) -> View {
    padded([batch, rows, columns], columns, rows * columns)
}

/// A tensor whose rows and batch entries are as far apart as said.
pub(crate) fn padded([batch, rows, columns]: [usize; 3], row: usize, matrix: usize) -> View {
    View { offset: 0, shape: [1, batch, rows, columns], strides: [0, matrix as i64, row as i64, 1] }
}

impl Placement {
    /// Tensors without gaps.
    pub(crate) fn contiguous<A: Float, B: Float, D: Float>(case: &Case) -> Placement {
        Placement::of::<A, B, D>(case, dense)
    }

    /// Tensors that lie as `view` says for each shape.
    pub(crate) fn of<A: Float, B: Float, D: Float>(case: &Case, view: impl Fn([usize; 3]) -> View) -> Placement {
        let problem = case.problem::<A, B, D>();
        Placement {
            a: view(problem.a_shape(case.layout)),
            b: view(problem.b_shape(case.layout)),
            c: view(problem.d_shape()),
            d: view(problem.d_shape()),
        }
    }
}

/// The three last dimensions of a view, as a call takes them.
fn last_three(view: &View) -> ([usize; 3], [i64; 3]) {
    let ([_, batch, rows, columns], [_, matrix, row, column]) = (view.shape, view.strides);
    ([batch, rows, columns], [matrix, row, column])
}

/// A view of a buffer for reading.
pub(crate) fn tensor<'a, T: Float>(buffer: &'a Buffer<T>, view: &View) -> ferrotile::Result<TensorRef<'a, T, 3>> {
    let (shape, strides) = last_three(view);
    TensorRef::strided(buffer, view.offset, shape, strides)
}

/// A view of a buffer for writing.
pub(crate) fn tensor_mut<'a, T: Float>(
    buffer: &'a mut Buffer<T>,
    view: &View,
) -> ferrotile::Result<TensorMut<'a, T, 3>> {
    let (shape, strides) = last_three(view);
    TensorMut::strided(buffer, view.offset, shape, strides)
}

/// Inputs on a device; what lies between the elements is `poison` of their type.
pub(crate) struct OnDevice<A, B, D> {
    pub(crate) a: Buffer<A>,
    pub(crate) b: Buffer<B>,
    pub(crate) c: Buffer<D>,
    pub(crate) bias: Buffer<f32>,
}

impl<A: Stored, B: Stored, D: Stored> OnDevice<A, B, D> {
    pub(crate) fn upload(stream: &Stream, inputs: &Inputs<A, B, D>, placement: &Placement) -> Result<Self, Failed> {
        fn placed<T: Stored>(stream: &Stream, values: &[T], view: &View) -> Result<Buffer<T>, Failed> {
            // Up to a whole chunk: memcheck counts 16 bytes for a copy of fewer. What is added is NaN, and would show
            // if it were read.
            let chunk_elems = CHUNK_BYTES / size_of::<T>();
            let mut storage = vec![T::poison(); view.storage_len().next_multiple_of(chunk_elems)];
            view.scatter(values, &mut storage);
            Ok(Buffer::upload_blocking(stream, &storage)?)
        }
        Ok(Self {
            a: placed(stream, &inputs.a, &placement.a)?,
            b: placed(stream, &inputs.b, &placement.b)?,
            c: placed(stream, &inputs.c, &placement.c)?,
            bias: Buffer::upload_blocking(stream, &inputs.bias)?,
        })
    }

    /// The tensors of a call.
    pub(crate) fn tensors<'a>(
        &'a self,
        case: &Case,
        placement: &Placement,
        d: TensorMut<'a, D, 3>,
    ) -> Result<GemmTensors<'a, A, B, D>, Failed> {
        let plain = GemmTensors::new(tensor(&self.a, &placement.a)?, tensor(&self.b, &placement.b)?, d);
        let bias = if case.bias { Some(TensorRef::contiguous(&self.bias, [case.n])?) } else { None };
        // With beta = 0 C is given all the same, and is not read.
        Ok(GemmTensors { c: Some(tensor(&self.c, &placement.c)?), bias, ..plain })
    }
}

/// Runs one kernel and returns D in C order, after checks that nothing else was written: not around D, nor between its
/// rows.
pub(crate) fn run<A: Stored, B: Stored, D: Stored>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<A, B, D>,
    placement: &Placement,
    way: &Way,
) -> Result<Vec<D>, Failed> {
    let stream = gpu.new_stream()?;
    let on_device = OnDevice::upload(&stream, inputs, placement)?;
    let mut guarded = Guarded::<D>::new(gpu, &stream, placement.d.storage_len())?;
    let view = placement.d.moved(guarded.offset());
    {
        let d = tensor_mut(guarded.buffer(), &view)?;
        let tensors = on_device.tensors(case, placement, d)?;
        let problem = GemmProblem::of(&tensors, case.layout)?;
        let plan = GemmPlan::new(gpu, &problem, &case.options(way))?;
        let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
        workspace.fill_bytes(&stream, 0xFF)?;
        let bytes = workspace.len();
        plan.run(stream.as_ref(), tensors, Some(TensorMut::contiguous(&mut workspace, [bytes])?))?;
        stream.synchronize()?;
    }
    let storage = guarded.read(&stream)?;
    let mut between = vec![true; storage.len()];
    placement.d.places().for_each(|place| between[place] = false);
    if let Some(place) = (0..storage.len()).find(|&place| between[place] && !storage[place].is_poison()) {
        return Err(format!("element {place} between the rows of D was written").into());
    }
    Ok(placement.d.gather(&storage))
}

/// Checks D against what is expected.
pub(crate) fn check<D: Stored>(case: &Case, d: &[D], expected: &Expected) -> Outcome {
    compare::check(d, &expected.d, &[case.batch, case.m, case.n], expected.limit)?;
    Ok(())
}

/// Runs every way on contiguous tensors and checks it.
pub(crate) fn check_every_way<A: Stored, B: Stored, D: Stored>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<A, B, D>,
) -> Outcome {
    let placement = Placement::contiguous::<A, B, D>(case);
    let expected = inputs.expected(case);
    for_each_way::<A, B>(gpu, case, is_aligned::<A, B>(case), |way| {
        check(case, &run(gpu, case, inputs, &placement, way)?, &expected)
    })
}

/// Whether contiguous operands of the case have rows on 16-byte boundaries, both of them.
pub(crate) fn is_aligned<A: Float, B: Float>(case: &Case) -> bool {
    aligned_operands::<A, B>(case) == [true, true]
}

/// Whether contiguous A and B of the case have rows on 16-byte boundaries.
pub(crate) fn aligned_operands<A: Float, B: Float>(case: &Case) -> [bool; 2] {
    let problem = case.problem::<A, B, f32>();
    let aligned = |[batch, rows, columns]: [usize; 3], element_bytes: usize| {
        (batch * rows <= 1) || (columns * element_bytes).is_multiple_of(16)
    };
    [
        aligned(problem.a_shape(case.layout), A::DTYPE.size_bytes()),
        aligned(problem.b_shape(case.layout), B::DTYPE.size_bytes()),
    ]
}
