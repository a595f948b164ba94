//! Normally distributed elements against the f64 reference.

use ferrotile::{Activation, GemmLayout, Gpu};
use half::{bf16, f16};
use tests::is_small;

use crate::Trials;
use crate::case::{Case, Inputs, Outcome, Stored, check_every_way};

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    for layout in GemmLayout::ALL {
        let name = format!("normal_inputs/{layout}");
        trials.both(&name, &layout, layouts::<f16>, layouts::<bf16>);
    }
    trials.both("long_sums", &(), long_sums::<f16>, long_sums::<bf16>);
    for activation in Activation::ALL {
        let name = format!("activation/{activation}");
        trials.both(&name, &activation, activated::<f16>, activated::<bf16>);
    }
}

/// Every type of D.
fn each_output<T: Stored>(gpu: &Gpu, case: &Case, seed: u64) -> Outcome {
    check_every_way(gpu, case, &Inputs::<T, T, f16>::normal(case, seed))?;
    check_every_way(gpu, case, &Inputs::<T, T, bf16>::normal(case, seed))?;
    check_every_way(gpu, case, &Inputs::<T, T, f32>::normal(case, seed))
}

fn layouts<T: Stored>(gpu: &Gpu, &layout: &GemmLayout) -> Outcome {
    let shapes: &[[usize; 3]] = if is_small(gpu) { &[[20, 40, 72]] } else { &[[200, 328, 264], [37, 131, 257]] };
    for &shape in shapes {
        each_output::<T>(gpu, &Case::new(shape, layout), 2)?;
        each_output::<T>(gpu, &Case { alpha: 0.5, beta: -1.5, bias: true, ..Case::new(shape, layout) }, 3)?;
    }
    Ok(())
}

fn long_sums<T: Stored>(gpu: &Gpu, (): &()) -> Outcome {
    let k = if is_small(gpu) { 520 } else { 8200 };
    each_output::<T>(gpu, &Case::new([24, 40, k], GemmLayout::Nt), 4)
}

fn activated<T: Stored>(gpu: &Gpu, &activation: &Activation) -> Outcome {
    let shape = if is_small(gpu) { [16, 24, 32] } else { [72, 200, 96] };
    // Gates are open, closed and between: sums of these deviations reach 30.
    let case = Case { alpha: 0.8, bias: true, activation, ..Case::new(shape, GemmLayout::Nn) };
    each_output::<T>(gpu, &case, 5)
}
