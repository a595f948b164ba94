//! Stored pairs: their loads from global memory, and the operands of `mma.m16n8k8` that they hold (see [`layout::ata`]).

use cuda_std::convert::{bf16_to_f32, f16_to_f32};
use cuda_std::global;
use layout::Dtype;
use layout::ata::{
    AtaArgs, Precision, Source, lower_chunk_offset, lower_lane_offset, lower_source, upper_chunk_offset,
    upper_lane_offset, upper_source,
};

use crate::work::lane;

/// One use of a pair: the pair's number and the code of [`layout::ata::PairUse`].
#[derive(Clone, Copy)]
pub(crate) struct Use {
    pair: u32,
    code: u32,
}

impl Use {
    /// No use. No encoded one has bit 1 without bit 0.
    pub(crate) const NONE: Use = Use { pair: 0, code: 2 };

    /// Whether there is a use.
    #[inline(always)]
    pub(crate) fn is_some(self) -> bool {
        self.code & 3 != Use::NONE.code
    }

    /// Whether the pair is transposed; not where there is no use.
    #[inline(always)]
    pub(crate) fn is_lower(self) -> bool {
        self.code & 1 != 0
    }

    /// Whether a transposed pair is for the second block of the rows.
    #[inline(always)]
    pub(crate) fn is_second(self) -> bool {
        self.code & 2 != 0
    }

    /// The block of X that is read; for a lower use the first of two.
    #[inline(always)]
    pub(crate) fn block(self) -> u32 {
        self.code >> 2
    }
}

/// The uses `at`, `at + step`, .. as far as they are below `end`.
///
/// # Safety
/// `args` has uses up to `end`.
#[inline(always)]
pub(crate) unsafe fn load_uses<const DEPTH: usize>(args: &AtaArgs, at: u32, step: u32, end: u32) -> [Use; DEPTH] {
    let mut uses = [Use::NONE; DEPTH];
    for i in 0..DEPTH {
        let index = at + i as u32 * step;
        if index < end {
            let words = (args.uses as *const [u32; 2]).wrapping_add(index as usize);
            // SAFETY: the use is one of those of `args`.
            let [pair, code] = unsafe { global::load_nc(words) };
            uses[i] = Use { pair, code };
        }
    }
    uses
}

/// The lane's chunks of a pair.
///
/// # Safety
/// The use is one of `args`, whose pairs are of `precision`, which has `CHUNKS` chunks.
#[inline(always)]
pub(crate) unsafe fn load_pair<const CHUNKS: usize>(
    args: &AtaArgs,
    precision: Precision,
    used: Use,
) -> [[u32; 4]; CHUNKS] {
    let lane = lane();
    let is_lower = used.is_lower();
    let start = if is_lower { lower_lane_offset(precision, lane) } else { upper_lane_offset(lane) };
    let pair = (args.pairs as *const u8).wrapping_add(used.pair as usize * precision.pair_bytes());
    let mut chunks = [[0; 4]; CHUNKS];
    for chunk in 0..CHUNKS {
        let offset = if is_lower { lower_chunk_offset(precision, chunk) } else { upper_chunk_offset(chunk) };
        let address = pair.wrapping_add((start + offset) as usize);
        // SAFETY: the chunk is inside the pair.
        chunks[chunk] = unsafe { global::load_nc(address.cast::<[u32; 4]>()) };
    }
    chunks
}

/// The A operand of `part` and `step` of a pair as it is, as bits of f32.
#[inline(always)]
pub(crate) fn upper_operand<const CHUNKS: usize>(
    chunks: &[[u32; 4]; CHUNKS],
    precision: Precision,
    term: usize,
    part: usize,
    step: usize,
) -> [u32; 4] {
    let register = |register| number(chunks, precision, upper_source(precision, term, part, step, register));
    [register(0), register(1), register(2), register(3)]
}

/// The A operand of `part` and `step` of a transposed pair, as bits of f32.
#[inline(always)]
pub(crate) fn lower_operand<const CHUNKS: usize>(
    chunks: &[[u32; 4]; CHUNKS],
    precision: Precision,
    term: usize,
    part: usize,
    step: usize,
) -> [u32; 4] {
    let register = |register| number(chunks, precision, lower_source(precision, term, part, step, register));
    [register(0), register(1), register(2), register(3)]
}

/// A stored number as the bits of an f32. 16-bit numbers are TF32 numbers exactly.
#[inline(always)]
fn number<const CHUNKS: usize>(chunks: &[[u32; 4]; CHUNKS], precision: Precision, source: Source) -> u32 {
    let word = chunks[source.chunk][source.word];
    let half = if source.high { word >> 16 } else { word } as u16;
    match precision.stored() {
        Dtype::F16 => f16_to_f32(half).to_bits(),
        Dtype::Bf16 => bf16_to_f32(half).to_bits(),
        _ => word,
    }
}
