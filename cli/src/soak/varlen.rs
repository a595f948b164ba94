//! Problems of attention on sequences of several lengths.

use ferrotile::{
    Arch, Buffer, Dtype, F8E4M3, Layout, StreamRef, TensorRef, VarlenSizes, VarlenTensors, attention_varlen,
};
use half::{bf16, f16};
use ndarray::{Array4, s};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::attention::Seqlens;

use super::cell::Cell;
use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::fp8::{self, FactorInputs, Fp8};
use super::heads::Heads;
use super::memory::{FloatCell, Input, Output};
use super::outcome::{Failure, Kind, Stop, refusal};
use super::placement::Placement;
use super::sizes::{self, Random};
use super::softmax::{Expected, Inputs, OAndLse, o_and_lse};
use super::terms::{TermInputs, Terms, bias_of_entry};
use super::text::is_default;
use super::twice::{Call, twice};

use crate::problems::request::Request;

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Varlen {
    heads: Heads,
    /// Rows and keys of each sequence.
    seqlens: Vec<[usize; 2]>,
    /// Rows and keys before the first sequence and after the last one, which belong to none.
    #[serde(default, skip_serializing_if = "is_default")]
    around: [usize; 2],
    /// By how much the greatest lengths that the plan is given exceed those of the sequences.
    #[serde(default, skip_serializing_if = "is_default")]
    longer: [usize; 2],
    #[serde(default, skip_serializing_if = "is_default")]
    terms: Terms,
    /// What inputs of E4M3 have.
    #[serde(default, skip_serializing_if = "is_default")]
    fp8: Option<Box<Fp8>>,
    /// Where Q, K, V and O lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 4],
    #[serde(default, skip_serializing_if = "is_default")]
    without_lse: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    kernel: Option<String>,
    seed: u64,
}

impl Varlen {
    fn draw_sizes(random: &mut Random, most: usize) -> Varlen {
        let count = random.random_range(1..=9);
        let most_of_one = (2 * most / count).max(1);
        let same = random.random_bool(0.3);
        let seqlen = |random: &mut Random| {
            let (q, k) = (sizes::length(random, most_of_one), sizes::length(random, most_of_one));
            if same { [q, q] } else { [q, k] }
        };
        Varlen {
            heads: Heads::draw(random, 8),
            seqlens: (0..count).map(|_| seqlen(random)).collect(),
            around: [random.random_range(0..6), random.random_range(0..6)],
            longer: if random.random_bool(0.3) {
                [random.random_range(0..70), random.random_range(0..70)]
            } else {
                [0; 2]
            },
            terms: Terms::default(),
            fp8: None,
            places: Default::default(),
            without_lse: false,
            call: Call::Plan,
            kernel: None,
            seed: random.random_range(0..1 << 32),
        }
    }

    /// Where the rows, or the keys, of each sequence start, and where those of the last one end.
    fn cu_seqlens(&self, which: usize) -> Vec<usize> {
        let mut ends = vec![self.around[0]];
        for seqlen in &self.seqlens {
            ends.push(ends[ends.len() - 1] + seqlen[which]);
        }
        ends
    }

    fn problem(&self) -> VarlenSizes {
        let Heads { q_heads, kv_heads, head_dim, .. } = self.heads;
        let longest = |which: usize| self.seqlens.iter().map(|seqlen| seqlen[which]).max().unwrap_or(0);
        let total = |which: usize| self.cu_seqlens(which)[self.seqlens.len()] + self.around[1];
        VarlenSizes {
            batch: self.seqlens.len(),
            q_heads,
            kv_heads,
            q_total: total(0),
            k_total: total(1),
            max_q_len: longest(0) + self.longer[0],
            max_k_len: longest(1) + self.longer[1],
            head_dim,
        }
    }

    fn request(&self) -> Request {
        let request = self.terms.request(Layout::Bshd, &self.heads, self.kernel.as_ref());
        self.fp8.as_ref().map_or(request.clone(), |fp8| fp8.request(request))
    }

    /// The input of index `index` of Q, K and V, whose rows that belong to no sequence are poison.
    fn input<T: FloatCell>(&self, bench: &Bench, random: &mut Random, index: usize) -> ferrotile::Result<Input<T, 3>> {
        let VarlenSizes { q_total, k_total, .. } = self.problem();
        let Heads { q_heads, kv_heads, head_dim, value_dim, values, .. } = self.heads;
        let shape =
            [[q_total, q_heads, head_dim], [k_total, kv_heads, head_dim], [k_total, kv_heads, value_dim]][index];
        let cu_seqlens = self.cu_seqlens(index.min(1));
        let row: usize = shape[1] * shape[2];
        let mut elements = values[index].fill::<T>(random, shape.iter().product());
        elements[..cu_seqlens[0] * row].fill(T::POISON);
        elements[cu_seqlens[self.seqlens.len()] * row..].fill(T::POISON);
        // A repeated dimension would bring the poison everywhere.
        let place = if self.around == [0, 0] { self.places[index].clone() } else { self.places[index].unrepeated() };
        Input::new(bench, &place, shape, &elements)
    }

