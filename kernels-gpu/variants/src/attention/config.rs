//! What a compiled attention kernel is made of, and what it needs.

use core::fmt;

use layout::smem::{BASE_ALIGN_BYTES, SmemLayout};
use layout::{Arch, Dtype, Swizzle};

use super::fp8::{VALUE_ROWS_STAGES, has_transposed_values};
use super::{DECODE_KEYS, DecodeTile, MAX_HEAD_DIM};
use crate::gemm::Accumulation;

/// How an `mma` configuration brings tiles from global to shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TileCopy {
    /// `cp.async` of 16 bytes, which runs beside the arithmetic.
    Async,
    /// Loads into registers, then stores. 8-bit integers become f16 between the two, and products run there.
    ThroughRegisters,
}

/// Which units compute P V.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PvUnit {
    /// `mma` on the tensor cores, P rounded to the input type.
    TensorCore,
    /// f32 multiply-adds, P in f32.
    Scalar,
}

/// The tile of an `mma` configuration. One warp owns 16 query rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MmaTile {
    /// Query rows of a block.
    pub m: usize,
    /// Keys of one step.
    pub n: usize,
    /// Key-value buffers in shared memory.
    pub stages: usize,
    /// How tiles are copied.
    pub copy: TileCopy,
    /// Which units compute P V.
    pub pv: PvUnit,
}

impl MmaTile {
    /// `m` query rows, `n` keys a step, by `cp.async` and on tensor cores.
    pub(crate) const fn new(m: usize, n: usize, stages: usize) -> Self {
        Self { m, n, stages, copy: TileCopy::Async, pv: PvUnit::TensorCore }
    }

    /// The same with tiles that go through registers.
    pub(crate) const fn through_registers(self) -> Self {
        Self { copy: TileCopy::ThroughRegisters, ..self }
    }

    /// The same with P V by multiply-adds.
    pub(crate) const fn scalar_pv(self) -> Self {
        Self { pv: PvUnit::Scalar, ..self }
    }
}

/// Query rows of one warp: the M of `mma` m16n8k16.
pub const WARP_ROWS: usize = 16;

/// How tiles of 16-bit elements lie in shared memory: in panels of 64 columns. Those of 8-bit elements:
/// [`AttentionConfig::swizzle`].
pub const TILE_SWIZZLE: Swizzle = Swizzle::B128;

/// Query rows of one consumer warpgroup: the M of `wgmma`.
pub const WARPGROUP_ROWS: usize = 64;

/// Stages of the tile scheduler's pipeline, from the producer to the consumers. The producer broadcasts a tile when Q
/// of the one before has a buffer, which all consumers have left. With two stages more than there are buffers, a tile
/// stays in its stage until all consumers have gone on to the next.
pub const SCHEDULER_STAGES: u32 = 4;

/// Threads of a warpgroup.
pub const WARPGROUP_THREADS: u32 = 128;

/// Where `wgmma` has its operand Q.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuerySource {
    /// In shared memory, read at each step.
    Shared,
    /// In registers for the whole tile, which spares shared memory the reading.
    Registers,
}

/// Which masks a WGMMA configuration serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MaskKind {
    /// Masks that hide no key: only the last step of a tile may have keys beyond the end.
    Full,
    /// Every mask: each row sees one range of keys, and steps at its edges are masked.
    Masked,
}

