//! One tiny kernel for each PTX wrapper of `cuda_std`, for tests only.
#![cfg(target_arch = "nvptx64")]
#![no_std]
