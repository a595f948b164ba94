//! The state of an `mbarrier` object.

use crate::execute::Fault;
use crate::shadow::{SyncPoint, Threads};

/// The largest number of bytes that are missing, or arrived too early (PTX ISA, "tx-count").
const MAX_BYTES: i64 = (1 << 20) - 1;

/// One object. Its state is kept here and not in the bytes of its shared memory, which a program must not look at.
#[derive(Debug)]
pub(crate) struct Mbarrier {
    /// Arrivals that complete a phase.
    count: u32,
    /// Arrivals that the current phase still waits for.
    pub(crate) missing: u32,
    /// Bytes of copies that the current phase was told to wait for, and those that arrived.
    expected_bytes: i64,
    arrived_bytes: i64,
    /// The phases that are complete.
    pub(crate) phase: u64,
    /// The thread that initialised it, until a fence of its made the object visible to copies.
    pub(crate) hidden_by: Option<Threads>,
    /// What comes before the end of the current phase, and of the last complete one.
    pub(crate) arriving: SyncPoint,
    pub(crate) completed: SyncPoint,
}

impl Mbarrier {
    /// An object for `count` arrivals, hidden from copies by the thread that initialises it.
    pub(crate) fn new(count: u32, hidden_by: Threads, point: SyncPoint) -> Mbarrier {
        Mbarrier {
            count,
            missing: count,
            expected_bytes: 0,
            arrived_bytes: 0,
            phase: 0,
            hidden_by: Some(hidden_by),
            arriving: point.clone(),
            completed: point,
        }
    }

    fn settle(&mut self, empty: SyncPoint) {
        if self.missing == 0 && self.expected_bytes == self.arrived_bytes {
            self.phase += 1;
            self.missing = self.count;
            (self.expected_bytes, self.arrived_bytes) = (0, 0);
            self.completed = std::mem::replace(&mut self.arriving, empty);
        }
    }

    /// Counts bytes, as expected or as arrived. The phase may be complete after it.
    pub(crate) fn count_bytes(
        &mut self,
        expected: u32,
        arrived: u32,
        empty: SyncPoint,
    ) -> std::result::Result<(), String> {
        self.expected_bytes += i64::from(expected);
        self.arrived_bytes += i64::from(arrived);
        let (expected, arrived) = (self.expected_bytes, self.arrived_bytes);
        if (expected - arrived).abs() > MAX_BYTES {
            return Err(format!(
                "the mbarrier expects {expected} bytes in this phase and {arrived} arrived: it counts no difference above \
                 {MAX_BYTES}"
            ));
        }
        self.settle(empty);
        Ok(())
    }

    /// Whether a copy can find it.
    pub(crate) fn is_visible(&self) -> bool {
        self.hidden_by.is_none()
    }

    /// What it waits for, where it is at an address of its block.
    pub(crate) fn describe(&self, address: u32) -> String {
        let Mbarrier { count, missing, expected_bytes, arrived_bytes, phase, .. } = self;
        format!(
            "waits for the mbarrier at shared address {address:#x}, in phase {phase}: {} of {count} arrivals came, \
             {arrived_bytes} of {expected_bytes} expected bytes",
            count - missing
        )
    }
}

/// The error of an instruction at an address where no object is.
pub(crate) fn uninitialised(lane: usize, at: u32) -> Box<Fault> {
    Fault::lane(lane, format!("the mbarrier at shared address {at:#x} was not initialised"))
}
