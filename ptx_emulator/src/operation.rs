//! The typed instructions and their operands.

mod general;
mod hopper;

pub(crate) use crate::conversion::{Cvt, Round, Type};
pub(crate) use crate::slots::{D, P, Reg, Test, W};
pub(crate) use general::{Carry, CarryOp, Dot, FieldOp, General, IntegerMma, NumberKind, Permute, Reduction, Rounded};
pub(crate) use hopper::{Bulk, Direction, GlobalSide, Hopper, Wgmma, WgmmaA};
use layout::fragment::WmmaShape;

use crate::report::Class;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntOp {
    Mov,
    Add,
    AddSat,
    Sub,
    SubSat,
    Mul,
    MulHi {
        signed: bool,
    },
    Mad,
    MadHi {
        signed: bool,
    },
    Sad {
        signed: bool,
    },
    Div {
        signed: bool,
    },
    Rem {
        signed: bool,
    },
    Min {
        signed: bool,
    },
    Max {
        signed: bool,
    },
    Abs,
    Neg,
    And,
    Or,
    Xor,
    Not,
    Cnot,
    Shl,
    Shr {
        signed: bool,
    },
    Bfe {
        signed: bool,
    },
    Bfi,
    Popc,
    Clz,
    Brev,
    Bfind {
        signed: bool,
        shift: bool,
    },
    /// 32 bits only.
    Lop3(u8),
    /// 32 bits only.
    Prmt,
    /// 32 bits only.
    Shf {
        left: bool,
        wrap: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    /// Rounded towards minus infinity; f32 only.
    FmaDown,
    /// The sign of the first on the second.
    Copysign,
    Div,
    DivApprox,
    DivFull,
    Min {
        nan: bool,
    },
    Max {
        nan: bool,
    },
    Abs,
    Neg,
    Sqrt,
    Rcp,
    RcpApprox,
    RsqrtApprox,
    SqrtApprox,
    Ex2Approx,
    Lg2Approx,
    SinApprox,
    CosApprox,
    TanhApprox,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cmp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// Unordered forms of floats: true where an operand is NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Whether both are numbers.
    Num,
    /// Whether one is NaN.
    Nan,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoolOp {
    And,
    Or,
    Xor,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Shared,
    /// Shared memory of any block of the cluster.
    Cluster,
    Local,
    Param,
    Generic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    None,
    W(W),
    D(D),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) base: Base,
    pub(crate) offset: i64,
}

/// How an access is ordered with those of other blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Not at all.
    Weak,
    /// It does not race with another such access.
    Strong,
    /// It is an acquire or a release too: what a fence beside it would do.
    Fence,
}

/// Registers of a vector load or store; an absent one is the sink `_`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) order: Order,
    pub(crate) address: Address,
    /// Bytes of one element.
    pub(crate) bytes: u8,
    pub(crate) signed: bool,
    pub(crate) registers: Vec<Option<Reg>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareAndSwap,
    Inc,
    Dec,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Atomic {
    pub(crate) space: Space,
    pub(crate) order: Order,
    pub(crate) op: AtomicOp,
    pub(crate) ty: Type,
    pub(crate) d: Option<Reg>,
    pub(crate) address: Address,
    pub(crate) b: Reg,
    pub(crate) c: Reg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// Which part of a product a wmma fragment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    A,
    B,
    C,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) part: Part,
    pub(crate) shape: WmmaShape,
    pub(crate) row_major: bool,
    pub(crate) registers: Vec<W>,
    pub(crate) space: Space,
    pub(crate) address: Address,
    /// Elements from one row (or column) to the next; absent where the matrix is dense.
    pub(crate) stride: Option<W>,
}

/// The 16-bit type of a tensor-core operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    Bf16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wmma {
    pub(crate) shape: WmmaShape,
    pub(crate) element: Element,
    pub(crate) d: [W; 8],
    pub(crate) a: [W; 8],
    pub(crate) b: [W; 8],
    pub(crate) c: [W; 8],
}

