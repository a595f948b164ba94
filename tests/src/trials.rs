//! Lists of trials on the device under test.

use std::fmt::Display;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};

use ferrotile::{Gpu, Precision};
use libtest_mimic::{Failed, Trial};

use crate::device::{device_trial, run_trials, runs_all};

/// The trials so far.
#[derive(Default)]
pub struct Trials {
    list: Vec<Trial>,
    /// How many pairs of f16 and bf16 are in the list.
    pairs: usize,
}

/// Trials that run beside each other read it; one that runs alone writes.
static ALONE: RwLock<()> = RwLock::new(());

impl Trials {
    /// Adds a trial.
    pub fn add(&mut self, name: impl Into<String>, body: impl FnOnce(&Gpu) -> Result<(), Failed> + Send + 'static) {
        self.list.push(device_trial(name, |gpu| {
            let _beside = ALONE.read().unwrap_or_else(PoisonError::into_inner);
            body(gpu)
        }));
    }

    /// Adds a trial beside which no other runs: for one that keeps a part of the card, for which the driver makes
    /// others wait.
    pub fn add_alone(
        &mut self,
        name: impl Into<String>,
        body: impl FnOnce(&Gpu) -> Result<(), Failed> + Send + 'static,
    ) {
        self.list.push(device_trial(name, |gpu| {
            let _alone = ALONE.write().unwrap_or_else(PoisonError::into_inner);
            body(gpu)
        }));
    }

    /// Adds a trial of a case, for the types named.
    pub fn typed<C: Clone + Send + 'static>(
        &mut self,
        name: &str,
        types: impl Display,
        case: &C,
        body: fn(&Gpu, &C) -> Result<(), Failed>,
    ) {
        let case = case.clone();
        self.add(format!("{name}/{types}"), move |gpu| body(gpu, &case));
    }

    /// Adds a trial of a case for f16 and one for bf16. Kernels of the two differ in the type alone, so where time is
    /// short ([`runs_all`]) the types take turns from case to case, and the other trial is listed as ignored.
    pub fn both<C: Clone + Send + 'static>(
        &mut self,
        name: &str,
        case: &C,
        f16: fn(&Gpu, &C) -> Result<(), Failed>,
        bf16: fn(&Gpu, &C) -> Result<(), Failed>,
    ) {
        self.typed(name, "f16", case, f16);
        self.typed(name, "bf16", case, bf16);
        self.pairs += 1;
        if !runs_all()
            && let [.., of_f16, of_bf16] = &mut self.list[..]
        {
            let (ignored, runs) = if self.pairs.is_multiple_of(2) { (of_f16, "bf16") } else { (of_bf16, "f16") };
            // A trial is changed by value.
            let trial = std::mem::replace(ignored, Trial::test("", || Ok(())));
            *ignored = trial.with_kind(format!("{runs} runs")).with_ignored_flag(true);
        }
    }

    /// Adds a trial for each precision.
    pub fn each(&mut self, name: &str, body: fn(&Gpu, Precision) -> Result<(), Failed>) {
        for precision in Precision::ALL {
            self.add(format!("{name}/{precision}"), move |gpu| body(gpu, precision));
        }
    }

    /// Runs them as the arguments of the process say.
    pub fn run(self) -> ExitCode {
        run_trials(self.list)
    }
}
