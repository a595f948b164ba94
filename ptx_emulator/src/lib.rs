#![doc = include_str!("../README.md")]
//!
//! # What is modelled
//!
//! - **Control flow.** A warp has 32 lanes. They diverge at branches and meet again at the immediate post-dominator.
//!   Where a lane spins on something that other lanes of its warp must do, those go on alone.
//! - **Blocks and clusters.** The warps of a block, or of the blocks of a cluster, take turns.
//! - **Memory.** Global, shared, local and parameter memory have bounds and alignment, and remember what was written.
//! - **Barriers** of clusters, blocks and warps, and the phases of an `mbarrier` with their bytes.
//! - **Asynchronous copies.** The bytes of `cp.async` groups, bulk copies and `st.async` arrive when somebody waits for
//!   them. Bulk copies of tensors have [tensor maps](tensor_map).
//! - **Numbers.** [`tensor_core`] says how exact tensor-core products are: those of Hopper, bit by bit.
//!   [Approximate functions](approximate) are those of Hopper, bit by bit, too.
//! - **Registers** that `setmaxnreg` moves.
//!
//! Not modelled are time and caches. Accesses take effect one after another, in an order that does not depend on the
//! CPU, so weak memory orders show in the checks alone. No proxy fence is asked for between a generic write to global
//! memory and a bulk copy of another block that reads it.
//!
//! # What is covered
//!
//! | instructions | which |
//! | --- | --- |
//! | arithmetic | integers, bits, f16, bf16, f32, f64; every rounding direction of f32 and f64; carries; dot products of bytes; approximate functions |
//! | comparisons, selections, conversions | all of these types, and FP8 |
//! | loads and stores | every memory, vectors, generic addresses, cache policies |
//! | atomics | words, pairs of 16-bit floats, `atom.cas.b16` |
//! | barriers | `bar`, `bar.red`, `bar.warp`, `barrier.cluster`, `mbarrier`, fences |
//! | lanes together | shuffles, votes, `redux`, `match`, `elect` |
//! | matrices | `ldmatrix`, `stmatrix`; `wmma` in f16 and bf16; `mma` in f16, bf16, tf32, FP8 and bytes; `wgmma` in floats |
//! | copies | `cp.async`; bulk copies of lines and of tiles of tensors, with multicast and reductions; `st.async`, `mapa` |
//! | other | `setmaxnreg` |
//!
//! Functions have parameters and results in registers or `.param` space. They may call themselves as long as the stack
//! has room ([`Error::StackOverflow`]). [`Device::take_printed`] gives the text of `vprintf`, and `__assertfail` is an
//! error. Variables of the module are in global and constant memory, with their initial values ([`Module::variable`]).
//!
//! [`Module::parse`] refuses a text with anything else, and names it. Only functions that no kernel reaches are not
//! read. Not covered are:
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
//! registers, and comments between an opcode and its modifiers. A text must begin with its `.version` and `.target`,
//! and may use nothing that these lack ([`Error::NotInTarget`]). It runs where a driver would load it
//! ([`Error::Device`]): `sm_80` on every later device, `sm_90a` on Hopper alone.
//!
//! # What is checked
//!
//! - **Accesses:** bounds, alignment, reads of what nothing wrote.
//! - **Races on shared memory** between the threads of a block, by [`shadow`]'s clocks; unfinished copies take part.
//! - **Races on global memory**, between the threads of a block and between blocks.
//! - **Stores of one instruction.** Lanes that store one value to one address are no race. Lanes that store different
//!   values are, as PTX does not say which value stays.
//! - **Barriers** that only a part of a warp reaches, or that others use with another count; too many arrivals or bytes
//!   at an `mbarrier`.
//! - **Deadlocks**, with what each warp waits for; threads that look for what no thread brings about. A loop without an
//!   end shows at the limit of [`Device::with_instruction_limit`].
//! - **Proxy fences.** A copy or a product must not read generic writes to shared memory, or of the same block to
//!   global memory, without one. An `mbarrier` must be made visible to copies.
//! - **Asynchronous copies.** Bytes are used only after a wait, a source is overwritten only after it, and a block
//!   exits only after it.
//! - **`wgmma`.** Registers are fenced before a product starts and used only after the wait; all warps of a warpgroup
//!   execute the same products.
//! - **Tensor maps,** boxes and coordinates that the hardware does not take.
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
mod copies;
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
mod shape;
mod slots;
mod target;
mod turn;
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
pub use error::{Error, PtxLine, Result, RustLine, Thread};
pub use launch::{Device, KernelFacts, Module};
pub use report::{Class, Report};
pub use shape::LaunchShape;
pub use target::{ParseTargetError, ParseVersionError, Target, Version};
pub use tensor_core::wgmma::Fp8Sums;
