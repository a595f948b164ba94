//! The problems of `ferrotile soak`: random ones of every family, run and compared with the f64 reference.

mod ata;
mod attention;
mod cell;
mod cg;
mod check;
pub(crate) mod family;
mod fp8;
mod gemm;
mod heads;
mod memory;
mod merge;
pub(crate) mod outcome;
mod paged;
mod placement;
pub(crate) mod problem;
mod quantize;
mod rotary;
mod sizes;
mod softmax;
mod terms;
#[cfg(test)]
mod tests;
mod text;
mod twice;
mod values;
mod varlen;
