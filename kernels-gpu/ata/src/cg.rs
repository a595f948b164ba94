//! Conjugate gradient: what is done between two products, one thread block a system (see [`layout::cg`]). A step is
//!
//! ```text
//! a = r^T r / p^T q                 (q = A p)
//! x += a p,  r -= a q
//! b = r^T r / (r^T r before)
//! p = r + b p
//! ```
//!
//! 1. It is bound by latency: the vectors of n = 2624 are 10 KiB each. One block a system needs no second kernel for a
//!    sum, and none waits for another block. A grid of several blocks a system would take two launches more an
//!    iteration.
//! 2. A thread keeps the first group of each vector in registers: up to n = 4096 each vector is read once.
//! 3. Sums are f64: squares of f32 neither overflow nor vanish in it, and the scalars of the method have no error of
//!    their own. Lanes, then warps, are added in a fixed order. No atomics, and the same bits in every run.
//! 4. A system that has converged or broken down is left as it is, and its block ends at once: systems stop one by one
//!    without the host.

use cuda_std::shared;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use cuda_std::{global, kernel, thread};
use layout::ata::AtaStrides;
use layout::cg::{CG, CgArgs, CgStage, CgState, CgStatus, GROUP, STATE_WORDS, row_index};

use crate::work::{div_rem, lane, warp};

/// Declares the entry of one row. `entry!(NAME: body);` becomes
///
/// ```ignore
/// #[kernel(max_threads = ROW.threads())]
/// pub(crate) unsafe fn NAME(args: CgArgs) { body::<{ row_index("NAME") }>(&args) }
/// ```
///
/// A name that no row has does not compile.
macro_rules! entry {
    ($name:ident: $body:ident) => {
        /// Kernel of the solver, of the row of this name.
        ///
        /// # Safety
        /// The grid has one block a system, block and dynamic shared memory are the row's, and `args` describes the
        /// vectors.
        #[kernel(max_threads = CG[row_index(stringify!($name))].threads(), min_blocks = 1)]
        pub(crate) unsafe fn $name(args: CgArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { $body::<{ row_index(stringify!($name)) }>(&args) }
        }
    };
}

entry!(cg_start: start);
entry!(cg_step: step);
entry!(cg_finish: finish);

type Group = [f32; GROUP];

const ZEROS: Group = [0.0; GROUP];

/// The system of the block: where its vectors are.
struct System<const ROW: usize> {
    x: *mut f32,
    r: *mut f32,
    p: *mut f32,
    q: *const f32,
    state: *mut u32,
    frame: u32,
    channel: u32,
    groups: u32,
}

impl<const ROW: usize> System<ROW> {
    #[inline(always)]
    fn of_block(args: &CgArgs) -> Self {
        let system = thread::block_idx_x();
        let (frame, channel) = div_rem(system, args.channels);
        let row = system as usize * args.row_elems as usize;
        Self {
            x: (args.x as *mut f32).wrapping_add(row),
            r: (args.r as *mut f32).wrapping_add(row),
            p: (args.p as *mut f32).wrapping_add(row),
            q: (args.q as *const f32).wrapping_add(row),
            state: (args.states as *mut u32).wrapping_add(system as usize * STATE_WORDS),
            frame,
            channel,
            groups: args.row_elems / GROUP as u32,
        }
    }

    /// The system's row of a tensor of the caller's.
    #[inline(always)]
    fn row_of(&self, tensor: u64, strides: AtaStrides) -> *mut f32 {
        let [frame, channel] = [self.frame as isize, self.channel as isize];
        (tensor as *mut f32).wrapping_offset(frame * strides.frame as isize + channel * strides.channel as isize)
    }

    /// The state at the start of the kernel, the same for every thread.
    ///
    /// # Safety
    /// No thread of the block has stored it.
    #[inline(always)]
    unsafe fn state(&self) -> CgState {
        // SAFETY: the words are those of the system, on a 32-byte boundary.
        let [low, high] = unsafe {
            [global::load(self.state.cast::<[u32; 4]>()), global::load(self.state.cast::<[u32; 4]>().add(1))]
        };
        CgState::decode([low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3]])
    }

    /// Stores the state, by one thread of the block.
    ///
    /// # Safety
    /// Every thread has loaded the state, and has met the others since.
    #[inline(always)]
    unsafe fn set_state(&self, state: CgState) {
        if thread::thread_idx_x() == 0 {
            let [a, b, c, d, e, f, g, h] = state.encode();
            // SAFETY: the words are those of the system, on a 32-byte boundary; no other thread touches them now.
            unsafe {
                global::store(self.state.cast::<[u32; 4]>(), [a, b, c, d]);
                global::store(self.state.cast::<[u32; 4]>().add(1), [e, f, g, h]);
            }
        }
    }
}

