//! Stores of which several lanes go to one address.
//!
//! Lanes that store the same value do no harm: they count as one store, which comes after everything that any of them
//! comes after. Of different values one stays, and PTX does not say which. That is a race, as between threads.

use smallvec::SmallVec;

use super::Fault;
use super::access::{Noted, Way, stored};
use crate::memory::Space as MemorySpace;
use crate::program::{Access, Order, Space};
use crate::registers::{Doubles, lanes, resolve};
use crate::shadow::{AccessKind, Party, Proxy, Race, RaceCause};
use crate::turn::Turn;

/// The addresses of the lanes, each with the lanes that go there.
type Groups = SmallVec<[(u64, u32); 32]>;

/// Does the store where lanes share addresses; false where none do.
pub(super) fn store(
    turn: &mut Turn<'_, '_>,
    access: &Access,
    addresses: &Doubles,
    bytes: usize,
) -> Result<bool, Box<Fault>> {
    if access.order != Order::Weak || access.space == Space::Local || are_apart(turn.mask, addresses, bytes) {
        return Ok(false);
    }
    let groups = groups(turn.mask, addresses);
    let is_shared =
        |&(address, group): &(u64, u32)| !group.is_power_of_two() && resolve(access.space, address).0 != Space::Local;
    if !groups.iter().any(is_shared) {
        return Ok(false);
    }
    let all = turn.mask;
    for (address, group) in groups {
        let first = group.trailing_zeros() as usize;
        let (space, place) = resolve(access.space, address);
        if space == Space::Local {
            // Each lane has its own.
            for lane in lanes(group) {
                turn.write_lane(access, Noted::Alone, lane, address)?;
            }
            continue;
        }
        if let Some(other) = lanes(group).find(|&lane| !stores_the_same(turn, access, first, lane)) {
            return Err(differ(turn, (space, place), first, other));
        }
        turn.mask = group;
        let noted = if group.is_power_of_two() { Noted::Alone } else { Noted::Together };
        let stored = turn.write_lane(access, noted, first, address);
        turn.mask = all;
        stored?;
    }
    Ok(true)
}

/// Whether no two lanes go to one address, as far as that is quickly seen: in most stores they do not.
fn are_apart(mask: u32, addresses: &Doubles, bytes: usize) -> bool {
    let mut last = None;
    if lanes(mask).all(|lane| last.replace(addresses[lane]).is_none_or(|last| last < addresses[lane])) {
        return true;
    }
    // Addresses near each other, in whatever order, have bits of their own.
    let mut seen = [0u64; 4];
    lanes(mask).all(|lane| {
        let number = addresses[lane] >> bytes.trailing_zeros();
        let bit = (number ^ number >> 8) as usize % 256;
        let is_new = seen[bit / 64] >> (bit % 64) & 1 == 0;
        seen[bit / 64] |= 1 << (bit % 64);
        is_new
    })
}

fn groups(mask: u32, addresses: &Doubles) -> Groups {
    let mut groups = Groups::new();
    for lane in lanes(mask) {
        match groups.iter_mut().find(|group| group.0 == addresses[lane]) {
            Some(group) => group.1 |= 1 << lane,
            None => groups.push((addresses[lane], 1 << lane)),
        }
    }
    groups
}

fn stores_the_same(turn: &Turn<'_, '_>, access: &Access, one: usize, other: usize) -> bool {
    let unused = u64::MAX.checked_shl(8 * u32::from(access.bytes)).unwrap_or(0);
    access
        .registers
        .iter()
        .flatten()
        .all(|&register| (turn.registers.lane(register, one) ^ turn.registers.lane(register, other)) & !unused == 0)
}

fn differ(turn: &Turn<'_, '_>, (space, address): (Space, u64), one: usize, other: usize) -> Box<Fault> {
    let party = |lane: usize| Party {
        thread: Some((turn.warp, lane as u32)),
        kind: AccessKind::Write,
        proxy: Proxy::Generic,
        line: turn.line,
    };
    let (space, address) = match space {
        Space::Shared | Space::Cluster => {
            let place = turn.split(space, address);
            let offset = |(rank, offset)| u64::from(rank * turn.cluster.shape.stride_bytes()) + u64::from(offset);
            (MemorySpace::Shared, place.map_or(address, offset))
        }
        _ => (MemorySpace::Global, address),
    };
    let (earlier, later) = (party(one), party(other));
    let race = Race { space, address, earlier, later, cause: RaceCause::OneInstruction };
    match space {
        MemorySpace::Shared => turn.shared_fault(other, race),
        _ => Fault::lane(other, race),
    }
}

impl Turn<'_, '_> {
    /// The store of one lane.
    fn write_lane(&mut self, access: &Access, noted: Noted, lane: usize, address: u64) -> Result<(), Box<Fault>> {
        let way = Way { space: access.space, order: access.order, noted };
        let (bytes, length) = stored(self, access, lane);
        self.write(way, lane, address, &bytes[..length])
    }
}
