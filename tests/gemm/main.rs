//! Every GEMM kernel on the device under test.
//!
//! A trial covers one property for one element type of A and B; within it, every row of the table that serves the case runs, with
//! k in one part and in several, on the same inputs and against the same reference.

mod bits;
mod case;
mod exact;
mod fp8;
mod numbers;
mod refusals;
mod special;
mod streams;

use std::process::ExitCode;

use ferrotile::Gpu;
use libtest_mimic::Trial;

use case::Outcome;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    exact::list(&mut trials);
    numbers::list(&mut trials);
    special::list(&mut trials);
    bits::list(&mut trials);
    fp8::list(&mut trials);
    refusals::list(&mut trials);
    streams::list(&mut trials);
    tests::run_trials(trials.list)
}

/// The trials so far.
#[derive(Default)]
struct Trials {
    list: Vec<Trial>,
}

impl Trials {
    /// Adds a trial for f16 and one for bf16.
    fn both<C: Clone + Send + 'static>(
        &mut self,
        name: &str,
        case: &C,
        f16: fn(&Gpu, &C) -> Outcome,
        bf16: fn(&Gpu, &C) -> Outcome,
    ) {
        self.add(name, "f16", case, f16);
        self.add(name, "bf16", case, bf16);
    }

    /// Adds a trial for the named types.
    fn add<C: Clone + Send + 'static>(&mut self, name: &str, types: &str, case: &C, body: fn(&Gpu, &C) -> Outcome) {
        let case = case.clone();
        self.list.push(tests::device_trial(format!("{name}/{types}"), move |gpu| body(gpu, &case)));
    }
}