/// The tile of a WGMMA configuration: one producer warpgroup and some consumers of [`WARPGROUP_ROWS`] rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WgmmaTile {
    /// Consumer warpgroups along M: each has query rows of its own.
    pub m_warpgroups: usize,
    /// Split-KV warpgroups: so many share the rows of each, and take the steps of the keys round-robin.
    pub split_kv_warpgroups: usize,
    /// Split-KV blocks of a cluster, which share rows and take the steps round-robin too; 1 for no cluster.
    pub split_kv_ctas: usize,
    /// Blocks of a cluster that compute neighbouring tiles, whose rows see the same keys. Each copies a part of the
    /// keys and values of a step to all of them. 1 where every block copies for itself.
    pub multicast_ctas: usize,
    /// Keys of one step.
    pub n: usize,
    /// K buffers, and as many V buffers.
    pub stages: usize,
    /// Where Q is.
    pub query: QuerySource,
    /// Q buffers.
    pub q_stages: usize,
    /// Which masks it serves.
    pub mask: MaskKind,
    /// Where P V is added up. Tensor cores add products of 16-bit elements in f32 well enough: [`Accumulation::Direct`]
    /// there.
    pub accumulation: Accumulation,
}

impl WgmmaTile {
    /// Query rows of a block.
    pub const fn m(&self) -> usize {
        self.m_warpgroups * WARPGROUP_ROWS
    }

    /// Consumer warpgroups.
    pub const fn consumers(&self) -> usize {
        self.m_warpgroups * self.split_kv_warpgroups
    }

    /// Warpgroups that share rows, in all blocks of a cluster: the parts that the keys of a tile are split into.
    pub const fn kv_splits(&self) -> usize {
        self.split_kv_warpgroups * self.split_kv_ctas
    }

    /// Keys of one step that a block copies.
    pub const fn copied_keys(&self) -> usize {
        self.n / self.multicast_ctas
    }

    /// Registers that a thread has when the block starts: what is left for each, in units of 8.
    pub const fn launch_registers(&self) -> u32 {
        let threads = WARPGROUP_THREADS * (1 + self.consumers() as u32);
        let registers = Arch::Sm90a.limits().registers / threads / 8 * 8;
        if registers > 255 { 255 } else { registers }
    }

    /// Whether warpgroups use the tensor cores in ping-pong: each has done P V of a step when it starts Q K^T of the
    /// one before. Four warpgroups have no registers for P and S of two steps of more than 64 keys.
    pub const fn pingpong(&self) -> bool {
        self.consumers() == 4 && self.n > 64
    }
}

/// Registers of a producer thread, by the number of consumer warpgroups; 0 where it keeps those of the launch.
pub const PRODUCER_REGISTERS: [u32; 5] = [0, 0, 24, 32, 24];

/// The same where the producer also searches the batch entry of a tile (varlen) or transposes V (E4M3); 0 where no
/// configuration has so many consumers.
pub const WIDE_PRODUCER_REGISTERS: [u32; 5] = [0, 0, 40, 40, 32];

/// Registers of a consumer thread, by the number of consumer warpgroups; 0 where it keeps those of the launch.
pub const CONSUMER_REGISTERS: [u32; 5] = [0, 0, 240, 160, 112];

/// The same beside a producer of [`WIDE_PRODUCER_REGISTERS`].
pub const WIDE_PRODUCER_CONSUMER_REGISTERS: [u32; 5] = [0, 0, 232, 152, 112];

/// More registers than a block starts with would be waited for for ever.
const _: () = {
    let mut consumers = 2;
    while consumers < CONSUMER_REGISTERS.len() as u32 {
        let threads = WARPGROUP_THREADS * (1 + consumers);
        let launch = Arch::Sm90a.limits().registers / threads / 8 * 8;
        let index = consumers as usize;
        assert!(PRODUCER_REGISTERS[index] + consumers * CONSUMER_REGISTERS[index] <= (1 + consumers) * launch);
        let (producer, consumer) = (WIDE_PRODUCER_REGISTERS[index], WIDE_PRODUCER_CONSUMER_REGISTERS[index]);
        assert!(producer + consumers * consumer <= (1 + consumers) * launch);
        consumers += 1;
    }
};

/// What happens to raw scores before the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScoreMod {
    /// They are scaled.
    None,
    /// They are scaled and bounded by a softcap of at most [`Self::MAX_SOFTCAP`].
    Softcap,
    /// They are scaled, bounded by a softcap, and a bias is added, where the problem has them.
    General,
}

