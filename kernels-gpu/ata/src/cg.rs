//! Conjugate gradient: what is done between two products, one thread block a system (see [`variants::cg`]). A step is
//!
//! ```text
//! a = r^T z / p^T q                 (q = A p; z = M r, or r without a preconditioner M)
//! x += a p,  r -= a q,  z = M r
//! b = r^T z / (r^T z before)
//! p = z + b p                       (not where the system waits for its true residual)
//! ```
//!
//! and where it has waited, with q = A x in f32,
//!
//! ```text
//! r = c - q                         (c: the right-hand side)
//! p = z + b p                       where r is about what it was, else p = z
//! ```
//!
//! 1. The kernel is bound by latency: the vectors of n = 2624 are 10 KiB each. With one block a system no sum needs a
//!    second kernel, and no block waits for another. Several blocks a system would take two launches more an iteration.
//! 2. A thread keeps the first group of each vector in registers: up to n = 4096 each vector is read once.
//! 3. Sums are f64: squares of f32 neither overflow nor vanish in it, and the scalars of the method have no error of
//!    their own. Lanes, then warps, are added in a fixed order. No atomics, and the same bits in every run.
//! 4. A system that waits, has converged or has broken down is left as it is, and its block ends at once. So systems
//!    stop one by one, without the host.
//! 5. M is the inverse of each 16x16 block of the main diagonal. The four lanes that have a block's part of r give it
//!    to each other, so z needs no barrier; it is computed again rather than stored.

use cuda_std::convert::{fma, rcp};
use cuda_std::shared;
use cuda_std::warp::{FULL_MASK, warp_shuffle_xor};
use cuda_std::{global, kernel, thread};
use variants::ata::{AtaStrides, BLOCK};
use variants::cg::{
    CG, CgArgs, CgStage, CgState, CgStatus, GROUP, JUDGED, PARTED, PROGRESS, STATE_WORDS, config_index,
};

use crate::work::{LANES, div_rem, lane, warp};

/// Declares the entry of one configuration. `entry!(NAME: body);` becomes
///
/// ```ignore
/// #[kernel(max_threads = CONFIG.threads())]
/// pub(crate) unsafe fn NAME(args: CgArgs) { body::<{ config_index("NAME") }>(&args) }
/// ```
///
/// A name that no configuration has does not compile.
macro_rules! entry {
    ($name:ident: $body:ident) => {
        /// Kernel of the solver, of the configuration of this name.
        ///
        /// # Safety
        /// The grid has one block a system, block and dynamic shared memory are the configuration's, and `args`
        /// describes the vectors.
        #[kernel(max_threads = CG[config_index(stringify!($name))].threads(), min_blocks = 1)]
        pub(crate) unsafe fn $name(args: CgArgs) {
            // SAFETY: the caller's contract is the body's.
            unsafe { $body::<{ config_index(stringify!($name)) }>(&args) }
        }
    };
}

entry!(cg_start: start);
entry!(cg_start_block_jacobi: start);
entry!(cg_step: step);
entry!(cg_step_block_jacobi: step);
entry!(cg_replace: replace);
entry!(cg_replace_block_jacobi: replace);
entry!(cg_finish: finish);

type Group = [f32; GROUP];

const ZEROS: Group = [0.0; GROUP];

/// Lanes that have the elements of a block of A.
const QUAD: u32 = (BLOCK / GROUP) as u32;

/// The system of the block: where its vectors are.
struct System<const ID: usize> {
    x: *mut f32,
    r: *mut f32,
    p: *mut f32,
    q: *mut f32,
    inverses: *const f32,
    state: *mut u32,
    frame: u32,
    channel: u32,
    groups: u32,
}

impl<const ID: usize> System<ID> {
    #[inline(always)]
    fn of_block(args: &CgArgs) -> Self {
        let system = thread::block_idx_x();
        let (frame, channel) = div_rem(system, args.channels);
        let row = system as usize * args.row_elems as usize;
        let inverses = channel as usize * args.row_elems as usize * BLOCK;
        Self {
            x: (args.x as *mut f32).wrapping_add(row),
            r: (args.r as *mut f32).wrapping_add(row),
            p: (args.p as *mut f32).wrapping_add(row),
            q: (args.q as *mut f32).wrapping_add(row),
            inverses: (args.inverses as *const f32).wrapping_add(inverses),
            state: (args.states as *mut u32).wrapping_add(system as usize * STATE_WORDS),
            frame,
            channel,
            groups: args.row_elems / GROUP as u32,
        }
    }

