//! What the warps of a block share: its memory, barriers and counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::counters::Tally;
use crate::execute::Fault;
use crate::execute::mbarrier::Mbarrier;
use crate::memory::{GlobalView, OwnedMemory};
use crate::program::Program;
use crate::registers::Registers;
use crate::report::Report;
use crate::shadow::{CopyGroups, CtaShadow, LaunchShadow, Threads};

/// The named barriers of a block.
pub(crate) const BARRIERS: usize = 16;

pub(crate) struct Block<'a> {
    pub(crate) program: &'a Program,
    pub(crate) params: &'a OwnedMemory,
    pub(crate) global: GlobalView,
    pub(crate) shared: OwnedMemory,
    /// Its accesses to shared and global memory.
    pub(crate) shadow: CtaShadow,
    /// Its index in the grid.
    pub(crate) index: u64,
    /// What the other blocks did to global memory, in a kernel whose blocks talk to each other.
    others: Option<&'a Mutex<LaunchShadow>>,
    pub(crate) copies: CopyGroups,
    pub(crate) mbarriers: BTreeMap<u32, Mbarrier>,
    pub(crate) report: Report,
    /// The counts of each instruction, where they are asked for.
    pub(crate) tally: Option<Box<Tally>>,
    barriers: [Barrier; BARRIERS],
    /// Warps that have threads which did not exit.
    live_warps: u32,
}

/// One named barrier, between two completions.
#[derive(Default)]
struct Barrier {
    /// The threads that the instructions name; none if all of the block.
    threads: Option<u32>,
    waiting: Vec<Threads>,
    arrived: Vec<Threads>,
    completions: u32,
}

impl<'a> Block<'a> {
    pub(crate) fn new(
        program: &'a Program,
        params: &'a OwnedMemory,
        (global, others): (GlobalView, Option<&'a Mutex<LaunchShadow>>),
        shared: OwnedMemory,
        threads: u32,
    ) -> Block<'a> {
        let shadow = CtaShadow::new(shared.len(), threads);
        Block {
            program,
            params,
            global,
            index: 0,
            others,
            shadow: if program.signals { shadow.with_fences() } else { shadow },
            copies: CopyGroups::new(threads),
            shared,
            mbarriers: BTreeMap::new(),
            report: Report::default(),
            tally: None,
            barriers: Default::default(),
            live_warps: threads.div_ceil(32),
        }
    }

    /// Makes it as it was when it was new, for another block of the launch with as many warps.
    pub(crate) fn restart(&mut self, index: u64, warps: u32) {
        self.index = index;
        self.shared.clear();
        self.shadow.restart();
        self.copies.restart();
        self.mbarriers.clear();
        self.report = Report::default();
        self.barriers = Default::default();
        self.live_warps = warps;
    }

    /// A fence between the threads of all blocks, or of one.
    pub(crate) fn fence(&mut self, threads: Threads, device: bool) -> Result<(), Box<Fault>> {
        self.global.fence();
        self.shadow.fence(threads);
        match self.others {
            Some(others) if device => {
                let mut others = others.lock().unwrap_or_else(PoisonError::into_inner);
                others.fence(self.index as u32, &self.shadow.publish()).map_err(|race| Fault::race(&race))
            }
            _ => Ok(()),
        }
    }

    /// How often barrier `id` was completed.
    pub(crate) fn completions(&self, id: u32) -> u32 {
        self.barriers[id as usize % BARRIERS].completions
    }

    /// A warp arrives at a barrier, to wait there or to go on.
    pub(crate) fn arrive(
        &mut self,
        id: u32,
        threads: Option<u32>,
        warp: Threads,
        waits: bool,
    ) -> Result<(), Box<Fault>> {
        let Some(barrier) = self.barriers.get_mut(id as usize) else {
            return Err(Fault::warp(format!("there is no barrier {id}: a block has {BARRIERS}")));
        };
        if let Some(threads) = threads
            && (threads == 0 || threads % 32 != 0)
        {
            return Err(Fault::warp(format!("a barrier of {threads} threads, which is no multiple of 32")));
        }
        let is_first = barrier.waiting.is_empty() && barrier.arrived.is_empty();
        if !is_first && barrier.threads != threads {
            let show =
                |threads: Option<u32>| threads.map_or("all threads".to_owned(), |threads| format!("{threads} threads"));
            let (there, here) = (show(barrier.threads), show(threads));
            return Err(Fault::warp(format!("barrier {id} is of {there} for others, of {here} here")));
        }
        if barrier.waiting.iter().chain(&barrier.arrived).any(|other| other.warp == warp.warp) {
            return Err(Fault::warp(format!("the warp arrives at barrier {id} twice before it is complete")));
        }
        barrier.threads = threads;
        if waits { &mut barrier.waiting } else { &mut barrier.arrived }.push(warp);
        self.complete(id as usize);
        Ok(())
    }

    fn complete(&mut self, id: usize) {
        let barrier = &mut self.barriers[id];
        let there = (barrier.waiting.len() + barrier.arrived.len()) as u32;
        let expected = barrier.threads.map_or(self.live_warps, |threads| threads / 32);
        if there == 0 || there < expected {
            return;
        }
        let (waiting, arrived) = (std::mem::take(&mut barrier.waiting), std::mem::take(&mut barrier.arrived));
        barrier.completions = barrier.completions.wrapping_add(1);
        if arrived.is_empty() {
            self.shadow.barrier(&waiting);
            return;
        }
        let mut point = self.shadow.sync_point();
        for &threads in arrived.iter().chain(&waiting) {
            self.shadow.release(threads, &mut point);
        }
        for &threads in &waiting {
            self.shadow.acquire(threads, &point);
        }
    }

    /// All threads of a warp have exited: barriers of all threads no longer wait for it.
    pub(crate) fn warp_is_done(&mut self) {
        self.live_warps -= 1;
        for id in 0..BARRIERS {
            if self.barriers[id].threads.is_none() {
                self.complete(id);
            }
        }
    }
}

/// One instruction of one warp, as the functions of `execute` see it.
pub(crate) struct Turn<'t, 'a> {
    pub(crate) block: &'t mut Block<'a>,
    pub(crate) registers: &'t mut Registers,
    pub(crate) local: &'t mut [OwnedMemory],
    pub(crate) copies: &'t mut crate::execute::memory::LaneCopies,
    pub(crate) warp: u32,
    /// The lanes that execute it.
    pub(crate) mask: u32,
    /// The index of the instruction in the program, and its line in the PTX.
    pub(crate) at: u32,
    pub(crate) line: u32,
    /// It tested a barrier in vain: another warp should go on.
    pub(crate) polled: bool,
}

impl Turn<'_, '_> {
    pub(crate) fn threads(&self) -> Threads {
        Threads { warp: self.warp, lanes: self.mask }
    }
}
