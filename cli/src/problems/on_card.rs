//! Attention problems in the memory of a card.

use ferrotile::{
    AttentionPlan, AttentionTensors, Buffer, Descales, Float, Gpu, Kernel, KernelFacts, Result, Stream, StreamRef,
    TensorMut, TensorRef, VarlenSizes, VarlenTensors,
};
use ndarray::Array2;

use crate::files::tensor::Half;
use crate::problems::attention::{HostAttention, HostTerms, Solution};
use crate::problems::case::{Case, Extra};
use crate::problems::descale::Factors;
use crate::problems::random;
use crate::problems::request::Request;
use crate::problems::varlen::HostVarlen;

/// The factors of Q, K and V, and their shapes.
type CardFactors = [Option<(Buffer<f32>, [usize; 2])>; 3];

/// What is in the memory of a card: inputs, outputs, and the tensors of terms.
struct Memory<T, O> {
    q: Buffer<T>,
    k: Buffer<T>,
    v: Buffer<T>,
    out: Buffer<O>,
    lse: Buffer<f32>,
    descales: CardFactors,
    sink: Option<Buffer<f32>>,
    bias: Option<(Buffer<O>, [usize; 4])>,
}

impl<T: Half, O: Float> Memory<T, O> {
    /// Copies Q, K, V and terms to the card of `stream`.
    fn upload(
        gpu: &Gpu,
        stream: &Stream,
        [q, k, v]: [&[T]; 3],
        [out_elems, lse_elems]: [usize; 2],
        (factors, terms): (&Factors, &HostTerms<O>),
    ) -> Result<Memory<T, O>> {
        let descale = |factors: &Option<Array2<f32>>| {
            let upload = |factors: &Array2<f32>| {
                let values: Vec<f32> = factors.iter().copied().collect();
                Buffer::upload_blocking(stream, &values).map(|buffer| (buffer, factors.dim().into()))
            };
            factors.as_ref().map(upload).transpose()
        };
        let [of_q, of_k, of_v] = factors;
        let sink = terms.sink.as_ref().map(|sink| sink.iter().map(|&value| value as f32).collect::<Vec<f32>>());
        let bias = terms.bias.as_ref();
        let bias = bias.map(|(bias, shape)| Buffer::upload_blocking(stream, bias).map(|bias| (bias, *shape)));
        Ok(Memory {
            q: Buffer::upload_blocking(stream, q)?,
            k: Buffer::upload_blocking(stream, k)?,
            v: Buffer::upload_blocking(stream, v)?,
            out: Buffer::zeroed(gpu, out_elems)?,
            lse: Buffer::zeroed(gpu, lse_elems)?,
            descales: [descale(of_q)?, descale(of_k)?, descale(of_v)?],
            sink: sink.map(|sink| Buffer::upload_blocking(stream, &sink)).transpose()?,
            bias: bias.transpose()?,
        })
    }

    /// The outputs.
    fn download(self, stream: &Stream) -> Result<Solution<O>> {
        Ok(Solution {
            out: self.out.download_blocking(stream.as_ref())?,
            lse: self.lse.download_blocking(stream.as_ref())?,
        })
    }
}

/// The factors as a call takes them.
fn descales_of(descales: &CardFactors) -> Result<Descales<'_>> {
    let view = |index: usize| {
        let factors = descales[index].as_ref();
        factors.map(|(factors, shape)| TensorRef::contiguous(factors, *shape)).transpose()
    };
    Ok(Descales { q: view(0)?, k: view(1)?, v: view(2)? })
}

/// The sinks as a call takes them.
fn sink_of(sink: Option<&Buffer<f32>>) -> Result<Option<TensorRef<'_, f32, 1>>> {
    sink.map(|sink| TensorRef::contiguous(sink, [sink.len()])).transpose()
}

/// The bias as a call takes it.
fn bias_of<O: Float>(bias: Option<&(Buffer<O>, [usize; 4])>) -> Result<Option<TensorRef<'_, O, 4>>> {
    bias.map(|(bias, shape)| TensorRef::contiguous(bias, *shape)).transpose()
}