    /// A group of a row of the solver's vectors; zeros beyond it.
    ///
    /// # Safety
    /// The row is one of the system's.
    #[inline(always)]
    unsafe fn load(&self, row: *const f32, group: u32) -> Group {
        if group >= self.groups {
            return ZEROS;
        }
        // SAFETY: the group is inside the row; rows start on 16-byte boundaries.
        unsafe { global::load(row.cast::<[u32; GROUP]>().wrapping_add(group as usize)) }.map(f32::from_bits)
    }

    /// Stores a group of a row; nothing beyond it.
    ///
    /// # Safety
    /// As [`System::load`], and the group is this thread's.
    #[inline(always)]
    unsafe fn store(&self, row: *mut f32, group: u32, value: Group) {
        if group < self.groups {
            // SAFETY: as required of the caller.
            unsafe { global::store(row.cast::<[u32; GROUP]>().wrapping_add(group as usize), value.map(f32::to_bits)) }
        }
    }

    /// A group of a row of a tensor of the caller's; zeros beyond n.
    ///
    /// # Safety
    /// The row is [`System::row_of`] of a tensor, whose elements this kernel does not write.
    #[inline(always)]
    unsafe fn load_tensor(&self, row: *const f32, group: u32, n: u32) -> Group {
        let mut value = ZEROS;
        for i in 0..GROUP {
            let element = group * GROUP as u32 + i as u32;
            if element < n {
                // SAFETY: the element is inside the tensor.
                value[i] = unsafe { global::load(row.wrapping_add(element as usize)) };
            }
        }
        value
    }

    /// z of a group: r itself, or the inverse of the group's block times the block's part of r.
    ///
    /// # Safety
    /// All lanes of the warp execute this call together, with groups that follow each other.
    #[inline(always)]
    unsafe fn preconditioned(&self, group: u32, r: Group) -> Group {
        if const { !CG[ID].preconditioned } {
            return r;
        }
        let first = self.inverses.wrapping_add((group / QUAD) as usize * BLOCK * BLOCK).cast::<[u32; GROUP]>();
        let mut z = ZEROS;
        for mask in 0..QUAD {
            let mut of_lane = ZEROS;
            for i in 0..GROUP {
                // SAFETY: as required of the caller.
                (of_lane[i], _) = unsafe { warp_shuffle_xor(FULL_MASK, r[i], mask, LANES) };
            }
            if group < self.groups {
                for i in 0..GROUP {
                    // The block is symmetric: a column of it is a row, of which the quad loads 64 bytes in a line.
                    let row = ((group % QUAD) ^ mask) as usize * GROUP + i;
                    let part = row * QUAD as usize + (group % QUAD) as usize;
                    // SAFETY: every block of the channel has its inverse, on a 16-byte boundary.
                    let column = unsafe { global::load_nc(first.wrapping_add(part)) }.map(f32::from_bits);
                    z = along(z, of_lane[i], column);
                }
            }
        }
        z
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
        let mut words = [0; STATE_WORDS];
        for part in 0..STATE_WORDS / 4 {
            // SAFETY: the words are those of the system, on a 64-byte boundary.
            let four: [u32; 4] = unsafe { global::load(self.state.cast::<[u32; 4]>().add(part)) };
            for i in 0..4 {
                words[4 * part + i] = four[i];
            }
        }
        CgState::decode(words)
    }

    /// Stores the state, by one thread of the block.
    ///
    /// # Safety
    /// Every thread has loaded the state, and has met the others since.
    #[inline(always)]
    unsafe fn set_state(&self, state: CgState) {
        if thread::thread_idx_x() == 0 {
            let words = state.encode();
            for part in 0..STATE_WORDS / 4 {
                let four = [words[4 * part], words[4 * part + 1], words[4 * part + 2], words[4 * part + 3]];
                // SAFETY: the words are those of the system, on a 64-byte boundary; no other thread touches them now.
                unsafe { global::store(self.state.cast::<[u32; 4]>().add(part), four) }
            }
        }
    }
}

