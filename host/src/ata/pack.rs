//! The matrix as kernels read it: pairs of blocks in the order of [`variants::ata`], the tile references of
//! each strip, and how elements are rounded.

use half::{bf16, f16};
use ndarray::ArrayView2;
use variants::ata::{
    BLOCK, ElementOffset, KIND_PREFIX, LIST_PREFIX, PAIR_ROWS, Precision, STRIP_PAIR_ROWS, Storage, TILE_REF_WORDS,
    TileRef, element_offset,
};

use super::matrix::SymmetricBlockMatrix;
use super::options::OP;
use crate::element::Float;
use crate::error::{Error, Result};

/// How many vertical pairs of blocks of the band are of each class, over all channels. A block is missing where it is
/// outside the band or the matrix, or all zeros.
///
/// ```
/// use ferrotile::SymmetricBlockMatrix;
/// use ndarray::Array3;
///
/// // 3 on the diagonal and -1 beside it, as SciPy's `dia_array` holds the upper half.
/// let data = Array3::from_shape_fn((1, 2, 32), |(_, diagonal, _)| if diagonal == 0 { 3.0 } else { -1.0 });
/// let host = SymmetricBlockMatrix::from_diagonals(32, &[0, 1], data.view())?;
///
/// let classes = host.pair_classes();
/// assert_eq!((classes.stored(), classes.none), (2, 0));
/// # Ok::<(), ferrotile::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PairClasses {
    /// Both blocks are there.
    pub both: usize,
    /// The upper block alone; the other is stored as zeros.
    pub top_only: usize,
    /// The lower block alone; the other is stored as zeros.
    pub bottom_only: usize,
    /// Neither: nothing is stored or computed.
    pub none: usize,
}

impl PairClasses {
    /// Pairs that are stored.
    #[must_use]
    pub const fn stored(&self) -> usize {
        self.both + self.top_only + self.bottom_only
    }

    const fn count(&mut self, pair: &Pair<'_>) {
        match (&pair.top, &pair.bottom) {
            (Some(_), Some(_)) => self.both += 1,
            (Some(_), None) => self.top_only += 1,
            (None, Some(_)) => self.bottom_only += 1,
            (None, None) => self.none += 1,
        }
    }
}

/// Two blocks under each other.
struct Pair<'a> {
    top: Option<ArrayView2<'a, f32>>,
    bottom: Option<ArrayView2<'a, f32>>,
}

impl<'a> Pair<'a> {
    /// The pair of pair row `pair_row` and block column `column`, which is not left of the diagonal. The one block of
    /// it that is below the diagonal is the transpose of its mirror image.
    fn of(matrix: &'a SymmetricBlockMatrix, channel: usize, pair_row: usize, column: usize) -> Self {
        let (top, bottom) = (2 * pair_row, 2 * pair_row + 1);
        Self {
            top: matrix.block(channel, top, column),
            bottom: if column < bottom {
                matrix.block(channel, column, bottom).map(ArrayView2::reversed_axes)
            } else {
                matrix.block(channel, bottom, column)
            },
        }
    }

    fn is_stored(&self) -> bool {
        self.top.is_some() || self.bottom.is_some()
    }
}

/// Pair rows of a channel.
fn pair_rows(matrix: &SymmetricBlockMatrix) -> usize {
    matrix.n().div_ceil(PAIR_ROWS)
}

/// The block columns of the pairs of a pair row.
fn columns(matrix: &SymmetricBlockMatrix, pair_row: usize) -> std::ops::Range<usize> {
    // The lower block of the last one is on the last block diagonal.
    let first = 2 * pair_row;
    first..(first + 1 + matrix.block_diagonals()).min(matrix.block_rows())
}

/// The classes of all pairs.
fn classes(matrix: &SymmetricBlockMatrix) -> PairClasses {
    let mut classes = PairClasses::default();
    for channel in 0..matrix.channels() {
        for pair_row in 0..pair_rows(matrix) {
            for column in columns(matrix, pair_row) {
                classes.count(&Pair::of(matrix, channel, pair_row, column));
            }
        }
    }
    classes
}

impl SymmetricBlockMatrix {
    /// How many vertical pairs of blocks the band has of which both are there, one, or none.
    #[must_use]
    pub fn pair_classes(&self) -> PairClasses {
        classes(self)
    }

