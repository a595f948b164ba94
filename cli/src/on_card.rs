//! Attention problems in the memory of a card.

use ferrotile::{
    AttentionOptions, AttentionPlan, AttentionTensors, Buffer, Gpu, Result, Stream, StreamRef, TensorMut, TensorRef,
    VarlenPlan, VarlenProblem, VarlenTensors,
};

use crate::problem::{Half, Problem, Solution};
use crate::random;

/// A problem's inputs and outputs on a card.
pub(crate) struct CardProblem<'a, T: Half> {
    problem: &'a Problem<T>,
    q: Buffer<T>,
    k: Buffer<T>,
    v: Buffer<T>,
    out: Buffer<T>,
    lse: Buffer<f32>,
    sink: Option<Buffer<f32>>,
    bias: Option<Buffer<T>>,
}

impl<'a, T: Half> CardProblem<'a, T> {
    /// Copies the inputs to the card of `stream`.
    pub(crate) fn upload(gpu: &Gpu, stream: &Stream, problem: &'a Problem<T>) -> Result<CardProblem<'a, T>> {
        let terms = &problem.terms;
        Ok(CardProblem {
            problem,
            q: Buffer::upload_blocking(stream, &problem.q)?,
            k: Buffer::upload_blocking(stream, &problem.k)?,
            v: Buffer::upload_blocking(stream, &problem.v)?,
            out: Buffer::zeroed(gpu, problem.q.len())?,
            lse: Buffer::zeroed(gpu, problem.sizes.batch * problem.sizes.q_heads * problem.sizes.q_len)?,
            sink: terms.sink.as_ref().map(|sink| Buffer::upload_blocking(stream, sink)).transpose()?,
            bias: terms.bias.as_ref().map(|(bias, _)| Buffer::upload_blocking(stream, bias)).transpose()?,
        })
    }

    /// Enqueues one computation of O, without LSE as the vendor libraries that it is compared with.
    pub(crate) fn run(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan) -> Result<()> {
        self.enqueue(stream, plan, false)
    }

    /// Computes O and LSE.
    pub(crate) fn solve(mut self, stream: &Stream, plan: &AttentionPlan) -> Result<Solution<T>> {
        self.enqueue(stream.as_ref(), plan, true)?;
        let (out, lse) = (self.out.download_blocking(stream)?, self.lse.download_blocking(stream.as_ref())?);
        Ok(Solution { out, lse })
    }

    fn enqueue(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan, with_lse: bool) -> Result<()> {
        let Problem { layout, sizes, terms, .. } = self.problem;
        let (q_shape, kv_shape) = (sizes.q_shape(*layout), sizes.kv_shape(*layout));
        let lse_shape = [sizes.batch, sizes.q_heads, sizes.q_len];
        let lse = if with_lse { Some(TensorMut::contiguous(&mut self.lse, lse_shape)?) } else { None };
        let bias = self.bias.as_ref().zip(terms.bias.as_ref());
        let tensors = AttentionTensors {
            lse,
            sink: self.sink.as_ref().map(|sink| TensorRef::contiguous(sink, [sizes.q_heads])).transpose()?,
            bias: bias.map(|(bias, (_, shape))| TensorRef::contiguous(bias, *shape)).transpose()?,
            ..AttentionTensors::new(
                TensorRef::contiguous(&self.q, q_shape)?,
                TensorRef::contiguous(&self.k, kv_shape)?,
                TensorRef::contiguous(&self.v, kv_shape)?,
                TensorMut::contiguous(&mut self.out, q_shape)?,
            )
        };
        plan.run_with(stream, tensors)
    }
}

/// Random sequences that follow each other, and their outputs, on a card.
pub(crate) struct CardSequences<T: Half> {
    problem: VarlenProblem,
    q: Buffer<T>,
    k: Buffer<T>,
    v: Buffer<T>,
    out: Buffer<T>,
    starts: Buffer<i32>,
}

impl<T: Half> CardSequences<T> {
    /// Sequences of these lengths, as many rows as keys, on the card of `stream`.
    pub(crate) fn upload(
        gpu: &Gpu,
        stream: &Stream,
        problem: VarlenProblem,
        lens: impl Iterator<Item = usize>,
    ) -> Result<CardSequences<T>> {
        let mut starts = vec![0];
        starts.extend(lens.scan(0, |end, len| {
            *end += len as i32;
            Some(*end)
        }));
        let q_elems = problem.q_total * problem.q_heads * problem.head_dim;
        let kv_elems = problem.k_total * problem.kv_heads * problem.head_dim;
        Ok(CardSequences {
            problem,
            q: Buffer::upload_blocking(stream, &random::normal(q_elems, 0))?,
            k: Buffer::upload_blocking(stream, &random::normal(kv_elems, 1))?,
            v: Buffer::upload_blocking(stream, &random::normal(kv_elems, 2))?,
            out: Buffer::zeroed(gpu, q_elems)?,
            starts: Buffer::upload_blocking(stream, &starts)?,
        })
    }

    /// Enqueues one computation of O.
    pub(crate) fn run(&mut self, stream: StreamRef<'_>, plan: &VarlenPlan) -> Result<()> {
        let VarlenProblem { members, q_heads, kv_heads, q_total, k_total, head_dim, .. } = self.problem;
        let starts = TensorRef::contiguous(&self.starts, [members + 1])?;
        plan.run(
            stream,
            VarlenTensors {
                q: TensorRef::contiguous(&self.q, [q_total, q_heads, head_dim])?,
                k: TensorRef::contiguous(&self.k, [k_total, kv_heads, head_dim])?,
                v: TensorRef::contiguous(&self.v, [k_total, kv_heads, head_dim])?,
                out: TensorMut::contiguous(&mut self.out, [q_total, q_heads, head_dim])?,
                cu_seqlens_q: starts,
                cu_seqlens_k: starts,
                lse: None,
                sink: None,
                bias: None,
            },
        )
    }
}

/// Solves a problem on a card; also returns the name of the kernel that did.
pub(crate) fn solve<T: Half>(
    gpu: &Gpu,
    problem: &Problem<T>,
    options: &AttentionOptions,
) -> Result<(Solution<T>, String)> {
    let options = AttentionOptions { bias: problem.terms.bias.is_some(), ..options.clone() };
    let plan = AttentionPlan::new(gpu, T::DTYPE, &problem.sizes, &options)?;
    let stream = gpu.new_stream()?;
    let solution = CardProblem::upload(gpu, &stream, problem)?.solve(&stream, &plan)?;
    Ok((solution, plan.to_string()))
}