/// The groups of this thread but for the first `skipped`, in order.
#[inline(always)]
fn each_group<const ROW: usize>(groups: u32, skipped: u32, mut body: impl FnMut(u32)) {
    let mut group = thread::thread_idx_x() + skipped * const { CG[ROW].threads() };
    while group < groups {
        body(group);
        group += const { CG[ROW].threads() };
    }
}

/// # Safety
/// The group is one of a row of the solver's vectors.
#[inline(always)]
unsafe fn load(row: *const f32, group: u32) -> Group {
    // SAFETY: as required of the caller; rows start on 16-byte boundaries.
    unsafe { global::load(row.cast::<[u32; GROUP]>().wrapping_add(group as usize)) }.map(f32::from_bits)
}

/// # Safety
/// As [`load`], and the group is this thread's.
#[inline(always)]
unsafe fn store(row: *mut f32, group: u32, value: Group) {
    // SAFETY: as required of the caller.
    unsafe { global::store(row.cast::<[u32; GROUP]>().wrapping_add(group as usize), value.map(f32::to_bits)) }
}

/// `sum + a^T b`; the products are exact.
#[inline(always)]
fn add_dot(mut sum: f64, a: Group, b: Group) -> f64 {
    for i in 0..GROUP {
        sum += f64::from(a[i]) * f64::from(b[i]);
    }
    sum
}

/// `y + a x`.
#[inline(always)]
fn along(y: Group, a: f32, x: Group) -> Group {
    let mut result = y;
    for i in 0..GROUP {
        result[i] = cuda_std::convert::fma(a, x[i], y[i]);
    }
    result
}

/// The sum over the warp, with the same bits in every lane.
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
unsafe fn warp_sum(mut value: f64) -> f64 {
    for lanes in [16, 8, 4, 2, 1] {
        let bits = value.to_bits();
        // SAFETY: as required of the caller; the full mask names all lanes.
        let [(low, _), (high, _)] =
            unsafe { [bits as u32, (bits >> 32) as u32].map(|word| warp_shuffle_xor(FULL_MASK, word, lanes, 32)) };
        value += f64::from_bits(u64::from(high) << 32 | u64::from(low));
    }
    value
}

/// The sum over the block, with the same bits in every thread. `stage` is 0 or 1, another one for each sum of a kernel.
///
/// # Safety
/// All threads of the block execute this call together.
#[inline(always)]
unsafe fn block_sum<const ROW: usize>(stage: u32, value: f64) -> f64 {
    let sums = const { CG[ROW].sums() };
    let first = shared::dynamic().offset(sums.stage_offset(stage));
    let of_warp = |warp: u32| first.offset(warp * size_of::<f64>() as u32);
    // SAFETY: all lanes of every warp are here; each warp stores its own sum, and the barrier orders the stores before
    // the loads.
    unsafe {
        let bits = warp_sum(value).to_bits();
        if lane() == 0 {
            of_warp(warp()).store([bits as u32, (bits >> 32) as u32]);
        }
        thread::sync_threads();
        let [low, high] = if lane() < const { CG[ROW].warps as u32 } { of_warp(lane()).load() } else { [0u32; 2] };
        warp_sum(f64::from_bits(u64::from(high) << 32 | u64::from(low)))
    }
}

/// The status of a system with this square of the residual.
#[inline(always)]
fn status(residual: f64, norm: f64, tolerance: f64) -> CgStatus {
    if !(residual + norm).is_finite() {
        CgStatus::NotFinite
    } else if residual <= tolerance * tolerance * norm {
        CgStatus::Converged
    } else {
        CgStatus::Active
    }
}

/// # Safety
/// The launch is that of row `ROW`, and `args` describes the vectors; q is A times the guess where there is one.
#[inline(always)]
unsafe fn start<const ROW: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ROW].stage, CgStage::Start)) };
    let system = System::<ROW>::of_block(args);
    let b = system.row_of(args.b, args.b_strides);
    let guess = system.row_of(args.guess, args.guess_strides);
    let (mut norm, mut residual) = (0f64, 0f64);
    each_group::<ROW>(system.groups, 0, |group| {
        let (mut x, mut right, mut r) = (ZEROS, ZEROS, ZEROS);
        for i in 0..GROUP {
            let element = group * GROUP as u32 + i as u32;
            if element < args.n {
                // SAFETY: the element is inside b and the guess.
                unsafe {
                    right[i] = global::load(b.wrapping_add(element as usize));
                    r[i] = right[i];
                    if args.guess != 0 {
                        x[i] = global::load(guess.wrapping_add(element as usize));
                        r[i] -= global::load(system.q.wrapping_add(element as usize));
                    }
                }
            }
        }
        norm = add_dot(norm, right, right);
        residual = add_dot(residual, r, r);
        // SAFETY: the group is this thread's.
        unsafe {
            store(system.x, group, x);
            store(system.r, group, r);
            store(system.p, group, r);
        }
    });
    // SAFETY: all threads of the block are here.
    let (norm, mut residual) = unsafe { (block_sum::<ROW>(0, norm), block_sum::<ROW>(1, residual)) };
    if norm == 0.0 {
        // The solution is 0, whatever the guess.
        // SAFETY: the groups are this thread's.
        each_group::<ROW>(system.groups, 0, |group| unsafe { store(system.x, group, ZEROS) });
        residual = 0.0;
    }
    let status = status(residual, norm, args.tolerance);
    // SAFETY: no thread loads the state.
    unsafe { system.set_state(CgState { status, iterations: 0, residual, norm, curvature: 0.0 }) }
}

