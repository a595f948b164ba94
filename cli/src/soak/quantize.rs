//! Problems of tensors that are quantised, or brought back.

use ferrotile::{
    DequantizePlan, DequantizeTensors, Dtype, F8E4M3, Layout, QuantizePlan, QuantizeTensors, StreamRef, dequantize,
    quantize, reference, tolerance,
};
use half::{bf16, f16};
use ndarray::Array4;
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

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quantize {
    /// The type before, or after the way back.
    #[serde(with = "as_name")]
    wide: Dtype,
    /// The type of quantised elements.
    #[serde(with = "as_name")]
    narrow: Dtype,
    /// Batch, heads, rows and columns.
    shape: [usize; 4],
    /// Whether each batch entry has factors of its own.
    #[serde(default, skip_serializing_if = "is_default")]
    of_batch: bool,
    /// Whether each head has.
    #[serde(default, skip_serializing_if = "is_default")]
    of_heads: bool,
    /// Whether quantised elements are brought back, and not made.
    #[serde(default, skip_serializing_if = "is_default")]
    back: bool,
    /// The elements.
    #[serde(default, skip_serializing_if = "is_default")]
    values: Values,
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where wide and quantised elements lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 2],
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    seed: u64,
}

/// The types of wide elements.
const WIDE: [Dtype; 3] = [Dtype::F16, Dtype::Bf16, Dtype::F32];

impl Quantize {
    fn draw_sizes(random: &mut Random, most: usize) -> Quantize {
        let rows = sizes::length(random, most);
        let shape =
            [sizes::log_uniform(random, 4), sizes::log_uniform(random, 8), rows, sizes::log_uniform(random, 300)];
        Quantize {
            wide: WIDE[random.random_range(0..WIDE.len())],
            narrow: [Dtype::E4M3, Dtype::U8][random.random_range(0..2)],
            shape,
            of_batch: random.random(),
            of_heads: random.random(),
            back: random.random(),
            values: Values::draw(random),
            bshd: random.random(),
            places: Default::default(),
            call: Call::draw(random),
            seed: random.random_range(0..1 << 32),
        }
    }

    fn groups(&self) -> [usize; 2] {
        let [batch, heads, ..] = self.shape;
        [if self.of_batch { batch } else { 1 }, if self.of_heads { heads } else { 1 }]
    }

