//! Tables whose lines declare a configuration for one element type or for two.

/// A line of a table.
pub(crate) struct Line<T> {
    /// The kernel of the first element type, f16 where there are two.
    pub(crate) first: T,
    /// The kernel for bf16.
    pub(crate) bf16: Option<T>,
}

/// Kernels of all lines.
pub(crate) const fn count<T: Copy>(lines: &[Line<T>]) -> usize {
    let (mut line, mut count) = (0, 0);
    while line < lines.len() {
        count += 1 + lines[line].bf16.is_some() as usize;
        line += 1;
    }
    count
}

/// The kernels of all lines, one after the other.
pub(crate) const fn kernels<T: Copy, const COUNT: usize>(lines: &[Line<T>]) -> [T; COUNT] {
    let mut kernels = [lines[0].first; COUNT];
    let (mut line, mut count) = (0, 0);
    while line < lines.len() {
        kernels[count] = lines[line].first;
        count += 1;
        if let Some(bf16) = lines[line].bf16 {
            kernels[count] = bf16;
            count += 1;
        }
        line += 1;
    }
    kernels
}
