//! Attention kernels.
#![cfg(target_arch = "nvptx64")]
#![no_std]
