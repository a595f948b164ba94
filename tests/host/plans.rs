//! Plans and their tensors on two devices: each is named where it is not on the stream's, before anything is enqueued.

use ferrotile::{
    AtaOptions, AtaPlan, AttentionPlan, AttentionTensors, BatchedSizes, Buffer, CgOptions, CgPlan, Descales,
    DeviceBlockMatrix, Dtype, Error, GemmLayout, GemmOptions, GemmPlan, GemmProblem, GemmTensors, Gpu, Layout,
    MergePlan, MergeTensors, PagedSizes, PagedTensors, PartialAttention, Precision, StreamRef, SymmetricBlockMatrix,
    TensorMut, TensorRef, VarlenSizes, VarlenTensors,
};
use half::f16;
use libtest_mimic::Failed;
use ndarray::Array3;
use tests::expect_error;
use tests::request::Request;

use crate::Outcome;

/// The size of every dimension that can be anything.
const SIZE: usize = 16;

/// Head dimension, and the columns of every matrix.
const COLUMNS: usize = 64;

/// Plans of one device.
struct Plans<'a> {
    attention: AttentionPlan,
    decode: AttentionPlan,
    varlen: AttentionPlan,
    paged: AttentionPlan,
    merge: MergePlan,
    gemm: GemmPlan,
    ata: AtaPlan<'a>,
    cg: CgPlan<'a>,
}

fn matrix(gpu: &Gpu) -> Result<DeviceBlockMatrix, Failed> {
    let identity = SymmetricBlockMatrix::from_diagonals(COLUMNS, &[0], Array3::ones((1, 1, COLUMNS)).view())?;
    Ok(identity.upload_blocking(gpu.new_stream()?.as_ref(), Precision::Tf32)?)
}

const fn problem(q_len: usize) -> BatchedSizes {
    BatchedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len, k_len: SIZE, head_dim: COLUMNS }
}

impl<'a> Plans<'a> {
    fn new(gpu: &Gpu, matrix: &'a DeviceBlockMatrix) -> Result<Self, Failed> {
        let options = Request::new(Layout::Bhsd);
        let varlen = VarlenSizes {
            batch: 1,
            q_heads: 1,
            kv_heads: 1,
            q_total: SIZE,
            k_total: SIZE,
            max_q_len: SIZE,
            max_k_len: SIZE,
            head_dim: COLUMNS,
        };
        let paged = PagedSizes {
            batch: 1,
            q_heads: 1,
            kv_heads: 1,
            q_len: 1,
            head_dim: COLUMNS,
            pages: 1,
            page_len: SIZE,
            table_len: 1,
        };
        let gemm = GemmProblem::new([SIZE, SIZE, COLUMNS], Dtype::F16, Dtype::F16, Dtype::F16);
        Ok(Self {
            attention: options.plan(gpu, Dtype::F16, problem(SIZE))?,
            decode: options.plan(gpu, Dtype::F16, problem(1))?,
            varlen: options.plan(gpu, Dtype::F16, varlen)?,
            paged: options.plan(gpu, Dtype::F16, paged)?,
            merge: MergePlan::new(gpu, Dtype::F16, Dtype::F16)?,
            gemm: GemmPlan::new(gpu, &gemm, &GemmOptions::new(GemmLayout::Nt))?,
            ata: AtaPlan::new(matrix, SIZE, &AtaOptions::default())?,
            cg: CgPlan::new(matrix, SIZE, &CgOptions { graph: false, ..CgOptions::default() })?,
        })
    }
}

/// Memory of one device for every tensor of a call.
struct Memory {
    half: Buffer<f16>,
    single: Buffer<f32>,
    number: Buffer<i32>,
    /// The number of another device where one tensor is claimed to be, and which of a call's tensors that is.
    elsewhere: Option<(usize, u32)>,
}

impl Memory {
    fn new(gpu: &Gpu) -> Result<Self, Failed> {
        let len = SIZE * COLUMNS;
        Ok(Self {
            half: Buffer::zeroed(gpu, len)?,
            single: Buffer::zeroed(gpu, len)?,
            number: Buffer::zeroed(gpu, len)?,
            elsewhere: None,
        })
    }

