//! The device that a command runs on.

use std::cell::OnceCell;
use std::str::FromStr;
use std::time::Instant;

use clap::Args;
use ferrotile::{Arch, Error, Gpu, embedded_kernels};

use crate::json::RunFacts;
use crate::progress;
use crate::spelling::in_any_case;

/// What `--device` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum DeviceChoice {
    /// The first card, or the CPU where there is none.
    #[default]
    Auto,
    /// The reference on the CPU.
    Cpu,
    /// The kernels of this architecture in the emulator.
    Emulator(Arch),
    /// The card of this number.
    Cuda(u32),
}

/// Where a command runs.
#[derive(Clone)]
pub(crate) enum Device {
    /// The reference on the CPU.
    Cpu,
    /// The kernels on a card or in the emulator.
    Gpu(Gpu),
}

/// Which kernel computes a result, where, and whether the result is checked.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The kernel to run, by name; `ferrotile info --kernels` lists them.
    #[arg(long, alias = "variant")]
    pub(crate) kernel: Option<String>,
    /// Also compute the result in f64 on the CPU from the files' own elements, print the largest error and what is NaN
    /// or infinite, and fail if it is more than the types and the rounding of the elements explain.
    #[arg(long)]
    pub(crate) check: bool,
    /// Where to run: auto (a card, or the CPU reference where there is none), cpu, cuda, cuda:N, emulator or
    /// emulator:ARCH.
    #[arg(long, default_value = "auto", value_parser = in_any_case::<DeviceChoice>)]
    pub(crate) device: DeviceChoice,
}

/// The text is not a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected auto, cpu, cuda, cuda:N, emulator or emulator:ARCH")]
pub(crate) struct ParseDeviceError;

/// A kernel named where there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("--kernel names a kernel of the GPU, but this runs on the CPU")]
pub(crate) struct KernelOnCpu;

/// A device without kernels where kernels are what is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this command runs kernels: give a card or the emulator as device")]
pub(crate) struct NoKernels;

impl FromStr for DeviceChoice {
    type Err = ParseDeviceError;

    fn from_str(text: &str) -> Result<DeviceChoice, ParseDeviceError> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            "emulator" => Ok(DeviceChoice::Emulator(emulated_arch())),
            _ => {
                let card = text.strip_prefix("cuda:").and_then(|ordinal| ordinal.parse().ok()).map(DeviceChoice::Cuda);
                let arch = || text.strip_prefix("emulator:").and_then(|arch| arch.parse().ok());
                card.or_else(|| arch().map(DeviceChoice::Emulator)).ok_or(ParseDeviceError)
            }
        }
    }
}

/// The architecture that the emulator has where none is named: the oldest one that is compiled.
pub(crate) fn emulated_arch() -> Arch {
    let is_compiled = |arch: &Arch| embedded_kernels("attention", *arch).next().is_some();
    Arch::ALL.into_iter().find(is_compiled).unwrap_or(Arch::Sm80)
}

/// The version of the driver's kernel module, such as 580.159.04; `None` where the system does not say.
pub(crate) fn kernel_driver() -> Option<String> {
    let text = std::fs::read_to_string("/sys/module/nvidia/version").ok()?;
    Some(text.trim().to_owned())
}

/// The number of the card that a benchmark runs on.
pub(crate) fn card(text: &str) -> Result<u32, &'static str> {
    match (text.parse(), in_any_case(text)) {
        (Ok(ordinal), _) | (_, Ok(DeviceChoice::Cuda(ordinal))) => Ok(ordinal),
        _ => Err("a benchmark runs on a card: expected cuda, cuda:N or N"),
    }
}

