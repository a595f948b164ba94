//! Kernels against the f64 reference.

use ferrotile::{Gpu, Mask};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::inputs::Half;
use tests::{compare, is_small, shapes};
use variants::attention::AttentionKernel;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, few, for_each_config, run_contiguous};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for (head_dim, tiles) in [(64, &[16, 32, 64, 128][..]), (128, &[32, 64]), (256, &[4])] {
        for q_len in shapes::around(tiles) {
            let name = format!("matches_reference_at_tile_edges/d{head_dim}/rows{q_len}");
            let edges = Edges { head_dim, q_len, k_lens: shapes::around(&tiles[..tiles.len() - 1]) };
            trials.both(&name, &edges, tile_edges::<f16>, tile_edges::<bf16>);
        }
    }
    for head_dim in (8..=256).step_by(8) {
        let case = Case::new(1, 2, 37, 53, head_dim, Mask::Causal);
        trials.both(
            &format!("serves_head_dim/{head_dim}"),
            &Group { cases: vec![case] },
            match_reference::<f16>,
            match_reference::<bf16>,
        );
    }
    for (name, cases) in groups() {
        trials.both(name, &Group { cases }, match_reference::<f16>, match_reference::<bf16>);
    }
    let cases = vec![
        Case::new(65_540, 1, 1, 2, 8, Mask::Full),
        Case::new(1, 65_540, 1, 2, 8, Mask::Full),
        Case::new(66, 1, 1, 2, 64, Mask::Causal).grouped(1000, 125),
        Case::new(66, 1, 1, 2, 128, Mask::Full).grouped(1000, 125),
    ];
    trials.both(
        "serves_more_heads_than_a_grid_dimension_has_blocks",
        &Group { cases },
        many_heads::<f16>,
        many_heads::<bf16>,
    );
    trials.both("serves_large_magnitudes", &(), large_magnitudes::<f16>, large_magnitudes::<bf16>);
    for (name, [batch, heads, len, head_dim]) in shapes::ACCEPTANCE {
        let case = Case::new(batch, heads, len, len, head_dim, Mask::Full);
        trials.add(format!("acceptance/{name}/f16"), move |gpu| accepted(gpu, case));
    }
}

/// Cases by what they have in common.
fn groups() -> Vec<(&'static str, Vec<Case>)> {
    let window = |left, right| Mask::Window { left, right };
    let windows = [
        window(0, 0),
        window(3, 0),
        window(0, 5),
        window(16, 16),
        window(70, 1),
        window(usize::MAX, 2),
        window(1, usize::MAX),
    ];
    let unequal = [(65, 131), (131, 65), (1, 200), (200, 1), (64, 128), (128, 64), (33, 34), (34, 33)];
    let each = |cases: &dyn Fn(usize) -> Vec<Case>| [64, 128, 40].into_iter().flat_map(cases).collect::<Vec<_>>();
    vec![
        (
            "serves_windows",
            each(&|d| {
                let lengths = [(77, 77), (65, 131), (131, 65)];
                let cases = windows.iter().flat_map(|&mask| lengths.map(|(q, k)| Case::new(1, 1, q, k, d, mask)));
                cases.collect()
            }),
        ),
        (
            "aligns_masks_at_the_last_row_and_key",
            each(&|d| unequal.into_iter().map(|(q, k)| Case::new(1, 1, q, k, d, Mask::Causal)).collect()),
        ),
        (
            "shares_keys_between_heads",
            each(&|d| {
                let heads = [(8, 2), (8, 1), (6, 3), (5, 5)];
                heads.map(|(q, kv)| Case::new(2, 1, 37, 53, d, Mask::Causal).grouped(q, kv)).to_vec()
            }),
        ),
        (
            // Even and odd numbers of tiles of a head, heads that share keys, and a mask that would hide keys only from
            // rows after the last.
            "blocks_copy_keys_for_each_other",
            vec![
                Case::new(1, 1, 128, 300, 128, Mask::Full),
                Case::new(2, 1, 129, 70, 128, Mask::Full),
                Case::new(1, 1, 257, 257, 96, window(256, 256)),
                Case::new(1, 1, 260, 70, 128, Mask::Full).grouped(3, 1),
            ],
        ),
        (
            // Steps of 96 keys at head dimension 64: one, two and more, with keys beyond the last, and rows after the
            // first tile.
            "warpgroups_take_turns",
            [(1, 96), (65, 97), (257, 300)].map(|(q, k)| Case::new(1, 1, q, k, 64, Mask::Full)).to_vec(),
        ),
        (
            "serves_any_scale",
            each(&|d| {
                [0.0, -0.125, 1e-6, 1.0, -3.0].map(|s| Case::new(1, 1, 37, 53, d, Mask::Full).scaled(s)).to_vec()
            }),
        ),
        (
            "serves_empty_tensors",
            each(&|d| {
                let sizes = [(0, 2, 5, 5), (2, 0, 5, 5), (2, 2, 0, 5), (2, 2, 5, 0), (2, 2, 0, 0), (0, 0, 0, 0)];
                let masks = [Mask::Full, Mask::Causal, window(1, 1)];
                let of = |mask| sizes.map(|(batch, heads, q, k)| Case::new(batch, heads, q, k, d, mask));
                masks.into_iter().flat_map(of).collect()
            }),
        ),
    ]
}

