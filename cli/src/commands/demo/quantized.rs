//! What quantisation to u8 costs attention, beside what it may cost: normal numbers of f16, quantised with a factor for
//! each head, against attention on the numbers themselves.

use ferrotile::tolerance::QuantizationError;
use ferrotile::{BatchedSizes, Dtype, reference};
use half::f16;
use ndarray::Array4;
use serde::Serialize;

use crate::device::Device;
use crate::problems::attention::{HostAttention, HostTerms};
use crate::problems::on_card::CardAttention;
use crate::problems::random;
use crate::problems::request::Request;

/// The seeds of the inputs of a problem.
const SEEDS: [u64; 3] = [0, 1, 2];

/// The errors of one problem, the worst of its inputs.
#[derive(Debug, Serialize)]
pub(super) struct QuantizedInput {
    /// `small`, `mission` or `long`.
    problem: &'static str,
    batch: usize,
    heads: usize,
    len: usize,
    head_dim: usize,
    /// The kernel; `None` on the CPU.
    kernel: Option<String>,
    /// The largest error of an element.
    error: f64,
    /// The mean error.
    mean_error: f64,
    /// The share of the elements whose error is above that which the largest may be.
    beyond: f64,
    /// Whether all three are within their limits.
    within: bool,
}

/// The problems: on an emulated device and on the CPU the smallest alone, which takes no time.
pub(super) fn problems(device: &Device) -> &'static [(&'static str, BatchedSizes)] {
    let is_card = matches!(device, Device::Gpu(gpu) if !gpu.is_emulated());
    &QuantizationError::PROBLEMS[..if is_card { QuantizationError::PROBLEMS.len() } else { 1 }]
}

/// Runs a problem with each input.
pub(super) fn measure(
    device: &Device,
    (problem, sizes): (&'static str, BatchedSizes),
) -> ferrotile::Result<QuantizedInput> {
    let (mut worst, mut kernel) = (QuantizationError { largest: 0.0, mean: 0.0, beyond: 0.0 }, None);
    for seed in SEEDS {
        let numbers: HostAttention<f16> = random::problem(sizes, sizes.head_dim, seed)?;
        let request = Request::new(numbers.layout);
        let exact = numbers.solve_exactly(&request.params).0;
        let out = match device {
            Device::Cpu => quantized(&numbers).solve_on_cpu(&request.params).out,
            Device::Gpu(gpu) => {
                let integers = quantized(&numbers);
                let plan = integers.request(&request).with_out(Dtype::F16);
                let plan = plan.plan(gpu, Dtype::U8, sizes)?;
                kernel = Some(plan.to_string());
                let stream = gpu.new_stream()?;
                CardAttention::<u8, f16>::upload(gpu, &stream, &integers)?.solve(&stream, &plan)?.out
            }
        };
        let error = QuantizationError::new(&out, &exact);
        worst.largest = worst.largest.max(error.largest);
        worst.mean = worst.mean.max(error.mean);
        worst.beyond = worst.beyond.max(error.beyond);
    }
    Ok(QuantizedInput {
        problem,
        batch: sizes.batch,
        heads: sizes.q_heads,
        len: sizes.q_len,
        head_dim: sizes.head_dim,
        kernel,
        error: worst.largest,
        mean_error: worst.mean,
        beyond: worst.beyond,
        within: worst.is_within_limits(),
    })
}

/// The problem on u8, with a factor for each head.
fn quantized(numbers: &HostAttention<f16>) -> HostAttention<u8, f16> {
    let HostAttention { layout, sizes, value_dim, .. } = *numbers;
    let shape = sizes.q_shape(layout);
    let [q, k, v] = [&numbers.q, &numbers.k, &numbers.v].map(|values| {
        let wide = values.iter().map(|&x| f32::from(x)).collect();
        let wide = Array4::from_shape_vec(shape, wide).expect("Q, K and V have one shape");
        let (elements, factors) = reference::quantize::<u8>(wide.view(), [1, sizes.q_heads]);
        (elements.into_raw_vec_and_offset().0, Some(factors))
    });
    let factors = [q.1, k.1, v.1];
    let terms = HostTerms { sink: None, bias: None };
    HostAttention { layout, sizes, value_dim, q: q.0, k: k.0, v: v.0, factors, terms }
}

impl QuantizedInput {
    /// One line.
    pub(super) fn text(&self) -> String {
        let QuantizedInput { problem, batch, heads, len, head_dim, error, mean_error, beyond, .. } = self;
        let (largest, mean, share) =
            (QuantizationError::LARGEST, QuantizationError::MEAN, 100.0 * QuantizationError::BEYOND);
        format!(
            "{problem} {batch}x{heads}x{len}x{head_dim}, u8 of normal f16: largest error {error:.4} (at most {largest}), \
             mean {mean_error:.5} (at most {mean}), {:.2} % above {largest} (at most {share} %)\n",
            100.0 * beyond
        )
    }

    /// What to call a wrong result.
    pub(super) fn wrong(&self) -> Option<String> {
        let kernel = self.kernel.as_deref().unwrap_or("the CPU");
        (!self.within).then(|| format!("{kernel} on u8, {} problem,", self.problem))
    }
}
