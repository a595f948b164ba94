//! The registers that each instruction reads and writes, but for predicates.

use crate::program::{Access, Address, Base, D, Direction, General, GlobalSide, Hopper, Op, Reg, W, WgmmaA};

/// What an instruction does with an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Read,
    Write,
    /// It is read and written.
    Update,
}

impl Role {
    pub(crate) fn reads(self) -> bool {
        self != Role::Write
    }

    pub(crate) fn writes(self) -> bool {
        self != Role::Read
    }
}

/// An operand, to look at or to replace.
#[derive(Debug)]
pub(crate) enum Operand<'a> {
    W(&'a mut W),
    D(&'a mut D),
}

impl Operand<'_> {
    pub(crate) fn register(&self) -> Reg {
        match self {
            Operand::W(slot) => Reg::W(**slot),
            Operand::D(slot) => Reg::D(**slot),
        }
    }
}

trait Visit: FnMut(Role, Operand<'_>) {
    fn word(&mut self, role: Role, slot: &mut W) {
        self(role, Operand::W(slot));
    }

    fn words(&mut self, role: Role, slots: &mut [W]) {
        slots.iter_mut().for_each(|slot| self(role, Operand::W(slot)));
    }

    fn double(&mut self, role: Role, slot: &mut D) {
        self(role, Operand::D(slot));
    }

    fn register(&mut self, role: Role, register: &mut Reg) {
        match register {
            Reg::P(_) => {}
            Reg::H(slot) | Reg::W(slot) => self(role, Operand::W(slot)),
            Reg::D(slot) => self(role, Operand::D(slot)),
        }
    }

    fn address(&mut self, address: &mut Address) {
        match &mut address.base {
            Base::None => {}
            Base::W(slot) => self(Role::Read, Operand::W(slot)),
            Base::D(slot) => self(Role::Read, Operand::D(slot)),
        }
    }
}