impl ScoreMod {
    /// The largest softcap of [`Self::Softcap`], whose kernels bound a score with an error of 2^-21 of the cap.
    pub const MAX_SOFTCAP: f32 = 64.0;

    /// What a problem asks for.
    pub const fn of(softcap: Option<f32>, bias: bool) -> Self {
        match softcap {
            None if !bias => Self::None,
            Some(cap) if !bias && cap <= Self::MAX_SOFTCAP => Self::Softcap,
            _ => Self::General,
        }
    }

    /// Whether a kernel for these scores computes those of `problem` too.
    pub const fn includes(self, problem: Self) -> bool {
        matches!(self, Self::General) || self as u8 == problem as u8
    }
}

/// How long the sequences of a batch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Seqlens {
    /// All as long.
    Fixed,
    /// Each as long as numbers on the card say.
    Varlen,
}

/// Which algorithm a configuration runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttentionKernel {
    /// One warp a query row, f32 multiply-adds: serves every head dimension and is the oracle on the card.
    Scalar,
    /// FlashAttention tiling on `mma.sync` m16n8k16, with tiles copied by `cp.async`.
    Mma(MmaTile),
    /// FlashAttention tiling on `wgmma`, with tiles copied by TMA; sm_90a.
    Wgmma(WgmmaTile),
    /// Few query rows on keys that blocks and warps split between them, with tiles copied by `cp.async`.
    Decode(DecodeTile),
}

/// One compiled kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionConfig {
    /// Name of the PTX entry.
    pub name: &'static str,
    /// The kernel family that has the entry: `attention`, or `study`.
    pub family: &'static str,
    /// Element type of Q.
    pub dtype: Dtype,
    /// Element type of K and V: that of Q, or E4M3 beside queries of 16 bits.
    pub kv_dtype: Dtype,
    /// Element type of O.
    pub out: Dtype,
    /// The widest head dimension of Q and K that it serves; narrower ones are padded with zeros in shared memory.
    pub head_dim: usize,
    /// The widest head dimension of V and O that it serves.
    pub value_dim: usize,
    /// What it runs.
    pub kernel: AttentionKernel,
    /// Which scores it serves ([`ScoreMod::includes`]).
    pub score_mod: ScoreMod,
    /// Which lengths it serves: these, and the variants of [`Seqlens`] before them.
    pub seqlens: Seqlens,
}

/// Registers that a thread of a scalar or `mma` kernel may use.
pub(super) const MAX_REGISTERS: u32 = 128;

/// Registers of an `mma` kernel with more to hold, for head dimensions above 64: three blocks fill shared memory.
pub(super) const MAX_WIDE_REGISTERS: u32 = 168;

/// Registers of an `mma` kernel for head dimensions above 128, or a bias of E4M3: two blocks share a multiprocessor.
pub(super) const MAX_WIDEST_REGISTERS: u32 = 255;

impl AttentionConfig {
    /// A configuration that has no name yet.
    const fn new(head_dim: usize, kernel: AttentionKernel) -> Self {
        let (name, family, dtype, value_dim) = ("", "attention", Dtype::F16, head_dim);
        let (score_mod, seqlens) = (ScoreMod::None, Seqlens::Fixed);
        Self { name, family, dtype, kv_dtype: dtype, out: dtype, head_dim, value_dim, kernel, score_mod, seqlens }
    }

    /// The same of this name and element type, which K, V and O have too.
    pub(crate) const fn named(self, name: &'static str, dtype: Dtype) -> Self {
        Self { name, dtype, kv_dtype: dtype, out: dtype, ..self }
    }

    /// The same of this name, for inputs of E4M3 and an O of this element type.
    pub(super) const fn named_e4m3(self, name: &'static str, out: Dtype) -> Self {
        Self { name, dtype: Dtype::E4M3, kv_dtype: Dtype::E4M3, out, ..self }
    }

