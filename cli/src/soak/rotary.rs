//! Problems of rotary embedding and of the append to a cache.

use ferrotile::{
    Buffer, Dtype, F8E4M3, Layout, RotaryFrequencies, RotaryPlan, RotaryScaling, RotaryTensors, StreamRef, TensorRef,
    reference, rotary, tolerance,
};
use half::{bf16, f16};
use ndarray::{Array2, Array4};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{FloatCell, Input, Output};
use super::outcome::Stop;
use super::placement::Placement;
use super::sizes::{self, Random};
use super::text::{as_name, is_default};
use super::twice::{Call, each, twice};
use super::values::Values;

/// A problem: Q is rotated, K is rotated and appended to an empty cache, and so is V without rotation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rotary {
    /// The type of Q, K and V.
    #[serde(with = "as_name")]
    dtype: Dtype,
    /// The type of the cache.
    #[serde(with = "as_name")]
    cache: Dtype,
    /// Batch, heads, rows and columns of Q.
    shape: [usize; 4],
    /// Heads of K and V.
    kv_heads: usize,
    /// Pairs that are rotated, at most half the columns.
    pairs: usize,
    #[serde(default, skip_serializing_if = "is_default")]
    interleaved: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    values: Values,
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where Q, K and V lie, and the caches.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 2],
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    seed: u64,
}

impl Rotary {
    fn draw_sizes(random: &mut Random, most: usize) -> Rotary {
        let columns = sizes::log_uniform(random, 256);
        let rows = sizes::length(random, most);
        let dtype = sizes::HALVES[random.random_range(0..2)];
        Rotary {
            dtype,
            cache: [dtype, Dtype::E4M3][random.random_range(0..2)],
            shape: [sizes::log_uniform(random, 4), sizes::log_uniform(random, 8), rows, columns],
            kv_heads: sizes::log_uniform(random, 4),
            pairs: random.random_range(0..=columns / 2),
            interleaved: random.random(),
            values: Values::draw_tame(random),
            bshd: random.random(),
            places: Default::default(),
            call: Call::draw(random),
            seed: random.random_range(0..1 << 32),
        }
    }

    fn run_as<T: FloatCell, C: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let [batch, _, rows, columns] = self.shape;
        let kv_shape = [batch, self.kv_heads, rows, columns];
        let pairs = self.pairs.min(columns / 2);
        let layout = if self.bshd { Layout::Bshd } else { Layout::Bhsd };
        let order = |dimensions| layout.reorder(dimensions);
        let mut input = |shape: [usize; 4]| {
            let values = self.values.fill::<T>(&mut random, shape.iter().product());
            Input::new(bench, &self.places[0], shape, &values)
        };
        let (q, k, v) = (input(self.shape)?, input(kv_shape)?, input(kv_shape)?);
        let frequencies = RotaryFrequencies { base: 1e4, rotary_dim: 2 * pairs, scaling: RotaryScaling::None };
        let (cos, sin) = frequencies.table(0..rows)?;
        let stream = &bench.streams[0];
        let on_card = [Buffer::upload_blocking(stream, &cos)?, Buffer::upload_blocking(stream, &sin)?];
        let table = |index: usize| TensorRef::contiguous(&on_card[index], [rows, pairs]);
        let plan = RotaryPlan::new(&bench.gpu, T::DTYPE, C::DTYPE)?;
        let place = self.places[1].unrepeated();
        let outputs = each(bench, |stream| {
            let cache = |name| Output::<C, 4>::new(bench, stream, name, &place, kv_shape);
            let q = Output::<T, 4>::new(bench, stream, "the rotated Q", &place, self.shape)?;
            Ok((q, (cache("the cache of K")?, cache("the cache of V")?)))
        })?;
        type Written<T, C> = (Output<T, 4>, (Output<C, 4>, Output<C, 4>));
        let run = |stream: StreamRef<'_>, (out, (of_k, of_v)): &mut Written<T, C>, _: &mut Output<u8, 1>| {
            let tensors = RotaryTensors::new(layout)
                .interleaved(self.interleaved)
                .q_to(q.tensor(order), out.tensor(order))
                .k(k.tensor(order))
                .v(v.tensor(order))
                .rotary(table(0)?, table(1)?)
                .cache([of_k.tensor(order), of_v.tensor(order)], layout);
            match self.call {
                Call::Function => rotary(stream, tensors),
                Call::Plan | Call::Graph => plan.run(stream, tensors),
            }
        };
        let (got, (of_k, of_v)) = twice(bench, (self.call, false), outputs, 0, run)?;

        let wide = |table: Vec<f32>| {
            let table = table.into_iter().map(f64::from).collect();
            Array2::from_shape_vec((rows, pairs), table).expect("one number a pair")
        };
        let (cos, sin) = (wide(cos), wide(sin));
        let positions = vec![(0..rows as i64).collect::<Vec<_>>(); batch];
        let rotated = |x: &Input<T, 4>| {
            let x: Array4<f64> = x.array().into_dimensionality().expect("four dimensions");
            reference::rotary(x.view(), &positions, (cos.view(), sin.view()), self.interleaved)
        };
        let v: Array4<f64> = v.array().into_dimensionality().expect("four dimensions");
        let of_q = compare("the rotated Q", &got, &rotated(&q))?;
        let of_k = compare("the cache of K", &of_k, &rotated(&k))?;
        Ok(of_q.max(of_k).max(compare("the cache of V", &of_v, &v)?))
    }
}

