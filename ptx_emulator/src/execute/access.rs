//! How lanes read and write memory: bounds, what is noted of each access, and fences.

use super::Fault;
use crate::memory::{MemoryError, Nearest, Space as MemorySpace};
use crate::program::{Access, Order, Reg, Space, W};
use crate::registers::{Doubles, lanes, resolve};
use crate::shadow::{self, AccessKind, Threads};
use crate::turn::Turn;
use crate::windows;

type Result<T> = std::result::Result<T, Box<Fault>>;

/// How an instruction goes to memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    pub(crate) space: Space,
    pub(crate) order: Order,
    pub(crate) noted: Noted,
}

/// As what an access of a lane counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Noted {
    /// As one of the lane.
    Alone,
    /// As one of the lanes that execute it, as that of `wmma.load`.
    Together,
    /// The caller notes it.
    Later,
}

pub(super) fn kind(kind: AccessKind, order: Order) -> AccessKind {
    if order == Order::Weak { kind } else { AccessKind::Atomic }
}

/// The longest vector access.
pub(super) const MAX_BYTES: usize = 32;

fn outside(space: MemorySpace, address: u64, bytes: usize) -> MemoryError {
    MemoryError::OutOfBounds { space, address, bytes: bytes as u64, nearest: None }
}

/// An address in the 32-bit window of a memory.
fn narrow(space: MemorySpace, address: u64, bytes: usize, lane: usize) -> Result<u32> {
    u32::try_from(address).map_err(|_| Fault::lane(lane, outside(space, address, bytes)))
}

impl Turn<'_, '_> {
    /// Notes an access of one lane to shared memory.
    pub(crate) fn note(&mut self, kind: AccessKind, lane: usize, address: u32, bytes: usize) -> Result<()> {
        let access = shadow::Access::new(Threads::lane(self.warp, lane as u32), kind, self.line);
        let noted = self.cluster.shadow.access(&access, address, bytes as u32);
        noted.map_err(|race| self.shared_fault(lane, race))
    }

    /// Notes an access of the lanes as one to shared memory.
    pub(crate) fn note_together(&mut self, kind: AccessKind, lane: usize, address: u32, bytes: usize) -> Result<()> {
        let access = shadow::Access::collective(self.threads(), kind, self.line);
        let noted = self.cluster.shadow.access(&access, address, bytes as u32);
        noted.map_err(|race| self.shared_fault(lane, race))
    }

    /// An error that has addresses in shared memory and numbers of warps.
    pub(crate) fn shared_fault(&self, lane: usize, error: impl std::fmt::Display) -> Box<Fault> {
        Fault::lane(lane, format!("{error}{}", self.cluster.shape.note()))
    }

    /// The block that an address of `.shared` or `.shared::cluster` is in, and where in its shared memory.
    pub(crate) fn split(&self, space: Space, address: u64) -> Option<(u32, u32)> {
        let offset = u32::try_from(address).ok()?;
        if space != Space::Cluster || offset >> windows::RANK_SHIFT == 0 {
            return Some((self.rank(), offset));
        }
        let rank = (offset >> windows::RANK_SHIFT) - 1;
        (rank < self.cluster.shape.blocks).then_some((rank, offset & ((1 << windows::RANK_SHIFT) - 1)))
    }

    /// Where bytes at an address of `.shared` or `.shared::cluster` are in the memory of the cluster.
    pub(crate) fn shared_at(&self, space: Space, lane: usize, address: u64, bytes: usize) -> Result<u32> {
        let shape = self.cluster.shape;
        match self.split(space, address) {
            Some((rank, offset)) if u64::from(offset) + bytes as u64 <= shape.shared_bytes.into() => {
                if rank != self.rank() && !self.cluster.is_live(rank) {
                    return Err(Fault::lane(
                        lane,
                        format!("the block of rank {rank}, whose shared memory it is, has exited"),
                    ));
                }
                Ok(rank * shape.stride_bytes() + offset)
            }
            _ => {
                let offset = address as i64;
                let nearest = Nearest { base: 0, bytes: shape.shared_bytes.into(), offset, freed: false };
                let (space, bytes) = (MemorySpace::Shared, bytes as u64);
                Err(Fault::lane(lane, MemoryError::OutOfBounds { space, address, bytes, nearest: Some(nearest) }))
            }
        }
    }

