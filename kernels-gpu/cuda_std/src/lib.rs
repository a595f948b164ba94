//! Device-side standard library over rustc's in-tree `nvptx64-nvidia-cuda` target.
#![cfg(target_arch = "nvptx64")]
#![no_std]
