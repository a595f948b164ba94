//! How many threads and how much shared memory a launch has, and a cluster of it.

/// How many threads a launch has, in blocks and clusters, and their dynamic shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchShape {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Blocks of a cluster in x, y, z; all ones for none.
    pub cluster: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// One block of one thread.
impl Default for LaunchShape {
    fn default() -> Self {
        LaunchShape { grid: [1; 3], block: [1; 3], cluster: [1; 3], shared_bytes: 0 }
    }
}

/// The sizes of a cluster: the blocks that run together, one where there are no clusters.
///
/// Their warps are numbered through the cluster. Their shared memories lie one behind the other in one memory, so that
/// one record of accesses serves them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) blocks: u32,
    /// Warps of a block.
    pub(crate) warps: u32,
    /// Shared memory of a block.
    pub(crate) shared_bytes: u32,
}

impl Shape {
    /// From the shared memory of one block to that of the next: a multiple of every alignment there is.
    pub(crate) fn stride_bytes(self) -> u32 {
        self.shared_bytes.next_multiple_of(1024)
    }

    /// The shared memory of all of them.
    pub(crate) fn total_bytes(self) -> u32 {
        self.stride_bytes() * (self.blocks - 1) + self.shared_bytes
    }

    pub(crate) fn rank_of(self, warp: u32) -> u32 {
        warp / self.warps
    }

    /// What makes the numbers in an error ones of a cluster.
    pub(crate) fn note(self) -> String {
        if self.blocks == 1 {
            return String::new();
        }
        let (warps, stride) = (self.warps, self.stride_bytes());
        format!(" (warps and addresses count through the cluster, {warps} warps and {stride:#x} bytes a block)")
    }
}
