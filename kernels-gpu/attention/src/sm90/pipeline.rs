//! Which buffer of a ring is next, and in which phase the barriers of that buffer are: in one register.
//!
//! `cuda_std::pipeline::PipelineState` says the same in two. Consumers have none to spare here. GEMM at 512x512x512,
//! whose ring has 12 stages, takes 3 % longer with this one (H200).

/// A position in a ring of `STAGES` buffers that one side fills and the other empties, in one register.
///
/// Where the number of buffers is a power of two it counts the fillings; elsewhere it is the buffer, with [`PARITY`]
/// added in every other phase.
#[derive(Clone, Copy)]
pub(crate) struct PipelineState<const STAGES: u32>(u32);

/// The parity where the number of buffers is not a power of two.
const PARITY: u32 = 1 << 16;

impl<const STAGES: u32> PipelineState<STAGES> {
    /// The start of who empties: its first wait is for the first filling.
    pub(crate) const CONSUMER: Self = Self(0);
    /// The start of who fills: every buffer is empty, as if a phase had passed.
    pub(crate) const PRODUCER: Self = Self(if STAGES.is_power_of_two() { STAGES } else { PARITY });

    /// The buffer.
    #[inline(always)]
    pub(crate) fn stage(self) -> u32 {
        if STAGES.is_power_of_two() { self.0 % STAGES } else { self.0 % PARITY }
    }

    /// The parity of the phase to wait for.
    #[inline(always)]
    pub(crate) fn parity(self) -> u32 {
        if STAGES.is_power_of_two() { self.0 / STAGES % 2 } else { self.0 / PARITY }
    }

    /// `count` buffers further on: 1 where the number of buffers is not a power of two.
    #[inline(always)]
    pub(crate) fn after(self, count: u32) -> Self {
        if STAGES.is_power_of_two() { Self(self.0.wrapping_add(count)) } else { self.next() }
    }

    /// The next buffer.
    #[inline(always)]
    pub(crate) fn next(self) -> Self {
        if STAGES.is_power_of_two() || self.0 % PARITY != STAGES - 1 {
            Self(self.0.wrapping_add(1))
        } else {
            Self((self.0 - (STAGES - 1)) ^ PARITY)
        }
    }
}
