//! Any module that loads runs to its end, or to an error.
#![no_main]

use layout::Arch;
use libfuzzer_sys::fuzz_target;
use ptx_emulator::{Device, LaunchShape, Module};

fuzz_target!(|text: &str| {
    let Ok(module) = Module::parse(text) else { return };
    let device = Device::new(Arch::Sm90a).with_instruction_limit(1 << 14);
    let Ok(out) = device.allocate(1 << 10) else { return };
    let shape = LaunchShape { block: [64, 1, 1], shared_bytes: 1 << 10, ..LaunchShape::default() };
    for kernel in module.kernels() {
        let _ = module.launch(&device, kernel, shape, &[&out.to_le_bytes()]);
    }
});