    /// Device memory that it takes in a precision: stored pairs of blocks, and the lists that kernels follow.
    ///
    /// # Errors
    /// As [`SymmetricBlockMatrix::upload_blocking`], without a card.
    pub fn footprint_bytes(&self, precision: Precision) -> Result<usize> {
        footprint_bytes(self, precision)
    }

    /// The matrix that a kernel of this precision multiplies: each element as it is stored.
    #[must_use]
    pub fn rounded(&self, precision: Precision) -> Self {
        self.map_channels(|mut channel| {
            let exponent = exponent(precision, channel.iter());
            channel.mapv_inplace(|element| rounded(precision, element, exponent));
        })
    }
}

/// Which pairs are stored, and the tile references to them.
struct Plan {
    /// Channel, pair row and block column of each stored pair.
    stored: Vec<[usize; 3]>,
    tile_refs: Vec<TileRef>,
    starts: Vec<u32>,
    /// The start of the transposed list of each strip, and of its direct list.
    kind_prefixes: Vec<u32>,
}

impl Plan {
    fn new(matrix: &SymmetricBlockMatrix) -> Result<Self> {
        let (pair_rows, width) = (pair_rows(matrix), matrix.block_diagonals() + 1);
        let mut plan = Self { stored: Vec::new(), tile_refs: Vec::new(), starts: vec![0], kind_prefixes: Vec::new() };
        for channel in 0..matrix.channels() {
            // The numbers of the pairs of this channel, by pair row and distance from the diagonal.
            let mut numbers = vec![None; pair_rows * width];
            for pair_row in 0..pair_rows {
                for column in columns(matrix, pair_row) {
                    if Pair::of(matrix, channel, pair_row, column).is_stored() {
                        numbers[pair_row * width + column - 2 * pair_row] = Some(count(plan.stored.len())?);
                        plan.stored.push([channel, pair_row, column]);
                    }
                }
            }
            // The two pairs of the ATA tile of a pair row and the block columns of another one, not left of the
            // diagonal.
            let tile = |pair_row: usize, other: usize| {
                [2 * other, 2 * other + 1].map(|column| {
                    let distance = column - 2 * pair_row;
                    if pair_row < pair_rows && distance < width { numbers[pair_row * width + distance] } else { None }
                })
            };
            // As many pair rows on either side of a pair row reach into it.
            let reach = width / 2;
            for strip in 0..pair_rows.div_ceil(STRIP_PAIR_ROWS) {
                let first = strip * STRIP_PAIR_ROWS;
                let mut tile_refs = Vec::new();
                for column in first.saturating_sub(reach)..(first + STRIP_PAIR_ROWS + reach).min(pair_rows) {
                    let rows: [usize; STRIP_PAIR_ROWS] = std::array::from_fn(|row| first + row);
                    let tile_ref = TileRef {
                        column: column as u32,
                        pairs: rows.map(|row| tile(row.min(column), row.max(column))),
                        transposed: column <= first,
                    };
                    if tile_ref.pairs.iter().flatten().any(Option::is_some) {
                        tile_refs.push(tile_ref);
                    }
                }
                plan.push_strip(&tile_refs)?;
            }
        }
        Ok(plan)
    }

    /// The next strip, of these tile references: those that warps take at first come first, transposed and direct.
    fn push_strip(&mut self, tile_refs: &[TileRef]) -> Result<()> {
        let kind_prefixes =
            [true, false].map(|transposed| tile_refs.iter().filter(move |tile_ref| tile_ref.transposed == transposed));
        let start = self.tile_refs.len();
        self.tile_refs.extend(kind_prefixes.iter().flat_map(|tile_refs| tile_refs.clone().take(KIND_PREFIX)));
        let others = count(self.tile_refs.len())?;
        self.tile_refs.extend(kind_prefixes.iter().flat_map(|tile_refs| tile_refs.clone().skip(KIND_PREFIX)));
        let end = count(self.tile_refs.len())?;
        debug_assert_eq!(self.tile_refs.len() - start, tile_refs.len());
        for (tile_refs, last_word) in kind_prefixes.into_iter().zip([others, end]) {
            let records = tile_refs.map(TileRef::encode).chain(std::iter::repeat([0; TILE_REF_WORDS]));
            self.kind_prefixes.extend(
                records.take(KIND_PREFIX).flat_map(|[code, first, second, _]| [code, first, second, last_word]),
            );
        }
        self.starts.push(end);
        Ok(())
    }
}

