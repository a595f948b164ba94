//! Problems of products of matrices.

use ferrotile::reference::{self, GemmTerms};
use ferrotile::{
    Accumulation, Activation, Arch, Buffer, Dtype, F8E4M3, F8E5M2, GemmLayout, GemmOptions, GemmPlan, GemmProblem,
    GemmTensors, Scale, StreamRef, TensorRef, gemm, tolerance,
};
use half::{bf16, f16};
use ndarray::{Array1, Array3};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};
use variants::gemm::GEMM;

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{FloatCell, Input, Output};
use super::outcome::{Failure, Stop, refusal};
use super::placement::Placement;
use super::sizes::{self, HALVES, Random};
use super::text::{as_name, as_text, is_default};
use super::twice::{Call, WORKSPACE_BYTES, each, twice};
use super::values::{Range, Values};

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gemm {
    #[serde(with = "as_name")]
    a: Dtype,
    #[serde(with = "as_name")]
    b: Dtype,
    #[serde(with = "as_name")]
    d: Dtype,
    #[serde(with = "as_text")]
    layout: GemmLayout,
    batch: usize,
    m: usize,
    n: usize,
    k: usize,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    alpha: f32,
    #[serde(default, skip_serializing_if = "is_default")]
    beta: f32,
    /// The elements of C, where there is one.
    #[serde(default, skip_serializing_if = "is_default")]
    c: Option<Values>,
    /// The numbers of the bias, where there is one.
    #[serde(default, skip_serializing_if = "is_default")]
    bias: Option<Values>,
    #[serde(default, with = "as_name", skip_serializing_if = "is_default")]
    activation: Activation,
    /// Whether FP8 products are summed in the tensor cores alone.
    #[serde(default, skip_serializing_if = "is_default")]
    direct: bool,
    /// The scales of A, B and D.
    #[serde(default, skip_serializing_if = "is_default")]
    scales: [Option<Factor>; 3],
    /// The elements of A and B.
    #[serde(default, skip_serializing_if = "is_default")]
    values: [Values; 2],
    /// Where A, B, C and D lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 4],
    #[serde(default, skip_serializing_if = "is_default")]
    call: Call,
    #[serde(default, skip_serializing_if = "is_default")]
    isolated: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    kernel: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    splits: Option<usize>,
    #[serde(default, skip_serializing_if = "is_default")]
    workspace: bool,
    seed: u64,
}

/// A scale, and where it is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Factor {
    /// An argument.
    Value(f32),
    /// On the device.
    Device(f32),
}

impl Factor {
    fn number(of: Option<Factor>) -> f32 {
        match of {
            None => 1.0,
            Some(Factor::Value(number) | Factor::Device(number)) => number,
        }
    }
}

fn one() -> f32 {
    1.0
}

fn is_one(number: &f32) -> bool {
    *number == 1.0
}

/// The error of the epilogue, in units of what the terms of an element sum up to: twice 2^-20. It covers the roundings
/// of f32 after the sum, and the approximate `ex2` and `rcp` of activations.
const EPILOGUE: f64 = 1.0 / (1 << 19) as f64;

impl Gemm {
    fn draw_sizes(random: &mut Random, arch: Arch, most: usize) -> Gemm {
        let fp8 = arch >= Arch::Sm89 && random.random_bool(0.3);
        let half = HALVES[random.random_range(0..2)];
        let (a, b) = match fp8 {
            true => (Dtype::E4M3, [Dtype::E4M3, Dtype::E5M2][random.random_range(0..2)]),
            false => (half, half),
        };
        let stored = [Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::E4M3];
        let mut size = || sizes::length(random, most);
        let [m, n, k] = [size(), size(), size()];
        Gemm {
            a,
            b,
            d: stored[random.random_range(0..if fp8 { 4 } else { 3 })],
            layout: GemmLayout::ALL[random.random_range(0..4)],
            batch: if random.random_bool(0.02) { 0 } else { sizes::log_uniform(random, (most / 60).max(1)) },
            m,
            n,
            k,
            alpha: 1.0,
            beta: 0.0,
            c: None,
            bias: None,
            activation: Activation::None,
            direct: random.random(),
            scales: [None; 3],
            values: [Values::Normal; 2],
            places: Default::default(),
            call: Call::Plan,
            isolated: random.random_bool(0.2),
            kernel: None,
            splits: None,
            workspace: false,
            seed: random.random_range(0..1 << 32),
        }
    }

