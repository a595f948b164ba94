//! Problems of partial results that are put together.

use ferrotile::{Dtype, Layout, MergeTensors, PartialAttention, StreamRef, merge, reference, tolerance};
use half::{bf16, f16};
use ndarray::{Array3, Array4};
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::check;
use super::family::{Bench, Family, Scope, Simpler};
use super::memory::{FloatCell, Input, Output};
use super::outcome::{Failure, Stop};
use super::placement::Placement;
use super::sizes::{self, HALVES, Random};
use super::softmax::{OAndLse, o_and_lse};
use super::text::{as_name, is_default};
use super::twice::{Call, twice};
use super::values::Values;

/// A problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Merge {
    #[serde(with = "as_name")]
    parts: Dtype,
    #[serde(with = "as_name")]
    out: Dtype,
    /// Batch, heads, rows and columns.
    shape: [usize; 4],
    /// The elements of the two parts.
    #[serde(default, skip_serializing_if = "is_default")]
    values: [Values; 2],
    /// Their LSE.
    #[serde(default, skip_serializing_if = "is_default")]
    lses: [Lses; 2],
    #[serde(default, skip_serializing_if = "is_default")]
    bshd: bool,
    /// Where the parts and the result lie.
    #[serde(default, skip_serializing_if = "is_default")]
    places: [Placement; 3],
    #[serde(default, skip_serializing_if = "is_default")]
    without_lse: bool,
    seed: u64,
}

/// The LSE of a part, of which every seventh row saw no key.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Lses {
    /// A few units.
    #[default]
    Near,
    /// Some tens of thousands.
    Far,
    /// Every magnitude and both signs, up to the ends of f32.
    Vast,
    /// The lowest finite number.
    Lowest,
    /// The largest finite number.
    Largest,
    /// No row saw a key.
    Empty,
}

impl Lses {
    const ALL: [Lses; 6] = [Lses::Near, Lses::Far, Lses::Vast, Lses::Lowest, Lses::Largest, Lses::Empty];

    fn fill(self, random: &mut Random, rows: usize, first_empty: usize) -> Vec<f32> {
        let numbers = |values: Values, random: &mut Random| values.fill::<f32>(random, rows);
        let mut lses = match self {
            Lses::Near => numbers(Values::Normal, random).into_iter().map(|x| 5.0 * x).collect(),
            Lses::Far => numbers(Values::Hundreds, random).into_iter().map(|x| 100.0 * x).collect(),
            Lses::Vast => numbers(Values::Wide, random),
            Lses::Lowest => numbers(Values::Lowest, random),
            Lses::Largest => numbers(Values::Largest, random),
            Lses::Empty => vec![f32::NEG_INFINITY; rows],
        };
        lses.iter_mut().skip(first_empty).step_by(7).for_each(|lse| *lse = f32::NEG_INFINITY);
        lses
    }
}

impl Merge {
    fn draw_sizes(random: &mut Random, most: usize) -> Merge {
        let parts = [Dtype::F16, Dtype::Bf16, Dtype::F32][random.random_range(0..3)];
        let out = match parts {
            Dtype::F32 => [Dtype::F32, HALVES[0], HALVES[1]][random.random_range(0..3)],
            _ if random.random() => Dtype::F32,
            same => same,
        };
        let shape = [
            sizes::log_uniform(random, 4),
            sizes::log_uniform(random, 8),
            sizes::length(random, most),
            sizes::head_dim(random),
        ];
        Merge {
            parts,
            out,
            shape,
            values: [Values::draw(random), Values::draw(random)],
            lses: [(); 2].map(|()| if random.random() { Lses::Near } else { Lses::ALL[random.random_range(0..6)] }),
            bshd: random.random(),
            places: [true, true, false].map(|may_repeat| Placement::draw(random, 4, may_repeat).unrepeated()),
            without_lse: random.random_bool(0.1),
            seed: random.random_range(0..1 << 32),
        }
    }