/// A problem's inputs and outputs on a card.
pub(crate) struct CardAttention<'a, T: Half, O> {
    problem: &'a HostAttention<T, O>,
    memory: Memory<T, O>,
}

impl<'a, T: Half, O: Float> CardAttention<'a, T, O> {
    /// Copies the inputs to the card of `stream`.
    pub(crate) fn upload(
        gpu: &Gpu,
        stream: &Stream,
        problem: &'a HostAttention<T, O>,
    ) -> Result<CardAttention<'a, T, O>> {
        let rows = problem.sizes.batch * problem.sizes.q_heads * problem.sizes.q_len;
        let (inputs, outputs) = ([&*problem.q, &problem.k, &problem.v], [rows * problem.value_dim, rows]);
        let terms = (&problem.factors, &problem.terms);
        Ok(CardAttention { problem, memory: Memory::upload(gpu, stream, inputs, outputs, terms)? })
    }

    /// Enqueues one computation of O, without LSE as the vendor libraries that it is compared with.
    pub(crate) fn run(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan) -> Result<()> {
        self.enqueue(stream, plan, false)
    }

    /// Computes O and LSE.
    pub(crate) fn solve(mut self, stream: &Stream, plan: &AttentionPlan) -> Result<Solution<O>> {
        self.enqueue(stream.as_ref(), plan, true)?;
        self.memory.download(stream)
    }

    fn enqueue(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan, with_lse: bool) -> Result<()> {
        let HostAttention { layout, sizes, .. } = self.problem;
        let (q_shape, kv_shape) = (sizes.q_shape(*layout), sizes.kv_shape(*layout));
        let lse_shape = [sizes.batch, sizes.q_heads, sizes.q_len];
        let Memory { q, k, v, out, lse, descales, sink, bias } = &mut self.memory;
        let tensors = AttentionTensors {
            descales: descales_of(descales)?,
            lse: if with_lse { Some(TensorMut::contiguous(lse, lse_shape)?) } else { None },
            sink: sink_of(sink.as_ref())?,
            bias: bias_of(bias.as_ref())?,
            ..AttentionTensors::new(
                TensorRef::contiguous(q, q_shape)?,
                TensorRef::contiguous(k, kv_shape)?,
                TensorRef::contiguous(v, self.problem.v_shape())?,
                TensorMut::contiguous(out, self.problem.out_shape())?,
            )
        };
        plan.run(stream, tensors)
    }
}

/// Inputs and outputs of sequences that follow each other, on a card.
struct CardVarlen<'a, T: Half, O> {
    sequences: &'a HostVarlen<T, O>,
    memory: Memory<T, O>,
    cu_seqlens: [Buffer<i32>; 2],
}

impl<'a, T: Half, O: Float> CardVarlen<'a, T, O> {
    /// Copies the inputs to the card of `stream`.
    fn upload(gpu: &Gpu, stream: &Stream, sequences: &'a HostVarlen<T, O>) -> Result<CardVarlen<'a, T, O>> {
        let rows = sequences.sizes.q_heads * sequences.sizes.q_total;
        let inputs = sequences.inputs.each_ref().map(|values| &**values);
        let terms = (&sequences.factors, &sequences.terms);
        // No sequence ends beyond the rows of its tensor, of which there are fewer than 2^31.
        let [cu_seqlens_q, cu_seqlens_k] = sequences.cu_seqlens.each_ref().map(|ends| {
            let ends: Vec<i32> = ends.iter().map(|&end| end as i32).collect();
            Buffer::upload_blocking(stream, &ends)
        });
        Ok(CardVarlen {
            sequences,
            memory: Memory::upload(gpu, stream, inputs, [rows * sequences.value_dim, rows], terms)?,
            cu_seqlens: [cu_seqlens_q?, cu_seqlens_k?],
        })
    }

    /// Enqueues one computation of O.
    fn run(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan) -> Result<()> {
        self.enqueue(stream, plan, false)
    }

    /// Computes O and LSE.
    fn solve(mut self, stream: &Stream, plan: &AttentionPlan) -> Result<Solution<O>> {
        self.enqueue(stream.as_ref(), plan, true)?;
        self.memory.download(stream)
    }

    fn enqueue(&mut self, stream: StreamRef<'_>, plan: &AttentionPlan, with_lse: bool) -> Result<()> {
        let VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, head_dim, .. } = self.sequences.sizes;
        let (q_shape, k_shape) = ([q_total, q_heads, head_dim], [k_total, kv_heads, head_dim]);
        let value_dim = self.sequences.value_dim;
        let Memory { q, k, v, out, lse, descales, sink, bias } = &mut self.memory;
        let [cu_seqlens_q, cu_seqlens_k] = &self.cu_seqlens;
        let tensors = VarlenTensors {
            descales: descales_of(descales)?,
            q: TensorRef::contiguous(q, q_shape)?,
            k: TensorRef::contiguous(k, k_shape)?,
            v: TensorRef::contiguous(v, [k_total, kv_heads, value_dim])?,
            out: TensorMut::contiguous(out, [q_total, q_heads, value_dim])?,
            cu_seqlens_q: TensorRef::contiguous(cu_seqlens_q, [batch + 1])?,
            cu_seqlens_k: TensorRef::contiguous(cu_seqlens_k, [batch + 1])?,
            lse: if with_lse { Some(TensorMut::contiguous(lse, [q_heads, q_total])?) } else { None },
            sink: sink_of(sink.as_ref())?,
            bias: bias_of(bias.as_ref())?,
        };
        plan.run(stream, tensors)
    }
}