/// Cases that one trial runs.
#[derive(Debug, Clone)]
struct Group {
    cases: Vec<Case>,
}

/// Lengths around tile edges.
#[derive(Debug, Clone)]
struct Edges {
    head_dim: usize,
    q_len: usize,
    k_lens: Vec<usize>,
}

fn tile_edges<T: Half>(gpu: &Gpu, edges: &Edges) -> Outcome {
    for &k_len in &edges.k_lens {
        for mask in [Mask::Full, Mask::Causal] {
            check(gpu, &Case::new(1, few(gpu, 2), edges.q_len, k_len, edges.head_dim, mask), |case| {
                Inputs::<T>::normal(case, 1)
            })?;
        }
    }
    Ok(())
}

fn match_reference<T: Half>(gpu: &Gpu, group: &Group) -> Outcome {
    group.cases.iter().try_for_each(|case| check(gpu, case, |case| Inputs::<T>::normal(case, 2)))
}

/// Where trials are small, the scalar rows and the narrowest heads alone: the emulator takes minutes for as many blocks
/// of the others, and tests their arithmetic on fewer heads.
fn many_heads<T: Half>(gpu: &Gpu, group: &Group) -> Outcome {
    let cases = group.cases.iter().filter(|case| !is_small(gpu) || case.sizes.head_dim == 8);
    for case in cases {
        let inputs = Inputs::<T>::normal(case, 2);
        let expected = inputs.expected(case);
        for_each_config::<T>(gpu, case, |config| {
            if is_small(gpu) && config.kernel != AttentionKernel::Scalar {
                return Ok(());
            }
            run_contiguous(gpu, case, &inputs, config)?.check(case, &expected)
        })?;
    }
    Ok(())
}

fn large_magnitudes<T: Half>(gpu: &Gpu, (): &()) -> Outcome {
    for head_dim in [64, 128, 40] {
        let case = Case::new(1, 2, 70, 133, head_dim, Mask::Full);
        check(gpu, &case, |case| Inputs::<T>::of_deviation(case, 3, [4.0, 4.0, 1000.0]))?;
    }
    Ok(())
}

fn check<T: Half>(gpu: &Gpu, case: &Case, inputs: impl Fn(&Case) -> Inputs<T>) -> Outcome {
    let inputs = inputs(case);
    let expected = inputs.expected(case);
    for_each_config::<T>(gpu, case, |config| run_contiguous(gpu, case, &inputs, config)?.check(case, &expected))
}

/// The error of a whole call on a shape of the acceptance list; of one head, one seed and fewer queries where trials
/// are small.
fn accepted(gpu: &Gpu, mut case: Case) -> Result<(), Failed> {
    let mut seeds = 3;
    if is_small(gpu) {
        (case, seeds) = (case.grouped(1, 1), 1);
        case.sizes.q_len = case.sizes.q_len.min(512);
    }
    for seed in 0..seeds {
        let inputs = Inputs::<f16>::normal(&case, seed);
        let expected = inputs.expected(&case);
        let largest = expected.out.iter().fold(0f64, |largest, x| largest.max(x.abs()));
        for_each_config::<f16>(gpu, &case, |config| {
            let output = run_contiguous(gpu, &case, &inputs, config)?;
            let error = compare::difference(&output.out, &expected.out).max_abs;
            let (accepted, relative) = (shapes::ACCEPTED_ERROR, error / largest);
            if error.max(relative) > accepted {
                return Err(format!("error {error:.3e}, relative {relative:.3e}, accepted {accepted:.0e}").into());
            }
            output.check(&case, &expected)
        })
        .map_err(|failed| format!("seed {seed}: {}", failed.message().unwrap_or("failed")))?;
    }
    Ok(())
}
