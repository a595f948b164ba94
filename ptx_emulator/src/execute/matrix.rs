//! `ldmatrix`, `wmma` and `mma`: the operands of the functions of `tensor_core`.

use super::Fault;
use super::memory::Way;
use crate::block::Turn;
use crate::memory::{MemoryError, Space as Place};
use crate::program::{Address, Element, Fragment, Mma, MmaKind, Order, Part, Space, W, Wmma};
use crate::registers::{LANES, Words};
use crate::shadow::AccessKind;
use crate::tensor_core::{self, Factor, Half, Major, Quarter};

type Result<T> = std::result::Result<T, Box<Fault>>;

/// A tensor core works for whole warps.
pub(crate) fn check_whole(turn: &Turn<'_, '_>) -> Result<()> {
    match turn.mask {
        u32::MAX => Ok(()),
        mask => Err(Fault::warp(format!("only the lanes {mask:#010x} of the warp execute it"))),
    }
}

pub(crate) fn ldmatrix(turn: &mut Turn<'_, '_>, transposed: bool, d: &[W], address: Address) -> Result<()> {
    check_whole(turn)?;
    let addresses = turn.registers.addresses(address);
    turn.count_matrices(&addresses.map(|address| address as u32), d.len());
    let read = |lane: usize, address: u64| {
        let mut row = [0; 16];
        let address = turn.shared_at(Space::Shared, lane, address, 16)?;
        turn.block.shared.load(address, &mut row).map_err(|error| turn.shared_fault(lane, error))?;
        turn.note_together(AccessKind::Read, lane, address, 16)?;
        Ok::<_, Box<Fault>>(row)
    };
    let mut values = [[0; LANES]; 4];
    match d.len() {
        1 => values[..1].copy_from_slice(&tensor_core::ldmatrix::<1, _>(transposed, &addresses, read)?),
        2 => values[..2].copy_from_slice(&tensor_core::ldmatrix::<2, _>(transposed, &addresses, read)?),
        _ => values = tensor_core::ldmatrix::<4, _>(transposed, &addresses, read)?,
    }
    for (&slot, values) in d.iter().zip(&values) {
        *turn.registers.word_mut(slot) = *values;
    }
    Ok(())
}

pub(crate) fn stmatrix(turn: &mut Turn<'_, '_>, transposed: bool, s: &[W], address: Address) -> Result<()> {
    check_whole(turn)?;
    let addresses = turn.registers.addresses(address);
    turn.count_matrices(&addresses.map(|address| address as u32), s.len());
    let registers: Vec<Words> = s.iter().map(|&slot| *turn.registers.word(slot)).collect();
    tensor_core::stmatrix(transposed, &addresses, &registers, |lane, address, row| {
        let address = turn.shared_at(Space::Shared, lane, address, 16)?;
        turn.block.shared.store(address, &row).map_err(|error| turn.shared_fault(lane, error))?;
        turn.note_together(AccessKind::Write, lane, address, 16)
    })
}

/// Where a fragment is for each lane, and the distance of its rows in elements.
fn locate(turn: &Turn<'_, '_>, fragment: &Fragment) -> Result<([u64; LANES], Major, u32)> {
    check_whole(turn)?;
    let bytes = if fragment.part == Part::C { 4 } else { 2 };
    let addresses = turn.registers.addresses(fragment.address);
    if let Some(lane) = addresses.iter().position(|address| *address != addresses[0]) {
        return Err(Fault::lane(lane, "the lanes of the warp give different addresses of one matrix"));
    }
    if !addresses[0].is_multiple_of(32) {
        let space = if fragment.space == Space::Shared { Place::Shared } else { Place::Global };
        let address = addresses[0];
        return Err(Fault::warp(MemoryError::Misaligned { space, address, bytes: 32 }.to_string()));
    }
    let shape = fragment.shape;
    let (rows, columns) = match fragment.part {
        Part::A => (shape.m(), shape.k()),
        Part::B => (shape.k(), shape.n()),
        Part::C => (shape.m(), shape.n()),
    };
    let (major, dense) = if fragment.row_major { (Major::Row, columns) } else { (Major::Column, rows) };
    let stride = fragment.stride.map_or(dense, |stride| turn.registers.word(stride)[0]);
    if !stride.wrapping_mul(bytes).is_multiple_of(16) {
        return Err(Fault::warp(format!("a stride of {stride} elements is no multiple of 16 bytes")));
    }
    Ok((addresses, major, stride))
}