    /// Notes an access of one lane to global memory.
    pub(crate) fn note_global(&mut self, kind: AccessKind, lane: usize, address: u64, bytes: usize) -> Result<()> {
        let access = shadow::Access::new(Threads::lane(self.warp, lane as u32), kind, self.line);
        self.cluster.shadow.access_global(&access, address, bytes as u32).map_err(|race| Fault::lane(lane, race))
    }

    /// Notes an access of the lanes as one to global memory.
    fn note_global_together(&mut self, kind: AccessKind, lane: usize, address: u64, bytes: usize) -> Result<()> {
        let access = shadow::Access::collective(self.threads(), kind, self.line);
        self.cluster.shadow.access_global(&access, address, bytes as u32).map_err(|race| Fault::lane(lane, race))
    }

    /// Notes weak accesses of the lanes to one memory, `bytes` each: neighbours, and lanes that read the same, at once.
    pub(super) fn note_lanes(
        &mut self,
        kind: AccessKind,
        space: Space,
        addresses: &Doubles,
        bytes: usize,
    ) -> Result<()> {
        let each = bytes as u64;
        let mut left = self.mask;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let start = addresses[first];
            let granule = start / shadow::GRANULE_BYTES;
            let is_next =
                |address: u64, end: u64| address == end && (end + each - 1) / shadow::GRANULE_BYTES == granule;
            let (mut group, mut end, mut same) = (1u32 << first, start + each, kind == AccessKind::Read);
            left &= left - 1;
            while left != 0 {
                let address = addresses[left.trailing_zeros() as usize];
                let is_alone = group.is_power_of_two();
                if same && address == start {
                    // A lane more that reads what the others read.
                } else if (is_alone || !same) && is_next(address, end) {
                    (end, same) = (address + each, false);
                } else {
                    break;
                }
                group |= 1 << left.trailing_zeros();
                left &= left - 1;
            }
            let threads = Threads { warp: self.warp, lanes: group };
            let access = shadow::Access::new(threads, kind, self.line);
            let apart = !group.is_power_of_two() && !same;
            let shadow = &mut self.cluster.shadow;
            let noted = match (space, apart) {
                (Space::Shared, true) => shadow.access_each(&access, start as u32, bytes as u8),
                (Space::Shared, false) => shadow.access(&access, start as u32, bytes as u32),
                (_, true) => shadow.access_global_each(&access, start, bytes as u8),
                (_, false) => shadow.access_global(&access, start, bytes as u32),
            };
            noted.map_err(|race| {
                let lane = race.later.thread.map_or(first, |thread| thread.1 as usize);
                if space == Space::Shared { self.shared_fault(lane, race) } else { Fault::lane(lane, race) }
            })?;
        }
        Ok(())
    }

    /// The memory that threads share and that all executing lanes access, and where; none if their order asks for more.
    pub(super) fn one_memory(&self, access: &Access, addresses: &Doubles) -> Option<(Space, Doubles)> {
        let (mut one, mut resolved) = (None, *addresses);
        for lane in lanes(self.mask) {
            let (space, address) = resolve(access.space, addresses[lane]);
            if access.order != Order::Weak || one.is_some_and(|one| one != space) {
                return None;
            }
            one = Some(space);
            resolved[lane] = match space {
                Space::Shared => {
                    let (rank, offset) = self.split(space, address)?;
                    (rank * self.cluster.shape.stride_bytes() + offset).into()
                }
                _ => address,
            };
        }
        one.filter(|space| matches!(space, Space::Shared | Space::Global)).map(|space| (space, resolved))
    }

    /// What an access of one lane with the order of a fence does beside it.
    pub(super) fn fence(&mut self, lane: usize, order: Order) -> Result<()> {
        if order == Order::Fence {
            self.cluster.fence(Threads::lane(self.warp, lane as u32), true)?;
        }
        Ok(())
    }

    /// Reads memory for one lane.
    pub(crate) fn read(&mut self, way: Way, lane: usize, address: u64, into: &mut [u8]) -> Result<()> {
        let Way { space, order, noted } = way;
        let (space, address) = resolve(space, address);
        let fault = |error: MemoryError| Fault::lane(lane, error);
        match space {
            Space::Global | Space::Generic => {
                self.cluster.global.load(address, into).map_err(fault)?;
                if noted == Noted::Later {
                    return Ok(());
                }
                self.note_global(kind(AccessKind::Read, order), lane, address, into.len())?;
                self.fence(lane, order)
            }
            Space::Shared | Space::Cluster => {
                let address = self.shared_at(space, lane, address, into.len())?;
                self.cluster.shared.load(address, into).map_err(|error| self.shared_fault(lane, error))?;
                match noted {
                    Noted::Alone => self.note(kind(AccessKind::Read, order), lane, address, into.len())?,
                    Noted::Together => self.note_together(AccessKind::Read, lane, address, into.len())?,
                    Noted::Later => {}
                }
                self.fence(lane, order)
            }
            Space::Param => {
                let address = narrow(MemorySpace::Param, address, into.len(), lane)?;
                self.cluster.params.load(address, into).map_err(fault)
            }
            Space::Local => {
                let address = narrow(MemorySpace::Local, address, into.len(), lane)?;
                match self.local.get(lane) {
                    Some(local) => local.load(address, into).map_err(fault),
                    None => Err(fault(outside(MemorySpace::Local, address.into(), into.len()))),
                }
            }
        }
    }

    /// Writes memory for one lane.
    pub(crate) fn write(&mut self, way: Way, lane: usize, address: u64, bytes: &[u8]) -> Result<()> {
        let Way { space, order, noted } = way;
        let (space, address) = resolve(space, address);
        let fault = |error: MemoryError| Fault::lane(lane, error);
        match space {
            Space::Global | Space::Generic => {
                self.fence(lane, order)?;
                self.cluster.global.store(address, bytes).map_err(fault)?;
                match noted {
                    Noted::Alone => self.note_global(kind(AccessKind::Write, order), lane, address, bytes.len()),
                    Noted::Together => self.note_global_together(AccessKind::Write, lane, address, bytes.len()),
                    Noted::Later => Ok(()),
                }
            }
            Space::Shared | Space::Cluster => {
                let address = self.shared_at(space, lane, address, bytes.len())?;
                self.fence(lane, order)?;
                let stored = self.cluster.shared.store(address, bytes);
                stored.map_err(|error| self.shared_fault(lane, error))?;
                match noted {
                    Noted::Alone => self.note(kind(AccessKind::Write, order), lane, address, bytes.len()),
                    Noted::Together => self.note_together(AccessKind::Write, lane, address, bytes.len()),
                    Noted::Later => Ok(()),
                }
            }
            Space::Param => Err(Fault::lane(lane, "a store to a parameter")),
            Space::Local => {
                let address = narrow(MemorySpace::Local, address, bytes.len(), lane)?;
                match self.local.get_mut(lane) {
                    Some(local) => local.store(address, bytes).map_err(fault),
                    None => Err(fault(outside(MemorySpace::Local, address.into(), bytes.len()))),
                }
            }
        }
    }
}

/// Up to 8 bytes as a number, sign- or zero-extended.
pub(super) fn number(bytes: &[u8], signed: bool) -> u64 {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let (value, shift) = (u64::from_le_bytes(wide), 64 - 8 * bytes.len() as u32);
    if signed { ((value << shift) as i64 >> shift) as u64 } else { value }
}

/// The bytes that a lane stores, and how many.
pub(super) fn stored(turn: &Turn<'_, '_>, access: &Access, lane: usize) -> ([u8; MAX_BYTES], usize) {
    let each = usize::from(access.bytes);
    let length = each * access.registers.len();
    let mut bytes = [0; MAX_BYTES];
    for (register, bytes) in access.registers.iter().zip(bytes[..length].chunks_exact_mut(each)) {
        let value = register.map_or(0, |register| turn.registers.lane(register, lane));
        bytes.copy_from_slice(&value.to_le_bytes()[..each]);
    }
    (bytes, length)
}

/// Reads a register of a lane as a number of bytes or a count.
pub(crate) fn lane_word(turn: &Turn<'_, '_>, slot: W, lane: usize) -> u32 {
    turn.registers.lane(Reg::W(slot), lane) as u32
}
