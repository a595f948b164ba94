//! Two kernels in PTX written by hand, as a caller of `Gpu::load_ptx` has it: they make work that takes a known time,
//! and work that does not give the same result when it is done twice.

use std::sync::OnceLock;

use ferrotile::{Buffer, Gpu, Kernel, LaunchConfig, Module, StreamRef};
use libtest_mimic::Failed;

/// `slow_store(out, word, nanoseconds)` waits and stores the word; `add_word(out, word)` adds it to what is there.
pub(crate) const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64

.visible .entry slow_store(.param .u64 out, .param .u32 word, .param .u64 nanoseconds)
{
    .reg .pred %waiting;
    .reg .b32 %word;
    .reg .b64 %out, %end, %now;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u32 %word, [word];
    ld.param.u64 %end, [nanoseconds];
    mov.u64 %now, %globaltimer;
    add.u64 %end, %end, %now;
wait:
    mov.u64 %now, %globaltimer;
    setp.lt.u64 %waiting, %now, %end;
    @%waiting bra wait;
    st.global.u32 [%out], %word;
    ret;
}

.visible .entry add_word(.param .u64 out, .param .u32 word)
{
    .reg .b32 %word, %sum;
    .reg .b64 %out;
    ld.param.u64 %out, [out];
    cvta.to.global.u64 %out, %out;
    ld.param.u32 %word, [word];
    ld.global.u32 %sum, [%out];
    add.u32 %sum, %sum, %word;
    st.global.u32 [%out], %sum;
    ret;
}
";

/// How long a slow store takes: long for a card and a host, short for a person.
pub(crate) const SLOW_MS: u64 = 20;

/// A kernel of [`PTX`], from one module for all trials.
pub(crate) fn kernel(gpu: &Gpu, name: &str) -> Result<Kernel, Failed> {
    static MODULE: OnceLock<Result<Module, String>> = OnceLock::new();
    let module = MODULE.get_or_init(|| gpu.load_ptx(PTX).map_err(|error| error.to_string()));
    Ok(module.clone()?.kernel(name)?)
}

/// Enqueues a store of `word` to the first word of `out`, which takes [`SLOW_MS`].
pub(crate) fn slow_store(stream: StreamRef<'_>, out: &Buffer<u32>, word: u32) -> Result<(), Failed> {
    let kernel = kernel(stream.gpu(), "slow_store")?;
    let nanoseconds = SLOW_MS * 1_000_000;
    // SAFETY: these are the kernel's parameters; the buffer has a word, and freeing it waits for the store.
    Ok(unsafe { kernel.launch(stream, &LaunchConfig::default(), &[&out.as_raw(), &word, &nanoseconds]) }?)
}

/// Enqueues an addition of `word` to the first word of `out`, by a kernel `add_word` that is loaded.
pub(crate) fn add_word(kernel: &Kernel, stream: StreamRef<'_>, out: &Buffer<u32>, word: u32) -> ferrotile::Result<()> {
    // SAFETY: these are the kernel's parameters; the buffer has a word, and freeing it waits for the addition.
    unsafe { kernel.launch(stream, &LaunchConfig::default(), &[&out.as_raw(), &word]) }
}
