//! Launches that the card or the kernel cannot serve: a typed error, and nothing runs.

use ferrotile::{Buffer, Error, Gpu, KernelAttributes, KernelParam, LaunchConfig};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::expect_error;
use tests::probe_ptx::probe_ptx;

use crate::words::{add_word, kernel};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("launches_out_of_range_are_refused_and_run_nothing", out_of_range),
    test("parameters_of_every_type_arrive", parameters),
    test("structs_arrive_as_parameters", structs),
    test("limits_are_those_of_the_kernel", kernel_limits),
    test("blocks_that_do_not_fit_are_not_resident", residency),
    test("grids_up_to_the_limits_run", large_grids)
        .on_a_card("its blocks write one word, which the emulator reports as a race"),
    test("all_shared_memory_can_be_asked_for", shared_memory),
    test("clusters_run_where_the_card_has_them", clusters)
        .on_a_card("its blocks write one word, which the emulator reports as a race"),
];

const ONE: LaunchConfig =
    LaunchConfig { grid: [1; 3], block: [1; 3], cluster: [1; 3], shared_bytes: 0, overlaps: false };

/// Launches and what is wrong with each.
const OUT_OF_RANGE: [(LaunchConfig, &str); 16] = [
    (LaunchConfig { grid: [0, 1, 1], ..ONE }, "grid x"),
    (LaunchConfig { grid: [1, 0, 1], ..ONE }, "grid y"),
    (LaunchConfig { grid: [1, 1, 0], ..ONE }, "grid z"),
    (LaunchConfig { grid: [1 << 31, 1, 1], ..ONE }, "grid x"),
    (LaunchConfig { grid: [1, 65536, 1], ..ONE }, "grid y"),
    (LaunchConfig { grid: [1, 1, 65536], ..ONE }, "grid z"),
    (LaunchConfig { block: [0, 1, 1], ..ONE }, "the number of threads of a block"),
    (LaunchConfig { block: [1025, 1, 1], ..ONE }, "the number of threads of a block"),
    (LaunchConfig { block: [32, 33, 1], ..ONE }, "the number of threads of a block"),
    (LaunchConfig { block: [u32::MAX; 3], ..ONE }, "the number of threads of a block"),
    (LaunchConfig { shared_bytes: 1 << 20, ..ONE }, "dynamic shared memory"),
    (LaunchConfig { shared_bytes: u32::MAX, ..ONE }, "dynamic shared memory"),
    (LaunchConfig { cluster: [0, 1, 1], ..ONE }, "the number of blocks of a cluster"),
    (LaunchConfig { grid: [16, 1, 1], cluster: [16, 1, 1], ..ONE }, "the number of blocks of a cluster"),
    (LaunchConfig { grid: [3, 1, 1], cluster: [2, 1, 1], ..ONE }, "the remainder of grid x by cluster x"),
    (LaunchConfig { grid: [2, 3, 1], cluster: [1, 2, 1], ..ONE }, "the remainder of grid y by cluster y"),
];

fn out_of_range(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::upload_blocking(&stream, &[7])?;
    for (config, wrong) in OUT_OF_RANGE {
        // SAFETY: these are the kernel's parameters, and the buffer outlives the download, which waits.
        let launched = unsafe { add.launch(stream.as_ref(), &config, &[&out.as_raw(), &1_u32]) };
        let is_right = |error: &Error| matches!(error, Error::LaunchConfig { kernel, what, .. } if kernel == "add_word" && *what == wrong);
        expect_error(launched, is_right)?;
    }
    expect_equal("nothing ran", &out.download_blocking(&stream)?, &[7])?;
    add_word(&add, stream.as_ref(), &out, 1)?;
    expect_equal("the next launch", &out.download_blocking(&stream)?, &[8])
}

/// `keep(out, a, b, c, d)` stores its parameters of 1, 2, 4 and 8 bytes as four words of 8 bytes.
const KEEP: &str = "\
.version 7.0
.target sm_80
.address_size 64

.visible .entry keep(.param .u64 out, .param .u8 a, .param .u16 b, .param .u32 c, .param .u64 d)
{
    .reg .b16 %b;
    .reg .b32 %a, %c;
    .reg .b64 %out, %word;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u8 %a, [a];
    cvt.u64.u32 %word, %a;
    st.global.u64 [%out], %word;
    ld.param.u16 %b, [b];
    cvt.u64.u16 %word, %b;
    st.global.u64 [%out+8], %word;
    ld.param.u32 %c, [c];
    cvt.u64.u32 %word, %c;
    st.global.u64 [%out+16], %word;
    ld.param.u64 %word, [d];
    st.global.u64 [%out+24], %word;
    ret;
}
";

