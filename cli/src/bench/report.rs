//! The JSON files of benchmark results, ours and those of vendor libraries.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::bench::statistics::Summary;
use crate::files::input::FileError;

/// Results of one run on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The name of the device.
    pub(crate) device: String,
    /// One entry for each case and implementation.
    #[serde(rename = "rows")]
    pub(crate) entries: Vec<Entry>,
}

/// The time of one implementation on one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The kernel family: `attention`, `ata` or `gemm`.
    pub(crate) family: String,
    /// The case, such as `1x8x512x64/causal/f16`, `n2624_c3_d27_f8` or `4096x4096x4096/f16`.
    pub(crate) case: String,
    /// The kernel or library.
    #[serde(rename = "impl")]
    pub(crate) implementation: String,
    /// The median time in microseconds.
    pub(crate) us: f64,
    /// Operations a second at the median, in units of 10^12.
    pub(crate) tflops: f64,
    /// The 90th percentile of the time in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p90_us: Option<f64>,
    /// The mean time in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_us: Option<f64>,
    /// The standard deviation of the time in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) std_us: Option<f64>,
    /// Bytes read and written a second at the median, in units of 10^9, where reading is what takes the time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gb_per_s: Option<f64>,
}

/// Why a file of results could not be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {reason}")]
pub(crate) struct ReportError {
    path: PathBuf,
    reason: String,
}

impl Entry {
    /// A measured time of work of `flops` operations.
    pub(crate) fn measured(
        family: &str,
        case: impl Display,
        implementation: impl Display,
        us: &Summary,
        flops: f64,
    ) -> Entry {
        Entry {
            family: family.to_owned(),
            case: case.to_string(),
            implementation: implementation.to_string(),
            us: us.p50,
            tflops: flops / us.p50 / 1e6,
            p90_us: Some(us.p90),
            mean_us: Some(us.mean),
            std_us: Some(us.std),
            gb_per_s: None,
        }
    }

    /// A time of 1 us at 1 TFLOP/s, of which tests change what counts.
    #[cfg(test)]
    pub(crate) fn of_test(family: &str, case: &str, implementation: &str) -> Entry {
        let us = Summary { p50: 1.0, p90: 1.0, mean: 1.0, std: 0.0 };
        Entry::measured(family, case, implementation, &us, 1e6)
    }
}

/// The quickest entry of each family and case.
pub(crate) fn quickest(entries: &[Entry]) -> BTreeMap<(&str, &str), &Entry> {
    let mut best: BTreeMap<(&str, &str), &Entry> = BTreeMap::new();
    for entry in entries {
        let quickest = best.entry((&entry.family, &entry.case)).or_insert(entry);
        if entry.us < quickest.us {
            *quickest = entry;
        }
    }
    best
}

impl Report {
    /// Writes a file of results.
    pub(crate) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        Ok(fs::write(path, text).map_err(|source| FileError::Write { path: path.to_owned(), source })?)
    }

    /// Reads a file of results.
    pub(crate) fn read(path: &Path) -> Result<Report, ReportError> {
        let wrong = |reason: String| ReportError { path: path.to_owned(), reason };
        let bytes = fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let report: Report = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(format!("not a file of benchmark results: {error}")))?;
        match report.entries.iter().find(|entry| !(entry.us.is_finite() && entry.us > 0.0)) {
            Some(entry) => Err(wrong(format!("{} of {} took {} us", entry.implementation, entry.case, entry.us))),
            None => Ok(report),
        }
    }
}
