//! Any NPY file is a tensor or a matrix, or an error, and takes no more memory than its size lets one expect.
#![no_main]
#![allow(dead_code, unused_imports)]

#[path = "../../src/archive.rs"]
mod archive;
#[path = "../../src/convert.rs"]
mod convert;
#[path = "../../src/input_file.rs"]
mod input_file;
#[path = "../../src/matrix_file.rs"]
mod matrix_file;
#[path = "../../src/memory.rs"]
mod memory;
#[path = "../../src/npy.rs"]
mod npy;
#[path = "../../src/tensor.rs"]
mod tensor;

mod file;

use convert::Converter;
use libfuzzer_sys::fuzz_target;
use npy::Opaque;

fuzz_target!(|bytes: &[u8]| {
    file::with("npy", bytes, |path| {
        let _ = input_file::read(path, "q", Opaque { dtype: Some("bf16"), offered: &["bf16"] });
        let _ = matrix_file::read(path, 0.0, &mut Converter::new(true, true));
    });
});
