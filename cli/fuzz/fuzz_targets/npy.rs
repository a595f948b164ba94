//! Any NPY file is a tensor or a matrix, or an error, and takes no more memory than its size lets one expect.
#![no_main]

mod readers;

use libfuzzer_sys::fuzz_target;
use readers::{files, memory};

fuzz_target!(|bytes: &[u8]| readers::read("npy", bytes));
