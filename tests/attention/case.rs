//! One attention case: its inputs, what is expected of it, where its tensors lie, and a run of one kernel on it.

use std::fmt;

use ferrotile::reference::AttentionTerms;
use ferrotile::{
    AttentionTensors, BatchedSizes, Buffer, Gpu, Layout, Mask, TensorMut, TensorRef, attention, reference, tolerance,
};
use libtest_mimic::Failed;
use ndarray::{Array3, Array4};
use tests::catalogue::attention_configs;
use tests::compare::{self, Difference};
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::is_small;
use tests::request::Request;
use tests::view::View;
use variants::attention::{AttentionConfig, AttentionKernel, ScoreMod, Seqlens};

use crate::scores::Terms;

/// What a trial returns.
pub(crate) type Outcome = Result<(), Failed>;

/// Sizes, mask and scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Case {
    /// The sizes.
    pub(crate) sizes: BatchedSizes,
    /// The mask.
    pub(crate) mask: Mask,
    /// The scale; `None` for the usual one.
    pub(crate) scale: Option<f32>,
}

impl Case {
    /// A case of as many query heads as key heads, with the usual scale.
    pub(crate) fn new(batch: usize, heads: usize, q_len: usize, k_len: usize, head_dim: usize, mask: Mask) -> Case {
        let sizes = BatchedSizes { batch, q_heads: heads, kv_heads: heads, q_len, k_len, head_dim };
        Case { sizes, mask, scale: None }
    }

    /// The same case with `q_heads` query heads on `kv_heads` key heads.
    pub(crate) fn grouped(mut self, q_heads: usize, kv_heads: usize) -> Case {
        (self.sizes.q_heads, self.sizes.kv_heads) = (q_heads, kv_heads);
        self
    }

    /// The same case with another scale.
    pub(crate) fn scaled(self, scale: f32) -> Case {
        Case { scale: Some(scale), ..self }
    }

    /// Batch, query heads, rows, head dimension.
    pub(crate) fn q_shape(&self) -> [usize; 4] {
        self.sizes.q_shape(Layout::Bhsd)
    }

    /// Batch, key heads, keys, head dimension.
    pub(crate) fn kv_shape(&self) -> [usize; 4] {
        self.sizes.kv_shape(Layout::Bhsd)
    }

    /// Batch, query heads, rows.
    pub(crate) fn lse_shape(&self) -> [usize; 3] {
        [self.sizes.batch, self.sizes.q_heads, self.sizes.q_len]
    }

    /// The kernels of a device that serve the case and are made for no more than it asks.
    pub(crate) fn configs<T: Half>(&self, gpu: &Gpu) -> impl Iterator<Item = &'static AttentionConfig> + use<T> {
        let plain = |config: &&AttentionConfig| (config.score_mod, config.seqlens) == (ScoreMod::None, Seqlens::Fixed);
        self.configs_of::<T>(gpu, ScoreMod::None, Seqlens::Fixed).filter(plain)
    }

    /// The kernels of a device that serve the case with these scores and lengths.
    pub(crate) fn configs_of<T: Half>(
        &self,
        gpu: &Gpu,
        scores: ScoreMod,
        lengths: Seqlens,
    ) -> impl Iterator<Item = &'static AttentionConfig> + use<T> {
        let Case { sizes, mask, .. } = *self;
        attention_configs(gpu.arch(), T::DTYPE, [sizes.head_dim; 2])
            .filter(move |config| config.covers(scores, lengths))
            .filter(move |config| config.takes(mask, sizes.q_len, sizes.k_len))
    }

    /// The usual scale, where the case has none.
    pub(crate) fn scale(&self) -> f64 {
        self.scale.map_or_else(|| (self.sizes.head_dim as f64).sqrt().recip(), f64::from)
    }

    /// The options that ask for one kernel.
    pub(crate) fn options(&self, layout: Layout, config: &AttentionConfig) -> Request {
        let Case { mask, scale, .. } = *self;
        Request { mask, scale, kernel: Some(config.name.to_owned()), ..Request::new(layout) }
    }
}

/// `2x8:2x33x65x64/causal`: batch, query heads (and key heads where they differ), rows, keys, head dimension, mask.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = self.sizes;
        write!(f, "{batch}x{q_heads}")?;
        if q_heads != kv_heads {
            write!(f, ":{kv_heads}")?;
        }
        write!(f, "x{q_len}x{k_len}x{head_dim}/{}", self.mask)?;
        self.scale.map_or(Ok(()), |scale| write!(f, "/scale {scale}"))
    }
}

