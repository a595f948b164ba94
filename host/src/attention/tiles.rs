//! Launches of kernels that compute one tile of query rows after the other, and how many blocks they have.

use std::sync::{Arc, Mutex, PoisonError};

use variants::attention::{
    AttentionArgs, AttentionConfig, AttentionKernel, DescaleArgs, MaskKind, TileSchedulerArgs, WgmmaTile, first_slot,
};

use super::choice::is_wgmma;
use super::layout::Layout;
use super::sizes::{BatchedSizes, Keys, OP, VarlenSizes};
use super::{scheduler, tma};
use crate::backend::LaunchConfig;
use crate::checks::argument;
use crate::error::{Error, Result};
use crate::runtime::gpu::Gpu;
use crate::runtime::module::Kernel;
use crate::runtime::param::KernelParam;
use crate::runtime::raw_tensor::RawTensor;
use crate::runtime::semaphores::Semaphores;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor_map::TensorMap;

/// A configuration, its kernel and its tiles of query rows.
#[derive(Clone)]
pub(super) struct TileLaunch {
    pub(super) config: &'static AttentionConfig,
    pub(super) kernel: Kernel,
    /// The sizes whose tiles these are.
    sizes: BatchedSizes,
    layout: Layout,
    is_varlen: bool,
    pub(super) tiles: u32,
    /// Whether it starts only when the work before it has ended.
    isolated: bool,
    /// Where the blocks of a WGMMA launch take tiles that take unlike times; `None` where each block has one tile at
    /// most, or all take the same time.
    semaphores: Option<Arc<Semaphores>>,
    /// The tensor maps of the launch before, which one of the same tensors has too.
    encoded: Arc<Mutex<Option<Encoded>>>,
}

/// Q, K and V, and their tensor maps.
#[derive(Clone, Copy)]
struct Encoded {
    of: [RawTensor; 3],
    maps: [TensorMap; 3],
}

impl TileLaunch {
    /// Loads the kernel for tensors in `layout`.
    pub(super) fn new(
        gpu: &Gpu,
        config: &'static AttentionConfig,
        (keys, layout): (&Keys, Layout),
        isolated: bool,
    ) -> Result<Self> {
        let sizes = match keys {
            Keys::Varlen(sizes) => varlen_tiles(sizes, config),
            Keys::Batched(_) | Keys::Paged(_) => keys.longest(),
        };
        let heads = sizes.batch.checked_mul(sizes.q_heads);
        let tiles = heads.and_then(|heads| config.tiles(heads, sizes.q_len)).ok_or_else(|| {
            let got = format!("{} * {} * {}", sizes.batch, sizes.q_heads, sizes.q_len);
            let expected = format!("at most 2^31 - 1 blocks of {} rows: split the batch", config.rows());
            argument(OP, "batch * q_heads * q_len", got, expected)
        })?;
        let semaphores = match config.kernel {
            AttentionKernel::Wgmma(tile)
                if tile.mask == MaskKind::Masked && tile.split_kv_ctas == 1 && tiles > resident_blocks(gpu, config) =>
            {
                Some(gpu.semaphores()?)
            }
            _ => None,
        };
        Ok(Self {
            config,
            kernel: gpu.kernel(config.family, config.name)?,
            sizes,
            layout,
            is_varlen: matches!(keys, Keys::Varlen(_)),
            tiles,
            isolated,
            semaphores,
            encoded: Arc::default(),
        })
    }

