//! Problems of attention whose sequences are all as long, decoding among them.

use ferrotile::{
    AttentionOptions, AttentionPlan, AttentionProblem, AttentionTensors, Dtype, Layout, Stream, attention_variants,
    attention_with,
};
use half::{bf16, f16};
use layout::attention::{ScoreMod, Seqlens};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{Input, Output, Stored};
use super::outcome::{Failure, Outcome, Run, refusal};
use super::place::{Place, View};
use super::sizes::{self, Random};
use super::softmax::{Expected, Heads, TermInputs, Terms, array4};
use super::text::is_default;

/// Workspace that plans may have, where they may have some.
pub(crate) const WORKSPACE_BYTES: usize = 64 << 20;

/// How the library is called.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// A plan, and its run.
    #[default]
    Plan,
    /// The function that takes tensors alone.
    Function,
    /// A run of a plan that a graph has captured, and replays.
    Graph,
}

impl Call {
    /// Most calls are those of plans.
    pub(crate) fn draw(random: &mut Random) -> Call {
        [Call::Plan, Call::Plan, Call::Function, Call::Graph][random.random_range(0..4)]
    }
}

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
    /// Whether dimensions are named in the order batch, sequence, heads.
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where Q, K, V and O lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Place; 4],
    /// Elements before a tensor `[batch, sequence, all heads, head dimension]` of Q, K and V together, where they lie
    /// in one.
    #[serde(default, skip_serializing_if = "is_default")]
    fused: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    without_lse: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    variant: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    splits: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    workspace: bool,
    seed: u64,
}

/// What kernels must do to the scores of these terms.
pub(crate) fn scores(terms: &Terms) -> ScoreMod {
    ScoreMod::of(terms.softcap, terms.bias.is_some())
}

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
            bshd: random.random(),
            places: Default::default(),
            fused: None,
            without_lse: false,
            call: Call::Plan,
            variant: None,
            splits: None,
            workspace: false,
            seed: random.random_range(0..1 << 32),
        }
    }

    fn layout(&self) -> Layout {
        if self.bshd { Layout::Bshd } else { Layout::Bhsd }
    }

    fn problem(&self) -> AttentionProblem {
        let Heads { q_heads, kv_heads, head_dim, .. } = self.heads;
        AttentionProblem { batch: self.batch, q_heads, kv_heads, q_len: self.q_len, k_len: self.k_len, head_dim }
    }

    fn options(&self) -> AttentionOptions {
        AttentionOptions {
            mask: self.terms.mask,
            scale: self.terms.scale,
            softcap: self.terms.softcap,
            bias: self.terms.bias.is_some(),
            value_dim: Some(self.heads.value_dim),
            variant: self.variant.clone(),
            splits: self.splits,
            max_workspace_bytes: if self.workspace { WORKSPACE_BYTES } else { 0 },
            ..AttentionOptions::new(self.layout())
        }
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

    /// Q, K and V on the device, from one storage where they are fused.
    fn inputs<T: Stored>(&self, bench: &Bench, random: &mut Random) -> ferrotile::Result<[Input<T, 4>; 3]> {
        let shapes = self.shapes();
        let [q, k, v] =
            [0, 1, 2].map(|index| self.heads.values[index].fill::<T>(random, shapes[index].iter().product()));
        let Some(offset) = self.fused.filter(|_| self.q_len == self.k_len && shapes[1] == shapes[2]) else {
            let input = |index: usize, values: &[T]| Input::new(bench, &self.places[index], shapes[index], values);
            return Ok([input(0, &q)?, input(1, &k)?, input(2, &v)?]);
        };
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
        Ok([q?, k?, v?])
    }

    fn run_as<T: Stored>(&self, bench: &Bench) -> Run {
        let mut random = Random::seed_from_u64(self.seed);
        let [q, k, v] = self.inputs::<T>(bench, &mut random)?;
        let [q_shape, k_shape, .., out_shape] = self.shapes();
        let sizes = [self.batch, self.heads.q_heads, self.q_len, self.k_len];
        let terms = TermInputs::<T>::new(bench, &self.terms, &mut random, sizes)?;
        let options = self.options();
        let asked = self.variant.is_some() || self.splits.is_some();
        let plan = match AttentionPlan::new(&bench.gpu, T::DTYPE, &self.problem(), &options) {
            Ok(plan) => plan,
            Err(error) => return refusal(asked, error),
        };
        let (layout, lse_shape) = (self.layout(), [self.batch, self.heads.q_heads, self.q_len]);
        let order = |dimensions| layout.reorder(dimensions);
        let dense = Place::default();
        let mut outputs = Vec::new();
        for stream in &bench.streams {
            outputs.push((
                Output::<T, 4>::new(bench, stream, "O", &self.places[3], out_shape)?,
                Output::<f32, 3>::new(bench, stream, "the LSE", &dense, lse_shape)?,
                Output::<u8, 1>::new(bench, stream, "the workspace", &dense, [plan.workspace_bytes()])?,
            ));
        }
        let mut graphs = Vec::new();
        for (stream, (out, lse, workspace)) in bench.streams.iter().zip(&mut outputs) {
            let function = self.call == Call::Function && !self.workspace;
            let tensors = AttentionTensors {
                lse: if self.without_lse { None } else { Some(lse.plain()?) },
                sink: terms.sink.as_ref().map(Input::plain).transpose()?,
                bias: terms.bias.as_ref().map(Input::plain).transpose()?,
                workspace: if function { None } else { Some(workspace.plain()?) },
                ..AttentionTensors::new(q.tensor(order)?, k.tensor(order)?, v.tensor(order)?, out.tensor(order)?)
            };
            let done = match self.call {
                Call::Function if function => attention_with(stream.as_ref(), tensors, &options),
                Call::Graph => stream.capture(|stream| plan.run_with(stream, tensors)).and_then(|graph| {
                    // SAFETY: the tensors live until both streams have been waited for, and so does the graph.
                    let done = unsafe { graph.launch(stream.as_ref()) };
                    graphs.push(graph);
                    done
                }),
                _ => plan.run_with(stream.as_ref(), tensors),
            };
            if let Err(error) = done {
                out.check_untouched(stream)?;
                lse.check_untouched(stream)?;
                return refusal(asked, error);
            }
        }
        let (out, lse) = read_twice(&bench.streams, &outputs, [&out_shape, &lse_shape])?;
        drop(graphs);
        let lse = if self.without_lse {
            outputs[0].1.check_untouched(&bench.streams[0])?;
            None
        } else {
            check::written("the LSE", &lse, &lse_shape)?;
            Some(&lse[..])
        };
        check::written("O", &out, &out_shape)?;
        if q_shape[0] * q_shape[1] * q_shape[2] == 0 {
            return Ok(Outcome::Right);
        }
        let [q, k, v] = [&q, &k, &v].map(array4);
        assert_eq!(k.dim().2, k_shape[2]);
        let (sink, bias) = terms.wide();
        let bias = bias.as_ref().map(|bias| bias.view());
        let expected = Expected::new(T::DTYPE, [q.view(), k.view(), v.view()], &self.terms, (sink.as_ref(), bias));
        expected.check(&out, lse)?;
        Ok(Outcome::Right)
    }
}

