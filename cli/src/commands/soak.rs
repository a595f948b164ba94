//! `ferrotile soak`: random problems from everything that the library takes, each against the f64 reference, until one
//! is wrong or time is up.
//!
//! A problem is plain data and describes itself ([`Problem::text`]): seed and number determine what is drawn, the text
//! what is run. Each problem runs twice at once, on two streams, into outputs full of poison with guard bands around
//! them. Both results must be the same bits, and within the limits of the reference. The first failure is shrunk to the
//! simplest problem that still fails, and printed as the command that repeats it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use ferrotile::Gpu;
use indicatif::ProgressBar;

use crate::device::DeviceChoice;
use crate::progress;
use crate::soak::family::Bench;
use crate::soak::outcome::{Failure, Kind, Outcome, Run};
use crate::soak::problem::{FAMILIES, Problem, shrink};
use crate::table::table;

/// Looks for wrong results: random problems of every family, each compared with the f64 reference.
#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// How many problems [default: 1000, or as many as the minutes allow].
    #[arg(long)]
    problems: Option<u64>,
    /// How many minutes at most.
    #[arg(long, value_parser = minutes)]
    minutes: Option<f64>,
    /// What the problems are drawn from; the same seed and device give the same ones [default: the time].
    #[arg(long)]
    seed: Option<u64>,
    /// A family: attention, varlen, paged, merge, gemm, ata, cg, quantize or rotary; may be repeated [default: all].
    #[arg(long = "family", num_args = 1.., value_parser = FAMILIES.map(|family| family.0))]
    families: Vec<String>,
    /// Draws nothing from the ends of the types: no huge elements, scales and biases.
    #[arg(long)]
    tame: bool,
    /// How many failures end it; each is shrunk and printed.
    #[arg(long, default_value_t = 1)]
    failures: usize,
    /// Runs one problem, as a failure prints it, and no other.
    #[arg(long, value_name = "PROBLEM", conflicts_with_all = ["problems", "minutes", "seed", "families", "tame"])]
    repeat: Option<String>,
    /// Problems under way at once [default: one for each thread of the CPU].
    #[arg(long)]
    threads: Option<usize>,
    /// Where to run: auto (a card, or the emulator where there is none), cuda, cuda:N, emulator or emulator:ARCH.
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
}

/// Why a soak ends with an error: it found failures, or the request asks for what does not exist.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SoakError {
    /// Problems with wrong results.
    #[error("{0} of the problems failed")]
    Failed(usize),
    /// The text of `--repeat` is no problem.
    #[error("--repeat: not a problem: {0}")]
    Repeat(serde_json::Error),
}

impl SoakError {
    /// Whether the request is at fault.
    pub(crate) fn is_bad_request(&self) -> bool {
        !matches!(self, SoakError::Failed(_))
    }
}

fn minutes(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|minutes| *minutes > 0.0 && *minutes < 1e6).ok_or_else(|| "expected minutes".to_owned())
}

/// Problems where neither their number nor the minutes are given.
const PROBLEMS: u64 = 1000;

/// Runs that the search for a simpler problem may take, and for how long.
const SHRINK_RUNS: usize = 500;
const SHRINK_TIME: Duration = Duration::from_secs(90);

/// How long one problem may take, on a card and on the emulator, before the soak reports that it does not end.
const LONGEST_RUN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(600)];

/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(100);

/// Runs the command.
pub(crate) fn run(args: &SoakArgs) -> anyhow::Result<()> {
    let repeated =
        args.repeat.as_deref().map(serde_json::from_str::<Problem>).transpose().map_err(SoakError::Repeat)?;
    let gpu = args.device.open_for_kernels()?;
    writeln!(io::stdout(), "{}, {} PTX", gpu.name(), gpu.arch())?;
    let Some(problem) = repeated else { return soak(args, &gpu) };
    match problem.run(&Bench::new(&gpu)?) {
        Ok(Outcome::Right(share)) => writeln!(io::stdout(), "right, {share:.2} of the tolerance")?,
        Ok(Outcome::Refused(reason)) => writeln!(io::stdout(), "refused: {reason}")?,
        Err(failure) => {
            writeln!(io::stdout(), "wrong: {}", failure.message)?;
            return Err(SoakError::Failed(1).into());
        }
    }
    Ok(())
}

/// What became of the problems of one family.
#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    problems: u64,
    refused: u64,
    wrong: u64,
    seconds: f64,
}

/// What the threads of a soak share.
struct Soak<'a> {
    gpu: &'a Gpu,
    families: Vec<usize>,
    seed: u64,
    tame: bool,
    problems: u64,
    next: AtomicU64,
    stop: AtomicBool,
    tallies: Mutex<[Tally; FAMILIES.len()]>,
    failures: Mutex<Vec<String>>,
    most_failures: usize,
    /// What each thread runs, and since when.
    running: Vec<Mutex<Option<(Instant, Problem)>>>,
    progress: ProgressBar,
}

