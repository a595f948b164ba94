//! Random sizes, strides, masks and scales.
//!
//! The seed is new in every run unless `FERROTILE_SEED` sets it; a failure names it.

use ferrotile::{Gpu, Layout, Mask};
use half::{bf16, f16};
use rand::RngExt;
use rand::seq::SliceRandom;
use tests::inputs::{self, Half, Random};
use tests::is_small;
use tests::view::View;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Placement, for_each_config, run_or_refuse};

/// Random cases in one trial, and where trials are small.
const CASES: u64 = 40;
const SMALL_CASES: u64 = 8;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    let seed = inputs::property_seed();
    trials.both("random_cases_match_the_reference", &seed, random_cases::<f16>, random_cases::<bf16>);
}

fn random_cases<T: Half>(gpu: &Gpu, &seed: &u64) -> Outcome {
    println!("{}={seed}", inputs::VARIABLE);
    for index in 0..if is_small(gpu) { SMALL_CASES } else { CASES } {
        let mut random = inputs::random(seed.wrapping_add(index));
        let case = draw_case(&mut random);
        let placement = draw_placement(&mut random, &case);
        let inputs = Inputs::<T>::normal(&case, seed.wrapping_add(index));
        let expected = inputs.expected(&case);
        for_each_config::<T>(gpu, &case, |config| {
            run_or_refuse(gpu, &case, &inputs, &placement, config)?
                .map_or(Ok(()), |output| output.check(&case, &expected))
        })
        .map_err(|failure| {
            let message = failure.message().unwrap_or("failed").to_owned();
            format!("{}={seed}, case {index}, {placement:?}: {message}", inputs::VARIABLE)
        })?;
    }
    Ok(())
}

fn draw_case(random: &mut Random) -> Case {
    let kv_heads = random.random_range(1..=3);
    let q_heads = kv_heads * random.random_range(1..=4);
    let mut len = || if random.random_bool(0.05) { 0 } else { random.random_range(1..=300) };
    let (q_len, k_len) = (len(), len());
    // Half of them are the dimensions that tensor-core kernels are made for.
    let head_dim = if random.random() { [64, 128][random.random_range(0..2)] } else { 8 * random.random_range(1..=32) };
    let mask = match random.random_range(0..4) {
        0 => Mask::Full,
        1 => Mask::Causal,
        _ => Mask::Window { left: random.random_range(0..=k_len + 2), right: random.random_range(0..=40) },
    };
    let case = Case::new(random.random_range(1..=3), 1, q_len, k_len, head_dim, mask).grouped(q_heads, kv_heads);
    if random.random_bool(0.3) { case.scaled(random.random_range(-0.5..0.5)) } else { case }
}

fn draw_placement(random: &mut Random, case: &Case) -> Placement {
    let layout = if random.random() { Layout::Bhsd } else { Layout::Bshd };
    let q = draw_view(random, case.q_shape());
    let mut inputs = [q, draw_view(random, case.kv_shape()), draw_view(random, case.kv_shape())];
    for view in &mut inputs {
        // An input may repeat a batch entry or a head; the elements are then those that the storage holds last.
        if view.shape[0] == 1 {
            view.strides[0] = random.random_range(-3..=3);
        }
    }
    Placement { layout, inputs, fused: false, out: draw_view(random, case.q_shape()) }
}

/// A view without overlap: the dimensions in random order, with random gaps, some of them walked backwards.
fn draw_view(random: &mut Random, shape: [usize; 4]) -> View {
    let mut order = [0, 1, 2];
    order.shuffle(random);
    let gap_step = if random.random() { 8 } else { 1 };
    let mut view = View { offset: gap_step as usize * random.random_range(0..3), shape, strides: [0, 0, 0, 1] };
    let mut reach = shape[3] as i64;
    for dimension in order {
        let stride = reach + gap_step * random.random_range(0..3);
        let steps = shape[dimension].max(1) as i64;
        view.strides[dimension] = stride;
        reach = stride * steps;
        if random.random_bool(0.2) {
            view.offset += (stride * (steps - 1)) as usize;
            view.strides[dimension] = -stride;
        }
    }
    view
}
