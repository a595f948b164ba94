//! Throughput of attention by sequence length: one panel for each head dimension and mask, one line for each
//! implementation and element type.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::path::Path;

use plotters::element::DashedPathElement;
use plotters::prelude::*;

use crate::bench::report::Entry;
use crate::problems::case::{Case, Extra};

/// The name of the library's own results.
pub(crate) const OURS: &str = "ferrotile";

/// Width and height of a panel in pixels.
const PANEL: (u32, u32) = (460, 300);

/// Height of the title and the line of names above the panels.
const HEADING: u32 = 60;

/// Room of one name in that line, in pixels.
const NAME_WIDTH: i32 = 140;

/// Length of the dashes of a line, and of the gaps between them.
const DASH: (u32, u32) = (5, 4);

/// One colour for each implementation, distinct in grey too.
pub(crate) const COLOURS: [RGBColor; 4] =
    [RGBColor(0xb7, 0x41, 0x0e), RGBColor(0x1f, 0x77, 0xb4), RGBColor(0x7f, 0x7f, 0x7f), RGBColor(0x2c, 0xa0, 0x2c)];

/// TFLOP/s by sequence length; of several cases of one length, those of the most work.
type Series = BTreeMap<usize, (f64, f64)>;

/// Whose results a series has, and of which element type: `None` where all series have the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    implementation: String,
    dtype: Option<String>,
}

impl Display for Name {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.dtype {
            Some(dtype) => write!(f, "{} {dtype}", self.implementation),
            None => f.write_str(&self.implementation),
        }
    }
}

/// The panels by head dimension and mask, each with its series by name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Panels(BTreeMap<(usize, String), BTreeMap<Name, Series>>);

impl Panels {
    /// The panels of the cases that both have. Of our kernels the quickest of each case counts.
    pub(crate) fn compare(ours: &[Entry], baseline: &[Entry]) -> Panels {
        let cases = |entries: &[Entry]| entries.iter().map(|entry| entry.case.clone()).collect::<BTreeSet<_>>();
        let common = &cases(ours) & &cases(baseline);
        let ours = ours.iter().map(|entry| (OURS, entry));
        let named = ours.chain(baseline.iter().map(|entry| (&*entry.implementation, entry)));
        Panels::new(named.filter(|(_, entry)| common.contains(&entry.case)))
    }

    /// The panels of one run.
    pub(crate) fn of_run(entries: &[Entry]) -> Panels {
        Panels::new(entries.iter().map(|entry| (OURS, entry)))
    }

    /// The panels of entries by the names of their series.
    fn new<'e>(named: impl Iterator<Item = (&'e str, &'e Entry)> + Clone) -> Panels {
        let named = named.filter(|(_, entry)| entry.family == "attention");
        let dtype = |entry: &Entry| Some(entry.case.parse::<Case>().ok()?.dtype.to_string());
        let dtypes: BTreeSet<_> = named.clone().filter_map(|(_, entry)| dtype(entry)).collect();
        let mut panels = Panels::default();
        for (implementation, entry) in named {
            let Ok(case @ Case { extra: Extra::None, .. }) = entry.case.parse::<Case>() else { continue };
            let dtype = (dtypes.len() > 1).then(|| case.dtype.to_string());
            let name = Name { implementation: implementation.to_owned(), dtype };
            let panel = panels.0.entry((case.head_dim, case.mask.to_string())).or_default();
            let point = (case.flops(), entry.tflops);
            let most = panel.entry(name).or_default().entry(case.len).or_insert(point);
            if point.0 > most.0 || point.0 == most.0 && point.1 > most.1 {
                *most = point;
            }
        }
        panels
    }

    /// Whether there is nothing to draw.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether some series has a line: two lengths or more.
    pub(crate) fn has_lines(&self) -> bool {
        self.0.values().flat_map(BTreeMap::values).any(|series| series.len() > 1)
    }

    /// The names of all series, ours first.
    fn names(&self) -> Vec<&Name> {
        let names: BTreeSet<_> = self.0.values().flat_map(BTreeMap::keys).collect();
        let (ours, others): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name.implementation == OURS);
        [ours, others].concat()
    }

    /// How each series is drawn: in the colour of its implementation, dashed where its element type is not the first
    /// one's.
    fn styles(&self) -> Vec<(&Name, RGBColor, bool)> {
        let names = self.names();
        let mut implementations: Vec<_> = names.iter().map(|name| &name.implementation).collect();
        implementations.dedup();
        let solid = names.first().map(|name| &name.dtype);
        let colour_of = |implementation: &String| {
            let index = implementations.iter().position(|&of| of == implementation).unwrap_or(0);
            COLOURS[index % COLOURS.len()]
        };
        names.iter().map(|&name| (name, colour_of(&name.implementation), Some(&name.dtype) != solid)).collect()
    }
}

