//! The tensor core and the matrix moves of a warp: `mma`, `wmma`, `ldmatrix`, `stmatrix`.
//!
//! A fragment is given for the whole warp, as an array of registers of 32 lanes: `[[u32; 32]; N]`. Its map is that of
//! [`layout::fragment`].
//!
//! # Precision
//!
//! That of Hopper, bit by bit: [`sum`] says how an instruction adds its products and the accumulator. Hopper has no
//! `mma` of FP8. Its compiler makes two products of f16 instead, of the lower and of the upper halves of the registers,
//! and adds their sum to the accumulator, rounded to nearest. A NaN result is 0x7fffffff.

use layout::fragment::{self, WmmaShape};

use crate::float;

pub mod sum;

pub mod wgmma;

/// The lanes of a warp.
pub const LANES: usize = 32;

/// One 32-bit register of every lane.
pub type Register = [u32; LANES];

/// One register of every lane, as f32.
pub type Accumulator = [f32; LANES];

/// The 16-bit types of `mma` and `wmma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// `.f16`
    F16,
    /// `.bf16`
    Bf16,
}

/// The 8-bit types of `mma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quarter {
    /// `.e4m3`
    E4m3,
    /// `.e5m2`
    E5m2,
}

impl Half {
    /// The number with these bits, exactly.
    #[inline(always)]
    pub fn decode(self, bits: u16) -> f32 {
        match self {
            Half::Bf16 => f32::from_bits(u32::from(bits) << 16),
            Half::F16 => {
                // The fields moved to their places in an f32 make the number times 2^-112, subnormals too.
                let magnitude = u32::from(bits & 0x7fff) << 13;
                let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
                let special = f32::from_bits(magnitude | 0x7f80_0000);
                let value = if bits & 0x7c00 == 0x7c00 { special } else { finite };
                f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
            }
        }
    }
}

impl Quarter {
    /// The number of every bit pattern.
    fn table(self) -> &'static [f32; 256] {
        use std::sync::LazyLock;
        static E4M3: LazyLock<[f32; 256]> =
            LazyLock::new(|| std::array::from_fn(|bits| float::e4m3_to_f32(bits as u8)));
        static E5M2: LazyLock<[f32; 256]> =
            LazyLock::new(|| std::array::from_fn(|bits| float::e5m2_to_f32(bits as u8)));
        match self {
            Quarter::E4m3 => &E4M3,
            Quarter::E5m2 => &E5M2,
        }
    }
}

/// The matrix of a fragment whose registers hold two 16-bit numbers each.
fn halves<const ROWS: usize, const COLUMNS: usize, const N: usize>(
    half: Half,
    registers: &[Register; N],
    place: impl Fn(u32, u32, u32) -> (u32, u32),
) -> [[f32; COLUMNS]; ROWS] {
    let mut matrix = [[0.0; COLUMNS]; ROWS];
    for (register, lanes) in registers.iter().enumerate() {
        // Decoded before they are placed: a loop that the compiler makes vectors of.
        let mut sides = [[0.0; LANES]; 2];
        let [low, high] = &mut sides;
        for ((low, high), &word) in low.iter_mut().zip(high).zip(lanes) {
            *low = half.decode(word as u16);
            *high = half.decode((word >> 16) as u16);
        }
        for (side, values) in sides.into_iter().enumerate() {
            for (lane, value) in values.into_iter().enumerate() {
                let (row, column) = place(lane as u32, register as u32, side as u32);
                matrix[row as usize][column as usize] = value;
            }
        }
    }
    matrix
}

/// The matrix of an accumulator.
fn accumulators<const ROWS: usize, const COLUMNS: usize, const N: usize>(
    registers: &[Accumulator; N],
    place: impl Fn(u32, u32) -> (u32, u32),
) -> [[f32; COLUMNS]; ROWS] {
    let mut matrix = [[0.0; COLUMNS]; ROWS];
    for (register, lanes) in registers.iter().enumerate() {
        for (lane, &value) in lanes.iter().enumerate() {
            let (row, column) = place(lane as u32, register as u32);
            matrix[row as usize][column as usize] = value;
        }
    }
    matrix
}