    /// Compares each sequence with the reference of it alone; what belongs to none must not have been written.
    fn check<T: FloatCell, O: FloatCell>(
        &self,
        mut out: Vec<O>,
        mut lse: Vec<f32>,
        inputs: [&Input<T, 3>; 3],
        (terms, factors): (&TermInputs<O>, &FactorInputs),
    ) -> Result<f64, Failure> {
        let VarlenSizes { q_heads, q_total, .. } = self.problem();
        let (cu_seqlens, (sink, bias)) = ([self.cu_seqlens(0), self.cu_seqlens(1)], terms.wide());
        let inputs = inputs.map(|input| {
            let array = input.array().into_dimensionality::<ndarray::Ix3>().expect("three dimensions");
            array.permuted_axes([1, 0, 2])
        });
        let row = q_heads * self.heads.value_dim;
        let mut share = 0f64;
        for (index, &[rows, keys]) in self.seqlens.iter().enumerate() {
            let [q_start, k_start] = [cu_seqlens[0][index], cu_seqlens[1][index]];
            let part = |index: usize, start: usize, len: usize| -> Array4<f64> {
                inputs[index].slice(s![.., start..start + len, ..]).to_owned().insert_axis(ndarray::Axis(0))
            };
            let (q, k, v) = (part(0, q_start, rows), part(1, k_start, keys), part(2, k_start, keys));
            let bias = bias_of_entry(bias.as_ref(), index, [rows, keys]);
            let of_bias = bias.as_ref().map(|bias| bias.view());
            let views = [q.view(), k.view(), v.view()];
            // [row, head, column] becomes [head, row, column].
            let mut sequence_out = Vec::new();
            let mut sequence_lse = Vec::new();
            for head in 0..q_heads {
                for q_row in q_start..q_start + rows {
                    let columns = q_row * row + head * self.heads.value_dim;
                    sequence_out.extend_from_slice(&out[columns..columns + self.heads.value_dim]);
                }
                sequence_lse.extend_from_slice(&lse[head * q_total + q_start..][..rows]);
                lse[head * q_total + q_start..][..rows].fill(f32::POISON);
            }
            out[q_start * row..(q_start + rows) * row].fill(O::POISON);
            let of_sequence = |failure: Failure| failure.of(format_args!("sequence {index}"));
            let shape = [q_heads, rows, self.heads.value_dim];
            check::written("O", &sequence_out, &shape).map_err(of_sequence)?;
            let sequence_lse = if self.without_lse {
                None
            } else {
                check::written("the LSE", &sequence_lse, &shape[..2]).map_err(of_sequence)?;
                Some(&sequence_lse[..])
            };
            if rows > 0 {
                let (request, factors) = (self.request(), factors.wide(Some(index)));
                let fp8 = fp8::terms(O::DTYPE, &request, &factors);
                let inputs = if self.fp8.is_some() { Inputs::E4m3(&fp8) } else { Inputs::Halves(T::DTYPE) };
                let expected = Expected::new(inputs, views, &self.terms, (sink.as_ref(), of_bias));
                share = share.max(expected.check(&sequence_out, sequence_lse).map_err(of_sequence)?);
            }
        }
        if out.iter().all(|x| x.is_poison()) && lse.iter().all(|x| x.is_poison()) {
            return Ok(share);
        }
        Err(Failure::new(Kind::StrayWrite, "rows of no sequence were written"))
    }
}

