//! Any text is a module or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ptx_emulator::Module;

fuzz_target!(|text: &str| {
    let _ = Module::parse(text);
});
