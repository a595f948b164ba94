//! What `bar.red` combines.

use crate::shape::Shape;

/// The lanes that took part, and those of them whose predicate was true.
type Votes = (u32, u32);

/// The votes of each warp of a cluster.
#[derive(Debug)]
pub(crate) struct BarrierVotes {
    /// For the barrier that it is about to arrive at.
    given: Vec<Votes>,
    /// Of all warps at the barrier that it passed last.
    results: Vec<Votes>,
    /// Whether a vote was given since a barrier was complete.
    any: bool,
}

impl BarrierVotes {
    pub(crate) fn new(shape: Shape) -> BarrierVotes {
        let none = vec![(0, 0); (shape.blocks * shape.warps) as usize];
        BarrierVotes { given: none.clone(), results: none, any: false }
    }

    pub(crate) fn add(&mut self, warp: u32, lanes: u32, yes: u32) {
        let given = &mut self.given[warp as usize];
        *given = (given.0 + lanes, given.1 + yes);
        self.any = true;
    }

    /// These warps are through a barrier.
    pub(crate) fn complete(&mut self, warps: impl Iterator<Item = u32> + Clone) {
        if !self.any {
            return;
        }
        let sum = warps.clone().fold((0, 0), |sum, warp| {
            let given = std::mem::take(&mut self.given[warp as usize]);
            (sum.0 + given.0, sum.1 + given.1)
        });
        warps.for_each(|warp| self.results[warp as usize] = sum);
        self.any = self.given.iter().any(|given| given.0 > 0);
    }

    pub(crate) fn result(&self, warp: u32) -> Votes {
        self.results[warp as usize]
    }
}
