//! Rotary embedding and append to a KV cache, on the device under test.
//!
//! A rotated element is two products and a sum in f32, rounded once. So it lies between what the exact result becomes
//! with the error of f32 on either side: see `case::check_row`. What is not rotated is equal bit by bit.

mod case;
mod edges;
mod refusals;
mod values;

use std::process::ExitCode;

use tests::Trials;

fn main() -> ExitCode {
    let mut trials = Trials::default();
    values::list(&mut trials);
    edges::list(&mut trials);
    refusals::list(&mut trials);
    trials.run()
}
