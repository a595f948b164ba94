//! `ferrotile compare`: our times beside those of a baseline.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::bench::chart::Chart;
use crate::bench::report::{Entry, Report};
use crate::bench::statistics::geometric_mean;
use crate::table::table;

/// Compares two files of benchmark results: how many times faster the best of OURS is than each entry of BASELINE.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Results of `ferrotile bench .. --json`.
    ours: PathBuf,
    /// Results to compare with, of the same form, from the same machine.
    baseline: PathBuf,
    /// Where a picture of the attention cases in both files is written, as SVG: TFLOP/s by sequence length.
    #[arg(long)]
    chart: Option<PathBuf>,
}

/// Two files that have no case in common.
#[derive(Debug, thiserror::Error)]
#[error("the files have no case in common")]
pub(crate) struct NothingInCommon;

/// Prints the comparison.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<()> {
    let (ours, baseline) = (Report::read(&args.ours)?, Report::read(&args.baseline)?);
    if ours.device != baseline.device {
        eprintln!("warning: the results are from different devices: {} and {}", ours.device, baseline.device);
    }
    let text = comparison(&ours.entries, &baseline.entries).ok_or(NothingInCommon)?;
    let chart = args.chart.as_deref().map(|path| Chart::plan(path, &ours.entries, &baseline.entries)).transpose()?;
    let printed = write!(io::stdout(), "{text}");
    chart.map_or(Ok(()), |chart| chart.write(&ours.device))?;
    Ok(printed?)
}

/// The comparison as text; `None` where no case is in both.
fn comparison(ours: &[Entry], baseline: &[Entry]) -> Option<String> {
    let mut best: BTreeMap<(&str, &str), &Entry> = BTreeMap::new();
    for entry in ours {
        let quickest = best.entry((&entry.family, &entry.case)).or_insert(entry);
        if entry.us < quickest.us {
            *quickest = entry;
        }
    }
    let mut lines = Vec::new();
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for entry in baseline {
        let Some(ours) = best.get(&(entry.family.as_str(), entry.case.as_str())) else { continue };
        let ratio = entry.us / ours.us;
        ratios.entry(&entry.implementation).or_default().push(ratio);
        lines.push(vec![
            entry.case.clone(),
            ours.implementation.clone(),
            format!("{:.2}", ours.us),
            entry.implementation.clone(),
            format!("{:.2}", entry.us),
            format!("{ratio:.3}"),
        ]);
    }
    if lines.is_empty() {
        return None;
    }
    let mut text = table(&["case", "ours", "us", "baseline", "us", "times faster"], &lines);
    for (implementation, ratios) in ratios {
        let mean = geometric_mean(&ratios).expect("an implementation is listed with its first ratio");
        text += &format!("geometric mean over {implementation}: {mean:.3} ({} cases)\n", ratios.len());
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(case: &str, implementation: &str, us: f64) -> Entry {
        Entry {
            family: "attention".to_owned(),
            case: case.to_owned(),
            implementation: implementation.to_owned(),
            us,
            tflops: 1.0,
            p90_us: None,
            mean_us: None,
            std_us: None,
        }
    }

    #[test]
    fn the_best_of_ours_is_compared_with_each_baseline() {
        let ours = [
            entry("a", "slow", 8.0),
            entry("a", "quick", 2.0),
            entry("b", "slow", 1.0),
            entry("only ours", "slow", 1.0),
        ];
        let baseline =
            [entry("a", "cudnn", 8.0), entry("b", "cudnn", 1.0), entry("a", "fa2", 1.0), entry("other", "fa2", 1.0)];
        let text = comparison(&ours, &baseline).unwrap();
        assert!(text.contains("geometric mean over cudnn: 2.000 (2 cases)"), "{text}");
        assert!(text.contains("geometric mean over fa2: 0.500 (1 cases)"), "{text}");
        assert!(text.contains("quick") && !text.contains("slow  8.00"), "{text}");
    }

    #[test]
    fn files_without_a_common_case_do_not_compare() {
        assert_eq!(comparison(&[entry("a", "x", 1.0)], &[entry("b", "y", 1.0)]), None);
    }
}
