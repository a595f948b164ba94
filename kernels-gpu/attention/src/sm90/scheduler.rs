//! Which tiles of query rows a block of a persistent launch computes, in which order ([`TileSchedulerArgs`]).
//!
//! The producer takes the next tile when it has started the copies of one. It leaves the tile's head and first row in
//! shared memory for the consumers, which then need no divisions.
//!
//! Where lengths may differ, the producer leaves the lengths of the tile's sequences there, too. Another stream may
//! write the lengths meanwhile, so all threads of a block must take the steps of the lengths that one thread has read.

use cuda_std::global;
use cuda_std::hint::opaque;
use cuda_std::ptx::mbarrier;
use cuda_std::shared::SharedAddr;
use cuda_std::thread;
use cuda_std::warp::{FULL_MASK, sync_warp};
use layout::SmemRegion;
use variants::attention::{AttentionArgs, SCHEDULER_STAGES, SEQUENCE_END, Seqlens, TileSchedulerArgs, first_slot};

use crate::lane::{div_rem, warp_uniform};
use crate::mask::KeyRange;
use crate::seqlen::SeqlenInfo;
use crate::sm90::config::Config;
use crate::sm90::descale::Descale;

/// Query rows of one head.
#[derive(Clone, Copy)]
pub(crate) struct WorkTile {
    /// Batch entry.
    pub(crate) batch: u32,
    /// Head of Q.
    pub(crate) head: u32,
    /// Head of K and V.
    pub(crate) kv_head: u32,
    /// Head of Q among those of all batch entries.
    pub(crate) batch_head: u32,
    /// First row.
    pub(crate) first_row: u32,
    /// The sequences of the batch entry, where they may differ in length ([`WorkTile::seqlen_info`]).
    seqlen: SeqlenInfo,
}

impl WorkTile {
    /// No tile.
    #[inline(always)]
    pub(crate) fn none(args: &AttentionArgs) -> Self {
        Self { batch: 0, head: 0, kv_head: 0, batch_head: NO_HEAD, first_row: 0, seqlen: SeqlenInfo::equal(args) }
    }

