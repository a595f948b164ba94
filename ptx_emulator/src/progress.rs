//! Whether what a warp does in its turn can help others, or only looks for what others do.
//!
//! A lane that spins on a lock must let the holder of the lock go on, in another warp or in its own: since sm_70 the
//! lanes of a warp are scheduled independently. Where lanes look in vain for long, the lanes that wait to meet them go
//! on without them ([`Paths::release`](crate::paths::Paths::release)). Where all threads of a launch look in vain, the
//! launch has no end.

use crate::program::{Hopper, Op, Order};

/// After so many looks in vain of one warp, those of its lanes that wait to meet the others go on.
const PATIENCE: u64 = 1 << 10;

/// After so many turns of every warp in which all warps of a launch look in vain or wait, nothing is expected to change
/// any more. That is hundreds of thousands of instructions of each.
const MAX_TURNS: u64 = 1 << 8;

/// What happened in the turn of a warp.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Atomics that changed nothing, and loads of what other threads may change.
    pub(crate) looks: u64,
    /// Tests of an mbarrier whose phase was not complete.
    pub(crate) polls: u64,
    /// Something else that other threads can see.
    pub(crate) changed: bool,
}

impl Progress {
    /// Notes an instruction that is neither arithmetic nor a matter of control; atomics say themselves what they did.
    #[inline]
    pub(crate) fn note(&mut self, op: &Op) {
        match op {
            Op::Load(access) => self.looks += u64::from(access.order != Order::Weak),
            Op::Atomic(_) | Op::Clock { .. } | Op::ActiveMask { .. } | Op::Fence { .. } => {}
            Op::WarpSync { .. } | Op::Shuffle { .. } | Op::Vote { .. } | Op::Redux { .. } => {}
            Op::Match { .. } | Op::Elect { .. } | Op::MbarrierTest { .. } => {}
            Op::Hopper(hopper) if **hopper == Hopper::Hint => {}
            _ => self.changed = true,
        }
    }

    /// Nothing but looks that found nothing.
    pub(crate) fn is_in_vain(self) -> bool {
        !self.changed && self.looks + self.polls > 0
    }
}

/// How long a warp has looked in vain.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spin {
    looks: u64,
}

impl Spin {
    /// Adds a turn; whether the lanes that wait should go on now.
    pub(crate) fn add(&mut self, turn: Progress) -> bool {
        self.looks = if turn.is_in_vain() { self.looks + turn.looks + turn.polls } else { 0 };
        let tired = self.looks >= PATIENCE;
        if tired {
            self.looks = 0;
        }
        tired
    }
}

/// Whether the clusters that run beside each other still change anything.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Watch {
    /// Rounds through the warps of a cluster since a thread last did something else than look.
    rounds: u64,
}

impl Watch {
    /// Adds a round: whether a warp `changed` something or computed, and whether one looked in vain. Once all of so
    /// many `clusters` have had [`MAX_TURNS`] in vain: how many.
    pub(crate) fn add(&mut self, changed: bool, looked: bool, clusters: u64) -> Option<u64> {
        self.rounds = if changed { 0 } else { self.rounds + u64::from(looked) };
        let turns = self.rounds / clusters.max(1);
        (turns >= MAX_TURNS).then_some(turns)
    }
}
