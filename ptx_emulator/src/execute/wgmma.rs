//! `wgmma`: each warp of a warpgroup computes its 16 rows of D when it comes to the instruction.

use std::sync::Arc;

use layout::descriptor::{Descriptor, Major};

use super::Fault;
use super::matrix::check_whole;
use crate::cluster::warpgroups::{Product, Read, WARPS};
use crate::program::{D, Element as Narrow, MmaKind, Space, W, Wgmma, WgmmaA};
use crate::shadow::{Access, AccessKind, Operation, Proxy};
use crate::tensor_core::wgmma::{Accumulators, Element, Factor, ROWS, UNIT_BYTES};
use crate::tensor_core::{Half, Quarter};
use crate::turn::Turn;

type Result<T> = std::result::Result<T, Box<Fault>>;

fn elements(kind: MmaKind) -> [Element; 2] {
    let half = |narrow| match narrow {
        Narrow::F16 => Element::Half(Half::F16),
        Narrow::Bf16 => Element::Half(Half::Bf16),
    };
    let quarter = |e4m3| Element::Quarter(if e4m3 { Quarter::E4m3 } else { Quarter::E5m2 });
    match kind {
        MmaKind::Half(narrow) => [half(narrow); 2],
        MmaKind::Tf32 => [Element::Tf32; 2],
        MmaKind::Quarter { a_e4m3, b_e4m3 } => [quarter(a_e4m3), quarter(b_e4m3)],
    }
}

impl Turn<'_, '_> {
    /// A descriptor, which is the same in all lanes.
    fn descriptor(&self, slot: D) -> Result<u64> {
        let values = self.registers.double(slot);
        match values.iter().position(|value| *value != values[0]) {
            None => Ok(values[0]),
            Some(lane) => Err(Fault::lane(lane, "the lanes of the warp give different descriptors")),
        }
    }

    /// A factor in shared memory, whose reads belong to an operation.
    fn factor(
        &mut self,
        operation: Operation,
        element: Element,
        (descriptor, major): (u64, Major),
        extent: (usize, usize),
    ) -> Result<Read> {
        let descriptor = Descriptor::from_raw(descriptor);
        let mut units = Vec::new();
        let factor = Factor::from_shared(element, (descriptor, major), extent, |address| {
            let at = self.shared_at(Space::Shared, 0, address.into(), UNIT_BYTES as usize).map_err(whole)?;
            let mut bytes = [0; UNIT_BYTES as usize];
            let read = self.cluster.shared.copy_out(at, &mut bytes);
            read.map_err(|error| whole(self.shared_fault(0, error)))?;
            units.push(at);
            Ok::<_, Box<Fault>>(bytes)
        })?;
        self.note_units(operation, &units)?;
        Ok(Read { factor, units })
    }

    /// Notes the reads of a factor.
    fn note_units(&mut self, operation: Operation, units: &[u32]) -> Result<()> {
        let access = Access { proxy: Proxy::Async, ..Access::collective(self.threads(), AccessKind::Read, self.line) };
        units.iter().try_for_each(|&at| {
            let noted = self.cluster.shadow.access_pending(operation, &access, at, UNIT_BYTES);
            noted.map_err(|race| whole(self.shared_fault(0, race)))
        })
    }
}

/// The same for the whole warp.
fn whole(mut fault: Box<Fault>) -> Box<Fault> {
    fault.lane = None;
    fault
}

pub(crate) fn run(turn: &mut Turn<'_, '_>, wgmma: &Wgmma) -> Result<()> {
    check_whole(turn)?;
    let shape = turn.cluster.shape;
    let (warp, quarter) = (turn.warp % shape.warps, turn.warp % shape.warps % WARPS);
    if warp - quarter + WARPS > shape.warps {
        return Err(Fault::warp("the last warps of the block are no warpgroup, which has four"));
    }
    if !wgmma.fenced {
        return Err(Fault::warp("no wgmma.fence stands between it and an earlier access to its registers"));
    }
    let added = turn.registers.test(wgmma.scale_d);
    if added != 0 && added != u32::MAX {
        return Err(Fault::warp("scale-d is not the same in all lanes of the warp"));
    }
    turn.count_product(ROWS as u32, wgmma.n, wgmma.kind.k());
    let line = turn.line;
    turn.in_flight.start(wgmma, line)?;
    let operation = turn.in_flight.operation(&mut turn.cluster.shadow);
    let [a_element, b_element] = elements(wgmma.kind);
    let (a, a_descriptor) = match wgmma.a {
        WgmmaA::Registers(slots) => {
            (Factor::from_registers(a_element, slots.map(|slot: W| turn.registers.word(slot))), 0)
        }
        WgmmaA::Shared(slot, major) => {
            let descriptor = turn.descriptor(slot)?;
            let rows = (quarter as usize * ROWS, ROWS);
            (turn.factor(operation, a_element, (descriptor, major), rows)?.factor, descriptor)
        }
    };
    let b_descriptor = turn.descriptor(wgmma.b.0)?;
    let columns = (b_descriptor, wgmma.b.1);
    let b = shared_factor(turn, operation, b_element, columns, (wgmma.n as usize, a_descriptor))?;
    let n = wgmma.n as usize;
    let mut d = if added == 0 {
        Accumulators::zero(n)
    } else {
        Accumulators::from_registers(n, wgmma.f16, wgmma.d.iter().map(|&slot| turn.registers.word(slot)))
    };
    d.add_product(&a, &b.factor, wgmma.negated, a_element.rule(b_element, wgmma.f16, turn.cluster.fp8_sums));
    for (register, &slot) in wgmma.d.iter().enumerate() {
        *turn.registers.word_mut(slot) = d.register(wgmma.f16, register);
    }
    Ok(())
}

/// B, which the first warp of the warpgroup decodes for all; the others must come to the same product.
fn shared_factor(
    turn: &mut Turn<'_, '_>,
    operation: Operation,
    element: Element,
    descriptor: (u64, Major),
    (n, a): (usize, u64),
) -> Result<Arc<Read>> {
    let shape = turn.cluster.shape;
    let warpgroups = shape.warps / WARPS;
    let group = (turn.rank() * warpgroups + turn.warp % shape.warps / WARPS) as usize;
    let quarter = (turn.warp % shape.warps % WARPS) as usize;
    let log = &turn.cluster.warpgroups.logs[group];
    let index = (log.executed[quarter] - log.common) as usize;
    let factor = match log.ahead.get(index) {
        Some(product) => {
            if product.at != turn.at {
                let there = turn.cluster.program.place(product.at);
                let problem = format!("another warp of the warpgroup executes the wgmma in {there} instead");
                return Err(Fault::warp(problem));
            }
            if (product.a, product.b) != (a, descriptor.0) {
                return Err(Fault::warp("the warps of the warpgroup give different descriptors"));
            }
            let factor = Arc::clone(&product.factor);
            turn.note_units(operation, &factor.units)?;
            factor
        }
        None => {
            let factor = Arc::new(turn.factor(operation, element, descriptor, (0, n))?);
            let product = Product { warp: turn.warp, at: turn.at, a, b: descriptor.0, factor: Arc::clone(&factor) };
            turn.cluster.warpgroups.logs[group].ahead.push_back(product);
            factor
        }
    };
    let log = &mut turn.cluster.warpgroups.logs[group];
    log.executed[quarter] += 1;
    if log.executed.iter().all(|&executed| executed > log.common) {
        log.common += 1;
        log.ahead.pop_front();
    }
    Ok(factor)
}
