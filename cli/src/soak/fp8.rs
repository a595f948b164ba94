//! What problems of attention on E4M3 and on u8 have beside those on 16-bit elements: factors, the type of O, and of
//! E4M3 the sum of P V.

use ferrotile::tolerance::Fp8Terms;
use ferrotile::{Accumulation, Descales, Dtype, TensorRef};
use ndarray::{Array2, ArrayView2, s};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::family::{Bench, Simpler};
use super::heads::Heads;
use super::memory::Input;
use super::placement::Placement;
use super::sizes::{HALVES, Random};
use super::terms::Terms;
use super::text::{as_name, is_default};
use super::values::Values;

use crate::problems::request::Request;

/// The options of a problem on E4M3 or u8.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fp8 {
    /// The type of O.
    #[serde(with = "as_name")]
    pub(crate) out: Dtype,
    /// The factors of Q, K and V.
    #[serde(default, skip_serializing_if = "is_default")]
    descales: [Option<Factors>; 3],
    /// Whether P V is summed in the tensor cores alone.
    #[serde(default, skip_serializing_if = "is_default")]
    direct: bool,
    /// Whether K and V alone are of E4M3.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) kv_alone: bool,
}

/// The factors of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Factors {
    /// Whether each batch entry has its own.
    #[serde(default, skip_serializing_if = "is_default")]
    of_batch: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    of: Sharing,
    #[serde(default, skip_serializing_if = "is_default")]
    size: Size,
    #[serde(default, skip_serializing_if = "is_default")]
    place: Placement,
}

/// Which heads share a factor.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Sharing {
    /// All of them.
    #[default]
    All,
    /// Those of one head of K and V.
    Group,
    /// None.
    None,
}

/// How large factors are, within three powers of two.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Size {
    #[default]
    One,
    /// `1e-6`.
    Small,
    /// `1e4`.
    Large,
    Zero,
}

impl Fp8 {
    /// The type of the inputs.
    pub(crate) const DTYPE: Dtype = Dtype::E4M3;

    /// Options for one problem in four where the kernels of this architecture take E4M3; changes the problem's heads
    /// and terms to what such kernels serve.
    pub(crate) fn draw(random: &mut Random, has_kernels: bool, heads: &mut Heads, terms: &mut Terms) -> Option<Fp8> {
        if !has_kernels || !random.random_bool(0.25) {
            return None;
        }
        heads.dtype = Fp8::DTYPE;
        for dim in [&mut heads.head_dim, &mut heads.value_dim] {
            *dim = dim.next_multiple_of(16);
        }
        restrict(terms);
        let of_q = [Sharing::All, Sharing::Group, Sharing::None];
        let descales = [&of_q[..], &of_q[..2], &of_q[..2]].map(|sharings| Factors::draw(random, sharings));
        let out = HALVES[random.random_range(0..2)];
        Some(Fp8 { out, descales, direct: random.random_bool(0.3), kv_alone: false })
    }

    /// Options with K and V alone of E4M3, for one problem in four where the kernels take them; changes the terms to
    /// what such kernels serve.
    pub(crate) fn draw_kv(random: &mut Random, has_kernels: bool, heads: &Heads, terms: &mut Terms) -> Option<Fp8> {
        if !has_kernels || !random.random_bool(0.25) {
            return None;
        }
        (terms.bias, terms.softcap) = (None, None);
        restrict(terms);
        let [k, v] = [0, 1].map(|_| Factors::draw(random, &[Sharing::All, Sharing::Group]));
        Some(Fp8 { out: heads.dtype, descales: [None, k, v], direct: false, kv_alone: true })
    }

    /// The request with these types and this sum.
    pub(crate) fn request(&self, mut request: Request) -> Request {
        if self.direct {
            request.options.accumulation = Accumulation::Direct;
        }
        if self.kv_alone {
            request.params.kv = Some(Fp8::DTYPE);
        }
        request.with_out(self.out)
    }

    /// Options for one problem in eight on u8, which kernels of every architecture take, with every term; changes the
    /// type of the problem's heads.
    pub(crate) fn draw_u8(random: &mut Random, heads: &mut Heads, terms: &mut Terms) -> Option<Fp8> {
        if !random.random_bool(0.125) {
            return None;
        }
        heads.dtype = Dtype::U8;
        // Integers of all numbers, not of those around 0 alone; and half of the time scores of about 1.
        heads.values.iter_mut().filter(|values| **values == Values::Normal).for_each(|values| {
            *values = Values::Hundreds;
        });
        restrict(terms);
        if random.random() {
            terms.scale = Some(2e-5);
        }
        let of_q = [Sharing::All, Sharing::Group, Sharing::None];
        let descales = [&of_q[..], &of_q[..2], &of_q[..2]].map(|sharings| Some(Factors::draw_one(random, sharings)));
        Some(Fp8 { out: HALVES[random.random_range(0..2)], descales, direct: false, kv_alone: false })
    }

