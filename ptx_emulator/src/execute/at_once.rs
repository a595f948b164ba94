//! Loads and stores whose lanes all go to one memory and do nothing wrong. Most accesses are such, and this path has no
//! code that describes an error.

use std::ops::RangeInclusive;

use super::access::number;
use crate::program::{Access, Space};
use crate::registers::{Doubles, LANES, lanes};
use crate::turn::Turn;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Load,
    Store,
}

/// Loads or stores the elements of all lanes at addresses in the memory of the cluster or in global memory. False where
/// that does not do, as a lane does wrong or such elements are rare: then the access is to be made lane by lane.
pub(super) fn access(turn: &mut Turn<'_, '_>, direction: Direction, access: &Access, place: (Space, &Doubles)) -> bool {
    match (access.bytes, access.registers.len()) {
        (1, 1) => elements::<1, 1>(turn, direction, access, place),
        (2, 1) => elements::<2, 1>(turn, direction, access, place),
        (2, 2) => elements::<2, 2>(turn, direction, access, place),
        (2, 4) => elements::<2, 4>(turn, direction, access, place),
        (4, 1) => elements::<4, 1>(turn, direction, access, place),
        (4, 2) => elements::<4, 2>(turn, direction, access, place),
        (4, 4) => elements::<4, 4>(turn, direction, access, place),
        (8, 1) => elements::<8, 1>(turn, direction, access, place),
        (8, 2) => elements::<8, 2>(turn, direction, access, place),
        _ => false,
    }
}

fn elements<const BYTES: usize, const COUNT: usize>(
    turn: &mut Turn<'_, '_>,
    direction: Direction,
    access: &Access,
    (space, addresses): (Space, &Doubles),
) -> bool {
    match direction {
        Direction::Load => load::<BYTES, COUNT>(turn, access, space, addresses),
        Direction::Store => store::<BYTES, COUNT>(turn, access, space, addresses),
    }
}

/// Where accesses of so many bytes to the shared memory of the block may start, in that of the cluster.
fn own_shared(turn: &Turn<'_, '_>, bytes: usize) -> RangeInclusive<u64> {
    let shape = turn.cluster.shape;
    let first = u64::from(turn.rank() * shape.stride_bytes());
    // Where the memory is shorter than the access the end is noticed in the memory itself.
    first..=(first + u64::from(shape.shared_bytes)).saturating_sub(bytes as u64)
}

/// No register changes where it is false.
fn load<const BYTES: usize, const COUNT: usize>(
    turn: &mut Turn<'_, '_>,
    access: &Access,
    space: Space,
    addresses: &Doubles,
) -> bool {
    let own = own_shared(turn, BYTES * COUNT);
    let mut values = [[0; LANES]; COUNT];
    for lane in lanes(turn.mask) {
        let address = addresses[lane];
        let elements: Option<[[u8; BYTES]; COUNT]> = match space {
            Space::Shared if own.contains(&address) => turn.cluster.shared.load_elements(address as u32),
            Space::Shared => None,
            _ => turn.cluster.global.load_elements(address),
        };
        let Some(elements) = elements else { return false };
        for (values, element) in values.iter_mut().zip(&elements) {
            values[lane] = number(element, access.signed);
        }
    }
    for (register, values) in access.registers.iter().zip(&values) {
        if let Some(register) = *register {
            turn.registers.set_wide(register, values, turn.mask);
        }
    }
    true
}

/// Where it is false the lanes before the wrong one have stored.
fn store<const BYTES: usize, const COUNT: usize>(
    turn: &mut Turn<'_, '_>,
    access: &Access,
    space: Space,
    addresses: &Doubles,
) -> bool {
    let own = own_shared(turn, BYTES * COUNT);
    let mut values = [[0; LANES]; COUNT];
    for (values, register) in values.iter_mut().zip(&access.registers) {
        *values = register.map_or([0; LANES], |register| turn.registers.wide(register));
    }
    lanes(turn.mask).all(|lane| {
        let address = addresses[lane];
        let mut elements = [[0; BYTES]; COUNT];
        for (element, values) in elements.iter_mut().zip(&values) {
            element.copy_from_slice(&values[lane].to_le_bytes()[..BYTES]);
        }
        match space {
            Space::Shared => own.contains(&address) && turn.cluster.shared.store_elements(address as u32, &elements),
            _ => turn.cluster.global.store_elements(address, &elements),
        }
    })
}
