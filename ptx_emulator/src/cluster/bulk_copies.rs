//! Bulk copies between global and shared memory that are under way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use layout::Swizzle;

use crate::program::{AtomicOp, Type};
use crate::shadow::Operation;
use crate::tensor_map::Piece;

/// The copies that are in flight in a cluster.
#[derive(Default)]
pub(crate) struct BulkCopies {
    pub(crate) loads: Vec<Load>,
    /// By the number of the thread in the cluster.
    pub(crate) groups: BTreeMap<u32, Groups>,
}

/// Who started a copy, and by which instruction.
#[derive(Clone, Copy)]
pub(crate) struct Issue {
    pub(crate) warp: u32,
    pub(crate) lane: u32,
    pub(crate) at: u32,
    pub(crate) line: u32,
}

/// A copy to shared memory, or an asynchronous store.
pub(crate) struct Load {
    pub(crate) to: u32,
    pub(crate) barrier: u32,
    pub(crate) swizzle: Swizzle,
    pub(crate) data: Arc<[u8]>,
    pub(crate) operation: Operation,
    pub(crate) issue: Issue,
}

/// The stores of a thread: those since its last commit, and its groups, oldest first.
#[derive(Default)]
pub(crate) struct Groups {
    pub(crate) open: Vec<Store>,
    pub(crate) committed: VecDeque<Vec<Store>>,
}

/// A copy to global memory.
pub(crate) struct Store {
    pub(crate) data: Vec<u8>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) reduction: Option<(AtomicOp, Type)>,
    /// While the source is in use.
    pub(crate) operation: Option<Operation>,
    pub(crate) issue: Issue,
}
