//! The driver's functions: a table of their addresses, which the first call of any of them fills.
//!
//! No other crate defines or declares these functions for this one, so a program needs no libcuda to link or to start,
//! and a library that is made of it has no symbol of the driver. Without a driver each call returns
//! `CUDA_ERROR_NO_DEVICE`; where the driver lacks the function, `CUDA_ERROR_NOT_FOUND`.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the functions are the driver's")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

// The driver's types, of which this crate knows the size alone.
pub(crate) type CUcontext = *mut c_void;
pub(crate) type CUdevice = c_int;
pub(crate) type CUdeviceptr = u64;
pub(crate) type CUevent = *mut c_void;
pub(crate) type CUfunction = *mut c_void;
pub(crate) type CUgraph = *mut c_void;
pub(crate) type CUgraphExec = *mut c_void;
pub(crate) type CUhostFn = Option<unsafe extern "system" fn(*mut c_void)>;
pub(crate) type CUmodule = *mut c_void;
pub(crate) type CUstream = *mut c_void;

// Values of the driver's enums.
pub(super) const DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: c_uint = 16;
pub(super) const DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_uint = 75;
pub(super) const DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_uint = 76;
pub(super) const DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: c_uint = 97;
pub(super) const FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_uint = 0;
pub(super) const FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: c_uint = 1;
pub(super) const FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: c_uint = 3;
pub(super) const FUNC_ATTRIBUTE_NUM_REGS: c_uint = 4;
pub(super) const FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: c_uint = 8;
pub(super) const JIT_ERROR_LOG_BUFFER: c_uint = 5;
pub(super) const JIT_ERROR_LOG_BUFFER_SIZE_BYTES: c_uint = 6;
pub(super) const STREAM_CAPTURE_MODE_THREAD_LOCAL: c_uint = 1;
pub(super) const STREAM_CAPTURE_STATUS_NONE: c_uint = 0;
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;

/// `CUlaunchConfig` of cuda.h.
#[repr(C)]
pub(crate) struct LaunchConfigEx {
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    pub(super) shared_bytes: c_uint,
    pub(super) stream: CUstream,
    pub(super) attributes: *const LaunchAttribute,
    pub(super) attribute_count: c_uint,
}

/// `CUlaunchAttribute` of cuda.h, whose value is a union of 64 bytes.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: [c_uint; 16],
}

impl LaunchAttribute {
    pub(super) fn cluster([x, y, z]: [u32; 3]) -> Self {
        const CLUSTER_DIMENSION: c_uint = 4;
        let mut value = [0; 16];
        value[..3].copy_from_slice(&[x, y, z]);
        LaunchAttribute { id: CLUSTER_DIMENSION, padding: 0, value }
    }

    pub(super) fn overlaps() -> Self {
        const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
        let mut value = [0; 16];
        value[0] = 1;
        LaunchAttribute { id: PROGRAMMATIC_STREAM_SERIALIZATION, padding: 0, value }
    }
}

/// Makes a table, and a function for each `name(argument: type, ..);`, which returns the driver's code as it is.
/// `cuInit(flags: c_uint);` becomes
///
/// ```text
/// struct Table { cuInit: Option<unsafe extern "system" fn(c_uint) -> c_int>, .. }
/// pub(crate) unsafe fn cuInit(flags: c_uint) -> c_int { match TABLE.cuInit { .. } }
/// ```
///
/// With the feature `cust`, those under `forwarded` are also what the linker finds for the declarations of cust.
macro_rules! table {
    (forwarded { $($forwarded:tt)* } own { $($own:tt)* }) => {
        $crate::backend::cuda::table! { @functions $($forwarded)* $($own)* }
        #[cfg(feature = "cust")]
        $crate::backend::cuda::table! { @forwarders $($forwarded)* }
    };
    (@functions $($name:ident($($argument:ident: $kind:ty),*);)*) => {
        struct Table { $($name: Option<unsafe extern "system" fn($($kind),*) -> c_int>),* }

        static TABLE: std::sync::LazyLock<Table> = std::sync::LazyLock::new(|| Table {
            // SAFETY: the driver's functions of these names have these types (cuda.h).
            $($name: unsafe { $crate::backend::cuda::function(concat!(stringify!($name), "\0")) }),*
        });
        $(
            /// # Safety
            /// The conditions of the driver's function.
            pub(crate) unsafe fn $name($($argument: $kind),*) -> c_int {
                match TABLE.$name {
                    // SAFETY: the caller upholds the conditions of the driver's function.
                    Some(function) => unsafe { function($($argument),*) },
                    None => $crate::backend::cuda::missing(),
                }
            }
        )*
    };
    (@forwarders $($name:ident($($argument:ident: $kind:ty),*);)*) => {
        mod forwarders {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                unsafe extern "system" fn $name($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller upholds the conditions of the driver's function.
                    $crate::backend::cuda::known_to_cust(unsafe { super::$name($($argument),*) })
                }
            )*
        }
    };
}
pub(crate) use table;

/// A code as cust may read it: as an enum of those that CUDA 11.4 has. Any other value would be undefined behaviour.
#[cfg(feature = "cust")]
pub(crate) fn known_to_cust(code: c_int) -> c_int {
    const UNKNOWN: c_int = 999;
    match code {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400..=401 | 500 | 600 => code,
        700..=705 | 708..=720 | 800..=809 | 900..=911 => code,
        _ => UNKNOWN,
    }
}

