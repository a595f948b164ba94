//! Launches of decode kernels: how the keys are split, and the workspace of partial results.

use std::sync::Arc;

use layout::{Arch, Dtype};
use variants::attention::{
    AttentionArgs, AttentionConfig, AttentionKernel, AttentionStrides, COMBINE_ROWS, CombineArgs, CombineKernel,
    DECODE_KEYS, DecodeArgs, DescaleArgs, MAX_SPLITS, Mask, PartialResult,
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

/// Bytes that a multiprocessor could read while another kernel starts that adds up the partial results.
const COMBINE_KERNEL_BYTES: usize = 192 << 10;

/// Elements of O of each thread up to which the last block of a tile adds up its partial results; beyond that the next
/// kernel, of more warps, takes less time (1x8:1x1x8192x256 on an H200, `docs/measurements/decoding.md`).
const THREAD_ELEMENTS: usize = 4;

/// Bytes of partial results that a multiprocessor reads in the time of one byte of K and V: they are in L2.
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
    /// What adds up the splits; `None` with one.
    sum: Option<SplitSum>,
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

/// What adds up the partial results of the splits.
#[derive(Clone)]
enum SplitSum {
    /// The last block of a tile; its blocks count each other in semaphores.
    LastBlock(Arc<Semaphores>),
    /// The kernel after.
    Kernel(&'static CombineKernel, Kernel),
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
        let tile_rows = packed_rows(sizes).min(config.rows());
        let by_last_block =
            config.adds_up_splits() && tile_rows * value_dim <= THREAD_ELEMENTS * config.threads() as usize;
        let semaphore_bytes = if by_last_block { tiles.saturating_mul(SEMAPHORE_BYTES) } else { 0 };
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
                    combine: if by_last_block {
                        Combine { start_bytes: COMBINE_BYTES, rows: tile_rows, of: tiles, row_bytes }
                    } else {
                        let (rows, of) = (rows.min(COMBINE_ROWS), rows.div_ceil(COMBINE_ROWS));
                        Combine { start_bytes: COMBINE_KERNEL_BYTES, rows, of, row_bytes }
                    },
                };
                card.preferred_splits(reading, most.min(MAX_SPLITS))
            }
        };
        let Some(blocks) = tiles.checked_mul(splits).and_then(|blocks| i32::try_from(blocks).ok()) else {
            let expected = format!("at most 2^31 - 1 blocks in {splits} splits: split the batch");
            return Err(argument(OP, "batch * kv_heads", format!("{batch} * {kv_heads}"), expected));
        };
        let sum = match splits {
            1 => None,
            _ if by_last_block => Some(SplitSum::LastBlock(gpu.semaphores()?)),
            _ if u32::try_from(rows).is_err() => {
                let expected = format!("at most 2^32 - 1 rows in {splits} splits: split the batch");
                return Err(argument(OP, "batch * q_heads * q_len", rows, expected));
            }
            _ => {
                let combine = CombineKernel::of(Dtype::F32, config.out).expect("every type of O has one");
                Some(SplitSum::Kernel(combine, gpu.kernel("attention", combine.name)?))
            }
        };
        Ok(Self {
            config,
            kernel,
            sum,
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
        let semaphores = if let Some(SplitSum::LastBlock(_)) = &self.sum { self.semaphore_bytes() } else { 0 };
        self.partial_bytes(self.value_dim + ROW_NUMBERS) + semaphores
    }

    /// Bytes of a semaphore for each tile.
    const fn semaphore_bytes(&self) -> usize {
        self.tiles * SEMAPHORE_BYTES
    }

    /// Bytes of so many f32 numbers for each row of one split.
    const fn split_bytes(&self, numbers: usize) -> usize {
        self.rows * numbers * size_of::<f32>()
    }

    /// The same of all splits.
    const fn partial_bytes(&self, numbers: usize) -> usize {
        self.splits * self.split_bytes(numbers)
    }

    /// Enqueues the kernels.
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
            overlaps: !self.isolated && !self.config.has_e4m3_kv() && stream.gpu().arch() >= Arch::Sm90a,
            ..LaunchConfig::of_blocks(self.blocks, self.config.threads())
        };
        let device = stream.gpu().device();
        let semaphores = match &self.sum {
            None | Some(SplitSum::Kernel(..)) => 0,
            Some(SplitSum::LastBlock(semaphores)) => {
                let of_device = semaphores.of_launch(&**device, stream.handle(), self.tiles)?;
                if let Some(address) = of_device {
                    address
                } else {
                    let address = workspace + self.partial_bytes(self.value_dim + ROW_NUMBERS) as u64;
                    // SAFETY: the workspace is as long, and the caller's promise is for the rest.
                    unsafe { device.fill_bytes(stream.enqueue()?, address, 0, self.semaphore_bytes()) }?;
                    // Only kernels start while a kernel before them still runs.
                    config.overlaps = false;
                    address
                }
            }
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
        match &self.sum {
            Some(SplitSum::LastBlock(semaphores)) if launched.is_err() => {
                semaphores.abandon(&**device, stream.handle());
            }
            Some(SplitSum::Kernel(combine, kernel)) => {
                launched?;
                let sum = self.combine_arguments(args, &decode);
                // SAFETY: the launch before has written the parts; the caller's promise is for the rest.
                return unsafe { launch_combine(stream, combine, kernel, &sum, self.isolated) };
            }
            _ => {}
        }
        launched
    }

    /// What the kernel adds up that comes after.
    fn combine_arguments(&self, args: &AttentionArgs, decode: &DecodeArgs) -> CombineArgs {
        let (of_o, of_numbers) = (self.split_bytes(self.value_dim) as u64, self.split_bytes(1) as u64);
        let dim = self.value_dim as i64;
        let (q_len, heads) = (i64::from(args.q_len), i64::from(args.q_heads));
        let strides = AttentionStrides { batch: heads * q_len * dim, head: q_len * dim, row: dim };
        let part = |index: u64| PartialResult {
            o: decode.partial_o + index * of_o,
            max: decode.partial_max + index * of_numbers,
            sum: decode.partial_sum + index * of_numbers,
            strides,
        };
        CombineArgs {
            first: part(0),
            second: part(1),
            o_step: self.rows as i64 * dim,
            row_step: self.rows as i64,
            sink: args.sink,
            o: args.o,
            lse: args.lse,
            o_strides: args.o_strides,
            parts: self.splits as u32,
            rows: self.rows as u32,
            heads: args.q_heads,
            row_len: args.q_len,
            head_dim: args.value_dim,
            inputs_aligned: 1,
            output_aligned: args.output_aligned,
            scale_log2: args.scale_log2,
        }
    }
}