fn parameters(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let keep = gpu.load_ptx(KEEP)?.kernel("keep")?;
    let launch = |out: &dyn KernelParam, [a, b, c, d]: [&dyn KernelParam; 4]| {
        // SAFETY: these are parameters of the kernel's sizes, and `out` has four words from where it starts.
        unsafe { keep.launch(&stream, &ONE, &[out, a, b, c, d]) }
    };
    let mut out = Buffer::<u32>::zeroed(gpu, 10)?;
    let stored = |out: &Buffer<u32>| -> Result<Vec<u64>, Failed> {
        let halves = out.download_blocking(&stream)?;
        Ok(halves.chunks(2).map(|halves| u64::from(halves[0]) | u64::from(halves[1]) << 32).collect())
    };
    launch(&out, [&200_u8, &60_000_u16, &4_000_000_000_u32, &(u64::MAX - 1)])?;
    expect_equal("unsigned", &stored(&out)?, &[200, 60_000, 4_000_000_000, u64::MAX - 1, 0])?;
    launch(&out.slice(2..)?, [&-3_i8, &-3_i16, &-3_i32, &-3_i64])?;
    let signed = [200, 253, 65_533, u64::from(u32::MAX) - 2, u64::MAX - 2];
    expect_equal("signed, to a slice", &stored(&out)?, &signed)?;
    let (half, brain) = (f16::from_f32(1.5), bf16::from_f32(-2.5));
    launch(&out.slice_mut(..8)?, [&0_u8, &half, &1.25_f32, &-0.1_f64])?;
    let floats = [0, u64::from(half.to_bits()), u64::from(1.25_f32.to_bits()), (-0.1_f64).to_bits(), u64::MAX - 2];
    expect_equal("floats, to a slice", &stored(&out)?, &floats)?;
    launch(&out, [&0_u8, &brain, &0_u32, &usize::MAX])?;
    let last = [0, u64::from(brain.to_bits()), 0, u64::MAX, u64::MAX - 2];
    expect_equal("bf16 and usize", &stored(&out)?, &last)?;
    launch(&out, [&0_u8, &0_u16, &0_u32, &isize::MIN])?;
    expect_equal("isize", &stored(&out)?[3], &(1 << 63))
}

/// `store(args)` stores the words of a struct behind its first field, the address that they go to.
const STORE: &str = "\
.version 7.0
.target sm_80
.address_size 64

.visible .entry store(.param .align 8 .b8 args[32])
{
    .reg .b64 %to, %word;
    ld.param.u64 %to, [args];
    cvta.to.global.u64 %to, %to;
    ld.param.u64 %word, [args+8];
    st.global.u64 [%to], %word;
    ld.param.u64 %word, [args+16];
    st.global.u64 [%to+8], %word;
    ld.param.u64 %word, [args+24];
    st.global.u64 [%to+16], %word;
    ret;
}
";

/// A part of [`Store`].
#[repr(C)]
#[derive(Clone, Copy, KernelParam)]
struct Range {
    start: i32,
    steps: [u16; 2],
}

/// What `store` takes.
#[repr(C)]
#[derive(Clone, Copy, KernelParam)]
struct Store {
    to: *mut u64,
    factor: f64,
    range: Range,
    half: f16,
    brain: bf16,
    bytes: [u8; 4],
}

fn structs(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let store = gpu.load_ptx(STORE)?.kernel("store")?;
    let out = Buffer::<u32>::zeroed(gpu, 8)?;
    let (half, brain) = (f16::from_f32(1.5), bf16::from_f32(-2.5));
    let range = Range { start: -2, steps: [3, 60_000] };
    let to = out.as_raw() as *mut u64;
    let args = Store { to, factor: -0.1, range, half, brain, bytes: [1, 2, 3, 255] };
    // SAFETY: this is the kernel's parameter, and the buffer has the three words that are stored, and one more.
    unsafe { store.launch(&stream, &ONE, &[&args]) }?;
    let factor = args.factor.to_bits();
    let words = [factor as u32, (factor >> 32) as u32, -2_i32 as u32, 3 | 60_000 << 16];
    let rest = [u32::from(half.to_bits()) | u32::from(brain.to_bits()) << 16, u32::from_le_bytes(args.bytes), 0, 0];
    expect_equal("the fields", &out.download_blocking(&stream)?, &[words, rest].concat())
}