    /// The factors on the device.
    pub(crate) fn inputs(
        &self,
        bench: &Bench,
        random: &mut Random,
        batch: usize,
        heads: &Heads,
    ) -> ferrotile::Result<FactorInputs> {
        let mut inputs = [None, None, None];
        for (index, (input, factors)) in inputs.iter_mut().zip(&self.descales).enumerate() {
            let Some(Factors { of_batch, of, size, place }) = factors else { continue };
            let all = if index == 0 { heads.q_heads } else { heads.kv_heads };
            let of_heads = match of {
                Sharing::All => 1,
                Sharing::Group => heads.kv_heads,
                Sharing::None => all,
            };
            let size = match size {
                Size::One => 1.0,
                Size::Small => 1e-6,
                Size::Large => 1e4,
                Size::Zero => 0.0,
            };
            let shape = [if *of_batch { batch } else { 1 }, of_heads];
            let draw = |_| {
                let sign = if random.random_bool(0.8) { 1.0 } else { -1.0 };
                sign * size * random.random_range(-3.0f32..3.0).exp2()
            };
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(draw).collect();
            *input = Some(Input::new(bench, place, shape, &values)?);
        }
        Ok(FactorInputs { inputs })
    }

    /// What is simpler, of problems with options.
    pub(crate) fn simpler<P: Clone>(simpler: &mut Simpler<P>, field: impl Fn(&mut P) -> &mut Option<Box<Fp8>> + Copy) {
        let Some(fp8) = field(&mut simpler.problem().clone()).clone() else { return };
        let mut change = |change: &dyn Fn(&mut Fp8)| {
            simpler.change(|problem| change(field(problem).as_mut().expect("there is one")));
        };
        for (index, factors) in fp8.descales.iter().enumerate() {
            let Some(factors) = factors else { continue };
            // Without factors u8 is refused, which is another outcome.
            change(&|fp8| fp8.descales[index] = None);
            for simpler in factors.place.simpler() {
                change(&|fp8| fp8.descales[index] = Some(Factors { place: simpler.clone(), ..factors.clone() }));
            }
            if factors.size != Size::One {
                change(&|fp8| fp8.descales[index] = Some(Factors { size: Size::One, ..factors.clone() }));
            }
        }
        if fp8.direct {
            change(&|fp8| fp8.direct = false);
        }
    }
}

impl Factors {
    /// None, or some that heads share in one of these ways.
    fn draw(random: &mut Random, sharings: &[Sharing]) -> Option<Factors> {
        let factors = Factors::draw_one(random, sharings);
        random.random_bool(0.7).then_some(factors)
    }

    /// Some that heads share in one of these ways.
    fn draw_one(random: &mut Random, sharings: &[Sharing]) -> Factors {
        let of = sharings[random.random_range(0..sharings.len())];
        let sizes = [Size::One, Size::One, Size::One, Size::Small, Size::Large, Size::Zero];
        let size = sizes[random.random_range(0..sizes.len())];
        let place = Placement::draw(random, 2, true);
        Factors { of_batch: random.random(), of, size, place }
    }
}

/// Takes out scales that are no number of f32 together with factors.
fn restrict(terms: &mut Terms) {
    terms.scale = terms.scale.filter(|scale| *scale == 0.0 || (1e-18..=1e18).contains(&scale.abs()));
}

/// The factors of Q, K and V on the device.
pub(crate) struct FactorInputs {
    inputs: [Option<Input<f32, 2>>; 3],
}

impl FactorInputs {
    /// No factors.
    pub(crate) const NONE: FactorInputs = FactorInputs { inputs: [None, None, None] };

    /// The factors as a call takes them.
    pub(crate) fn descales(&self) -> Descales<'_> {
        let [q, k, v]: [Option<TensorRef<'_, f32, 2>>; 3] =
            self.inputs.each_ref().map(|input| input.as_ref().map(Input::plain));
        Descales { q, k, v }
    }

    /// The factors of a batch entry, or of all, wide.
    pub(crate) fn wide(&self, entry: Option<usize>) -> [Option<Array2<f64>>; 3] {
        self.inputs.each_ref().map(|input| {
            let factors: Array2<f64> = input.as_ref()?.array().into_dimensionality().expect("two dimensions");
            Some(match entry {
                Some(entry) if factors.dim().0 > 1 => factors.slice(s![entry..=entry, ..]).to_owned(),
                _ => factors,
            })
        })
    }
}

/// What limits depend on.
pub(crate) fn terms<'a>(out: Dtype, request: &Request, factors: &'a [Option<Array2<f64>>; 3]) -> Fp8Terms<'a> {
    let factors: [Option<ArrayView2<'a, f64>>; 3] =
        factors.each_ref().map(|factors| factors.as_ref().map(|factors| factors.view()));
    Fp8Terms { factors, out, accumulation: request.accumulation() }
}