    /// The same of this name, for K and V of E4M3 beside a Q and an O of this element type.
    pub(super) const fn named_e4m3_kv(self, name: &'static str, dtype: Dtype) -> Self {
        Self { name, dtype, kv_dtype: Dtype::E4M3, out: dtype, ..self }
    }

    /// The same as a kernel of another family.
    pub(crate) const fn of_family(self, family: &'static str) -> Self {
        Self { family, ..self }
    }

    /// The same with another head dimension of V and O.
    pub(super) const fn value_dim(self, value_dim: usize) -> Self {
        Self { value_dim, ..self }
    }

    /// The same with every kind of lengths.
    pub(super) const fn varlen(self) -> Self {
        Self { seqlens: Seqlens::Varlen, ..self }
    }

    /// The same with every kind of scores and lengths.
    pub(super) const fn general(self) -> Self {
        Self { score_mod: ScoreMod::General, seqlens: Seqlens::Varlen, ..self }
    }

    /// The same with a softcap, and every kind of lengths.
    pub(super) const fn softcap(self) -> Self {
        Self { score_mod: ScoreMod::Softcap, seqlens: Seqlens::Varlen, ..self }
    }

    /// The same with every kind of scores.
    pub(super) const fn score_mod(self) -> Self {
        Self { score_mod: ScoreMod::General, ..self }
    }

    pub(super) const fn scalar() -> Self {
        Self::new(MAX_HEAD_DIM, AttentionKernel::Scalar)
    }

    pub(crate) const fn mma(head_dim: usize, tile: MmaTile) -> Self {
        Self::new(head_dim, AttentionKernel::Mma(tile))
    }

    pub(super) const fn wgmma(head_dim: usize, tile: WgmmaTile) -> Self {
        Self::new(head_dim, AttentionKernel::Wgmma(tile))
    }

    pub(super) const fn decode(head_dim: usize, tile: DecodeTile) -> Self {
        Self::new(head_dim, AttentionKernel::Decode(tile))
    }

    /// The architecture that the kernel needs: sm_80 or sm_89 and later, or sm_90a alone.
    pub const fn arch(&self) -> Arch {
        match self.kernel {
            AttentionKernel::Decode(_) if self.has_e4m3_kv() => Arch::Sm89,
            AttentionKernel::Mma(_) if matches!(self.dtype, Dtype::E4M3) => Arch::Sm89,
            AttentionKernel::Scalar | AttentionKernel::Mma(_) | AttentionKernel::Decode(_) => Arch::Sm80,
            AttentionKernel::Wgmma(_) => Arch::Sm90a,
        }
    }

    /// Whether the module of `arch` has it.
    pub const fn compiled_for(&self, arch: Arch) -> bool {
        match self.arch() {
            Arch::Sm90a => matches!(arch, Arch::Sm90a),
            // Hopper has no `mma` of E4M3: `ptxas` widens the factors, and lacks registers beside so many columns.
            Arch::Sm89 if matches!(self.kernel, AttentionKernel::Mma(_)) && self.head_dim > 128 => {
                matches!(arch, Arch::Sm89)
            }
            oldest => oldest as u8 <= arch as u8,
        }
    }

    /// Whether K and V are of E4M3 beside a Q of another type.
    pub const fn has_e4m3_kv(&self) -> bool {
        matches!(self.kv_dtype, Dtype::E4M3) && !matches!(self.dtype, Dtype::E4M3)
    }

    /// Query rows of one block; of a decode configuration, packed ones.
    pub const fn rows(&self) -> usize {
        match self.kernel {
            AttentionKernel::Scalar => SCALAR_ROWS,
            AttentionKernel::Mma(tile) => tile.m,
            AttentionKernel::Wgmma(tile) => tile.m(),
            AttentionKernel::Decode(tile) => tile.m,
        }
    }

