//! Matrices and vectors of the tests, and a run of one kernel on them.

use ferrotile::{
    AtaOptions, AtaPlan, Buffer, DeviceBlockMatrix, Gpu, Precision, Stream, SymmetricBlockMatrix, TensorMut, TensorRef,
    reference, tolerance,
};
use libtest_mimic::Failed;
use ndarray::{Array3, Array5};
use rand::RngExt;
use rand_distr::StandardNormal;
use tests::catalogue::ata_configs;
use tests::guard::{Guarded, Poison};
use tests::inputs::Random;
use tests::is_small;
use variants::ata::{AtaConfig, BLOCK};

/// What a trial returns.
pub(crate) type Outcome = Result<(), Failed>;

/// The sizes of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Rows.
    pub(crate) n: usize,
    /// Matrices.
    pub(crate) channels: usize,
    /// Block diagonals, the main one included; as many as there are where that is fewer.
    pub(crate) diagonals: usize,
}

/// Sizes around every edge: blocks, pairs of blocks, odd numbers of block rows, bands from the main diagonal alone to
/// all. Where trials are small, the largest matrix has fewer diagonals: a band of all has as many.
pub(crate) fn sizes(gpu: &Gpu) -> Vec<Sizes> {
    let all = usize::MAX;
    let many = if is_small(gpu) { 9 } else { 27 };
    [
        (1, 1, 1),
        (2, 3, 1),
        (15, 1, 1),
        (16, 1, 1),
        (16, 5, 1),
        (17, 1, 2),
        (31, 3, 2),
        (32, 1, 1),
        (32, 1, 2),
        (33, 1, 3),
        (48, 1, 1),
        (48, 3, 2),
        (48, 1, 3),
        (100, 3, 4),
        (131, 5, 3),
        (257, 1, all),
        (320, 3, 10),
        (400, 1, 1),
        (515, 1, many),
    ]
    .map(|(n, channels, diagonals)| Sizes { n, channels, diagonals: diagonals.min(n.div_ceil(BLOCK)) })
    .to_vec()
}

/// Numbers of frames around every tile.
pub(crate) const FRAMES: [usize; 9] = [1, 2, 7, 8, 9, 15, 16, 17, 33];

/// Those of them that differ for a large matrix where trials are small: its tiles are those of a small one.
const FEW_FRAMES: [usize; 3] = [1, 9, 16];

/// The numbers of frames of trials with a matrix of these sizes.
pub(crate) fn frames(gpu: &Gpu, sizes: Sizes) -> &'static [usize] {
    if is_small(gpu) && sizes.n * sizes.diagonals >= 400 { &FEW_FRAMES } else { &FRAMES }
}

/// A matrix whose elements are drawn one by one.
pub(crate) fn matrix(sizes: Sizes, mut draw: impl FnMut() -> f32) -> SymmetricBlockMatrix {
    let Sizes { n, channels, diagonals } = sizes;
    let rows = n.div_ceil(BLOCK);
    let mut blocks = Array5::zeros((channels, diagonals, rows, BLOCK, BLOCK));
    for ((channel, d, r, row, column), _) in blocks.clone().indexed_iter() {
        if (r + d) * BLOCK + column < n && (d > 0 || column >= row) {
            let element = draw();
            blocks[[channel, d, r, row, column]] = element;
            if d == 0 {
                blocks[[channel, d, r, column, row]] = element;
            }
        }
    }
    SymmetricBlockMatrix::from_blocks(n, blocks.view()).expect("the blocks are those of a symmetric matrix")
}

/// X of these many frames whose elements are drawn one by one.
pub(crate) fn vectors(sizes: Sizes, frames: usize, mut draw: impl FnMut() -> f32) -> Array3<f32> {
    Array3::from_shape_simple_fn((frames, sizes.channels, sizes.n), &mut draw)
}

/// A normally distributed number.
pub(crate) fn normal(random: &mut Random) -> f32 {
    random.sample::<f64, _>(StandardNormal) as f32
}

/// An integer in `-largest..=largest`.
pub(crate) fn integer(random: &mut Random, largest: i32) -> f32 {
    random.random_range(-largest..=largest) as f32
}

/// Where the elements of `[frames, channels, n]` lie in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placement {
    /// The first element.
    pub(crate) offset: usize,
    /// Elements from one frame, channel and row to the next.
    pub(crate) strides: [i64; 3],
    /// Elements of the buffer that the tensor may take.
    pub(crate) len: usize,
}

impl Placement {
    /// Without gaps.
    pub(crate) fn contiguous([frames, channels, n]: [usize; 3]) -> Placement {
        Placement { offset: 0, strides: [(channels * n) as i64, n as i64, 1], len: frames * channels * n }
    }

    fn index(&self, index: [usize; 3]) -> usize {
        let steps: i64 = index.iter().zip(self.strides).map(|(&index, stride)| index as i64 * stride).sum();
        self.offset.checked_add_signed(steps as isize).expect("a view starts far enough into its buffer")
    }
}