/// The accumulator that holds a matrix.
fn registers<const ROWS: usize, const COLUMNS: usize, const N: usize>(
    matrix: &[[f32; COLUMNS]; ROWS],
    place: impl Fn(u32, u32) -> (u32, u32),
) -> [Accumulator; N] {
    registers_by(|lane, register| {
        let (row, column) = place(lane, register);
        matrix[row as usize][column as usize]
    })
}

/// The accumulator of these values by lane and register.
fn registers_by<const N: usize>(value: impl Fn(u32, u32) -> f32) -> [Accumulator; N] {
    std::array::from_fn(|register| std::array::from_fn(|lane| value(lane as u32, register as u32)))
}

/// `mma.sync.aligned.m16n8k16.row.col.f32.{f16.f16, bf16.bf16}.f32`: `a` times `b` plus `c`.
pub fn mma_m16n8k16(half: Half, a: &[Register; 4], b: &[Register; 2], c: &[Accumulator; 4]) -> [Accumulator; 4] {
    let a: [[f32; 16]; 16] = halves(half, a, fragment::mma_m16n8k16_a);
    let b: [[f32; 8]; 16] = halves(half, b, fragment::mma_m16n8k16_b);
    let lowest = if half == Half::F16 { sum::LOWEST_OF_F16 } else { sum::LOWEST };
    multiply(&a, &b, c, lowest)
}

/// `mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32`: `a` times `b` plus `c`.
///
/// The 13 low bits of the factors are ignored.
pub fn mma_m16n8k8_tf32(a: &[Register; 4], b: &[Register; 2], c: &[Accumulator; 4]) -> [Accumulator; 4] {
    let numbers = |word: &u32| f32::from_bits(word & !0x1fff);
    let a: [Accumulator; 4] = a.each_ref().map(|lanes| lanes.each_ref().map(numbers));
    let b: [Accumulator; 2] = b.each_ref().map(|lanes| lanes.each_ref().map(numbers));
    let a: [[f32; 8]; 16] = accumulators(&a, fragment::mma_m16n8k8_a);
    let b: [[f32; 8]; 8] = accumulators(&b, fragment::mma_m16n8k8_b);
    multiply(&a, &b, c, sum::LOWEST)
}

/// `mma.sync.aligned.m16n8k32.row.col.f32.{e4m3, e5m2}.{e4m3, e5m2}.f32`: `a` times `b` plus `c`.
pub fn mma_m16n8k32(
    (a_type, a): (Quarter, &[Register; 4]),
    (b_type, b): (Quarter, &[Register; 2]),
    c: &[Accumulator; 4],
) -> [Accumulator; 4] {
    let a: [[f32; 32]; 16] = quarters(a_type, a, fragment::mma_m16n8k32_a);
    let b: [[f32; 8]; 32] = quarters(b_type, b, fragment::mma_m16n8k32_b);
    let mut d = [[0.0; 8]; 16];
    // The lower half of each register, then the upper one.
    for half in [0, 2] {
        let k = |k: usize| k / 2 * 4 + half + k % 2;
        let a: [[f32; 16]; 16] = std::array::from_fn(|row| std::array::from_fn(|at| a[row][k(at)]));
        let b: [[f32; 8]; 16] = std::array::from_fn(|at| b[k(at)]);
        sum::multiply(&a, &b, &mut d, sum::LOWEST_OF_F16);
    }
    let c: [[f32; 8]; 16] = accumulators(c, fragment::mma_m16n8k16_c);
    for (d, c) in d.as_flattened_mut().iter_mut().zip(c.as_flattened()) {
        *d = float::canonical(*d + c);
    }
    registers(&d, fragment::mma_m16n8k16_c)
}