    /// A factor that the library knows before the call.
    fn known_scale(&self, index: usize) -> f64 {
        match self.scales[index] {
            Some(Factor::Value(number)) => number.into(),
            _ => 1.0,
        }
    }

    fn accumulation(&self) -> Accumulation {
        if self.direct { Accumulation::Direct } else { Accumulation::TwoLevel }
    }

    fn options(&self) -> GemmOptions {
        GemmOptions {
            alpha: self.alpha,
            beta: self.beta,
            activation: self.activation,
            accumulation: self.accumulation(),
            kernel: self.kernel.clone(),
            splits: self.splits,
            isolated: self.isolated,
            max_workspace_bytes: if self.workspace { WORKSPACE_BYTES } else { 0 },
            ..GemmOptions::new(self.layout)
        }
    }

    fn problem(&self) -> GemmProblem {
        GemmProblem { batch: self.batch, ..GemmProblem::new([self.m, self.n, self.k], self.a, self.b, self.d) }
    }

    fn run_as<A: FloatCell, B: FloatCell, D: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let (problem, options) = (self.problem(), self.options());
        let (a_shape, b_shape, d_shape) =
            (problem.a_shape(self.layout), problem.b_shape(self.layout), problem.d_shape());
        let a = self.values[0].fill::<A>(&mut random, a_shape.iter().product());
        let b = self.values[1].fill::<B>(&mut random, b_shape.iter().product());
        let a = Input::new(bench, &self.places[0], a_shape, &a)?;
        let b = Input::new(bench, &self.places[1], b_shape, &b)?;
        let c = self.c.map(|values| {
            // With a beta of 0 it is not read.
            let count = d_shape.iter().product();
            let values = if self.beta == 0.0 { vec![D::POISON; count] } else { values.fill(&mut random, count) };
            Input::new(bench, &self.places[2], d_shape, &values)
        });
        let c = c.transpose()?;
        let bias = self.bias.map(|values| {
            let values = values.fill::<f32>(&mut random, self.n);
            Input::new(bench, &Placement::default(), [self.n], &values)
        });
        let bias = bias.transpose()?;
        let factors = self.scales.map(|scale| Buffer::upload_blocking(&bench.streams[0], &[Factor::number(scale)]));
        let [a_factor, b_factor, d_factor] = factors;
        let factors = [a_factor?, b_factor?, d_factor?];
        let scale = |index: usize| {
            Ok::<_, ferrotile::Error>(match self.scales[index] {
                None => Scale::default(),
                Some(Factor::Value(number)) => Scale::Value(number),
                Some(Factor::Device(_)) => Scale::Device(TensorRef::contiguous(&factors[index], [1])?),
            })
        };
        let mut outputs = each(bench, |stream| Output::<D, 3>::new(bench, stream, "D", &self.places[3], d_shape))?;
        let problem = GemmProblem::of(&GemmTensors::new(a.plain(), b.plain(), outputs[0].plain()), self.layout)?;
        // Factors whose product is beyond f32 are refused too.
        let product = f64::from(self.alpha) * self.known_scale(0) * self.known_scale(1);
        let asked =
            self.kernel.is_some() || self.splits.is_some() || !self.workspace || product.abs() > f64::from(f32::MAX);
        let plan = GemmPlan::new(&bench.gpu, &problem, &options).map_err(|error| refusal(asked, error))?;
        let scales = [scale(0)?, scale(1)?, scale(2)?];
        let function = self.call == Call::Function && plan.workspace_bytes() == 0;
        let run = |stream: StreamRef<'_>, out: &mut Output<D, 3>, workspace: &mut Output<u8, 1>| {
            let mut tensors = GemmTensors::new(a.plain(), b.plain(), out.plain());
            tensors.c = c.as_ref().map(Input::plain);
            tensors.bias = bias.as_ref().map(Input::plain);
            [tensors.a_scale, tensors.b_scale, tensors.d_scale] = scales;
            match function {
                true => gemm(stream, tensors, &options),
                false => plan.run(stream, tensors, Some(workspace.plain())),
            }
        };
        let first = twice(bench, (self.call, asked), outputs, plan.workspace_bytes(), run)?;
        if D::DTYPE.size_bytes() > 1 {
            // The poison of FP8 is its NaN.
            check::written("D", &first, &d_shape)?;
        }
        let (c, bias) = (c.map(|c| c.array3()), bias.map(|bias| bias.wide()));
        Ok(self.check(&problem, [&a.array3(), &b.array3()], c, bias, &first)?)
    }

    fn check<D: FloatCell>(
        &self,
        problem: &GemmProblem,
        [a, b]: [&Array3<f64>; 2],
        c: Option<Array3<f64>>,
        bias: Option<Vec<f64>>,
        got: &[D],
    ) -> Result<f64, Failure> {
        let transposed = |array: &Array3<f64>, is: bool| {
            if is { array.clone().permuted_axes([0, 2, 1]) } else { array.clone() }
        };
        let a = transposed(a, matches!(self.layout, GemmLayout::Tn | GemmLayout::Tt));
        let b = transposed(b, matches!(self.layout, GemmLayout::Nt | GemmLayout::Tt));
        let c = c.filter(|_| self.beta != 0.0);
        let bias = bias.map(Array1::from_vec);
        let [a_scale, b_scale, d_scale] = self.scales.map(|scale| f64::from(Factor::number(scale)));
        let terms = GemmTerms {
            alpha: f64::from(self.alpha) * a_scale * b_scale,
            beta: self.beta.into(),
            c: c.as_ref().map(|c| c.view()),
            bias: bias.as_ref().map(|bias| bias.view()),
            activation: self.activation,
            d_scale,
        };
        // A scale of 0 does not hide what is infinite in A or B, as an alpha of 0 does.
        let exact = reference::gemm(
            (&a * a_scale).view(),
            (&b * b_scale).view(),
            &GemmTerms { alpha: self.alpha.into(), ..terms },
        );
        let [of_a, of_b] =
            [(&a, self.a), (&b, self.b)].map(|(array, dtype)| array.mapv(|x| reference::stored_magnitude(x, dtype)));
        let product =
            |of_a: &Array3<f64>, of_b: &Array3<f64>| reference::gemm(of_a.view(), of_b.view(), &GemmTerms::default());
        let magnitudes = product(&of_a, &of_b);
        // Without what is infinite or NaN by itself.
        let finite = [&of_a, &of_b].map(|array| array.mapv(|x| if x.is_finite() { x } else { 0.0 }));
        let finite = product(&finite[0], &finite[1]);
        let (atol, least) = (tolerance::atol(D::DTYPE), tolerance::least_number(D::DTYPE));
        let limits: Vec<f64> = magnitudes
            .indexed_iter()
            .map(|(index, &sum)| {
                let beside = c.as_ref().map_or(0.0, |c| (terms.beta * c[index]).abs())
                    + bias.as_ref().map_or(0.0, |bias| bias[index.2].abs());
                let all = sum * terms.alpha.abs() + beside;
                // A product of factors that f32 does not hold is infinite or 0 in it.
                let factor = terms.alpha as f32;
                let is_lost = factor == 0.0 && terms.alpha != 0.0 && !sum.is_finite();
                if finite[index] > tolerance::LARGEST_SUM || factor.is_infinite() || is_lost {
                    return f64::INFINITY;
                }
                if !all.is_finite() {
                    // Infinity and NaN are what the formula makes of them.
                    return 0.0;
                }
                if all.max(all * d_scale.abs()) > tolerance::LARGEST_SUM {
                    return f64::INFINITY;
                }
                let magnitude = sum * (terms.alpha * d_scale).abs();
                let of_sum = tolerance::gemm_sum_limit(problem, self.accumulation(), magnitude);
                // The rounding of D, and below its normal numbers.
                let all = all * d_scale.abs();
                // The rounding of the product of the factors.
                let of_factor = sum * d_scale.abs() * f64::from(f32::from_bits(1));
                let of_small = least + 4.0 * f64::from(f32::MIN_POSITIVE) * (1.0 + d_scale.abs());
                of_sum + all * (EPILOGUE + atol) + of_factor + of_small
            })
            .collect();
        let got: Vec<f64> = got.iter().map(|x| x.to_f64()).collect();
        let exact: Vec<f64> = exact.into_iter().collect();
        check::elements("D", D::DTYPE, &problem.d_shape(), [&got, &exact, &limits])
    }

    fn run_into<A: FloatCell, B: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        match self.d {
            Dtype::F16 => self.run_as::<A, B, f16>(bench),
            Dtype::Bf16 => self.run_as::<A, B, bf16>(bench),
            Dtype::E4M3 | Dtype::E5M2 | Dtype::U8 => self.run_as::<A, B, F8E4M3>(bench),
            Dtype::F32 => self.run_as::<A, B, f32>(bench),
        }
    }
}

