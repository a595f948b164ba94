//! The turn of a warp at one instruction.

use crate::cluster::Cluster;
use crate::copies::LaneCopies;
use crate::in_flight::InFlight;
use crate::memory::OwnedMemory;
use crate::registers::Registers;
use crate::shadow::Threads;

/// One instruction of one warp, as the functions of `execute` see it.
pub(crate) struct Turn<'t, 'a> {
    pub(crate) cluster: &'t mut Cluster<'a>,
    pub(crate) registers: &'t mut Registers,
    pub(crate) local: &'t mut [OwnedMemory],
    pub(crate) copies: &'t mut LaneCopies,
    pub(crate) in_flight: &'t mut InFlight,
    /// Its number in the cluster.
    pub(crate) warp: u32,
    /// The lanes that execute it.
    pub(crate) mask: u32,
    /// The index of the instruction in the program, and its line in the PTX.
    pub(crate) at: u32,
    pub(crate) line: u32,
    pub(crate) then: Then,
}

/// How a warp goes on after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    Next,
    /// It tested an mbarrier in vain, that at this place: another warp should go on.
    Polled(u32),
    /// It cannot be executed yet.
    Again,
}

impl Turn<'_, '_> {
    pub(crate) fn rank(&self) -> u32 {
        self.cluster.shape.rank_of(self.warp)
    }

    pub(crate) fn threads(&self) -> Threads {
        Threads { warp: self.warp, lanes: self.mask }
    }
}
