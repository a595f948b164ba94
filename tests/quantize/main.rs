//! The kernels that quantise, on the device under test.
//!
//! Every result is that of the reference, bit by bit: each step is an operation in f32, in the same order on both
//! sides, and the largest magnitude does not depend on the order.

mod case;
mod refusals;
mod streams;
mod values;

use std::process::ExitCode;

use tests::Trials;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    values::list(&mut trials);
    streams::list(&mut trials);
    refusals::list(&mut trials);
    trials.run()
}