    fn ordinal(&self, index: usize, gpu: &Gpu) -> u32 {
        self.elsewhere.filter(|(wanted, _)| *wanted == index).map_or_else(|| gpu.ordinal(), |(_, ordinal)| ordinal)
    }

    /// Tensor `index` of a call, for reading.
    fn read<'a, T: ferrotile::Element, const RANK: usize>(
        &self,
        index: usize,
        buffer: &'a Buffer<T>,
        shape: [usize; RANK],
    ) -> ferrotile::Result<TensorRef<'a, T, RANK>> {
        let ordinal = self.ordinal(index, buffer.gpu());
        // SAFETY: every call is refused, so the memory is not used.
        unsafe { TensorRef::from_raw(ordinal, buffer.as_raw(), shape, row_major(shape)) }
    }

    /// Tensor `index` of a call, for writing.
    fn write<'a, T: ferrotile::Element, const RANK: usize>(
        &self,
        index: usize,
        buffer: &'a Buffer<T>,
        shape: [usize; RANK],
    ) -> ferrotile::Result<TensorMut<'a, T, RANK>> {
        let ordinal = self.ordinal(index, buffer.gpu());
        // SAFETY: every call is refused, so the memory is not used.
        unsafe { TensorMut::from_raw(ordinal, buffer.as_raw(), shape, row_major(shape)) }
    }
}

fn row_major<const RANK: usize>(shape: [usize; RANK]) -> [i64; RANK] {
    std::array::from_fn(|dim| shape[dim + 1..].iter().product::<usize>() as i64)
}

