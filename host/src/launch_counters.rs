//! Counters in device memory for launches whose blocks take their work one piece at a time.
//!
//! A launch needs its counter at 0 and leaves it so. Launches of which none starts to count before the one before has
//! ended can therefore have the same one, and those of one owner are in that order:
//! - a stream, whichever plan or thread enqueues its launches, until it is dropped and its work is done. Kernels that
//!   start before the end of the one before count behind their wait for it;
//! - a captured launch, whose replays run one after the other, until no graph has it and its last replay has ended.
//!
//! Streams of other libraries do not say when they end. They keep their counters, and are told from later ones by a
//! number that no other stream of the process ever has.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, Kept};
use crate::error::Result;
use crate::stream::StreamRef;

/// Owners that can have a counter at the same time; later ones do without.
const COUNTERS: usize = 1 << 15;

const COUNTER_BYTES: usize = size_of::<u32>();

/// The counters of a device. Each is 0 while no launch uses it: kernels leave it so.
#[derive(Debug)]
pub(crate) struct LaunchCounters {
    first: u64,
    owners: Mutex<Owners>,
}

/// Who has which counter, by its number.
#[derive(Debug, Default)]
struct Owners {
    streams: HashMap<u64, usize>,
    /// Those that have come back.
    free: Vec<usize>,
    /// The first of those that nobody has had yet.
    fresh: usize,
}

impl Owners {
    fn take(&mut self) -> Option<usize> {
        if let Some(number) = self.free.pop() {
            return Some(number);
        }
        let number = self.fresh;
        self.fresh += usize::from(number < COUNTERS);
        (number < COUNTERS).then_some(number)
    }
}

/// A counter whose owner is the work that holds it. It comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedCounter {
    counters: Arc<LaunchCounters>,
    number: usize,
}

impl Drop for OwnedCounter {
    fn drop(&mut self) {
        self.counters.owners().free.push(self.number);
    }
}

impl LaunchCounters {
    /// Allocates them; they live as long as the device.
    pub(crate) fn new(device: &dyn Backend) -> Result<LaunchCounters> {
        let bytes = COUNTERS * COUNTER_BYTES;
        let first = device.allocate(bytes)?;
        // SAFETY: the memory is as long, and nothing uses it yet.
        unsafe { device.clear_blocking(first, bytes)? };
        Ok(LaunchCounters { first, owners: Mutex::default() })
    }

    /// The address of the counter of a launch that is enqueued on `stream` now; 0 where all are taken.
    pub(crate) fn of_launch(self: &Arc<Self>, stream: StreamRef<'_>) -> Result<u64> {
        let number = if stream.is_capturing()? {
            let Some(counter) = self.take() else { return Ok(0) };
            let number = counter.number;
            stream.keep_in_capture(Kept::new(counter))?;
            Some(number)
        } else {
            self.of_stream(stream.id()?)
        };
        Ok(number.map_or(0, |number| self.first + (number * COUNTER_BYTES) as u64))
    }

    /// Parts a stream from its counter, in which a launch that failed may have left any number. Nobody gets it again.
    pub(crate) fn abandon(&self, stream: StreamRef<'_>) {
        if let Ok(id) = stream.id() {
            self.owners().streams.remove(&id);
        }
    }

    /// The counter of a stream that takes no more work, if it had one: free once the work is done.
    pub(crate) fn of_ended_stream(self: &Arc<Self>, id: u64) -> Option<OwnedCounter> {
        let number = self.owners().streams.remove(&id)?;
        Some(OwnedCounter { counters: self.clone(), number })
    }

    fn of_stream(&self, id: u64) -> Option<usize> {
        let mut owners = self.owners();
        if let Some(&number) = owners.streams.get(&id) {
            return Some(number);
        }
        let number = owners.take()?;
        owners.streams.insert(id, number);
        Some(number)
    }

    fn take(self: &Arc<Self>) -> Option<OwnedCounter> {
        let number = self.owners().take()?;
        Some(OwnedCounter { counters: self.clone(), number })
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn counters() -> Arc<LaunchCounters> {
        Arc::new(LaunchCounters { first: 1 << 20, owners: Mutex::default() })
    }

    #[test]
    fn a_stream_has_one_counter_whatever_others_launch_meanwhile() {
        let counters = counters();
        let waiting = counters.of_stream(7);
        let others: Vec<_> = (0..3 * COUNTERS as u64).map(|launch| counters.of_stream(8 + launch % 3)).collect();
        let distinct: HashSet<_> = others.iter().copied().collect();
        assert!(distinct.len() == 3 && !distinct.contains(&waiting) && !distinct.contains(&None));
        assert_eq!((counters.of_stream(7), others[COUNTERS]), (waiting, others[COUNTERS % 3]));
    }

    #[test]
    fn captured_launches_have_their_counters_until_they_are_gone() {
        let counters = counters();
        let stream = counters.of_stream(1);
        let captured: Vec<_> = (1..COUNTERS).map(|_| counters.take().unwrap()).collect();
        let distinct: HashSet<_> = captured.iter().map(|counter| Some(counter.number)).collect();
        assert!(distinct.len() == COUNTERS - 1 && !distinct.contains(&stream));
        assert!(counters.take().is_none() && counters.of_stream(2).is_none() && counters.of_stream(1) == stream);
        drop(captured);
        let again: HashSet<_> = (1..COUNTERS as u64).map(|id| counters.of_stream(1 + id)).collect();
        assert_eq!(again, distinct);
    }

    #[test]
    fn a_stream_that_has_ended_gives_its_counter_back_when_its_work_is_done() {
        let counters = counters();
        let number = counters.of_stream(1);
        let owned = counters.of_ended_stream(1).unwrap();
        assert!(counters.of_ended_stream(1).is_none(), "it is the work's now");
        assert_ne!(counters.of_stream(2), number, "while the work is under way");
        drop(owned);
        assert_eq!(counters.of_stream(3), number);
    }

    #[test]
    fn threads_agree_about_the_counter_of_a_stream() {
        let counters = counters();
        let found: HashSet<_> = std::thread::scope(|scope| {
            let threads =
                [(); 8].map(|()| scope.spawn(|| (0..1000).map(|id| counters.of_stream(id)).collect::<Vec<_>>()));
            threads.map(|thread| thread.join().unwrap()).into_iter().collect()
        });
        assert_eq!(found.len(), 1);
    }
}
