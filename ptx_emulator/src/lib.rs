//! Runs PTX on the CPU, warp by warp, and reports what a GPU hides.
//!
//! ```
//! use layout::Arch;
//! use ptx_emulator::{Device, LaunchShape, Module};
//!
//! let module = Module::parse(
//!     ".version 7.0 .target sm_80 .address_size 64
//!     .visible .entry square(.param .u64 data) {
//!         .reg .b32 %r<3>; .reg .b64 %rd<4>;
//!         ld.param.b64 %rd1, [data];
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd2, %r1, 4;
//!         add.s64 %rd3, %rd1, %rd2;
//!         mul.lo.s32 %r2, %r1, %r1;
//!         st.global.b32 [%rd3], %r2;
//!         ret;
//!     }",
//! )?;
//! let device = Device::new(Arch::Sm80);
//! let data = device.allocate(4 * 64)?;
//! let shape = LaunchShape { block: [64, 1, 1], ..LaunchShape::default() };
//! module.launch(&device, "square", shape, &[&data.to_le_bytes()])?;
//! let mut last = [0; 4];
//! device.read(data + 4 * 63, &mut last)?;
//! assert_eq!(u32::from_le_bytes(last), 63 * 63);
//! # Ok::<(), ptx_emulator::Error>(())
//! ```
//!
//! # What is modelled
//!
//! Warps of 32 lanes whose lanes part at branches and meet at the immediate post-dominator, or go on alone where others
//! spin on what they do; blocks, or the blocks of a cluster, whose warps take turns; global, shared, local and
//! parameter memory with bounds, alignment and a record of what was written; barriers of clusters, blocks and warps,
//! `mbarrier` phases with their bytes; `cp.async` groups, bulk copies and `st.async` whose bytes arrive when they are
//! waited for; [tensor maps](tensor_map); tensor-core products in the precision that [`tensor_core`] describes, that of
//! Hopper bit by bit; [approximate functions](approximate), bit by bit those of Hopper; the registers that `setmaxnreg`
//! moves.
//!
//! Not modelled: time and caches; weak memory orders, beyond the checks (accesses take effect one after another, in an
//! order that does not depend on the CPU); generic writes to global memory that a bulk copy of another block reads, for
//! which no proxy fence is asked.
//!
//! # What is covered
//!
//! Integer, bit, f16, bf16, f32 and f64 arithmetic, f32 and f64 in every direction of rounding; carries, dot products
//! of bytes; approximate functions; comparisons and selections; conversions, FP8 among them; loads and stores of all
//! memories, vectors and generic addresses, policies of the caches; atomics on words, pairs of 16-bit floats, and
//! `atom.cas.b16`; `cp.async`; `bar`, `bar.red`, `bar.warp`, `barrier.cluster`, `mbarrier`, `mapa`, `st.async`;
//! shuffles, votes, `redux`, `match`, `elect`; `ldmatrix`, `stmatrix`, `wmma` in f16 and bf16, `mma` in f16, bf16,
//! tf32, FP8 and bytes, `wgmma` in the types of floats; bulk copies of lines and of tiles of tensors, multicast and
//! reductions among them; `setmaxnreg`; fences.
//!
//! Functions with parameters and results in registers or `.param` space, which may call themselves as long as the
//! stack has room ([`Error::StackOverflow`]); `vprintf`, whose text [`Device::take_printed`] gives; `__assertfail`.
//! Variables of the module in global and constant memory, with their initial values
//! ([`Module::variable`]).
//!
//! Whatever is not covered is an error of [`Module::parse`] that names it, but for functions that no kernel reaches,
//! which are not read:
//!
//! | not covered | examples |
//! | --- | --- |
//! | calls through pointers, functions of the driver but for two | `call %rd1, ..`, `.callprototype`, `malloc`, `cudaLaunchDeviceV2` |
//! | what other modules define | `.extern .global`, `.extern .const` |
//! | textures and surfaces | `tex`, `suld`, `.texref` |
//! | other products of tensor cores | `mma.sp`, `mma` in s4, b1, f64, f16 sums and m16n8k4/8 of halves, `wmma` in integers, `wgmma` in integers, `tcgen05` |
//! | other atomics | `.b128`, vectors, f16 without `.noftz`, `multimem` |
//! | video instructions, 24-bit products | `vadd4`, `vabsdiff`, `mul24` |
//! | comparisons to a number | `set`, `slct` |
//! | barriers and votes of lanes that are not together | `barrier.sync` without `.aligned`, `vote` without `.sync` |
//! | other copies | `im2col`, `cp.async.mbarrier`, `tensormap.replace` |
//!
//! Texts are read as `ptxas` reads them: directives without spaces between them, constant expressions, vectors of
//! registers, modifiers and comments apart. A text must begin with its `.version` and `.target`, may use what these
//! have and no more ([`Error::NotInTarget`]), and runs where a driver would load it ([`Error::Device`]): `sm_80` on
//! every later device, `sm_90a` on Hopper alone.
//!
//! # What is checked
//!
//! Bounds, alignment, reads of what nothing wrote; races on shared memory between the threads of a block, by
//! [`shadow`]'s clocks, unfinished copies among them; races on global memory, between the threads of a block and
//! between blocks; barriers that a part of a warp reaches, or that others use with another count; too many arrivals or
//! bytes at an `mbarrier`; deadlocks, with what each warp waits for; threads that look for what no thread brings about.
//! A loop without an end shows at the limit of [`Device::with_instruction_limit`]. Lanes of one instruction that store
//! one value to one address are no race; of different values one stays, and which is not defined: that is one.
//!
//! Of the asynchronous units: generic writes to shared memory, and within a block to global memory, that a copy or a
//! product reads without a proxy fence, an `mbarrier` that is not made visible to copies; bytes that are used before
//! the copy was waited for, sources that are overwritten before, blocks that exit before; registers of a `wgmma` that
//! are used before its wait or not fenced before its start; products that the warps of a warpgroup do not execute
//! alike; tensor maps, boxes and coordinates that the hardware does not take.
//!
//! # What is counted
//!
//! [`Module::count`] gives [`counters`] of every instruction: executions, lanes, sectors of global memory, wavefronts
//! and bank conflicts of shared memory, operations of tensor cores.
//!
//! An error says which kernel, block, warp and lane, which line of the PTX and of the Rust code it comes from.

mod allocate;
mod cluster;
mod control;
mod conversion;
pub mod counters;
mod decode;
mod error;
mod execute;
mod fences;
mod front;
mod grid;
mod in_flight;
mod launch;
mod operands;
mod operation;
mod paths;
mod program;
mod progress;
mod registers;
mod report;
mod requirement;
mod target;
mod variables;
mod warp;
mod windows;

pub mod approximate;
pub mod float;
pub mod memory;
pub mod shadow;
pub mod tensor_core;
pub mod tensor_map;

pub use counters::Counters;
pub use error::{Error, Place, Result, RustPlace, Thread};
pub use launch::{Device, KernelFacts, LaunchShape, Module};
pub use report::{Class, Report};
pub use target::{ParseTargetError, ParseVersionError, Target, Version};
pub use tensor_core::wgmma::Fp8Sums;
