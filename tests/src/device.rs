//! The device under test.
//!
//! `FERROTILE_DEVICE` names it: `auto` (the default: the first card, or the emulator where there is none), `cuda`,
//! `cuda:N`, `emulator` (of sm_80) or `emulator:ARCH`. A card that is asked for by name and is not there fails every
//! trial that needs a device, so that nothing passes without having run.

use std::process::ExitCode;
use std::sync::OnceLock;

use ferrotile::{Arch, Gpu};
use libtest_mimic::{Arguments, Failed, Trial};

use crate::record;

/// The environment variable that names the device.
pub const VARIABLE: &str = "FERROTILE_DEVICE";

/// The device under test, or why there is none.
#[derive(Clone)]
pub enum Device {
    /// Trials run here.
    Gpu(Gpu),
    /// The device asked for cannot be used: trials fail for this reason.
    Unusable(String),
}

/// What `FERROTILE_DEVICE` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    Emulator(Arch),
    Cuda(u32),
}

impl Choice {
    fn parse(text: &str) -> Result<Choice, String> {
        match text {
            "auto" | "" => Ok(Choice::Auto),
            "emulator" => Ok(Choice::Emulator(Arch::Sm80)),
            "cuda" => Ok(Choice::Cuda(0)),
            _ => {
                let card = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()).map(Choice::Cuda);
                let arch = || text.strip_prefix("emulator:").and_then(|arch| arch.parse().ok()).map(Choice::Emulator);
                card.or_else(arch).ok_or_else(|| {
                    format!("{VARIABLE} is '{text}', expected auto, emulator, emulator:ARCH, cuda or cuda:N")
                })
            }
        }
    }

    fn open(self) -> Device {
        match self {
            Choice::Auto => match Gpu::all() {
                Ok(gpus) => Device::Gpu(gpus.into_iter().next().unwrap_or_else(|| Gpu::emulated(Arch::Sm80))),
                Err(error) => Device::Unusable(format!("{VARIABLE}=auto: {error}")),
            },
            Choice::Emulator(arch) => Device::Gpu(Gpu::emulated(arch)),
            Choice::Cuda(ordinal) => match Gpu::new(ordinal) {
                Ok(gpu) => Device::Gpu(gpu),
                Err(error) => Device::Unusable(format!("{VARIABLE}=cuda:{ordinal}: {error}")),
            },
        }
    }
}

/// The device under test, opened on first use.
pub fn device() -> &'static Device {
    static DEVICE: OnceLock<Device> = OnceLock::new();
    DEVICE.get_or_init(|| {
        let text = std::env::var(VARIABLE).unwrap_or_default();
        Choice::parse(&text).map_or_else(Device::Unusable, Choice::open)
    })
}

/// The variable that asks for small sizes on a card by `small`, for tools under which kernels take long.
pub const SIZES: &str = "FERROTILE_SIZES";

/// Whether trials take their small sizes: on the emulator, where [`SIZES`] asks for them, and wherever outputs are
/// recorded or compared. Outputs of two devices compare only if their trials are the same.
pub fn is_small(gpu: &Gpu) -> bool {
    gpu.is_emulated() || record::is_on() || std::env::var_os(SIZES).is_some_and(|sizes| sizes == "small")
}

/// The variable that asks for all trials on the emulator by `all`.
pub const TRIALS: &str = "FERROTILE_TRIALS";

/// Whether trials that nearly repeat another one run too: on a card, where [`TRIALS`] asks for them, where the
/// arguments of the process name some, and wherever outputs are recorded or compared.
pub fn runs_all() -> bool {
    static ALL: OnceLock<bool> = OnceLock::new();
    *ALL.get_or_init(|| {
        let is_emulated = matches!(device(), Device::Gpu(gpu) if gpu.is_emulated());
        let is_asked = std::env::var_os(TRIALS).is_some_and(|trials| trials == "all");
        !is_emulated || is_asked || record::is_on() || Arguments::from_args().filter.is_some()
    })
}

/// A trial that needs the device under test.
pub fn device_trial(name: impl Into<String>, body: impl FnOnce(&Gpu) -> Result<(), Failed> + Send + 'static) -> Trial {
    let name = name.into();
    match device() {
        Device::Gpu(gpu) => {
            let trial = name.clone();
            Trial::test(name, move || record::during(&trial, || body(gpu)))
        }
        Device::Unusable(reason) => Trial::test(name, move || Err(reason.into())),
    }
}

/// A trial of what only a card with its driver does: on the emulator it is listed as ignored, with the reason.
pub fn card_trial(
    name: impl Into<String>,
    reason: &str,
    body: impl FnOnce(&Gpu) -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let trial = device_trial(name, body);
    match device() {
        Device::Gpu(gpu) if gpu.is_emulated() => trial.with_kind(reason).with_ignored_flag(true),
        _ => trial,
    }
}

/// Runs the trials as the arguments of the process say, after one line that names the device.
pub fn run_trials(trials: Vec<Trial>) -> ExitCode {
    let arguments = Arguments::from_args();
    if !arguments.list {
        match device() {
            Device::Gpu(gpu) => {
                let (major, minor) = gpu.compute_capability();
                eprintln!("device under test: {} (capability {major}.{minor}, {} PTX)", gpu.name(), gpu.arch());
            }
            Device::Unusable(reason) => eprintln!("device trials fail: {reason}"),
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(found) = record::summary() {
        eprintln!("{found}");
    }
    conclusion.exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_device_is_understood() {
        let cases = [
            ("", Choice::Auto),
            ("auto", Choice::Auto),
            ("emulator", Choice::Emulator(Arch::Sm80)),
            ("emulator:sm_90a", Choice::Emulator(Arch::Sm90a)),
            ("cuda", Choice::Cuda(0)),
            ("cuda:3", Choice::Cuda(3)),
        ];
        for (text, choice) in cases {
            assert_eq!(Choice::parse(text), Ok(choice), "{text}");
        }
        for text in ["gpu", "cuda:", "emulator:", "emulator:sm_90", "cuda:-1", "cuda:x", "CUDA", "auto "] {
            assert!(Choice::parse(text).unwrap_err().contains(text), "{text}");
        }
    }

    #[test]
    fn a_device_that_is_asked_for_and_absent_is_unusable() {
        assert!(matches!(Choice::Cuda(4096).open(), Device::Unusable(_)));
    }

    #[test]
    fn an_emulated_device_is_always_there() {
        for arch in Arch::ALL {
            assert!(matches!(Choice::Emulator(arch).open(), Device::Gpu(gpu) if gpu.arch() == arch));
        }
    }
}