/// The groups of this thread but for the first `skipped`, in order. The lanes of a warp take as many rounds: the groups
/// of some may lie beyond the row.
#[inline(always)]
fn each_group<const ID: usize>(groups: u32, skipped: u32, mut body: impl FnMut(u32)) {
    let mut group = thread::thread_idx_x() + skipped * const { CG[ID].threads() };
    while group - lane() < groups {
        body(group);
        group += const { CG[ID].threads() };
    }
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
        result[i] = fma(a, x[i], y[i]);
    }
    result
}

/// `dividend / divisor`, of which the first is not below 0 and the second a normal number above 0, rounded to f32 from
/// 45 bits. A division in f64 is a call, for which registers go to memory, and takes longer.
#[inline(always)]
fn ratio(dividend: f64, divisor: f64) -> f32 {
    const MANTISSA_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    const BIAS: i32 = f64::MAX_EXP - 1;
    let [(a, a_exponent), (b, b_exponent)] = [dividend, divisor].map(|number| {
        let bits = number.to_bits();
        let mantissa = bits & ((1 << MANTISSA_BITS) - 1) | (BIAS as u64) << MANTISSA_BITS;
        (f64::from_bits(mantissa), (bits >> MANTISSA_BITS) as i32)
    });
    // A step of Newton's method doubles the 23 bits of the approximation.
    let inverse = f64::from(rcp(b as f32));
    let inverse = inverse * (2.0 - b * inverse);
    // Beyond what f32 has on either side.
    let exponent = (a_exponent - b_exponent).clamp(-1000, 1000);
    (a * inverse * f64::from_bits(((BIAS + exponent) as u64) << MANTISSA_BITS)) as f32
}

/// The sum over the warp, with the same bits in every lane.
///
/// # Safety
/// All 32 lanes of the warp execute this call together.
#[inline(always)]
unsafe fn warp_sum(mut value: f64) -> f64 {
    let mut lanes = LANES / 2;
    while lanes > 0 {
        let bits = value.to_bits();
        // SAFETY: as required of the caller; the full mask names all lanes.
        let [(low, _), (high, _)] =
            unsafe { [bits as u32, (bits >> 32) as u32].map(|word| warp_shuffle_xor(FULL_MASK, word, lanes, LANES)) };
        value += f64::from_bits(u64::from(high) << 32 | u64::from(low));
        lanes /= 2;
    }
    value
}

/// The sum over the block, with the same bits in every thread. `stage` is another one for each sum of a kernel, from 0.
///
/// # Safety
/// All threads of the block execute this call together.
#[inline(always)]
unsafe fn block_sum<const ID: usize>(stage: u32, value: f64) -> f64 {
    let sums = const { CG[ID].sums() };
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
        let [low, high] = if lane() < const { CG[ID].warps as u32 } { of_warp(lane()).load() } else { [0u32; 2] };
        warp_sum(f64::from_bits(u64::from(high) << 32 | u64::from(low)))
    }
}

/// `r^T z` over the block; the square of the residual without a preconditioner.
///
/// # Safety
/// As for [`block_sum`].
#[inline(always)]
unsafe fn scaled_sum<const ID: usize>(stage: u32, scaled: f64, residual: f64) -> f64 {
    if const { !CG[ID].preconditioned } {
        return residual;
    }
    // SAFETY: as required of the caller.
    unsafe { block_sum::<ID>(stage, scaled) }
}

