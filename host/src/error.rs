//! What can go wrong, with the values that a program or a person needs to react.

use std::fmt;

use layout::{Arch, Dtype};

/// The result of a call into this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that this library reports. Nothing is written to an output of a call that returns one.
///
/// ```
/// use ferrotile::{BatchedSizes, Error};
///
/// let sizes = BatchedSizes { batch: 1, q_heads: 3, kv_heads: 2, q_len: 8, k_len: 8, head_dim: 64 };
/// match sizes.check() {
///     Err(Error::Argument { argument, .. }) => assert_eq!(argument, "kv_heads"),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no NVIDIA driver on this machine.
    #[error("no NVIDIA driver ({reason}): install the driver of the card")]
    NoDriver {
        /// What the system's loader said.
        reason: String,
    },
    /// The driver has no card of this number.
    #[error("no CUDA device {ordinal}: the driver sees {count} (CUDA_VISIBLE_DEVICES hides others)")]
    NoDevice {
        /// The number asked for.
        ordinal: u32,
        /// The number of cards that the driver sees.
        count: u32,
    },
    /// None of the compiled architectures runs on the card.
    #[error(
        "device {ordinal} ({name}) has compute capability {}.{}; this build of the library has PTX for {}, which its \
         features sm80, sm89 and sm90 choose",
        found.0, found.1, join(embedded)
    )]
    UnsupportedDevice {
        /// The card's number.
        ordinal: u32,
        /// The card's name.
        name: String,
        /// The card's compute capability.
        found: (u32, u32),
        /// The architectures that this build has PTX for (the features `sm80`, `sm89`, `sm90`).
        embedded: Vec<Arch>,
    },
    /// A driver call failed. Kernels run asynchronously, so the cause may be work that was enqueued before.
    #[error("{call}: {error}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it returned.
        error: DriverError,
    },
    /// The driver lacks a function that newer ones have.
    #[error("the installed driver has no {call}: update it to one of CUDA {}.{} or newer", needed.0, needed.1)]
    DriverTooOld {
        /// The driver's function.
        call: &'static str,
        /// The CUDA version that introduced it.
        needed: (u32, u32),
    },
    /// The driver could not compile a module.
    #[error("cannot load {module}: {error}\n{log}")]
    Jit {
        /// The family and architecture, or "PTX" for a module of the caller's.
        module: String,
        /// What the driver returned.
        error: DriverError,
        /// What the driver's compiler said.
        log: String,
    },
    /// The emulator found a fault in a kernel, cannot run it, or does not model what was asked for.
    #[error("emulator: {problem}")]
    Emulator {
        /// What, with kernel, thread and line where it is a kernel's fault.
        problem: String,
    },
    /// No PTX of this kernel family was compiled for this architecture.
    #[error(
        "no PTX of the kernel family {family} for {arch} in this build of the library: its features sm80, sm89 and sm90 \
         choose the architectures"
    )]
    NoPtx {
        /// The kernel family.
        family: String,
        /// The architecture.
        arch: Arch,
    },
    /// A module has no kernel of this name.
    #[error("{module} has no kernel {kernel}")]
    NoKernel {
        /// The kernel asked for.
        kernel: String,
        /// The module.
        module: String,
    },
    /// A launch that the card or the kernel cannot serve.
    #[error("{kernel}: {what} is {got}, allowed: {least} to {most}")]
    LaunchConfig {
        /// The kernel.
        kernel: String,
        /// Which number is wrong.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The least value allowed.
        least: u64,
        /// The greatest value allowed.
        most: u64,
    },
    /// A stream, kernel, buffer or tensor belongs to another device than the call's stream.
    #[error("{what} is on device {got}, the stream on device {expected}")]
    WrongDevice {
        /// What is elsewhere: a tensor's name, or "plan", "kernel", "buffer", "event".
        what: &'static str,
        /// The device it is on.
        got: u32,
        /// The device of the stream.
        expected: u32,
    },
    /// A stream of another library is not in the device's primary context.
    #[error("the stream belongs to another context than the primary one of device {ordinal}; make it there")]
    ForeignContext {
        /// The device.
        ordinal: u32,
    },
    /// Another library captures the stream, and its graph would outlive what the work uses.
    #[error(
        "another library captures the stream, and its graph would not keep alive what this work uses; where you do, \
         say so by StreamRef::allow_capture"
    )]
    ForeignCapture,
    /// Host data and a buffer differ in length.
    #[error("{op}: {got} elements, expected {expected}")]
    Length {
        /// The operation.
        op: &'static str,
        /// The elements given.
        got: usize,
        /// The elements of the buffer.
        expected: usize,
    },
    /// A shape has more elements than there is memory for, or than the address space.
    #[error(
        "shape {shape:?} has too many elements of {element_bytes} bytes{}",
        of_memory(shape, *element_bytes, *available_bytes)
    )]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
        /// The size of one element.
        element_bytes: usize,
        /// The bytes that the machine has left, where it was asked.
        available_bytes: Option<u64>,
    },
    /// A view reaches outside its buffer.
    #[error(
        "a view of shape {shape:?} and strides {strides:?} from element {offset} leaves its buffer of {len} elements"
    )]
    OutOfBounds {
        /// The view's shape.
        shape: Vec<usize>,
        /// The view's strides in elements.
        strides: Vec<i64>,
        /// The element where the view starts.
        offset: usize,
        /// The elements of the buffer.
        len: usize,
    },
    /// Two indices of a view that is written to may be the same element.
    #[error("a view of shape {shape:?} and strides {strides:?} overlaps itself and cannot be written to")]
    Overlap {
        /// The view's shape.
        shape: Vec<usize>,
        /// The view's strides in elements.
        strides: Vec<i64>,
    },
    /// The last dimension of a view is not contiguous.
    #[error("the last dimension has stride {stride}, expected 1: copy the tensor to a contiguous one")]
    LastStride {
        /// The last stride in elements.
        stride: i64,
    },
    /// A number on the card, where a sequence starts or which page keys are in, is not one that the tensors allow.
    #[error("{op}: {tensor}{index:?} is {got}, allowed: {least} to {most}")]
    OutOfRange {
        /// The operation.
        op: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// Which of its elements.
        index: Vec<usize>,
        /// The element.
        got: i64,
        /// The least that it may be, given the elements before it.
        least: i64,
        /// The greatest that it may be.
        most: i64,
    },
    /// A tensor has the wrong shape.
    #[error("{op}: {tensor} has shape {got:?}, expected {expected:?}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// Its shape.
        got: Vec<usize>,
        /// The shape that the other tensors ask for.
        expected: Vec<usize>,
    },
    /// A tensor starts or steps at an address that the operation cannot take.
    #[error("{op}: {tensor} must start on a {align}-byte boundary and have strides in multiples of it")]
    Alignment {
        /// The operation.
        op: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// The alignment in bytes.
        align: usize,
    },
    /// An argument or option has a value that the operation cannot take.
    #[error("{op}: {argument} is {got}, expected {expected}")]
    Argument {
        /// The operation.
        op: &'static str,
        /// The argument or option.
        argument: &'static str,
        /// Its value.
        got: String,
        /// What is allowed, and what to do.
        expected: String,
    },
    /// No kernel computes this.
    #[error("{op}: {feature} is not supported: {remedy}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What is asked for.
        feature: String,
        /// What to do instead.
        remedy: String,
    },
    /// A matrix that must be symmetric is not.
    #[error(
        "{op}: elements ({row}, {column}) and ({column}, {row}) of channel {channel} are {got} and {mirrored}, which differ by \
         more than {tolerance}"
    )]
    Asymmetric {
        /// The operation.
        op: &'static str,
        /// The channel.
        channel: usize,
        /// The row of the first element.
        row: usize,
        /// The column of the first element.
        column: usize,
        /// The first element.
        got: f32,
        /// The element on the other side of the diagonal.
        mirrored: f32,
        /// The largest difference allowed.
        tolerance: f32,
    },
    /// An iteration cannot go on for some systems.
    #[error("{op}: {}", breakdowns(systems))]
    Breakdown {
        /// The operation.
        op: &'static str,
        /// The systems, at least one.
        systems: Vec<Breakdown>,
    },
    /// An operation is not compiled for an element type.
    #[error("{op}: no compiled kernel for {dtype}; convert to {}", join(compiled))]
    UnsupportedType {
        /// The operation.
        op: &'static str,
        /// The element type.
        dtype: Dtype,
        /// The element types that are compiled.
        compiled: Vec<Dtype>,
    },
    /// A kernel that was named does not exist or does not serve this problem.
    #[error("{op}: no kernel {name} for this problem; there is {}", known.join(", "))]
    UnknownKernel {
        /// The operation.
        op: &'static str,
        /// The name given.
        name: String,
        /// The kernels that serve the problem.
        known: Vec<&'static str>,
    },
}

