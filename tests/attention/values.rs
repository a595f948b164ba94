//! V with a head dimension of its own.

use ferrotile::reference::{self, AttentionTerms};
use ferrotile::{
    AttentionTensors, BatchedSizes, Buffer, Descales, Error, Gpu, Layout, Mask, TensorMut, TensorRef, VarlenSizes,
    VarlenTensors, attention,
};
use half::{bf16, f16};
use libtest_mimic::Failed;
use ndarray::{Array3, Array4};
use tests::catalogue::attention_configs;
use tests::compare;
use tests::guard::Guarded;
use tests::inputs::{self, Half};
use tests::is_small;
use tests::request::Request;
use variants::attention::{AttentionConfig, ScoreMod, Seqlens};

use crate::Trials;
use crate::case::{Case, Expected, Outcome, dense, for_configs};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for dims in [(192, 128), (168, 104), (128, 64), (64, 128), (72, 40), (40, 256)] {
        let (head_dim, value_dim) = dims;
        let name = format!("values/of_{value_dim}_for_queries_of_{head_dim}");
        trials.both(&name, &dims, match_reference::<f16>, match_reference::<bf16>);
    }
    trials.both("values/refusals", &(), refusals::<f16>, refusals::<bf16>);
}

const BATCH: usize = 2;
const HEADS: [usize; 2] = [2, 1];

/// Q, K and V in the order batch, row, head, element, and what attention gives for them.
struct Values<T> {
    case: Case,
    value_dim: usize,
    q: Vec<T>,
    k: Vec<T>,
    v: Vec<T>,
    expected: Expected,
}

/// O in the same order, and the LSE.
type Output<T> = (Vec<T>, Vec<f32>);

impl<T: Half> Values<T> {
    fn new(q_len: usize, k_len: usize, (head_dim, value_dim): (usize, usize), mask: Mask) -> Values<T> {
        let case = Case::new(BATCH, 1, q_len, k_len, head_dim, mask).grouped(HEADS[0], HEADS[1]);
        let mut random = inputs::random(81);
        let shapes = [(q_len, HEADS[0], head_dim), (k_len, HEADS[1], head_dim), (k_len, HEADS[1], value_dim)];
        let [q, k, v] = shapes.map(|(rows, heads, columns)| -> Array4<f64> {
            let shape = (BATCH, rows, heads, columns);
            let values: Vec<T> = inputs::normal(&mut random, BATCH * rows * heads * columns, 1.0);
            let wide = values.iter().map(|value| value.to_f64()).collect();
            Array4::from_shape_vec(shape, wide).expect("the elements fill the shape")
        });
        let [q_view, k_view, v_view] = [&q, &k, &v].map(|array| array.view().permuted_axes([0, 2, 1, 3]));
        let terms = AttentionTerms::new(mask, case.scale());
        let in_order = |(out, lse): (Array4<f64>, Array3<f64>)| {
            (out.permuted_axes([0, 2, 1, 3]).as_standard_layout().into_owned(), lse)
        };
        let exact = in_order(reference::attention_with(q_view, k_view, v_view, &terms));
        let rounded = in_order(reference::attention_with_rounded(q_view, k_view, v_view, &terms, T::DTYPE));
        let [q, k, v] = [q, k, v].map(|array| array.iter().map(|&value| T::from_f64(value)).collect());
        Values { case, value_dim, q, k, v, expected: Expected::new::<T>(exact, rounded) }
    }

    fn options(&self, config: &AttentionConfig) -> Request {
        Request { value_dim: Some(self.value_dim), ..self.case.options(Layout::Bshd, config) }
    }

    /// Shapes of Q, K, V and O.
    fn shapes(&self) -> [[usize; 4]; 4] {
        let BatchedSizes { q_len, k_len, head_dim, .. } = self.case.sizes;
        [(q_len, 0, head_dim), (k_len, 1, head_dim), (k_len, 1, self.value_dim), (q_len, 0, self.value_dim)]
            .map(|(rows, heads, columns)| [BATCH, rows, HEADS[heads], columns])
    }