impl Varlen {
    /// Runs the problem with an O of type `O`.
    fn run_as<T: FloatCell, O: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let (problem, request) = (self.problem(), self.request());
        let [q, k, v] = [0, 1, 2].map(|index| self.input::<T>(bench, &mut random, index));
        let (q, k, v) = (q?, k?, v?);
        let VarlenSizes { batch, q_heads, q_total, max_q_len, max_k_len, .. } = problem;
        let terms = TermInputs::<O>::new(bench, &self.terms, &mut random, [batch, q_heads, max_q_len, max_k_len])?;
        let factors = match &self.fp8 {
            Some(fp8) => fp8.inputs(bench, &mut random, batch, &self.heads)?,
            None => FactorInputs::NONE,
        };
        let [cu_seqlens_q, cu_seqlens_k] = [0, 1].map(|which| {
            let ends: Vec<i32> = self.cu_seqlens(which).into_iter().map(|end| end as i32).collect();
            Buffer::upload_blocking(&bench.streams[0], &ends)
        });
        let (cu_seqlens_q, cu_seqlens_k) = (cu_seqlens_q?, cu_seqlens_k?);
        let asked = self.kernel.is_some();
        // Not every element type has a kernel for any strides.
        let may_refuse = asked || self.fp8.is_some();
        let plan = request.plan(&bench.gpu, T::DTYPE, problem).map_err(|error| refusal(asked, error))?;
        let (out_shape, lse_shape) = ([q_total, q_heads, self.heads.value_dim], [q_heads, q_total]);
        let cu_seqlens_q = TensorRef::contiguous(&cu_seqlens_q, [batch + 1])?;
        let cu_seqlens_k = TensorRef::contiguous(&cu_seqlens_k, [batch + 1])?;
        let outputs = o_and_lse(bench, &self.places[3], out_shape, lse_shape)?;
        let run = |stream: StreamRef<'_>, (out, lse): &mut OAndLse<O, 3, 2>, _: &mut Output<u8, 1>| {
            let tensors = VarlenTensors {
                descales: factors.descales(),
                q: q.plain(),
                k: k.plain(),
                v: v.plain(),
                out: out.plain(),
                cu_seqlens_q,
                cu_seqlens_k,
                lse: (!self.without_lse).then(|| lse.plain()),
                sink: terms.sink.as_ref().map(Input::plain),
                bias: terms.bias.as_ref().map(Input::plain),
            };
            match self.call {
                Call::Function => {
                    attention_varlen(stream, tensors, [max_q_len, max_k_len], &request.params, &request.options)
                }
                Call::Plan | Call::Graph => plan.run(stream, tensors),
            }
        };
        let (out, lse) = twice(bench, (self.call, may_refuse), outputs, 0, run)?;
        Ok(self.check(out, lse, [&q, &k, &v], (&terms, &factors))?)
    }
}

impl Family for Varlen {
    fn draw(random: &mut Random, scope: &Scope) -> Varlen {
        let cost = |problem: &Varlen| {
            let pairs: usize = problem.seqlens.iter().map(|[q, k]| (q + 4) * (k + 4)).sum();
            pairs * problem.heads.work()
        };
        let mut problem = sizes::within(random, [scope.most, scope.work], Varlen::draw_sizes, cost);
        let VarlenSizes { max_q_len, max_k_len, .. } = problem.problem();
        problem.terms = Terms::draw(random, max_k_len);
        let has_fp8 = scope.arch >= Arch::Sm89;
        problem.fp8 = Fp8::draw(random, has_fp8, &mut problem.heads, &mut problem.terms).map(Box::new);
        let is_regular = problem.fp8.is_some() && random.random_bool(0.9);
        let place = if is_regular { Placement::draw_regular } else { Placement::draw };
        problem.places = [true, true, true, false].map(|may_repeat| place(random, 3, may_repeat));
        problem.without_lse = random.random_bool(0.1);
        problem.call = Call::draw(random);
        if random.random() {
            let terms = &problem.terms;
            let eligible = problem
                .heads
                .configs(scope.arch, false, terms.score_mod(), Seqlens::Varlen)
                .filter(|config| config.takes(terms.mask, max_q_len, max_k_len))
                .filter(|config| problem.fp8.as_ref().is_none_or(|fp8| config.out == fp8.out));
            problem.kernel = sizes::pick(random, eligible.map(|config| config.name));
        }
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match (self.heads.dtype, self.fp8.as_ref().map(|fp8| fp8.out)) {
            (Dtype::E4M3, Some(Dtype::Bf16)) => self.run_as::<F8E4M3, bf16>(bench),
            (Dtype::E4M3, _) => self.run_as::<F8E4M3, f16>(bench),
            (Dtype::Bf16, _) => self.run_as::<bf16, bf16>(bench),
            _ => self.run_as::<f16, f16>(bench),
        }
    }

    fn simpler(&self) -> Vec<Varlen> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        simpler.each(|problem| &mut problem.around, [[0; 2]]);
        simpler.each(|problem| &mut problem.longer, [[0; 2]]);
        simpler.each(|problem| &mut problem.places, [Default::default()]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.without_lse, [false]);
        Fp8::simpler(&mut simpler, |problem| &mut problem.fp8);
        Terms::simpler(&mut simpler, |problem| &mut problem.terms, &self.terms);
        for index in 0..self.seqlens.len() {
            simpler.change(|problem| {
                problem.seqlens.remove(index);
            });
        }
        Heads::simpler(&mut simpler, |problem| &mut problem.heads, &self.heads);
        for (index, which) in (0..self.seqlens.len()).flat_map(|index| [(index, 0), (index, 1)]) {
            simpler.size(|problem| &mut problem.seqlens[index][which], 0, 1);
        }
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.heads.tame();
        self.terms.tame();
    }
}
