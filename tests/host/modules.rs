//! Loading kernels: the cache, the driver's log, older architectures, and how long modules live.

use std::sync::Barrier;

use ferrotile::{Arch, Buffer, Dtype, Error, Gpu, LaunchConfig};
use half::f16;
use libtest_mimic::Failed;
use tests::catalogue::attention_configs;
use tests::expect_error;
use variants::attention::{
    AttentionArgs, AttentionConfig, AttentionKernel, AttentionStrides, Mask, ScoreMod, exact_from,
};

use crate::call::{Call, SHAPE, bits, check};
use crate::words::{PTX, SLOW_MS, add_word, slow_store};
use crate::{Outcome, Tests, expect_equal, test};

pub(crate) const TESTS: Tests = &[
    test("threads_that_ask_at_once_share_one_load", threads),
    test("kernels_of_older_architectures_compute_the_same", older_architectures),
    test("what_is_not_there_is_named", missing),
    test("errors_of_the_compiler_name_the_line", syntax).on_a_card("the log is that of the driver's compiler"),
    test("kernels_keep_their_module_loaded", kernels_keep_modules),
    test("a_module_may_be_dropped_while_its_kernel_runs", dropped_in_use),
    test("attributes_are_those_of_the_compiler", attributes).on_a_card("the driver's compiler allocates registers"),
];

/// The threads that load one kernel.
const THREADS: usize = 8;

/// Runs a configuration of an architecture on the call's inputs and returns the output.
fn run(gpu: &Gpu, arch: Arch, config: &AttentionConfig) -> Result<Vec<f16>, Failed> {
    let kernel = gpu.kernel_for(config.family, arch, config.name)?;
    let stream = gpu.new_stream()?;
    let call = Call::new(stream.as_ref())?;
    let [q, k, v] = call.tensors()?.map(|tensor| tensor.as_raw());
    let [batch, heads, rows, head_dim] = SHAPE;
    let (head, row_stride) = ((rows * head_dim) as i64, head_dim as i64);
    let strides = AttentionStrides { batch: heads as i64 * head, head, row: row_stride };
    let (first_key, last_key) = Mask::Causal.key_offsets(rows, rows);
    let scale_log2 = std::f32::consts::LOG2_E / (head_dim as f32).sqrt();
    let args = AttentionArgs {
        q,
        k,
        v,
        o: call.out.as_raw(),
        q_strides: strides,
        k_strides: strides,
        v_strides: strides,
        o_strides: strides,
        q_heads: heads as u32,
        heads_per_kv: 1,
        q_len: rows as u32,
        k_len: rows as u32,
        head_dim: head_dim as u32,
        value_dim: head_dim as u32,
        first_key,
        last_key,
        scale_log2,
        exact_from: exact_from(scale_log2),
        inputs_aligned: 1,
        output_aligned: 1,
        ..AttentionArgs::default()
    };
    let blocks = config.tiles(batch * heads, rows).ok_or("the blocks fit a grid")?;
    let config = LaunchConfig {
        grid: [blocks, 1, 1],
        block: [config.threads(), 1, 1],
        shared_bytes: config.smem().total_bytes(),
        ..LaunchConfig::default()
    };
    // SAFETY: this is the kernel's parameter, and the buffers outlive the download, which waits.
    unsafe { kernel.launch(stream.as_ref(), &config, &[&args]) }?;
    Ok(call.out.download_blocking(&stream)?)
}

/// The configurations that serve the call on every architecture and whose kernels have one parameter.
fn configs() -> impl Iterator<Item = &'static AttentionConfig> {
    attention_configs(Arch::Sm80, Dtype::F16, [SHAPE[3]; 2])
        .filter(|config| config.score_mod == ScoreMod::None && !matches!(config.kernel, AttentionKernel::Decode(_)))
}