    /// By a plan for sequences of one length.
    fn run(&self, gpu: &Gpu, options: &Request) -> Result<Output<T>, Failed> {
        let stream = gpu.new_stream()?;
        let upload = |values: &[T]| Buffer::upload_blocking(&stream, values);
        let (q, k, v) = (upload(&self.q)?, upload(&self.k)?, upload(&self.v)?);
        let [q_shape, k_shape, v_shape, out_shape] = self.shapes();
        let mut out = Guarded::<T>::new(gpu, &stream, out_shape.iter().product())?;
        let mut lse = Guarded::<f32>::new(gpu, &stream, self.expected.lse.len())?;
        let (out_offset, lse_offset) = (out.offset(), lse.offset());
        let plan = options.plan(gpu, T::DTYPE, self.case.sizes)?;
        let mut workspace = Buffer::<u8>::zeroed(gpu, plan.workspace_bytes())?;
        let bytes = workspace.len();
        let tensors = AttentionTensors {
            lse: Some(TensorMut::strided(
                lse.buffer(),
                lse_offset,
                self.case.lse_shape(),
                dense(self.case.lse_shape()),
            )?),
            workspace: Some(TensorMut::contiguous(&mut workspace, [bytes])?),
            ..AttentionTensors::new(
                TensorRef::contiguous(&q, q_shape)?,
                TensorRef::contiguous(&k, k_shape)?,
                TensorRef::contiguous(&v, v_shape)?,
                TensorMut::strided(out.buffer(), out_offset, out_shape, dense(out_shape))?,
            )
        };
        plan.run(stream.as_ref(), tensors)?;
        Ok((out.read(&stream)?, lse.read(&stream)?))
    }

    /// By a plan for sequences of several lengths, of which these have one.
    fn run_as_sequences(&self, gpu: &Gpu, options: &Request) -> Result<Output<T>, Failed> {
        let stream = gpu.new_stream()?;
        let upload = |values: &[T]| Buffer::upload_blocking(&stream, values);
        let (q, k, v) = (upload(&self.q)?, upload(&self.k)?, upload(&self.v)?);
        let BatchedSizes { q_heads, kv_heads, q_len, k_len, head_dim, .. } = self.case.sizes;
        let starts = |len: usize| Buffer::upload_blocking(&stream, &[0, 1, 2].map(|entry: usize| (entry * len) as i32));
        let (q_starts, k_starts) = (starts(q_len)?, starts(k_len)?);
        let [q_shape, k_shape, v_shape, out_shape] =
            self.shapes().map(|[batch, rows, heads, columns]| [batch * rows, heads, columns]);
        let mut out = Guarded::<T>::new(gpu, &stream, out_shape.iter().product())?;
        let out_offset = out.offset();
        let mut lse = Buffer::<f32>::zeroed(gpu, self.expected.lse.len())?;
        let problem = VarlenSizes {
            batch: BATCH,
            q_heads,
            kv_heads,
            q_total: BATCH * q_len,
            k_total: BATCH * k_len,
            max_q_len: q_len,
            max_k_len: k_len,
            head_dim,
        };
        let tensors = VarlenTensors {
            descales: Descales::NONE,
            q: TensorRef::contiguous(&q, q_shape)?,
            k: TensorRef::contiguous(&k, k_shape)?,
            v: TensorRef::contiguous(&v, v_shape)?,
            out: TensorMut::strided(out.buffer(), out_offset, out_shape, dense(out_shape))?,
            cu_seqlens_q: TensorRef::contiguous(&q_starts, [BATCH + 1])?,
            cu_seqlens_k: TensorRef::contiguous(&k_starts, [BATCH + 1])?,
            lse: Some(TensorMut::contiguous(&mut lse, [q_heads, BATCH * q_len])?),
            sink: None,
            bias: None,
        };
        options.plan(gpu, T::DTYPE, problem)?.run(&stream, tensors)?;
        let by_head = lse.download_blocking(stream.as_ref())?;
        let by_entry = (0..BATCH * q_heads).flat_map(|index| {
            let (entry, head) = (index / q_heads, index % q_heads);
            by_head[(head * BATCH + entry) * q_len..][..q_len].to_vec()
        });
        Ok((out.read(&stream)?, by_entry.collect()))
    }