/// Q, K and V in the order batch, head, row, element.
#[derive(Debug, Clone)]
pub(crate) struct Inputs<T> {
    /// Elements of Q.
    pub(crate) q: Vec<T>,
    /// Elements of K.
    pub(crate) k: Vec<T>,
    /// Elements of V.
    pub(crate) v: Vec<T>,
}

impl<T: Half> Inputs<T> {
    /// Normally distributed elements with mean 0 and deviation 1.
    pub(crate) fn normal(case: &Case, seed: u64) -> Inputs<T> {
        Inputs::of_deviation(case, seed, [1.0; 3])
    }

    /// Normally distributed elements with these deviations of Q, K and V.
    pub(crate) fn of_deviation(case: &Case, seed: u64, [q, k, v]: [f64; 3]) -> Inputs<T> {
        let mut random = inputs::random(seed);
        let mut draw = |shape: [usize; 4], deviation| inputs::normal(&mut random, shape.iter().product(), deviation);
        Inputs { q: draw(case.q_shape(), q), k: draw(case.kv_shape(), k), v: draw(case.kv_shape(), v) }
    }

    /// What attention of the case gives on these inputs.
    pub(crate) fn expected(&self, case: &Case) -> Expected {
        self.expected_of(case, &AttentionTerms::new(case.mask, case.scale()))
    }

    /// What attention of the case gives on these inputs, with these terms.
    pub(crate) fn expected_of(&self, case: &Case, terms: &AttentionTerms<'_>) -> Expected {
        let wide = self.wide(case);
        let [q, k, v] = wide.each_ref().map(|tensor| tensor.view());
        let exact = reference::attention_with(q, k, v, terms);
        Expected::new::<T>(exact, reference::attention_with_rounded(q, k, v, terms, T::DTYPE))
    }

    /// How far the LSE of attention on these inputs may be off where sums over the head dimension cost most: each
    /// operation of a tensor core loses a share of a large score.
    pub(crate) fn lse_limit(&self, case: &Case) -> f64 {
        let (wide, terms) = (self.wide(case), AttentionTerms::new(case.mask, case.scale()));
        let [q, k, v] = wide.each_ref().map(|tensor| tensor.view());
        let (out, lse) = reference::attention_with(q, k, v, &terms);
        let limits = tolerance::attention_limits([q, k, v], &terms, T::DTYPE, (out.view(), lse.view()));
        limits.lse.into_iter().fold(0.0, f64::max)
    }

    /// Q, K and V in f64.
    fn wide(&self, case: &Case) -> [Array4<f64>; 3] {
        [(&self.q, case.q_shape()), (&self.k, case.kv_shape()), (&self.v, case.kv_shape())].map(|(values, shape)| {
            Array4::from_shape_vec(shape, values.iter().map(|x| x.to_f64()).collect()).expect("elements fill the shape")
        })
    }
}

/// The result in f64 and how far from it a kernel may be.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// O in the order batch, head, row, element.
    pub(crate) out: Vec<f64>,
    /// LSE.
    pub(crate) lse: Vec<f64>,
    /// The largest error of O.
    pub(crate) limit: Difference,
    /// The largest error of an element of LSE.
    pub(crate) lse_limit: f64,
}

/// O and LSE of a reference.
type Solution = (Array4<f64>, Array3<f64>);

impl Expected {
    /// An exact result, and how far a kernel may be from it where the obvious computation gives `rounded`.
    pub(crate) fn new<T: Half>((out, lse): Solution, (rounded, rounded_lse): Solution) -> Expected {
        let (out, lse) = (out.into_raw_vec_and_offset().0, lse.into_raw_vec_and_offset().0);
        let cost = compare::difference(&rounded.into_raw_vec_and_offset().0, &out);
        let lse_cost = tolerance::max_error(&rounded_lse.into_raw_vec_and_offset().0, &lse);
        let largest = lse.iter().filter(|x| x.is_finite()).fold(0f64, |largest, x| largest.max(x.abs()));
        Expected {
            limit: Difference {
                max_abs: tolerance::limit(T::DTYPE, cost.max_abs),
                relative: tolerance::limit(T::DTYPE, cost.relative),
            },
            lse_limit: tolerance::lse_limit(largest, lse_cost),
            out,
            lse,
        }
    }
}

/// The result of a kernel, in the order batch, head, row, element.
#[derive(Debug, Clone)]
pub(crate) struct Output<T> {
    /// O.
    pub(crate) out: Vec<T>,
    /// LSE.
    pub(crate) lse: Vec<f32>,
}