impl<T: FloatCell> Input<T, 3> {
    /// The elements as an array of three dimensions.
    pub(crate) fn array3(&self) -> Array3<f64> {
        self.array().into_dimensionality().expect("three dimensions")
    }
}

impl Family for Gemm {
    fn draw(random: &mut Random, scope: &Scope) -> Gemm {
        let cost = |problem: &Gemm| problem.batch * (problem.m + 16) * (problem.n + 16) * (problem.k + 16);
        let draw = |random: &mut Random, most| Gemm::draw_sizes(random, scope.arch, most);
        let mut problem = sizes::within(random, [scope.most, scope.work], draw, cost);
        let factors = [0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, -1e3, 1e-30, 1e30];
        let mut factor =
            |chance: f64| random.random_bool(chance).then(|| factors[random.random_range(0..factors.len())]);
        problem.alpha = factor(0.3).unwrap_or(1.0);
        problem.beta = factor(0.4).unwrap_or(0.0);
        let scales = [(); 3].map(|()| factor(0.15));
        problem.scales = scales.map(|scale| {
            let on_device = random.random();
            scale.map(|number| if on_device { Factor::Device(number) } else { Factor::Value(number) })
        });
        if problem.beta != 0.0 || random.random_bool(0.1) {
            problem.c = Some(Values::draw(random));
        }
        problem.bias = random.random_bool(0.3).then(|| Values::draw_tame(random));
        problem.activation = Activation::ALL[random.random_range(0..7usize).min(3)];
        if random.random_bool(0.6) {
            problem.activation = Activation::None;
        }
        problem.values = [Values::draw(random), Values::draw(random)];
        // Sums of the products of two vast bf16 are beyond f32, where nothing is specified.
        let wide = Range::of(problem.a).largest > 1e30;
        if wide && problem.values.iter().all(|values| values.are_vast()) {
            problem.values[0] = Values::draw_tame(random);
        }
        // E4M3 has no infinity, and what activations make of one is their own.
        let plain = matches!(problem.activation, Activation::None | Activation::Relu);
        if problem.a.size_bytes() == 2 && plain && problem.alpha != 0.0 && random.random_bool(0.05) {
            problem.values[random.random_range(0..2)] = Values::Infinities;
        }
        problem.places = [true, true, true, false].map(|may_repeat| Placement::draw(random, 3, may_repeat));
        problem.call = Call::draw(random);
        problem.workspace = random.random_bool(0.7);
        if random.random() {
            // FP8 is copied, where it has to be, to what such a kernel takes.
            let layout = if problem.a.size_bytes() == 1 { GemmLayout::Nt } else { problem.layout };
            let any = random.random_bool(0.1);
            let eligible = GEMM
                .iter()
                .filter(|config| config.multiplies(problem.a, problem.b, problem.accumulation()))
                .filter(|config| config.is_in(scope.arch) && (any || config.takes(layout, true)));
            problem.kernel = sizes::pick(random, eligible.map(|config| config.name));
        }
        if problem.workspace && random.random_bool(0.2) {
            problem.splits = Some(random.random_range(1..=5));
        }
        problem
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match (self.a, self.b) {
            (Dtype::F16, _) => self.run_into::<f16, f16>(bench),
            (Dtype::Bf16, _) => self.run_into::<bf16, bf16>(bench),
            (_, Dtype::E5M2) => self.run_into::<F8E4M3, F8E5M2>(bench),
            _ => self.run_into::<F8E4M3, F8E4M3>(bench),
        }
    }

