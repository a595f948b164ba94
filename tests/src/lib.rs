//! What the tests share: the device under test, inputs from a seed, edge shapes, guarded buffers, comparison and
//! calls that must fail.

pub mod catalogue;
pub mod compare;
pub mod device;
pub mod guard;
pub mod inputs;
mod poison;
pub mod probe_ptx;
pub mod record;
pub mod refusal;
pub mod request;
pub mod shapes;
pub mod trials;
pub mod view;

pub use device::{Device, card_trial, device, device_trial, is_small, run_trials};
pub use record::note_words;
pub use refusal::expect_error;
pub use trials::Trials;

/// The examples of README.md, and of the packages whose documentation has others, which `cargo test` compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[doc = include_str!("../../host/README.md")]
#[doc = include_str!("../../kernels-gpu/layout/README.md")]
#[doc = include_str!("../../kernels-gpu/variants/README.md")]
pub mod readme {}