    /// Whether there is none.
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.batch_head == NO_HEAD
    }

    /// The tile of this number, which is below `tiles.tiles`, where all sequences are as long.
    #[inline(always)]
    fn of_number<const ID: usize>(args: &AttentionArgs, tiles: &TileSchedulerArgs, number: u32) -> Self {
        let (group, in_group) = div_rem(number, tiles.group_heads * tiles.m_tiles);
        let first_head = group * tiles.group_heads;
        let (m_tile, group_head) = div_rem(in_group, tiles.group_heads.min(tiles.heads - first_head));
        let batch_head = first_head + group_head;
        let (batch, head) = div_rem(batch_head, args.q_heads);
        let (kv_head, _) = div_rem(head, args.heads_per_kv);
        let first_row = (tiles.m_tiles - 1 - m_tile) * const { Config::<ID>::M };
        Self { batch, head, kv_head, batch_head, first_row, seqlen: SeqlenInfo::equal(args) }
    }

    /// The tile in the slot of this number, which is below `tiles.tiles`, where sequences may differ in length; without
    /// rows if there is none.
    ///
    /// # Safety
    /// The numbers of all batch entries are readable.
    #[inline(always)]
    unsafe fn of_slot<const ID: usize>(args: &AttentionArgs, tiles: &TileSchedulerArgs, number: u32) -> Self {
        // Opaque, reciprocals of divisors take no registers of the producer, which has few.
        let (m_tiles, group_heads) = (opaque(tiles.m_tiles), opaque(tiles.group_heads));
        let (group, in_group) = div_rem(number, group_heads * m_tiles);
        let first_head = group * group_heads;
        let (from_end, group_head) = div_rem(in_group, group_heads.min(tiles.heads - first_head));
        let (head, slot) = (first_head + group_head, m_tiles - 1 - from_end);
        let rows = const { Config::<ID>::M };
        let tile = |batch: u32, head: u32, first_row: u32, seqlen: SeqlenInfo| {
            let (kv_head, _) = div_rem(head, opaque(args.heads_per_kv));
            Self { batch, head, kv_head, batch_head: batch * args.q_heads + head, first_row, seqlen }
        };
        if args.cu_seqlens_q == 0 {
            let (batch, head) = div_rem(head, opaque(args.q_heads));
            return tile(batch, head, slot * rows, SeqlenInfo::equal(args));
        }
        // The last batch entry whose first slot is not beyond this one, or the first.
        let (mut batch, mut end) = (0, opaque(args.varlen_batch));
        while end - batch > 1 {
            let middle = batch + (end - batch) / 2;
            // SAFETY: there is such a batch entry.
            let start = unsafe { SeqlenInfo::q_start_of(args, middle) };
            if first_slot(start, middle, rows) <= slot {
                batch = middle;
            } else {
                end = middle;
            }
        }
        // SAFETY: there is such a batch entry.
        let seqlen = unsafe { SeqlenInfo::of_batch(args, batch) };
        let first_slot = first_slot(seqlen.q_start, batch, rows);
        let first_row = if slot < first_slot { seqlen.q_len } else { (slot - first_slot) * rows };
        tile(batch, head, first_row, seqlen)
    }

    /// The sequences of its batch entry.
    #[inline(always)]
    pub(crate) fn seqlen_info<const ID: usize>(&self, args: &AttentionArgs) -> SeqlenInfo {
        match Config::<ID>::SEQLENS {
            Seqlens::Fixed => SeqlenInfo::equal(args),
            Seqlens::Varlen => self.seqlen,
        }
    }

    /// Where TMA finds its rows of Q; see [`coordinates`].
    #[inline(always)]
    pub(crate) fn q_coordinates<const ID: usize>(&self, args: &AttentionArgs) -> [u32; 4] {
        let SeqlenInfo { q_start, q_len, .. } = self.seqlen_info::<ID>(args);
        coordinates::<ID>(args, [q_start, q_len], self.first_row, self.head, self.batch)
    }

    /// Where TMA finds its first key and value; see [`coordinates`].
    #[inline(always)]
    pub(crate) fn kv_coordinates<const ID: usize>(&self, args: &AttentionArgs) -> [u32; 4] {
        let SeqlenInfo { k_start, keys, .. } = self.seqlen_info::<ID>(args);
        coordinates::<ID>(args, [k_start, keys.len()], 0, self.kv_head, self.batch)
    }
}

/// The coordinates of a row of a sequence in its map: row, head, batch entry, and 0.
///
/// Where sequences follow each other, the third coordinate is the row after the sequence, and rows count back from
/// [`SEQUENCE_END`]. Rows of the sequence are then inside the map, and rows after its last one are outside: they arrive
/// as zeros, whatever the next sequence has there. The last coordinate takes away what the first and third have too
/// much.
#[inline(always)]
fn coordinates<const ID: usize>(
    args: &AttentionArgs,
    [start, len]: [u32; 2],
    row: u32,
    head: u32,
    batch: u32,
) -> [u32; 4] {
    match Config::<ID>::SEQLENS {
        Seqlens::Varlen if args.cu_seqlens_q != 0 => [SEQUENCE_END - len + row, head, start + len, SEQUENCE_END],
        _ => [row, head, batch, 0],
    }
}

/// Stands for a head where there are no more tiles.
const NO_HEAD: u32 = u32::MAX;

/// Where the lengths of the batch entry are in the stage of a tile, behind head and first row: first row and rows, and
/// first key and keys.
const Q_WORDS: u32 = 8;
const K_WORDS: u32 = 16;

/// Where [`Descale`] is: behind all others.
const fn descale_words<const ID: usize>() -> u32 {
    match Config::<ID>::SEQLENS {
        Seqlens::Fixed => 8,
        Seqlens::Varlen => 24,
    }
}

/// The steps that some row of `first_row ..= last_row` sees: from the first number up to the second. Blocks that copy
/// for each other take all steps: rows after the last of the problem too, whose block brings keys for the others.
#[inline(always)]
pub(crate) fn steps_of_rows<const ID: usize>(keys: KeyRange, first_row: u32, last_row: u32) -> (u32, u32) {
    let step_keys = Config::<ID>::N;
    if Config::<ID>::MULTICAST_CTAS == 1 {
        keys.steps(first_row as i32, last_row as i32, step_keys)
    } else {
        (0, keys.len().div_ceil(step_keys))
    }
}

