//! The numbers that matter of a kernel, and what each means.

use serde::Serialize;

use super::ncu::Launch;

/// The numbers of one kernel; `None` where the profiler has none for this card.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Numbers {
    /// Microseconds.
    duration_us: Option<f64>,
    /// Per cent of the cycles in which tensor cores worked.
    tensor_percent: Option<f64>,
    /// 10^9 bytes a second from and to device memory, and per cent of what it can.
    dram_gb_per_s: Option<f64>,
    dram_percent: Option<f64>,
    /// Per cent of what the L2 cache can pass on.
    l2_percent: Option<f64>,
    /// Per cent of the sectors asked of L2 that it had.
    l2_hit_percent: Option<f64>,
    /// Cycles that accesses to shared memory took longer because lanes met in a bank.
    bank_conflicts: Option<f64>,
    /// Warps at work, per cent of the most that a multiprocessor can hold.
    occupancy_percent: Option<f64>,
    /// Registers of a thread.
    registers: Option<f64>,
    /// Per cent of the cycles in which a scheduler issued an instruction.
    issue_percent: Option<f64>,
    /// What warps waited for, the most frequent first.
    stalls: Vec<Stall>,
}

/// Waiting for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Stall {
    reason: &'static str,
    /// Warps that wait, on average, in a cycle in which an instruction is issued.
    warps: f64,
}

/// The metrics. Where there are several, the first that a card has counts.
const DURATION: &[&str] = &["gpu__time_duration.sum"];
const TENSOR: &[&str] = &[
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
];
const DRAM_RATE: &[&str] = &["dram__bytes.sum.per_second"];
const DRAM: &[&str] =
    &["dram__throughput.avg.pct_of_peak_sustained_elapsed", "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"];
