//! A ring of stages in shared memory, through which producers hand tiles to consumers.
//!
//! Each stage has two mbarriers. Copies complete on *full*, and consumers wait there. Consumers arrive on *empty*, and
//! the producer waits there before it fills the stage again. Both sides walk the ring with a [`PipelineState`] of their
//! own, which knows the parity to wait for; the parity changes with every round.
//!
//! At the start all stages are empty, though nobody has arrived. The producer therefore waits for the parity of the
//! round before, which an mbarrier counts as complete.
//!
//! ```no_run
//! # use cuda_std::{pipeline::PipelineState, ptx::mbarrier, shared::SharedAddr};
//! # const BYTES: u32 = 1024;
//! # const STAGES: u32 = 4;
//! # unsafe fn producer(full: fn(u32) -> SharedAddr, empty: fn(u32) -> SharedAddr) {
//! let mut state = PipelineState::FIRST;                               // producer
//! loop {
//!     mbarrier::wait_parity(empty(state.stage), state.parity ^ 1);
//!     mbarrier::arrive_expect_tx(full(state.stage), BYTES);
//!     /* copies to stage state.stage that complete on full(state.stage) */
//!     state.advance(STAGES);
//! }
//! # }
//!
//! # unsafe fn consumer(full: fn(u32) -> SharedAddr, empty: fn(u32) -> SharedAddr, one_lane: bool) {
//! let mut state = PipelineState::FIRST;                               // consumer
//! loop {
//!     mbarrier::wait_parity(full(state.stage), state.parity);
//!     /* uses of the stage */
//!     mbarrier::arrive_if(empty(state.stage), one_lane);
//!     state.advance(STAGES);
//! }
//! # }
//! ```

/// A stage of a ring and the parity of the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineState {
    /// The stage, from 0.
    pub stage: u32,
    /// The parity of the phase in which the stage is filled: 0 in the first round, then 1, then 0.
    pub parity: u32,
}

impl PipelineState {
    /// The first stage in the first round.
    pub const FIRST: PipelineState = PipelineState { stage: 0, parity: 0 };

    /// Goes on to the next of `stages` stages.
    #[inline(always)]
    pub fn advance(&mut self, stages: u32) {
        self.stage += 1;
        if self.stage == stages {
            *self = PipelineState { stage: 0, parity: self.parity ^ 1 };
        }
    }
}
