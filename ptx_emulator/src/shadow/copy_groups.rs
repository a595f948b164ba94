//! The groups of `cp.async`: each thread's copies since its last commit, and its groups that it did not wait for.

use std::collections::VecDeque;

use super::{Access, AccessKind, CtaShadow, Operation, Race, Threads};

/// The groups of every thread of a CTA.
#[derive(Debug, Clone)]
pub struct CopyGroups {
    threads: Vec<Groups>,
}

#[derive(Debug, Clone, Default)]
struct Groups {
    /// The copies since the last commit.
    open: Option<Operation>,
    /// The committed groups, oldest first; an empty group has no operation.
    committed: VecDeque<Option<Operation>>,
}

impl CopyGroups {
    /// For a CTA of `threads` threads.
    pub fn new(threads: u32) -> Self {
        CopyGroups { threads: vec![Groups::default(); threads.next_multiple_of(32) as usize] }
    }

    /// Forgets all groups.
    pub fn restart(&mut self) {
        for groups in &mut self.threads {
            groups.open = None;
            groups.committed.clear();
        }
    }

    /// `cp.async` of one lane to `bytes` bytes at `address`, which are pending from now on.
    ///
    /// # Errors
    /// The race, if the bytes are still in use.
    pub fn copy(
        &mut self,
        shadow: &mut CtaShadow,
        (warp, lane): (u32, u32),
        line: u32,
        (address, bytes): (u32, u32),
    ) -> Result<(), Box<Race>> {
        let groups = &mut self.threads[(warp * 32 + lane) as usize];
        let operation = *groups.open.get_or_insert_with(|| shadow.start());
        let access = Access::new(Threads::lane(warp, lane), AccessKind::Write, line);
        shadow.access_pending(operation, &access, address, bytes)
    }

    /// `cp.async.commit_group`: each of the threads makes a group of its copies since the last one.
    pub fn commit(&mut self, threads: Threads) {
        for thread in threads.each() {
            let groups = &mut self.threads[thread];
            groups.committed.push_back(groups.open.take());
        }
    }

    /// `cp.async.wait_group`: each of the threads waits until at most `pending` of its groups are pending. What they
    /// wrote is then as if the thread had written it now.
    pub fn wait(&mut self, shadow: &mut CtaShadow, threads: Threads, pending: usize) {
        for thread in threads.each() {
            let groups = &mut self.threads[thread];
            let done = groups.committed.len().saturating_sub(pending);
            for operation in groups.committed.drain(..done).flatten() {
                shadow.finish(operation, Threads::lane(threads.warp, thread as u32 % 32));
            }
        }
    }

    /// `cp.async.wait_all`: each of the threads waits for all of its copies, committed or not.
    pub fn wait_all(&mut self, shadow: &mut CtaShadow, threads: Threads) {
        self.commit(threads);
        self.wait(shadow, threads, 0);
    }

    /// `cp.async.mbarrier.arrive`: takes the copies of one thread that are not waited for, for
    /// [`CtaShadow::finish_into`] the barrier's point.
    pub fn take(&mut self, (warp, lane): (u32, u32)) -> Vec<Operation> {
        let groups = &mut self.threads[(warp * 32 + lane) as usize];
        groups.committed.drain(..).flatten().chain(groups.open.take()).collect()
    }
}
