//! Problems of attention whose sequences are all as long, decoding among them.

use ferrotile::{Arch, AttentionTensors, BatchedSizes, Dtype, F8E4M3, Layout, StreamRef, attention};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::attention::{DECODE_ROWS, Seqlens};

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::fp8::{self, FactorInputs, Fp8};
use super::heads::Heads;
use super::memory::{FloatCell, Input, Output};
use super::outcome::{Stop, refusal};
use super::placement::{Placement, View};
use super::sizes::{self, Random};
use super::softmax::{Expected, Inputs, OAndLse, array4, checked_lse, o_and_lse};
use super::terms::{TermInputs, Terms};
use super::text::is_default;
use super::twice::{Call, WORKSPACE_BYTES, twice};

use crate::problems::request::Request;

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Attention {
    heads: Heads,
    batch: usize,
    q_len: usize,
    k_len: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    terms: Terms,
    /// What inputs of E4M3 have, all or K and V alone, and inputs of u8.
    #[serde(default, skip_serializing_if = "is_default")]
    fp8: Option<Box<Fp8>>,
    /// Whether dimensions are named in the order batch, sequence, heads.
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where Q, K, V and O lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 4],
    /// Elements before a tensor `[batch, sequence, all heads, head dimension]` of Q, K and V together, where they lie
    /// in one.
    #[serde(default, skip_serializing_if = "is_default")]
    fused: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    without_lse: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    kernel: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    splits: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    workspace: bool,
    seed: u64,
}

/// Q, K and V on the device.
type Made<T, KV> = ferrotile::Result<(Input<T, 4>, [Input<KV, 4>; 2])>;

impl Attention {
    fn draw_sizes(random: &mut Random, most: usize) -> Attention {
        let heads = Heads::draw(random, 12);
        let decodes = random.random_bool(0.25);
        let batch = if random.random_bool(0.02) { 0 } else { sizes::log_uniform(random, (most / 40).max(1)) };
        let (q_len, k_len) = (sizes::length(random, if decodes { 16 } else { most }), sizes::length(random, most));
        let k_len = if random.random_bool(0.3) { q_len.max(1) } else { k_len };
        Attention {
            heads,
            batch,
            q_len,
            k_len,
            terms: Terms::default(),
            fp8: None,
            bshd: random.random(),
            places: Default::default(),
            fused: None,
            without_lse: false,
            call: Call::Plan,
            kernel: None,
            splits: None,
            workspace: false,
            seed: random.random_range(0..1 << 32),
        }
    }

    fn layout(&self) -> Layout {
        if self.bshd { Layout::Bshd } else { Layout::Bhsd }
    }

    fn problem(&self) -> BatchedSizes {
        let Heads { q_heads, kv_heads, head_dim, .. } = self.heads;
        BatchedSizes { batch: self.batch, q_heads, kv_heads, q_len: self.q_len, k_len: self.k_len, head_dim }
    }

    fn request(&self) -> Request {
        let mut request = self.terms.request(self.layout(), &self.heads, self.kernel.as_ref());
        request.options.splits = self.splits;
        request.options.max_workspace_bytes = if self.workspace { WORKSPACE_BYTES } else { 0 };
        self.fp8.as_ref().map_or(request.clone(), |fp8| fp8.request(request))
    }

    /// The shapes of Q, K, V and O as batch, heads, rows and columns.
    fn shapes(&self) -> [[usize; 4]; 4] {
        let Heads { q_heads, kv_heads, head_dim, value_dim, .. } = self.heads;
        let Attention { batch, q_len, k_len, .. } = *self;
        [
            [batch, q_heads, q_len, head_dim],
            [batch, kv_heads, k_len, head_dim],
            [batch, kv_heads, k_len, value_dim],
            [batch, q_heads, q_len, value_dim],
        ]
    }

    /// Q, K and V on the device, from a storage each.
    fn apart<T: FloatCell, KV: FloatCell>(&self, bench: &Bench, random: &mut Random) -> Made<T, KV> {
        let (shapes, values) = (self.shapes(), &self.heads.values);
        let len = |index: usize| shapes[index].iter().product();
        let q = values[0].fill::<T>(random, len(0));
        let [k, v] = [1, 2].map(|index| (index, values[index].fill::<KV>(random, len(index))));
        let of_kv = |(index, values): (usize, Vec<KV>)| Input::new(bench, &self.places[index], shapes[index], &values);
        Ok((Input::new(bench, &self.places[0], shapes[0], &q)?, [of_kv(k)?, of_kv(v)?]))
    }

