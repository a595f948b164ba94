//! Every attention kernel on the device under test.
//!
//! A trial covers one property for one element type. Within a trial every configuration that serves the case runs, on
//! the same inputs and against the same reference.

mod bits;
mod case;
mod decode;
mod exact;
mod fp8;
mod fp8_kv;
mod fp8_tensors;
mod fp8_terms;
mod lengths;
mod merge;
mod numbers;
mod paged;
mod property;
mod quantized;
mod range;
mod refusals;
mod scores;
mod special;
mod streams;
mod unordered;
mod values;
mod varlen;

use std::process::ExitCode;

use tests::Trials;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    numbers::list(&mut trials);
    exact::list(&mut trials);
    fp8::list(&mut trials);
    fp8_kv::list(&mut trials);
    fp8_tensors::list(&mut trials);
    fp8_terms::list(&mut trials);
    quantized::list(&mut trials);
    bits::list(&mut trials);
    special::list(&mut trials);
    range::list(&mut trials);
    refusals::list(&mut trials);
    streams::list(&mut trials);
    scores::list(&mut trials);
    varlen::list(&mut trials);
    lengths::list(&mut trials);
    values::list(&mut trials);
    property::list(&mut trials);
    decode::list(&mut trials);
    merge::list(&mut trials);
    paged::list(&mut trials);
    unordered::list(&mut trials);
    trials.run()
}
