//! Runs PTX on the CPU, warp by warp, and reports what a GPU hides.

pub mod approximate;
pub mod float;
pub mod memory;
pub mod shadow;
pub mod tensor_core;
