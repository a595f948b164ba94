//! What host code knows of a kernel that another crate declares: its name and its parameters.

use core::marker::PhantomData;

/// A kernel, as the crate that declares it is compiled for the CPU: its name in the PTX, and its parameters as a
/// function type.
///
/// `#[kernel]` of `cuda_std` makes a constant of this type of every kernel. The host library takes it in place of a
/// name, and then refuses arguments of other types at compile time.
///
/// ```
/// use layout::Entry;
///
/// unsafe fn scale(_x: *mut f32, _factor: f32) {}
/// const SCALE: Entry<unsafe fn(*mut f32, f32)> = Entry::new("scale", scale);
/// assert_eq!(SCALE.name(), "scale");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Entry<F> {
    name: &'static str,
    signature: PhantomData<F>,
}

impl<F: Copy> Entry<F> {
    /// The kernel of this name, with the parameters of a function.
    #[must_use]
    pub const fn new(name: &'static str, _function: F) -> Self {
        Entry { name, signature: PhantomData }
    }

    /// The name in the PTX.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// A tensor map as the host encodes it, a kernel parameter by value.
///
/// The device sees only its address: in a function marked `#[kernel]`, the name of the parameter is a `*const
/// TensorMap`.
#[derive(Debug, Clone, Copy)]
// `cuda_builder` gives the parameter the 64 bytes of alignment that the unit demands; rustc cannot.
#[repr(C, align(16))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// The map with these bytes, which are the driver's own.
    #[must_use]
    pub const fn from_raw(words: [u64; 16]) -> Self {
        TensorMap(words)
    }
}