/// The handle of a kernel differs from load to load, and its debug text has it.
fn threads(gpu: &Gpu) -> Outcome {
    // A configuration for wider heads serves the call too, and no other trial loads one.
    let config = configs().find(|config| config.head_dim > SHAPE[3]).ok_or("there is a configuration")?;
    let start = Barrier::new(THREADS);
    let results: Vec<Result<(String, Vec<u16>), Failed>> = std::thread::scope(|scope| {
        let load = || {
            start.wait();
            let kernel = gpu.kernel(config.family, config.name)?;
            Ok((format!("{kernel:?}"), bits(&run(gpu, gpu.arch(), config)?)))
        };
        let threads = [(); THREADS].map(|()| scope.spawn(load));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (handle, bits) in &results[1..] {
        expect_equal("the kernel", handle, &results[0].0)?;
        expect_equal("the bits", bits, &results[0].1)?;
    }
    Ok(())
}

fn older_architectures(gpu: &Gpu) -> Outcome {
    let (major, minor) = gpu.compute_capability();
    for arch in Arch::ALL.into_iter().filter(|arch| arch.runs_on(major, minor)) {
        for config in configs().filter(|config| config.head_dim == SHAPE[3]) {
            let out = run(gpu, arch, config)?;
            check(&out).map_err(|error| format!("{config} for {arch}: {}", error.message().unwrap_or("failed")))?;
        }
    }
    Ok(())
}

fn missing(gpu: &Gpu) -> Outcome {
    // Twice: the slot of a kernel that did not load stays usable.
    for _ in 0..2 {
        expect_error(
            gpu.kernel("attention", "no_such_entry"),
            |error| matches!(error, Error::NoKernel { kernel, module } if kernel == "no_such_entry" && module.contains("attention")),
        )?;
        expect_error(
            gpu.kernel("no_such_family", "entry"),
            |error| matches!(error, Error::NoPtx { family, arch } if family == "no_such_family" && *arch == gpu.arch()),
        )?;
    }
    let module = gpu.load_ptx(PTX)?;
    for name in ["slow", "slow_store\0", "Slow_store"] {
        let is_right = |error: &Error| matches!(error, Error::NoKernel { kernel, .. } if kernel == name);
        expect_error(module.kernel(name), is_right)?;
    }
    expect_equal("the name", module.kernel("slow_store")?.name(), "slow_store")
}

fn syntax(gpu: &Gpu) -> Outcome {
    let line = 1 + PTX.lines().position(|line| line.contains("st.global")).ok_or("the text has a store")?;
    let broken = PTX.replacen("st.global.u32", "st.globl.u32", 1);
    let is_right = |error: &Error| {
        matches!(error, Error::Jit { module, log, error } if module == "PTX"
            && error.code() == 218
            && log.contains(&format!("line {line};")))
    };
    expect_error(gpu.load_ptx(&broken), is_right)?;
    for text in ["", "no PTX at all", ".version 7.0\n.target sm_80\n\0", ".version 99.0\n.target sm_80\n"] {
        expect_error(gpu.load_ptx(text), |error| matches!(error, Error::Jit { .. }))?;
    }
    gpu.load_ptx(PTX)?;
    Ok(())
}

fn kernels_keep_modules(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::zeroed(gpu, 1)?;
    let add = gpu.load_ptx(PTX)?.kernel("add_word")?;
    for _ in 0..10 {
        add_word(&add.clone(), stream.as_ref(), &out, 1)?;
    }
    expect_equal("the sum", &out.download_blocking(&stream)?, &[10])
}

fn dropped_in_use(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let out = Buffer::zeroed(gpu, 1)?;
    for word in 1..=5_u32 {
        let kernel = gpu.load_ptx(PTX)?.kernel("slow_store")?;
        let nanoseconds = SLOW_MS * 1_000_000;
        // SAFETY: these are the kernel's parameters; the buffer outlives the download, which waits.
        unsafe { kernel.launch(stream.as_ref(), &LaunchConfig::default(), &[&out.as_raw(), &word, &nanoseconds]) }?;
        drop(kernel);
        // Code that may come to lie where the other was.
        let _next = gpu.load_ptx(PTX)?;
        expect_equal("the word", &out.download_blocking(&stream)?, &[word])?;
    }
    slow_store(stream.as_ref(), &out, 0)?;
    expect_equal("the word", &out.download_blocking(&stream)?, &[0])
}

fn attributes(gpu: &Gpu) -> Outcome {
    let word = gpu.load_ptx(PTX)?.kernel("add_word")?;
    let small = word.attributes();
    expect_equal("local and static shared bytes", &(small.local_bytes, small.static_shared_bytes), &(0, 0))?;
    expect_equal("threads", &small.max_threads, &1024)?;
    expect_equal("registers", &(1..=32).contains(&small.registers), &true)?;
    let blocks = word.blocks_per_multiprocessor(1024, 0)?;
    expect_equal(&format!("{blocks} blocks of 1024"), &(1..=2).contains(&blocks), &true)?;
    for config in configs().filter(|config| config.head_dim == SHAPE[3]) {
        let kernel = gpu.kernel(config.family, config.name)?;
        let attributes = kernel.attributes();
        expect_equal(&format!("threads of {config}"), &(attributes.max_threads >= config.threads()), &true)?;
        expect_equal(&format!("local bytes of {config}"), &attributes.local_bytes, &0)?;
        let blocks = kernel.blocks_per_multiprocessor(config.threads(), config.smem().total_bytes())?;
        expect_equal(&format!("a block of {config} fits"), &(blocks > 0), &true)?;
    }
    Ok(())
}
