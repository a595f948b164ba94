//! What an attention problem does to scores: mask, scale, softcap, sinks and bias.

use ferrotile::{Dtype, Layout, Mask};
use ndarray::{Array1, Array4, s};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use variants::attention::ScoreMod;

use super::family::{Bench, Simpler};
use super::heads::Heads;
use super::memory::{FloatCell, Input};
use super::placement::Placement;
use super::sizes::{self, Random};
use super::text::{as_text, is_default};
use super::values::{Range, Values};

use crate::problems::request::Request;

/// What is done to scores.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Terms {
    #[serde(with = "as_text", skip_serializing_if = "is_default")]
    pub(crate) mask: Mask,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) scale: Option<f32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) softcap: Option<f32>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) sink: Option<Sink>,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) bias: Option<Bias>,
}

/// The sinks: normally distributed ones, but that of the first head.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sink {
    /// Without an exception.
    Normal,
    /// `3e38`.
    Highest,
    /// `-3e38`.
    Lowest,
    /// Minus infinity: no sink.
    MinusInfinity,
}

/// A bias: numbers, and what hides some keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bias {
    /// Whether all batch entries share it.
    #[serde(default, skip_serializing_if = "is_default")]
    one_batch: bool,
    /// Whether all heads do.
    #[serde(default, skip_serializing_if = "is_default")]
    one_head: bool,
    /// The numbers of keys that are not hidden.
    #[serde(default, skip_serializing_if = "is_default")]
    values: Values,
    /// What is added to the scores of hidden keys, and which keys are hidden.
    #[serde(default, skip_serializing_if = "is_default")]
    hidden: Option<(Hiding, Keys)>,
    #[serde(default, skip_serializing_if = "is_default")]
    place: Placement,
}

/// What model code hides keys with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Hiding {
    MinusInfinity,
    /// The lowest finite number of the type.
    Lowest,
    HalfOfLowest,
    QuarterOfLowest,
    Minus1e30,
    Minus1e10,
    Minus1e4,
    /// The largest finite number of the type: not these keys are hidden, but all others.
    Largest,
}

impl Hiding {
    const ALL: [Hiding; 8] = [
        Hiding::MinusInfinity,
        Hiding::Lowest,
        Hiding::HalfOfLowest,
        Hiding::QuarterOfLowest,
        Hiding::Minus1e30,
        Hiding::Minus1e10,
        Hiding::Minus1e4,
        Hiding::Largest,
    ];

    fn value(self, dtype: Dtype) -> f64 {
        let largest = Range::of(dtype).largest;
        match self {
            Hiding::MinusInfinity => f64::NEG_INFINITY,
            Hiding::Lowest => -largest,
            Hiding::HalfOfLowest => -largest / 2.0,
            Hiding::QuarterOfLowest => -largest / 4.0,
            Hiding::Minus1e30 => (-1e30f64).max(-largest),
            Hiding::Minus1e10 => (-1e10f64).max(-largest),
            Hiding::Minus1e4 => -1e4,
            Hiding::Largest => largest,
        }
    }
}

/// Which keys are hidden.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Keys {
    FirstTile,
    LastTile,
    Middle,
    /// All but the first one: those of a batch padded to its longest entry.
    AllButFirst,
    AllButLast,
    /// All keys, of every second row.
    WholeRows,
    /// All keys of all rows.
    All,
    /// The keys after the row's own position.
    Causal,
    /// Half of them.
    Random,
}

impl Keys {
    const ALL: [Keys; 9] = [
        Keys::FirstTile,
        Keys::LastTile,
        Keys::Middle,
        Keys::AllButFirst,
        Keys::AllButLast,
        Keys::WholeRows,
        Keys::All,
        Keys::Causal,
        Keys::Random,
    ];

    fn include(self, random: &mut Random, [row, rows]: [usize; 2], [key, keys]: [usize; 2]) -> bool {
        match self {
            Keys::FirstTile => key < 64.min(keys - 1),
            Keys::LastTile => key > 0 && key / 64 == (keys - 1) / 64,
            Keys::Middle => key >= keys / 3 && key < keys * 2 / 3,
            Keys::AllButFirst => key > 0,
            Keys::AllButLast => key + 1 < keys,
            Keys::WholeRows => row % 2 == 1,
            Keys::All => true,
            Keys::Causal => key + rows > row + keys,
            Keys::Random => random.random(),
        }
    }
}

