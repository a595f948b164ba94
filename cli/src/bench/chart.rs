//! Pictures of benchmark results, as SVG: attention by sequence length ([`Panels`]), all else as bars ([`Bars`]).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::bench::bars::{self, Bars};
use crate::bench::lengths::{self, Panels};
use crate::bench::report::Entry;
use crate::files::input::FileError;
use crate::files::output;

/// Why there is no picture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChartError {
    /// Nothing to draw.
    #[error("no case is in both files")]
    NothingInCommon,
    /// The name of the file is that of another kind of picture.
    #[error("{}: the name of a picture ends in .svg", .0.display())]
    Name(PathBuf),
    /// No file can be there.
    #[error(transparent)]
    Output(#[from] FileError),
    /// The picture could not be drawn or written.
    #[error("the chart: {0}")]
    Drawing(String),
}

impl ChartError {
    /// Whether the request is at fault rather than the machine.
    pub(crate) fn is_bad_request(&self) -> bool {
        !matches!(self, ChartError::Drawing(_))
    }
}

/// A place for a picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChartFile<'a> {
    path: &'a Path,
}

/// What is drawn.
#[derive(Debug, PartialEq)]
pub(crate) enum Picture {
    /// Attention by sequence length.
    Lengths(Panels),
    /// A bar for each result.
    Bars(Bars),
}

impl<'a> ChartFile<'a> {
    /// Checks that a picture can be written to `path`; touches nothing.
    pub(crate) fn plan(path: &'a Path) -> Result<ChartFile<'a>, ChartError> {
        if path.extension().is_none_or(|extension| extension != "svg") {
            return Err(ChartError::Name(path.to_owned()));
        }
        output::check_place(path)?;
        Ok(ChartFile { path })
    }

    /// Draws results of this device.
    pub(crate) fn write(self, picture: &Picture, device: &str) -> Result<(), ChartError> {
        let drawn = match picture {
            Picture::Lengths(panels) => lengths::draw(self.path, device, panels),
            Picture::Bars(of_results) => bars::draw(self.path, device, of_results),
        };
        drawn.map_err(|error| ChartError::Drawing(error.to_string()))
    }
}

impl Picture {
    /// Our results beside those of the baseline, of the cases that both have.
    pub(crate) fn compare(ours: &[Entry], baseline: &[Entry]) -> Result<Picture, ChartError> {
        let panels = Panels::compare(ours, baseline);
        if !panels.is_empty() {
            return Ok(Picture::Lengths(panels));
        }
        let bars = Bars::compare(ours, baseline);
        if bars.is_empty() { Err(ChartError::NothingInCommon) } else { Ok(Picture::Bars(bars)) }
    }

    /// The results of one run: lines where each case has one result and cases differ in their length, else bars.
    pub(crate) fn of_run(entries: &[Entry]) -> Picture {
        let panels = Panels::of_run(entries);
        let cases: BTreeSet<&str> = entries.iter().map(|entry| entry.case.as_str()).collect();
        if panels.has_lines() && cases.len() == entries.len() {
            return Picture::Lengths(panels);
        }
        Picture::Bars(Bars::of_run(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_where_no_picture_can_be_is_refused() {
        assert!(matches!(ChartFile::plan(Path::new("unwritten.png")), Err(ChartError::Name(_))));
        assert!(matches!(ChartFile::plan(Path::new("none/unwritten.svg")), Err(ChartError::Output(_))));
        let entries = [Entry::of_test("gemm", "64x64x64/f16", "a")];
        assert!(matches!(Picture::compare(&entries, &[]), Err(ChartError::NothingInCommon)));
    }

    #[test]
    fn lines_are_drawn_of_lengths_and_bars_of_all_else() {
        let attention =
            |len: usize, kernel: &str| Entry::of_test("attention", &format!("1x8x{len}x64/full/f16"), kernel);
        let of_run = |entries: &[Entry]| matches!(Picture::of_run(entries), Picture::Lengths(_));
        assert!(of_run(&[attention(512, "a"), attention(1024, "b")]));
        assert!(!of_run(&[attention(512, "a")]), "one length is no line");
        assert!(!of_run(&[attention(512, "a"), attention(1024, "a"), attention(512, "b")]), "kernels are compared");
        assert!(!of_run(&[Entry::of_test("gemm", "64x64x64/f16", "a"), Entry::of_test("gemm", "64x64x96/f16", "a")]));
    }

    #[test]
    fn pictures_have_what_they_show() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chart.svg");
        let runs = [
            [Entry::of_test("gemm", "64x64x64/f16", "a & b"), Entry::of_test("gemm", "64x64x96/f16", "c")],
            [
                Entry::of_test("attention", "1x8x512x64/full/f16", "a"),
                Entry::of_test("attention", "1x8x1024x64/full/f16", "a"),
            ],
        ];
        for (entries, text) in runs.iter().zip(["64x64x96/f16", "head dimension 64"]) {
            ChartFile::plan(&path).unwrap().write(&Picture::of_run(entries), "card").unwrap();
            let svg = std::fs::read_to_string(&path).unwrap();
            assert!(svg.starts_with("<svg") && svg.contains(text) && svg.contains("card"), "{svg}");
        }
    }
}
