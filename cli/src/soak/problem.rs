//! A problem of any family: its text, its run, and what became of it.

use ferrotile::{Arch, Dtype, Error, Gpu, Stream};
use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::ata::Ata;
use super::attention::Attention;
use super::cg::Cg;
use super::gemm::Gemm;
use super::merge::Merge;
use super::paged::Paged;
use super::varlen::Varlen;

/// The generator of everything that is drawn: the same numbers from the same seed on every machine.
pub(crate) type Random = Xoshiro256PlusPlus;

/// What problems are drawn for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// The architecture whose kernels run.
    pub(crate) arch: Arch,
    /// The largest length.
    pub(crate) most: usize,
    /// The most multiplications of a problem.
    pub(crate) work: usize,
}

impl Scope {
    /// Multiplications of the least and the largest limit: what the emulator does in about a second, and the reference
    /// in some 50 ms.
    const WORK: [[f64; 2]; 2] = [[12.0, 21.0], [14.0, 24.0]];

    /// The scope of one problem on a device: few of them are large.
    pub(crate) fn draw(gpu: &Gpu, random: &mut Random) -> Scope {
        let [least, largest] = Scope::WORK[usize::from(!gpu.is_emulated())];
        let most = if gpu.is_emulated() { 400 } else { 5000 };
        Scope { arch: gpu.arch(), most, work: random.random_range(least..largest).exp2() as usize }
    }
}

/// Where problems run: a device, and two streams for the two runs of each.
pub(crate) struct Bench {
    /// The device.
    pub(crate) gpu: Gpu,
    /// The streams.
    pub(crate) streams: [Stream; 2],
}

impl Bench {
    /// Streams of a device.
    pub(crate) fn new(gpu: &Gpu) -> ferrotile::Result<Bench> {
        Ok(Bench { gpu: gpu.clone(), streams: [gpu.new_stream()?, gpu.new_stream()?] })
    }
}

/// How a run ended that is no failure.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    /// It was right.
    Right,
    /// A typed error, where one is allowed: a kernel was named that does not take the tensors. Nothing was written.
    Refused(String),
}

/// What kind of thing is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An element is too far from the reference.
    Wrong,
    /// An element is NaN or infinite where the reference is not.
    NotFinite,
    /// Something else was written.
    StrayWrite,
    /// The same call twice gave different bits.
    Unrepeatable,
    /// An error where the problem is one that the library takes.
    Refused,
    /// An error of the device: a driver's, or one that the emulator found in a kernel.
    Device,
    /// The library panicked.
    Panicked,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Failure {
    /// The kind.
    pub(crate) kind: Kind,
    /// In words.
    pub(crate) message: String,
}

impl Failure {
    /// A failure in words.
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let of_device = matches!(error, Error::Driver { .. } | Error::Emulator { .. });
        Failure::new(if of_device { Kind::Device } else { Kind::Refused }, format!("an error: {error}"))
    }
}

/// What a run returns.
pub(crate) type Run = Result<Outcome, Failure>;

/// What `error` means for a problem of which the caller may have asked too much (`asked`): a kernel by name, parts.
pub(crate) fn refusal(asked: bool, error: Error) -> Run {
    use Error::{Alignment, Argument, NoVariant, UnknownVariant, Unsupported};
    match error {
        Alignment { .. } | Argument { .. } | NoVariant { .. } | UnknownVariant { .. } | Unsupported { .. } if asked => {
            Ok(Outcome::Refused(error.to_string()))
        }
        error => Err(error.into()),
    }
}

/// Problems of one family.
pub(crate) trait Family: Clone {
    /// A random problem.
    fn draw(random: &mut Random, scope: &Scope) -> Self;

    /// Runs it twice and compares both with each other and with the reference.
    fn run(&self, bench: &Bench) -> Run;

    /// Problems that are a step simpler, the largest steps first; some may not be problems at all.
    fn simpler(&self) -> Vec<Self>;

    /// Takes out what reaches the ends of the types.
    fn tame(&mut self);
}