impl DeviceChoice {
    /// Opens the device.
    pub(crate) fn open(self) -> ferrotile::Result<Device> {
        match self {
            DeviceChoice::Cpu => Ok(Device::Cpu),
            DeviceChoice::Emulator(arch) => Ok(Device::Gpu(Gpu::emulated(arch))),
            DeviceChoice::Cuda(ordinal) => Ok(Device::Gpu(Gpu::new(ordinal)?)),
            DeviceChoice::Auto => match Gpu::new(0) {
                Ok(gpu) => Ok(Device::Gpu(gpu)),
                Err(Error::NoDriver { .. } | Error::NoDevice { .. }) => Ok(Device::Cpu),
                // Another card may be newer. Only now are all of them opened, which takes each its time and memory.
                Err(Error::UnsupportedDevice { .. }) => {
                    Ok(Gpu::all()?.into_iter().next().map_or(Device::Cpu, Device::Gpu))
                }
                Err(error) => Err(error),
            },
        }
    }

    /// Opens a device that runs kernels: the emulator where `auto` finds no card.
    pub(crate) fn open_for_kernels(self) -> anyhow::Result<Gpu> {
        match self.open()? {
            Device::Gpu(gpu) => Ok(gpu),
            Device::Cpu if self == DeviceChoice::Auto => {
                eprintln!("no CUDA device here: the CPU emulates one");
                Ok(Gpu::emulated(emulated_arch()))
            }
            Device::Cpu => Err(NoKernels.into()),
        }
    }

    /// Computes a request on the device, and says on stderr what was understood and who computes. A request that is
    /// refused says that alone.
    ///
    /// `on_gpu` calls its last argument with the name of the kernel before the kernel runs. `kernel` is the kernel
    /// that the request names. Returns the result, and who computed it.
    pub(crate) fn compute<R>(
        self,
        kernel: Option<&String>,
        say_understood: impl Fn(),
        on_gpu: impl FnOnce(&Gpu, &dyn Fn(&str)) -> ferrotile::Result<R>,
        on_cpu: impl FnOnce() -> R,
    ) -> anyhow::Result<(R, RunFacts)> {
        let began = Instant::now();
        match self.open()? {
            Device::Gpu(gpu) => {
                let (name, shown) = (OnceCell::new(), OnceCell::new());
                let started = |kernel: &str| {
                    say_understood();
                    eprintln!("{kernel} on {}", gpu.name());
                    name.get_or_init(|| kernel.to_owned());
                    shown.get_or_init(|| progress::spinner("computing"));
                };
                let result = on_gpu(&gpu, &started)?;
                let (device, seconds) = (gpu.name().to_owned(), began.elapsed().as_secs_f64());
                Ok((result, RunFacts { device, kernel: name.into_inner(), seconds }))
            }
            Device::Cpu if kernel.is_some() => Err(KernelOnCpu.into()),
            Device::Cpu => {
                say_understood();
                if self == DeviceChoice::Auto {
                    eprintln!("no CUDA device here: running the CPU reference");
                }
                let _shown = progress::spinner("computing on the CPU");
                let result = on_cpu();
                let (device, seconds) = ("CPU".to_owned(), began.elapsed().as_secs_f64());
                Ok((result, RunFacts { device, kernel: None, seconds }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_benchmark_takes_cards_alone() {
        for (text, ordinal) in [("0", 0), ("cuda", 0), ("CUDA:3", 3), ("2", 2)] {
            assert_eq!(card(text), Ok(ordinal));
        }
        for text in ["", "-1", "cpu", "auto", "emulator", "emulator:sm_90a"] {
            assert!(card(text).unwrap_err().contains("runs on a card"), "{text}");
        }
    }

    #[test]
    fn devices_are_understood_by_name() {
        let cases = [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("cuda:2", DeviceChoice::Cuda(2)),
            ("emulator", DeviceChoice::Emulator(Arch::Sm80)),
            ("emulator:sm_89", DeviceChoice::Emulator(Arch::Sm89)),
        ];
        for (text, choice) in cases {
            assert_eq!(text.parse(), Ok(choice));
        }
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda0", "emulator:", "emulator:sm_70"] {
            assert_eq!(text.parse::<DeviceChoice>(), Err(ParseDeviceError), "{text}");
        }
    }
}
