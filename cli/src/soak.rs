//! The problems of `ferrotile soak`: random ones of every family, run and compared with the f64 reference.

mod ata;
mod attention;
mod cg;
mod check;
pub(crate) mod family;
mod gemm;
mod memory;
mod merge;
pub(crate) mod outcome;
mod paged;
mod place;
pub(crate) mod problem;
mod sizes;
mod softmax;
#[cfg(test)]
mod tests;
mod text;
mod values;
mod varlen;