/// A number that kernels hold in 32 bits.
fn count(number: usize) -> Result<u32> {
    i32::try_from(number).map(|number| number as u32).map_err(|_| Error::Argument {
        op: OP,
        argument: "pairs of blocks",
        got: format!("{number} or more"),
        expected: format!("at most {}: split the channels", i32::MAX),
    })
}

/// The bytes that [`Packed`] takes.
fn footprint_bytes(matrix: &SymmetricBlockMatrix, precision: Precision) -> Result<usize> {
    let plan = Plan::new(matrix)?;
    let records = plan.tile_refs.len() + (plan.starts.len() - 1) * LIST_PREFIX;
    let words = records * TILE_REF_WORDS + plan.kind_prefixes.len() + plan.starts.len() + matrix.channels();
    Ok((plan.stored.len() + 1) * precision.pair_bytes() + words * size_of::<u32>())
}

/// Everything that kernels read of a matrix.
pub(super) struct Packed {
    /// The stored pairs, and one of zeros.
    pub(super) pairs: Vec<u8>,
    /// The number of the pair of zeros.
    pub(super) zero_pair: u32,
    /// Every tile reference.
    pub(super) tile_refs: Vec<u32>,
    /// The start of the list of each strip of each channel.
    pub(super) prefixes: Vec<u32>,
    /// The start of the transposed list of each strip of each channel, and of its direct list.
    pub(super) kind_prefixes: Vec<u32>,
    /// Where the list of each strip of each channel starts, and the end.
    pub(super) starts: Vec<u32>,
    /// What sums of each channel are multiplied by.
    pub(super) scales: Vec<f32>,
    /// What [`variants::ata::sums_fields`] takes: products of stored numbers and X are added times `2^sums_exponent`.
    pub(super) sums_exponent: i32,
    /// Pairs that all tile references name, each as often as it is named.
    pub(super) pairs_read: usize,
}

impl Packed {
    pub(super) fn new(matrix: &SymmetricBlockMatrix, precision: Precision) -> Result<Self> {
        let Plan { stored, tile_refs, starts, kind_prefixes } = Plan::new(matrix)?;
        let blocks = matrix.blocks();
        let exponents: Vec<i32> = blocks.outer_iter().map(|channel| exponent(precision, channel.iter())).collect();
        let mut pairs = vec![0; (stored.len() + 1) * precision.pair_bytes()];
        for (bytes, &[channel, pair_row, column]) in pairs.chunks_exact_mut(precision.pair_bytes()).zip(&stored) {
            let pair = Pair::of(matrix, channel, pair_row, column);
            for (block, first_row) in [(pair.top, 0), (pair.bottom, BLOCK)] {
                for ((row, column), &element) in block.into_iter().flat_map(ArrayView2::into_indexed_iter) {
                    let numbers = terms(precision, element, exponents[channel]);
                    for (term, &number) in numbers.iter().enumerate().take(precision.terms()) {
                        write(precision, bytes, element_offset(precision, term, first_row + row, column), number);
                    }
                }
            }
        }
        let sums_exponent = sums_exponent(&exponents);
        let scale = |exponent: i32| f64::from(exponent - sums_exponent).exp2() as f32;
        let scales = exponents.into_iter().map(scale).collect();
        Ok(Self {
            pairs,
            zero_pair: count(stored.len())?,
            pairs_read: tile_refs.iter().flat_map(|tile_ref| tile_ref.pairs.iter().flatten()).flatten().count(),
            prefixes: starts
                .windows(2)
                .flat_map(|range| list_prefix(&tile_refs[range[0] as usize..range[1] as usize]))
                .collect(),
            tile_refs: tile_refs.iter().flat_map(TileRef::encode).collect(),
            starts,
            kind_prefixes,
            scales,
            sums_exponent,
        })
    }
}

