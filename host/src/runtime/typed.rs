//! Kernels whose parameters the compiler knows: launches with arguments of the right types.

use std::fmt;
use std::marker::PhantomData;

use half::{bf16, f16};
use layout::Entry;

use crate::backend::LaunchConfig;
use crate::error::Result;
use crate::runtime::buffer::Buffer;
use crate::runtime::buffer_slice::{BufferSlice, BufferSliceMut};
use crate::runtime::module::{Kernel, Module};
use crate::runtime::param::KernelValue;
use crate::runtime::stream::StreamRef;
use crate::runtime::tensor_map::TensorMap;

/// A kernel with the types of its parameters, as a function type: `TypedKernel<unsafe fn(*mut f32, usize)>`.
///
/// A crate of kernels that the host program depends on has an [`Entry`] for each `#[kernel]`, made of its declaration.
/// So a launch with other arguments does not compile.
///
/// ```
/// # mod kernels {
/// #     unsafe fn nothing(_to: *mut f32, _len: usize) {}
/// #     #[allow(non_upper_case_globals)]
/// #     pub const fill: layout::Entry<unsafe fn(*mut f32, usize)> = layout::Entry::new("fill", nothing);
/// # }
/// # const PTX: &str = ".version 7.0 .target sm_80 .address_size 64
/// # .visible .entry fill(.param .u64 to, .param .u64 len) { ret; }";
/// use ferrotile::{Arch, Buffer, Gpu, LaunchConfig};
///
/// let gpu = Gpu::emulated(Arch::Sm80);
/// let stream = gpu.new_stream()?;
/// let mut buffer = Buffer::<f32>::zeroed(&gpu, 100)?;
/// let len = buffer.len();
///
/// // `kernels::fill` was declared as `#[kernel] pub unsafe fn fill(to: *mut f32, len: usize)`.
/// let fill = gpu.load_ptx(PTX)?.typed_kernel(kernels::fill)?;
/// // SAFETY: the PTX is that of `kernels`, and the buffer has `len` elements.
/// unsafe { fill.launch(&stream, &LaunchConfig::of_blocks(1, 128), (&mut buffer, len)) }?;
/// stream.synchronize()?;
/// # Ok::<(), ferrotile::Error>(())
/// ```
///
/// A buffer of other elements, or one too few:
///
/// ```compile_fail,E0277
/// # use ferrotile::{Buffer, LaunchConfig, Stream, TypedKernel};
/// # fn launch(fill: &TypedKernel<unsafe fn(*mut f32, usize)>, stream: &Stream, buffer: &mut Buffer<u32>) {
/// unsafe { fill.launch(stream, &LaunchConfig::of_blocks(1, 128), (buffer, 100_usize)) };
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # use ferrotile::{Buffer, LaunchConfig, Stream, TypedKernel};
/// # fn launch(fill: &TypedKernel<unsafe fn(*mut f32, usize)>, stream: &Stream, buffer: &mut Buffer<f32>) {
/// unsafe { fill.launch(stream, &LaunchConfig::of_blocks(1, 128), (buffer,)) };
/// # }
/// ```
pub struct TypedKernel<F> {
    kernel: Kernel,
    signature: PhantomData<F>,
}

impl Module {
    /// The kernel that another crate declares, with the types of its parameters.
    ///
    /// # Errors
    /// [`Error::NoKernel`](crate::Error::NoKernel) where the module has none of that name.
    pub fn typed_kernel<F: Copy>(&self, entry: Entry<F>) -> Result<TypedKernel<F>> {
        Ok(TypedKernel { kernel: self.kernel(entry.name())?, signature: PhantomData })
    }
}

impl<F> TypedKernel<F> {
    /// The same kernel without the types.
    #[must_use]
    pub const fn as_kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Enqueues the kernel with a tuple of its arguments. [`Argument`] says what a parameter takes.
    ///
    /// # Safety
    /// The module's PTX is that of the crate which declares the kernel. Memory is valid for the accesses that the
    /// kernel makes with this configuration, and stays so until the kernel has finished.
    ///
    /// # Errors
    /// Those of [`Kernel::launch`].
    pub unsafe fn launch<'s>(
        &self,
        stream: impl Into<StreamRef<'s>>,
        config: &LaunchConfig,
        arguments: impl Arguments<F>,
    ) -> Result<()> {
        // SAFETY: the arguments have the types of the parameters; the rest is the caller's promise.
        unsafe { arguments.launch(&self.kernel, stream.into(), config) }
    }
}

impl<F> Clone for TypedKernel<F> {
    fn clone(&self) -> Self {
        TypedKernel { kernel: self.kernel.clone(), signature: PhantomData }
    }
}