    /// Loads the configuration that takes the place of the chosen one for tensors that TMA cannot copy; `None` where
    /// its grid has no room for the problem.
    pub(super) fn substitute(
        gpu: &Gpu,
        config: &'static AttentionConfig,
        problem: (&Keys, Layout),
    ) -> Result<Option<Self>> {
        match Self::new(gpu, config, problem, false) {
            Err(Error::Argument { .. }) => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    /// Enqueues the kernel, whose tensors Q, K and V have rank 4; nothing without tiles.
    ///
    /// # Safety
    /// The arguments and Q, K and V are tensors of the launch's sizes, valid until the stream has done the work.
    pub(super) unsafe fn launch(
        &self,
        stream: StreamRef<'_>,
        args: &AttentionArgs,
        descales: &DescaleArgs,
        inputs: [&RawTensor; 3],
    ) -> Result<()> {
        if self.tiles == 0 {
            return Ok(());
        }
        match self.config.kernel {
            // SAFETY: the caller's contract.
            AttentionKernel::Wgmma(tile) => unsafe { self.launch_persistent(stream, &tile, args, descales, inputs) },
            _ => {
                let params: [&dyn KernelParam; 2] = [args, descales];
                let taken = if self.config.has_descales() { 2 } else { 1 };
                // SAFETY: the caller's contract; grid, block and shared memory are the configuration's.
                unsafe { self.kernel.launch(stream, &self.launch_config(), &params[..taken]) }
            }
        }
    }

    /// Enqueues a WGMMA kernel: as many blocks as are resident compute the tiles.
    ///
    /// # Safety
    /// As [`TileLaunch::launch`].
    unsafe fn launch_persistent(
        &self,
        stream: StreamRef<'_>,
        tile: &WgmmaTile,
        args: &AttentionArgs,
        descales: &DescaleArgs,
        inputs: [&RawTensor; 3],
    ) -> Result<()> {
        let [q, k, v] = self.maps(stream.gpu(), tile, inputs)?;
        let device = stream.gpu().device();
        let semaphore = match &self.semaphores {
            Some(semaphores) => semaphores.of_launch(&**device, stream.handle(), 1)?.unwrap_or(0),
            None => 0,
        };
        let blocks = self.tiles.min(resident_blocks(stream.gpu(), self.config));
        let order = scheduler::order(&self.sizes, args.value_dim as usize, self.tiles, blocks, tile.mask);
        let order = TileSchedulerArgs { semaphore, ..order };
        let mut config = self.launch_config();
        if tile.split_kv_ctas == 1 {
            config.grid[0] = blocks;
        }
        config.overlaps = !self.isolated;
        let params: [&dyn KernelParam; 6] = [args, &order, &q, &k, &v, descales];
        let taken = if self.config.has_descales() { 6 } else { 5 };
        // SAFETY: the caller's contract; grid, block and shared memory are the configuration's.
        let launched = unsafe { self.kernel.launch(stream, &config, &params[..taken]) };
        if let (Err(_), Some(semaphores)) = (&launched, &self.semaphores) {
            semaphores.abandon(&**device, stream.handle());
        }
        launched
    }

    /// The tensor maps of Q, K and V; those of the launch before where it had the same tensors.
    fn maps(&self, gpu: &Gpu, tile: &WgmmaTile, inputs: [&RawTensor; 3]) -> Result<[TensorMap; 3]> {
        let of = inputs.map(|tensor| *tensor);
        let mut encoded = self.encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = &*encoded
            && last.of == of
        {
            return Ok(last.maps);
        }
        let map = |tensor: &RawTensor, tile| {
            if self.is_varlen {
                tma::map_of_sequences(gpu, tensor, tile)
            } else {
                tma::map(gpu, self.config.seqlens, self.layout, tensor, tile)
            }
        };
        let [q, k, v] = inputs;
        let (swizzle, value_swizzle) = (self.config.swizzle(), self.config.value_swizzle());
        let q_map = map(q, (tile.m(), swizzle))?;
        let maps = if self.sizes.k_len == 0 {
            // No map has no keys, and no block copies any.
            [q_map; 3]
        } else {
            [q_map, map(k, (tile.copied_keys(), swizzle))?, map(v, (tile.copied_keys(), value_swizzle))?]
        };
        *encoded = Some(Encoded { of, maps });
        Ok(maps)
    }

    /// Its launch with a block for each tile, or a cluster.
    fn launch_config(&self) -> LaunchConfig {
        LaunchConfig {
            cluster: [self.config.cluster(), 1, 1],
            shared_bytes: self.config.smem().total_bytes(),
            ..LaunchConfig::of_blocks(self.tiles * self.config.split_kv_ctas(), self.config.threads())
        }
    }
}

/// The blocks of a persistent launch: as many as are resident, in whole clusters.
fn resident_blocks(gpu: &Gpu, config: &AttentionConfig) -> u32 {
    let cluster = config.multicast_ctas();
    (config.min_blocks() * gpu.multiprocessors() / cluster).max(1) * cluster
}

/// What the tiles of a configuration are those of: all batch entries as long as the longest, or one sequence that has
/// all their slots.
fn varlen_tiles(sizes: &VarlenSizes, config: &AttentionConfig) -> BatchedSizes {
    if !is_wgmma(config) {
        return sizes.longest();
    }
    let has_rows = sizes.batch > 0 && sizes.max_q_len > 0;
    let rows = config.rows();
    let slots = if has_rows { first_slot(sizes.q_total as u32, sizes.batch as u32, rows as u32) } else { 0 };
    BatchedSizes { batch: 1, q_len: slots as usize * rows, ..sizes.longest() }
}
