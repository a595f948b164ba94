//! The driver's functions as this crate defines them: each one finds its namesake in the loaded library and calls it.
//!
//! cust declares these functions and expects a linker to find them in libcuda. It finds those of [`exported`] instead,
//! so a program needs no libcuda to link or to start. Without a driver each call returns `CUDA_ERROR_NO_DEVICE`; where
//! the driver lacks the function, `CUDA_ERROR_NOT_FOUND`.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the functions are the driver's")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::sync::OnceLock;

use cust::sys::*;

use super::load;

pub(super) const NO_DEVICE: c_int = 100;
pub(super) const INVALID_PTX: c_int = 218;
pub(super) const NOT_FOUND: c_int = 500;
/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
pub(super) const CAPTURE_UNSUPPORTED: c_int = 900;
const UNKNOWN: c_int = 999;

/// `CUlaunchConfig` of cuda.h.
#[repr(C)]
pub(super) struct LaunchConfigEx {
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

/// Defines two functions for each `name(argument: type, ..);`: one of this module, which returns the driver's code as
/// it is, and its namesake in [`exported`], which cust links against:
///
/// ```text
/// pub(super) unsafe fn cuInit(flags: c_uint) -> c_int { .. }
/// mod exported { #[unsafe(no_mangle)] unsafe extern "C" fn cuInit(flags: c_uint) -> c_int { .. } }
/// ```
macro_rules! forward {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {
        $(
            /// # Safety
            /// The conditions of the driver's function.
            pub(super) unsafe fn $name($($argument: $kind),*) -> c_int {
                static FOUND: OnceLock<Option<unsafe extern "C" fn($($kind),*) -> c_int>> = OnceLock::new();
                let found = FOUND.get_or_init(|| {
                    let address = load::symbol(concat!(stringify!($name), "\0").as_bytes())?;
                    // SAFETY: the driver's function of this name has this type (cuda.h).
                    Some(unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($kind),*) -> c_int>(address) })
                });
                match found {
                    // SAFETY: the caller upholds the conditions of the driver's function.
                    Some(function) => unsafe { function($($argument),*) },
                    None if load::absence().is_some() => NO_DEVICE,
                    None => NOT_FOUND,
                }
            }
        )*

        /// What the linker finds for the declarations of cust.
        mod exported {
            use super::*;
            $(
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
                    // SAFETY: the caller upholds the conditions of the driver's function.
                    known_to_cust(unsafe { super::$name($($argument),*) })
                }
            )*
        }
    };
}