/// The matrix of a fragment whose registers hold four 8-bit numbers each.
fn quarters<const ROWS: usize, const COLUMNS: usize, const N: usize>(
    quarter: Quarter,
    registers: &[Register; N],
    place: impl Fn(u32, u32, u32) -> (u32, u32),
) -> [[f32; COLUMNS]; ROWS] {
    let table = quarter.table();
    let mut matrix = [[0.0; COLUMNS]; ROWS];
    for (register, lanes) in registers.iter().enumerate() {
        for (lane, &word) in lanes.iter().enumerate() {
            for (byte, bits) in word.to_le_bytes().into_iter().enumerate() {
                let (row, column) = place(lane as u32, register as u32, byte as u32);
                matrix[row as usize][column as usize] = table[bits as usize];
            }
        }
    }
    matrix
}

/// What every `mma` does once its factors are matrices.
fn multiply<const K: usize>(
    a: &[[f32; K]; 16],
    b: &[[f32; 8]; K],
    c: &[Accumulator; 4],
    lowest: i32,
) -> [Accumulator; 4] {
    let mut d: [[f32; 8]; 16] = accumulators(c, fragment::mma_m16n8k16_c);
    sum::multiply(a, b, &mut d, lowest);
    registers(&d, fragment::mma_m16n8k16_c)
}

/// `wmma.mma.sync.aligned` with f32 accumulators: `a` times `b` plus `c`.
///
/// Of the registers of a factor only the first [`WmmaShape::a_registers`] or [`WmmaShape::b_registers`] are read: in
/// the f16 forms, which name eight, the others repeat them.
///
/// # Panics
/// If a factor has fewer registers than that.
pub fn wmma(shape: WmmaShape, half: Half, a: &[Register], b: &[Register], c: &[Accumulator; 8]) -> [Accumulator; 8] {
    // By the fragment maps every shape is two m16n8k16 that share a factor. m8n32k16 is m32n8k16 transposed, with left
    // and right factors exchanged.
    let (factors, shared, is_left_shared) = match shape {
        WmmaShape::M16N16K16 => (b, a, true),
        WmmaShape::M32N8K16 => (a, b, false),
        WmmaShape::M8N32K16 => (b, a, false),
    };
    let mut d = [[0.0; LANES]; 8];
    for (side, (c, d)) in c.as_chunks().0.iter().zip(d.as_chunks_mut().0).enumerate() {
        *d = if is_left_shared {
            mma_m16n8k16(half, first(shared), first(&factors[2 * side..]), c)
        } else {
            mma_m16n8k16(half, first(&factors[4 * side..]), first(shared), c)
        };
    }
    d
}

/// The first `N` registers.
fn first<const N: usize>(registers: &[Register]) -> &[Register; N] {
    registers.first_chunk().expect("the fragment has the registers of its shape")
}

/// How a matrix lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Major {
    /// `.row`: the elements of a row are neighbours.
    Row,
    /// `.col`: the elements of a column are neighbours.
    Column,
}

impl Major {
    /// The line of an element, and its place in it.
    fn place(self, (row, column): (u32, u32)) -> (usize, usize) {
        match self {
            Major::Row => (row as usize, column as usize),
            Major::Column => (column as usize, row as usize),
        }
    }
}

/// A factor of `wmma`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Factor {
    /// The left one.
    A,
    /// The right one.
    B,
}

/// The most elements of a row or column of a `wmma` matrix.
pub const LINE: usize = 32;

/// `wmma.load.a` and `wmma.load.b`: `read` gets the number of a row, or of a column where that is the major, and
/// returns its elements, which are neighbours in memory.
///
/// All eight registers are given; those above the ones that hold different elements repeat them.
pub fn wmma_load_factor<E>(
    factor: Factor,
    shape: WmmaShape,
    major: Major,
    mut read: impl FnMut(usize) -> Result<[u16; LINE], E>,
) -> Result<[Register; 8], E> {
    let (size, distinct) = match factor {
        Factor::A => ((shape.m(), shape.k()), shape.a_registers()),
        Factor::B => ((shape.k(), shape.n()), shape.b_registers()),
    };
    let mut lines = [[0; LINE]; LINE];
    for (number, line) in lines.iter_mut().enumerate().take(major.place(size).0) {
        *line = read(number)?;
    }
    let mut registers = [[0; LANES]; 8];
    for (register, lanes) in (0..distinct).zip(&mut registers) {
        for (lane, word) in lanes.iter_mut().enumerate() {
            for side in 0..2 {
                let (line, place) = major.place(match factor {
                    Factor::A => shape.a(lane as u32, register, side),
                    Factor::B => shape.b(lane as u32, register, side),
                });
                *word |= u32::from(lines[line][place]) << (16 * side);
            }
        }
    }
    for register in distinct as usize..8 {
        registers[register] = registers[register - distinct as usize];
    }
    Ok(registers)
}

