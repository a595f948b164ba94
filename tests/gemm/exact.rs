//! Small integers, of which every sum is exact: any wrong index shows, at every edge of every tile.

use ferrotile::{Activation, GemmLayout, Gpu};
use half::{bf16, f16};
use tests::is_small;
use tests::shapes::around;

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, Placement, Stored, check, for_each_way, is_aligned, run};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for layout in GemmLayout::ALL {
        for (name, dimension) in [("m", 0), ("n", 1), ("k", 2)] {
            let name = format!("integers_at_the_edges_of_{name}/{layout}");
            trials.both(&name, &(layout, dimension), edges::<f16>, edges::<bf16>);
        }
        let name = format!("integers_of_odd_shapes/{layout}");
        trials.both(&name, &layout, odd_shapes::<f16>, odd_shapes::<bf16>);
        let name = format!("integers_with_c_and_bias/{layout}");
        trials.both(&name, &layout, with_c_and_bias::<f16>, with_c_and_bias::<bf16>);
    }
    trials.both("integers_in_batches", &(), batches::<f16>, batches::<bf16>);
    trials.both("integers_of_more_tiles_than_blocks", &(), many_tiles::<f16>, many_tiles::<bf16>);
}

/// One dimension around the edges of every tile and copy, the others not multiples of anything.
fn edges<T: Stored>(gpu: &Gpu, &(layout, dimension): &(GemmLayout, usize)) -> Outcome {
    let tiles: &[usize] = if is_small(gpu) { &[8, 64] } else { &[8, 16, 64, 128, 256] };
    for size in around(tiles) {
        let mut shape = if is_small(gpu) { [24, 40, 24] } else { [72, 88, 104] };
        shape[dimension] = size;
        exact::<T, f32>(gpu, &Case::new(shape, layout))?;
    }
    Ok(())
}

/// N = 8 mod 16, M below 64, N = 768, K = 1152, K that is no multiple of a stage, primes.
fn odd_shapes<T: Stored>(gpu: &Gpu, &layout: &GemmLayout) -> Outcome {
    let shapes: &[[usize; 3]] = if is_small(gpu) {
        &[[3, 24, 40], [37, 8, 131]]
    } else {
        &[[5, 24, 200], [40, 768, 1152], [131, 264, 1000], [257, 37, 131], [1, 1, 1], [300, 520, 72], [64, 4104, 64]]
    };
    shapes.iter().try_for_each(|&shape| exact::<T, f32>(gpu, &Case::new(shape, layout)))
}

fn with_c_and_bias<T: Stored>(gpu: &Gpu, &layout: &GemmLayout) -> Outcome {
    let shapes: &[[usize; 3]] = if is_small(gpu) { &[[20, 40, 24]] } else { &[[136, 264, 96], [61, 77, 130]] };
    for &shape in shapes {
        let case =
            Case { alpha: -2.0, beta: 3.0, bias: true, activation: Activation::Relu, ..Case::new(shape, layout) };
        exact::<T, f32>(gpu, &case)?;
        exact::<T, T>(gpu, &case)?;
    }
    Ok(())
}

fn batches<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let shape = if is_small(gpu) { [9, 16, 24] } else { [70, 136, 72] };
    for layout in GemmLayout::ALL {
        exact::<T, T>(gpu, &Case { beta: 1.0, ..Case::new(shape, layout).batched(3) })?;
    }
    Ok(())
}

/// Persistent blocks compute several tiles each, forwards and backwards along k.
fn many_tiles<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let (batch, shape) = if is_small(gpu) { (5, [72, 136, 136]) } else { (70, [136, 264, 200]) };
    for layout in [GemmLayout::Nt, GemmLayout::Tn] {
        let case = Case::new(shape, layout).batched(batch);
        exact::<T, T>(gpu, &case)?;
        exact::<T, f32>(gpu, &case)?;
    }
    Ok(())
}

fn exact<T: Stored, D: Stored>(gpu: &Gpu, case: &Case) -> Outcome {
    let inputs = Inputs::<T, T, D>::integers(case, 1);
    let expected = inputs.expected(case);
    let largest = expected.d.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    // f32 holds every integer to 2^24; D of another type rounds an exact sum to its nearest value, as its reference does.
    assert!(largest < 16_777_216.0, "the sums are exact");
    let rounded = expected.d.iter().map(|&x| D::from_f64(x).to_f64()).collect();
    let expected = Expected { d: rounded, limit: 0.0 };
    let placement = Placement::contiguous::<T, T, D>(case);
    for_each_way::<T, T>(gpu, case, is_aligned::<T, T>(case), |way| {
        check(case, &run(gpu, case, &inputs, &placement, way)?, &expected)
    })
}
