//! What the library promises about memory, streams, graphs, kernels and contexts, on the device under test.

mod call;
mod contexts;
#[cfg(feature = "cudarc")]
mod cudarc;
#[cfg(feature = "cust")]
mod cust;
mod devices;
mod driver;
mod events;
mod graphs;
mod launches;
mod memory;
mod modules;
mod pinned;
mod plans;
mod raw;
mod sizes;
mod tensors;
mod words;

use std::fmt::Debug;
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use ferrotile::Gpu;
use libtest_mimic::{Failed, Trial};
use tests::{card_trial, device_trial, run_trials};

/// What a trial returns.
type Outcome = Result<(), Failed>;

/// The trials of one file.
type Tests = &'static [Test];

/// One trial.
struct Test {
    name: &'static str,
    body: fn(&Gpu) -> Outcome,
    /// Why it needs a card and its driver, if it does.
    card: Option<&'static str>,
    /// Whether no other trial runs meanwhile.
    alone: bool,
}

/// Held by every trial, and by one that runs alone as the only one.
static RUNNING: RwLock<()> = RwLock::new(());

/// Keeps trials that run alone waiting.
fn beside_others() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}

/// A trial of every device.
const fn test(name: &'static str, body: fn(&Gpu) -> Outcome) -> Test {
    Test { name, body, card: None, alone: false }
}

impl Test {
    /// The same trial for cards alone, for this reason.
    const fn on_a_card(self, reason: &'static str) -> Test {
        Test { card: Some(reason), ..self }
    }

    /// The same trial while no other one runs, which might capture a stream: nobody can wait for a card meanwhile.
    const fn alone(self) -> Test {
        Test { alone: true, ..self }
    }

    fn run(&self, gpu: &Gpu) -> Outcome {
        if self.alone {
            let _running = RUNNING.write().unwrap_or_else(PoisonError::into_inner);
            (self.body)(gpu)
        } else {
            let _running = beside_others();
            (self.body)(gpu)
        }
    }
}

fn main() -> ExitCode {
    let files: &[(&str, Tests)] = &[
        ("memory", memory::TESTS),
        ("pinned", pinned::TESTS),
        ("tensors", tensors::TESTS),
        ("raw", raw::TESTS),
        ("sizes", sizes::TESTS),
        ("events", events::TESTS),
        ("graphs", graphs::TESTS),
        ("modules", modules::TESTS),
        ("launches", launches::TESTS),
        ("contexts", contexts::TESTS),
        #[cfg(feature = "cudarc")]
        ("cudarc", cudarc::TESTS),
        #[cfg(feature = "cust")]
        ("cust", cust::TESTS),
    ];
    let mut trials: Vec<Trial> = Vec::new();
    for (file, tests) in files {
        trials.extend(tests.iter().map(|test| {
            let name = format!("{file}/{}", test.name);
            let body = move |gpu: &Gpu| test.run(gpu);
            test.card.map_or_else(|| device_trial(name.clone(), body), |reason| card_trial(name.clone(), reason, body))
        }));
    }
    trials.extend(devices::trials());
    run_trials(trials)
}

/// Checks that two values are the same.
fn expect_equal<A, B>(what: &str, got: &A, expected: &B) -> Outcome
where
    A: PartialEq<B> + Debug + ?Sized,
    B: Debug + ?Sized,
{
    if got == expected { Ok(()) } else { Err(format!("{what}: got {got:?}, expected {expected:?}").into()) }
}
