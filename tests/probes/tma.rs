//! The tensor memory accelerator: boxes of every rank inside and across the edges of a tensor, in every swizzle.

use ferrotile::{Buffer, Element, KernelParam, LaunchConfig, TensorMap, TensorRef};
use layout::{Arch, Swizzle};
use libtest_mimic::Failed;
use variants::probe::{COPY_FILL, TMA, TMA_TILE_BYTES};

use crate::{GUARD_WORDS, Probe, Test, blocks_of, expect_equal, one_warp};

pub(crate) const TESTS: &[Test] = &[
    Test::new("tma_load_1d", load::<1>).since(Arch::Sm90a),
    Test::new("tma_load_2d", load::<2>).since(Arch::Sm90a),
    Test::new("tma_load_3d", load::<3>).since(Arch::Sm90a),
    Test::new("tma_load_4d", load::<4>).since(Arch::Sm90a),
    Test::new("tma_load_5d", load::<5>).since(Arch::Sm90a),
    Test::new("tma_load_multicast_1d", multicast::<1>).since(Arch::Sm90a),
    Test::new("tma_load_multicast_2d", multicast::<2>).since(Arch::Sm90a),
    Test::new("tma_load_multicast_3d", multicast::<3>).since(Arch::Sm90a),
    Test::new("tma_load_multicast_4d", multicast::<4>).since(Arch::Sm90a),
    Test::new("tma_load_multicast_5d", multicast::<5>).since(Arch::Sm90a),
    Test::new("tma_store_1d", store::<1>).since(Arch::Sm90a),
    Test::new("tma_store_2d", store::<2>).since(Arch::Sm90a),
    Test::new("tma_store_3d", store::<3>).since(Arch::Sm90a),
    Test::new("tma_store_4d", store::<4>).since(Arch::Sm90a),
    Test::new("tma_store_5d", store::<5>).since(Arch::Sm90a),
    Test::new("tma_reduce_add_1d", reduce_add::<1>).since(Arch::Sm90a),
    Test::new("tma_reduce_add_2d", reduce_add::<2>).since(Arch::Sm90a),
    Test::new("tma_reduce_add_3d", reduce_add::<3>).since(Arch::Sm90a),
    Test::new("tma_reduce_add_4d", reduce_add::<4>).since(Arch::Sm90a),
    Test::new("tma_reduce_add_5d", reduce_add::<5>).since(Arch::Sm90a),
    Test::new("tma_groups", groups).since(Arch::Sm90a),
];

/// The argument of a TMA probe: the coordinates innermost first, and the size of the box.
#[repr(C)]
struct BoxAt {
    coordinates: [i32; 5],
    bytes: u32,
}

// SAFETY: `repr(C)`, six numbers, as the probes declare it.
unsafe impl KernelParam for BoxAt {}

/// A box in a tensor of words: shapes and coordinates in the order of the host, outermost first.
#[derive(Debug, Clone, Copy)]
struct Case<const RANK: usize> {
    shape: [usize; RANK],
    box_shape: [u32; RANK],
    at: [i32; RANK],
    swizzle: Swizzle,
}

/// The inner dimensions of one tensor and its box make those of every rank.
const SHAPE: [usize; 5] = [3, 4, 5, 6, 16];
const BOX_SHAPE: [u32; 5] = [2, 2, 3, 2, 8];
/// Words in 16 bytes.
const INNER_STEP: i32 = 4;

impl<const RANK: usize> Case<RANK> {
    /// Boxes inside the tensor, across each of its edges, and outside; for matrices also in every swizzle. The unit
    /// takes innermost coordinates that are multiples of 16 bytes, so those count in steps of four words.
    fn all() -> Vec<Case<RANK>> {
        let shape: [usize; RANK] = std::array::from_fn(|dim| SHAPE[5 - RANK + dim]);
        let box_shape: [u32; RANK] = std::array::from_fn(|dim| BOX_SHAPE[5 - RANK + dim]);
        let case = |mut at: [i32; RANK]| {
            at[RANK - 1] *= INNER_STEP;
            Case { shape, box_shape, at, swizzle: Swizzle::None }
        };
        let mut cases = vec![case([0; RANK]), case([1; RANK]), case([-1; RANK])];
        for dim in 0..RANK {
            let size = shape[dim] as i32 / if dim == RANK - 1 { INNER_STEP } else { 1 };
            for at in [-1, size - 1, size, 1000, -1000] {
                let mut place = [0; RANK];
                place[dim] = at;
                cases.push(case(place));
            }
        }
        if RANK == 2 {
            for swizzle in Swizzle::ALL {
                // Rows of the length that the swizzle is made for, and two periods of them.
                let columns = swizzle.row_bytes() / 4;
                for at in [[0, 0], [3, 8], [-5, 36]] {
                    cases.push(Case {
                        shape: std::array::from_fn(|dim| [40, 64][dim]),
                        box_shape: std::array::from_fn(|dim| [16, columns][dim]),
                        at: std::array::from_fn(|dim| at[dim]),
                        swizzle,
                    });
                }
            }
        }
        cases
    }

    fn words(&self) -> usize {
        self.shape.iter().product()
    }

    fn box_words(&self) -> u32 {
        self.box_shape.iter().product()
    }

    fn box_at(&self) -> BoxAt {
        let mut coordinates = [0; 5];
        for (to, from) in coordinates.iter_mut().zip(self.at.iter().rev()) {
            *to = *from;
        }
        BoxAt { coordinates, bytes: self.box_words() * 4 }
    }

