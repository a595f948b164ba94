//! Which registers an instruction reads and writes.

use super::{Access, Address, Base, Op, Reg, W};

impl Address {
    pub(super) fn registers(&self, visit: &mut dyn FnMut(Reg, bool)) {
        match self.base {
            Base::None => {}
            Base::W(slot) => visit(Reg::W(slot), false),
            Base::D(slot) => visit(Reg::D(slot), false),
        }
    }
}

impl Access {
    fn visit(&self, writes: bool, visit: &mut dyn FnMut(Reg, bool)) {
        self.address.registers(visit);
        self.registers.iter().flatten().for_each(|&register| visit(register, writes));
    }
}

impl Op {
    /// Calls `visit` with each register but predicates, and whether it is written. Constants are registers too.
    pub(crate) fn registers(&self, visit: &mut dyn FnMut(Reg, bool)) {
        let mut to = |d: Reg, sources: &[Reg]| {
            sources.iter().for_each(|&source| visit(source, false));
            visit(d, true);
        };
        let w = Reg::W;
        match self {
            Op::Int32 { d, s, .. } | Op::Int16 { d, s, .. } => to(w(*d), &s.map(w)),
            Op::Int64 { d, s, n, .. } => {
                to(Reg::D(*d), &s.map(Reg::D));
                n.iter().for_each(|&n| visit(w(n), false));
            }
            Op::Count64 { d, a, .. } => to(w(*d), &[Reg::D(*a)]),
            Op::MulWide { d, a, b, .. } => to(Reg::D(*d), &[w(*a), w(*b)]),
            Op::MadWide { d, a, b, c, .. } => to(Reg::D(*d), &[w(*a), w(*b), Reg::D(*c)]),
            Op::MulWide16 { d, a, b, c, .. } => to(w(*d), &[w(*a), w(*b), w(*c)]),
            Op::Float32 { d, s, .. } | Op::Narrow { d, s, .. } => to(w(*d), &s.map(w)),
            Op::Float64 { d, s, .. } => to(Reg::D(*d), &s.map(Reg::D)),
            Op::Set { a, b, .. } => [a, b].into_iter().for_each(|&source| visit(source, false)),
            Op::Select32 { d, a, b, .. } => to(w(*d), &[w(*a), w(*b)]),
            Op::Select64 { d, a, b, .. } => to(Reg::D(*d), &[Reg::D(*a), Reg::D(*b)]),
            Op::Pack { d, parts } => to(*d, parts),
            Op::Unpack { parts, a } => {
                visit(*a, false);
                parts.iter().flatten().for_each(|&part| visit(part, true));
            }
            Op::Cvt(cvt) => to(cvt.d, &[cvt.a, cvt.b]),
            Op::Cvta { d, a, .. } => to(Reg::D(*d), &[Reg::D(*a)]),
            Op::Clock { d } => visit(*d, true),
            Op::ActiveMask { d } => visit(w(*d), true),
            Op::Load(access) => access.visit(true, visit),
            Op::Store(access) => access.visit(false, visit),
            Op::Atomic(atomic) => {
                atomic.address.registers(visit);
                [atomic.b, atomic.c].into_iter().for_each(|source| visit(source, false));
                atomic.d.iter().for_each(|&d| visit(d, true));
            }
            Op::CopyAsync { to, from, source_bytes, .. } => {
                [to, from].into_iter().for_each(|address| address.registers(visit));
                source_bytes.iter().for_each(|&bytes| visit(w(bytes), false));
            }
            Op::Barrier { id, threads, .. } => {
                [*id].iter().chain(threads).for_each(|&source| visit(w(source), false));
            }
            Op::WarpSync { mask } => visit(w(*mask), false),
            Op::Shuffle { d, a, b, c, mask, .. } => to(w(*d), &[*a, *b, *c, *mask].map(w)),
            Op::Vote { d, mask, .. } => to(*d, &[w(*mask)]),
            Op::Redux { d, a, mask, .. } => to(w(*d), &[w(*a), w(*mask)]),
            Op::Match { d, a, mask, .. } => to(w(*d), &[*a, w(*mask)]),
            Op::Elect { d, mask, .. } => {
                visit(w(*mask), false);
                d.iter().for_each(|&d| visit(w(d), true));
            }
            Op::MbarrierInit { address, count } => {
                address.registers(visit);
                visit(w(*count), false);
            }
            Op::MbarrierInvalidate { address } => address.registers(visit),
            Op::MbarrierArrive { d, address, count, expect_bytes } => {
                address.registers(visit);
                count.iter().chain(expect_bytes).for_each(|&source| visit(w(source), false));
                d.iter().for_each(|&d| visit(Reg::D(d), true));
            }
            Op::MbarrierExpect { address, bytes, .. } => {
                address.registers(visit);
                visit(w(*bytes), false);
            }
            Op::MbarrierTest { address, token, .. } => {
                address.registers(visit);
                visit(*token, false);
            }
            Op::Ldmatrix { d, address, .. } => fragment(d, address, true, visit),
            Op::Stmatrix { s, address, .. } => fragment(s, address, false, visit),
            Op::FragmentLoad(it) => fragment(&it.registers, &it.address, true, visit),
            Op::FragmentStore(it) => fragment(&it.registers, &it.address, false, visit),
            Op::Wmma(it) => {
                it.a.iter().chain(&it.b).chain(&it.c).for_each(|&source| visit(w(source), false));
                it.d.iter().for_each(|&d| visit(w(d), true));
            }
            Op::Mma(it) => {
                it.a.iter().chain(&it.b).chain(&it.c).for_each(|&source| visit(w(source), false));
                it.d.iter().for_each(|&d| visit(w(d), true));
            }
            Op::Hopper(hopper) => hopper.registers(visit),
            Op::Predicate { .. } | Op::CopyCommit | Op::CopyWait { .. } | Op::Fence { .. } => {}
            Op::Branch { .. } | Op::Exit | Op::Trap { .. } => {}
        }
    }
}

fn fragment(registers: &[W], address: &Address, writes: bool, visit: &mut dyn FnMut(Reg, bool)) {
    address.registers(visit);
    registers.iter().for_each(|&register| visit(Reg::W(register), writes));
}