/// The start of the list of a strip, filled up with empty references.
fn list_prefix(tile_refs: &[TileRef]) -> impl Iterator<Item = u32> {
    let mut records = [[0; TILE_REF_WORDS]; LIST_PREFIX];
    for (record, tile_ref) in records.iter_mut().zip(tile_refs) {
        *record = tile_ref.encode();
    }
    records.into_iter().flatten()
}

/// Writes a number as it is stored, where there is 0; it is one of the precision's.
fn write(precision: Precision, bytes: &mut [u8], place: ElementOffset, number: f32) {
    let upper = &mut bytes[place.byte..];
    match (precision.storage(), precision) {
        (Storage::Word, _) => upper[..4].copy_from_slice(&number.to_le_bytes()),
        (Storage::Half, Precision::F16) => upper[..2].copy_from_slice(&f16::from_f32(number).to_le_bytes()),
        (Storage::Half, _) => upper[..2].copy_from_slice(&bf16::from_f32(number).to_le_bytes()),
        (Storage::Split, _) => {
            let bits = number.to_bits();
            upper[..2].copy_from_slice(&((bits >> 16) as u16).to_le_bytes());
            bytes[place.nibble_byte] |= ((bits >> 12 & 0xF) as u8) << place.nibble_shift;
        }
    }
}

/// The exponent of the power of two that elements of a channel are divided by. For f16 it brings the largest element to
/// at least 2^14 and below 2^15, as far as the power is a normal f32; for other precisions it is 0.
fn exponent<'a>(precision: Precision, elements: impl Iterator<Item = &'a f32>) -> i32 {
    let largest = elements.fold(0f32, |largest, element| largest.max(element.abs()));
    if !precision.has_scales() || largest == 0.0 {
        return 0;
    }
    // The exponent of an f32 as f64, where it is a normal number.
    let of_largest = (f64::from(largest).to_bits() >> 52) as i32 - 1023;
    (of_largest - 14).max(-126)
}

/// The exponent of a power of two that sums of every channel are multiplied by, on top of the channel's own. It is the
/// largest with which no channel has sums larger than its results, as far as the scales of all channels fit f32; or
/// with which no sum is beyond f32 whatever X is. The less it is, the less can X be multiplied by to become f16.
fn sums_exponent(exponents: &[i32]) -> i32 {
    // Fewer than 2^31 products of a stored number below 2^15 and an element below 2^128.
    const NEVER_BEYOND: i32 = 127 - (31 + 15 + 128);
    let least = exponents.iter().copied().min().unwrap_or(0).min(0);
    let largest = exponents.iter().copied().max().unwrap_or(0);
    least.max(NEVER_BEYOND).max(largest - (f32::MAX_EXP - 1))
}

/// The numbers that are stored for an element, larger first; what they stand for is their sum times `2^exponent`.
fn terms(precision: Precision, element: f32, exponent: i32) -> [f32; 2] {
    match precision {
        Precision::F32 => [element, 0.0],
        Precision::Tf32 => [tf32(element), 0.0],
        Precision::Tf32x3 => {
            let nearest = tf32(element);
            let rest = tf32(element - nearest);
            // At the end of the range the sum of the two must not be infinite.
            [nearest, if (nearest + rest).is_finite() { rest } else { cut(element - nearest) }]
        }
        Precision::F16 => {
            let nearest = <f16 as Float>::from_f64(f64::from(element) * f64::from(-exponent).exp2());
            let is_finite = (nearest.to_f64() * f64::from(exponent).exp2()).abs() <= f64::from(f32::MAX);
            // At the end of the range the one below, whose bits are one less.
            [if is_finite { nearest } else { f16::from_bits(nearest.to_bits() - 1) }.to_f32(), 0.0]
        }
        Precision::Bf16 => {
            // The largest bf16 where the nearest one would be infinite.
            let nearest = <bf16 as Float>::from_f64(element.into()).to_f32();
            [nearest.clamp(bf16::MIN.to_f32(), bf16::MAX.to_f32()), 0.0]
        }
    }
}

/// What the stored numbers of an element stand for.
fn rounded(precision: Precision, element: f32, exponent: i32) -> f32 {
    let [first, second] = terms(precision, element, exponent);
    ((f64::from(first) + f64::from(second)) * f64::from(exponent).exp2()) as f32
}