/// The tiles of this block, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct TileScheduler {
    /// Tiles so far.
    round: u32,
    /// Slots so far, where sequences may differ in length: those of the tiles, and those without one.
    slots: u32,
}

impl TileScheduler {
    pub(crate) const START: Self = Self { round: 0, slots: 0 };

    /// The buffer of the Q of the current tile, and the parity of the phase in which it arrives.
    #[inline(always)]
    pub(crate) fn q_stage<const ID: usize>(&self) -> (u32, u32) {
        let before = self.round - 1;
        let stages = const { Config::<ID>::Q.stages };
        (before % stages, before / stages % 2)
    }

    /// The next tile; [`WorkTile::is_none`] after the last.
    ///
    /// # Safety
    /// The producer calls it. No other launch has the semaphore of this launch, if there is one.
    #[inline(always)]
    pub(crate) unsafe fn next_work<const ID: usize>(
        &mut self,
        args: &AttentionArgs,
        tiles: &TileSchedulerArgs,
    ) -> WorkTile {
        match Config::<ID>::SEQLENS {
            Seqlens::Fixed => {
                // SAFETY: the caller's contract.
                let number = unsafe { number::<ID>(tiles, self.round) };
                if number < tiles.tiles { WorkTile::of_number::<ID>(args, tiles, number) } else { WorkTile::none(args) }
            }
            Seqlens::Varlen => loop {
                // SAFETY: the caller's contract; the numbers of the batch entries are readable.
                let number = unsafe { number::<ID>(tiles, self.slots) };
                self.slots += 1;
                if number >= tiles.tiles {
                    break WorkTile::none(args);
                }
                // SAFETY: as above.
                let tile = unsafe { WorkTile::of_slot::<ID>(args, tiles, number) };
                if tile.first_row < tile.seqlen.q_len {
                    break tile;
                }
            },
        }
    }

    /// Broadcasts to the consumers what [`Self::next_work`] has found.
    ///
    /// # Safety
    /// The producer calls it for each tile, and at the end; the barriers are initialised.
    #[inline(always)]
    pub(crate) unsafe fn broadcast<const ID: usize>(
        &mut self,
        base: SharedAddr,
        tile: &WorkTile,
        descale: Option<Descale>,
    ) {
        let (stage, _) = self.stage();
        let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
        // SAFETY: what was here is of a tile whose Q all consumers have left, which the producer has waited for: there
        // are more stages for tiles than for Q.
        unsafe {
            at(Config::<ID>::TILES).store([tile.batch_head, tile.first_row]);
            if let Seqlens::Varlen = Config::<ID>::SEQLENS {
                let [q_start, q_len, k_start, k_len] = tile.seqlen.words();
                at(Config::<ID>::TILES).offset(Q_WORDS).store([q_start, q_len]);
                at(Config::<ID>::TILES).offset(K_WORDS).store([k_start, k_len]);
            }
            if let Some(descale) = descale {
                at(Config::<ID>::TILES).offset(const { descale_words::<ID>() }).store(descale.words());
            }
            mbarrier::arrive_if(at(Config::<ID>::TILE_FULL), true);
        }
        self.round += 1;
    }