    fn simpler(&self) -> Vec<Gemm> {
        let mut simpler = Simpler::of(self);
        simpler.each(|problem| &mut problem.call, [Call::Plan]);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.isolated, [false]);
        simpler.each(|problem| &mut problem.splits, [None, Some(2)]);
        simpler.change(|problem| (problem.beta, problem.c) = (0.0, None));
        simpler.each(|problem| &mut problem.beta, [0.0, 1.0]);
        simpler.each(|problem| &mut problem.bias, [None]);
        simpler.each(|problem| &mut problem.alpha, [1.0]);
        simpler.each(|problem| &mut problem.activation, [Activation::None]);
        for index in 0..3 {
            let number = Factor::number(self.scales[index]);
            simpler.each(|problem| &mut problem.scales[index], [None, Some(Factor::Value(number))]);
        }
        for index in 0..2 {
            simpler.each(|problem| &mut problem.values[index], self.values[index].simpler());
        }
        simpler.each(|problem| &mut problem.layout, [GemmLayout::Nt]);
        simpler.size(|problem| &mut problem.batch, 1, 1);
        simpler.size(|problem| &mut problem.m, 1, 1);
        simpler.size(|problem| &mut problem.n, 1, 1);
        simpler.size(|problem| &mut problem.k, 1, 1);
        if self.d != Dtype::F32 {
            simpler.each(|problem| &mut problem.d, [Dtype::F32]);
        }
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.values.iter_mut().chain(&mut self.c).for_each(Values::tame);
        let is_tame = |factor: f32| factor == 0.0 || (1e-4..1e4).contains(&factor.abs());
        for factor in [&mut self.alpha, &mut self.beta] {
            *factor = if is_tame(*factor) { *factor } else { 1.0 };
        }
        for scale in &mut self.scales {
            *scale = scale.filter(|&scale| is_tame(Factor::number(Some(scale))));
        }
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array3;

