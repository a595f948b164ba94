//! The limits that a compiled kernel is held to.

use cuda_builder::Arch;
use cuda_builder::ptxas::EntryReport;
use variants::ata::ATA;
use variants::attention::{ATTENTION, COMBINE};
use variants::cg::CG;
use variants::gemm::{GEMM, PACK_8BIT, PACK_16BIT, REDUCE_SPLIT_K};
use variants::ladder::LADDER;
use variants::quantize::{self, QuantizeKernel};
use variants::rotary::{ROTARY, RotaryKernel};
use variants::study::{ATA_STUDY, ATTENTION_STUDY};

/// What a configuration grants its entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// The most registers of a thread.
    pub(crate) registers: u32,
    /// Threads of a block.
    pub(crate) threads: u32,
    /// Dynamic shared memory of a block.
    pub(crate) dynamic_shared_bytes: u32,
}

/// The budget of an entry; `None` where no configuration has its name, as for a probe.
pub(crate) fn budget(entry: &str) -> Option<Budget> {
    let attention = ATTENTION.iter().chain(ATTENTION_STUDY).find(|config| config.name == entry).map(|config| Budget {
        registers: config.max_registers(),
        threads: config.threads(),
        dynamic_shared_bytes: config.smem().total_bytes(),
    });
    let ata = ATA.iter().chain(ATA_STUDY).find(|config| config.name == entry).map(|config| Budget {
        registers: config.max_registers(),
        threads: config.threads(),
        dynamic_shared_bytes: config.smem().total_bytes(),
    });
    let ladder = LADDER.iter().find(|step| step.name == entry).map(|step| Budget {
        registers: step.max_registers(),
        threads: step.threads(),
        dynamic_shared_bytes: step.smem().total_bytes(),
    });
    let gemm = GEMM.iter().find(|config| config.name == entry).map(|config| Budget {
        registers: config.max_registers(),
        threads: config.threads(),
        dynamic_shared_bytes: config.smem().total_bytes(),
    });
    let sum = (entry == REDUCE_SPLIT_K.name).then(|| Budget {
        registers: REDUCE_SPLIT_K.max_registers(),
        threads: REDUCE_SPLIT_K.threads,
        dynamic_shared_bytes: 0,
    });
    let pack = [PACK_8BIT, PACK_16BIT].into_iter().find(|pack| pack.name == entry).map(|pack| Budget {
        registers: pack.max_registers(),
        threads: pack.threads,
        dynamic_shared_bytes: pack.smem().total_bytes(),
    });
    let cg = CG.iter().find(|config| config.name == entry).map(|config| Budget {
        registers: config.max_registers(),
        threads: config.threads(),
        dynamic_shared_bytes: config.smem().total_bytes(),
    });
    let combine = COMBINE.iter().find(|config| config.name == entry).map(|config| Budget {
        registers: config.max_registers(),
        threads: config.threads(),
        dynamic_shared_bytes: 0,
    });
    let quantize = quantize::KERNELS.into_iter().find(|kernel| kernel.name == entry).map(|kernel| Budget {
        registers: kernel.max_registers(),
        threads: QuantizeKernel::THREADS,
        dynamic_shared_bytes: QuantizeKernel::SHARED_BYTES,
    });
    let rotary = ROTARY.into_iter().find(|kernel| kernel.name == entry).map(|kernel| Budget {
        registers: kernel.max_registers(),
        threads: RotaryKernel::THREADS,
        dynamic_shared_bytes: 0,
    });
    attention.or(combine).or(ata).or(cg).or(gemm).or(sum).or(pack).or(ladder).or(quantize).or(rotary)
}

/// How many blocks of the entry fit on one multiprocessor. Registers are allotted to a warp in units of 256, within one
/// of four partitions. Each block takes 1 KiB of shared memory for the system (CUDA's occupancy calculator).
pub(crate) fn blocks_per_multiprocessor(arch: Arch, entry: &EntryReport, budget: Budget) -> u32 {
    let limits = arch.limits();
    let warps = budget.threads.div_ceil(32).max(1);
    let registers_per_warp = (entry.registers.max(1) * 32).next_multiple_of(256);
    let by_registers = 4 * (limits.registers / 4 / registers_per_warp) / warps;
    let shared_bytes = (entry.shared_bytes + budget.dynamic_shared_bytes + 1024).next_multiple_of(128);
    let by_shared = limits.shared_bytes / shared_bytes;
    let by_threads = limits.threads / (warps * 32);
    by_registers.min(by_shared).min(by_threads).min(limits.blocks)
}

/// The limits that the entry breaks, in words.
pub(crate) fn violations(entry: &EntryReport, budget: Option<Budget>) -> Vec<String> {
    let mut violations = Vec::new();
    let spills = entry.spill_store_bytes + entry.spill_load_bytes;
    if spills > 0 {
        violations.push(format!("{}: {spills} bytes of spills", entry.name));
    }
    if entry.stack_bytes > 0 {
        violations.push(format!("{}: {} bytes of stack", entry.name, entry.stack_bytes));
    }
    if let Some(budget) = budget.filter(|budget| entry.registers > budget.registers) {
        violations.push(format!(
            "{}: {} registers, its configuration allows {}",
            entry.name, entry.registers, budget.registers
        ));
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(registers: u32) -> EntryReport {
        EntryReport { name: "f".into(), registers, ..EntryReport::default() }
    }

    #[test]
    fn occupancy_is_that_of_the_scarcest_resource() {
        let budget = Budget { registers: 255, threads: 128, dynamic_shared_bytes: 0 };
        assert_eq!(blocks_per_multiprocessor(Arch::Sm80, &entry(128), budget), 4);
        assert_eq!(blocks_per_multiprocessor(Arch::Sm80, &entry(32), budget), 16);
        assert_eq!(blocks_per_multiprocessor(Arch::Sm89, &entry(32), budget), 12);
        let large = Budget { dynamic_shared_bytes: 80 << 10, ..budget };
        assert_eq!(blocks_per_multiprocessor(Arch::Sm80, &entry(32), large), 2);
        assert_eq!(blocks_per_multiprocessor(Arch::Sm89, &entry(32), large), 1);
    }

    #[test]
    fn each_limit_is_a_gate() {
        let budget = Budget { registers: 128, threads: 128, dynamic_shared_bytes: 0 };
        assert!(violations(&entry(128), Some(budget)).is_empty());
        assert!(violations(&entry(129), Some(budget))[0].contains("129 registers"));
        let bad = EntryReport { spill_load_bytes: 4, stack_bytes: 8, ..entry(8) };
        assert_eq!(violations(&bad, None).len(), 2);
    }
}