impl Terms {
    /// Terms of every kind, each alone and with the others, for at most `k_len` keys.
    pub(crate) fn draw(random: &mut Random, k_len: usize) -> Terms {
        let mask = match random.random_range(0..6) {
            0..2 => Mask::Full,
            2..4 => Mask::Causal,
            _ => {
                let left = if random.random_bool(0.1) { usize::MAX } else { sizes::length(random, k_len + 2) };
                Mask::Window { left, right: if random.random() { 0 } else { sizes::length(random, 40) } }
            }
        };
        let sign = if random.random_bool(0.2) { -1.0 } else { 1.0 };
        let scale = match random.random_range(0..20) {
            0..10 => None,
            10..15 => Some(random.random_range(-1.0f32..2.0)),
            15 => Some([0.0, 1e-45, 1e-38, 1e-30][random.random_range(0..4)] * sign),
            16 => Some(10f32.powi(random.random_range(0..=12)) * sign),
            17 => Some(10f32.powi(random.random_range(12..=38)) * sign),
            18 => Some(1e30),
            _ => Some(f32::MAX * sign),
        };
        let softcap = match random.random_range(0..12) {
            0..2 => Some(random.random_range(1.0f32..64.0)),
            2 => Some([50.0, 64.0, 64.5, 1e4][random.random_range(0..4)]),
            3 => Some(2f32.powi([-126, -100, -30, 30, 100, 126][random.random_range(0..6)])),
            _ => None,
        };
        let sinks = [Sink::Normal, Sink::Normal, Sink::Highest, Sink::Lowest, Sink::MinusInfinity];
        let sink = random.random_bool(0.2).then(|| sinks[random.random_range(0..5)]);
        Terms { mask, scale, softcap, sink, bias: random.random_bool(0.3).then(|| Bias::draw(random)) }
    }

    /// Takes out what makes scores large.
    pub(crate) fn tame(&mut self) {
        self.scale = self.scale.filter(|scale| scale.abs() <= 2.0);
        self.softcap = self.softcap.filter(|cap| (1.0..=1e4).contains(cap));
        self.sink = self.sink.map(|_| Sink::Normal);
        if let Some(bias) = &mut self.bias {
            bias.values.tame();
            bias.hidden = bias.hidden.map(|(_, keys)| (Hiding::MinusInfinity, keys));
        }
    }

    /// Fewer and simpler terms.
    pub(crate) fn simpler<P: Clone>(simpler: &mut Simpler<P>, field: impl Fn(&mut P) -> &mut Terms + Copy, of: &Terms) {
        simpler.change(|problem| *field(problem) = Terms::default());
        simpler.each(|problem| &mut field(problem).bias, [None]);
        simpler.each(|problem| &mut field(problem).sink, [None, Some(Sink::Normal)]);
        simpler.each(|problem| &mut field(problem).softcap, [None, Some(1.0)]);
        simpler.each(|problem| &mut field(problem).scale, [None, Some(1.0)]);
        simpler.each(|problem| &mut field(problem).mask, [Mask::Full, Mask::Causal]);
        if let Some(bias) = &of.bias {
            let mut change = |change: &dyn Fn(&mut Bias)| {
                simpler.change(|problem| change(field(problem).bias.as_mut().expect("there is one")));
            };
            change(&|bias| bias.hidden = None);
            change(&|bias| bias.place = Placement::default());
            change(&|bias| (bias.one_batch, bias.one_head) = (true, true));
            for values in bias.values.simpler() {
                change(&|bias| bias.values = values);
            }
            if let Some((hiding, keys)) = bias.hidden {
                for simpler in [Keys::All, Keys::AllButFirst].into_iter().take_while(|&simpler| simpler != keys) {
                    change(&|bias| bias.hidden = Some((hiding, simpler)));
                }
            }
        }
    }
}

impl Terms {
    /// What kernels must do to the scores.
    pub(crate) fn score_mod(&self) -> ScoreMod {
        ScoreMod::of(self.softcap, self.bias.is_some())
    }

