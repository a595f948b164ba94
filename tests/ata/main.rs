//! Every ATA kernel on the device under test.
//!
//! A trial covers one property for one precision. Within a trial every configuration that multiplies matrices of the
//! precision runs, on the same inputs and against the same reference.

mod bits;
mod case;
mod exact;
mod numbers;
mod property;
mod refusals;
mod solver;

use std::process::ExitCode;

use tests::Trials;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    exact::list(&mut trials);
    numbers::list(&mut trials);
    bits::list(&mut trials);
    property::list(&mut trials);
    refusals::list(&mut trials);
    solver::list(&mut trials);
    trials.run()
}