/// # Safety
/// The launch is that of configuration `ID`, and `args` describes the vectors; q is A times the guess where there is
/// one.
#[inline(always)]
unsafe fn start<const ID: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ID].stage, CgStage::Start)) };
    let system = System::<ID>::of_block(args);
    let b = system.row_of(args.b, args.b_strides);
    let guess = system.row_of(args.guess, args.guess_strides);
    let (mut norm, mut residual, mut scaled) = (0f64, 0f64, 0f64);
    each_group::<ID>(system.groups, 0, |group| {
        // SAFETY: the group is this thread's, and q has zeros beyond n; all lanes of the warp are here.
        unsafe {
            let right = system.load_tensor(b, group, args.n);
            let (mut x, mut r) = (ZEROS, right);
            if args.guess != 0 {
                x = system.load_tensor(guess, group, args.n);
                r = along(right, -1.0, system.load(system.q, group));
            }
            norm = add_dot(norm, right, right);
            residual = add_dot(residual, r, r);
            let z = system.preconditioned(group, r);
            scaled = add_dot(scaled, r, z);
            system.store(system.x, group, x);
            system.store(system.r, group, r);
            system.store(system.p, group, z);
        }
    });
    // SAFETY: all threads of the block are here.
    let (norm, mut residual) = unsafe { (block_sum::<ID>(0, norm), block_sum::<ID>(1, residual)) };
    // SAFETY: see above.
    let scaled = unsafe { scaled_sum::<ID>(2, scaled, residual) };
    if norm == 0.0 {
        // The solution is 0, whatever the guess.
        // SAFETY: the groups are this thread's.
        each_group::<ID>(system.groups, 0, |group| unsafe { system.store(system.x, group, ZEROS) });
        residual = 0.0;
    }
    let status = if !(residual + norm).is_finite() {
        CgStatus::NotFinite
    } else if residual <= args.tolerance * args.tolerance * norm {
        CgStatus::Converged
    } else {
        CgStatus::Active
    };
    let state = CgState { status, residual, norm, scaled, peak: residual, reached: residual, ..CgState::default() };
    // SAFETY: no thread loads the state.
    unsafe { system.set_state(state) }
}

/// # Safety
/// The launch is that of configuration `ID`, and `args` describes the vectors; q is A times p.
#[inline(always)]
unsafe fn step<const ID: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ID].stage, CgStage::Step)) };
    let system = System::<ID>::of_block(args);
    // SAFETY: nothing was stored yet.
    let mut state = unsafe { system.state() };
    if state.status != CgStatus::Active || state.iterations >= args.max_iterations {
        return;
    }
    let first = thread::thread_idx_x();
    // SAFETY: the rows are the system's; so too below.
    let (p, q) = unsafe { (system.load(system.p, first), system.load(system.q, first)) };
    // SAFETY: see above.
    let (mut x, mut r) = unsafe { (system.load(system.x, first), system.load(system.r, first)) };

    let mut curvature = add_dot(0.0, p, q);
    each_group::<ID>(system.groups, 1, |group| {
        // SAFETY: see above.
        curvature = unsafe { add_dot(curvature, system.load(system.p, group), system.load(system.q, group)) };
    });
    // SAFETY: all threads of the block are here.
    let curvature = unsafe { block_sum::<ID>(0, curvature) };
    // A NaN is not above 0 either.
    let is_positive = curvature > 0.0;
    if !(is_positive && curvature.is_finite()) {
        state.status = if curvature.is_finite() { CgStatus::NotPositiveDefinite } else { CgStatus::NotFinite };
        state.curvature = curvature;
        // SAFETY: every thread has loaded the state before the sum.
        unsafe { system.set_state(state) };
        return;
    }

    let step = ratio(state.scaled, curvature);
    x = along(x, step, p);
    r = along(r, -step, q);
    let mut residual = add_dot(0.0, r, r);
    // SAFETY: the group is this thread's, and all lanes of the warp are here; so too in the loops below.
    let z = unsafe {
        system.store(system.x, first, x);
        system.store(system.r, first, r);
        system.preconditioned(first, r)
    };
    let mut scaled = add_dot(0.0, r, z);
    each_group::<ID>(system.groups, 1, |group| {
        // SAFETY: see above.
        unsafe {
            let x = along(system.load(system.x, group), step, system.load(system.p, group));
            system.store(system.x, group, x);
            let r = along(system.load(system.r, group), -step, system.load(system.q, group));
            system.store(system.r, group, r);
            residual = add_dot(residual, r, r);
            scaled = add_dot(scaled, r, system.preconditioned(group, r));
        }
    });
    // SAFETY: all threads of the block are here.
    let residual = unsafe { block_sum::<ID>(1, residual) };
    // SAFETY: see above.
    let scaled = unsafe { scaled_sum::<ID>(2, scaled, residual) };

    state.iterations += 1;
    state.residual = residual;
    state.peak = if residual > state.peak { residual } else { state.peak };
    if !residual.is_finite() {
        state.status = CgStatus::NotFinite;
    } else if residual <= state.target(args.tolerance) || residual <= args.replaced_at * state.peak {
        state.status = CgStatus::Waiting;
    } else {
        // SAFETY: see above.
        unsafe { update_direction(&system, ratio(scaled, state.scaled), (z, p)) };
        state.scaled = scaled;
    }
    // SAFETY: every thread has loaded the state before the sums.
    unsafe { system.set_state(state) };
}