const L2: &[&str] = &["lts__throughput.avg.pct_of_peak_sustained_elapsed"];
const L2_HIT: &[&str] = &["lts__t_sector_hit_rate.pct"];
const BANK_CONFLICTS: &[&str] =
    &["l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "smsp__inst_executed_shared_bank_conflicts.sum"];
const OCCUPANCY: &[&str] = &["sm__warps_active.avg.pct_of_peak_sustained_active"];
const REGISTERS: &[&str] = &["launch__registers_per_thread"];
const ISSUE: &[&str] =
    &["sm__inst_issued.avg.pct_of_peak_sustained_active", "smsp__issue_active.avg.pct_of_peak_sustained_active"];

/// What a warp waits for, as the profiler spells it, and in words.
const STALLS: [(&str, &str); 18] = [
    ("long_scoreboard", "global, local or texture memory"),
    ("short_scoreboard", "shared memory or a special function"),
    ("gmma", "wgmma"),
    ("math_pipe_throttle", "a busy arithmetic unit"),
    ("mio_throttle", "a full queue to shared memory and special functions"),
    ("lg_throttle", "a full queue to global memory"),
    ("tex_throttle", "a full queue to textures"),
    ("barrier", "a block barrier"),
    ("membar", "a memory fence"),
    ("wait", "the fixed latency of an instruction"),
    ("not_selected", "its turn: another warp issued"),
    ("dispatch_stall", "the dispatcher"),
    ("branch_resolving", "a branch"),
    ("no_instruction", "the next instruction"),
    ("imc_miss", "a constant"),
    ("sleeping", "its own sleep"),
    ("drain", "stores at its end"),
    ("misc", "other things"),
];

/// Reasons that are shown.
const SHOWN_STALLS: usize = 4;

fn stall_metric(reason: &str) -> String {
    format!("smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio")
}

impl Numbers {
    /// What the profiler is asked for.
    pub(crate) fn metrics() -> Vec<String> {
        let numbers =
            [DURATION, TENSOR, DRAM_RATE, DRAM, L2, L2_HIT, BANK_CONFLICTS, OCCUPANCY, REGISTERS, ISSUE].concat();
        let stalls = STALLS.iter().map(|(reason, _)| stall_metric(reason));
        numbers.into_iter().map(str::to_owned).chain(stalls).collect()
    }

    /// The numbers of a launch.
    pub(crate) fn of(launch: &Launch) -> Numbers {
        let first = |metrics: &[&str]| metrics.iter().find_map(|metric| launch.value(metric));
        let plain = |metrics: &[&str]| first(metrics).map(|(value, _)| value);
        let mut stalls: Vec<Stall> = STALLS
            .iter()
            .filter_map(|&(reason, _)| Some(Stall { reason, warps: launch.value(&stall_metric(reason))?.0 }))
            .filter(|stall| stall.warps > 0.0)
            .collect();
        stalls.sort_by(|one, other| other.warps.total_cmp(&one.warps));
        Numbers {
            duration_us: first(DURATION).and_then(|(value, unit)| Some(value * seconds(unit)? * 1e6)),
            tensor_percent: plain(TENSOR),
            dram_gb_per_s: first(DRAM_RATE).and_then(|(value, unit)| Some(value * bytes(unit)? / 1e9)),
            dram_percent: plain(DRAM),
            l2_percent: plain(L2),
            l2_hit_percent: plain(L2_HIT),
            bank_conflicts: plain(BANK_CONFLICTS),
            occupancy_percent: plain(OCCUPANCY),
            registers: plain(REGISTERS),
            issue_percent: plain(ISSUE),
            stalls,
        }
    }

    /// Name, value and meaning of each.
    pub(crate) fn lines(&self) -> Vec<[String; 3]> {
        let with = |value: Option<f64>, unit: &str, digits: usize| match value {
            Some(value) if unit.is_empty() => format!("{value:.digits$}"),
            Some(value) => format!("{value:.digits$} {unit}"),
            None => "n/a".to_owned(),
        };
        let dram = match (self.dram_gb_per_s, self.dram_percent) {
            (None, percent) => with(percent, "%", 1),
            (rate, None) => with(rate, "GB/s", 0),
            (rate, percent) => format!("{}, {}", with(rate, "GB/s", 0), with(percent, "%", 1)),
        };
        let numbers = [
            ("duration", with(self.duration_us, "us", 2), "the kernel alone, at the clock that ncu sets"),
            (
                "tensor pipe",
                with(self.tensor_percent, "%", 1),
                "cycles in which tensor cores worked: near 100 is the limit",
            ),
            ("DRAM", dram, "device memory, and the share of what it can: near 100 is the limit"),
            ("L2", with(self.l2_percent, "%", 1), "the share of what the L2 cache can pass on"),
            ("L2 hits", with(self.l2_hit_percent, "%", 1), "sectors that L2 had; the rest came from DRAM"),
            ("bank conflicts", with(self.bank_conflicts, "", 0), "cycles that shared memory took longer: 0 is best"),
            ("occupancy", with(self.occupancy_percent, "%", 1), "warps at work, of the most that fit a multiprocessor"),
            ("registers", with(self.registers, "", 0), "of a thread: more of them, fewer warps"),
            ("issue slots", with(self.issue_percent, "%", 1), "cycles in which a scheduler issued an instruction"),
        ];
        let mut lines: Vec<_> =
            numbers.map(|(name, value, meaning)| [name.to_owned(), value, meaning.to_owned()]).into();
        for Stall { reason, warps } in self.stalls.iter().take(SHOWN_STALLS) {
            let words = STALLS.iter().find(|(known, _)| known == reason).map_or("", |(_, words)| words);
            let meaning = format!("warps that wait for {words} ({reason}) while an instruction is issued");
            lines.push(["stalled".to_owned(), format!("{warps:.2}"), meaning]);
        }
        if self.stalls.is_empty() {
            lines.push(["stalled", "n/a", "warps that wait, by reason"].map(str::to_owned));
        }
        lines
    }
}

/// How many seconds a unit of time is.
fn seconds(unit: &str) -> Option<f64> {
    match unit {
        "s" | "second" => Some(1.0),
        "ms" | "msecond" => Some(1e-3),
        "us" | "usecond" => Some(1e-6),
        "ns" | "nsecond" => Some(1e-9),
        _ => None,
    }
}

/// How many bytes a second a unit of a rate is.
fn bytes(unit: &str) -> Option<f64> {
    let (amount, time) = unit.split_once('/')?;
    let amount = match amount {
        "byte" => 1.0,
        "Kbyte" => 1e3,
        "Mbyte" => 1e6,
        "Gbyte" => 1e9,
        "Tbyte" => 1e12,
        _ => return None,
    };
    Some(amount / seconds(time)?)
}

#[cfg(test)]
mod tests {
    use super::super::ncu;
    use super::*;

    #[test]
    fn numbers_are_those_of_the_launch() {
        let launches = ncu::launches(include_str!("sample.csv"));
        let numbers = Numbers::of(&launches[1]);
        assert_eq!((numbers.duration_us, numbers.registers), (Some(441.312), Some(168.0)));
        assert_eq!((numbers.dram_gb_per_s, numbers.tensor_percent), (Some(304.25), Some(71.32)));
        let reasons: Vec<_> = numbers.stalls.iter().map(|stall| stall.reason).collect();
        assert_eq!(reasons[..3], ["long_scoreboard", "gmma", "barrier"]);
        let lines = numbers.lines();
        assert_eq!(lines[5][..2], ["bank conflicts", "n/a"]);
        assert_eq!(lines[2][1], "304 GB/s, 7.1 %");
        assert!(
            lines.len() >= 10
                && lines
                    .iter()
                    .all(|[name, value, meaning]| { !name.is_empty() && !value.is_empty() && !meaning.is_empty() })
        );
    }

    #[test]
    fn what_is_missing_is_said_so() {
        let launch = Launch { kernel: String::new(), grid: String::new(), block: String::new(), values: Vec::new() };
        assert!(Numbers::of(&launch).lines().iter().all(|[_, value, _]| value == "n/a"));
    }

    #[test]
    fn units_are_converted() {
        assert_eq!((seconds("usecond"), seconds("ns"), seconds("cycle")), (Some(1e-6), Some(1e-9), None));
        assert_eq!((bytes("Gbyte/second"), bytes("Kbyte/s"), bytes("byte")), (Some(1e9), Some(1e3), None));
    }
}
