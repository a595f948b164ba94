//! A problem of any family: its text, its run, and what became of it.

use ferrotile::Gpu;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use super::ata::Ata;
use super::attention::Attention;
use super::cg::Cg;
use super::family::{Bench, Family, Scope};
use super::gemm::Gemm;
use super::merge::Merge;
use super::outcome::{Failure, Kind, Outcome, Run, Stop};
use super::paged::Paged;
use super::quantize::Quantize;
use super::rotary::Rotary;
use super::sizes::Random;
use super::varlen::Varlen;

/// A problem. Its text describes all of it, so the text repeats the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Problem {
    /// `attention` and its plan, decoding among it.
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
    /// 8-bit elements with factors.
    Quantize(Quantize),
    /// Rotary embedding and append to a cache.
    Rotary(Rotary),
}

/// The families, by the names of `--family`, and how many of a hundred problems are theirs.
pub(crate) const FAMILIES: [(&str, u32); 9] = [
    ("attention", 33),
    ("varlen", 12),
    ("paged", 10),
    ("merge", 6),
    ("gemm", 21),
    ("ata", 10),
    ("cg", 4),
    ("quantize", 2),
    ("rotary", 2),
];

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
            6 => Problem::Cg(Cg::draw(random, &scope)),
            7 => Problem::Quantize(Quantize::draw(random, &scope)),
            _ => Problem::Rotary(Rotary::draw(random, &scope)),
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
            Problem::Quantize(_) => 7,
            Problem::Rotary(_) => 8,
        }
    }

    /// The problem without elements, factors and biases from the ends of the types.
    pub(crate) fn tamed(mut self) -> Problem {
        match &mut self {
            Problem::Attention(problem) => problem.tame(),
            Problem::Varlen(problem) => problem.tame(),
            Problem::Paged(problem) => problem.tame(),
            Problem::Merge(problem) => problem.tame(),
            Problem::Gemm(problem) => problem.tame(),
            Problem::Ata(problem) => problem.tame(),
            Problem::Cg(problem) => problem.tame(),
            Problem::Quantize(problem) => problem.tame(),
            Problem::Rotary(problem) => problem.tame(),
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
            Problem::Quantize(problem) => problem.run(bench),
            Problem::Rotary(problem) => problem.run(bench),
        };
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
            Ok(Ok(share)) => Ok(Outcome::Right(share)),
            Ok(Err(Stop::Refused(reason))) => Ok(Outcome::Refused(reason)),
            Ok(Err(Stop::Failed(failure))) => Err(failure),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message");
                Err(Failure::new(Kind::Panicked, format!("a panic: {text}")))
            }
        }
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
            Problem::Quantize(problem) => of(problem, Problem::Quantize),
            Problem::Rotary(problem) => of(problem, Problem::Rotary),
        }
    }

    /// The text that repeats it: JSON in one line.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("a problem is plain data")
    }

    /// The command line that runs it again on this device.
    pub(crate) fn repeat(&self, gpu: &Gpu) -> String {
        let device = match gpu.is_emulated() {
            true => format!("emulator:{}", gpu.arch()),
            false => format!("cuda:{}", gpu.ordinal()),
        };
        format!("ferrotile soak --device {device} --repeat '{}'", self.text())
    }
}

/// The simplest problem that still fails in the same way, its failure, and the number of runs that the search took.
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
