//! `ferrotile compare`: our times beside those of a baseline.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::bench::chart::{ChartFile, Picture};
use crate::bench::report::{Report, quickest};
use crate::bench::statistics::geometric_mean;
use crate::json::JsonArgs;
use crate::table::table;

/// Compares two files of benchmark results: how many times faster the best of OURS is than each entry of BASELINE.
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Results of `ferrotile bench .. --json`.
    ours: PathBuf,
    /// Results to compare with, of the same form, from the same machine.
    baseline: PathBuf,
    /// Where a picture of the cases in both files is written, as SVG: of attention by sequence length, else as bars.
    #[arg(long)]
    chart: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArgs,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Comparison {
    our_device: String,
    baseline_device: String,
    cases: Vec<Compared>,
    means: Vec<Mean>,
}

/// One case and one implementation of the baseline.
#[derive(Debug, Serialize)]
struct Compared {
    family: String,
    case: String,
    /// The quickest of our kernels.
    ours: String,
    our_us: f64,
    baseline: String,
    baseline_us: f64,
    /// Its time over ours.
    ratio: f64,
}

/// All cases of one implementation of the baseline.
#[derive(Debug, Serialize)]
struct Mean {
    baseline: String,
    /// The geometric mean of the ratios.
    ratio: f64,
    cases: usize,
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
    let comparison = Comparison::new(&ours, &baseline).ok_or(NothingInCommon)?;
    let chart = args.chart.as_deref().map(ChartFile::plan).transpose()?;
    let picture = chart.map(|_| Picture::compare(&ours.entries, &baseline.entries)).transpose()?;
    let printed = args.json.print(&comparison, Comparison::text);
    chart.zip(picture).map_or(Ok(()), |(chart, picture)| chart.write(&picture, &ours.device))?;
    Ok(printed?)
}

impl Comparison {
    /// `None` where no case is in both.
    fn new(ours: &Report, baseline: &Report) -> Option<Comparison> {
        let best = quickest(&ours.entries);
        let mut cases = Vec::new();
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for entry in &baseline.entries {
            let Some(ours) = best.get(&(entry.family.as_str(), entry.case.as_str())) else { continue };
            let ratio = entry.us / ours.us;
            ratios.entry(&entry.implementation).or_default().push(ratio);
            cases.push(Compared {
                family: entry.family.clone(),
                case: entry.case.clone(),
                ours: ours.implementation.clone(),
                our_us: ours.us,
                baseline: entry.implementation.clone(),
                baseline_us: entry.us,
                ratio,
            });
        }
        let mean = |(baseline, ratios): (&str, Vec<f64>)| {
            let ratio = geometric_mean(&ratios).expect("an implementation is listed with its first ratio");
            Mean { baseline: baseline.to_owned(), ratio, cases: ratios.len() }
        };
        let means = ratios.into_iter().map(mean).collect();
        let (our_device, baseline_device) = (ours.device.clone(), baseline.device.clone());
        (!cases.is_empty()).then_some(Comparison { our_device, baseline_device, cases, means })
    }

    /// The comparison as a table.
    fn text(&self) -> String {
        let line = |compared: &Compared| {
            let Compared { case, ours, our_us, baseline, baseline_us, ratio, .. } = compared;
            let [our_us, baseline_us] = [our_us, baseline_us].map(|us| format!("{us:.2}"));
            vec![case.clone(), ours.clone(), our_us, baseline.clone(), baseline_us, format!("{ratio:.3}")]
        };
        let lines: Vec<_> = self.cases.iter().map(line).collect();
        let mut text = table(&["case", "ours", "us", "baseline", "us", "times faster"], &lines);
        for Mean { baseline, ratio, cases } in &self.means {
            text += &format!("geometric mean over {baseline}: {ratio:.3} ({cases} cases)\n");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::Entry;

    fn entry(case: &str, implementation: &str, us: f64) -> Entry {
        Entry { us, ..Entry::of_test("attention", case, implementation) }
    }

    fn compared(ours: &[Entry], baseline: &[Entry]) -> Option<String> {
        let [ours, baseline] =
            [ours, baseline].map(|entries| Report { device: "card".to_owned(), entries: entries.to_vec() });
        Comparison::new(&ours, &baseline).map(|comparison| comparison.text())
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
        let text = compared(&ours, &baseline).unwrap();
        assert!(text.contains("geometric mean over cudnn: 2.000 (2 cases)"), "{text}");
        assert!(text.contains("geometric mean over fa2: 0.500 (1 cases)"), "{text}");
        assert!(text.contains("quick") && !text.contains("slow  8.00"), "{text}");
    }

    #[test]
    fn files_without_a_common_case_do_not_compare() {
        assert_eq!(compared(&[entry("a", "x", 1.0)], &[entry("b", "y", 1.0)]), None);
    }
}