/// Makes the next direction, `p = z + beta p`, of the first groups of z and p and of what is stored of the others.
///
/// # Safety
/// All threads of the block execute this call together, and r is stored.
#[inline(always)]
unsafe fn update_direction<const ID: usize>(system: &System<ID>, beta: f32, (z, p): (Group, Group)) {
    // SAFETY: the groups are this thread's, and all lanes of the warp are here.
    unsafe {
        system.store(system.p, thread::thread_idx_x(), along(z, beta, p));
        each_group::<ID>(system.groups, 1, |group| {
            let z = system.preconditioned(group, system.load(system.r, group));
            system.store(system.p, group, along(z, beta, system.load(system.p, group)));
        });
    }
}

/// # Safety
/// The launch is that of configuration `ID`, and `args` describes the vectors; q is A times x.
#[inline(always)]
unsafe fn replace<const ID: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ID].stage, CgStage::Replace)) };
    let system = System::<ID>::of_block(args);
    // SAFETY: nothing was stored yet.
    let mut state = unsafe { system.state() };
    let is_last = state.iterations >= args.max_iterations;
    let waits = state.status == CgStatus::Waiting;
    if !(waits || is_last && state.status == CgStatus::Active) {
        return;
    }
    let b = system.row_of(args.b, args.b_strides);
    let (mut residual, mut parted, mut scaled) = (0f64, 0f64, 0f64);
    let (mut first_z, mut is_first) = (ZEROS, true);
    each_group::<ID>(system.groups, 0, |group| {
        // SAFETY: the group is this thread's, and all lanes of the warp are here.
        unsafe {
            let right = system.load_tensor(b, group, args.n);
            let carried = system.load(system.r, group);
            let r = along(right, -1.0, system.load(system.q, group));
            let difference = along(r, -1.0, carried);
            system.store(system.r, group, r);
            let z = system.preconditioned(group, r);
            residual = add_dot(residual, r, r);
            parted = add_dot(parted, difference, difference);
            scaled = add_dot(scaled, r, z);
            if is_first {
                (first_z, is_first) = (z, false);
            }
        }
    });
    // SAFETY: all threads of the block are here.
    let (residual, parted) = unsafe { (block_sum::<ID>(0, residual), block_sum::<ID>(1, parted)) };
    // SAFETY: see above.
    let scaled = unsafe { scaled_sum::<ID>(2, scaled, residual) };

    let refuted = state.residual <= state.target(args.tolerance);
    let is_judged = state.residual <= JUDGED * state.reached;
    state.status = if !residual.is_finite() {
        CgStatus::NotFinite
    } else if residual <= args.tolerance * args.tolerance * state.norm {
        CgStatus::Converged
    } else if waits && is_judged && residual > PROGRESS * state.reached {
        CgStatus::Stagnated
    } else {
        CgStatus::Active
    };
    if state.status == CgStatus::Active && !is_last {
        // Directions stay what they are where the residual does.
        let beta = if parted <= PARTED * residual { ratio(scaled, state.scaled) } else { 0.0 };
        // SAFETY: the row is the system's, and all threads of the block are here.
        unsafe { update_direction(&system, beta, (first_z, system.load(system.p, thread::thread_idx_x()))) };
        state.refuted += u32::from(refuted);
        state.scaled = scaled;
        state.peak = residual;
    }
    state.residual = residual;
    state.reached = if residual < state.reached { residual } else { state.reached };
    // SAFETY: every thread has loaded the state before the sums.
    unsafe { system.set_state(state) }
}

/// # Safety
/// The launch is that of configuration `ID`, and `args` describes the vectors.
#[inline(always)]
unsafe fn finish<const ID: usize>(args: &CgArgs) {
    const { assert!(matches!(CG[ID].stage, CgStage::Finish)) };
    let system = System::<ID>::of_block(args);
    let out = system.row_of(args.out, args.out_strides);
    let mut element = thread::thread_idx_x();
    while element < args.n {
        let index = element as usize;
        // SAFETY: the element is inside both vectors, and no other thread's.
        unsafe { global::store(out.wrapping_add(index), global::load(system.x.wrapping_add(index))) };
        element += const { CG[ID].threads() };
    }
}
