//! Counters in device memory for launches whose blocks take their work one piece at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::backend::Backend;
use crate::error::Result;

/// Counters that launches take in turns: far more than the driver queues, so that the launch that had one has ended
/// long before it is taken again.
const IN_TURN: usize = 1 << 15;

/// Counters for captured launches, each of which keeps its own: a graph may be launched at any time.
const CAPTURED: usize = 1 << 15;

const COUNTER_BYTES: usize = size_of::<u32>();

/// The counters of a device. Each is 0 while no launch uses it: kernels leave it so.
///
/// A graph does not run beside itself, nor beside another one made of the same capture, as both write the same output.
/// So no two launches use one counter at the same time.
#[derive(Debug)]
pub(crate) struct LaunchCounters {
    first: u64,
    taken: AtomicUsize,
    captured: AtomicUsize,
}

impl LaunchCounters {
    /// Allocates them; they live as long as the device.
    pub(crate) fn new(device: &dyn Backend) -> Result<LaunchCounters> {
        let bytes = (IN_TURN + CAPTURED) * COUNTER_BYTES;
        let first = device.allocate(bytes)?;
        // SAFETY: the memory is as long, and nothing uses it yet.
        unsafe { device.clear_blocking(first, bytes)? };
        Ok(LaunchCounters { first, taken: AtomicUsize::new(0), captured: AtomicUsize::new(0) })
    }

    /// The address of the counter of one more launch; `None` where captured launches have taken all that they can.
    pub(crate) fn next(&self, captured: bool) -> Option<u64> {
        let index = if captured {
            let before = self.captured.fetch_add(1, Ordering::Relaxed);
            (before < CAPTURED).then_some(IN_TURN + before)?
        } else {
            self.taken.fetch_add(1, Ordering::Relaxed) % IN_TURN
        };
        Some(self.first + (index * COUNTER_BYTES) as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn captured_launches_keep_their_counters_and_the_others_take_turns() {
        let counters =
            LaunchCounters { first: 1 << 20, taken: AtomicUsize::default(), captured: AtomicUsize::default() };
        let captured: HashSet<_> = (0..CAPTURED).map(|_| counters.next(true)).collect();
        assert_eq!((captured.len(), captured.contains(&None)), (CAPTURED, false));
        assert_eq!((counters.next(true), counters.next(true)), (None, None));
        let in_turn: Vec<_> = (0..2 * IN_TURN).map(|_| counters.next(false)).collect();
        assert_eq!(in_turn[..IN_TURN], in_turn[IN_TURN..]);
        let distinct: HashSet<_> = in_turn.iter().copied().collect();
        assert!(distinct.len() == IN_TURN && distinct.is_disjoint(&captured) && !distinct.contains(&None));
    }
}