impl<F> fmt::Debug for TypedKernel<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedKernel").field(&self.kernel).finish()
    }
}

mod sealed {
    pub trait Sealed {}
}

/// What a launch takes for a parameter of type `P`.
///
/// | the parameter | its argument |
/// | --- | --- |
/// | a number, an address, a struct with `#[derive(KernelParam)]` | the same |
/// | `*const T` | `&Buffer<T>`, [`BufferSlice<T>`](crate::BufferSlice) |
/// | `*mut T` | `&mut Buffer<T>`, [`BufferSliceMut<T>`](crate::BufferSliceMut) |
/// | `u16` | also [`half::f16`] and [`half::bf16`], the bits |
/// | `TensorMap` of `cuda_std` | [`&TensorMap`](crate::TensorMap) |
///
/// Memory of `f16` enters as `*const u16` by `cast`: `buffer.as_slice().cast::<u16>()`.
#[diagnostic::on_unimplemented(
    message = "a kernel does not take `{Self}` for a parameter of type `{P}`",
    note = "`*const T` takes `&Buffer<T>`, `*mut T` takes `&mut Buffer<T>`, and numbers and structs take themselves"
)]
pub trait Argument<P> {
    /// The parameter.
    fn into_param(self) -> P;
}

impl<P: KernelValue> Argument<P> for P {
    fn into_param(self) -> P {
        self
    }
}

impl<T> Argument<*const T> for &Buffer<T> {
    fn into_param(self) -> *const T {
        self.as_raw() as *const T
    }
}

impl<T> Argument<*mut T> for &mut Buffer<T> {
    fn into_param(self) -> *mut T {
        self.as_raw() as *mut T
    }
}

impl<T> Argument<*const T> for BufferSlice<'_, T> {
    fn into_param(self) -> *const T {
        self.as_raw() as *const T
    }
}

impl<T> Argument<*mut T> for BufferSliceMut<'_, T> {
    fn into_param(self) -> *mut T {
        self.as_raw() as *mut T
    }
}

impl Argument<u16> for f16 {
    fn into_param(self) -> u16 {
        self.to_bits()
    }
}

impl Argument<u16> for bf16 {
    fn into_param(self) -> u16 {
        self.to_bits()
    }
}

// SAFETY: the same 128 opaque bytes, which nothing refers to.
unsafe impl KernelValue for layout::TensorMap {}

impl Argument<layout::TensorMap> for &TensorMap {
    fn into_param(self) -> layout::TensorMap {
        layout::TensorMap::from_raw(self.as_raw())
    }
}

/// A tuple of [`Argument`]s for the parameters of a kernel, of which there are up to 16.
#[diagnostic::on_unimplemented(
    message = "a kernel with the parameters of `{F}` does not take `{Self}`",
    note = "the tuple has one argument for each parameter, in their order"
)]
pub trait Arguments<F>: sealed::Sealed {
    /// Enqueues the kernel.
    ///
    /// # Safety
    /// As for [`TypedKernel::launch`].
    #[doc(hidden)]
    unsafe fn launch(self, kernel: &Kernel, stream: StreamRef<'_>, config: &LaunchConfig) -> Result<()>;
}

/// Implements [`Arguments`] for a tuple and all shorter ones: `arguments!(A a P, B b Q)` for `(A, B)`, which serves
/// `unsafe fn(P, Q)`, for `(B,)` and for `()`.
macro_rules! arguments {
    ($($argument:ident $name:ident $param:ident),*) => {
        impl<$($argument),*> sealed::Sealed for ($($argument,)*) {}

        impl<$($argument: Argument<$param>, $param: KernelValue),*> Arguments<unsafe fn($($param),*)>
            for ($($argument,)*)
        {
            unsafe fn launch(self, kernel: &Kernel, stream: StreamRef<'_>, config: &LaunchConfig) -> Result<()> {
                let ($($name,)*) = self;
                $(let $name = $name.into_param();)*
                // SAFETY: as required of the caller.
                unsafe { kernel.launch(stream, config, &[$(&$name),*]) }
            }
        }

        arguments!(behind $($argument $name $param),*);
    };
    (behind) => {};
    (behind $a:ident $n:ident $p:ident $(, $argument:ident $name:ident $param:ident)*) => {
        arguments!($($argument $name $param),*);
    };
}

arguments!(
    A0 a0 P0, A1 a1 P1, A2 a2 P2, A3 a3 P3, A4 a4 P4, A5 a5 P5, A6 a6 P6, A7 a7 P7, A8 a8 P8, A9 a9 P9, A10 a10 P10,
    A11 a11 P11, A12 a12 P12, A13 a13 P13, A14 a14 P14, A15 a15 P15
);