impl<T: Half> Output<T> {
    /// Checks O and LSE.
    pub(crate) fn check(&self, case: &Case, expected: &Expected) -> Outcome {
        let Expected { out, lse, limit, lse_limit } = expected;
        let difference = compare::check(&self.out, out, &case.q_shape(), limit.max_abs)?;
        if difference.relative > limit.relative {
            return Err(format!("relative error {:.3e}, limit {:.3e}", difference.relative, limit.relative).into());
        }
        compare::check(&self.lse, lse, &case.lse_shape(), *lse_limit).map_err(|error| format!("LSE: {error}"))?;
        Ok(())
    }

    /// Checks that another run gave the same bits.
    pub(crate) fn check_same(&self, case: &Case, other: &Output<T>) -> Outcome {
        compare::check_same(&self.out, &other.out, &case.q_shape())?;
        compare::check_same(&self.lse, &other.lse, &case.lse_shape()).map_err(|error| format!("LSE: {error}"))?;
        Ok(())
    }
}

/// Where the tensors of a call lie in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    /// The order of the dimensions that the call is given.
    pub(crate) layout: Layout,
    /// Views of Q, K and V, each of its own storage unless `fused`.
    pub(crate) inputs: [View; 3],
    /// Whether Q, K and V share one storage.
    pub(crate) fused: bool,
    /// The view of O.
    pub(crate) out: View,
}

impl Placement {
    /// Whether TMA, which knows no negative strides, can copy inputs that are placed so, and 16-byte stores can write
    /// the output. Kernels that need both refuse other placements.
    pub(crate) fn is_regular(&self) -> bool {
        let steps = |view: &View| view.shape.into_iter().zip(view.strides).take(3).filter(|&(len, _)| len > 1);
        let is_aligned = |view: &View| view.offset.is_multiple_of(8) && steps(view).all(|(_, stride)| stride % 8 == 0);
        self.inputs.iter().chain([&self.out]).all(is_aligned)
            && self.inputs.iter().flat_map(steps).all(|(_, stride)| stride >= 0)
    }

    /// Tensors without gaps.
    pub(crate) fn contiguous(case: &Case, layout: Layout) -> Placement {
        let (q, kv) = (View::contiguous(case.q_shape(), layout), View::contiguous(case.kv_shape(), layout));
        Placement { layout, inputs: [q, kv, kv], fused: false, out: q }
    }
}

/// Runs one kernel on tensors placed as asked.
///
/// The storage of the inputs is NaN between and around their elements, the output is poison before the run, and
/// whatever the output's view does not cover must be poison after it.
pub(crate) fn run<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    placement: &Placement,
    config: &AttentionConfig,
) -> Result<Output<T>, Failed> {
    run_with(gpu, case, inputs, placement, &case.options(placement.layout, config))
}

/// As [`run`], with any options; in a workspace where they allow one.
pub(crate) fn run_with<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    placement: &Placement,
    options: &Request,
) -> Result<Output<T>, Failed> {
    run_with_terms(gpu, case, inputs, placement, &Terms::NONE, options)
}

/// As [`run_with`], with these terms in place of those of the options.
pub(crate) fn run_with_terms<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    placement: &Placement,
    terms: &Terms<T>,
    options: &Request,
) -> Result<Output<T>, Failed> {
    let stream = gpu.new_stream()?;
    let (stored, stored_terms) = (Stored::upload(gpu, inputs, placement)?, terms.upload(gpu)?);
    let mut out = Guarded::<T>::new(gpu, &stream, placement.out.storage_len())?;
    let mut lse = Guarded::<f32>::new(gpu, &stream, case.lse_shape().iter().product())?;
    let (out_view, lse_offset) = (placement.out.moved(out.offset()), lse.offset());
    let [q, k, v] = stored.tensors(placement)?;
    let mut tensors = AttentionTensors {
        lse: Some(TensorMut::strided(lse.buffer(), lse_offset, case.lse_shape(), dense(case.lse_shape()))?),
        sink: stored_terms.sink()?,
        bias: stored_terms.bias()?,
        ..AttentionTensors::new(q, k, v, out_view.tensor_mut(out.buffer(), placement.layout)?)
    };
    let options = Request { softcap: terms.softcap, bias: terms.bias.is_some(), ..options.clone() };
    if options.max_workspace_bytes == 0 {
        attention(&stream, tensors, &options.params(), &options.options())?;
    } else {
        let plan = options.plan(gpu, T::DTYPE, case.sizes)?;
        let bytes = plan.workspace_bytes();
        let mut workspace = Buffer::<u8>::zeroed(gpu, bytes)?;
        workspace.fill_bytes(&stream, 0xFF)?;
        tensors.workspace = Some(TensorMut::contiguous(&mut workspace, [bytes])?);
        plan.run(stream.as_ref(), tensors)?;
        stream.synchronize()?;
    }
    let (storage, lse) = (out.read(&stream)?, lse.read(&stream)?);
    let mut rest = storage.clone();
    placement.out.scatter(&vec![T::poison(); placement.out.count()], &mut rest);
    match rest.iter().position(|x| !x.is_poison()) {
        Some(index) => Err(format!("element {index} of the storage, between those of the output, was written").into()),
        None => Ok(Output { out: placement.out.gather(&storage), lse }),
    }
}

