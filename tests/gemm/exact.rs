//! Small integers, of which every sum is exact: any wrong index shows, at every edge of every tile.

use ferrotile::{Activation, Float, GemmLayout, Gpu};
use half::{bf16, f16};
use tests::catalogue::gemm_configs;
use tests::is_small;
use tests::shapes::around;
use variants::gemm::{Operands, alternates};

use crate::Trials;
use crate::case::{Case, Expected, Inputs, Outcome, Placement, Stored, Way, check, for_each_way, is_aligned, run};

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
    trials.add("integers_of_long_operands/f16", long_operands);
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

/// Operands of more than half of L2, few rows and columns of them: every other tile of a block sums k from its end.
fn long_operands(gpu: &Gpu) -> Outcome {
    let case = Case::new([72, 520, 21_304], GemmLayout::Nt);
    assert!(alternates(case.m as u32, case.n as u32, case.k as u32, size_of::<f16>() as u32));
    let inputs = Inputs::<f16, f16, f16>::integers(&case, 1);
    let expected = inputs.expected(&case);
    let rounded = expected.d.iter().map(|&x| f16::from_f64(x).to_f64()).collect();
    let expected = Expected { d: rounded, limit: 0.0 };
    let placement = Placement::contiguous::<f16, f16, f16>(&case);
    // The last is the one for the newest unit.
    let config = gemm_configs(f16::DTYPE, f16::DTYPE, case.accumulation)
        .filter(|config| config.is_in(gpu.arch()) && config.operands == Operands::Aligned(case.layout))
        .filter(|config| config.tile.m == 64 && config.tile.n == 64)
        .last()
        .ok_or("no configuration has tiles of 64 rows and columns")?;
    check(&case, &run(gpu, &case, &inputs, &placement, &Way { config, splits: 1 })?, &expected)
}

/// Persistent blocks compute several tiles each.
fn many_tiles<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let (batch, shape) = if is_small(gpu) { (5, [72, 136, 136]) } else { (140, [72, 136, 136]) };
    exact::<T, T>(gpu, &Case::new(shape, GemmLayout::Nt).batched(batch))
}

fn exact<T: Stored, D: Stored>(gpu: &Gpu, case: &Case) -> Outcome {
    let inputs = Inputs::<T, T, D>::integers(case, 1);
    let expected = inputs.expected(case);
    let largest = expected.d.iter().fold(0f64, |largest, x| largest.max(x.abs()));
    // f32 holds every integer to 2^24; D of another type rounds an exact sum to its nearest value, as its reference
    // does.
    assert!(largest < 16_777_216.0, "the sums are exact");
    let rounded = expected.d.iter().map(|&x| D::from_f64(x).to_f64()).collect();
    let expected = Expected { d: rounded, limit: 0.0 };
    let placement = Placement::contiguous::<T, T, D>(case);
    for_each_way::<T, T>(gpu, case, is_aligned::<T, T>(case), |way| {
        check(case, &run(gpu, case, &inputs, &placement, way)?, &expected)
    })
}