/// The TF32 number nearest to a finite one, ties away from zero; the largest finite one where that would be infinite.
fn tf32(value: f32) -> f32 {
    let nearest = cut(f32::from_bits(value.to_bits() + TF32_STEP / 2));
    if nearest.is_finite() { nearest } else { cut(value) }
}

/// The distance of two TF32 numbers, as a number of f32 in between: an f32 has 13 bits more.
const TF32_STEP: u32 = 1 << 13;

/// The TF32 number next to a number on the side of 0.
fn cut(value: f32) -> f32 {
    f32::from_bits(value.to_bits() & !(TF32_STEP - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array3, Array5};
    use variants::ata::{STRIP_ROWS, code_column, code_has_pair, code_is_transposed};

    /// A matrix whose elements tell where they are.
    fn numbered(channels: usize, diagonals: usize, n: usize) -> SymmetricBlockMatrix {
        let dense = Array3::from_shape_fn((channels, n, n), |(channel, i, j)| {
            let (row, column) = (i.min(j), i.max(j));
            let inside = column / BLOCK - row / BLOCK < diagonals;
            if inside { (1 + channel + row * 3 + column * 7) as f32 } else { 0.0 }
        });
        SymmetricBlockMatrix::from_dense(dense.view(), 0.0).unwrap()
    }

    /// The dense matrix that the tile references make up, each element added once for each reference.
    fn unpacked(matrix: &SymmetricBlockMatrix, precision: Precision) -> Array3<f32> {
        let packed = Packed::new(matrix, precision).unwrap();
        let padded = matrix.n().next_multiple_of(STRIP_ROWS);
        let mut dense = Array3::zeros((matrix.channels(), padded, padded));
        let number = |pair: usize, term: usize, row: usize, column: usize| {
            let bytes = &packed.pairs[pair * precision.pair_bytes()..][..precision.pair_bytes()];
            let ElementOffset { byte, nibble_byte, nibble_shift } = element_offset(precision, term, row, column);
            let upper = u16::from_le_bytes([bytes[byte], bytes[byte + 1]]);
            match (precision.storage(), precision) {
                (Storage::Word, _) => f32::from_le_bytes(bytes[byte..][..4].try_into().unwrap()),
                (Storage::Half, Precision::F16) => f16::from_bits(upper).to_f32(),
                (Storage::Half, _) => bf16::from_bits(upper).to_f32(),
                (Storage::Split, _) => {
                    let nibble = bytes[nibble_byte] >> nibble_shift & 0xF;
                    f32::from_bits(u32::from(upper) << 16 | u32::from(nibble) << 12)
                }
            }
        };
        let element =
            |pair, row, column| (0..precision.terms()).map(|term| number(pair, term, row, column)).sum::<f32>();
        let of_sums = f64::from(packed.sums_exponent).exp2() as f32;
        let scales: Vec<f32> = packed.scales.iter().map(|scale| scale * of_sums).collect();
        let strips = matrix.n().div_ceil(STRIP_ROWS);
        let (records, _) = packed.tile_refs.as_chunks::<TILE_REF_WORDS>();
        let (prefixes, _) = packed.prefixes.as_chunks::<TILE_REF_WORDS>();
        for (index, range) in packed.starts.windows(2).enumerate() {
            let (channel, strip) = (index / strips, index % strips);
            let tile_refs = &records[range[0] as usize..range[1] as usize];
            let head = &prefixes[index * LIST_PREFIX..][..LIST_PREFIX];
            let padded = tile_refs.iter().chain(std::iter::repeat(&[0; TILE_REF_WORDS])).take(LIST_PREFIX);
            assert!(head.iter().eq(padded), "the prefix of strip {strip}");
            for record in tile_refs {
                let code = record[0];
                for (row_of_strip, which) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                    if !code_has_pair(code, row_of_strip, which) {
                        continue;
                    }
                    let pair = record[1 + row_of_strip].wrapping_add(which) as usize;
                    let first_row = strip * STRIP_ROWS + row_of_strip * PAIR_ROWS;
                    let first_column = code_column(code) as usize * PAIR_ROWS;
                    for (row, column) in (0..PAIR_ROWS).flat_map(|row| (0..BLOCK).map(move |column| (row, column))) {
                        let of_square = which as usize * BLOCK + column;
                        let place = if code_is_transposed(code, row_of_strip) {
                            [channel, first_row + of_square, first_column + row]
                        } else {
                            [channel, first_row + row, first_column + of_square]
                        };
                        dense[place] += element(pair, row, column) * scales[channel];
                    }
                }
            }
        }
        dense
    }

    #[test]
    fn tile_references_make_up_the_matrix_once() {
        for (channels, diagonals, n) in [
            (1, 1, 1),
            (2, 1, 16),
            (1, 1, 17),
            (1, 2, 32),
            (2, 2, 48),
            (1, 3, 80),
            (3, 2, 100),
            (1, 7, 112),
            (1, 4, 150),
        ] {
            let matrix = numbered(channels, diagonals, n);
            for precision in Precision::ALL {
                let got = unpacked(&matrix, precision);
                let expected = matrix.rounded(precision).to_dense();
                for ((channel, row, column), &got) in got.indexed_iter() {
                    let inside = row.max(column) < n;
                    let expected = if inside { expected[[channel, row, column]] } else { 0.0 };
                    assert_eq!(got, expected, "{precision} n {n}, {diagonals} diagonals: {channel} {row} {column}");
                }
            }
        }
    }

    #[test]
    fn every_use_is_one_of_the_first_of_its_turn_or_one_of_the_others() {
        // Bands that reach less far than the prefix of a list, as far, and farther.
        for (diagonals, n) in [(1, 16), (3, 300), (31, 1100), (33, 1100), (70, 1200)] {
            let packed = Packed::new(&numbered(1, diagonals, n), Precision::Bf16).unwrap();
            let (kind_prefixes, _) = packed.kind_prefixes.as_chunks::<TILE_REF_WORDS>();
            for (strip, range) in packed.starts.windows(2).enumerate() {
                let [transposed, direct] =
                    [0, 1].map(|kind| &kind_prefixes[(2 * strip + kind) * KIND_PREFIX..][..KIND_PREFIX]);
                let (others, end) = (transposed[0][3], direct[0][3]);
                assert_eq!(end, range[1]);
                assert!(transposed.iter().all(|record| record[3] == others));
                assert!(direct.iter().all(|record| record[3] == end));
                let first = transposed.iter().chain(direct).filter(|record| record[0] != 0);
                let first: Vec<_> = first.map(|&[code, first, second, _]| [code, first, second, 0]).collect();
                assert_eq!(first, records_of(&packed, range[0], others));
                for (records, is_transposed) in [(transposed, true), (direct, false)] {
                    let of_turn = |record: &[u32; TILE_REF_WORDS]| code_is_transposed(record[0], 0) == is_transposed;
                    assert!(records.iter().all(|record| record[0] == 0 || of_turn(record)));
                    let is_full = records.iter().all(|record| record[0] != 0);
                    assert!(
                        is_full || !records_of(&packed, others, end).iter().any(of_turn),
                        "{diagonals} {n} {strip}"
                    );
                }
            }
        }
    }

    /// The tile references from one number to another.
    fn records_of(packed: &Packed, start: u32, end: u32) -> &[[u32; TILE_REF_WORDS]] {
        &packed.tile_refs.as_chunks::<TILE_REF_WORDS>().0[start as usize..end as usize]
    }

    #[test]
    fn classes_count_what_is_there() {
        // Two pair rows: columns 0, 1, 2 of the first (the main and the first block diagonal), columns 2, 3 of the
        // second.
        let mut blocks = Array5::zeros((1, 2, 4, BLOCK, BLOCK));
        let classes =
            |blocks: &Array5<f32>| SymmetricBlockMatrix::from_blocks(64, blocks.view()).unwrap().pair_classes();
        assert_eq!(classes(&blocks), PairClasses { none: 5, ..PairClasses::default() });
        blocks[[0, 0, 0, 3, 3]] = 1.0;
        assert_eq!(classes(&blocks), PairClasses { top_only: 1, none: 4, ..PairClasses::default() });
        // Block (0, 1) is the lower one of column 0, mirrored, and the upper one of column 1.
        blocks[[0, 1, 0, 0, 9]] = 1.0;
        assert_eq!(classes(&blocks), PairClasses { both: 1, top_only: 1, none: 3, ..PairClasses::default() });
        blocks[[0, 1, 1, 0, 9]] = 1.0;
        let expected = PairClasses { both: 1, top_only: 1, bottom_only: 1, none: 2 };
        assert_eq!((classes(&blocks), classes(&blocks).stored()), (expected, 3));
    }

    #[test]
    fn nothing_is_stored_of_an_empty_matrix() {
        let empty = SymmetricBlockMatrix::from_diagonals(100, &[0, 40], Array3::zeros((2, 2, 100)).view()).unwrap();
        let packed = Packed::new(&empty, Precision::F16).unwrap();
        let zeros = Precision::F16.pair_bytes();
        assert_eq!((packed.pairs, packed.zero_pair), (vec![0; zeros], 0));
        assert!(packed.tile_refs.is_empty());
        assert_eq!((packed.starts, packed.scales), (vec![0; 5], vec![1.0; 2]));
        let (prefixes, kind_prefixes) = (packed.prefixes, packed.kind_prefixes);
        assert_eq!(prefixes, vec![0; 4 * LIST_PREFIX * TILE_REF_WORDS]);
        assert_eq!(kind_prefixes, vec![0; 4 * 2 * KIND_PREFIX * TILE_REF_WORDS]);
        assert_eq!(empty.footprint_bytes(Precision::F16), Ok(zeros + (prefixes.len() + kind_prefixes.len() + 7) * 4));
    }

    #[test]
    fn the_footprint_is_what_is_stored() {
        let matrix = numbered(2, 3, 150);
        for precision in Precision::ALL {
            let Packed { pairs, tile_refs, prefixes, kind_prefixes, starts, scales, .. } =
                Packed::new(&matrix, precision).unwrap();
            let bytes = pairs.len()
                + 4 * (tile_refs.len() + prefixes.len() + kind_prefixes.len() + starts.len() + scales.len());
            assert_eq!(matrix.footprint_bytes(precision), Ok(bytes));
            assert_eq!(pairs.len(), (matrix.pair_classes().stored() + 1) * precision.pair_bytes());
        }
    }

    #[test]
    fn elements_are_rounded_as_each_precision_says() {
        let values = [2.7e8f32, 1e-6, -0.123_456_79, 1.0, f32::MAX, 3e38, -1.5e-40, 0.0];
        for value in values {
            let exact = f64::from(value);
            let relative = |precision| {
                let rounded = rounded(precision, value, exponent(precision, [value].iter()));
                assert!(rounded.is_finite(), "{precision} {value:e}");
                if value == 0.0 { 0.0 } else { ((f64::from(rounded) - exact) / exact).abs() }
            };
            assert_eq!(relative(Precision::F32), 0.0);
            // What is subnormal has fewer bits; f16 is scaled first, so that it has all of them there too.
            if value.abs() >= f32::MIN_POSITIVE || value == 0.0 {
                assert!(relative(Precision::Tf32) <= (-11f64).exp2() + (-12f64).exp2(), "{value:e}");
                assert!(relative(Precision::Tf32x3) <= (-22f64).exp2(), "{value:e}");
                assert!(relative(Precision::Bf16) <= (-8f64).exp2(), "{value:e}");
                assert!(relative(Precision::F16) <= (-11f64).exp2(), "{value:e}");
            }
        }
        let scaled = |elements: &[f32]| exponent(Precision::F16, elements.iter());
        assert_eq!([scaled(&[0.0]), scaled(&[1.0, -0.5]), scaled(&[-2.7e8])], [0, -14, 14]);
        assert_eq!([scaled(&[f32::MAX]), scaled(&[f32::from_bits(1)])], [113, -126]);
    }

    #[test]
    fn sums_are_no_larger_than_results_or_within_f32_and_scales_are_normal_numbers() {
        for (exponents, expected) in [
            (&[][..], 0),
            (&[0], 0),
            (&[14, 90], 0),
            (&[-14, 3], -14),
            // A channel of tiny numbers leaves X of the others its bits.
            (&[-126, 0], -47),
            (&[-126, -120], -47),
            (&[-126, 113], -14),
        ] {
            let of_sums = sums_exponent(exponents);
            assert_eq!(of_sums, expected, "{exponents:?}");
            assert!(exponents.iter().all(|exponent| (-126..=127).contains(&(exponent - of_sums))), "{exponents:?}");
        }
    }
}
