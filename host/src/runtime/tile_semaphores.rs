//! Semaphores in device memory for launches whose blocks take their work one piece at a time.
//!
//! A launch needs its semaphore at 0 and leaves it at 0. Launches can therefore share a semaphore if none of them takes
//! tiles before the one before has ended. The launches of one owner are in that order. An owner is:
//! - a stream, whichever plan or thread enqueues its launches, until the stream is dropped and its work is done. A
//!   kernel that starts before the end of the kernel before it takes tiles only after its wait for that end;
//! - a captured launch, whose replays run one after the other, until no graph has it and its last replay has ended.
//!
//! Streams of other libraries do not say when they end. They keep their semaphores. A number that no other stream of
//! the process ever has tells them from later streams.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{Backend, Handle, Kept};
use crate::error::Result;

/// Owners that can have a semaphore at the same time; later ones do without.
const SEMAPHORES: usize = 1 << 15;

const SEMAPHORE_BYTES: usize = size_of::<u32>();

/// The semaphores of a device. Each is 0 while no launch uses it: kernels leave it so.
#[derive(Debug)]
pub(crate) struct TileSemaphores {
    first: u64,
    owners: Mutex<Owners>,
}

/// Who has which semaphore, by its number.
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
        self.fresh += usize::from(number < SEMAPHORES);
        (number < SEMAPHORES).then_some(number)
    }
}

/// A semaphore whose owner is the work that holds it. It comes back when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnedSemaphore {
    semaphores: Arc<TileSemaphores>,
    number: usize,
}

impl Drop for OwnedSemaphore {
    fn drop(&mut self) {
        self.semaphores.owners().free.push(self.number);
    }
}

impl TileSemaphores {
    /// Allocates them; they live as long as the device.
    pub(crate) fn new(device: &dyn Backend) -> Result<TileSemaphores> {
        let bytes = SEMAPHORES * SEMAPHORE_BYTES;
        let first = device.allocate(bytes)?;
        // SAFETY: the memory is as long, and nothing uses it yet.
        unsafe { device.clear_blocking(first, bytes)? };
        Ok(TileSemaphores { first, owners: Mutex::default() })
    }

    /// The address of the semaphore of a launch that is enqueued on `stream` now; 0 where all are taken.
    pub(crate) fn of_launch(self: &Arc<Self>, device: &dyn Backend, stream: Handle) -> Result<u64> {
        let number = if device.is_capturing(stream)? {
            let Some(semaphore) = self.take() else { return Ok(0) };
            let number = semaphore.number;
            device.keep_in_capture(stream, Kept::new(semaphore))?;
            Some(number)
        } else {
            self.of_stream(device.stream_id(stream)?)
        };
        Ok(number.map_or(0, |number| self.first + (number * SEMAPHORE_BYTES) as u64))
    }

    /// Parts a stream from its semaphore, in which a launch that failed may have left any number. Nobody gets it again.
    pub(crate) fn abandon(&self, device: &dyn Backend, stream: Handle) {
        if let Ok(id) = device.stream_id(stream) {
            self.owners().streams.remove(&id);
        }
    }

    /// The semaphore of a stream that takes no more work, if it had one: free once the work is done.
    pub(crate) fn of_ended_stream(self: &Arc<Self>, id: u64) -> Option<OwnedSemaphore> {
        let number = self.owners().streams.remove(&id)?;
        Some(OwnedSemaphore { semaphores: self.clone(), number })
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

    fn take(self: &Arc<Self>) -> Option<OwnedSemaphore> {
        let number = self.owners().take()?;
        Some(OwnedSemaphore { semaphores: self.clone(), number })
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn semaphores() -> Arc<TileSemaphores> {
        Arc::new(TileSemaphores { first: 1 << 20, owners: Mutex::default() })
    }

    #[test]
    fn a_stream_has_one_counter_whatever_others_launch_meanwhile() {
        let semaphores = semaphores();
        let waiting = semaphores.of_stream(7);
        let others: Vec<_> = (0..3 * SEMAPHORES as u64).map(|launch| semaphores.of_stream(8 + launch % 3)).collect();
        let distinct: HashSet<_> = others.iter().copied().collect();
        assert!(distinct.len() == 3 && !distinct.contains(&waiting) && !distinct.contains(&None));
        assert_eq!((semaphores.of_stream(7), others[SEMAPHORES]), (waiting, others[SEMAPHORES % 3]));
    }

    #[test]
    fn captured_launches_have_their_counters_until_they_are_gone() {
        let semaphores = semaphores();
        let stream = semaphores.of_stream(1);
        let captured: Vec<_> = (1..SEMAPHORES).map(|_| semaphores.take().unwrap()).collect();
        let distinct: HashSet<_> = captured.iter().map(|semaphore| Some(semaphore.number)).collect();
        assert!(distinct.len() == SEMAPHORES - 1 && !distinct.contains(&stream));
        assert!(semaphores.take().is_none() && semaphores.of_stream(2).is_none() && semaphores.of_stream(1) == stream);
        drop(captured);
        let again: HashSet<_> = (1..SEMAPHORES as u64).map(|id| semaphores.of_stream(1 + id)).collect();
        assert_eq!(again, distinct);
    }

    #[test]
    fn a_stream_that_has_ended_gives_its_counter_back_when_its_work_is_done() {
        let semaphores = semaphores();
        let number = semaphores.of_stream(1);
        let owned = semaphores.of_ended_stream(1).unwrap();
        assert!(semaphores.of_ended_stream(1).is_none(), "it is the work's now");
        assert_ne!(semaphores.of_stream(2), number, "while the work is under way");
        drop(owned);
        assert_eq!(semaphores.of_stream(3), number);
    }

    #[test]
    fn threads_agree_about_the_counter_of_a_stream() {
        let semaphores = semaphores();
        let found: HashSet<_> = std::thread::scope(|scope| {
            let threads =
                [(); 8].map(|()| scope.spawn(|| (0..1000).map(|id| semaphores.of_stream(id)).collect::<Vec<_>>()));
            threads.map(|thread| thread.join().unwrap()).into_iter().collect()
        });
        assert_eq!(found.len(), 1);
    }
}