fn join<T: ToString>(items: &[T]) -> String {
    if items.is_empty() {
        return "nothing".to_owned();
    }
    items.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// A system that an iteration cannot solve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Breakdown {
    /// The frame.
    pub frame: usize,
    /// The channel.
    pub channel: usize,
    /// Iterations that were done before.
    pub iteration: u32,
    /// Why it cannot go on.
    pub cause: BreakdownCause,
}

/// Why an iteration cannot go on.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum BreakdownCause {
    /// A direction p with `p^T A p` of 0 or less: the matrix, as its precision stores it, is not positive definite.
    NotPositiveDefinite {
        /// `p^T A p`.
        curvature: f64,
    },
    /// A norm or a product is NaN or infinite: b or the guess has such an element, or numbers left the range of f32.
    NotFinite,
}

impl fmt::Display for BreakdownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BreakdownCause::NotPositiveDefinite { curvature } => {
                write!(f, "p^T A p is {curvature:e}, so A is not positive definite: add to its diagonal")
            }
            BreakdownCause::NotFinite => f.write_str("a number is NaN or infinite: see b and the guess"),
        }
    }
}

/// The first system, and how many there are besides.
fn breakdowns(systems: &[Breakdown]) -> String {
    let Some(Breakdown { frame, channel, iteration, cause }) = systems.first() else { return "nothing".to_owned() };
    let first = format!("frame {frame}, channel {channel} after {iteration} iterations: {cause}");
    if systems.len() == 1 { first } else { format!("{first} (and {} systems more)", systems.len() - 1) }
}

