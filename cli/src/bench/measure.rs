//! Timing of work on a card.
//!
//! Small work is captured many times into one graph, whose replays are timed: a launch from the host costs more than
//! the work. Large work is timed launch by launch with events, the L2 cache overwritten in between. Both are what
//! Triton's benchmark functions do, with which the vendor libraries are timed, so that the numbers compare.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use ferrotile::{Buffer, Event, Gpu, Result, Stream, StreamRef};

use crate::bench::chart::{ChartFile, Picture};
use crate::bench::error::BenchError;
use crate::bench::report::{Entry, Report};
use crate::bench::statistics::Summary;
use crate::device;
use crate::files::output;
use crate::table::table;

/// Microseconds of measuring in all that are aimed at where no number of iterations is given.
const TARGET_US: f64 = 60_000.0;

/// Microseconds that one replay of a graph is to take at least, so that the resolution of events (0.5 us) does not
/// matter.
const REPLAY_US: f64 = 2_000.0;

/// Bytes overwritten between two measurements of large work: more than the L2 cache of any card.
const FLUSH_BYTES: usize = 256 << 20;

/// How to measure, and where the results go.
#[derive(Debug, Args)]
pub(crate) struct MeasureArgs {
    /// Where the results are written as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Where a picture of the results is written, as SVG: of attention by sequence length, else as bars.
    #[arg(long)]
    chart: Option<PathBuf>,
    /// Runs before the first measurement [default: about 10 ms].
    #[arg(long)]
    warmup: Option<u32>,
    /// Measurements [default: about 60 ms].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    iterations: Option<u32>,
    /// The card: cuda, cuda:N or N.
    #[arg(long, default_value = "cuda", value_parser = device::card)]
    device: u32,
}

impl MeasureArgs {
    /// Refuses a place where no results can be written, before anything is measured.
    pub(crate) fn check_place(&self) -> anyhow::Result<()> {
        self.json.as_deref().map_or(Ok(()), output::check_place)?;
        self.chart.as_deref().map_or(Ok(()), |path| ChartFile::plan(path).map(drop))?;
        Ok(())
    }

    /// The card.
    pub(crate) fn gpu(&self) -> anyhow::Result<Gpu> {
        open_card(self.device)
    }

    /// Prints what card it is, and makes the timer.
    pub(crate) fn timer(&self, gpu: &Gpu) -> anyhow::Result<Timer> {
        writeln!(io::stdout(), "{}, {} multiprocessors, {} PTX", gpu.name(), gpu.multiprocessors(), gpu.arch())?;
        Ok(Timer::new(gpu, Repeats { warmup: self.warmup, iterations: self.iterations })?)
    }

    /// Prints the results as a table, and writes the file and the picture of results that are wanted, even where
    /// printing fails.
    pub(crate) fn report(
        &self,
        gpu: &Gpu,
        heading: &[&str],
        lines: &[Vec<String>],
        entries: Vec<Entry>,
    ) -> anyhow::Result<()> {
        let printed = write!(io::stdout(), "{}", table(heading, lines));
        if let Some(path) = &self.chart {
            ChartFile::plan(path)?.write(&Picture::of_run(&entries), gpu.name())?;
        }
        if let Some(path) = &self.json {
            Report { device: gpu.name().to_owned(), entries }.write(path)?;
        }
        Ok(printed?)
    }
}

/// The card of this number.
///
/// # Errors
/// [`BenchError::NoCard`] where there is none that runs kernels: nothing else is measured.
pub(crate) fn open_card(ordinal: u32) -> anyhow::Result<Gpu> {
    use ferrotile::Error::{NoDevice, NoDriver, UnsupportedDevice};
    Gpu::new(ordinal).map_err(|reason| match reason {
        NoDriver { .. } | NoDevice { .. } | UnsupportedDevice { .. } => BenchError::NoCard(reason).into(),
        reason => reason.into(),
    })
}

/// How often to run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Repeats {
    /// Runs before the first measurement.
    pub(crate) warmup: Option<u32>,
    /// Measurements.
    pub(crate) iterations: Option<u32>,
}

/// Times work on one card.
pub(crate) struct Timer {
    stream: Stream,
    start: Event,
    end: Event,
    flush: Buffer<u8>,
    repeats: Repeats,
}

impl Timer {
    /// A timer with its own stream.
    pub(crate) fn new(gpu: &Gpu, repeats: Repeats) -> Result<Timer> {
        Ok(Timer {
            stream: gpu.new_stream()?,
            start: gpu.new_event()?,
            end: gpu.new_event()?,
            flush: Buffer::zeroed(gpu, FLUSH_BYTES)?,
            repeats,
        })
    }

    /// The stream that the timed work runs on.
    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Microseconds of one run of `work`, which must be enqueued on the stream it is given; `small` chooses graph
    /// replay.
    pub(crate) fn microseconds(
        &mut self,
        small: bool,
        mut work: impl FnMut(StreamRef<'_>) -> Result<()>,
    ) -> Result<Summary> {
        work(self.stream.as_ref())?;
        self.stream.synchronize()?;
        let began = Instant::now();
        work(self.stream.as_ref())?;
        self.stream.synchronize()?;
        // An upper estimate: it includes the launch from the host.
        let estimate = began.elapsed().as_secs_f64() * 1e6;
        let measurements = if small { self.replays(estimate, work)? } else { self.launches(estimate, work)? };
        Ok(Summary::of(&measurements).expect("at least one measurement was made"))
    }

    fn replays(&self, estimate: f64, mut work: impl FnMut(StreamRef<'_>) -> Result<()>) -> Result<Vec<f64>> {
        let runs = (REPLAY_US / estimate).ceil().clamp(1.0, 1000.0) as u32;
        let graph = self.stream.capture(|stream| (0..runs).try_for_each(|_| work(stream)))?;
        // SAFETY: `work` borrows what it enqueues work on, and every replay is waited for before this function returns.
        let replay = |stream: StreamRef<'_>| unsafe { graph.launch(stream) };
        let replay_us = self.time(replay)?;
        let iterations = self.repeats.iterations.unwrap_or((TARGET_US / replay_us).clamp(10.0, 100.0) as u32);
        for _ in 0..self.repeats.warmup.unwrap_or(3) {
            self.time(replay)?;
        }
        (0..iterations.max(1)).map(|_| Ok(self.time(replay)? / f64::from(runs))).collect()
    }

    fn launches(&mut self, estimate: f64, mut work: impl FnMut(StreamRef<'_>) -> Result<()>) -> Result<Vec<f64>> {
        let iterations = self.repeats.iterations.unwrap_or((TARGET_US / estimate).clamp(5.0, 200.0) as u32);
        let warmup = self.repeats.warmup.unwrap_or((TARGET_US / 6.0 / estimate).clamp(1.0, 50.0) as u32);
        for _ in 0..warmup {
            work(self.stream.as_ref())?;
        }
        let mut measurements = Vec::new();
        for _ in 0..iterations.max(1) {
            self.flush.fill_bytes(self.stream.as_ref(), 0)?;
            measurements.push(self.time(&mut work)?);
        }
        Ok(measurements)
    }

    /// Microseconds between events around the work.
    fn time(&self, mut work: impl FnMut(StreamRef<'_>) -> Result<()>) -> Result<f64> {
        let stream = self.stream.as_ref();
        self.start.record(stream)?;
        work(stream)?;
        self.end.record(stream)?;
        self.end.synchronize()?;
        Ok(f64::from(Event::elapsed_ms(&self.start, &self.end)?) * 1e3)
    }
}
