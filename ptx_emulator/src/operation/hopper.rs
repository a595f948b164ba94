//! The instructions that came with sm_90: asynchronous products and copies, clusters.

use layout::descriptor::Major;

use super::{Access, Address, AtomicOp, D, MmaKind, Op, Reg, Test, Type, W};
use crate::report::Class;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Hopper {
    Wgmma(Wgmma),
    WgmmaFence,
    WgmmaCommit,
    WgmmaWait {
        pending: u32,
    },
    Bulk(Bulk),
    BulkCommit,
    /// Waits until at most so many groups are in flight; `read`: until they have at least read their sources.
    BulkWait {
        pending: u32,
        read: bool,
    },
    /// `st.async`: stores to shared memory of the cluster whose bytes count on a barrier of the same block.
    StoreAsync {
        store: Access,
        barrier: Address,
    },
    PrefetchMap {
        map: Address,
    },
    /// Brings what a load would read from global memory into L2.
    PrefetchBulk(GlobalSide),
    ClusterArrive,
    ClusterWait,
    /// An address of the own block to that of the block of this rank.
    MapAddress {
        generic: bool,
        d: Reg,
        a: Reg,
        rank: W,
    },
    /// The rank of the block that an address belongs to.
    RankOfAddress {
        generic: bool,
        d: W,
        a: Reg,
    },
    SetRegisters {
        increase: bool,
        registers: u32,
    },
    /// Makes initialised mbarriers visible to the cluster and to copies.
    MbarrierInitFence,
    /// It changes what the hardware does when, and no result.
    Hint,
}

/// `wgmma.mma_async`; M is 64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wgmma {
    pub(crate) n: u32,
    pub(crate) kind: MmaKind,
    /// D is f16, two elements in a register, and not f32.
    pub(crate) f16: bool,
    pub(crate) d: Vec<W>,
    pub(crate) a: WgmmaA,
    /// The descriptor of B.
    pub(crate) b: (D, Major),
    /// Whether D is added to.
    pub(crate) scale_d: Test,
    /// Whether the product is negated: one of the factors is, and not the other.
    pub(crate) negated: bool,
    /// On every way to it, a `wgmma.fence` follows the last access to its registers.
    pub(crate) fenced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WgmmaA {
    Registers([W; 4]),
    /// The descriptor.
    Shared(D, Major),
}

/// `cp.async.bulk`, of a line of bytes or a box of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bulk {
    pub(crate) direction: Direction,
    pub(crate) global: GlobalSide,
    /// In shared memory of the cluster.
    pub(crate) shared: Address,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To shared memory; the bytes count on the barrier. `blocks` are those of the cluster that get them.
    Load {
        barrier: Address,
        blocks: Option<W>,
    },
    Store,
    /// To global memory, combined with what is there; the type is that of the map in a copy of a tensor.
    Reduce(AtomicOp, Option<Type>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GlobalSide {
    Line {
        address: Address,
        bytes: W,
    },
    /// The address of the map, generic, and the coordinates of the box, innermost first.
    Tensor {
        map: Address,
        coordinates: Vec<W>,
    },
}

impl Hopper {
    pub(crate) fn class(&self) -> Class {
        match self {
            Hopper::Wgmma(_) | Hopper::WgmmaFence | Hopper::WgmmaCommit | Hopper::WgmmaWait { .. } => Class::TensorCore,
            Hopper::Bulk(_) | Hopper::BulkCommit | Hopper::BulkWait { .. } | Hopper::StoreAsync { .. } => {
                Class::AsyncCopy
            }
            Hopper::ClusterArrive | Hopper::ClusterWait | Hopper::MbarrierInitFence => Class::Barrier,
            Hopper::MapAddress { .. } | Hopper::RankOfAddress { .. } => Class::Integer,
            Hopper::SetRegisters { .. } => Class::Warp,
            Hopper::PrefetchMap { .. } | Hopper::PrefetchBulk(_) | Hopper::Hint => Class::AsyncCopy,
        }
    }

    /// All lanes of the warp execute it together.
    pub(crate) fn is_aligned(&self) -> bool {
        let cluster = matches!(self, Hopper::ClusterArrive | Hopper::ClusterWait | Hopper::SetRegisters { .. });
        cluster || self.class() == Class::TensorCore
    }

    /// The order of the blocks of a launch shows in its results.
    pub(crate) fn is_ordered(&self) -> bool {
        matches!(self, Hopper::Bulk(Bulk { direction: Direction::Reduce(..), .. }))
    }
}

impl Op {
    /// The `wgmma.mma_async` that it is.
    pub(crate) fn wgmma(&self) -> Option<&Wgmma> {
        match self {
            Op::Hopper(hopper) => match &**hopper {
                Hopper::Wgmma(wgmma) => Some(wgmma),
                _ => None,
            },
            _ => None,
        }
    }
}
