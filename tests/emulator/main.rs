//! The emulator itself: the library's attention kernels launched without the library, and damaged texts. What single
//! instructions do is in `ptx_emulator/tests`.

mod attention;
mod mutation;