/// A matrix on the card, X, and what is expected of the product.
pub(crate) struct Case<'a> {
    gpu: &'a Gpu,
    stream: Stream,
    matrix: DeviceBlockMatrix,
    x: Array3<f32>,
}

impl Case<'_> {
    /// Uploads the matrix.
    pub(crate) fn new<'a>(
        gpu: &'a Gpu,
        matrix: &SymmetricBlockMatrix,
        precision: Precision,
        x: Array3<f32>,
    ) -> Result<Case<'a>, Failed> {
        let stream = gpu.new_stream()?;
        let matrix = matrix.upload_blocking(stream.as_ref(), precision)?;
        Ok(Case { gpu, stream, matrix, x })
    }

    /// Calls `check` with every kernel of the precision, and says which one fails.
    pub(crate) fn for_each_config(&self, check: impl Fn(&'static AtaConfig) -> Outcome) -> Outcome {
        let mut configs = 0;
        for config in ata_configs(self.matrix.precision()) {
            configs += 1;
            check(config).map_err(|failed| {
                let message = failed.message().unwrap_or("failed");
                let [frames, channels, n] = self.shape();
                Failed::from(format!("{config}, {frames} frames, {channels} channels, n {n}: {message}"))
            })?;
        }
        if configs == 0 { Err("no kernel has this precision".into()) } else { Ok(()) }
    }

    fn shape(&self) -> [usize; 3] {
        self.x.dim().into()
    }

    /// Runs one kernel on contiguous tensors.
    pub(crate) fn run(&self, config: &AtaConfig) -> Result<Array3<f32>, Failed> {
        let place = Placement::contiguous(self.shape());
        self.run_placed(config, place, place)
    }

    /// Runs one kernel on tensors that lie as given. What surrounds Y, and is between its rows, must stay as it is.
    pub(crate) fn run_placed(&self, config: &AtaConfig, x: Placement, y: Placement) -> Result<Array3<f32>, Failed> {
        let shape = self.shape();
        // Gaps of X are poison, a NaN that shows in Y where it is read.
        let mut storage = vec![f32::poison(); x.len];
        for ((frame, channel, i), &element) in self.x.indexed_iter() {
            storage[x.index([frame, channel, i])] = element;
        }
        let stream = &self.stream;
        let x_buffer = Buffer::upload_blocking(stream, &storage)?;
        let mut out = Guarded::<f32>::new(self.gpu, stream, y.len)?;
        let offset = out.offset() + y.offset;
        let options = AtaOptions { kernel: Some(config.name.to_owned()), ..AtaOptions::default() };
        AtaPlan::new(&self.matrix, shape[0], &options)?.run(
            stream.as_ref(),
            TensorRef::strided(&x_buffer, x.offset, shape, x.strides)?,
            TensorMut::strided(out.buffer(), offset, shape, y.strides)?,
        )?;
        let storage = out.read(stream)?;
        let mut is_gap = vec![true; y.len];
        let result = Array3::from_shape_fn(self.x.dim(), |(frame, channel, i)| {
            let index = y.index([frame, channel, i]);
            is_gap[index] = false;
            storage[index]
        });
        if is_gap.iter().zip(&storage).any(|(&is_gap, element)| is_gap && !element.is_poison()) {
            return Err("a gap of Y was written".into());
        }
        Ok(result)
    }
}

/// The product in f64 of a matrix as a precision stores it.
pub(crate) fn expected(matrix: &SymmetricBlockMatrix, precision: Precision, x: &Array3<f32>) -> Array3<f64> {
    let dense = matrix.rounded(precision).to_dense().mapv(f64::from);
    reference::ata(dense.view(), x.mapv(f64::from).view())
}

/// The largest error that each element of the product may have.
pub(crate) fn limits(matrix: &SymmetricBlockMatrix, precision: Precision, x: &Array3<f32>) -> Array3<f64> {
    let dense = matrix.rounded(precision).to_dense().mapv(|element| f64::from(element).abs());
    let magnitudes = reference::ata(dense.view(), tolerance::ata_magnitudes(precision, x.view()).view());
    let terms = (2 * matrix.block_diagonals() * BLOCK).min(matrix.block_rows() * BLOCK);
    magnitudes.mapv(|magnitude| tolerance::ata_limit(precision, magnitude, terms))
}

/// Checks each element against its own limit.
pub(crate) fn check(got: &Array3<f32>, expected: &Array3<f64>, limits: &Array3<f64>) -> Outcome {
    for (((index, &got), &expected), &limit) in got.indexed_iter().zip(expected).zip(limits) {
        let error = tolerance::element_error(got.into(), expected);
        if error > limit {
            return Err(format!("element {index:?}: got {got:e}, expected {expected:e}, limit {limit:.3e}").into());
        }
    }
    Ok(())
}

/// Checks that every element is exactly what it ought to be.
pub(crate) fn check_exact(got: &Array3<f32>, expected: &Array3<f64>) -> Outcome {
    check(got, expected, &Array3::zeros(expected.dim()))
}
