//! A ring of stages in shared memory, through which producers hand tiles to consumers.
//!
//! Each stage has two mbarriers: *full*, on which copies complete and consumers wait, and *empty*, on which consumers arrive and
//! the producer waits before it fills the stage again. Both sides walk the ring with a [`Ring`] of their own, which knows the
//! parity to wait for: it changes with every round. At the start all stages are empty though nobody has arrived, so that
//! the producer waits for the parity of the round before, which an mbarrier counts as complete.
//!
//! ```ignore
//! impl Stages for Tiles {
//!     const STAGES: u32 = 4;
//! }
//!
//! let mut ring = Ring::<Tiles>::PRODUCER;
//! loop {
//!     mbarrier::wait_parity(empty(ring.stage()), ring.parity());
//!     mbarrier::arrive_expect_tx(full(ring.stage()), BYTES);
//!     /* copies to the stage that complete on full(ring.stage()) */
//!     ring = ring.next();
//! }
//!
//! let mut ring = Ring::<Tiles>::CONSUMER;
//! loop {
//!     mbarrier::wait_parity(full(ring.stage()), ring.parity());
//!     /* uses of the stage */
//!     mbarrier::arrive_if(empty(ring.stage()), one_lane);
//!     ring = ring.next();
//! }
//! ```

use core::marker::PhantomData;

/// What is in a ring.
pub trait Stages {
    /// The stages of the ring.
    const STAGES: u32;
}

/// A position in a ring, in one register.
///
/// Where the number of stages is a power of two it counts the fillings; elsewhere it is the stage, with a bit more in every
/// other phase.
pub struct Ring<S>(u32, PhantomData<S>);

/// The parity where the number of stages is not a power of two.
const PARITY: u32 = 1 << 16;

impl<S> Clone for Ring<S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Ring<S> {}

impl<S: Stages> Ring<S> {
    /// The start of who empties: its first wait is for the first filling.
    pub const CONSUMER: Self = Self::at(0);
    /// The start of who fills: every stage is empty, as if a phase had passed.
    pub const PRODUCER: Self = Self::at(if Self::COUNTS { S::STAGES } else { PARITY });

    /// Whether it counts.
    const COUNTS: bool = S::STAGES.is_power_of_two();

    #[inline(always)]
    const fn at(position: u32) -> Self {
        Self(position, PhantomData)
    }

    /// The stage, from 0.
    #[inline(always)]
    #[must_use]
    pub const fn stage(self) -> u32 {
        if Self::COUNTS { self.0 % S::STAGES } else { self.0 % PARITY }
    }

    /// The parity of the phase to wait for.
    #[inline(always)]
    #[must_use]
    pub const fn parity(self) -> u32 {
        if Self::COUNTS { self.0 / S::STAGES % 2 } else { self.0 / PARITY }
    }

    /// `count` stages further on: 1 where their number is not a power of two.
    #[inline(always)]
    #[must_use]
    pub const fn after(self, count: u32) -> Self {
        if Self::COUNTS { Self::at(self.0.wrapping_add(count)) } else { self.next() }
    }

    /// The next stage.
    #[inline(always)]
    #[must_use]
    pub const fn next(self) -> Self {
        if Self::COUNTS || self.0 % PARITY != S::STAGES - 1 {
            Self::at(self.0.wrapping_add(1))
        } else {
            Self::at((self.0 - (S::STAGES - 1)) ^ PARITY)
        }
    }
}