    /// Where word `index` of the box, in row-major order, is: in the tensor, if it is there, and in the tile.
    fn place(&self, index: u32) -> (Option<usize>, usize) {
        let mut rest = index;
        let mut place = [0; RANK];
        for dim in (0..RANK).rev() {
            place[dim] = i64::from(self.at[dim]) + i64::from(rest % self.box_shape[dim]);
            rest /= self.box_shape[dim];
        }
        let inside = place.iter().zip(&self.shape).all(|(at, size)| (0..*size as i64).contains(at));
        let in_tensor = || place.iter().zip(&self.shape).fold(0, |word, (at, size)| word * size + *at as usize);
        (inside.then(in_tensor), self.swizzle.apply(index * 4) as usize / 4)
    }

    fn map<T: Element>(&self, probe: &Probe<'_>, tensor: &Buffer<T>) -> Result<TensorMap, Failed> {
        let mut strides = [1; RANK];
        for dim in (1..RANK).rev() {
            strides[dim - 1] = strides[dim] * self.shape[dim] as i64;
        }
        let view = TensorRef::strided(tensor, 0, self.shape, strides)?;
        Ok(TensorMap::tiled(&probe.gpu, &view, self.box_shape, self.swizzle)?)
    }

    /// A tensor whose words tell where they are.
    fn tensor(&self) -> Vec<u32> {
        (0..self.words()).map(|word| 10_000 + word as u32).collect()
    }

    /// The tile after a load.
    fn tile(&self) -> Vec<u32> {
        let tensor = self.tensor();
        let mut tile = vec![COPY_FILL; TMA_TILE_BYTES as usize / 4];
        for index in 0..self.box_words() {
            let (in_tensor, in_tile) = self.place(index);
            tile[in_tile] = in_tensor.map_or(0, |at| tensor[at]);
        }
        tile
    }
}

fn load<const RANK: usize>(probe: &Probe<'_>) -> Result<(), Failed> {
    for case in Case::<RANK>::all() {
        let tensor = probe.upload(&case.tensor())?;
        let map = case.map(probe, &tensor)?;
        let got = probe.run(&one_warp(&TMA), TMA_TILE_BYTES as usize / 4, &[&case.box_at(), &map])?;
        expect_equal(&got, &case.tile(), |at| format!("{case:?}: word {at} of the tile"))?;
    }
    Ok(())
}

fn multicast<const RANK: usize>(probe: &Probe<'_>) -> Result<(), Failed> {
    let config = LaunchConfig { shared_bytes: TMA.total_bytes(), cluster: [2, 1, 1], ..blocks_of(2, 32) };
    for case in Case::<RANK>::all() {
        let tensor = probe.upload(&case.tensor())?;
        let map = case.map(probe, &tensor)?;
        let words = TMA_TILE_BYTES as usize / 4;
        let got = probe.run(&config, 2 * words, &[&case.box_at(), &map])?;
        let place = |at| format!("{case:?}: block {}, word {} of the tile", at / words, at % words);
        expect_equal(&got, &case.tile().repeat(2), place)?;
    }
    Ok(())
}

/// Runs a probe that writes to the tensor, in type T; `combine` says what becomes of a word and one of the box.
fn write<T: Element, const RANK: usize>(
    probe: &Probe<'_>,
    value: impl Fn(u32) -> T,
    combine: impl Fn(T, T) -> T,
) -> Result<(), Failed> {
    // A box that is written starts in the tensor or behind it.
    for case in Case::<RANK>::all().into_iter().filter(|case| case.at.iter().all(|&at| at >= 0)) {
        let mut expected: Vec<T> = case.tensor().into_iter().map(&value).collect();
        // Guard words, which are outside the map.
        expected.extend((0..GUARD_WORDS).map(|_| value(7)));
        let tensor = probe.upload(&expected)?;
        let mut tile = vec![value(0); case.box_words() as usize];
        for index in 0..case.box_words() {
            let (in_tensor, in_tile) = case.place(index);
            tile[in_tile] = value(500_000 + index);
            if let Some(at) = in_tensor {
                expected[at] = combine(expected[at], tile[in_tile]);
            }
        }
        let input = probe.upload(&tile)?;
        let map = case.map(probe, &tensor)?;
        probe.launch(&one_warp(&TMA), &[&input.as_raw(), &case.box_at(), &map])?;
        let got = tensor.download_blocking(&probe.stream)?;
        expect_equal(&got, &expected, |at| format!("{case:?}: word {at} of the tensor"))?;
    }
    Ok(())
}

fn store<const RANK: usize>(probe: &Probe<'_>) -> Result<(), Failed> {
    write::<u32, RANK>(probe, |word| word, |_, new| new)
}

fn reduce_add<const RANK: usize>(probe: &Probe<'_>) -> Result<(), Failed> {
    write::<u32, RANK>(probe, |word| word, |old, new| old + new)?;
    write::<f32, RANK>(probe, |word| word as f32, |old, new| old + new)
}

fn groups(probe: &Probe<'_>) -> Result<(), Failed> {
    for _ in 0..20 {
        let tensor = probe.upload(&[0_u32; 64])?;
        let map = TensorMap::tiled(&probe.gpu, &TensorRef::contiguous(&tensor, [64])?, [32], Swizzle::None)?;
        let got = probe.run(&one_warp(&TMA), TMA_TILE_BYTES as usize / 4, &[&tensor.as_raw(), &map])?;
        let mut expected = vec![COPY_FILL; got.len()];
        for lane in 0..32 {
            expected[lane] = 3000 + lane as u32;
            expected[32 + lane] = 2000 + lane as u32;
        }
        expect_equal(&got, &expected, |at| format!("word {at} of the tile"))?;
        let tensor = tensor.download_blocking(&probe.stream)?;
        expect_equal(&tensor, &expected[..64], |at| format!("word {at} of the tensor"))?;
    }
    Ok(())
}
