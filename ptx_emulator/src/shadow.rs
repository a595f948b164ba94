//! Finds data races: two accesses, one of them a write, that nothing puts in an order. [`CtaShadow`] is for the threads
//! of one CTA and the shared and global memory that they access, [`LaunchShadow`] for global memory between the CTAs of
//! a launch.
//!
//! ```
//! use ptx_emulator::shadow::{Access, AccessKind, CtaShadow, Threads};
//!
//! let mut shadow = CtaShadow::new(1024, 64);
//! let (writer, reader) = (Threads::lane(0, 0), Threads::lane(1, 0));
//! let write = Access::new(writer, AccessKind::Write, 10);
//! let read = Access::new(reader, AccessKind::Read, 12);
//! shadow.access(&write, 0, 4)?;
//! assert!(shadow.clone().access(&read, 0, 4).is_err());
//! shadow.barrier(&[Threads::warp(0), Threads::warp(1)]);
//! shadow.access(&read, 0, 4)?;
//! # Ok::<(), Box<ptx_emulator::shadow::Race>>(())
//! ```
//!
//! # Order
//!
//! Every access belongs to an epoch of its warp, and every synchronisation of lanes of the warp ends the epoch. The
//! clock of a thread says, for every other thread, up to which epoch that thread's accesses come before its own. A
//! barrier joins the clocks of its participants. Where some threads only arrive and others only wait (named barriers,
//! `mbarrier`), the clocks go through a [`SyncPoint`]: [`release`](CtaShadow::release) puts the arriving threads' into
//! it, [`acquire`](CtaShadow::acquire) gives it to the waiting ones. The same kernel gives the same reports whatever
//! the order in which its warps run, as long as they pass through their synchronisations in the same order.
//!
//! For each granule of 16 bytes, and each byte of it, the accesses are kept that a later access may race with: the last
//! write, and the reads since.
//!
//! A fence orders threads only together with a flag that one thread writes and the other sees. Accesses that are
//! volatile, relaxed, acquire, release or atomic can be such flags. In a kernel that has any, every fence counts as
//! coming after all fences executed before it. So no correct protocol is reported, and some wrong ones are not.
//!
//! # Asynchronous accesses
//!
//! The accesses of `cp.async`, a bulk copy or `wgmma` are pending from its start until somebody waits for it. Until
//! then nobody may touch the bytes that it writes, or write the bytes that it reads, and the thread that started it may
//! not either. [`CtaShadow::finish`] turns pending accesses into accesses of the threads that waited.
//! [`CtaShadow::finish_into`] turns them into accesses that a [`SyncPoint`] orders. [`CopyGroups`] does this for
//! `cp.async`.
//!
//! An access by the asynchronous proxy also needs a proxy fence between it and the generic writes before it.

use std::fmt;

pub use clock::SyncPoint;
pub use copy_groups::CopyGroups;
pub use cta::CtaShadow;
pub use global::Mark;
pub use launch::{CtaParty, LaunchRace, LaunchShadow};
pub use record::Operation;

use crate::memory::Space;

/// The bytes whose accesses are kept together.
pub(crate) const GRANULE_BYTES: u64 = record::GRANULE as u64;

mod clock;
mod copy_groups;
mod cta;
mod global;
mod launch;
mod record;

/// What an access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessKind {
    /// It reads.
    Read,
    /// It writes.
    Write,
    /// It reads and writes in one step: no race with another such access.
    Atomic,
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::Read => "read",
            AccessKind::Write => "write",
            AccessKind::Atomic => "atomic",
        })
    }
}

impl AccessKind {
    /// Every kind, in the order of their numbers.
    const ALL: [AccessKind; 3] = [AccessKind::Read, AccessKind::Write, AccessKind::Atomic];

    fn conflicts(self, other: AccessKind) -> bool {
        !matches!((self, other), (AccessKind::Read, AccessKind::Read) | (AccessKind::Atomic, AccessKind::Atomic))
    }
}

/// The way an access takes to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Proxy {
    /// That of loads, stores, `ldmatrix` and `cp.async`.
    Generic,
    /// That of bulk copies and `wgmma`.
    Async,
}

/// Lanes of one warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Threads {
    /// The index of the warp in the CTA.
    pub warp: u32,
    /// Bit `i` is lane `i`.
    pub lanes: u32,
}

impl Threads {
    /// All lanes of a warp.
    pub fn warp(warp: u32) -> Threads {
        Threads { warp, lanes: u32::MAX }
    }

    /// One lane.
    pub fn lane(warp: u32, lane: u32) -> Threads {
        Threads { warp, lanes: 1 << lane }
    }

    fn each(self) -> impl Iterator<Item = usize> {
        let first = self.warp as usize * 32;
        bits(self.lanes).map(move |lane| first + lane)
    }
}

/// The set bits, from the lowest.
fn bits(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = mask.trailing_zeros();
        mask &= mask.checked_sub(1)?;
        Some(bit as usize)
    })
}

/// Who accesses memory, how, and by which line of the PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// Who.
    pub threads: Threads,
    /// The threads do the access as one, as in `ldmatrix`: it comes after everything that any of them comes after, and
    /// before everything that any of them comes before. Otherwise each thread does an access of its own.
    pub collective: bool,
    /// What.
    pub kind: AccessKind,
    /// Which way.
    pub proxy: Proxy,
    /// The line of the PTX.
    pub line: u32,
}

impl Access {
    /// An access by each of the threads, by the generic proxy.
    pub fn new(threads: Threads, kind: AccessKind, line: u32) -> Access {
        Access { threads, collective: false, kind, proxy: Proxy::Generic, line }
    }

    /// An access that the threads do as one, by the generic proxy.
    pub fn collective(threads: Threads, kind: AccessKind, line: u32) -> Access {
        Access { collective: true, ..Access::new(threads, kind, line) }
    }
}

/// One side of a race.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// The thread, or the first of the threads that do the access as one; nothing for an agent of the asynchronous
    /// proxy.
    pub thread: Option<(u32, u32)>,
    /// What it does.
    pub kind: AccessKind,
    /// Which way.
    pub proxy: Proxy,
    /// The line of the PTX.
    pub line: u32,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proxy = if self.proxy == Proxy::Async { "asynchronous " } else { "" };
        write!(f, "{proxy}{}", self.kind)?;
        if let Some((warp, lane)) = self.thread {
            write!(f, " by warp {warp}, lane {lane}")?;
        }
        write!(f, " in PTX line {}", self.line)
    }
}

/// Why two accesses race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RaceCause {
    /// No synchronisation puts them in an order.
    Unordered,
    /// Nobody waited for the earlier one, which is asynchronous.
    Pending,
    /// Lanes of one instruction store different values.
    OneInstruction,
    /// They are in order, but no proxy fence is between the generic write and the asynchronous access.
    ProxyFence,
}

impl fmt::Display for RaceCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RaceCause::Unordered => "no synchronisation orders them",
            RaceCause::Pending => "the first is asynchronous and not waited for",
            RaceCause::OneInstruction => {
                "one instruction stores different values, and which of them stays is not defined"
            }
            RaceCause::ProxyFence => "no proxy fence is between them",
        })
    }
}

/// Two accesses, one of them a write, that race.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("race on {space} memory at {address:#x}: {earlier}, {later}: {cause}")]
pub struct Race {
    /// Which memory.
    pub space: Space,
    /// The first byte that both touch.
    pub address: u64,
    /// The access that ran first here.
    pub earlier: Party,
    /// The access that found it.
    pub later: Party,
    /// Why it is a race.
    pub cause: RaceCause,
}

#[cfg(test)]
mod tests;