/// Locks; a panic elsewhere leaves these numbers complete.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn soak(args: &SoakArgs, gpu: &Gpu) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seed = args.seed.unwrap_or_else(|| now.map_or(0, |now| now.as_millis() as u64));
    let wanted =
        |index: &usize| args.families.is_empty() || args.families.iter().any(|name| *name == FAMILIES[*index].0);
    let problems = args.problems.unwrap_or(if args.minutes.is_some() { u64::MAX } else { PROBLEMS });
    let threads = args.threads.unwrap_or_else(rayon::current_num_threads).max(1);
    let soak = Soak {
        gpu,
        families: (0..FAMILIES.len()).filter(wanted).collect(),
        seed,
        tame: args.tame,
        problems,
        next: AtomicU64::new(0),
        stop: AtomicBool::new(false),
        tallies: Mutex::default(),
        failures: Mutex::default(),
        most_failures: args.failures.max(1),
        running: (0..threads).map(|_| Mutex::default()).collect(),
        progress: match usize::try_from(problems) {
            Ok(problems) if args.problems.is_some() || args.minutes.is_none() => progress::bar(problems),
            _ => progress::spinner("problems"),
        },
    };
    writeln!(io::stdout(), "seed {seed}")?;
    let (began, limit) = (Instant::now(), args.minutes.map(|minutes| Duration::from_secs_f64(60.0 * minutes)));
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = soak.running.iter().map(|slot| scope.spawn(|| soak.work(slot))).collect();
        while workers.iter().any(|worker| !worker.is_finished()) {
            if limit.is_some_and(|limit| began.elapsed() > limit) {
                soak.stop.store(true, Ordering::Relaxed);
            }
            soak.end_if_one_hangs();
            let begun = soak.next.load(Ordering::Relaxed).min(problems);
            match soak.progress.length() {
                Some(_) => soak.progress.set_position(begun),
                None => soak.progress.set_message(format!("{begun} problems")),
            }
            std::thread::sleep(TICK);
        }
        for worker in workers {
            worker.join().expect("a panic of a problem is a failure of it")?;
        }
        Ok(())
    })?;
    soak.progress.finish_and_clear();
    let tallies = *lock(&soak.tallies);
    let lines: Vec<Vec<String>> =
        soak.families.iter().map(|&family| line(FAMILIES[family].0, tallies[family])).collect();
    let heading = ["family", "problems", "refused", "wrong", "seconds"];
    write!(io::stdout(), "{}", table(&heading, &lines))?;
    let failures = lock(&soak.failures).len();
    let problems: u64 = tallies.iter().map(|tally| tally.problems).sum();
    writeln!(io::stdout(), "{problems} problems, {failures} wrong, {:.0} s", began.elapsed().as_secs_f64())?;
    if failures == 0 { Ok(()) } else { Err(SoakError::Failed(failures).into()) }
}

fn line(family: &str, tally: Tally) -> Vec<String> {
    let Tally { problems, refused, wrong, seconds } = tally;
    vec![family.to_owned(), problems.to_string(), refused.to_string(), wrong.to_string(), format!("{seconds:.1}")]
}

impl Soak<'_> {
    /// Runs problems until there are none left.
    fn work(&self, slot: &Mutex<Option<(Instant, Problem)>>) -> anyhow::Result<()> {
        let bench = Bench::new(self.gpu)?;
        while !self.stop.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= self.problems {
                break;
            }
            let problem = Problem::draw(self.gpu, &self.families, self.seed, index);
            let problem = if self.tame { problem.tamed() } else { problem };
            let run = |problem: &Problem| {
                *lock(slot) = Some((Instant::now(), problem.clone()));
                let run = problem.run(&bench);
                *lock(slot) = None;
                run
            };
            let began = Instant::now();
            let result = run(&problem);
            {
                let mut tallies = lock(&self.tallies);
                let tally = &mut tallies[problem.family()];
                tally.problems += 1;
                tally.seconds += began.elapsed().as_secs_f64();
                tally.refused += u64::from(matches!(result, Ok(Outcome::Refused(_))));
                tally.wrong += u64::from(result.is_err());
            }
            if let Err(failure) = result {
                self.fail(index, problem, failure, run)?;
            }
        }
        Ok(())
    }

    /// Shrinks and prints a failure, and ends the soak where it is the last one that is wanted.
    fn fail(
        &self,
        index: u64,
        problem: Problem,
        failure: Failure,
        mut run: impl FnMut(&Problem) -> Run,
    ) -> anyhow::Result<()> {
        {
            let mut failures = lock(&self.failures);
            if failures.len() >= self.most_failures {
                return Ok(());
            }
            failures.push(failure.message.clone());
            if failures.len() >= self.most_failures || self.is_lost(&failure) {
                self.stop.store(true, Ordering::Relaxed);
            }
        }
        let mut text = format!("problem {index} of seed {}: {}\n", self.seed, failure.message);
        if self.is_lost(&failure) {
            text += &format!("{}\n", problem.repeat(self.gpu));
            // The error may be another's.
            for (_, problem) in self.running.iter().filter_map(|slot| lock(slot).clone()) {
                text += &format!("or, which was under way:\n{}\n", problem.repeat(self.gpu));
            }
        } else {
            let began = Instant::now();
            let (smallest, why, runs) = shrink(problem, failure, SHRINK_RUNS, |problem| {
                if began.elapsed() > SHRINK_TIME { Ok(Outcome::Right(0.0)) } else { run(problem) }
            });
            text += &format!("after {runs} runs of simpler ones: {}\n{}\n", why.message, smallest.repeat(self.gpu));
        }
        self.progress.suspend(|| write!(io::stdout(), "{text}"))?;
        Ok(())
    }

    /// Whether nothing can run any more: after an error of a card's driver every later call fails.
    fn is_lost(&self, failure: &Failure) -> bool {
        failure.kind == Kind::Device && !self.gpu.is_emulated()
    }

    /// Ends the program where a problem does not end: nothing can call it back from a card.
    fn end_if_one_hangs(&self) {
        let limit = LONGEST_RUN[usize::from(self.gpu.is_emulated())];
        for slot in &self.running {
            if let Some((since, problem)) = &*lock(slot)
                && since.elapsed() > limit
            {
                // Nobody is left to be told that the terminal is gone.
                let _ = writeln!(io::stdout(), "no end after {} s:\n{}", limit.as_secs(), problem.repeat(self.gpu));
                std::process::exit(1);
            }
        }
    }
}