    /// Q, K and V on the device, from one storage where they are fused.
    fn fused<T: FloatCell>(&self, bench: &Bench, random: &mut Random) -> Made<T, T> {
        let shapes = self.shapes();
        let Some(offset) = self.fused.filter(|_| self.q_len == self.k_len && shapes[1] == shapes[2]) else {
            return self.apart(bench, random);
        };
        let [q, k, v] =
            [0, 1, 2].map(|index| self.heads.values[index].fill::<T>(random, shapes[index].iter().product()));
        let Heads { q_heads, kv_heads, head_dim, .. } = self.heads;
        let row = (q_heads + 2 * kv_heads) * head_dim;
        let view = |index: usize, first_head: usize| View {
            offset: offset + first_head * head_dim,
            shape: shapes[index],
            strides: [(self.q_len * row) as i64, head_dim as i64, row as i64, 1],
        };
        let views = [view(0, 0), view(1, q_heads), view(2, q_heads + kv_heads)];
        let mut storage = vec![T::POISON; offset + self.batch.max(1) * self.q_len.max(1) * row];
        for (view, values) in views.iter().zip([&q, &k, &v]) {
            view.scatter(values, &mut storage);
        }
        let [q, k, v] = views.map(|view| Input::stored(bench, view, storage.clone()));
        Ok((q?, [k?, v?]))
    }

    /// Runs the problem with an O of type `O`, on what `inputs` makes.
    fn run_as<T: FloatCell, O: FloatCell, KV: FloatCell>(
        &self,
        bench: &Bench,
        inputs: impl Fn(&Self, &Bench, &mut Random) -> Made<T, KV>,
    ) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let (q, [k, v]) = inputs(self, bench, &mut random)?;
        let [q_shape, k_shape, .., out_shape] = self.shapes();
        let sizes = [self.batch, self.heads.q_heads, self.q_len, self.k_len];
        let terms = TermInputs::<O>::new(bench, &self.terms, &mut random, sizes)?;
        let factors = match &self.fp8 {
            Some(fp8) => fp8.inputs(bench, &mut random, self.batch, &self.heads)?,
            None => FactorInputs::NONE,
        };
        let request = self.request();
        let asked = self.kernel.is_some() || self.splits.is_some();
        // Not every element type has a kernel for any strides.
        let may_refuse = asked || self.fp8.is_some();
        let plan = request.plan(&bench.gpu, T::DTYPE, self.problem()).map_err(|error| refusal(asked, error))?;
        let (layout, lse_shape) = (self.layout(), [self.batch, self.heads.q_heads, self.q_len]);
        let order = |dimensions| layout.reorder(dimensions);
        let outputs = o_and_lse(bench, &self.places[3], out_shape, lse_shape)?;
        let function = self.call == Call::Function && !self.workspace;
        let run = |stream: StreamRef<'_>, (out, lse): &mut OAndLse<O, 4, 3>, workspace: &mut Output<u8, 1>| {
            let tensors = AttentionTensors {
                descales: factors.descales(),
                lse: (!self.without_lse).then(|| lse.plain()),
                sink: terms.sink.as_ref().map(Input::plain),
                bias: terms.bias.as_ref().map(Input::plain),
                workspace: (!function).then(|| workspace.plain()),
                ..AttentionTensors::new(q.tensor(order), k.tensor(order), v.tensor(order), out.tensor(order))
            };
            if function {
                attention(stream, tensors, &request.params, &request.options)
            } else {
                plan.run(stream, tensors)
            }
        };
        let (out, lse) = twice(bench, (self.call, may_refuse), outputs, plan.workspace_bytes(), run)?;
        check::written("O", &out, &out_shape)?;
        let lse = checked_lse(self.without_lse, &lse, &lse_shape)?;
        if q_shape[0] * q_shape[1] * q_shape[2] == 0 {
            return Ok(0.0);
        }
        let (q, k, v) = (array4(&q), array4(&k), array4(&v));
        assert_eq!(k.dim().2, k_shape[2]);
        let (sink, bias) = terms.wide();
        let bias = bias.as_ref().map(|bias| bias.view());
        let (factors, of_halves) = (factors.wide(None), Inputs::Halves(T::DTYPE));
        let fp8 = fp8::terms(O::DTYPE, &request, &factors);
        let of_fp8 = |options: &Fp8| match T::DTYPE {
            Dtype::U8 => Inputs::U8(&fp8),
            _ if options.kv_alone => Inputs::E4m3Kv(&fp8),
            _ => Inputs::E4m3(&fp8),
        };
        let inputs = self.fp8.as_deref().map_or(of_halves, of_fp8);
        let expected = Expected::new(inputs, [q.view(), k.view(), v.view()], &self.terms, (sink.as_ref(), bias));
        Ok(expected.check(&out, lse)?)
    }
}