    fn run_as<T: FloatCell, Q: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let wide = self.values.fill::<T>(&mut random, self.shape.iter().product());
        if self.back { self.bring_back::<T, Q>(bench, &wide) } else { self.quantize::<T, Q>(bench, &wide) }
    }

    fn layout(&self) -> Layout {
        if self.bshd { Layout::Bshd } else { Layout::Bhsd }
    }

    /// Elements and factors by the reference.
    fn exact<Q: FloatCell>(&self, wide: &[f64]) -> (Vec<Q>, Vec<f32>) {
        let wide = wide.iter().map(|&x| x as f32).collect();
        let wide = Array4::from_shape_vec(self.shape, wide).expect("one value an element");
        let (elements, factors) = reference::quantize::<Q>(wide.view(), self.groups());
        (elements.into_raw_vec_and_offset().0, factors.into_raw_vec_and_offset().0)
    }

    /// Quantises; elements and factors are the reference's to the bit.
    fn quantize<T: FloatCell, Q: FloatCell>(&self, bench: &Bench, wide: &[T]) -> Result<f64, Stop> {
        let (groups, layout) = (self.groups(), self.layout());
        let order = |dimensions| layout.reorder(dimensions);
        let x = Input::new(bench, &self.places[0], self.shape, wide)?;
        let plan = QuantizePlan::new(&bench.gpu, T::DTYPE, Q::DTYPE)?;
        let outputs = each(bench, |stream| {
            let elements = Output::<Q, 4>::new(bench, stream, "the elements", &self.places[1], self.shape)?;
            Ok((elements, Output::<f32, 2>::new(bench, stream, "the factors", &Placement::default(), groups)?))
        })?;
        let run =
            |stream: StreamRef<'_>, (out, factors): &mut (Output<Q, 4>, Output<f32, 2>), _: &mut Output<u8, 1>| {
                let tensors = QuantizeTensors { x: x.tensor(order), out: out.tensor(order), descales: factors.plain() };
                match self.call {
                    Call::Function => quantize(stream, tensors, layout),
                    Call::Plan | Call::Graph => plan.run(stream, tensors, layout),
                }
            };
        let (elements, factors) = twice(bench, (self.call, false), outputs, 0, run)?;
        // Where a dimension is repeated, fewer elements are shown than were drawn.
        let (exact, exact_factors) = self.exact::<Q>(&x.wide());
        let limits = vec![0.0; factors.len()];
        let [got, expected] = [&factors, &exact_factors].map(|factors| factors.iter().map(|&x| x.into()).collect());
        let (got, expected): (Vec<f64>, Vec<f64>) = (got, expected);
        check::elements("the factors", Dtype::F32, &groups, [&got, &expected, &limits])?;
        let wide = |elements: &[Q]| elements.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
        let limits = vec![0.0; elements.len()];
        let of_elements = [&wide(&elements)[..], &wide(&exact), &limits];
        Ok(check::elements("the elements", Q::DTYPE, &self.shape, of_elements)?)
    }

    /// Multiplies elements by their factors: two roundings in f32, and that of the result.
    fn bring_back<T: FloatCell, Q: FloatCell>(&self, bench: &Bench, wide: &[T]) -> Result<f64, Stop> {
        let (groups, layout) = (self.groups(), self.layout());
        let order = |dimensions| layout.reorder(dimensions);
        let wide: Vec<f64> = wide.iter().map(|x| x.to_f64()).collect();
        let (elements, factors) = self.exact::<Q>(&wide);
        let x = Input::new(bench, &self.places[1], self.shape, &elements)?;
        let factors = Input::new(bench, &Placement::default(), groups, &factors)?;
        let plan = DequantizePlan::new(&bench.gpu, Q::DTYPE, T::DTYPE)?;
        let place = self.places[0].unrepeated();
        let outputs = each(bench, |stream| Output::<T, 4>::new(bench, stream, "the products", &place, self.shape))?;
        let run = |stream: StreamRef<'_>, out: &mut Output<T, 4>, _: &mut Output<u8, 1>| {
            let tensors = DequantizeTensors { x: x.tensor(order), descales: factors.plain(), out: out.tensor(order) };
            match self.call {
                Call::Function => dequantize(stream, tensors, layout),
                Call::Plan | Call::Graph => plan.run(stream, tensors, layout),
            }
        };
        let products = twice(bench, (self.call, false), outputs, 0, run)?;
        check::written("the products", &products, &self.shape)?;
        let wide: Array4<f64> = x.array().into_dimensionality().expect("four dimensions");
        let factors = factors.array().into_dimensionality().expect("two dimensions");
        let exact = reference::dequantize(wide.view(), factors.view()).into_raw_vec_and_offset().0;
        let share = 0.5 * tolerance::atol(T::DTYPE) + 2.0 * f64::from(f32::EPSILON);
        let limit = |product: &f64| share * product.abs() + tolerance::least_number(T::DTYPE);
        let limits: Vec<f64> = exact.iter().map(limit).collect();
        let got: Vec<f64> = products.iter().map(|x| x.to_f64()).collect();
        Ok(check::elements("the products", T::DTYPE, &self.shape, [&got, &exact, &limits])?)
    }

    fn run_from<T: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        match self.narrow {
            Dtype::U8 => self.run_as::<T, u8>(bench),
            _ => self.run_as::<T, F8E4M3>(bench),
        }
    }
}

impl Family for Quantize {
    fn draw(random: &mut Random, scope: &Scope) -> Quantize {
        let cost = |problem: &Quantize| problem.shape.iter().product::<usize>() * 64;
        let mut problem = sizes::within(random, [scope.most, scope.work], Quantize::draw_sizes, cost);
        problem.places = [true, false].map(|may_repeat| Placement::draw(random, 4, may_repeat));
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match self.wide {
            Dtype::F32 => self.run_from::<f32>(bench),
            Dtype::Bf16 => self.run_from::<bf16>(bench),
            _ => self.run_from::<f16>(bench),
        }
    }

    fn simpler(&self) -> Vec<Quantize> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.of_batch, [false]);
        simpler.each(|problem| &mut problem.of_heads, [false]);
        simpler.each(|problem| &mut problem.values, self.values.simpler());
        for dimension in 0..4 {
            simpler.size(|problem| &mut problem.shape[dimension], 1, 1);
        }
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.values.tame();
    }
}
