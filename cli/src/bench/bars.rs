//! Throughput as bars: one for each result, those of a case under each other.

use std::path::Path;

use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::bench::lengths::{COLOURS, OURS};
use crate::bench::report::{Entry, quickest};

/// Width of the names of cases, of the longest bar, and of what stands behind it, in pixels.
const WIDTHS: [i32; 3] = [290, 260, 430];

/// Height of a bar with its distance from the next, and the distance between cases.
const STEPS: [i32; 2] = [18, 6];

/// Height of a bar.
const BAR: i32 = 12;

/// Height of the title.
const HEADING: i32 = 40;

/// One result.
#[derive(Debug, Clone, PartialEq)]
struct Bar {
    implementation: String,
    value: f64,
    /// Which of [`COLOURS`] it has.
    colour: usize,
}

/// The results of each case, in the order of the run.
#[derive(Debug, PartialEq)]
pub(crate) struct Bars {
    /// What is measured.
    families: String,
    /// The unit of all values.
    unit: &'static str,
    cases: Vec<(String, Vec<Bar>)>,
}

impl Bars {
    /// The results of one run.
    pub(crate) fn of_run(entries: &[Entry]) -> Bars {
        Bars::new(entries.iter().map(|entry| (entry, entry.implementation.clone(), 0)))
    }

    /// The quickest of our kernels and every result of the baseline, of the cases that both have.
    pub(crate) fn compare(ours: &[Entry], baseline: &[Entry]) -> Bars {
        let best = quickest(ours);
        let mut names: Vec<&str> = baseline.iter().map(|entry| entry.implementation.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let colour = |entry: &Entry| 1 + names.iter().position(|name| *name == entry.implementation).unwrap_or(0);
        let mut all = Vec::new();
        for entry in baseline {
            let Some(ours) = best.get(&(entry.family.as_str(), entry.case.as_str())) else { continue };
            all.push((*ours, OURS.to_owned(), 0));
            all.push((entry, entry.implementation.clone(), colour(entry)));
        }
        Bars::new(all.into_iter())
    }

    /// Bars of results, the same result of a case once.
    fn new<'e>(all: impl Iterator<Item = (&'e Entry, String, usize)> + Clone) -> Bars {
        let is_rate = all.clone().all(|(entry, ..)| entry.gb_per_s.is_some());
        let mut families: Vec<&str> = all.clone().map(|(entry, ..)| entry.family.as_str()).collect();
        families.sort_unstable();
        families.dedup();
        let mut cases: Vec<(String, Vec<Bar>)> = Vec::new();
        for (entry, implementation, colour) in all.clone() {
            let value = entry.gb_per_s.filter(|_| is_rate).unwrap_or(entry.tflops);
            let bar = Bar { implementation, value, colour };
            match cases.iter_mut().find(|(case, _)| *case == entry.case) {
                Some((_, bars)) if bars.contains(&bar) => {}
                Some((_, bars)) => bars.push(bar),
                None => cases.push((entry.case.clone(), vec![bar])),
            }
        }
        Bars { families: families.join(", "), unit: if is_rate { "GB/s" } else { "TFLOP/s" }, cases }
    }

    /// Whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }
}

/// Draws the bars for results of this device.
pub(crate) fn draw(path: &Path, device: &str, bars: &Bars) -> Result<(), Box<dyn std::error::Error>> {
    let [of_name, longest, behind] = WIDTHS;
    let all = || bars.cases.iter().flat_map(|(_, bars)| bars);
    let height = HEADING + all().count() as i32 * STEPS[0] + bars.cases.len() as i32 * STEPS[1];
    let root = SVGBackend::new(path, ((of_name + longest + behind) as u32, height as u32)).into_drawing_area();
    root.fill(&WHITE)?;
    let font = ("sans-serif", 13).into_font();
    let middle = |horizontal| TextStyle::from(font.clone()).pos(Pos::new(horizontal, VPos::Center));
    let title = format!("{} on one {device}, {}", bars.families, bars.unit);
    root.draw(&Text::new(title, (10, 12), ("sans-serif", 15).into_font()))?;
    let most = all().map(|bar| bar.value).fold(f64::MIN_POSITIVE, f64::max);
    let mut top = HEADING;
    for (case, of_case) in &bars.cases {
        root.draw(&Text::new(case.clone(), (of_name - 8, top + BAR / 2), middle(HPos::Right)))?;
        for Bar { implementation, value, colour } in of_case {
            let end = of_name + (f64::from(longest) * value / most).round() as i32;
            let colour = COLOURS[colour % COLOURS.len()];
            root.draw(&Rectangle::new([(of_name, top), (end, top + BAR)], colour.filled()))?;
            let precise = if *value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
            let text = format!("{precise}  {implementation}");
            root.draw(&Text::new(text, (end + 6, top + BAR / 2), middle(HPos::Left)))?;
            top += STEPS[0];
        }
        top += STEPS[1];
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(case: &str, implementation: &str, us: f64) -> Entry {
        Entry { us, tflops: 8.0 / us, ..Entry::of_test("gemm", case, implementation) }
    }

    #[test]
    fn a_case_has_our_quickest_kernel_and_each_of_the_baseline() {
        let ours = [entry("a", "slow", 4.0), entry("a", "quick", 2.0), entry("only ours", "x", 1.0)];
        let baseline = [entry("a", "cublas", 4.0), entry("a", "cutlass", 8.0), entry("other", "cublas", 1.0)];
        let bars = Bars::compare(&ours, &baseline);
        let shown: Vec<_> = bars.cases[0].1.iter().map(|bar| (&*bar.implementation, bar.value, bar.colour)).collect();
        assert_eq!(shown, [(OURS, 4.0, 0), ("cublas", 2.0, 1), ("cutlass", 1.0, 2)]);
        assert_eq!((bars.cases.len(), bars.unit), (1, "TFLOP/s"));
    }

    #[test]
    fn rates_of_memory_are_drawn_where_all_results_have_them() {
        let with_rate = Entry { gb_per_s: Some(100.0), ..entry("a", "x", 1.0) };
        let bars = Bars::of_run(std::slice::from_ref(&with_rate));
        assert_eq!((bars.unit, bars.cases[0].1[0].value), ("GB/s", 100.0));
        assert_eq!(Bars::of_run(&[with_rate, entry("b", "x", 1.0)]).unit, "TFLOP/s");
    }
}