/// Runs one kernel on tensors placed as asked or, where it takes no such placement, checks that it says so: `None`.
pub(crate) fn run_or_refuse<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    placement: &Placement,
    config: &AttentionConfig,
) -> Result<Option<Output<T>>, Failed> {
    if matches!(config.kernel, AttentionKernel::Wgmma(_)) && !placement.is_regular() {
        return match run(gpu, case, inputs, placement, config) {
            Ok(_) => Err("a placement that TMA cannot express was not refused".into()),
            Err(failed)
                if failed.message().is_some_and(|text| text.contains("boundary") || text.contains("strides")) =>
            {
                Ok(None)
            }
            Err(failed) => Err(failed),
        };
    }
    run(gpu, case, inputs, placement, config).map(Some)
}

/// Runs one kernel on tensors without gaps.
pub(crate) fn run_contiguous<T: Half>(
    gpu: &Gpu,
    case: &Case,
    inputs: &Inputs<T>,
    config: &AttentionConfig,
) -> Result<Output<T>, Failed> {
    run(gpu, case, inputs, &Placement::contiguous(case, Layout::Bhsd), config)
}

/// So many batch entries or heads, and one where trials are small: for a property that does not depend on them.
pub(crate) fn few(gpu: &Gpu, many: usize) -> usize {
    if is_small(gpu) { 1 } else { many }
}

/// Calls `check` for every kernel that serves the case; the failure names each kernel that failed.
pub(crate) fn for_each_config<T: Half>(
    gpu: &Gpu,
    case: &Case,
    check: impl FnMut(&'static AttentionConfig) -> Outcome,
) -> Outcome {
    for_configs(case, case.configs::<T>(gpu), check)
}

/// Calls `check` for each configuration, of which there must be one; the failure names the case and each one that
/// failed.
pub(crate) fn for_configs(
    case: impl fmt::Display,
    configs: impl Iterator<Item = &'static AttentionConfig>,
    mut check: impl FnMut(&'static AttentionConfig) -> Outcome,
) -> Outcome {
    let mut failures = Vec::new();
    let mut count = 0;
    for config in configs {
        count += 1;
        if let Err(failure) = check(config) {
            failures.push(format!("{case}, {config}: {}", failure.message().unwrap_or("failed")));
        }
    }
    if count == 0 {
        return Err(format!("no kernel serves {case}").into());
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

/// Inputs on a card.
pub(crate) struct Stored<T> {
    buffers: Vec<Buffer<T>>,
}

impl<T: Half> Stored<T> {
    /// Copies the inputs to where the placement wants them.
    pub(crate) fn upload(gpu: &Gpu, inputs: &Inputs<T>, placement: &Placement) -> Result<Stored<T>, Failed> {
        let stream = gpu.new_stream()?;
        let parts = [&inputs.q, &inputs.k, &inputs.v];
        let storages = if placement.fused { 1 } else { 3 };
        let mut contents = vec![Vec::new(); storages];
        for (index, (view, values)) in placement.inputs.iter().zip(parts).enumerate() {
            let storage = &mut contents[index % storages];
            storage.resize(storage.len().max(view.storage_len()), T::poison());
            view.scatter(values, storage);
        }
        let upload = |values: &Vec<T>| Buffer::upload_blocking(&stream, values);
        Ok(Stored { buffers: contents.iter().map(upload).collect::<Result<_, _>>()? })
    }

    /// Q, K and V as the call takes them.
    pub(crate) fn tensors(&self, placement: &Placement) -> Result<[TensorRef<'_, T, 4>; 3], Failed> {
        let layout = placement.layout;
        let tensor = |index: usize| placement.inputs[index].tensor(&self.buffers[index % self.buffers.len()], layout);
        Ok([tensor(0)?, tensor(1)?, tensor(2)?])
    }
}

/// Strides of a tensor without gaps.
pub(crate) fn dense<const RANK: usize>(shape: [usize; RANK]) -> [i64; RANK] {
    std::array::from_fn(|dim| shape[dim + 1..].iter().product::<usize>() as i64)
}
