//! Modules and kernels: compiling PTX, limits, launches, tensor maps.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::ptr;

use super::device::Device;
use super::error::{INVALID_PTX, check, check_recent, driver_error};
use super::load::NOT_FOUND;
use super::objects::Objects;
use super::table::{self as cuda, LaunchAttribute, LaunchConfigEx};
use crate::backend::{FunctionFacts, Handle, Launch, LaunchConfig, Modules, TiledMap};
use crate::error::{Error, Result};

impl<O: Objects> Modules for Device<O> {
    fn load_module(&self, what: &str, ptx: &str) -> Result<Handle> {
        let text = CString::new(ptx).map_err(|error| Error::Jit {
            module: what.to_owned(),
            error: driver_error(INVALID_PTX),
            log: format!("the text has a NUL at byte {}", error.nul_position()),
        })?;
        let _entered = self.enter()?;
        O::load_module(&text).map_err(|code| Error::Jit {
            module: what.to_owned(),
            error: driver_error(code),
            log: compiler_log(&text),
        })
    }

    unsafe fn unload_module(&self, module: Handle) {
        let captures = self.captures();
        if *captures > 0 {
            return;
        }
        if let Ok(_entered) = self.enter() {
            // SAFETY: the caller gives the module up, and it is unloaded only when no kernel of it is in flight.
            unsafe {
                if cuda::cuCtxSynchronize() == 0 {
                    O::unload_module(module);
                }
            }
        }
    }

    fn function(&self, module: Handle, name: &CStr) -> Result<Option<Handle>> {
        let _entered = self.enter()?;
        // SAFETY: the module is live.
        match unsafe { O::function(module, name) } {
            Ok(function) => Ok(Some(function)),
            Err(NOT_FOUND) => Ok(None),
            Err(code) => check("cuModuleGetFunction", code).map(|()| None),
        }
    }

    fn function_facts(&self, function: Handle) -> Result<FunctionFacts> {
        let _entered = self.enter()?;
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: the function is live, `value` is written.
            let code = unsafe { cuda::cuFuncGetAttribute(&mut value, attribute, function.0) };
            check("cuFuncGetAttribute", code).map(|()| value.unsigned_abs())
        };
        Ok(FunctionFacts {
            registers: attribute(cuda::FUNC_ATTRIBUTE_NUM_REGS)?,
            local_bytes: attribute(cuda::FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            static_shared_bytes: attribute(cuda::FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            max_threads: attribute(cuda::FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        })
    }

    fn allow_shared_bytes(&self, function: Handle, bytes: u32) -> Result<()> {
        let _entered = self.enter()?;
        let attribute = cuda::FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function is live.
        let code = unsafe { cuda::cuFuncSetAttribute(function.0, attribute, bytes as c_int) };
        check("cuFuncSetAttribute", code)
    }

    fn blocks_per_multiprocessor(&self, function: Handle, threads: u32, shared_bytes: u32) -> Result<u32> {
        let _entered = self.enter()?;
        let mut blocks = 0;
        // SAFETY: the function is live, `blocks` is written.
        let code = unsafe {
            cuda::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                function.0,
                threads as c_int,
                shared_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    unsafe fn launch(&self, function: Handle, stream: Handle, launch: Launch<'_>) -> Result<()> {
        let _entered = self.enter()?;
        let LaunchConfig { grid, block, cluster, shared_bytes, overlaps } = launch.config;
        let mut params: Vec<*mut c_void> = launch.params.iter().map(|(address, _)| address.cast_mut()).collect();
        let params = params.as_mut_ptr();
        if cluster == [1; 3] && !overlaps {
            // SAFETY: the caller's promise; both handles are live.
            let code = unsafe {
                cuda::cuLaunchKernel(
                    function.0,
                    grid[0],
                    grid[1],
                    grid[2],
                    block[0],
                    block[1],
                    block[2],
                    shared_bytes,
                    stream.0,
                    params,
                    ptr::null_mut(),
                )
            };
            return check("cuLaunchKernel", code);
        }
        let cluster = (cluster != [1; 3]).then(|| LaunchAttribute::cluster(cluster));
        let attributes: Vec<_> = cluster.into_iter().chain(overlaps.then(LaunchAttribute::overlaps)).collect();
        let config = LaunchConfigEx {
            grid,
            block,
            shared_bytes,
            stream: stream.0,
            attributes: attributes.as_ptr(),
            attribute_count: attributes.len() as c_uint,
        };
        // SAFETY: the caller's promise; both handles are live, `attributes` lives until the call returns.
        let code = unsafe { cuda::cuLaunchKernelEx(&config, function.0, params, ptr::null_mut()) };
        check_recent("cuLaunchKernelEx", (11, 8), code)
    }

    fn encode_tiled(&self, map: &TiledMap<'_>) -> Result<[u64; 16]> {
        const NO_INTERLEAVE: c_uint = 0;
        const L2_PROMOTION_256_BYTES: c_uint = 3;
        const OUT_OF_BOUNDS_ZEROS: c_uint = 0;
        /// The driver writes the map to a 64-byte boundary.
        #[repr(align(64))]
        struct Aligned([u64; 16]);
        let _entered = self.enter()?;
        let mut encoded = Aligned([0; 16]);
        let element_strides = [1_u32; 5];
        // SAFETY: the slices have one entry a dimension (strides one fewer), of which the caller has at most 5. The
        // driver checks the values and does not access the address.
        let code = unsafe {
            cuda::cuTensorMapEncodeTiled(
                &mut encoded.0,
                map.data_type,
                map.dims.len() as c_uint,
                ptr::without_provenance_mut(map.address as usize),
                map.dims.as_ptr(),
                map.strides_bytes.as_ptr(),
                map.box_dims.as_ptr(),
                element_strides.as_ptr(),
                NO_INTERLEAVE,
                map.swizzle,
                L2_PROMOTION_256_BYTES,
                OUT_OF_BOUNDS_ZEROS,
            )
        };
        check_recent("cuTensorMapEncodeTiled", (12, 0), code)?;
        Ok(encoded.0)
    }
}

/// What the driver's compiler says about a text that it could not compile, in a second attempt. The first has no
/// buffer for it: cust has no option for that.
fn compiler_log(text: &CStr) -> String {
    let mut log = vec![0_u8; 16 << 10];
    let mut options = [cuda::JIT_ERROR_LOG_BUFFER, cuda::JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
    // The driver takes the size in place of a pointer.
    let mut values = [log.as_mut_ptr().cast::<c_void>(), ptr::without_provenance_mut(log.len())];
    let mut module = ptr::null_mut();
    // SAFETY: `text` ends with NUL, the log has the size given, and there are two options.
    unsafe {
        let (options, values) = (options.as_mut_ptr(), values.as_mut_ptr());
        if cuda::cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 2, options, values) == 0 {
            // What failed before, as for want of memory, has not failed again.
            cuda::cuModuleUnload(module);
        }
    }
    let length = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..length]).trim_end().to_owned()
}