/// What an array takes beside what the machine has left, if that is known.
fn of_memory(shape: &[usize], element_bytes: usize, available_bytes: Option<u64>) -> String {
    let Some(available_bytes) = available_bytes else { return String::new() };
    let gigabytes = |bytes: f64| format!("{:.1} GB", bytes / 1e9);
    let bytes = shape.iter().fold(element_bytes as f64, |bytes, &size| bytes * size as f64);
    let available = gigabytes(available_bytes as f64);
    format!(": they take {}, and the machine has {available} of memory left", gigabytes(bytes))
}

/// A code that a driver function returned (`CUresult` of cuda.h), and what the driver says about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DriverError {
    code: u32,
    name: Option<&'static str>,
    text: Option<&'static str>,
}

impl DriverError {
    pub(crate) const fn new(code: u32, name: Option<&'static str>, text: Option<&'static str>) -> Self {
        DriverError { code, name, text }
    }

    /// The number of the code: 2 for `CUDA_ERROR_OUT_OF_MEMORY`.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.code
    }

    /// The name in cuda.h, which the driver knows; `None` without a driver or where it does not know the code.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        self.name
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name, self.text) {
            (Some(name), Some(text)) => write!(f, "{name} ({}): {text}", self.code),
            _ => write!(f, "CUDA error {}", self.code),
        }
    }
}

impl fmt::Debug for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for DriverError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_what_is_wrong_and_what_is_allowed() {
        let error = Error::UnsupportedDevice {
            ordinal: 1,
            name: "Tesla V100".to_owned(),
            found: (7, 0),
            embedded: vec![Arch::Sm80, Arch::Sm90a],
        };
        let text = "device 1 (Tesla V100) has compute capability 7.0; this build of the library has PTX for sm_80, \
                    sm_90a, which its features sm80, sm89 and sm90 choose";
        assert_eq!(error.to_string(), text);
        let error = Error::UnknownKernel { op: "attention", name: "x".to_owned(), known: vec!["a", "b"] };
        assert_eq!(error.to_string(), "attention: no kernel x for this problem; there is a, b");
    }

    #[test]
    fn a_breakdown_names_the_first_system_and_counts_the_others() {
        let of = |channel, cause| Breakdown { frame: 3, channel, iteration: 2, cause };
        let indefinite = of(1, BreakdownCause::NotPositiveDefinite { curvature: -4.0 });
        let text = Error::Breakdown { op: "cg", systems: vec![indefinite] }.to_string();
        let expected = "cg: frame 3, channel 1 after 2 iterations: p^T A p is -4e0, so A is not positive definite: add to \
                        its diagonal";
        assert_eq!(text, expected);
        let systems = vec![of(0, BreakdownCause::NotFinite), indefinite, indefinite];
        let text = Error::Breakdown { op: "cg", systems }.to_string();
        assert!(text.starts_with("cg: frame 3, channel 0") && text.ends_with("(and 2 systems more)"), "{text}");
    }

    #[test]
    fn a_code_is_shown_whether_or_not_the_driver_knows_it() {
        let known = DriverError::new(2, Some("CUDA_ERROR_OUT_OF_MEMORY"), Some("out of memory"));
        assert_eq!(known.to_string(), "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
        assert_eq!(DriverError::new(12345, None, None).to_string(), "CUDA error 12345");
    }
}