    /// Threads of one block.
    pub const fn threads(&self) -> u32 {
        match self.kernel {
            AttentionKernel::Scalar => 32 * SCALAR_ROWS as u32,
            AttentionKernel::Mma(tile) => 32 * (tile.m / WARP_ROWS) as u32,
            AttentionKernel::Wgmma(tile) => WARPGROUP_THREADS * (1 + tile.consumers() as u32),
            AttentionKernel::Decode(tile) => 32 * tile.warps as u32,
        }
    }

    /// Blocks that compute a tile together.
    pub const fn split_kv_ctas(&self) -> u32 {
        match self.kernel {
            AttentionKernel::Wgmma(tile) => tile.split_kv_ctas as u32,
            _ => 1,
        }
    }

    /// Tiles that a cluster computes side by side, of those of one key-value head.
    pub const fn multicast_ctas(&self) -> u32 {
        match self.kernel {
            AttentionKernel::Wgmma(tile) => tile.multicast_ctas as u32,
            _ => 1,
        }
    }

    /// Blocks of a cluster; 1 for no cluster.
    pub const fn cluster(&self) -> u32 {
        self.split_kv_ctas() * self.multicast_ctas()
    }

    /// Registers that a thread may use when it starts.
    pub const fn max_registers(&self) -> u32 {
        match self.kernel {
            AttentionKernel::Mma(_) if self.head_dim > 128 || self.is_general_e4m3() => MAX_WIDEST_REGISTERS,
            AttentionKernel::Mma(_) if matches!(self.dtype, Dtype::E4M3) => MAX_WIDE_REGISTERS,
            AttentionKernel::Mma(_) if matches!(self.dtype, Dtype::U8) => self.u8_registers(),
            AttentionKernel::Mma(tile) if self.head_dim > 64 => match (self.score_mod, tile.pv) {
                (ScoreMod::None, PvUnit::TensorCore) => MAX_REGISTERS,
                _ => MAX_WIDE_REGISTERS,
            },
            AttentionKernel::Scalar | AttentionKernel::Mma(_) => MAX_REGISTERS,
            AttentionKernel::Wgmma(tile) => tile.launch_registers(),
            AttentionKernel::Decode(tile) => tile.registers,
        }
    }

    /// Resident blocks that the register budget must allow on a multiprocessor: as many as fill it.
    pub const fn min_blocks(&self) -> u32 {
        Arch::Sm80.limits().registers / (self.max_registers() * self.threads())
    }