/// A problem, which is its own description: its text repeats it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Problem {
    /// `attention`, `attention_with` and their plan, decoding among it.
    Attention(Attention),
    /// Sequences of several lengths.
    Varlen(Varlen),
    /// Keys in pages.
    Paged(Paged),
    /// Partial results put together.
    Merge(Merge),
    /// Products of matrices.
    Gemm(Gemm),
    /// Products with symmetric block matrices.
    Ata(Ata),
    /// Conjugate gradient.
    Cg(Cg),
}

/// The families, by the names of `--family`, and how many of a hundred problems are theirs.
pub(crate) const FAMILIES: [(&str, u32); 7] =
    [("attention", 34), ("varlen", 12), ("paged", 10), ("merge", 6), ("gemm", 24), ("ata", 10), ("cg", 4)];

impl Problem {
    /// Problem `index` of those of `seed`, of one of the families that are wanted.
    pub(crate) fn draw(gpu: &Gpu, families: &[usize], seed: u64, index: u64) -> Problem {
        let mut random = Random::seed_from_u64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index));
        let total: u32 = families.iter().map(|&family| FAMILIES[family].1).sum();
        let mut share = random.random_range(0..total);
        let mut family = families[0];
        for &candidate in families {
            family = candidate;
            if share < FAMILIES[candidate].1 {
                break;
            }
            share -= FAMILIES[candidate].1;
        }
        let scope = Scope::draw(gpu, &mut random);
        let random = &mut random;
        match family {
            0 => Problem::Attention(Attention::draw(random, &scope)),
            1 => Problem::Varlen(Varlen::draw(random, &scope)),
            2 => Problem::Paged(Paged::draw(random, &scope)),
            3 => Problem::Merge(Merge::draw(random, &scope)),
            4 => Problem::Gemm(Gemm::draw(random, &scope)),
            5 => Problem::Ata(Ata::draw(random, &scope)),
            _ => Problem::Cg(Cg::draw(random, &scope)),
        }
    }

    /// The index of its family in [`FAMILIES`].
    pub(crate) fn family(&self) -> usize {
        match self {
            Problem::Attention(_) => 0,
            Problem::Varlen(_) => 1,
            Problem::Paged(_) => 2,
            Problem::Merge(_) => 3,
            Problem::Gemm(_) => 4,
            Problem::Ata(_) => 5,
            Problem::Cg(_) => 6,
        }
    }

    /// The same without elements, factors and biases from the ends of the types.
    pub(crate) fn tamed(mut self) -> Problem {
        match &mut self {
            Problem::Attention(problem) => problem.tame(),
            Problem::Varlen(problem) => problem.tame(),
            Problem::Paged(problem) => problem.tame(),
            Problem::Merge(problem) => problem.tame(),
            Problem::Gemm(problem) => problem.tame(),
            Problem::Ata(problem) => problem.tame(),
            Problem::Cg(problem) => problem.tame(),
        }
        self
    }

    /// Runs it. A panic of the library is a failure.
    pub(crate) fn run(&self, bench: &Bench) -> Run {
        let run = || match self {
            Problem::Attention(problem) => problem.run(bench),
            Problem::Varlen(problem) => problem.run(bench),
            Problem::Paged(problem) => problem.run(bench),
            Problem::Merge(problem) => problem.run(bench),
            Problem::Gemm(problem) => problem.run(bench),
            Problem::Ata(problem) => problem.run(bench),
            Problem::Cg(problem) => problem.run(bench),
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
            Err(Failure::new(Kind::Panicked, format!("a panic: {text}")))
        })
    }

    /// Problems that are a step simpler.
    pub(crate) fn simpler(&self) -> Vec<Problem> {
        fn of<P: Family + PartialEq>(problem: &P, wrap: fn(P) -> Problem) -> Vec<Problem> {
            problem.simpler().into_iter().filter(|simpler| simpler != problem).map(wrap).collect()
        }
        match self {
            Problem::Attention(problem) => of(problem, Problem::Attention),
            Problem::Varlen(problem) => of(problem, Problem::Varlen),
            Problem::Paged(problem) => of(problem, Problem::Paged),
            Problem::Merge(problem) => of(problem, Problem::Merge),
            Problem::Gemm(problem) => of(problem, Problem::Gemm),
            Problem::Ata(problem) => of(problem, Problem::Ata),
            Problem::Cg(problem) => of(problem, Problem::Cg),
        }
    }

    /// The text that repeats it: JSON in one line.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a problem is plain data")
    }
}

