//! Every GEMM kernel on the device under test.
//!
//! A trial covers one property for one element type of A and B. Within a trial every configuration that serves the case
//! runs, with one split of k and with several, on the same inputs and against the same reference.

mod bits;
mod case;
mod exact;
mod fp8;
mod numbers;
mod refusals;
mod special;
mod streams;

use std::process::ExitCode;

use tests::Trials;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    exact::list(&mut trials);
    numbers::list(&mut trials);
    special::list(&mut trials);
    bits::list(&mut trials);
    fp8::list(&mut trials);
    refusals::list(&mut trials);
    streams::list(&mut trials);
    trials.run()
}
