//! What the accesses of an instruction add to the counters, where there are any.

use crate::counters::SharedKind;
use crate::program::{Fragment, Part, Space};
use crate::registers::{Doubles, LANES, lanes, resolve};
use crate::turn::Turn;

/// Bytes of a row of a matrix that the hardware moves as one.
const ROW_BYTES: u32 = 16;
/// Rows of such a matrix.
const ROWS: usize = 8;

impl Turn<'_, '_> {
    /// An access of each lane to `bytes` bytes.
    #[inline]
    pub(crate) fn count_access(&mut self, space: Space, addresses: &Doubles, bytes: usize, kind: SharedKind) {
        if self.cluster.tally.is_some() {
            self.count_lanes(space, addresses, bytes as u32, kind);
        }
    }

    fn count_lanes(&mut self, space: Space, addresses: &Doubles, bytes: u32, kind: SharedKind) {
        let Some(tally) = &mut self.cluster.tally else { return };
        let (mut shared, mut in_shared, mut in_global) = ([0; LANES], 0, 0);
        for lane in lanes(self.mask) {
            match resolve(space, addresses[lane]) {
                (Space::Shared, address) => {
                    shared[lane] = address as u32;
                    in_shared |= 1 << lane;
                }
                (Space::Global | Space::Generic, _) => in_global |= 1 << lane,
                _ => {}
            }
        }
        if in_shared != 0 {
            tally.shared(self.at, &shared, bytes, in_shared, kind);
        }
        if in_global != 0 {
            tally.global(self.at, lanes(in_global).map(|lane| (addresses[lane], bytes)));
        }
    }

    /// A `cp.async` of each lane, which reads `source[lane]` bytes and writes `bytes`.
    pub(crate) fn count_copy(&mut self, to: &Doubles, from: &Doubles, source: &[u32; LANES], bytes: u32) {
        let Some(tally) = &mut self.cluster.tally else { return };
        let parts = lanes(self.mask).map(|lane| (from[lane], source[lane].min(bytes)));
        tally.global(self.at, parts.filter(|part| part.1 > 0));
        tally.shared(self.at, &to.map(|address| address as u32), bytes, self.mask, SharedKind::Plain);
    }

    /// The rows of `ldmatrix` and `stmatrix`: eight for each of `matrices`.
    pub(crate) fn count_matrices(&mut self, rows: &[u32; LANES], matrices: usize) {
        let Some(tally) = &mut self.cluster.tally else { return };
        let mask = u32::MAX >> (LANES - ROWS * matrices.min(LANES / ROWS));
        tally.shared(self.at, rows, ROW_BYTES, mask, SharedKind::Plain);
    }

    /// A fragment of `wmma`, of lines that are `stride` elements apart.
    pub(crate) fn count_fragment(&mut self, fragment: &Fragment, address: u64, row_major: bool, stride: u32) {
        let Some(tally) = &mut self.cluster.tally else { return };
        let (shape, element_bytes) = (fragment.shape, if fragment.part == Part::C { 4 } else { 2 });
        let (rows, columns) = match fragment.part {
            Part::A => (shape.m(), shape.k()),
            Part::B => (shape.k(), shape.n()),
            Part::C => (shape.m(), shape.n()),
        };
        let (count, length) = if row_major { (rows, columns) } else { (columns, rows) };
        let line = |at: u32| u64::from(at) * u64::from(stride) * u64::from(element_bytes);
        let (space, address) = resolve(fragment.space, address);
        if space != Space::Shared {
            let line = |at: u32| (address.wrapping_add(line(at)), length * element_bytes);
            return tally.global(self.at, (0..count).map(line));
        }
        let address = address as u32;
        if fragment.part != Part::C {
            for first in (0..count).step_by(ROWS) {
                for chunk in (0..length * element_bytes).step_by(ROW_BYTES as usize) {
                    let row = |row: usize| address.wrapping_add(line(first + row as u32 % ROWS as u32) as u32 + chunk);
                    tally.shared(self.at, &std::array::from_fn(row), ROW_BYTES, (1 << ROWS) - 1, SharedKind::Plain);
                }
            }
            return;
        }
        // Two neighbours of a row are in one lane: one access where they are neighbours in memory.
        let together = if row_major { 2 } else { 1 };
        for register in (0..fragment.registers.len() as u32).step_by(together as usize) {
            let place = |lane: usize| {
                let (row, column) = shape.c(lane as u32, register);
                let (outer, inner) = if row_major { (row, column) } else { (column, row) };
                address.wrapping_add(line(outer) as u32 + inner * element_bytes)
            };
            let length = element_bytes * together;
            tally.shared(self.at, &std::array::from_fn(place), length, u32::MAX, SharedKind::Plain);
        }
    }

    /// A bulk copy, by its pieces in global memory.
    pub(crate) fn count_pieces(&mut self, pieces: impl Iterator<Item = (u64, u32)>) {
        if let Some(tally) = &mut self.cluster.tally {
            tally.global(self.at, pieces);
        }
    }

    /// A product of tensor cores, of m x n x k.
    pub(crate) fn count_product(&mut self, m: u32, n: u32, k: u32) {
        if let Some(tally) = &mut self.cluster.tally {
            tally.tensor_operations(self.at, 2 * u64::from(m) * u64::from(n) * u64::from(k));
        }
    }
}
