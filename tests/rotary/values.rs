//! Values of all shapes, strides, pages, pairings and types.

use ferrotile::{F8E4M3, Gpu};
use half::{bf16, f16};
use libtest_mimic::Failed;
use tests::Trials;
use tests::inputs::{self, Half};

use crate::case::{Case, Inputs, Parts};

/// Cases of a property.
const CASES: usize = 100;

/// Lists the trials.
pub(crate) fn list(trials: &mut Trials) {
    trials.both("is_the_reference", &(), same_type::<f16>, same_type::<bf16>);
    trials.both("is_the_reference/e4m3", &(), e4m3::<f16>, e4m3::<bf16>);
    trials.both("fused_is_separate", &(), separate::<f16>, separate::<bf16>);
}

fn seeded(body: impl Fn(&mut inputs::Random) -> Result<(), Failed>) -> Result<(), Failed> {
    let seed = inputs::property_seed();
    let mut random = inputs::random(seed);
    (0..CASES).try_for_each(|_| body(&mut random)).map_err(|failed| {
        let text = failed.message().unwrap_or_default();
        format!("{}={seed}: {text}", inputs::VARIABLE).into()
    })
}

/// A cache of the type of the inputs, and tables of every type. A second call gives the same bits.
fn same_type<T: Half>(gpu: &Gpu, _: &()) -> Result<(), Failed> {
    seeded(|random| {
        let case = Case::random(random);
        let inputs = Inputs::<T>::random::<f32>(random, &case);
        let first = inputs.check::<T, f32>(gpu, &case)?;
        if first != inputs.run::<T, f32>(gpu, &case, Parts::ALL)? {
            return Err(format!("two calls differ: {case:?}").into());
        }
        Inputs::<T>::random::<T>(random, &case).check::<T, T>(gpu, &case).map(drop)
    })
}

fn e4m3<T: Half>(gpu: &Gpu, _: &()) -> Result<(), Failed> {
    seeded(|random| {
        let case = Case::random(random);
        Inputs::<T>::random::<f32>(random, &case).check::<F8E4M3, f32>(gpu, &case).map(drop)
    })
}

/// To rotate and then to append leaves the bits of one call, in a cache of the type of the inputs.
fn separate<T: Half>(gpu: &Gpu, _: &()) -> Result<(), Failed> {
    seeded(|random| {
        let case = Case::random(random);
        let inputs = Inputs::<T>::random::<f32>(random, &case);
        let fused = inputs.run::<T, f32>(gpu, &case, Parts::ALL)?;
        let rotated = inputs.run::<T, f32>(gpu, &case, Parts { appends: false, ..Parts::ALL })?;
        let k = rotated.k.iter().map(|&bits| crate::case::FromBits::from_bits_of(bits)).collect();
        let appended = Inputs { k, ..inputs }.run::<T, f32>(gpu, &case, Parts { rotates: false, ..Parts::ALL })?;
        if (&rotated.q, &rotated.k, &appended.caches) != (&fused.q, &fused.k, &fused.caches) {
            return Err(format!("one call differs from two: {case:?}").into());
        }
        Ok(())
    })
}
