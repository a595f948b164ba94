//! What the shipped kernels do to memory, counted by the emulator on any machine.

use std::time::Instant;

use ferrotile::counters::Counters;
use ferrotile::{
    Arch, AtaOptions, AtaPlan, AttentionTensors, BatchedSizes, Buffer, Dtype, Error, Float, Gpu, LaunchConfig, Layout,
    Mask, Precision, SymmetricBlockMatrix, TensorMut, TensorRef, embedded_kernels,
};
use half::{bf16, f16};
use ndarray::Array5;
use tests::catalogue::{ata_configs, attention_configs};
use tests::request::Request;
use variants::ata::{ATA, AtaUnit, MMA_FRAMES, PAIR_ROWS};

/// Queries and keys.
const ROWS: usize = 64;

/// Rows of the matrix of block diagonals.
const MATRIX_ROWS: usize = 80;

/// What attention of one head does, with every element 1.
fn attention<T: Float>(gpu: &Gpu, head_dim: usize, kernel: &str) -> Vec<Counters> {
    let sizes = BatchedSizes { batch: 1, q_heads: 1, kv_heads: 1, q_len: ROWS, k_len: ROWS, head_dim };
    let shape = sizes.q_shape(Layout::Bhsd);
    let options = Request { kernel: Some(kernel.to_owned()), ..Request::new(Layout::Bhsd) };
    let plan = options.plan(gpu, T::DTYPE, sizes).unwrap();
    let stream = gpu.new_stream().unwrap();
    let ones = Buffer::upload_blocking(&stream, &vec![T::from_f64(1.0); ROWS * head_dim]).unwrap();
    let mut out = Buffer::<T>::zeroed(gpu, ROWS * head_dim).unwrap();
    let (q, out) = (TensorRef::contiguous(&ones, shape).unwrap(), TensorMut::contiguous(&mut out, shape).unwrap());
    gpu.counted(|| plan.run(&stream, AttentionTensors::new(q, q, q, out))).unwrap().1
}

fn ata(gpu: &Gpu, precision: Precision, frames: usize, kernel: &str) -> Vec<Counters> {
    // Block diagonal d has a block in each row of blocks but the last d.
    let element = |(_, d, row, _, _): (usize, usize, usize, usize, usize)| if row + d < 5 { 1.0 } else { 0.0 };
    let blocks = Array5::from_shape_fn((1, 3, 5, 16, 16), element);
    let matrix = SymmetricBlockMatrix::from_blocks(MATRIX_ROWS, blocks.view()).unwrap();
    let stream = gpu.new_stream().unwrap();
    let matrix = matrix.upload_blocking(stream.as_ref(), precision).unwrap();
    let plan = AtaPlan::new(&matrix, frames, &AtaOptions { kernel: Some(kernel.to_owned()), ..AtaOptions::default() })
        .unwrap();
    let (shape, count) = ([frames, 1, MATRIX_ROWS], frames * MATRIX_ROWS);
    let x = Buffer::upload_blocking(&stream, &vec![1.0f32; count]).unwrap();
    let mut y = Buffer::<f32>::zeroed(gpu, count).unwrap();
    let (x, y) = (TensorRef::contiguous(&x, shape).unwrap(), TensorMut::contiguous(&mut y, shape).unwrap());
    gpu.counted(|| plan.run(stream.as_ref(), x, y)).unwrap().1
}

/// The architectures that this build has a family for.
fn archs(family: &str) -> Vec<Arch> {
    let archs: Vec<Arch> =
        Arch::ALL.into_iter().filter(|&arch| embedded_kernels(family, arch).next().is_some()).collect();
    assert!(!archs.is_empty(), "{family} is built for some architecture");
    archs
}

/// No `ldmatrix` of the kernel waits for a bank.
fn assert_no_conflicts(launches: &[Counters]) {
    assert_eq!(launches.len(), 1);
    for instruction in &launches[0].instructions {
        let conflicts = instruction.counts.shared.conflicts;
        if instruction.opcode.starts_with("ldmatrix") {
            assert_eq!(conflicts, 0, "{}: {} at {}", launches[0].kernel, instruction.opcode, instruction.place);
        }
    }
}

#[test]
fn matrices_of_the_attention_kernels_lie_without_bank_conflicts() {
    for arch in archs("attention") {
        let gpu = Gpu::emulated(arch);
        let rows = |dtype, head_dim| {
            attention_configs(Arch::Sm80, dtype, [head_dim; 2]).filter(|config| config.takes(Mask::Full, ROWS, ROWS))
        };
        for head_dim in [64, 128] {
            for config in rows(Dtype::F16, head_dim) {
                assert_no_conflicts(&attention::<f16>(&gpu, head_dim, config.name));
            }
        }
        for config in rows(Dtype::Bf16, 64) {
            assert_no_conflicts(&attention::<bf16>(&gpu, 64, config.name));
        }
    }
}