    fn run_as<P: FloatCell, O: FloatCell>(&self, bench: &Bench) -> Result<f64, Stop> {
        let mut random = Random::seed_from_u64(self.seed);
        let [batch, heads, rows, columns] = self.shape;
        let (lse_shape, count) = ([batch, heads, rows], batch * heads * rows);
        let layout = if self.bshd { Layout::Bshd } else { Layout::Bhsd };
        let (dense, order) = (Placement::default(), |dimensions| layout.reorder(dimensions));
        let mut parts = Vec::new();
        for (index, first_empty) in [(0, 2), (1, 5)] {
            let lse = self.lses[index].fill(&mut random, count, first_empty);
            let mut o = self.values[index].fill::<P>(&mut random, count * columns);
            // The O of a row that saw no key is not used, whatever it holds.
            for (row, _) in lse.iter().enumerate().filter(|(_, lse)| **lse == f32::NEG_INFINITY) {
                o[row * columns..(row + 1) * columns].fill(P::POISON);
            }
            let lse = Input::new(bench, &dense, lse_shape, &lse)?;
            parts.push((Input::new(bench, &self.places[index], self.shape, &o)?, lse));
        }
        let outputs = o_and_lse(bench, &self.places[2], self.shape, lse_shape)?;
        let run = |stream: StreamRef<'_>, (out, lse): &mut OAndLse<O, 4, 3>, _: &mut Output<u8, 1>| {
            let merged =
                [&parts[0], &parts[1]].map(|(o, lse)| PartialAttention { out: o.tensor(order), lse: lse.plain() });
            let lse = (!self.without_lse).then(|| lse.plain());
            merge(stream, MergeTensors { partials: merged, out: out.tensor(order), lse }, layout)
        };
        let (out, lse) = twice(bench, (Call::Function, false), outputs, 0, run)?;
        check::written("O", &out, &self.shape)?;
        Ok(self.check(&parts, (out, lse))?)
    }

    fn check<P: FloatCell, O: FloatCell>(
        &self,
        parts: &[(Input<P, 4>, Input<f32, 3>)],
        (out, lse): (Vec<O>, Vec<f32>),
    ) -> Result<f64, Failure> {
        let wide = |index: usize| -> (Array4<f64>, Array3<f64>) {
            let (o, lse) = &parts[index];
            let lse = lse.array().into_dimensionality().expect("three dimensions");
            (o.array().into_dimensionality().expect("four dimensions"), lse)
        };
        let ((o1, lse1), (o2, lse2)) = (wide(0), wide(1));
        let (exact, exact_lse) = reference::merge((o1.view(), lse1.view()), (o2.view(), lse2.view()));
        let step = f64::from(f32::EPSILON);
        // The parts are weighted in f32, their exponents as exact as f32 holds the LSE; then O is rounded.
        let rounding = 0.5 * tolerance::atol(O::DTYPE) + 8.0 * step;
        let limits: Vec<f64> = exact
            .indexed_iter()
            .map(|((b, h, row, column), &exact)| {
                let lses = [lse1[[b, h, row]], lse2[[b, h, row]]];
                let (a, c) = (o1[[b, h, row, column]], o2[[b, h, row, column]]);
                let least = tolerance::least_number(O::DTYPE).max(4.0 * f64::from(f32::MIN_POSITIVE));
                if lses.contains(&f64::NEG_INFINITY) {
                    return exact.abs() * rounding + least;
                }
                let moved = 4.0 * step * (1.0 + lses[0].abs() + lses[1].abs());
                let distance = (lses[0] - lses[1]).abs();
                // A weight of e^-d becomes at most e^-(d - moved).
                let weight = (-(distance - moved).max(0.0)).exp().min(1.0);
                let changed = (weight * moved).min(1.0);
                rounding * (a.abs() + c.abs()) + changed * (a - c).abs() + least
            })
            .collect();
        let got: Vec<f64> = out.iter().map(|x| x.to_f64()).collect();
        let exact = exact.into_raw_vec_and_offset().0;
        let of_out = check::elements("O", self.out, &self.shape, [&got, &exact, &limits])?;
        if self.without_lse {
            return check::untouched("the LSE", &lse).map(|()| of_out);
        }
        let limit = |lse: &f64| if lse.is_finite() { 4.0 * step * (lse.abs() + 4.0) } else { 0.0 };
        let limits: Vec<f64> = exact_lse.iter().map(limit).collect();
        let got: Vec<f64> = lse.iter().map(|&x| x.into()).collect();
        let exact_lse = exact_lse.into_raw_vec_and_offset().0;
        let of_lse = check::elements("the LSE", Dtype::F32, &self.shape[..3], [&got, &exact_lse, &limits])?;
        Ok(of_out.max(of_lse))
    }
}

impl Family for Merge {
    fn draw(random: &mut Random, scope: &Scope) -> Merge {
        let cost = |problem: &Merge| problem.shape.iter().product::<usize>() * 64;
        sizes::within(random, [scope.most, scope.work], Merge::draw_sizes, cost)
    }

    fn run(&self, bench: &Bench) -> Result<f64, Stop> {
        match (self.parts, self.out) {
            (Dtype::F16, Dtype::F16) => self.run_as::<f16, f16>(bench),
            (Dtype::F16, _) => self.run_as::<f16, f32>(bench),
            (Dtype::Bf16, Dtype::Bf16) => self.run_as::<bf16, bf16>(bench),
            (Dtype::Bf16, _) => self.run_as::<bf16, f32>(bench),
            (_, Dtype::F16) => self.run_as::<f32, f16>(bench),
            (_, Dtype::Bf16) => self.run_as::<f32, bf16>(bench),
            _ => self.run_as::<f32, f32>(bench),
        }
    }

    fn simpler(&self) -> Vec<Merge> {
        let mut simpler = Simpler::of(self);
        Placement::simpler_each(&mut simpler, |problem| &mut problem.places);
        simpler.each(|problem| &mut problem.bshd, [false]);
        simpler.each(|problem| &mut problem.without_lse, [false]);
        for dimension in 0..3 {
            simpler.size(|problem| &mut problem.shape[dimension], 1, 1);
        }
        simpler.size(|problem| &mut problem.shape[3], 8, 8);
        for index in 0..2 {
            simpler.each(|problem| &mut problem.values[index], self.values[index].simpler());
            simpler.each(|problem| &mut problem.lses[index], [Lses::Near]);
        }
        simpler.each(|problem| &mut problem.seed, [0]);
        simpler.all()
    }

    fn tame(&mut self) {
        self.values.iter_mut().for_each(Values::tame);
        self.lses = [Lses::Near; 2];
    }
}
