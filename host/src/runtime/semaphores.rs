//! Semaphores in device memory for launches whose blocks count each other: where blocks take their work one piece at a
//! time, or where the last block of some adds up what all of them computed.
//!
//! A launch needs its semaphores at 0 and leaves them at 0. Launches can therefore share semaphores if none of them
//! counts before the one before has ended. The launches of one owner are in that order. An owner is:
//! - a stream, whichever plan or thread enqueues its launches, until the stream is dropped and its work is done. A
//!   kernel that starts before the end of the kernel before it counts only after its wait for that end;
//! - a captured launch, whose replays run one after the other, until no graph has it and its last replay has ended.
//!
//! Streams of other libraries do not say when they end. They keep their semaphores. A number that no other stream of
//! the process ever has tells them from later streams.
//!
//! An owner has runs of semaphores, each a power of two long, up to [`LONGEST_RUN`]. A stream whose launch needs a
//! longer run than it has gets one more.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, Handle, Kept};
use crate::error::Result;

/// Semaphores of a device, 2 MiB: what a driver takes for any smaller allocation too. Owners that come when all are
/// taken do without.
const SEMAPHORES: usize = 1 << 19;

/// The most semaphores of one launch.
const LONGEST_RUN: usize = 1 << (RUN_LENGTHS - 1);

/// The lengths of runs: powers of two.
const RUN_LENGTHS: usize = 11;

const SEMAPHORE_BYTES: usize = size_of::<u32>();

/// The semaphores of a device. Each is 0 while no launch uses it: kernels leave it so.
#[derive(Debug)]
pub(crate) struct Semaphores {
    first: u64,
    owners: Mutex<Owners>,
}

/// Semaphores that follow each other: `2^log2_len` from this number on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Run {
    first: usize,
    log2_len: usize,
}

/// Who has which run.
#[derive(Debug, Default)]
struct Owners {
    streams: HashMap<u64, Vec<Run>>,
    /// Those that have come back, by their length.
    free: [Vec<Run>; RUN_LENGTHS],
    /// The first semaphore that nobody has had yet.
    fresh: usize,
}

impl Owners {
    /// A run of at least `len`; `None` where there is none left.
    fn take(&mut self, len: usize) -> Option<Run> {
        if len > LONGEST_RUN {
            return None;
        }
        let log2_len = len.next_power_of_two().trailing_zeros() as usize;
        if let Some(run) = self.free[log2_len].pop() {
            return Some(run);
        }
        let run = Run { first: self.fresh, log2_len };
        let end = run.first + (1 << log2_len);
        if end > SEMAPHORES {
            return None;
        }
        self.fresh = end;
        Some(run)
    }
}

/// Runs whose owner is the work that holds them. They come back when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedRuns {
    semaphores: Arc<Semaphores>,
    runs: Vec<Run>,
}

impl Drop for OwnedRuns {
    fn drop(&mut self) {
        let mut owners = self.semaphores.owners();
        for &run in &self.runs {
            owners.free[run.log2_len].push(run);
        }
    }
}

impl Semaphores {
    /// Allocates them; they live as long as the device.
    pub(crate) fn new(device: &dyn Backend) -> Result<Semaphores> {
        let bytes = SEMAPHORES * SEMAPHORE_BYTES;
        let first = device.allocate(bytes)?;
        // SAFETY: the memory is as long, and nothing uses it yet.
        unsafe { device.clear_blocking(first, bytes)? };
        Ok(Semaphores { first, owners: Mutex::default() })
    }

    /// The address of the first of `len` semaphores of a launch that is enqueued on `stream` now; `None` where that
    /// many are not to be had.
    pub(crate) fn of_launch(self: &Arc<Self>, device: &dyn Backend, stream: Handle, len: usize) -> Result<Option<u64>> {
        let run = if device.is_capturing(stream)? {
            let Some(run) = self.owners().take(len) else { return Ok(None) };
            device.keep_in_capture(stream, Kept::new(self.owned(vec![run])))?;
            Some(run)
        } else {
            self.of_stream(device.stream_id(stream)?, len)
        };
        Ok(run.map(|run| self.first + (run.first * SEMAPHORE_BYTES) as u64))
    }

    /// Parts a stream from its semaphores, in which a launch that failed may have left any number. Nobody gets them
    /// again.
    pub(crate) fn abandon(&self, device: &dyn Backend, stream: Handle) {
        if let Ok(id) = device.stream_id(stream) {
            self.owners().streams.remove(&id);
        }
    }

