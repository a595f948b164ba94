//! Every attention kernel on the device under test.
//!
//! A trial covers one property for one element type; within it, every row of the table that serves the case runs, on the same
//! inputs and against the same reference.

mod bits;
mod case;
mod exact;
mod numbers;
mod property;
mod refusals;
mod special;
mod streams;

use std::process::ExitCode;

use ferrotile::Gpu;
use libtest_mimic::Trial;

use case::Outcome;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    numbers::list(&mut trials);
    exact::list(&mut trials);
    bits::list(&mut trials);
    special::list(&mut trials);
    refusals::list(&mut trials);
    streams::list(&mut trials);
    property::list(&mut trials);
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
        for (dtype, body) in [("f16", f16), ("bf16", bf16)] {
            let case = case.clone();
            self.list.push(tests::device_trial(format!("{name}/{dtype}"), move |gpu| body(gpu, &case)));
        }
    }
}
