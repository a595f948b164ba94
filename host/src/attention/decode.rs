//! Launches of decode kernels: how the keys are split, and the workspace of partial results.

use std::sync::Arc;

use layout::Arch;
use variants::attention::{
    AttentionArgs, AttentionConfig, AttentionKernel, DECODE_KEYS, DecodeArgs, DescaleArgs, MAX_SPLITS, Mask,
};

use super::options::AttentionOptions;
use super::problem::ResolvedParams;
use super::sizes::{BatchedSizes, OP};
use crate::backend::LaunchConfig;
use crate::checks::argument;
use crate::error::Result;
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::semaphores::Semaphores;
use crate::runtime::stream::StreamRef;

/// Bytes of K and V that a multiprocessor could read while a block starts, fills its pipeline and sums its warps.
const BLOCK_BYTES: usize = 96 << 10;

/// Bytes of K and V that a multiprocessor could read while the blocks of a tile count each other and the last of them
/// waits for its first partial results.
const COMBINE_BYTES: usize = 64 << 10;

/// Bytes of partial results that the last block of a tile reads in the time of one byte of K and V: they are in L2.
const COMBINE_RATE: usize = 2;

/// Numbers that a row of a partial result has beside its elements of O: its maximum and its sum.
const ROW_NUMBERS: usize = 2;

/// Bytes of a semaphore.
const SEMAPHORE_BYTES: usize = size_of::<u32>();

/// A decode configuration, loaded, and how it splits the keys.
#[derive(Clone)]
pub(super) struct Decode {
    config: &'static AttentionConfig,
    kernel: Kernel,
    /// Where the blocks of a tile count each other; `None` with one split.
    semaphores: Option<Arc<Semaphores>>,
    splits: usize,
    m_tiles: usize,
    /// Tiles of all key-value heads and batch entries.
    tiles: usize,
    /// Rows of O: `batch * q_heads * q_len`.
    rows: usize,
    value_dim: usize,
    blocks: u32,
    isolated: bool,
}

/// Where the keys are, if not one after the other and all as many.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BlockTable {
    pub(super) table: u64,
    pub(super) k_lens: u64,
    pub(super) stride: i64,
    pub(super) page_len: usize,
    pub(super) pages: usize,
}