/// `wmma.load.c` in f32: `read` as in [`wmma_load_factor`].
pub fn wmma_load_accumulator<E>(
    shape: WmmaShape,
    major: Major,
    mut read: impl FnMut(usize) -> Result<[f32; LINE], E>,
) -> Result<[Accumulator; 8], E> {
    let mut lines = [[0.0; LINE]; LINE];
    for (number, line) in lines.iter_mut().enumerate().take(major.place((shape.m(), shape.n())).0) {
        *line = read(number)?;
    }
    Ok(registers_by(|lane, register| {
        let (line, place) = major.place(shape.c(lane, register));
        lines[line][place]
    }))
}

/// `wmma.store.d` in f32: `write` gets the number of a row, or of a column where that is the major, and its elements.
pub fn wmma_store<E>(
    shape: WmmaShape,
    major: Major,
    d: &[Accumulator; 8],
    mut write: impl FnMut(usize, &[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let mut lines = [[0.0; LINE]; LINE];
    for (register, lanes) in d.iter().enumerate() {
        for (lane, &value) in lanes.iter().enumerate() {
            let (line, place) = major.place(shape.c(lane as u32, register as u32));
            lines[line][place] = value;
        }
    }
    let (count, length) = major.place((shape.m(), shape.n()));
    lines[..count].iter().enumerate().try_for_each(|(number, line)| write(number, &line[..length]))
}

/// `ldmatrix.sync.aligned.m8n8.x{1, 2, 4}{.trans}.shared.b16`: `rows` are the addresses that the lanes give; `read`
/// gets (lane, its address) and returns the 16 bytes there.
///
/// The result has one register for each of the `COUNT` matrices.
pub fn ldmatrix<const COUNT: usize, E>(
    transpose: bool,
    rows: &[u64; LANES],
    mut read: impl FnMut(usize, u64) -> Result<[u8; 16], E>,
) -> Result<[Register; COUNT], E> {
    let mut registers = [[0; LANES]; COUNT];
    for (matrix, register) in registers.iter_mut().enumerate() {
        let mut elements = [[0; 8]; 8];
        for (row, elements) in elements.iter_mut().enumerate() {
            let lane = matrix * 8 + row;
            let bytes = read(lane, rows[lane])?;
            *elements = std::array::from_fn(|column| u16::from_le_bytes([bytes[2 * column], bytes[2 * column + 1]]));
        }
        for (lane, word) in register.iter_mut().enumerate() {
            let [low, high] = [0, 1].map(|side| {
                let (row, column) = fragment::ldmatrix(lane as u32, side);
                let (row, column) = if transpose { (column, row) } else { (row, column) };
                u32::from(elements[row as usize][column as usize])
            });
            *word = low | high << 16;
        }
    }
    Ok(registers)
}

/// `stmatrix.sync.aligned.m8n8.x{1, 2, 4}{.trans}.shared.b16`: the inverse of [`ldmatrix`]; `write` gets (lane, its
/// address, the 16 bytes).
pub fn stmatrix<E>(
    transpose: bool,
    rows: &[u64; LANES],
    registers: &[Register],
    mut write: impl FnMut(usize, u64, [u8; 16]) -> Result<(), E>,
) -> Result<(), E> {
    for (matrix, register) in registers.iter().enumerate() {
        let mut bytes = [[0; 16]; 8];
        for (lane, &word) in register.iter().enumerate() {
            for side in 0..2 {
                let (row, column) = fragment::ldmatrix(lane as u32, side);
                let (row, column) = if transpose { (column, row) } else { (row, column) };
                let element = ((word >> (16 * side)) as u16).to_le_bytes();
                bytes[row as usize][2 * column as usize..][..2].copy_from_slice(&element);
            }
        }
        for (row, bytes) in bytes.into_iter().enumerate() {
            let lane = matrix * 8 + row;
            write(lane, rows[lane], bytes)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::{BF16, Conversion, E4M3, E5M2, F16, Format, TF32};

    /// A small integer for each place of a matrix; sums of products of these are exact.
    fn element(row: usize, column: usize, salt: usize) -> f32 {
        ((row * 7 + column * 5 + salt * 3 + row * column) % 7) as f32 - 3.0
    }

    fn matrix<const ROWS: usize, const COLUMNS: usize>(salt: usize) -> [[f32; COLUMNS]; ROWS] {
        std::array::from_fn(|row| std::array::from_fn(|column| element(row, column, salt)))
    }

    /// The fragment of a matrix, `per_word` elements a register.
    fn pack<const ROWS: usize, const COLUMNS: usize, const N: usize>(
        format: Format,
        per_word: u32,
        matrix: &[[f32; COLUMNS]; ROWS],
        place: impl Fn(u32, u32, u32) -> (u32, u32),
    ) -> [Register; N] {
        std::array::from_fn(|register| {
            std::array::from_fn(|lane| {
                (0..per_word).fold(0, |word, part| {
                    let (row, column) = place(lane as u32, register as u32, part);
                    let value = matrix[row as usize][column as usize];
                    word | format.encode(value.into(), Conversion::NEAREST) << (32 / per_word * part)
                })
            })
        })
    }

    fn product<const M: usize, const N: usize, const K: usize>(
        a: &[[f32; K]; M],
        b: &[[f32; N]; K],
        c: &[[f32; N]; M],
    ) -> [[f32; N]; M] {
        std::array::from_fn(|row| {
            std::array::from_fn(|column| {
                let sum: i32 = (0..K).map(|k| a[row][k] as i32 * b[k][column] as i32).sum();
                (sum + c[row][column] as i32) as f32
            })
        })
    }

    #[test]
    fn f16_decodes_as_the_exact_conversion() {
        for bits in 0..=u16::MAX {
            let (fast, exact) = (Half::F16.decode(bits), float::f16_to_f32(bits));
            assert!(fast.to_bits() == exact.to_bits() || fast.is_nan() && exact.is_nan(), "{bits:#x}");
            let (fast, exact) = (Half::Bf16.decode(bits), float::bf16_to_f32(bits));
            assert!(fast.to_bits() == exact.to_bits() || fast.is_nan() && exact.is_nan(), "{bits:#x}");
        }
    }

    #[test]
    fn mma_multiplies_in_every_type() {
        let c: [[f32; 8]; 16] = matrix(2);
        let c_registers: [Accumulator; 4] = registers(&c, fragment::mma_m16n8k16_c);
        let unpack = |d: [Accumulator; 4]| -> [[f32; 8]; 16] { accumulators(&d, fragment::mma_m16n8k16_c) };

        let (a, b) = (matrix::<16, 16>(0), matrix::<16, 8>(1));
        for (half, format) in [(Half::F16, F16), (Half::Bf16, BF16)] {
            let a_registers = pack(format, 2, &a, fragment::mma_m16n8k16_a);
            let b_registers = pack(format, 2, &b, fragment::mma_m16n8k16_b);
            let d = mma_m16n8k16(half, &a_registers, &b_registers, &c_registers);
            assert_eq!(unpack(d), product(&a, &b, &c), "{half:?}");
        }

        let (a, b) = (matrix::<16, 8>(0), matrix::<8, 8>(1));
        let mut a_registers = pack(TF32, 1, &a, |lane, register, _| fragment::mma_m16n8k8_a(lane, register));
        let b_registers = pack(TF32, 1, &b, |lane, register, _| fragment::mma_m16n8k8_b(lane, register));
        a_registers.iter_mut().flatten().for_each(|word| *word |= 0x1fff);
        let d = mma_m16n8k8_tf32(&a_registers, &b_registers, &c_registers);
        assert_eq!(unpack(d), product(&a, &b, &c), "the low bits of tf32 are ignored");

        let (a, b) = (matrix::<16, 32>(0), matrix::<32, 8>(1));
        for (a_type, a_format) in [(Quarter::E4m3, E4M3), (Quarter::E5m2, E5M2)] {
            for (b_type, b_format) in [(Quarter::E4m3, E4M3), (Quarter::E5m2, E5M2)] {
                let a_registers = pack(a_format, 4, &a, fragment::mma_m16n8k32_a);
                let b_registers = pack(b_format, 4, &b, fragment::mma_m16n8k32_b);
                let d = mma_m16n8k32((a_type, &a_registers), (b_type, &b_registers), &c_registers);
                assert_eq!(unpack(d), product(&a, &b, &c), "{a_type:?} {b_type:?}");
            }
        }
    }

    fn assert_wmma<const M: usize, const N: usize>(shape: WmmaShape, major: Major, half: Half, format: Format) {
        let (a, b, c) = (matrix::<M, 16>(0), matrix::<16, N>(1), matrix::<M, N>(2));
        let at = |line: usize, place: usize| if major == Major::Row { (line, place) } else { (place, line) };
        let bits = |value: f32| format.encode(value.into(), Conversion::NEAREST) as u16;
        fn element<T: Copy, const R: usize, const C: usize>(matrix: &[[T; C]; R], at: (usize, usize)) -> Option<T> {
            matrix.get(at.0).and_then(|row| row.get(at.1)).copied()
        }
        let read_a =
            |line: usize| Ok::<_, ()>(std::array::from_fn(|place| element(&a, at(line, place)).map_or(0, bits)));
        let read_b =
            |line: usize| Ok::<_, ()>(std::array::from_fn(|place| element(&b, at(line, place)).map_or(0, bits)));
        let a_registers = wmma_load_factor(Factor::A, shape, major, read_a).unwrap();
        let b_registers = wmma_load_factor(Factor::B, shape, major, read_b).unwrap();
        let distinct = shape.a_registers() as usize;
        assert!((distinct..8).all(|register| a_registers[register] == a_registers[register - distinct]));

        let read_c =
            |line: usize| Ok::<_, ()>(std::array::from_fn(|place| element(&c, at(line, place)).unwrap_or(0.0)));
        let c_registers = wmma_load_accumulator(shape, major, read_c).unwrap();
        let d_registers = wmma(shape, half, &a_registers, &b_registers, &c_registers);
        let mut d = [[f32::NAN; N]; M];
        wmma_store(shape, major, &d_registers, |line, values| {
            for (place, &value) in values.iter().enumerate() {
                let (row, column) = at(line, place);
                d[row][column] = value;
            }
            Ok::<(), ()>(())
        })
        .unwrap();
        assert_eq!(d, product(&a, &b, &c), "{shape:?} {major:?} {half:?}");
    }

    #[test]
    fn wmma_loads_multiplies_and_stores_in_every_shape() {
        for major in [Major::Row, Major::Column] {
            for (half, format) in [(Half::F16, F16), (Half::Bf16, BF16)] {
                assert_wmma::<16, 16>(WmmaShape::M16N16K16, major, half, format);
                assert_wmma::<32, 8>(WmmaShape::M32N8K16, major, half, format);
                assert_wmma::<8, 32>(WmmaShape::M8N32K16, major, half, format);
            }
        }
    }

    #[test]
    fn sums_keep_25_bits_below_the_largest_term_and_are_cut_off() {
        let a = [[0x3c00_3c00; LANES]; 4];
        let sum = |b: u32, c: f32| mma_m16n8k16(Half::F16, &a, &[[b; LANES]; 2], &[[c; LANES]; 4])[0][0];
        // 2^24 and sixteen times 0.5: each addition alone would be lost in f32.
        assert_eq!(sum(0x3800_3800, 16_777_216.0), 16_777_224.0);
        // Sixteen times 1 + 2^-10 beside 2^25, whose last bit kept is 2^0.
        assert_eq!(sum(0x3c01_3c01, 33_554_432.0), 33_554_448.0);
        assert_eq!(sum(0x3bff_3bff, 33_554_432.0), 33_554_432.0, "each is below 1");
        // 2^24 + 3.5 has no f32; it is cut off, towards zero.
        let b = [std::array::from_fn(|lane| if lane % 4 == 0 { 0x3e00 } else { 0 }), [0; LANES]];
        for sign in [1.0, -1.0] {
            let a = [[if sign > 0.0 { 0x3c00 } else { 0xbc00 }; LANES]; 4];
            let d = mma_m16n8k16(Half::F16, &a, &b, &[[sign * 16_777_218.0; LANES]; 4]);
            assert_eq!(d[0][0], sign * 16_777_218.0);
        }
    }

    #[test]
    fn special_values_go_through() {
        let ones = [[0x3c00_3c00; LANES]; 4];
        let infinities = [[0x7c00_7c00; LANES]; 2];
        let (zero, minus) = ([[0.0; LANES]; 4], [[f32::NEG_INFINITY; LANES]; 4]);
        assert_eq!(mma_m16n8k16(Half::F16, &ones, &infinities, &zero), [[f32::INFINITY; LANES]; 4]);
        let nans = mma_m16n8k16(Half::F16, &ones, &infinities, &minus);
        assert!(nans.iter().flatten().all(|value| value.to_bits() == 0x7fff_ffff));
    }

    #[test]
    fn ldmatrix_and_stmatrix_are_inverse() {
        // Row r of matrix m has the elements 64 m + 8 r + column.
        let rows: [u64; LANES] = std::array::from_fn(|lane| lane as u64 * 48 + 16);
        let memory = |address: u64, byte: usize| {
            let element = (address - 16) / 48 * 8 + byte as u64 / 2;
            (element as u16).to_le_bytes()[byte % 2]
        };
        for transpose in [false, true] {
            let registers: [Register; 4] = ldmatrix(transpose, &rows, |lane, address| {
                assert_eq!(address, rows[lane]);
                Ok::<_, ()>(std::array::from_fn(|byte| memory(address, byte)))
            })
            .unwrap();
            // Lane 13 holds row 3, columns 2 and 3, or column 3, rows 2 and 3.
            let expected = if transpose { [2 * 8 + 3, 3 * 8 + 3] } else { [3 * 8 + 2, 3 * 8 + 3] };
            for (matrix, register) in registers.iter().enumerate() {
                let [low, high] = expected.map(|element| element + 64 * matrix as u32);
                assert_eq!(register[13], low | high << 16, "transpose {transpose}");
            }
            let mut written = 0;
            stmatrix(transpose, &rows, &registers, |lane, address, bytes| {
                assert_eq!((address, written), (rows[lane], lane));
                assert_eq!(bytes, std::array::from_fn(|byte| memory(address, byte)));
                written += 1;
                Ok::<(), ()>(())
            })
            .unwrap();
            assert_eq!(written, 32);
        }
    }

    #[test]
    fn fewer_matrices_read_fewer_rows() {
        let mut read = Vec::new();
        let registers: [Register; 2] = ldmatrix(false, &[0; LANES], |lane, _| {
            read.push(lane);
            Ok::<_, ()>([1; 16])
        })
        .unwrap();
        assert_eq!(registers, [[0x0101_0101; LANES]; 2]);
        assert_eq!(read, (0..16).collect::<Vec<_>>());
        let refused = ldmatrix::<1, _>(false, &[0; LANES], |lane, _| if lane == 5 { Err(lane) } else { Ok([0; 16]) });
        assert_eq!(refused, Err(5));
    }
}
