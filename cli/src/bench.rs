//! The benchmarks of `ferrotile bench`, a file each, and what they share: timing, statistics, reports and charts.

pub(crate) mod any_case;
pub(crate) mod ata;
pub(crate) mod attention;
pub(crate) mod bars;
pub(crate) mod chart;
pub(crate) mod decode;
pub(crate) mod error;
pub(crate) mod gemm;
pub(crate) mod kernel_names;
pub(crate) mod ladder;
pub(crate) mod lengths;
pub(crate) mod load;
pub(crate) mod measure;
pub(crate) mod report;
pub(crate) mod rotary;
pub(crate) mod statistics;
pub(crate) mod study;