    /// The head, of those of all batch entries, and the first row of the next tile that the producer has taken; `None`
    /// after the last.
    ///
    /// # Safety
    /// All lanes of a consumer warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn receive<const ID: usize>(&mut self, base: SharedAddr) -> Option<[u32; 2]> {
        let (stage, parity) = self.stage();
        let at = |region: SmemRegion| base.offset(region.stage_offset(stage));
        // SAFETY: the tile stays until the warp has left its Q.
        let tile: [u32; 2] = unsafe {
            mbarrier::wait_parity(at(Config::<ID>::TILE_FULL), parity);
            at(Config::<ID>::TILES).load()
        };
        // The same in all lanes, and to the eyes of `ptxas`: descriptors and barriers are then in uniform registers,
        // without moves to them between the products. SAFETY: the warp is together.
        let tile = tile.map(|word| unsafe { warp_uniform(word) });
        // Every lane has read it, not the first alone, which leaves Q for all.
        // SAFETY: as above.
        unsafe { sync_warp(FULL_MASK) };
        self.round += 1;
        (tile[0] != NO_HEAD).then_some(tile)
    }

    /// The sequences of the tile that [`Self::receive`] gave last. They stay until the warp follows to the next one:
    /// there are that many stages for tiles.
    ///
    /// # Safety
    /// All lanes of a consumer warp call it together.
    #[inline(always)]
    pub(crate) unsafe fn seqlen_info<const ID: usize>(&self, base: SharedAddr, args: &AttentionArgs) -> SeqlenInfo {
        match Config::<ID>::SEQLENS {
            Seqlens::Fixed => SeqlenInfo::equal(args),
            Seqlens::Varlen => {
                let tile = base.offset(Config::<ID>::TILES.stage_offset((self.round - 1) % SCHEDULER_STAGES));
                // SAFETY: the words are there, behind the wait of `receive`.
                let [[q_start, q_len], [k_start, k_len]] =
                    unsafe { [tile.offset(Q_WORDS).load(), tile.offset(K_WORDS).load::<[u32; 2]>()] };
                // The same in all lanes to the eyes of `ptxas`, as in `receive`. It would take lanes for apart behind a
                // branch on lengths otherwise, and have no uniform registers for descriptors: 4 to 10 % more time.
                // SAFETY: the warp is together.
                SeqlenInfo::of_words(args, [q_start, q_len, k_start, k_len].map(|word| unsafe { warp_uniform(word) }))
            }
        }
    }

    /// What the factors of the inputs come to in the tile that [`Self::receive`] gave last, where the kernel has any.
    ///
    /// # Safety
    /// As [`Self::seqlen_info`].
    #[inline(always)]
    pub(crate) unsafe fn descale<const ID: usize>(&self, base: SharedAddr) -> Option<Descale> {
        if !const { Config::<ID>::TRANSPOSES_VALUES } {
            return None;
        }
        let tile = base.offset(Config::<ID>::TILES.stage_offset((self.round - 1) % SCHEDULER_STAGES));
        // SAFETY: the words are there, behind the wait of `receive`.
        let words: [u32; 2] = unsafe { tile.offset(const { descale_words::<ID>() }).load() };
        // SAFETY: the warp is together.
        Some(Descale::of_words(words.map(|word| unsafe { warp_uniform(word) })))
    }

    /// Where the next tile is, and the parity of the phase in which it comes.
    #[inline(always)]
    fn stage(&self) -> (u32, u32) {
        (self.round % SCHEDULER_STAGES, self.round / SCHEDULER_STAGES % 2)
    }
}

/// The number of the next tile, or slot, of this block, which has taken `taken` so far.
///
/// # Safety
/// As [`TileScheduler::next_work`].
#[inline(always)]
unsafe fn number<const ID: usize>(tiles: &TileSchedulerArgs, taken: u32) -> u32 {
    let cluster = const { Config::<ID>::SPLIT_KV_CTAS * Config::<ID>::MULTICAST_CTAS };
    let (block, blocks) = (thread::block_idx_x() / cluster, thread::grid_dim_x() / cluster);
    let number = if taken == 0 {
        block
    } else if tiles.semaphore != 0 {
        // Every block takes one number too many, so that the last of `tiles` takes makes the semaphore 0 again. SAFETY:
        // the semaphore is one of a launch.
        blocks + unsafe { global::atomic_inc(tiles.semaphore as *mut u32, tiles.tiles - 1) }
    } else {
        taken * blocks + if taken.is_multiple_of(2) { block } else { blocks - 1 - block }
    };
    if const { Config::<ID>::MULTICAST_CTAS > 1 } {
        number * const { Config::<ID>::MULTICAST_CTAS } + thread::cluster_rank()
    } else {
        number
    }
}