/// The shape and the types of an `mma`; all of them have as many registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MmaKind {
    /// m16n8k16.
    Half(Element),
    /// m16n8k8.
    Tf32,
    /// m16n8k32; whether A and B are e4m3, else e5m2.
    Quarter { a_e4m3: bool, b_e4m3: bool },
}

impl MmaKind {
    /// The length of the sums; m is 16 and n is 8.
    pub(crate) fn k(self) -> u32 {
        match self {
            MmaKind::Half(_) => 16,
            MmaKind::Tf32 => 8,
            MmaKind::Quarter { .. } => 32,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mma {
    pub(crate) kind: MmaKind,
    pub(crate) d: [W; 4],
    pub(crate) a: [W; 4],
    pub(crate) b: [W; 2],
    pub(crate) c: [W; 4],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Int32 {
        op: IntOp,
        d: W,
        s: [W; 4],
    },
    /// On 16-bit values.
    Int16 {
        op: IntOp,
        d: W,
        s: [W; 4],
    },
    /// Shift counts, positions and lengths are words: `n`.
    Int64 {
        op: IntOp,
        d: D,
        s: [D; 3],
        n: [W; 2],
    },
    /// `popc`, `clz` and `bfind` of 64 bits.
    Count64 {
        op: IntOp,
        d: W,
        a: D,
    },
    MulWide {
        signed: bool,
        d: D,
        a: W,
        b: W,
    },
    MadWide {
        signed: bool,
        d: D,
        a: W,
        b: W,
        c: D,
    },
    MulWide16 {
        signed: bool,
        d: W,
        a: W,
        b: W,
        c: W,
    },
    Float32 {
        op: FloatOp,
        ftz: bool,
        saturate: bool,
        d: W,
        s: [W; 3],
    },
    /// On f16 or bf16, one or a pair of them in a register.
    Narrow {
        op: FloatOp,
        bf16: bool,
        pair: bool,
        ftz: bool,
        d: W,
        s: [W; 3],
    },
    Float64 {
        op: FloatOp,
        d: D,
        s: [D; 3],
    },
    Set {
        ty: Type,
        cmp: Cmp,
        ftz: bool,
        d: Option<P>,
        q: Option<P>,
        a: Reg,
        b: Reg,
        with: Option<(BoolOp, Test)>,
    },
    Select32 {
        d: W,
        a: W,
        b: W,
        p: Test,
    },
    Select64 {
        d: D,
        a: D,
        b: D,
        p: Test,
    },
    Predicate {
        op: BoolOp,
        d: P,
        a: Test,
        b: Test,
    },
    Pack {
        d: Reg,
        parts: Vec<Reg>,
    },
    Unpack {
        parts: Vec<Option<Reg>>,
        a: Reg,
    },
    Cvt(Box<Cvt>),
    /// From generic to a space (`to` false: from the space to generic).
    Cvta {
        space: Space,
        to: bool,
        d: D,
        a: D,
    },
    Clock {
        d: Reg,
    },
    ActiveMask {
        d: W,
    },

    Load(Box<Access>),
    Store(Box<Access>),
    Atomic(Box<Atomic>),
    CopyAsync {
        to: Address,
        from: Address,
        bytes: u8,
        source_bytes: Option<W>,
    },
    CopyCommit,
    /// Waits until at most this many groups are in flight; absent: waits for all, committed or not.
    CopyWait {
        pending: Option<u32>,
    },

    Barrier {
        id: W,
        threads: Option<W>,
        wait: bool,
    },
    WarpSync {
        mask: W,
    },
    Shuffle {
        kind: Shuffle,
        d: W,
        p: Option<P>,
        a: W,
        b: W,
        c: W,
        mask: W,
    },
    Vote {
        kind: Vote,
        d: Reg,
        a: Test,
        mask: W,
    },
    Redux {
        op: IntOp,
        d: W,
        a: W,
        mask: W,
    },
    Match {
        all: bool,
        d: W,
        p: Option<P>,
        a: Reg,
        mask: W,
    },
    Elect {
        d: Option<W>,
        p: P,
        mask: W,
    },
    MbarrierInit {
        address: Address,
        count: W,
    },
    MbarrierInvalidate {
        address: Address,
    },
    MbarrierArrive {
        d: Option<D>,
        address: Address,
        count: Option<W>,
        expect_bytes: Option<W>,
    },
    /// `completes`: bytes are counted as arrived, not as expected.
    MbarrierExpect {
        address: Address,
        bytes: W,
        completes: bool,
    },
    MbarrierTest {
        p: P,
        address: Address,
        token: Reg,
        parity: bool,
    },

    Ldmatrix {
        transposed: bool,
        d: Vec<W>,
        address: Address,
    },
    Stmatrix {
        transposed: bool,
        s: Vec<W>,
        address: Address,
    },
    FragmentLoad(Box<Fragment>),
    FragmentStore(Box<Fragment>),
    Wmma(Box<Wmma>),
    Mma(Box<Mma>),
    Hopper(Box<Hopper>),
    General(Box<General>),

    /// A fence between threads; `device`: of all blocks, not of one; `proxy`: before accesses of the asynchronous
    /// proxy.
    Fence {
        device: bool,
        proxy: bool,
    },
    /// `target` is an index of an instruction.
    Branch {
        target: u32,
    },
    Exit,
    /// The lanes go to `target`, a function, until they return.
    Call {
        target: u32,
    },
    Return,
    /// The lanes do what must not happen: they trap, panic, or branch to nowhere.
    Trap {
        what: &'static str,
    },
}

impl Op {
    pub(crate) fn class(&self) -> Class {
        match self {
            Op::Int32 { .. } | Op::Int16 { .. } | Op::Int64 { .. } | Op::Count64 { .. } => Class::Integer,
            Op::MulWide { .. } | Op::MadWide { .. } | Op::MulWide16 { .. } | Op::Cvta { .. } => Class::Integer,
            Op::Float32 { .. } | Op::Float64 { .. } | Op::Narrow { .. } => Class::Float,
            Op::Set { .. } | Op::Select32 { .. } | Op::Select64 { .. } | Op::Predicate { .. } => Class::Select,
            Op::Pack { .. } | Op::Unpack { .. } | Op::Cvt(_) | Op::Clock { .. } | Op::ActiveMask { .. } => {
                Class::Convert
            }
            Op::Load(_) | Op::Ldmatrix { .. } | Op::FragmentLoad(_) => Class::Load,
            Op::Store(_) | Op::Stmatrix { .. } | Op::FragmentStore(_) => Class::Store,
            Op::Atomic(_) => Class::Atomic,
            Op::CopyAsync { .. } | Op::CopyCommit | Op::CopyWait { .. } => Class::AsyncCopy,
            Op::Barrier { .. } | Op::WarpSync { .. } | Op::Fence { .. } => Class::Barrier,
            Op::MbarrierInit { .. } | Op::MbarrierInvalidate { .. } | Op::MbarrierArrive { .. } => Class::Barrier,
            Op::MbarrierExpect { .. } | Op::MbarrierTest { .. } => Class::Barrier,
            Op::Shuffle { .. } | Op::Vote { .. } | Op::Redux { .. } | Op::Match { .. } | Op::Elect { .. } => {
                Class::Warp
            }
            Op::Wmma(_) | Op::Mma(_) => Class::TensorCore,
            Op::Hopper(hopper) => hopper.class(),
            Op::General(general) => general.class(),
            Op::Branch { .. } | Op::Exit | Op::Trap { .. } | Op::Call { .. } | Op::Return => Class::Branch,
        }
    }
}