impl<F: FnMut(Role, Operand<'_>)> Visit for F {}

/// Calls `visit` once for every operand.
pub(crate) fn visit(op: &mut Op, mut visit: impl FnMut(Role, Operand<'_>)) {
    use Role::{Read, Write};
    let v = &mut visit;
    match op {
        Op::Int32 { d, s, .. } | Op::Int16 { d, s, .. } => {
            v.words(Read, s);
            v.word(Write, d);
        }
        Op::Int64 { d, s, n, .. } => {
            s.iter_mut().for_each(|slot| v.double(Read, slot));
            v.words(Read, n);
            v.double(Write, d);
        }
        Op::Count64 { d, a, .. } => {
            v.double(Read, a);
            v.word(Write, d);
        }
        Op::MulWide { d, a, b, .. } => {
            v.word(Read, a);
            v.word(Read, b);
            v.double(Write, d);
        }
        Op::MadWide { d, a, b, c, .. } => {
            v.word(Read, a);
            v.word(Read, b);
            v.double(Read, c);
            v.double(Write, d);
        }
        Op::MulWide16 { d, a, b, c, .. } => {
            [a, b, c].into_iter().for_each(|slot| v.word(Read, slot));
            v.word(Write, d);
        }
        Op::Float32 { d, s, .. } | Op::Narrow { d, s, .. } => {
            v.words(Read, s);
            v.word(Write, d);
        }
        Op::Float64 { d, s, .. } => {
            s.iter_mut().for_each(|slot| v.double(Read, slot));
            v.double(Write, d);
        }
        Op::Set { a, b, .. } => {
            v.register(Read, a);
            v.register(Read, b);
        }
        Op::Select32 { d, a, b, .. } => {
            v.word(Read, a);
            v.word(Read, b);
            v.word(Write, d);
        }
        Op::Select64 { d, a, b, .. } => {
            v.double(Read, a);
            v.double(Read, b);
            v.double(Write, d);
        }
        Op::Pack { d, parts } => {
            parts.iter_mut().for_each(|part| v.register(Read, part));
            v.register(Write, d);
        }
        Op::Unpack { parts, a } => {
            v.register(Read, a);
            parts.iter_mut().flatten().for_each(|part| v.register(Write, part));
        }
        Op::Cvt(cvt) => {
            v.register(Read, &mut cvt.a);
            v.register(Read, &mut cvt.b);
            v.register(Write, &mut cvt.d);
        }
        Op::Cvta { d, a, .. } => {
            v.double(Read, a);
            v.double(Write, d);
        }
        Op::Clock { d } => v.register(Write, d),
        Op::ActiveMask { d } => v.word(Write, d),
        Op::Load(access) => {
            v.address(&mut access.address);
            access.registers.iter_mut().flatten().for_each(|register| v.register(Write, register));
        }
        Op::Store(access) => stored(access, v),
        Op::Atomic(atomic) => {
            v.address(&mut atomic.address);
            v.register(Read, &mut atomic.b);
            v.register(Read, &mut atomic.c);
            atomic.d.iter_mut().for_each(|register| v.register(Write, register));
        }
        Op::CopyAsync { to, from, source_bytes, .. } => {
            v.address(to);
            v.address(from);
            source_bytes.iter_mut().for_each(|slot| v.word(Read, slot));
        }
        Op::Barrier { id, threads, .. } => {
            v.word(Read, id);
            threads.iter_mut().for_each(|slot| v.word(Read, slot));
        }
        Op::WarpSync { mask } => v.word(Read, mask),
        Op::Shuffle { d, a, b, c, mask, .. } => {
            [a, b, c, mask].into_iter().for_each(|slot| v.word(Read, slot));
            v.word(Write, d);
        }
        Op::Vote { d, mask, .. } => {
            v.word(Read, mask);
            v.register(Write, d);
        }
        Op::Redux { d, a, mask, .. } => {
            v.word(Read, a);
            v.word(Read, mask);
            v.word(Write, d);
        }
        Op::Match { d, a, mask, .. } => {
            v.register(Read, a);
            v.word(Read, mask);
            v.word(Write, d);
        }
        Op::Elect { d, mask, .. } => {
            v.word(Read, mask);
            d.iter_mut().for_each(|slot| v.word(Write, slot));
        }
        Op::MbarrierInit { address, count } => {
            v.address(address);
            v.word(Read, count);
        }
        Op::MbarrierInvalidate { address } => v.address(address),
        Op::MbarrierArrive { d, address, count, expect_bytes } => {
            v.address(address);
            count.iter_mut().chain(expect_bytes).for_each(|slot| v.word(Read, slot));
            d.iter_mut().for_each(|slot| v.double(Write, slot));
        }
        Op::MbarrierExpect { address, bytes, .. } => {
            v.address(address);
            v.word(Read, bytes);
        }
        Op::MbarrierTest { address, token, .. } => {
            v.address(address);
            v.register(Read, token);
        }
        Op::Ldmatrix { d, address, .. } => {
            v.address(address);
            v.words(Write, d);
        }
        Op::Stmatrix { s, address, .. } => {
            v.address(address);
            v.words(Read, s);
        }
        Op::FragmentLoad(fragment) => {
            v.address(&mut fragment.address);
            fragment.stride.iter_mut().for_each(|slot| v.word(Read, slot));
            v.words(Write, &mut fragment.registers);
        }
        Op::FragmentStore(fragment) => {
            v.address(&mut fragment.address);
            fragment.stride.iter_mut().for_each(|slot| v.word(Read, slot));
            v.words(Read, &mut fragment.registers);
        }
        Op::Wmma(wmma) => {
            [&mut wmma.a, &mut wmma.b, &mut wmma.c].into_iter().for_each(|slots| v.words(Read, slots));
            v.words(Write, &mut wmma.d);
        }
        Op::Mma(mma) => {
            v.words(Read, &mut mma.a);
            v.words(Read, &mut mma.b);
            v.words(Read, &mut mma.c);
            v.words(Write, &mut mma.d);
        }
        Op::Hopper(op) => hopper(op, v),
        Op::General(op) => general(op, v),
        Op::Predicate { .. }
        | Op::CopyCommit
        | Op::CopyWait { .. }
        | Op::Fence { .. }
        | Op::Branch { .. }
        | Op::Exit
        | Op::Call { .. }
        | Op::Return
        | Op::Trap { .. } => {}
    }
}

fn global_side(global: &mut GlobalSide, v: &mut impl FnMut(Role, Operand<'_>)) {
    match global {
        GlobalSide::Line { address, bytes } => {
            v.address(address);
            v.word(Role::Read, bytes);
        }
        GlobalSide::Tensor { map, coordinates } => {
            v.address(map);
            v.words(Role::Read, coordinates);
        }
    }
}

fn stored(store: &mut Access, v: &mut impl FnMut(Role, Operand<'_>)) {
    v.address(&mut store.address);
    store.registers.iter_mut().flatten().for_each(|register| v.register(Role::Read, register));
}

fn general(op: &mut General, v: &mut impl FnMut(Role, Operand<'_>)) {
    use Role::{Read, Write};
    match op {
        General::Carry(carry) => {
            carry.s.iter_mut().for_each(|register| v.register(Read, register));
            v.register(Write, &mut carry.d);
        }
        General::Rounded(rounded) => {
            rounded.s.iter_mut().for_each(|register| v.register(Read, register));
            v.register(Write, &mut rounded.d);
        }
        General::Gross { d, a, .. } | General::RootOf64 { d, a } => {
            v.double(Read, a);
            v.double(Write, d);
        }
        General::Dot(dot) => {
            v.words(Read, &mut dot.s);
            v.word(Write, &mut dot.d);
        }
        General::Field { d, s, .. } => {
            v.words(Read, s);
            v.word(Write, d);
        }
        General::TestNumber { a, .. } => v.register(Read, a),
        General::IsSpace { a, .. } => v.double(Read, a),
        General::Discard { address } => v.address(address),
        General::IntegerMma(mma) => {
            [&mut mma.a, &mut mma.b, &mut mma.c].into_iter().for_each(|slots| v.words(Read, slots));
            v.words(Write, &mut mma.d);
        }
        General::BarrierVote { .. } | General::Reserve { .. } => {}
        General::BarrierResult { d, .. } => v.register(Write, d),
        General::CopyLocal { to, from, .. } => {
            v.address(to);
            v.address(from);
        }
        General::Spill { restores, to, registers } => {
            v.address(to);
            let role = if *restores { Write } else { Read };
            registers.iter_mut().for_each(|register| v.register(role, register));
        }
        General::Print { format, arguments, d } => {
            v.double(Read, format);
            v.double(Read, arguments);
            v.word(Write, d);
        }
        General::AssertFail { message, file, line, function } => {
            [message, file, function].into_iter().for_each(|slot| v.double(Read, slot));
            v.word(Read, line);
        }
    }
}

fn hopper(op: &mut Hopper, v: &mut impl FnMut(Role, Operand<'_>)) {
    use Role::{Read, Update, Write};
    match op {
        Hopper::Wgmma(wgmma) => {
            match &mut wgmma.a {
                WgmmaA::Registers(a) => v.words(Read, a),
                WgmmaA::Shared(a, _) => v.double(Read, a),
            }
            v.double(Read, &mut wgmma.b.0);
            v.words(Update, &mut wgmma.d);
        }
        Hopper::Bulk(bulk) => {
            v.address(&mut bulk.shared);
            global_side(&mut bulk.global, v);
            if let Direction::Load { barrier, blocks } = &mut bulk.direction {
                v.address(barrier);
                blocks.iter_mut().for_each(|slot| v.word(Read, slot));
            }
        }
        Hopper::StoreAsync { store, barrier } => {
            stored(store, v);
            v.address(barrier);
        }
        Hopper::PrefetchMap { map } => v.address(map),
        Hopper::PrefetchBulk(global) => global_side(global, v),
        Hopper::MapAddress { d, a, rank, .. } => {
            v.register(Read, a);
            v.word(Read, rank);
            v.register(Write, d);
        }
        Hopper::RankOfAddress { d, a, .. } => {
            v.register(Read, a);
            v.word(Write, d);
        }
        Hopper::WgmmaFence | Hopper::WgmmaCommit | Hopper::WgmmaWait { .. } | Hopper::BulkCommit => {}
        Hopper::BulkWait { .. } | Hopper::ClusterArrive | Hopper::ClusterWait | Hopper::SetRegisters { .. } => {}
        Hopper::MbarrierInitFence | Hopper::Hint => {}
    }
}