/// The outputs of the first run, which those of the second equal; workspaces keep to themselves.
pub(crate) fn read_twice<T: Stored, const O: usize, const L: usize>(
    streams: &[Stream; 2],
    outputs: &[(Output<T, O>, Output<f32, L>, Output<u8, 1>)],
    [out_shape, lse_shape]: [&[usize]; 2],
) -> Result<(Vec<T>, Vec<f32>), Failure> {
    let mut read = Vec::new();
    for (stream, (out, lse, workspace)) in streams.iter().zip(outputs) {
        workspace.read(stream)?;
        read.push((out.read(stream)?, lse.read(stream)?));
    }
    let (second, first) = (read.pop().expect("two runs"), read.pop().expect("two runs"));
    check::same("O", [&first.0, &second.0], out_shape)?;
    check::same("the LSE", [&first.1, &second.1], lse_shape)?;
    Ok(first)
}

/// A step simpler in the fields that the attention families share beside heads and terms.
pub(crate) fn simpler_places<P: Clone>(simpler: &mut Simpler<P>, places: impl Fn(&mut P) -> &mut [Place; 4] + Copy) {
    simpler.change(|problem| *places(problem) = Default::default());
    for index in 0..4 {
        let simpler_places = places(&mut simpler.problem().clone())[index].simpler();
        simpler.each(|problem| &mut places(problem)[index], simpler_places);
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
        let may_repeat = [true, true, true, false];
        problem.places = may_repeat.map(|may_repeat| Place::draw(random, 4, may_repeat));
        problem.without_lse = random.random_bool(0.1);
        problem.call = Call::draw(random);
        problem.workspace = random.random();
        if random.random() {
            let Heads { dtype, head_dim, value_dim, .. } = problem.heads;
            let (terms, q_len, k_len) = (&problem.terms, problem.q_len, problem.k_len);
            let eligible: Vec<_> = attention_variants(scope.arch, dtype, [head_dim, value_dim])
                .filter(|row| row.covers(scores(terms), Seqlens::Fixed) && row.takes(terms.mask, q_len, k_len))
                .collect();
            if !eligible.is_empty() {
                problem.variant = Some(eligible[random.random_range(0..eligible.len())].name.to_owned());
            }
        }
        if random.random_bool(if problem.q_len <= 16 { 0.3 } else { 0.02 }) {
            problem.splits = Some(random.random_range(1..=9));
        }
        problem
    }

    fn run(&self, bench: &Bench) -> Run {
        match self.heads.dtype {
            Dtype::Bf16 => self.run_as::<bf16>(bench),
            _ => self.run_as::<f16>(bench),
        }
    }

    fn simpler(&self) -> Vec<Attention> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        simpler.each(|problem| &mut problem.fused, [None, Some(0)]);
        simpler_places(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.without_lse, [false]);
        simpler.each(|problem| &mut problem.splits, [None, Some(1), Some(2)]);
        simpler.each(|problem| &mut problem.workspace, [false]);
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