/// The share of its limit that the largest error has: one rounding, and those of f32 beside the largest element.
fn compare<C: FloatCell>(name: &str, got: &[C], exact: &Array4<f64>) -> Result<f64, Stop> {
    let (batch, heads, rows, columns) = exact.dim();
    let largest = exact.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
    let most = if C::DTYPE == Dtype::E4M3 { 448.0 } else { f64::INFINITY };
    let exact: Vec<f64> = exact.iter().map(|x| x.clamp(-most, most)).collect();
    let limit = |x: &f64| {
        0.5 * tolerance::atol(C::DTYPE) * x.abs()
            + tolerance::least_number(C::DTYPE)
            + 8.0 * f64::from(f32::EPSILON) * largest
    };
    let limits: Vec<f64> = exact.iter().map(limit).collect();
    let got: Vec<f64> = got.iter().map(|x| x.to_f64()).collect();
    Ok(check::elements(name, C::DTYPE, &[batch, heads, rows, columns], [&got, &exact, &limits])?)
}

impl Family for Rotary {
    fn draw(random: &mut Random, scope: &Scope) -> Rotary {
        let cost = |problem: &Rotary| problem.shape.iter().product::<usize>() * 64;
        let mut problem = sizes::within(random, [scope.most, scope.work], Rotary::draw_sizes, cost);
        problem.places = [true, false].map(|may_repeat| Placement::draw(random, 4, may_repeat));
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match (self.dtype, self.cache) {
            (Dtype::Bf16, Dtype::E4M3) => self.run_as::<bf16, F8E4M3>(bench),
            (Dtype::Bf16, _) => self.run_as::<bf16, bf16>(bench),
            (_, Dtype::E4M3) => self.run_as::<f16, F8E4M3>(bench),
            _ => self.run_as::<f16, f16>(bench),
        }
    }

    fn simpler(&self) -> Vec<Rotary> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.interleaved, [false]);
        simpler.each(|problem| &mut problem.values, self.values.simpler());
        for dimension in 0..4 {
            simpler.size(|problem| &mut problem.shape[dimension], 1, 1);
        }
        simpler.size(|problem| &mut problem.kv_heads, 1, 1);
        simpler.size(|problem| &mut problem.pairs, 0, 1);
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.values.tame();
    }
}