/// Draws the panels for results of this device.
pub(crate) fn draw(path: &Path, device: &str, panels: &Panels) -> Result<(), Box<dyn std::error::Error>> {
    let distinct = |count: BTreeSet<String>| count.len();
    let columns = distinct(panels.0.keys().map(|(_, mask)| mask.clone()).collect());
    let lines = distinct(panels.0.keys().map(|(head_dim, _)| head_dim.to_string()).collect());
    let styles = panels.styles();
    let width = (PANEL.0 * columns as u32).max(NAME_WIDTH as u32 * styles.len() as u32);
    let size = (width, HEADING + PANEL.1 * lines as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let (heading, body) = root.split_vertically(HEADING);
    let text = ("sans-serif", 15).into_font();
    heading.draw(&Text::new(
        format!("Attention on one {device}, TFLOP/s by sequence length"),
        (10, 10),
        text.clone(),
    ))?;
    for (index, (name, colour, dashed)) in styles.iter().enumerate() {
        let (left, middle) = (10 + NAME_WIDTH * index as i32, 42);
        let line = [(left, middle), (left + 24, middle)];
        if *dashed {
            heading.draw(&DashedPathElement::new(line, DASH.0, DASH.1, colour.stroke_width(2)))?;
        } else {
            heading.draw(&PathElement::new(line, colour.stroke_width(2)))?;
        }
        heading.draw(&Text::new(name.to_string(), (left + 30, middle - 7), text.clone()))?;
    }
    let masks: BTreeSet<&str> = panels.0.keys().map(|(_, mask)| mask.as_str()).collect();
    let head_dims: BTreeSet<usize> = panels.0.keys().map(|(head_dim, _)| *head_dim).collect();
    let areas = body.split_evenly((lines, columns));
    let places = head_dims.iter().flat_map(|&head_dim| masks.iter().rev().map(move |&mask| (head_dim, mask)));
    for (area, (head_dim, mask)) in areas.iter().zip(places) {
        let Some(panel) = panels.0.get(&(head_dim, mask.to_owned())) else { continue };
        let lens: BTreeSet<usize> = panel.values().flat_map(|series| series.keys().copied()).collect();
        let (first, last) = (lens.first().copied().unwrap_or(1), lens.last().copied().unwrap_or(1));
        let most = panel.values().flat_map(|series| series.values().map(|point| point.1)).fold(0.0, f64::max);
        // Lengths double from one mark to the next.
        let place = |len: usize| (len as f64).log2();
        let mut chart = ChartBuilder::on(area)
            .caption(format!("head dimension {head_dim}, {mask}"), text.clone())
            .margin(10)
            .x_label_area_size(28)
            .y_label_area_size(44)
            .build_cartesian_2d(place(first) - 0.2..place(last) + 0.2, 0.0..most * 1.1)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(lens.len().max(2) * 2)
            .x_label_formatter(&|log| {
                let len = log.exp2().round();
                if (log - log.round()).abs() < 1e-6 { format!("{len}") } else { String::new() }
            })
            .draw()?;
        for &(name, colour, dashed) in &styles {
            let Some(series) = panel.get(name) else { continue };
            let points = series.iter().map(|(&len, &(_, tflops))| (place(len), tflops));
            if dashed {
                let line = DashedLineSeries::new(points.clone(), DASH.0, DASH.1, colour.stroke_width(2));
                chart.draw_series(line)?;
            } else {
                chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
            }
            chart.draw_series(points.map(|point| Circle::new(point, 3, colour.filled())))?;
        }
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(case: &str, implementation: &str, tflops: f64) -> Entry {
        Entry { tflops, ..Entry::of_test("attention", case, implementation) }
    }

    #[test]
    fn each_length_has_its_largest_case_and_our_quickest_kernel() {
        let ours = [
            entry("1x8x512x64/full/f16", "a", 300.0),
            entry("32x32x512x64/full/f16", "a", 400.0),
            entry("32x32x512x64/full/f16", "b", 420.0),
            entry("1x8x512x64/causal/f16", "a", 200.0),
            entry("1x8x1024x64/full/f16", "only ours", 1.0),
            entry("1x8x512x64/full/bf16", "only ours", 1.0),
        ];
        let baseline = [
            entry("1x8x512x64/full/f16", "cudnn", 500.0),
            entry("32x32x512x64/full/f16", "cudnn", 390.0),
            entry("1x8x512x64/causal/f16", "cudnn", 210.0),
        ];
        let panels = Panels::compare(&ours, &baseline);
        assert_eq!(panels.0.len(), 2);
        let full = &panels.0[&(64, "full".to_owned())];
        let name = |implementation: &str| Name { implementation: implementation.to_owned(), dtype: None };
        let tflops = |of: &str| full[&name(of)].values().map(|point| point.1).collect::<Vec<_>>();
        assert_eq!((tflops(OURS), tflops("cudnn")), (vec![420.0], vec![390.0]));
        assert_eq!(panels.names(), [&name(OURS), &name("cudnn")]);
    }

    #[test]
    fn no_two_series_look_alike() {
        let entries = |of: &str| {
            let cases = ["1x8x512x64/full/f16", "1x8x512x64/full/bf16"];
            cases.map(|case| entry(case, of, 1.0))
        };
        let panels = Panels::compare(&entries("a"), &[entries("cudnn"), entries("fa2")].concat());
        let styles = panels.styles();
        let names: Vec<_> = styles.iter().map(|(name, ..)| name.to_string()).collect();
        assert_eq!(names, ["ferrotile bf16", "ferrotile f16", "cudnn bf16", "cudnn f16", "fa2 bf16", "fa2 f16"]);
        for (index, (_, colour, dashed)) in styles.iter().enumerate() {
            assert!(styles[..index].iter().all(|(_, other, others)| (other, others) != (colour, dashed)), "{index}");
        }
    }
}