    /// The map of dynamic shared memory; empty for the scalar kernel. Tiles lie as [`TILE_SWIZZLE`] says.
    ///
    /// `mma`:
    /// - `q`: the Q tile; the O tile afterwards.
    /// - `k`, `v`: the stages of the K and V tiles.
    /// - `p`: for scalar P V, a stage a warp: P transposed, `[n][16]` f32, then a factor for each of the 16 rows.
    ///
    /// WGMMA:
    /// - `q`, `k`, `v`: the stages of the Q, K and V tiles; all of whole panels. V of 8-bit elements is transposed:
    ///   its rows are columns of V, along the keys.
    /// - `v_rows`: the stages of V as it lies in global memory, where it is transposed on the way to `v`.
    /// - `bias`: where scores may have one, a stage a consumer warp, of its rows and the keys of a step; whole panels.
    /// - `partial`: where warpgroups share rows, a stage for each warpgroup of the block. The stage has, from each
    ///   split of the keys, the share of O that this warpgroup reduces, four words of each thread at a time, and the
    ///   maximum and sum of the row of each thread.
    /// - `tile`: head and first row of the next tiles of the block. Where lengths may differ, also first row, rows,
    ///   first key and keys of the tile's batch entry.
    /// - `.._full`, `.._empty`: the mbarriers of those.
    ///
    /// Decoding:
    /// - `ring`: the stages of one warp after the other, each a K tile and then a V tile. At the end the stages of a
    ///   warp hold its O, in rows of `head_dim + 8` f32, and then the maxima and the sums of its rows.
    pub const fn smem(&self) -> SmemLayout {
        match self.kernel {
            AttentionKernel::Scalar => SmemLayout::new(),
            AttentionKernel::Mma(tile) => {
                let row_bytes = self.panels() * self.swizzle().row_bytes();
                let out_row_bytes = (self.head_dim * self.out.size_bytes()) as u32;
                let q_row_bytes = if out_row_bytes > row_bytes { out_row_bytes } else { row_bytes };
                let (stages, stage_bytes) = (tile.stages as u32, tile.n as u32 * row_bytes);
                let p_stages = match tile.pv {
                    PvUnit::TensorCore => 0,
                    PvUnit::Scalar => (tile.m / WARP_ROWS) as u32,
                };
                SmemLayout::new()
                    .region("q", tile.m as u32 * q_row_bytes, BASE_ALIGN_BYTES)
                    .stages("k", stages, stage_bytes, BASE_ALIGN_BYTES)
                    .stages("v", stages, stage_bytes, BASE_ALIGN_BYTES)
                    .stages("p", p_stages, ((tile.n + 1) * WARP_ROWS * size_of::<f32>()) as u32, 16)
            }
            AttentionKernel::Wgmma(tile) => {
                let row_bytes = self.panels() * self.swizzle().row_bytes();
                let v_row_bytes = self.value_panels() * self.value_swizzle().row_bytes();
                let (stages, n) = (tile.stages as u32, tile.n as u32);
                let (v_bytes, v_rows_stages) = if has_transposed_values(self.dtype) {
                    let key_bytes = n.next_multiple_of(self.transposed_swizzle().row_bytes());
                    (self.value_dim as u32 * key_bytes, VALUE_ROWS_STAGES)
                } else {
                    (n * v_row_bytes, 0)
                };
                let q_stages = tile.q_stages as u32;
                assert!(q_stages + 2 <= SCHEDULER_STAGES, "a tile is known until all consumers have left it");
                let biases = if let ScoreMod::General = self.score_mod {
                    tile.consumers() * WARPGROUP_ROWS / WARP_ROWS
                } else {
                    0
                };
                let bias_panels = ((tile.n * self.out.size_bytes()) as u32).div_ceil(TILE_SWIZZLE.row_bytes());
                let partials = if tile.kv_splits() > 1 { tile.consumers() as u32 } else { 0 };
                SmemLayout::new()
                    .stages("q", q_stages, tile.m() as u32 * row_bytes, BASE_ALIGN_BYTES)
                    .stages("k", stages, n * row_bytes, BASE_ALIGN_BYTES)
                    .stages("v", stages, v_bytes, BASE_ALIGN_BYTES)
                    .stages("v_rows", v_rows_stages, n * v_row_bytes, BASE_ALIGN_BYTES)
                    .stages(
                        "bias",
                        biases as u32,
                        bias_panels * WARP_ROWS as u32 * TILE_SWIZZLE.row_bytes(),
                        BASE_ALIGN_BYTES,
                    )
                    .stages("partial", partials, self.partial_bytes(tile.kv_splits()), 16)
                    .stages("partial_full", if tile.split_kv_ctas > 1 { partials } else { 0 }, 8, 8)
                    .stages("k_full", stages, 8, 8)
                    .stages("k_empty", stages, 8, 8)
                    .stages("v_full", stages, 8, 8)
                    .stages("v_empty", stages, 8, 8)
                    .stages("v_rows_full", v_rows_stages, 8, 8)
                    .stages("v_rows_empty", v_rows_stages, 8, 8)
                    .stages("q_full", q_stages, 8, 8)
                    .stages("q_empty", q_stages, 8, 8)
                    .stages("tile", SCHEDULER_STAGES, 4 * self.tile_words(), 8)
                    .stages("tile_full", SCHEDULER_STAGES, 8, 8)
            }
            AttentionKernel::Decode(tile) => {
                let stage_bytes = (2 * DECODE_KEYS * self.head_dim * self.kv_dtype.size_bytes()) as u32;
                SmemLayout::new().stages("ring", (tile.warps * tile.stages) as u32, stage_bytes, BASE_ALIGN_BYTES)
            }
        }
    }