table! {
    // What cust calls too.
    forwarded {
        cuCtxGetCurrent(context: *mut CUcontext);
        cuCtxPopCurrent_v2(context: *mut CUcontext);
        cuCtxPushCurrent_v2(context: CUcontext);
        cuCtxSetCurrent(context: CUcontext);
        cuCtxSynchronize();
        cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
        cuDeviceGetAttribute(value: *mut c_int, attrib: c_uint, device: CUdevice);
        cuDeviceGetCount(count: *mut c_int);
        cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
        cuDriverGetVersion(driver_version: *mut c_int);
        cuEventCreate(event: *mut CUevent, flags: c_uint);
        cuEventDestroy_v2(event: CUevent);
        cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
        cuEventRecord(event: CUevent, stream: CUstream);
        cuEventSynchronize(event: CUevent);
        cuFuncGetAttribute(value: *mut c_int, attrib: c_uint, function: CUfunction);
        cuGraphDestroy(graph: CUgraph);
        cuInit(flags: c_uint);
        cuLaunchHostFunc(stream: CUstream, callback: CUhostFn, user_data: *mut c_void);
        cuLaunchKernel(
            function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
            block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
            kernel_params: *mut *mut c_void, extra: *mut *mut c_void
        );
        cuMemAllocHost_v2(pointer: *mut *mut c_void, bytesize: usize);
        cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytesize: usize);
        cuMemFreeHost(pointer: *mut c_void);
        cuMemFree_v2(pointer: CUdeviceptr);
        cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
        cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
        cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream);
        cuMemsetD8Async(dst_device: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
        cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
        cuModuleLoadDataEx(
            module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut c_uint,
            option_values: *mut *mut c_void
        );
        cuModuleUnload(module: CUmodule);
        cuOccupancyMaxActiveBlocksPerMultiprocessor(
            num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize
        );
        cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
        cuStreamDestroy_v2(stream: CUstream);
        cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
        cuStreamSynchronize(stream: CUstream);
        cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    }
    own {
        cuGetErrorName(error: c_int, text: *mut *const c_char);
        cuGetErrorString(error: c_int, text: *mut *const c_char);
        cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
        cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
        cuGraphInstantiateWithFlags(graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
        cuGraphLaunch(graph_exec: CUgraphExec, stream: CUstream);
        cuGraphExecDestroy(graph_exec: CUgraphExec);
        cuStreamGetCaptureInfo_v2(
            stream: CUstream, status: *mut c_uint, id: *mut u64, graph: *mut CUgraph,
            dependencies: *mut *const *mut c_void, num_dependencies: *mut usize
        );
        cuUserObjectCreate(
            object: *mut *mut c_void, value: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint
        );
        cuUserObjectRelease(object: *mut c_void, count: c_uint);
        cuGraphRetainUserObject(graph: CUgraph, object: *mut c_void, count: c_uint, flags: c_uint);
        cuFuncSetAttribute(function: CUfunction, attrib: c_uint, value: c_int);
        cuStreamGetId(stream: CUstream, id: *mut u64);
        cuTensorMapEncodeTiled(
            map: *mut [u64; 16], data_type: c_uint, rank: c_uint, address: *mut c_void, dims: *const u64,
            strides_bytes: *const u64, box_dims: *const u32, element_strides: *const u32, interleave: c_uint,
            swizzle: c_uint, l2_promotion: c_uint, out_of_bounds_fill: c_uint
        );
        cuLaunchKernelEx(
            config: *const LaunchConfigEx, function: CUfunction, kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_structs_have_the_sizes_of_cuda_h() {
        assert_eq!(size_of::<LaunchAttribute>(), 72);
        assert_eq!(size_of::<LaunchConfigEx>(), 56);
        assert_eq!(std::mem::offset_of!(LaunchConfigEx, stream), 32);
        assert_eq!(std::mem::offset_of!(LaunchAttribute, value), 8);
    }

    #[cfg(feature = "cust")]
    #[test]
    fn values_are_those_of_cuda_h() {
        use ::cust::sys::{CUdevice_attribute as D, CUfunction_attribute as F, CUjit_option as J};
        use ::cust::sys::{CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus};
        let of_cuda_h = [
            D::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as c_uint,
            D::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_uint,
            D::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_uint,
            D::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN as c_uint,
            F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK as c_uint,
            F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as c_uint,
            F::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES as c_uint,
            F::CU_FUNC_ATTRIBUTE_NUM_REGS as c_uint,
            F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as c_uint,
            J::CU_JIT_ERROR_LOG_BUFFER as c_uint,
            J::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as c_uint,
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint,
            CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint,
        ];
        let ours = [
            DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
            DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
            DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
            FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
            FUNC_ATTRIBUTE_NUM_REGS,
            FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
            JIT_ERROR_LOG_BUFFER,
            JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            STREAM_CAPTURE_MODE_THREAD_LOCAL,
            STREAM_CAPTURE_STATUS_NONE,
            STREAM_NON_BLOCKING,
        ];
        assert_eq!(ours, of_cuda_h);
    }
}