impl Decode {
    /// Loads the kernel and decides how the keys of `sizes`, whose `k_len` is that of the longest batch entry, are
    /// split.
    pub(super) fn new(
        gpu: &Gpu,
        config: &'static AttentionConfig,
        sizes: &BatchedSizes,
        params: &ResolvedParams,
        options: &AttentionOptions,
    ) -> Result<Self> {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, head_dim, .. } = *sizes;
        let kernel = gpu.kernel(config.family, config.name)?;
        let m_tiles = packed_rows(sizes).div_ceil(config.rows());
        let tiles = batch.saturating_mul(kv_heads).saturating_mul(m_tiles);
        let (mask, value_dim) = (params.mask, params.value_dim);
        let row_bytes = (value_dim + ROW_NUMBERS) * size_of::<f32>();
        let rows = batch.saturating_mul(q_heads).saturating_mul(q_len);
        let semaphore_bytes = tiles.saturating_mul(SEMAPHORE_BYTES);
        let most = options.max_workspace_bytes.saturating_sub(semaphore_bytes) / rows.saturating_mul(row_bytes).max(1);
        let resident = kernel.blocks_per_multiprocessor(config.threads(), config.smem().total_bytes())?;
        let card = Card {
            multiprocessors: gpu.multiprocessors().max(1) as usize,
            resident: resident.max(1) as usize,
            lone_percent: lone_percent(config),
        };
        let splits = match options.splits {
            Some(splits) if splits == 0 || splits > MAX_SPLITS || (splits > 1 && splits > most) => {
                let bytes = rows.saturating_mul(row_bytes);
                let expected = format!(
                    "1 to {MAX_SPLITS}; beyond one with {bytes} bytes of workspace each, and {semaphore_bytes} for all"
                );
                return Err(argument(OP, "splits", splits, expected));
            }
            Some(splits) => splits,
            None => {
                let reading = Reading {
                    tiles,
                    steps: visible_steps(sizes, mask),
                    step_bytes: DECODE_KEYS * config.kv_dtype.size_bytes() * (head_dim + value_dim),
                    part_bytes: packed_rows(sizes).min(config.rows()) * row_bytes,
                };
                card.preferred_splits(reading, most.min(MAX_SPLITS))
            }
        };
        let Some(blocks) = tiles.checked_mul(splits).and_then(|blocks| i32::try_from(blocks).ok()) else {
            let expected = format!("at most 2^31 - 1 blocks in {splits} splits: split the batch");
            return Err(argument(OP, "batch * kv_heads", format!("{batch} * {kv_heads}"), expected));
        };
        Ok(Self {
            config,
            kernel,
            semaphores: if splits > 1 { Some(gpu.semaphores()?) } else { None },
            splits,
            m_tiles,
            tiles,
            rows,
            value_dim,
            blocks: blocks as u32,
            isolated: options.isolated,
        })
    }

    pub(super) const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub(super) const fn config(&self) -> &'static AttentionConfig {
        self.config
    }

    pub(super) const fn splits(&self) -> usize {
        self.splits
    }

    /// Partial O, maxima and sums of every split, and semaphores in case the device has none left; nothing for one.
    pub(super) const fn workspace_bytes(&self) -> usize {
        if self.splits == 1 {
            return 0;
        }
        self.partial_bytes(self.value_dim + ROW_NUMBERS) + self.tiles * SEMAPHORE_BYTES
    }

    /// Bytes of so many f32 numbers for each row of each split.
    const fn partial_bytes(&self, numbers: usize) -> usize {
        self.splits * self.rows * numbers * size_of::<f32>()
    }

    /// Enqueues the kernel.
    ///
    /// # Safety
    /// `args`, `descales` and `table` describe tensors, factors, a block table and numbers of keys, and the workspace
    /// has [`Self::workspace_bytes`], all valid until the stream has done the work.
    pub(super) unsafe fn run(
        &self,
        stream: StreamRef<'_>,
        (args, descales): (&AttentionArgs, &DescaleArgs),
        table: BlockTable,
        workspace: u64,
    ) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let mut config = LaunchConfig {
            shared_bytes: self.config.smem().total_bytes(),
            overlaps: !self.isolated && stream.gpu().arch() >= Arch::Sm90a,
            ..LaunchConfig::of_blocks(self.blocks, self.config.threads())
        };
        let device = stream.gpu().device();
        let semaphores = match &self.semaphores {
            None => 0,
            Some(semaphores) => match semaphores.of_launch(&**device, stream.handle(), self.tiles)? {
                Some(address) => address,
                None => {
                    let (address, bytes) = (
                        workspace + self.partial_bytes(self.value_dim + ROW_NUMBERS) as u64,
                        self.tiles * SEMAPHORE_BYTES,
                    );
                    // SAFETY: the workspace is as long, and the caller's promise is for the rest.
                    unsafe { device.fill_bytes(stream.enqueue()?, address, 0, bytes) }?;
                    // Only kernels start while a kernel before them still runs.
                    config.overlaps = false;
                    address
                }
            },
        };
        let partial_max = workspace + self.partial_bytes(self.value_dim) as u64;
        let decode = DecodeArgs {
            table: table.table,
            k_lens: table.k_lens,
            partial_o: workspace,
            partial_max,
            partial_sum: partial_max + self.partial_bytes(1) as u64,
            semaphores,
            table_stride: table.stride,
            rows: self.rows as u64,
            page_len: table.page_len.max(DECODE_KEYS) as u32,
            pages: table.pages as u32,
            splits: self.splits as u32,
            m_tiles: self.m_tiles as u32,
            kv_heads: args.q_heads / args.heads_per_kv,
            reserved: 0,
        };
        let params: [&dyn KernelParam; 3] = [args, &decode, descales];
        let taken = if self.config.has_descales() { 3 } else { 2 };
        // SAFETY: grid, block and shared memory are the configuration's; the caller's promise is for the rest.
        let launched = unsafe { self.kernel.launch(stream, &config, &params[..taken]) };
        if let (Err(_), Some(semaphores)) = (&launched, &self.semaphores) {
            semaphores.abandon(&**device, stream.handle());
        }
        launched
    }
}

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for DecodeArgs {}

/// Query rows of all heads of one key-value head.
pub(super) fn packed_rows(sizes: &BatchedSizes) -> usize {
    sizes.q_heads.checked_div(sizes.kv_heads).unwrap_or(0).saturating_mul(sizes.q_len)
}

/// Steps of keys that the rows see between them.
fn visible_steps(sizes: &BatchedSizes, mask: Mask) -> usize {
    let BatchedSizes { q_len, k_len, .. } = *sizes;
    let Some(last) = q_len.checked_sub(1) else { return 0 };
    let (first, last) = (mask.key_range(0, q_len, k_len), mask.key_range(last, q_len, k_len));
    last.end.saturating_sub(first.start).div_ceil(DECODE_KEYS)
}

/// Whether a kernel decodes.
pub(super) fn is_decode(config: &AttentionConfig) -> bool {
    matches!(config.kernel, AttentionKernel::Decode(_))
}

/// What blocks share.
#[derive(Debug, Clone, Copy)]
struct Card {
    multiprocessors: usize,
    /// Blocks that a multiprocessor has at a time.
    resident: usize,
    /// How long a block that is alone on its multiprocessor takes for its bytes, in percent of the time beside other
    /// blocks.
    lone_percent: usize,
}

/// [`Card::lone_percent`]: two warps wait alternately for their products and for the memory, and four whose keys are of
/// E4M3 (16x32:8x1x8192x256 on an H200, `docs/measurements/decoding.md`).
fn lone_percent(config: &AttentionConfig) -> usize {
    match config.kernel {
        AttentionKernel::Decode(tile) if tile.warps <= if config.has_e4m3_kv() { 4 } else { 2 } => 125,
        _ => 100,
    }
}

