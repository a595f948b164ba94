//! The products of `wgmma` that some warps of a warpgroup have come to and others not yet.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::execute::EndFault;
use crate::shape::Shape;
use crate::tensor_core::wgmma::Factor;

/// Warps of a warpgroup.
pub(crate) const WARPS: u32 = 4;

/// The products that some warps of a warpgroup have come to and others not yet.
pub(crate) struct Warpgroups {
    /// By the number in the cluster.
    pub(crate) logs: Vec<Log>,
}

#[derive(Default)]
pub(crate) struct Log {
    /// Products that each warp has executed.
    pub(crate) executed: [u64; WARPS as usize],
    /// Products that all warps have executed.
    pub(crate) common: u64,
    pub(crate) ahead: VecDeque<Product>,
}

/// One product, as the first warp came to it.
pub(crate) struct Product {
    pub(crate) warp: u32,
    pub(crate) at: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) factor: Arc<Read>,
}

/// A factor, and where in shared memory its units are.
pub(crate) struct Read {
    pub(crate) factor: Factor,
    pub(crate) units: Vec<u32>,
}

impl Warpgroups {
    pub(crate) fn new(shape: Shape) -> Warpgroups {
        let groups = shape.blocks * (shape.warps / WARPS);
        Warpgroups { logs: (0..groups).map(|_| Log::default()).collect() }
    }

    /// All threads of a block have exited: all of its warpgroups were complete at each product.
    pub(crate) fn end(&self, shape: Shape, rank: u32) -> std::result::Result<(), EndFault> {
        let groups = (shape.warps / WARPS) as usize;
        let own = self.logs.iter().skip(rank as usize * groups).take(groups);
        let ahead = own.into_iter().find_map(|log| log.ahead.front());
        ahead.map_or(Ok(()), |product| {
            let problem = "other warps of the warpgroup have exited and did not execute it".to_owned();
            Err((product.at, (product.warp, None), problem))
        })
    }
}