/// # Safety
/// The launch is that of row `ROW`, and `args` describes the vectors; q is A times p.
#[inline(always)]
unsafe fn step<const ROW: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ROW].stage, CgStage::Step)) };
    let system = System::<ROW>::of_block(args);
    // SAFETY: nothing was stored yet.
    let mut state = unsafe { system.state() };
    if state.status != CgStatus::Active || state.iterations >= args.max_iterations {
        return;
    }
    let first = thread::thread_idx_x();
    let has_first = first < system.groups;
    let (mut p, mut q, mut x, mut r) = (ZEROS, ZEROS, ZEROS, ZEROS);
    if has_first {
        // SAFETY: the group is inside the rows; so too in the loops below.
        unsafe {
            p = load(system.p, first);
            q = load(system.q, first);
            x = load(system.x, first);
            r = load(system.r, first);
        }
    }

    let mut curvature = add_dot(0.0, p, q);
    each_group::<ROW>(system.groups, 1, |group| {
        // SAFETY: see above.
        curvature = unsafe { add_dot(curvature, load(system.p, group), load(system.q, group)) };
    });
    // SAFETY: all threads of the block are here.
    let curvature = unsafe { block_sum::<ROW>(0, curvature) };
    // A NaN is not above 0 either.
    let is_positive = curvature > 0.0;
    if !(is_positive && curvature.is_finite()) {
        state.status = if curvature.is_finite() { CgStatus::NotPositiveDefinite } else { CgStatus::NotFinite };
        state.curvature = curvature;
        // SAFETY: every thread has loaded the state before the sum.
        unsafe { system.set_state(state) };
        return;
    }

    let step = (state.residual / curvature) as f32;
    x = along(x, step, p);
    r = along(r, -step, q);
    let mut residual = add_dot(0.0, r, r);
    if has_first {
        // SAFETY: the group is this thread's; so too in the loops below.
        unsafe {
            store(system.x, first, x);
            store(system.r, first, r);
        }
    }
    each_group::<ROW>(system.groups, 1, |group| {
        // SAFETY: see above.
        unsafe {
            store(system.x, group, along(load(system.x, group), step, load(system.p, group)));
            let r = along(load(system.r, group), -step, load(system.q, group));
            store(system.r, group, r);
            residual = add_dot(residual, r, r);
        }
    });
    // SAFETY: all threads of the block are here.
    let residual = unsafe { block_sum::<ROW>(1, residual) };

    let turn = (residual / state.residual) as f32;
    if has_first {
        // SAFETY: see above.
        unsafe { store(system.p, first, along(r, turn, p)) };
    }
    each_group::<ROW>(system.groups, 1, |group| {
        // SAFETY: see above.
        unsafe { store(system.p, group, along(load(system.r, group), turn, load(system.p, group))) };
    });
    state.status = status(residual, state.norm, args.tolerance);
    state.iterations += 1;
    state.residual = residual;
    // SAFETY: every thread has loaded the state before the sums.
    unsafe { system.set_state(state) };
}

/// # Safety
/// The launch is that of row `ROW`, and `args` describes the vectors; q is A times x.
#[inline(always)]
unsafe fn finish<const ROW: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ROW].stage, CgStage::Finish)) };
    let system = System::<ROW>::of_block(args);
    // SAFETY: nothing was stored yet.
    let state = unsafe { system.state() };
    let b = system.row_of(args.b, args.b_strides);
    let out = system.row_of(args.out, args.out_strides);
    let mut residual = 0f64;
    let mut element = thread::thread_idx_x();
    while element < args.n {
        let index = element as usize;
        // SAFETY: the element is inside every vector, and no other thread's.
        unsafe {
            let [b, q] = [b.cast_const(), system.q].map(|row| f64::from(global::load(row.wrapping_add(index))));
            residual += (b - q) * (b - q);
            global::store(out.wrapping_add(index), global::load(system.x.wrapping_add(index)));
        }
        element += const { CG[ROW].threads() };
    }
    // SAFETY: all threads of the block are here, and have loaded the state.
    unsafe {
        let residual = block_sum::<ROW>(0, residual);
        system.set_state(CgState { residual, ..state });
    }
}