/// The simplest problem that still fails in the same way, what is wrong with it, and the runs that it took to find.
///
/// Greedy: the first simpler problem that fails takes the place of the one before, until none does or `most_runs` are
/// spent.
pub(crate) fn shrink(
    problem: Problem,
    failure: Failure,
    most_runs: usize,
    mut run: impl FnMut(&Problem) -> Run,
) -> (Problem, Failure, usize) {
    let (mut smallest, mut why, mut runs) = (problem, failure, 0);
    'simpler: loop {
        for candidate in smallest.simpler() {
            if runs == most_runs {
                break 'simpler;
            }
            runs += 1;
            match run(&candidate) {
                Err(failure) if failure.kind == why.kind => {
                    (smallest, why) = (candidate, failure);
                    continue 'simpler;
                }
                _ => (),
            }
        }
        break;
    }
    (smallest, why, runs)
}

/// A problem's simpler neighbours: copies with one change each.
pub(crate) struct Simpler<P> {
    from: P,
    found: Vec<P>,
}

impl<P: Clone> Simpler<P> {
    /// The neighbours of a problem, none so far.
    pub(crate) fn of(from: &P) -> Simpler<P> {
        Simpler { from: from.clone(), found: Vec::new() }
    }

    /// The problem itself.
    pub(crate) fn problem(&self) -> &P {
        &self.from
    }

    /// One more, which a change makes.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut P)) {
        let mut changed = self.from.clone();
        change(&mut changed);
        self.found.push(changed);
    }

    /// Those with each of these values, the simplest first, in the place that `field` has; none of a value that stands
    /// behind the present one.
    pub(crate) fn each<V: PartialEq>(&mut self, field: impl Fn(&mut P) -> &mut V, values: impl IntoIterator<Item = V>) {
        let mut from = self.from.clone();
        let present = field(&mut from);
        for value in values {
            if value == *present {
                break;
            }
            self.change(|problem| *field(problem) = value);
        }
    }

    /// Those with a smaller size, from `least` on, in multiples of `step` beyond it.
    pub(crate) fn size(&mut self, field: impl Fn(&mut P) -> &mut usize, least: usize, step: usize) {
        let size = *field(&mut self.from.clone());
        let smaller = [least, size / 4, size / 2, size * 3 / 4, size.saturating_sub(1)];
        let smaller = smaller.map(|size| (size / step * step).max(least));
        self.each(field, smaller.into_iter().filter(move |&smaller| smaller < size));
    }

    /// All of them.
    pub(crate) fn all(self) -> Vec<P> {
        self.found
    }
}

/// Whether a field has the value that it has where its text does not name it.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Fields that their `Display` writes and their `FromStr` reads.
pub(crate) mod as_text {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: FromStr, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|_| D::Error::custom(format!("'{text}' is not understood")))
    }
}

/// One of several values by its name.
pub(crate) mod as_name {
    use std::fmt::Display;

    use ferrotile::{Activation, Dtype};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// A type of which every value is known.
    pub(crate) trait Named: Display + Copy + 'static {
        /// All of them.
        const ALL: &'static [Self];
    }

    impl Named for Dtype {
        const ALL: &'static [Dtype] = &[Dtype::F16, Dtype::Bf16, Dtype::F32, Dtype::E4M3, Dtype::E5M2];
    }

    impl Named for Activation {
        const ALL: &'static [Activation] = &Activation::ALL;
    }

    pub(crate) fn serialize<T: Named, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        let text = String::deserialize(deserializer)?;
        let found = T::ALL.iter().copied().find(|value| value.to_string() == text);
        found.ok_or_else(|| D::Error::custom(format!("'{text}' is not a name that is known")))
    }
}

/// The 16-bit types.
pub(crate) const HALVES: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];
