//! Summaries of repeated measurements.

/// What a set of measurements comes to, in their own unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Summary {
    /// The median.
    pub(crate) p50: f64,
    /// Nine in ten are at most this.
    pub(crate) p90: f64,
    /// The arithmetic mean.
    pub(crate) mean: f64,
    /// The standard deviation of the sample (0 for a single measurement).
    pub(crate) std: f64,
}

impl Summary {
    /// Summarises the measurements; `None` where there are none.
    pub(crate) fn of(measurements: &[f64]) -> Option<Summary> {
        if measurements.is_empty() {
            return None;
        }
        let mut sorted = measurements.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len() as f64;
        let mean = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|x| (x - mean).powi(2)).sum();
        let std = (squares / (count - 1.0).max(1.0)).sqrt();
        Some(Summary { p50: quantile(&sorted, 0.5), p90: quantile(&sorted, 0.9), mean, std })
    }
}

/// A quantile of sorted numbers, interpolated linearly between neighbours as NumPy does.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let position = fraction * (sorted.len() - 1) as f64;
    let (below, above) = (position.floor() as usize, position.ceil() as usize);
    sorted[below] + (sorted[above] - sorted[below]) * position.fract()
}

/// The geometric mean of positive numbers; `None` where there are none.
pub(crate) fn geometric_mean(numbers: &[f64]) -> Option<f64> {
    let logs: f64 = numbers.iter().map(|x| x.ln()).sum();
    (!numbers.is_empty()).then(|| (logs / numbers.len() as f64).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_that_of_numpy() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).unwrap();
        assert_eq!((summary.p50, summary.mean), (2.5, 2.5));
        assert!((summary.p90 - 3.7).abs() < 1e-12);
        assert!((summary.std - 1.290_994_448_735_805_6).abs() < 1e-12);
    }

    #[test]
    fn one_measurement_is_its_own_summary() {
        assert_eq!(Summary::of(&[7.0]), Some(Summary { p50: 7.0, p90: 7.0, mean: 7.0, std: 0.0 }));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn the_geometric_mean_of_a_ratio_and_its_inverse_is_one() {
        assert!((geometric_mean(&[4.0, 0.25]).unwrap() - 1.0).abs() < 1e-12);
        assert_eq!(geometric_mean(&[]), None);
    }
}