/// One call: the name of a plan that is elsewhere, the names of its tensors, and the call itself.
type Run = (&'static str, &'static [&'static str], fn(&mut Plans<'_>, &Memory, StreamRef<'_>) -> ferrotile::Result<()>);

const RUNS: [Run; 8] = [
    ("plan", &["Q", "K", "V", "O", "LSE", "sink"], |plans, memory, stream| {
        let Memory { half, single, .. } = memory;
        let (shape, lse) = ([1, 1, SIZE, COLUMNS], [1, 1, SIZE]);
        let (q, k, v) = (memory.read(0, half, shape)?, memory.read(1, half, shape)?, memory.read(2, half, shape)?);
        let tensors = AttentionTensors::new(q, k, v, memory.write(3, half, shape)?);
        let (lse, sink) = (Some(memory.write(4, single, lse)?), Some(memory.read(5, single, [1])?));
        plans.attention.run(stream, AttentionTensors { lse, sink, ..tensors })
    }),
    ("plan", &["Q", "K", "V", "O"], |plans, memory, stream| {
        let (row, keys) = ([1, 1, 1, COLUMNS], [1, 1, SIZE, COLUMNS]);
        let half = &memory.half;
        let (q, k, v) = (memory.read(0, half, row)?, memory.read(1, half, keys)?, memory.read(2, half, keys)?);
        plans.decode.run(stream, AttentionTensors::new(q, k, v, memory.write(3, half, row)?))
    }),
    ("plan", &["Q", "K", "V", "O", "cu_seqlens_q", "cu_seqlens_k", "LSE"], |plans, memory, stream| {
        let Memory { half, single, number, .. } = memory;
        let shape = [SIZE, 1, COLUMNS];
        let tensors = VarlenTensors {
            descales: Descales::NONE,
            q: memory.read(0, half, shape)?,
            k: memory.read(1, half, shape)?,
            v: memory.read(2, half, shape)?,
            out: memory.write(3, half, shape)?,
            cu_seqlens_q: memory.read(4, number, [2])?,
            cu_seqlens_k: memory.read(5, number, [2])?,
            lse: Some(memory.write(6, single, [1, SIZE])?),
            sink: None,
            bias: None,
        };
        plans.varlen.run(stream, tensors)
    }),
    ("plan", &["Q", "K", "V", "block table", "numbers of keys", "O"], |plans, memory, stream| {
        let Memory { half, number, .. } = memory;
        let (row, pages) = ([1, 1, 1, COLUMNS], [1, SIZE, 1, COLUMNS]);
        let (q, k, v) = (memory.read(0, half, row)?, memory.read(1, half, pages)?, memory.read(2, half, pages)?);
        let (table, lens) = (memory.read(3, number, [1, 1])?, memory.read(4, number, [1])?);
        plans.paged.run(stream, PagedTensors::new(q, [k, v], table, lens, memory.write(5, half, row)?))
    }),
    (
        "plan",
        &["the first O", "the first LSE", "the second O", "the second LSE", "O", "LSE"],
        |plans, memory, stream| {
            let Memory { half, single, .. } = memory;
            let (shape, lse) = ([1, 1, SIZE, COLUMNS], [1, 1, SIZE]);
            let part = |o, of_lse| -> ferrotile::Result<_> {
                Ok(PartialAttention { out: memory.read(o, half, shape)?, lse: memory.read(of_lse, single, lse)? })
            };
            let (out, lse) = (memory.write(4, half, shape)?, Some(memory.write(5, single, lse)?));
            plans.merge.run(stream, MergeTensors { partials: [part(0, 1)?, part(2, 3)?], out, lse }, Layout::Bhsd)
        },
    ),
    ("plan", &["A", "B", "D", "C", "bias"], |plans, memory, stream| {
        let Memory { half, single, .. } = memory;
        let (operand, product) = ([1, SIZE, COLUMNS], [1, SIZE, SIZE]);
        let (a, b) = (memory.read(0, half, operand)?, memory.read(1, half, operand)?);
        let tensors = GemmTensors::new(a, b, memory.write(2, half, product)?);
        let (c, bias) = (Some(memory.read(3, half, product)?), Some(memory.read(4, single, [SIZE])?));
        plans.gemm.run(stream, GemmTensors { c, bias, ..tensors }, None)
    }),
    ("A", &["X", "Y"], |plans, memory, stream| {
        let shape = [SIZE, 1, COLUMNS];
        plans.ata.run(stream, memory.read(0, &memory.single, shape)?, memory.write(1, &memory.single, shape)?)
    }),
    ("A", &["b", "x", "the guess"], |plans, memory, stream| {
        let (single, shape) = (&memory.single, [SIZE, 1, COLUMNS]);
        let (b, x, guess) =
            (memory.read(0, single, shape)?, memory.write(1, single, shape)?, memory.read(2, single, shape)?);
        plans.cg.solve_blocking(stream, b, Some(guess), x).map(drop)
    }),
];

/// Runs plans of one device on a stream of the other, and on their own with a tensor that is claimed to be elsewhere.
pub(crate) fn on_another_device(gpu: &Gpu, other: &Gpu) -> Outcome {
    let matrix = matrix(gpu)?;
    let mut plans = Plans::new(gpu, &matrix)?;
    let (here, there) = (gpu.new_stream()?, other.new_stream()?);
    let far = Memory::new(other)?;
    let mut near = Memory::new(gpu)?;
    for (plan, tensors, run) in RUNS {
        let [got, expected] = [gpu.ordinal(), other.ordinal()];
        let refused = Error::WrongDevice { what: plan, got, expected };
        expect_error(run(&mut plans, &far, there.as_ref()), |error| *error == refused)?;
        for (index, what) in tensors.iter().enumerate() {
            near.elsewhere = Some((index, other.ordinal()));
            let refused = Error::WrongDevice { what, got: other.ordinal(), expected: gpu.ordinal() };
            expect_error(run(&mut plans, &near, here.as_ref()), |error| *error == refused)?;
        }
    }
    for (memory, stream) in [(&near, &here), (&far, &there)] {
        let untouched = memory.half.download_blocking(stream)?.iter().all(|x| x.to_bits() == 0)
            && memory.single.download_blocking(stream)?.iter().all(|x| x.to_bits() == 0);
        crate::expect_equal("nothing was written", &untouched, &true)?;
    }
    Ok(())
}