pub(crate) fn load(turn: &mut Turn<'_, '_>, fragment: &Fragment) -> Result<()> {
    let (addresses, major, stride) = locate(turn, fragment)?;
    turn.count_fragment(fragment, addresses[0], major == Major::Row, stride);
    let way = Way { space: fragment.space, order: Order::Weak, together: true };
    let values: [Words; 8] = match fragment.part {
        Part::C => {
            let read = |lane: usize, offset: u64| {
                let mut bytes = [0; 4];
                turn.read(way, lane, addresses[lane].wrapping_add(4 * offset), &mut bytes)?;
                Ok::<_, Box<Fault>>(f32::from_le_bytes(bytes))
            };
            tensor_core::wmma_load_accumulator(fragment.shape, major, stride, read)?
                .map(|lanes| lanes.map(f32::to_bits))
        }
        part => {
            let factor = if part == Part::A { Factor::A } else { Factor::B };
            let read = |lane: usize, offset: u64| {
                let mut bytes = [0; 2];
                turn.read(way, lane, addresses[lane].wrapping_add(2 * offset), &mut bytes)?;
                Ok::<_, Box<Fault>>(u16::from_le_bytes(bytes))
            };
            tensor_core::wmma_load_factor(factor, fragment.shape, major, stride, read)?
        }
    };
    for (&slot, values) in fragment.registers.iter().zip(&values) {
        *turn.registers.word_mut(slot) = *values;
    }
    Ok(())
}

pub(crate) fn store(turn: &mut Turn<'_, '_>, fragment: &Fragment) -> Result<()> {
    let (addresses, major, stride) = locate(turn, fragment)?;
    turn.count_fragment(fragment, addresses[0], major == Major::Row, stride);
    let way = Way { space: fragment.space, order: Order::Weak, together: true };
    let mut values = [[0.0; LANES]; 8];
    for (values, &slot) in values.iter_mut().zip(&fragment.registers) {
        *values = turn.registers.word(slot).map(f32::from_bits);
    }
    tensor_core::wmma_store(fragment.shape, major, stride, &values, |lane, offset, value| {
        turn.write(way, lane, addresses[lane].wrapping_add(4 * offset), &value.to_le_bytes())
    })
}

fn half(element: Element) -> Half {
    match element {
        Element::F16 => Half::F16,
        Element::Bf16 => Half::Bf16,
    }
}

pub(crate) fn wmma(turn: &mut Turn<'_, '_>, wmma: &Wmma) -> Result<()> {
    check_whole(turn)?;
    turn.count_product(wmma.shape.m(), wmma.shape.n(), wmma.shape.k());
    let registers = &mut *turn.registers;
    let (a, b) = (wmma.a.map(|slot| *registers.word(slot)), wmma.b.map(|slot| *registers.word(slot)));
    let c = wmma.c.map(|slot| registers.word(slot).map(f32::from_bits));
    let d = tensor_core::wmma(wmma.shape, half(wmma.element), &a, &b, &c);
    for (slot, values) in wmma.d.into_iter().zip(d) {
        *registers.word_mut(slot) = values.map(f32::to_bits);
    }
    Ok(())
}

pub(crate) fn mma(turn: &mut Turn<'_, '_>, mma: &Mma) -> Result<()> {
    check_whole(turn)?;
    turn.count_product(16, 8, mma.kind.k());
    let registers = &mut *turn.registers;
    let (a, b) = (mma.a.map(|slot| *registers.word(slot)), mma.b.map(|slot| *registers.word(slot)));
    let c = mma.c.map(|slot| registers.word(slot).map(f32::from_bits));
    let quarter = |e4m3: bool| if e4m3 { Quarter::E4m3 } else { Quarter::E5m2 };
    let d = match mma.kind {
        MmaKind::Half(element) => tensor_core::mma_m16n8k16(half(element), &a, &b, &c),
        MmaKind::Tf32 => tensor_core::mma_m16n8k8_tf32(&a, &b, &c),
        MmaKind::Quarter { a_e4m3, b_e4m3 } => {
            tensor_core::mma_m16n8k32((quarter(a_e4m3), &a), (quarter(b_e4m3), &b), &c)
        }
    };
    for (slot, values) in mma.d.into_iter().zip(d) {
        *registers.word_mut(slot) = values.map(f32::to_bits);
    }
    Ok(())
}