forward! {
    // What cust calls.
    cuArray3DCreate_v2(handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
    cuArray3DGetDescriptor_v2(array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
    cuArrayDestroy(array: CUarray);
    cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    cuCtxDestroy_v2(context: CUcontext);
    cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
    cuCtxGetCacheConfig(config: *mut CUfunc_cache);
    cuCtxGetCurrent(context: *mut CUcontext);
    cuCtxGetDevice(device: *mut CUdevice);
    cuCtxGetFlags(flags: *mut c_uint);
    cuCtxGetLimit(value: *mut usize, limit: CUlimit);
    cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
    cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuCtxSetCacheConfig(config: CUfunc_cache);
    cuCtxSetCurrent(context: CUcontext);
    cuCtxSetLimit(limit: CUlimit, value: usize);
    cuCtxSetSharedMemConfig(config: CUsharedconfig);
    cuCtxSynchronize();
    cuDestroyExternalMemory(ext_mem: CUexternalMemory);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attrib: CUdevice_attribute, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxReset_v2(device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuDriverGetVersion(driver_version: *mut c_int);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    cuEventQuery(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuExternalMemoryGetMappedBuffer(
        dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    );
    cuFuncGetAttribute(value: *mut c_int, attrib: CUfunction_attribute, function: CUfunction);
    cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
    cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig);
    cuGraphAddKernelNode(
        graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
        node_params: *const CUDA_KERNEL_NODE_PARAMS
    );
    cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
    cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
    cuGraphDestroy(graph: CUgraph);
    cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
    cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
    cuGraphKernelNodeGetParams(node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
    cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
    cuImportExternalMemory(
        ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    );
    cuInit(flags: c_uint);
    cuLaunchHostFunc(stream: CUstream, callback: CUhostFn, user_data: *mut c_void);
    cuLaunchKernel(
        function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint, block_dim_x: c_uint,
        block_dim_y: c_uint, block_dim_z: c_uint, shared_mem_bytes: c_uint, stream: CUstream,
        kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuLinkAddData_v2(
        state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void
    );
    cuLinkComplete(state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize);
    cuLinkCreate_v2(
        num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void, state_out: *mut CUlinkState
    );
    cuLinkDestroy(state: CUlinkState);
    cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);
    cuMemAllocAsync(pointer: *mut CUdeviceptr, bytesize: usize, stream: CUstream);
    cuMemAllocHost_v2(pointer: *mut *mut c_void, bytesize: usize);
    cuMemAllocManaged(pointer: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
    cuMemAlloc_v2(pointer: *mut CUdeviceptr, bytesize: usize);
    cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
    cuMemFreeHost(pointer: *mut c_void);
    cuMemFree_v2(pointer: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream);
    cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
    cuMemcpyAtoH_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize);
    cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
    cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
    cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, stream: CUstream);
    cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
    cuMemcpyHtoA_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize);
    cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, stream: CUstream);
    cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
    cuMemsetD16Async(dst_device: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
    cuMemsetD16_v2(dst_device: CUdeviceptr, value: c_ushort, count: usize);
    cuMemsetD32Async(dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    cuMemsetD32_v2(dst_device: CUdeviceptr, value: c_uint, count: usize);
    cuMemsetD8Async(dst_device: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);
    cuMemsetD8_v2(dst_device: CUdeviceptr, value: c_uchar, count: usize);
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleGetGlobal_v2(pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
    cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
        option_values: *mut *mut c_void
    );
    cuModuleUnload(module: CUmodule);
    cuOccupancyAvailableDynamicSMemPerBlock(
        dynamic_smem_size: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int
    );
    cuOccupancyMaxActiveBlocksPerMultiprocessor(
        num_blocks: *mut c_int, function: CUfunction, block_size: c_int, dynamic_smem_size: usize
    );
    cuOccupancyMaxPotentialBlockSize(
        min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
        block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int
    );
    cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
    cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
    cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    cuStreamSynchronize(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuSurfObjectCreate(surf_object: *mut CUsurfObject, res_desc: *const CUDA_RESOURCE_DESC);
    cuSurfObjectDestroy(surf_object: CUsurfObject);
    cuSurfObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject);
    cuTexObjectCreate(
        tex_object: *mut CUtexObject, res_desc: *const CUDA_RESOURCE_DESC, tex_desc: *const CUDA_TEXTURE_DESC,
        res_view_desc: *const CUDA_RESOURCE_VIEW_DESC
    );
    cuTexObjectDestroy(tex_object: CUtexObject);
    cuTexObjectGetResourceDesc(res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject);
    cuTexObjectGetResourceViewDesc(res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject);

    // What this crate calls besides; the last three are newer than cust.
    cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuGraphInstantiateWithFlags(graph_exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    cuGraphLaunch(graph_exec: CUgraphExec, stream: CUstream);
    cuGraphExecDestroy(graph_exec: CUgraphExec);
    cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut u64, graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode, num_dependencies: *mut usize
    );
    cuUserObjectCreate(
        object: *mut CUuserObject, value: *mut c_void, destroy: CUhostFn, initial_refcount: c_uint, flags: c_uint
    );
    cuUserObjectRelease(object: CUuserObject, count: c_uint);
    cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint);
    cuFuncSetAttribute(function: CUfunction, attrib: CUfunction_attribute, value: c_int);
    cuStreamGetId(stream: CUstream, id: *mut u64);
    cuTensorMapEncodeTiled(
        map: *mut [u64; 16], data_type: c_uint, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides_bytes: *const u64, box_dims: *const u32, element_strides: *const u32, interleave: c_uint, swizzle: c_uint,
        l2_promotion: c_uint, out_of_bounds_fill: c_uint
    );
    cuLaunchKernelEx(
        config: *const LaunchConfigEx, function: CUfunction, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
    );
}

/// cust reads a code as an enum of those that CUDA 11.4 has; any other value would be undefined behaviour there.
fn known_to_cust(code: c_int) -> c_int {
    match code {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400..=401 | 500 | 600 => code,
        700..=705 | 708..=720 | 800..=809 | 900..=911 => code,
        _ => UNKNOWN,
    }
}

/// Not a plain forwarder: cust reads `text` whatever this returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: `text` is the caller's to write.
    unsafe { *text = load::error_text(error).unwrap_or(c"unknown error").as_ptr() };
    0
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
}
