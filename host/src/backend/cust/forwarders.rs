//! What the linker finds for the functions that cust declares and expects in libcuda. Each one calls its namesake in
//! the driver, through a table. So a program with cust needs no libcuda to link or to start either.
//!
//! Every program and library that has the feature `cust` exports these functions. The functions that this crate calls
//! too are in `backend/cuda/table.rs`.
#![allow(non_snake_case, clippy::too_many_arguments, reason = "the functions are the driver's")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use ::cust::sys::*;

use crate::backend::cuda;

cuda::table! {
    forwarded {
        cuArray3DCreate_v2(handle: *mut CUarray, allocate_array: *const CUDA_ARRAY3D_DESCRIPTOR);
        cuArray3DGetDescriptor_v2(array_descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
        cuArrayDestroy(array: CUarray);
        cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
        cuCtxDestroy_v2(context: CUcontext);
        cuCtxGetApiVersion(context: CUcontext, version: *mut c_uint);
        cuCtxGetCacheConfig(config: *mut CUfunc_cache);
        cuCtxGetDevice(device: *mut CUdevice);
        cuCtxGetFlags(flags: *mut c_uint);
        cuCtxGetLimit(value: *mut usize, limit: CUlimit);
        cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
        cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
        cuCtxSetCacheConfig(config: CUfunc_cache);
        cuCtxSetLimit(limit: CUlimit, value: usize);
        cuCtxSetSharedMemConfig(config: CUsharedconfig);
        cuDestroyExternalMemory(ext_mem: CUexternalMemory);
        cuDevicePrimaryCtxReset_v2(device: CUdevice);
        cuDevicePrimaryCtxSetFlags_v2(device: CUdevice, flags: c_uint);
        cuEventQuery(event: CUevent);
        cuExternalMemoryGetMappedBuffer(
            dev_ptr: *mut CUdeviceptr, ext_mem: CUexternalMemory, buffer_desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
        );
        cuFuncSetCacheConfig(function: CUfunction, config: CUfunc_cache);
        cuFuncSetSharedMemConfig(function: CUfunction, config: CUsharedconfig);
        cuGraphAddKernelNode(
            graph_node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize,
            node_params: *const CUDA_KERNEL_NODE_PARAMS
        );
        cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
        cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
        cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
        cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
        cuGraphKernelNodeGetParams(node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
        cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
        cuImportExternalMemory(
            ext_mem_out: *mut CUexternalMemory, mem_handle_desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC
        );
        cuLinkAddData_v2(
            state: CUlinkState, kind: CUjitInputType, data: *mut c_void, size: usize, name: *const c_char,
            num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void
        );
        cuLinkComplete(state: CUlinkState, cubin_out: *mut *mut c_void, size_out: *mut usize);
        cuLinkCreate_v2(
            num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
            state_out: *mut CUlinkState
        );
        cuLinkDestroy(state: CUlinkState);
        cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice);
        cuMemAllocAsync(pointer: *mut CUdeviceptr, bytesize: usize, stream: CUstream);
        cuMemAllocManaged(pointer: *mut CUdeviceptr, bytesize: usize, flags: c_uint);
        cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
        cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, stream: CUstream);
        cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
        cuMemcpyAtoH_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize);
        cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize);
        cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize);
        cuMemcpyHtoA_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize);
        cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize);
        cuMemsetD16Async(dst_device: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream);
        cuMemsetD16_v2(dst_device: CUdeviceptr, value: c_ushort, count: usize);
        cuMemsetD32Async(dst_device: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
        cuMemsetD32_v2(dst_device: CUdeviceptr, value: c_uint, count: usize);
        cuMemsetD8_v2(dst_device: CUdeviceptr, value: c_uchar, count: usize);
        cuModuleGetGlobal_v2(pointer: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
        cuModuleLoad(module: *mut CUmodule, fname: *const c_char);
        cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
        cuOccupancyAvailableDynamicSMemPerBlock(
            dynamic_smem_size: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int
        );
        cuOccupancyMaxPotentialBlockSize(
            min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
            block_size_to_dynamic_smem_size: CUoccupancyB2DSize, dynamic_smem_size: usize, block_size_limit: c_int
        );
        cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
        cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
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
    }
    // For streams of cust that come in.
    own {
        cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    }
}

/// Not a plain forwarder: cust reads `text` whatever this returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorString(error: c_int, text: *mut *const c_char) -> c_int {
    // SAFETY: `text` is the caller's to write.
    unsafe { *text = cuda::error_text(error).unwrap_or(c"unknown error").as_ptr() };
    0
}