/// What the blocks of a launch read.
#[derive(Debug, Clone, Copy)]
struct Reading {
    /// Blocks without splitting.
    tiles: usize,
    /// Steps of keys of each.
    steps: usize,
    /// Bytes of K and V of a step.
    step_bytes: usize,
    /// Bytes of the partial result of a split of a tile.
    part_bytes: usize,
}

impl Card {
    /// The number of splits that is expected to be fastest.
    ///
    /// What counts is the bytes that the busiest multiprocessor reads. One block alone nearly has the rate of its
    /// multiprocessor, or less by [`Card::lone_percent`]; several blocks share that rate. Each round of blocks pays for
    /// its start. The last block of a tile reads what all splits of the tile have left.
    fn preferred_splits(self, reading: Reading, most: usize) -> usize {
        let Reading { tiles, steps, step_bytes, part_bytes } = reading;
        let cost = |splits: usize| {
            let blocks = tiles.saturating_mul(splits);
            let shared_by = blocks.div_ceil(self.multiprocessors);
            let percent = if shared_by > 1 { 100 } else { self.lone_percent };
            let read = shared_by.saturating_mul(steps.div_ceil(splits) * step_bytes * percent / 100);
            let rounds = blocks.div_ceil(self.multiprocessors * self.resident);
            let combine = if splits > 1 {
                let parts = tiles.div_ceil(self.multiprocessors).saturating_mul(splits * part_bytes);
                COMBINE_BYTES + parts / COMBINE_RATE
            } else {
                0
            };
            read.saturating_add(rounds.saturating_mul(BLOCK_BYTES)).saturating_add(combine)
        };
        (1..=most.min(steps)).min_by_key(|&splits| cost(splits)).unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CARD: Card = Card { multiprocessors: 132, resident: 2, lone_percent: 100 };

    /// Four rows at head dimension 128.
    const READING: Reading = Reading { tiles: 8, steps: 512, step_bytes: 8 << 10, part_bytes: 4 * 130 * 4 };

    fn splits(card: Card, tiles: usize, steps: usize) -> usize {
        card.preferred_splits(Reading { tiles, steps, ..READING }, MAX_SPLITS)
    }

    #[test]
    fn splits_give_each_multiprocessor_as_much() {
        // 16 and 64 batch entries of 8 heads: about one block, or four, for each.
        assert_eq!(splits(CARD, 128, 512), 1);
        assert_eq!(splits(CARD, 512, 512), 1);
        assert_eq!(splits(CARD, 8, 512), 16);
        assert_eq!(CARD.preferred_splits(Reading { steps: 4096, ..READING }, 4), 4);
        // A few blocks more than there are multiprocessors leave most idle, unless they are split.
        assert!(splits(CARD, 160, 4096) > 1);
    }

    #[test]
    fn blocks_that_are_slow_alone_share_a_multiprocessor() {
        let card = Card { lone_percent: 125, ..CARD };
        let reading = Reading { tiles: 128, step_bytes: 16 << 10, ..READING };
        assert_eq!(card.preferred_splits(reading, MAX_SPLITS), 2);
        assert_eq!(card.preferred_splits(Reading { tiles: 512, ..reading }, MAX_SPLITS), 1);
    }

    #[test]
    fn short_keys_and_no_workspace_are_not_split() {
        for steps in [0, 1, 8] {
            assert_eq!(splits(CARD, 8, steps), 1);
        }
        assert_eq!(CARD.preferred_splits(Reading { steps: 4096, ..READING }, 0), 1);
        assert_eq!(splits(CARD, 0, 4096), 1);
    }

    #[test]
    fn more_splits_than_one_block_can_add_up_are_not_made() {
        // Eight rows at head dimension 256 on one key-value head: a card of multiprocessors for one tile.
        let reading = Reading { tiles: 1, steps: 512, step_bytes: 16 << 10, part_bytes: 8 * 258 * 4 };
        let alone = CARD.preferred_splits(reading, MAX_SPLITS);
        assert!((16..=64).contains(&alone), "{alone}");
        // Twice the bytes for each split, fewer splits.
        assert!(CARD.preferred_splits(Reading { part_bytes: 2 * reading.part_bytes, ..reading }, MAX_SPLITS) < alone);
    }

    #[test]
    fn steps_are_those_that_the_mask_leaves() {
        let problem = |q_len, k_len| BatchedSizes { batch: 1, q_heads: 8, kv_heads: 2, q_len, k_len, head_dim: 64 };
        assert_eq!(visible_steps(&problem(1, 1000), Mask::Causal), 63);
        assert_eq!(visible_steps(&problem(4, 1000), Mask::Window { left: 28, right: 0 }), 2);
        assert_eq!(visible_steps(&problem(0, 1000), Mask::Full), 0);
        assert_eq!(visible_steps(&problem(3, 0), Mask::Full), 0);
        assert_eq!(packed_rows(&problem(3, 5)), 12);
        assert_eq!(packed_rows(&BatchedSizes { q_heads: 0, kv_heads: 0, ..problem(3, 5) }), 0);
    }
}