/// Solves a problem on a card; calls `started` with the name of the kernel before it runs.
pub(crate) fn solve<T: Half, O: Float>(
    gpu: &Gpu,
    problem: &HostAttention<T, O>,
    request: &Request,
    started: &dyn Fn(&str),
) -> Result<Solution<O>> {
    let plan = problem.request(request).with_out(O::DTYPE).plan(gpu, T::DTYPE, problem.sizes)?;
    started(&plan.to_string());
    let stream = gpu.new_stream()?;
    CardAttention::<T, O>::upload(gpu, &stream, problem)?.solve(&stream, &plan)
}

/// As [`solve`], for sequences of several lengths.
pub(crate) fn solve_sequences<T: Half, O: Float>(
    gpu: &Gpu,
    sequences: &HostVarlen<T, O>,
    request: &Request,
    started: &dyn Fn(&str),
) -> Result<Solution<O>> {
    let plan = sequences.request(request).with_out(O::DTYPE).plan(gpu, T::DTYPE, sequences.sizes)?;
    started(&plan.to_string());
    let stream = gpu.new_stream()?;
    CardVarlen::<T, O>::upload(gpu, &stream, sequences)?.solve(&stream, &plan)
}

/// Makes the inputs of a case on a card, and calls `body` with the configuration, its kernel, and a function that
/// enqueues the kernel. The library chooses the configuration unless `kernel` names one.
pub(crate) fn with_case<T: Half, O: Float, R>(
    gpu: &Gpu,
    case: &Case,
    kernel: Option<String>,
    body: impl FnOnce(KernelFacts, &Kernel, &mut dyn FnMut(StreamRef<'_>) -> Result<()>) -> Result<R>,
) -> Result<R> {
    case.check()?;
    let request = case.request().of_kernel(kernel).with_out(O::DTYPE);
    let stream = gpu.new_stream()?;
    if case.extra == Extra::Varlen {
        let sequences = random::sequences::<T, O>(case.sequences(), case.value_dim, case.lens())?;
        let plan = request.plan(gpu, T::DTYPE, sequences.sizes)?;
        let mut on_card = CardVarlen::<T, O>::upload(gpu, &stream, &sequences)?;
        body(plan.facts(), plan.kernel(), &mut |stream| on_card.run(stream, &plan))
    } else {
        let mut problem = random::problem::<T, O>(case.problem(), case.value_dim, 0)?;
        if case.extra == Extra::Bias {
            let shape = [1, 1, case.len, case.len];
            problem.terms.bias = Some((random::normal(&shape, 3)?, shape));
        }
        let plan = request.plan(gpu, T::DTYPE, problem.sizes)?;
        let mut on_card = CardAttention::<T, O>::upload(gpu, &stream, &problem)?;
        body(plan.facts(), plan.kernel(), &mut |stream| on_card.run(stream, &plan))
    }
}