impl Family for Attention {
    fn draw(random: &mut Random, scope: &Scope) -> Attention {
        let cost = |problem: &Attention| {
            problem.batch.max(1) * (problem.q_len + 4) * (problem.k_len + 4) * problem.heads.work()
        };
        let mut problem = sizes::within(random, [scope.most, scope.work], Attention::draw_sizes, cost);
        if random.random_bool(0.1) && problem.q_len <= scope.most {
            (problem.k_len, problem.heads.value_dim) = (problem.q_len, problem.heads.head_dim);
            problem.fused = Some(random.random_range(0..20));
        }
        problem.terms = Terms::draw(random, problem.k_len);
        let has_fp8 = scope.arch >= Arch::Sm89;
        let (heads, terms) = (&mut problem.heads, &mut problem.terms);
        let fp8 = if problem.q_len <= DECODE_ROWS {
            Fp8::draw_kv(random, scope.arch >= Arch::Sm89, heads, terms)
        } else {
            None
        };
        let fp8 = fp8.or_else(|| Fp8::draw(random, has_fp8, heads, terms));
        problem.fp8 = fp8.or_else(|| Fp8::draw_u8(random, heads, terms)).map(Box::new);
        let kv_alone = problem.fp8.as_ref().is_some_and(|fp8| fp8.kv_alone);
        let is_regular = problem.heads.dtype == Dtype::E4M3 && random.random_bool(0.9);
        let place = if is_regular { Placement::draw_regular } else { Placement::draw };
        problem.places = [true, true, true, false].map(|may_repeat| place(random, 4, may_repeat));
        if let (true, Some(offset)) = (is_regular, &mut problem.fused) {
            *offset = offset.next_multiple_of(16);
        }
        problem.without_lse = random.random_bool(0.1);
        problem.call = Call::draw(random);
        problem.workspace = random.random();
        if random.random() {
            let (terms, q_len, k_len) = (&problem.terms, problem.q_len, problem.k_len);
            let eligible = problem
                .heads
                .configs(scope.arch, kv_alone, terms.score_mod(), Seqlens::Fixed)
                .filter(|config| config.takes(terms.mask, q_len, k_len))
                .filter(|config| problem.fp8.as_ref().is_none_or(|fp8| config.out == fp8.out));
            problem.kernel = sizes::pick(random, eligible.map(|config| config.name));
        }
        if random.random_bool(if problem.q_len <= 16 { 0.3 } else { 0.02 }) {
            problem.splits = Some(random.random_range(1..=9));
        }
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        let (kv_alone, out) = self.fp8.as_ref().map_or((false, None), |fp8| (fp8.kv_alone, Some(fp8.out)));
        match (self.heads.dtype, kv_alone, out) {
            (Dtype::E4M3, _, Some(Dtype::Bf16)) => self.run_as::<F8E4M3, bf16, _>(bench, Self::fused),
            (Dtype::E4M3, ..) => self.run_as::<F8E4M3, f16, _>(bench, Self::fused),
            (Dtype::U8, _, Some(Dtype::Bf16)) => self.run_as::<u8, bf16, _>(bench, Self::fused),
            (Dtype::U8, ..) => self.run_as::<u8, f16, _>(bench, Self::fused),
            (Dtype::Bf16, true, _) => self.run_as::<bf16, bf16, F8E4M3>(bench, Self::apart),
            (Dtype::Bf16, ..) => self.run_as::<bf16, bf16, _>(bench, Self::fused),
            (_, true, _) => self.run_as::<f16, f16, F8E4M3>(bench, Self::apart),
            _ => self.run_as::<f16, f16, _>(bench, Self::fused),
        }
    }

    fn simpler(&self) -> Vec<Attention> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        simpler.each(|problem| &mut problem.fused, [None, Some(0)]);
        simpler.each(|problem| &mut problem.places, [Default::default()]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.without_lse, [false]);
        simpler.each(|problem| &mut problem.splits, [None, Some(1), Some(2)]);
        simpler.each(|problem| &mut problem.workspace, [false]);
        Fp8::simpler(&mut simpler, |problem| &mut problem.fp8);
        Terms::simpler(&mut simpler, |problem| &mut problem.terms, &self.terms);
        simpler.size(|problem| &mut problem.batch, 1, 1);
        Heads::simpler(&mut simpler, |problem| &mut problem.heads, &self.heads);
        simpler.size(|problem| &mut problem.q_len, 1, 1);
        simpler.size(|problem| &mut problem.k_len, 1, 1);
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.heads.tame();
        self.terms.tame();
    }
}