#[test]
fn matrices_of_the_ata_kernels_lie_without_bank_conflicts() {
    for arch in archs("ata") {
        let gpu = Gpu::emulated(arch);
        for precision in Precision::ALL {
            for config in ata_configs(precision) {
                assert_no_conflicts(&ata(&gpu, precision, config.frames, config.name));
            }
        }
    }
}

/// Tensor cores do the products of the pairs of blocks, and each lane of the warp has its part of the loads.
#[test]
fn products_on_tensor_cores_are_those_of_the_problem() {
    let gpu = Gpu::emulated(archs("ata")[0]);
    for config in Precision::ALL.into_iter().flat_map(ata_configs).filter(|config| config.unit != AtaUnit::Fma) {
        let counters = &ata(&gpu, config.precision, config.frames, config.name)[0];
        // 5 + 2 (4 + 3) blocks of 16 x 16 elements, which come in pairs: at most twice as many products. One frame
        // takes as many columns as eight.
        let least = (2 * 19 * 16 * 16 * config.vectors() * MMA_FRAMES) as u64;
        // A kernel that takes two uses at once multiplies both of each warp, whether it has them or not.
        let strips = MATRIX_ROWS.div_ceil(config.rows());
        let firsts = if config.prefetches_two() { 2 * strips * config.warps * config.rows() * PAIR_ROWS } else { 0 };
        let most = 6 * least + (2 * firsts * MMA_FRAMES) as u64;
        let operations = counters.total().tensor_operations;
        assert!((least..=most).contains(&operations), "{}: {operations}, not {least} to {most}", config.name);
    }
}

#[test]
fn a_repeated_launch_counts_the_same() {
    let gpu = Gpu::emulated(archs("ata")[0]);
    let config = &ATA[0];
    let run = || ata(&gpu, config.precision, config.frames, config.name);
    assert_eq!(run(), run());
}

/// `cargo test -p tests --test counters -- --ignored --nocapture` prints what counting costs.
#[test]
#[ignore = "a measurement"]
fn cost_of_counting() {
    let gpu = Gpu::emulated(archs("attention")[0]);
    let sizes = BatchedSizes { batch: 1, q_heads: 4, kv_heads: 4, q_len: 256, k_len: 256, head_dim: 64 };
    let shape = sizes.q_shape(Layout::Bhsd);
    let plan = Request::new(Layout::Bhsd).plan(&gpu, Dtype::F16, sizes).unwrap();
    let stream = gpu.new_stream().unwrap();
    let count = shape.iter().product();
    let ones = Buffer::upload_blocking(&stream, &vec![f16::ONE; count]).unwrap();
    let mut out = Buffer::<f16>::zeroed(&gpu, count).unwrap();
    let q = TensorRef::contiguous(&ones, shape).unwrap();
    let mut run = || {
        let out = TensorMut::contiguous(&mut out, shape).unwrap();
        plan.run(&stream, AttentionTensors::new(q, q, q, out))
    };
    for _ in 0..3 {
        let start = Instant::now();
        run().unwrap();
        let plain = start.elapsed();
        let start = Instant::now();
        gpu.counted(&mut run).unwrap();
        println!("{plan}: {plain:.2?}, counted {:.2?}", start.elapsed());
    }
}

/// A panic within counted work leaves nothing behind: what is counted around it has its own launches alone.
#[test]
fn counting_ends_with_work_that_panics() {
    let gpu = Gpu::emulated(Arch::Sm80);
    let text = ".version 7.0 .target sm_80 .address_size 64 .visible .entry nothing() { ret; }";
    let kernel = gpu.load_ptx(text).unwrap().kernel("nothing").unwrap();
    let stream = gpu.new_stream().unwrap();
    // SAFETY: the kernel has no parameters and touches no memory.
    let launch = || unsafe { kernel.launch(stream.as_ref(), &LaunchConfig::default(), &[]) };
    let ((), counters) = gpu
        .counted(|| {
            let inner = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                gpu.counted(|| {
                    launch()?;
                    // Unlike a panic, this prints nothing.
                    std::panic::resume_unwind(Box::new(()));
                    #[allow(unreachable_code, reason = "it names the type")]
                    Ok::<(), Error>(())
                })
            }));
            assert!(inner.is_err());
            launch()
        })
        .unwrap();
    assert_eq!(counters.len(), 1);
}