    /// What a warpgroup gets from each of `kv_splits` splits: a share of O, and the maximum and sum of a row of each
    /// thread.
    const fn partial_bytes(&self, kv_splits: usize) -> u32 {
        let words = self.value_dim * WARPGROUP_ROWS / WARPGROUP_THREADS as usize + 2 * kv_splits;
        words as u32 * WARPGROUP_THREADS * size_of::<f32>() as u32
    }

    /// Words that the producer of a WGMMA kernel broadcasts of a tile.
    const fn tile_words(&self) -> u32 {
        let lengths = if let Seqlens::Varlen = self.seqlens { 4 } else { 0 };
        let descales = if has_transposed_values(self.dtype) { 2 } else { 0 };
        2 + lengths + descales
    }

    /// How tiles of Q and K lie in shared memory: in panels of its rows.
    pub const fn swizzle(&self) -> Swizzle {
        self.swizzle_of(self.head_dim)
    }

    /// How tiles of V lie in shared memory, as they are copied.
    pub const fn value_swizzle(&self) -> Swizzle {
        self.swizzle_of(self.value_dim)
    }

    /// How tiles of V lie in shared memory where they are transposed: rows are columns of V, along the keys of a step.
    pub const fn transposed_swizzle(&self) -> Swizzle {
        let AttentionKernel::Wgmma(tile) = self.kernel else { panic!("only WGMMA kernels transpose V") };
        if tile.n.is_multiple_of(128) {
            Swizzle::B128
        } else if tile.n.is_multiple_of(64) {
            Swizzle::B64
        } else {
            Swizzle::B32
        }
    }

    /// Rows of 8-bit elements that fill no panel of 128 bytes take panels of 64 bytes, where that spares memory. Those
    /// of `mma` do not: its blocks are as many as registers allow either way.
    const fn swizzle_of(&self, columns: usize) -> Swizzle {
        if !matches!(self.kernel, AttentionKernel::Mma(_))
            && self.kv_dtype.size_bytes() == 1
            && columns % TILE_SWIZZLE.row_bytes() as usize == 64
        {
            Swizzle::B64
        } else {
            TILE_SWIZZLE
        }
    }

    /// Panels that a row of a tile of Q or K takes.
    pub const fn panels(&self) -> u32 {
        self.panels_of(self.head_dim)
    }

    /// Panels that a row of a tile of V takes, as it is copied.
    pub const fn value_panels(&self) -> u32 {
        self.panels_of(self.value_dim)
    }

    const fn panels_of(&self, columns: usize) -> u32 {
        ((columns * self.tile_elem_bytes()) as u32).div_ceil(self.swizzle_of(columns).row_bytes())
    }

    /// Tiles of query rows of `heads` = batch x q_heads, of each head a multiple of those that a cluster computes side
    /// by side; `None` where there are more than the 2^31 - 1 blocks of a grid.
    pub fn tiles(&self, heads: usize, q_len: usize) -> Option<u32> {
        let m_tiles = q_len.div_ceil(self.rows()).next_multiple_of(self.multicast_ctas() as usize);
        let tiles = heads.checked_mul(m_tiles)?;
        i32::try_from(tiles.checked_mul(self.split_kv_ctas() as usize)?).ok().map(|_| tiles as u32)
    }
}

impl fmt::Display for AttentionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Query rows of a block of the scalar kernel: one a warp.
pub const SCALAR_ROWS: usize = 4;
