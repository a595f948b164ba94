//! Copies by `cp.async` that are under way.

use std::collections::VecDeque;

use crate::registers::LANES;

/// The copies of a warp's lanes that nobody waited for. The source is read when the copy starts and the destination
/// written when the thread waits, so that a kernel that does not wait sees the old bytes.
#[derive(Debug, Default)]
pub(crate) struct LaneCopies {
    pub(crate) lanes: [Lane; LANES],
}

impl LaneCopies {
    /// Forgets all copies.
    pub(crate) fn restart(&mut self) {
        for lane in &mut self.lanes {
            lane.copies.clear();
            lane.committed = 0;
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// Oldest first, each with the number of its group.
    pub(crate) copies: VecDeque<(u32, Copy)>,
    /// Groups committed so far: the number of the open one.
    pub(crate) committed: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy {
    pub(crate) to: u32,
    pub(crate) bytes: u8,
    pub(crate) data: [u8; 16],
}
