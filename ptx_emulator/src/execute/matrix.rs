//! `ldmatrix`, `wmma` and `mma`: the operands of the functions of `tensor_core`.

use super::Fault;
use super::access::{Noted, Way};
use crate::memory::{MemoryError, Space as MemorySpace};
use crate::program::{Address, Element, Fragment, Mma, MmaKind, Order, Part, Space, W, Wmma};
use crate::registers::{LANES, Words};
use crate::shadow::AccessKind;
use crate::tensor_core::{self, Factor, Half, LINE, Major, Quarter};
use crate::turn::Turn;

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
        let address = turn.shared_at(Space::Shared, lane, address, 16)?;
        let row = match turn.cluster.shared.load_elements(address) {
            Some([row]) => row,
            None => {
                let mut row = [0; 16];
                turn.cluster.shared.load(address, &mut row).map_err(|error| turn.shared_fault(lane, error))?;
                row
            }
        };
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
        turn.cluster.shared.store(address, &row).map_err(|error| turn.shared_fault(lane, error))?;
        turn.note_together(AccessKind::Write, lane, address, 16)
    })
}

/// Where the lines of a fragment are in memory.
struct Lines {
    address: u64,
    /// Elements from one to the next, and their bytes.
    stride: u32,
    stride_bytes: u64,
    /// The length of one.
    bytes: usize,
    major: Major,
}

/// The accesses to a line, each aligned by the rules for its address and stride.
const PIECE: usize = 16;

impl Lines {
    fn new(turn: &Turn<'_, '_>, fragment: &Fragment) -> Result<Lines> {
        check_whole(turn)?;
        let bytes = if fragment.part == Part::C { 4 } else { 2 };
        let addresses = turn.registers.addresses(fragment.address);
        if let Some(lane) = addresses.iter().position(|address| *address != addresses[0]) {
            return Err(Fault::lane(lane, "the lanes of the warp give different addresses of one matrix"));
        }
        let address = addresses[0];
        if !address.is_multiple_of(32) {
            let space = if fragment.space == Space::Shared { MemorySpace::Shared } else { MemorySpace::Global };
            return Err(Fault::warp(MemoryError::Misaligned { space, address, bytes: 32 }.to_string()));
        }
        let shape = fragment.shape;
        let (rows, columns) = match fragment.part {
            Part::A => (shape.m(), shape.k()),
            Part::B => (shape.k(), shape.n()),
            Part::C => (shape.m(), shape.n()),
        };
        let (major, length) = if fragment.row_major { (Major::Row, columns) } else { (Major::Column, rows) };
        let stride = fragment.stride.map_or(length, |stride| turn.registers.word(stride)[0]);
        if !stride.wrapping_mul(bytes).is_multiple_of(16) {
            return Err(Fault::warp(format!("a stride of {stride} elements is no multiple of 16 bytes")));
        }
        let stride_bytes = u64::from(stride) * u64::from(bytes);
        Ok(Lines { address, stride, stride_bytes, bytes: (length * bytes) as usize, major })
    }

    fn start(&self, line: usize) -> u64 {
        self.address.wrapping_add(self.stride_bytes * line as u64)
    }

    /// The bytes of a line. The warp reads them as one, for which its first lane stands.
    fn read(&self, turn: &mut Turn<'_, '_>, space: Space, line: usize) -> Result<[u8; 4 * LINE]> {
        let way = Way { space, order: Order::Weak, noted: Noted::Together };
        let mut bytes = [0; 4 * LINE];
        for (piece, at) in bytes[..self.bytes].chunks_mut(PIECE).zip((self.start(line)..).step_by(PIECE)) {
            turn.read(way, 0, at, piece)?;
        }
        Ok(bytes)
    }
}

pub(crate) fn load(turn: &mut Turn<'_, '_>, fragment: &Fragment) -> Result<()> {
    let lines = Lines::new(turn, fragment)?;
    turn.count_fragment(fragment, lines.address, lines.major == Major::Row, lines.stride);
    let values: [Words; 8] = match fragment.part {
        Part::C => {
            let read = |line: usize| {
                let bytes = lines.read(turn, fragment.space, line)?;
                let (words, _) = bytes.as_chunks();
                Ok::<_, Box<Fault>>(std::array::from_fn(|place| f32::from_le_bytes(words[place])))
            };
            tensor_core::wmma_load_accumulator(fragment.shape, lines.major, read)?.map(|lanes| lanes.map(f32::to_bits))
        }
        part => {
            let factor = if part == Part::A { Factor::A } else { Factor::B };
            let read = |line: usize| {
                let bytes = lines.read(turn, fragment.space, line)?;
                let (halves, _) = bytes.as_chunks();
                Ok::<_, Box<Fault>>(std::array::from_fn(|place| u16::from_le_bytes(halves[place])))
            };
            tensor_core::wmma_load_factor(factor, fragment.shape, lines.major, read)?
        }
    };
    for (&slot, values) in fragment.registers.iter().zip(&values) {
        *turn.registers.word_mut(slot) = *values;
    }
    Ok(())
}

pub(crate) fn store(turn: &mut Turn<'_, '_>, fragment: &Fragment) -> Result<()> {
    let lines = Lines::new(turn, fragment)?;
    turn.count_fragment(fragment, lines.address, lines.major == Major::Row, lines.stride);
    let way = Way { space: fragment.space, order: Order::Weak, noted: Noted::Together };
    let mut values = [[0.0; LANES]; 8];
    for (values, &slot) in values.iter_mut().zip(&fragment.registers) {
        *values = turn.registers.word(slot).map(f32::from_bits);
    }
    tensor_core::wmma_store(fragment.shape, lines.major, &values, |line, values| {
        let pieces = values.chunks(PIECE / 4).zip((lines.start(line)..).step_by(PIECE));
        pieces.into_iter().try_for_each(|(piece, at)| {
            let mut bytes = [0; PIECE];
            for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(piece) {
                *bytes = value.to_le_bytes();
            }
            turn.write(way, 0, at, &bytes)
        })
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
