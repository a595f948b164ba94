//! What a launch did.

/// Kinds of instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Integer arithmetic, bits, moves.
    Integer,
    /// f32 and f64 arithmetic and approximations.
    Float,
    /// Comparisons, selections, predicates.
    Select,
    /// Conversions, packing.
    Convert,
    /// Loads, `ldmatrix` and `wmma.load` among them.
    Load,
    /// Stores.
    Store,
    /// Atomics and reductions in memory.
    Atomic,
    /// `cp.async`, its groups and their waits.
    AsyncCopy,
    /// Products on tensor cores.
    TensorCore,
    /// Shuffles, votes, elections.
    Warp,
    /// Barriers and fences.
    Barrier,
    /// Branches and exits.
    Branch,
}

impl Class {
    /// Every class, in the order of their numbers.
    pub const ALL: [Class; 12] = [
        Class::Integer,
        Class::Float,
        Class::Select,
        Class::Convert,
        Class::Load,
        Class::Store,
        Class::Atomic,
        Class::AsyncCopy,
        Class::TensorCore,
        Class::Warp,
        Class::Barrier,
        Class::Branch,
    ];
}

impl Class {
    /// What it is called in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Integer => "integer",
            Class::Float => "float",
            Class::Select => "select",
            Class::Convert => "convert",
            Class::Load => "load",
            Class::Store => "store",
            Class::Atomic => "atomic",
            Class::AsyncCopy => "async copy",
            Class::TensorCore => "tensor core",
            Class::Warp => "warp",
            Class::Barrier => "barrier",
            Class::Branch => "branch",
        }
    }
}

/// Instructions that the warps of a launch executed, each counted once for a warp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    counts: [u64; Class::ALL.len()],
}

impl Report {
    /// The instructions of one class.
    #[must_use]
    pub fn count(&self, class: Class) -> u64 {
        self.counts[class as usize]
    }

    /// All instructions.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub(crate) fn add(&mut self, class: Class) {
        self.counts[class as usize] += 1;
    }

    pub(crate) fn merge(&mut self, other: &Report) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
    }
}
