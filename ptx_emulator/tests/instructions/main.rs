//! What each class of instructions computes, in PTX written by hand.

mod barrier;
mod bulk;
mod cluster;
mod constant;
mod convert;
mod copy;
mod counters;
mod fault;
mod float;
mod function;
mod general;
mod header;
mod integer;
mod matrix;
mod memory;
mod one_address;
mod path;
mod refusal;
mod spelling;
mod spin;
mod warp;
mod wgmma;

use layout::Arch;
use ptx_emulator::{Device, Error, LaunchShape, Module, Result};

/// A module with one kernel `k` of one parameter, `[out]`, in which `%rd9` is its value, `%r9` is `%tid.x` and `%rd8`
/// the address of the thread's own word of the output.
fn kernel(declarations: &str, body: &str) -> String {
    format!(
        ".version 8.4\n.target sm_90a\n.address_size 64\n{declarations}\n.visible .entry k(.param .u64 out)\n{{\n\
        .reg .pred %p<8>;\n.reg .b16 %h<8>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<10>;\n\
        ld.param.b64 %rd9, [out];\nmov.u32 %r9, %tid.x;\nmul.wide.u32 %rd8, %r9, 4;\nadd.s64 %rd8, %rd8, %rd9;\n\
        {body}\nret;\n}}\n"
    )
}

/// Launches kernel `k` of one block and returns the words of its output, which hold `u32::MAX` before.
fn launch(ptx: &str, threads: u32, shared_bytes: u32, words: usize) -> Result<Vec<u32>> {
    let module = Module::parse(ptx)?;
    let device = Device::new(Arch::Sm90a);
    let out = device.allocate(4 * words as u64)?;
    device.write(out, &vec![0xFF; 4 * words])?;
    let shape = LaunchShape { block: [threads, 1, 1], shared_bytes, ..LaunchShape::default() };
    module.launch(&device, "k", shape, &[&out.to_le_bytes()])?;
    let mut bytes = vec![0; 4 * words];
    device.read(out, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word)).collect())
}

/// One word of every thread: the body leaves it in `%r0`.
fn per_thread(body: &str, threads: u32) -> Vec<u32> {
    let ptx = kernel("", &format!("{body}\nst.global.b32 [%rd8], %r0;"));
    launch(&ptx, threads, 0, threads as usize).unwrap_or_else(|error| panic!("{body}\n{error}"))
}

/// Evaluates an instruction on constants: `%r1`, `%r2`, `%r3` hold them, `%r0` the result.
fn words(body: &str, a: u32, b: u32, c: u32) -> u32 {
    per_thread(&format!("mov.b32 %r1, {a};\nmov.b32 %r2, {b};\nmov.b32 %r3, {c};\n{body}"), 1)[0]
}

/// As [`words`], in `%rd1`, `%rd2`, `%rd3` and `%rd0`.
fn doubles(body: &str, a: u64, b: u64, c: u64) -> u64 {
    let ptx = kernel(
        "",
        &format!("mov.b64 %rd1, {a};\nmov.b64 %rd2, {b};\nmov.b64 %rd3, {c};\n{body}\nst.global.b64 [%rd9], %rd0;"),
    );
    let words = launch(&ptx, 1, 0, 2).unwrap_or_else(|error| panic!("{body}\n{error}"));
    u64::from(words[1]) << 32 | u64::from(words[0])
}

/// What the kernel with this body does wrong in a block of 64 threads with 1024 bytes of dynamic shared memory,
/// `dynamic`.
fn fault(body: &str) -> Error {
    let ptx = kernel(".extern .shared .align 16 .b8 dynamic[];", body);
    launch(&ptx, 64, 1024, 64).expect_err("the kernel is wrong")
}