/// A probe that is compiled for blocks of at most so many threads and has static shared memory.
fn kernel_limits(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let sync = gpu.load_ptx(probe_ptx(gpu.arch()))?.kernel("thread_sync")?;
    let attributes = sync.attributes();
    expect_equal("threads", &attributes.max_threads, &variants::probe::BLOCK_THREADS)?;
    expect_equal("static shared memory", &attributes.static_shared_bytes, &(2 * 4 * variants::probe::BLOCK_THREADS))?;
    let out = Buffer::<u32>::zeroed(gpu, 4096)?;
    let too_large = [
        (LaunchConfig { block: [attributes.max_threads + 1, 1, 1], ..ONE }, attributes.max_threads),
        (LaunchConfig { shared_bytes: attributes.max_shared_bytes + 1, ..ONE }, attributes.max_shared_bytes),
    ];
    for (config, limit) in too_large {
        // SAFETY: this is the kernel's parameter, and the buffer outlives the download, which waits.
        let launched = unsafe { sync.launch(stream.as_ref(), &config, &[&out.as_raw()]) };
        let is_right = |error: &Error| matches!(error, Error::LaunchConfig { got, most, .. } if (*got, *most) == (u64::from(limit) + 1, limit.into()));
        expect_error(launched, is_right)?;
    }
    expect_equal("nothing ran", &out.download_blocking(&stream)?, &vec![0; 4096])
}

/// No block of a size that a launch refuses fits on a multiprocessor.
fn residency(gpu: &Gpu) -> Outcome {
    let add = kernel(gpu, "add_word")?;
    let KernelAttributes { max_threads, max_shared_bytes, .. } = add.attributes();
    for (threads, shared_bytes) in [
        (0, 0),
        (max_threads + 1, 0),
        (u32::MAX, 0),
        (1 << 31, 0),
        (128, max_shared_bytes + 1),
        (128, u32::MAX - 1023),
        (128, u32::MAX),
    ] {
        let blocks = add.blocks_per_multiprocessor(threads, shared_bytes)?;
        expect_equal(&format!("blocks of {threads} threads and {shared_bytes} bytes"), &blocks, &0)?;
    }
    let fitting = [(1, 0), (max_threads, 0), (128, max_shared_bytes)];
    for (threads, shared_bytes) in fitting {
        let blocks = add.blocks_per_multiprocessor(threads, shared_bytes)?;
        expect_equal(&format!("{blocks} of {threads} threads and {shared_bytes} bytes fit"), &(blocks > 0), &true)?;
    }
    Ok(())
}

/// Each dimension at its limit, but x, whose would take long.
fn large_grids(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::upload_blocking(&stream, &[7])?;
    for grid in [[1 << 20, 1, 1], [1, 65535, 1], [1, 1, 65535]] {
        // SAFETY: these are the kernel's parameters, and the buffer outlives the download, which waits.
        unsafe { add.launch(stream.as_ref(), &LaunchConfig { grid, ..ONE }, &[&out.as_raw(), &0_u32]) }?;
        expect_equal("adding nothing", &out.download_blocking(&stream)?, &[7])?;
    }
    Ok(())
}

fn shared_memory(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::<u32>::zeroed(gpu, 1)?;
    let shared_bytes = add.attributes().max_shared_bytes;
    expect_equal(&format!("{shared_bytes} are more than 48 KiB"), &(shared_bytes > 48 << 10), &true)?;
    let config = LaunchConfig { shared_bytes, ..ONE };
    // SAFETY: these are the kernel's parameters, and the buffer outlives the download, which waits.
    unsafe { add.launch(stream.as_ref(), &config, &[&out.as_raw(), &3_u32]) }?;
    expect_equal("the sum", &out.download_blocking(&stream)?, &[3])
}

/// `tests/probes` checks the ranks of blocks; here a kernel that knows nothing of clusters runs in one.
fn clusters(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let add = kernel(gpu, "add_word")?;
    let out = Buffer::upload_blocking(&stream, &[7])?;
    for cluster in [[2, 1, 1], [1, 4, 1], [1, 1, 2], [2, 2, 2], [8, 1, 1]] {
        let config = LaunchConfig { grid: [8; 3], cluster, ..ONE };
        // SAFETY: these are the kernel's parameters, and the buffer outlives the download, which waits.
        let launched = unsafe { add.launch(stream.as_ref(), &config, &[&out.as_raw(), &0_u32]) };
        if gpu.compute_capability() >= (9, 0) {
            launched?;
        } else {
            expect_error(launched, |error| matches!(error, Error::Driver { .. } | Error::DriverTooOld { .. }))?;
        }
        expect_equal("adding nothing", &out.download_blocking(&stream)?, &[7])?;
    }
    Ok(())
}