    use super::*;

    #[test]
    fn a_product_that_is_a_little_off_is_wrong() {
        let text = r#"{"a":"f16","b":"f16","d":"f32","layout":"nt","batch":1,"m":1,"n":2,"k":3,"seed":1}"#;
        let gemm: Gemm = serde_json::from_str(text).unwrap();
        let a = Array3::from_shape_vec((1, 1, 3), vec![1.0, 2.0, 3.0]).unwrap();
        let b = Array3::from_shape_vec((1, 2, 3), vec![1.0, 1.0, 1.0, 0.5, 0.5, -0.5]).unwrap();
        let check = |got: [f32; 2]| gemm.check(&gemm.problem(), [&a, &b], None, None, &got);
        assert_eq!(check([6.0, 0.0]), Ok(0.0));
        for got in [[6.0001, 0.0], [6.0, 1e-4], [f32::NAN, 0.0], [f32::INFINITY, 0.0]] {
            assert!(check(got).is_err(), "{got:?}");
        }
        // Sums that f32 may not hold are not compared; infinities are those of the formula.
        let vast = a.mapv(|x| x * 1e38);
        assert_eq!(gemm.check(&gemm.problem(), [&vast, &b], None, None, &[f32::NAN; 2]), Ok(0.0));
        let infinite = a.mapv(|x| if x == 2.0 { f64::INFINITY } else { x });
        let check = |got: [f32; 2]| gemm.check(&gemm.problem(), [&infinite, &b], None, None, &got);
        assert!(check([f32::INFINITY; 2]).is_ok() && check([6.0, f32::INFINITY]).is_err());
    }
}