    /// What a plan is asked for.
    pub(crate) fn request(&self, layout: Layout, heads: &Heads, kernel: Option<&String>) -> Request {
        let mut request =
            Request::new(layout).of_tensors(self.bias.is_some(), heads.value_dim).of_kernel(kernel.cloned());
        (request.params.mask, request.params.scale, request.params.softcap) = (self.mask, self.scale, self.softcap);
        request
    }
}

impl Bias {
    fn draw(random: &mut Random) -> Bias {
        let hidden = random.random_bool(0.6).then(|| {
            let hiding = Hiding::ALL[random.random_range(0..Hiding::ALL.len())];
            (hiding, Keys::ALL[random.random_range(0..Keys::ALL.len())])
        });
        Bias {
            one_batch: random.random(),
            one_head: random.random(),
            values: if random.random_bool(0.2) { Values::draw(random) } else { Values::Normal },
            hidden,
            place: Placement::draw(random, 4, true),
        }
    }
}

/// Sinks and bias on the device.
pub(crate) struct TermInputs<T> {
    pub(crate) sink: Option<Input<f32, 1>>,
    pub(crate) bias: Option<Input<T, 4>>,
}

impl<T: FloatCell> TermInputs<T> {
    /// Random sinks and a random bias for a problem of these sizes.
    pub(crate) fn new(
        bench: &Bench,
        terms: &Terms,
        random: &mut Random,
        [batch, heads, rows, keys]: [usize; 4],
    ) -> ferrotile::Result<TermInputs<T>> {
        let sink = terms.sink.map(|sink| {
            let mut values = Values::Normal.fill::<f32>(random, heads);
            let exception = match sink {
                Sink::Normal => None,
                Sink::Highest => Some(3e38),
                Sink::Lowest => Some(-3e38),
                Sink::MinusInfinity => Some(f32::NEG_INFINITY),
            };
            if let (Some(first), Some(exception)) = (values.first_mut(), exception) {
                *first = exception;
            }
            Input::new(bench, &Placement::default(), [heads], &values)
        });
        let bias = terms.bias.as_ref().map(|bias| {
            let shape = [if bias.one_batch { 1 } else { batch }, if bias.one_head { 1 } else { heads }, rows, keys];
            let mut values = bias.values.fill::<T>(random, shape.iter().product());
            if let Some((hiding, hidden)) = bias.hidden {
                let hiding = T::from_f64(hiding.value(T::DTYPE));
                for (index, value) in values.iter_mut().enumerate() {
                    let (row, key) = (index / keys % rows, index % keys);
                    if hidden.include(random, [row, rows], [key, keys]) {
                        *value = hiding;
                    }
                }
            }
            Input::new(bench, &bias.place, shape, &values)
        });
        Ok(TermInputs { sink: sink.transpose()?, bias: bias.transpose()? })
    }

    /// The sinks and the bias, wide.
    pub(crate) fn wide(&self) -> (Option<Array1<f64>>, Option<Array4<f64>>) {
        let bias = self.bias.as_ref().map(|bias| bias.array().into_dimensionality().expect("four dimensions"));
        (self.sink.as_ref().map(|sink| Array1::from_vec(sink.wide())), bias)
    }
}

/// The bias of one batch entry, whose rows and keys may be fewer than those of the longest.
pub(crate) fn bias_of_entry(bias: Option<&Array4<f64>>, entry: usize, [rows, keys]: [usize; 2]) -> Option<Array4<f64>> {
    bias.map(|bias| {
        let entry = if bias.dim().0 == 1 { 0 } else { entry };
        bias.slice(s![entry..=entry, .., ..rows, ..keys]).to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hidden_where_their_name_says() {
        let mut random = <Random as rand::SeedableRng>::seed_from_u64(1);
        let mut hidden = |keys: Keys, row: usize| -> Vec<usize> {
            (0..130).filter(|&key| keys.include(&mut random, [row, 10], [key, 130])).collect()
        };
        assert_eq!(hidden(Keys::FirstTile, 0), (0..64).collect::<Vec<_>>());
        assert_eq!(hidden(Keys::LastTile, 0), [128, 129]);
        assert_eq!(hidden(Keys::AllButFirst, 0).len(), 129);
        assert_eq!((hidden(Keys::WholeRows, 0).len(), hidden(Keys::WholeRows, 1).len()), (0, 130));
        assert_eq!(hidden(Keys::Causal, 8), [129]);
    }
}