    /// The semaphores of a stream that takes no more work, if it had some: free once the work is done.
    pub(crate) fn of_ended_stream(self: &Arc<Self>, id: u64) -> Option<OwnedRuns> {
        let runs = self.owners().streams.remove(&id)?;
        Some(self.owned(runs))
    }

    fn of_stream(&self, id: u64, len: usize) -> Option<Run> {
        let mut owners = self.owners();
        let found = owners.streams.get(&id).and_then(|runs| runs.iter().find(|run| 1 << run.log2_len >= len));
        if let Some(&run) = found {
            return Some(run);
        }
        let run = owners.take(len)?;
        owners.streams.entry(id).or_default().push(run);
        Some(run)
    }

    fn owned(self: &Arc<Self>, runs: Vec<Run>) -> OwnedRuns {
        OwnedRuns { semaphores: self.clone(), runs }
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn semaphores() -> Arc<Semaphores> {
        Arc::new(Semaphores { first: 1 << 20, owners: Mutex::default() })
    }

    #[test]
    fn a_stream_has_one_run_whatever_others_launch_meanwhile() {
        let semaphores = semaphores();
        let waiting = semaphores.of_stream(7, 1);
        let others: Vec<_> = (0..3 * SEMAPHORES as u64).map(|launch| semaphores.of_stream(8 + launch % 3, 1)).collect();
        let distinct: HashSet<_> = others.iter().copied().collect();
        assert!(distinct.len() == 3 && !distinct.contains(&waiting) && !distinct.contains(&None));
        assert_eq!((semaphores.of_stream(7, 1), others[SEMAPHORES]), (waiting, others[SEMAPHORES % 3]));
    }

    #[test]
    fn runs_are_as_long_as_launches_need_and_apart() {
        let semaphores = semaphores();
        let runs = [1, 2, 3, 100, 1024].map(|len| semaphores.of_stream(1, len).unwrap());
        for (index, run) in runs.iter().enumerate() {
            assert!((run.first + (1 << run.log2_len)..).contains(&runs.get(index + 1).map_or(SEMAPHORES, |r| r.first)));
            assert_eq!(run.log2_len, [0, 1, 2, 7, 10][index]);
        }
        // What a shorter one needs, any longer one has.
        assert_eq!((semaphores.of_stream(1, 64), semaphores.of_stream(1, 1)), (Some(runs[3]), Some(runs[0])));
        assert_ne!(semaphores.of_stream(2, 64), Some(runs[3]));
        assert_eq!(semaphores.of_stream(1, LONGEST_RUN + 1), None);
    }

    #[test]
    fn captured_launches_have_their_semaphores_until_they_are_gone() {
        let semaphores = semaphores();
        let take = || semaphores.owners().take(LONGEST_RUN).map(|run| semaphores.owned(vec![run]));
        let stream = semaphores.of_stream(1, LONGEST_RUN);
        let captured: Vec<_> = (1..SEMAPHORES / LONGEST_RUN).map(|_| take().unwrap()).collect();
        let distinct: HashSet<_> = captured.iter().map(|owned| Some(owned.runs[0])).collect();
        assert!(distinct.len() == SEMAPHORES / LONGEST_RUN - 1 && !distinct.contains(&stream));
        assert!(take().is_none() && semaphores.of_stream(2, 1).is_none());
        assert_eq!(semaphores.of_stream(1, 5), stream);
        drop(captured);
        let again: HashSet<_> =
            (2..=distinct.len() as u64 + 1).map(|id| semaphores.of_stream(id, LONGEST_RUN)).collect();
        assert_eq!(again, distinct);
    }

    #[test]
    fn a_stream_that_has_ended_gives_its_semaphores_back_when_its_work_is_done() {
        let semaphores = semaphores();
        let runs = [semaphores.of_stream(1, 1), semaphores.of_stream(1, 6)];
        let owned = semaphores.of_ended_stream(1).unwrap();
        assert!(semaphores.of_ended_stream(1).is_none(), "they are the work's now");
        assert_ne!(semaphores.of_stream(2, 6), runs[1], "while the work is under way");
        drop(owned);
        assert_eq!([semaphores.of_stream(3, 1), semaphores.of_stream(3, 5)], runs);
    }

    #[test]
    fn threads_agree_about_the_semaphores_of_a_stream() {
        let semaphores = semaphores();
        let found: HashSet<_> = std::thread::scope(|scope| {
            let threads =
                [(); 8].map(|()| scope.spawn(|| (0..1000).map(|id| semaphores.of_stream(id, 3)).collect::<Vec<_>>()));
            threads.map(|thread| thread.join().unwrap()).into_iter().collect()
        });
        assert_eq!(found.len(), 1);
    }
}