    fn check(&self, (out, lse): &Output<T>) -> Outcome {
        let difference = compare::check(out, &self.expected.out, &self.shapes()[3], self.expected.limit.max_abs)?;
        if difference.relative > self.expected.limit.relative {
            return Err(format!("relative error {:.3e}", difference.relative).into());
        }
        compare::check(lse, &self.expected.lse, &self.case.lse_shape(), self.expected.lse_limit)?;
        Ok(())
    }
}

/// Every kernel wide enough for both, a few rows in parts, and sequences that follow each other.
fn match_reference<T: Half>(gpu: &Gpu, &dims: &(usize, usize)) -> Outcome {
    let window = Mask::Window { left: 300, right: 40 };
    let few = (2, 41, Mask::Causal);
    let many = [(70, 133, Mask::Causal), (65, 64, Mask::Full), (300, 900, Mask::Full), (300, 900, window)];
    for (q_len, k_len, mask) in many.into_iter().filter(|_| !is_small(gpu)).chain([(17, 40, Mask::Full), few]) {
        let values = Values::<T>::new(q_len, k_len, dims, mask);
        let configs = |lengths: Seqlens| {
            attention_configs(gpu.arch(), T::DTYPE, [dims.0, dims.1])
                .filter(move |config| config.covers(ScoreMod::None, lengths) && config.takes(mask, q_len, k_len))
        };
        for_configs(values.case, configs(Seqlens::Fixed), |config| {
            values.check(&values.run(gpu, &values.options(config))?)
        })?;
        let sequences = configs(Seqlens::Varlen);
        for_configs(values.case, sequences, |config| {
            values.check(&values.run_as_sequences(gpu, &values.options(config))?)
        })?;
        let options =
            Request { mask, value_dim: Some(dims.1), max_workspace_bytes: 1 << 20, ..Request::new(Layout::Bshd) };
        for splits in [None, Some(3)].into_iter().take(if q_len == 2 { 2 } else { 1 }) {
            values.check(&values.run(gpu, &Request { splits, ..options.clone() })?)?;
        }
    }
    Ok(())
}

/// Tensors whose head dimensions are not those of the plan, or of no kernel.
fn refusals<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    let values = Values::<T>::new(5, 7, (64, 40), Mask::Full);
    for value_dim in [None, Some(64), Some(48)] {
        let options = Request { value_dim, ..Request::new(Layout::Bshd) };
        match values.run(gpu, &options) {
            Err(failed) if failed.message().is_some_and(|text| text.contains("V has shape")) => {}
            Err(failed) => return Err(format!("{value_dim:?}: {:?}", failed.message()).into()),
            Ok(_) => return Err(format!("{value_dim:?}: the call succeeded").into()),
        }
    }
    let options = Request { value_dim: Some(12), ..Request::new(Layout::Bshd) };
    let plan = options.plan(gpu, T::DTYPE, values.case.sizes);
    if !matches!(&plan, Err(Error::Argument { argument: "value_dim", .. })) {
        return Err(format!("{plan:?}").into());
    }
    let stream = gpu.new_stream()?;
    let inputs = Buffer::<T>::zeroed(gpu, 5 * 64)?;
    let mut out = Guarded::<T>::new(gpu, &stream, 5 * 64)?;
    let offset = out.offset();
    // O has the columns of Q, not those of V.
    let tensor = |columns: usize| TensorRef::strided(&inputs, 0, [1, 5, 1, columns], [320, 64, 64, 1]);
    let out_tensor = TensorMut::strided(out.buffer(), offset, [1, 5, 1, 64], [320, 64, 64, 1])?;
    let options = Request::new(Layout::Bshd);
    let tensors = AttentionTensors::new(tensor(64)?, tensor(64)?, tensor(40)?, out_tensor);
    let refused = attention(&stream, tensors, &options.params(), &options.options());
    if !matches!(refused, Err(Error::Shape { tensor: "O", .. })) {
        return Err(format!("{refused:?}").into());
    }
    out.check_untouched(&stream)
}