/// Enqueues the sum of parts, which starts only when the work before it has ended where it is `isolated`.
///
/// # Safety
/// `args` describes the parts and the result, which are valid until the stream has done the work.
pub(super) unsafe fn launch_combine(
    stream: StreamRef<'_>,
    combine: &CombineKernel,
    kernel: &Kernel,
    args: &CombineArgs,
    isolated: bool,
) -> Result<()> {
    let blocks = combine.blocks(args.rows as usize).expect("the number of rows is an argument");
    let config = LaunchConfig {
        overlaps: !isolated && stream.gpu().arch() >= Arch::Sm90a,
        ..LaunchConfig::of_blocks(blocks, combine.threads())
    };
    // SAFETY: the launch is the kernel's; the caller's promise is for the rest.
    unsafe { kernel.launch(stream, &config, &[args]) }
}

// SAFETY: plain `repr(C)` data without padding.
unsafe impl KernelParam for CombineArgs {}

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
    combine: Combine,
}

/// What adds up the partial results.
#[derive(Debug, Clone, Copy)]
struct Combine {
    /// Bytes of K and V that a multiprocessor could read before it does.
    start_bytes: usize,
    /// Rows of a block that does.
    rows: usize,
    /// How many such blocks there are.
    of: usize,
    /// Bytes of a row of a partial result.
    row_bytes: usize,
}

impl Card {
    /// The number of splits that is expected to be fastest.
    ///
    /// What counts is the bytes that the busiest multiprocessor reads. One block alone nearly has the rate of its
    /// multiprocessor, or less by [`Card::lone_percent`]; several blocks share that rate. Each round of blocks pays for
    /// its start. A block that adds up splits, the last of a tile or one of the kernel after, reads what all of them
    /// have left of its rows.
    fn preferred_splits(self, reading: Reading, most: usize) -> usize {
        let Reading { tiles, steps, step_bytes, combine } = reading;
        let cost = |splits: usize| {
            let blocks = tiles.saturating_mul(splits);
            let shared_by = blocks.div_ceil(self.multiprocessors);
            let percent = if shared_by > 1 { 100 } else { self.lone_percent };
            let read = shared_by.saturating_mul(steps.div_ceil(splits) * step_bytes * percent / 100);
            let rounds = blocks.div_ceil(self.multiprocessors * self.resident);
            let combine = if splits > 1 {
                let rows = combine.of.div_ceil(self.multiprocessors).saturating_mul(combine.rows);
                combine.start_bytes + rows.saturating_mul(splits * combine.row_bytes) / COMBINE_RATE
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

    /// Four rows of each tile at head dimension 128, added up by the last block.
    const READING: Reading = Reading {
        tiles: 8,
        steps: 512,
        step_bytes: 8 << 10,
        combine: Combine { start_bytes: COMBINE_BYTES, rows: 4, of: 8, row_bytes: 130 * 4 },
    };

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

    /// The fastest measured on an H200 (`docs/measurements/decoding.md`).
    #[test]
    fn splits_are_those_that_measure_best() {
        assert_eq!([256, 512, 4096, 8192].map(|steps| splits(CARD, 8, steps)), [16, 16, 33, 33]);
        // 1x8:1x1x8192x256.
        let (card, row_bytes) = (Card { lone_percent: 125, ..CARD }, 258 * 4);
        let combine = Combine { start_bytes: COMBINE_KERNEL_BYTES, rows: 4, of: 2, row_bytes };
        let reading = Reading { tiles: 1, steps: 512, step_bytes: 16 << 10, combine };
        assert_eq!(card.preferred_splits(reading, MAX_SPLITS), 64);
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
