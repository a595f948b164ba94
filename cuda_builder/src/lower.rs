//! From rustc's unoptimised LLVM module to PTX.
//!
//! `opt -O3` runs twice, as rustc's own two rounds (crate, then LTO) do: one run leaves the accumulator arrays of large
//! kernels in local memory.
//!
//! The passes take minutes for a large family. PTX from an earlier build is therefore kept while its inputs are the
//! same: the module, the tools and the steps of this crate. Contents are compared and not times, because several
//! programs build the same crate into one folder: build scripts of two profiles, and xtask.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use layout::Arch;

use crate::compact::compact;
use crate::error::Error;
use crate::lines::at_calls;
use crate::marks::mark;
use crate::toolchain::Toolchain;

/// The steps themselves: what they do to a module is part of what the PTX was made from.
const STEPS: [&str; 5] = [
    include_str!("compact.rs"),
    include_str!("lines.rs"),
    include_str!("llvm_text.rs"),
    include_str!("lower.rs"),
    include_str!("marks.rs"),
];

/// Marks the module, makes PTX of it, and returns the PTX, or what an earlier call made from the same.
pub(crate) fn lower(toolchain: &Toolchain, arch: Arch, raw_module: &Path, ptx_path: &Path) -> Result<String, Error> {
    let module = fs::read_to_string(raw_module).map_err(Error::io(raw_module))?;
    let key = key(&module, toolchain, arch);
    let key_path = ptx_path.with_extension("key");
    if fs::read_to_string(&key_path).is_ok_and(|kept| kept == key)
        && let Ok(ptx) = fs::read_to_string(ptx_path)
    {
        return Ok(ptx);
    }
    // A key vouches for the PTX beside it, and must not outlive it where this call is interrupted.
    match fs::remove_file(&key_path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io(&key_path)(error)),
        _ => {}
    }
    let marked = raw_module.with_extension("marked.ll");
    fs::write(&marked, at_calls(&mark(&module, arch)?)).map_err(Error::io(&marked))?;

    let optimised = raw_module.with_extension("opt.bc");
    // Twice, as rustc does it (for the crate, then for the merged module), and with loops unrolled whatever the
    // size of their body: a loop over a register array that stays a loop leaves the array in local memory.
    run(toolchain
        .llvm_tool("opt")
        .args(["-passes=default<O3>,default<O3>", "-unroll-threshold=4000"])
        .arg(&marked)
        .arg("-o")
        .arg(&optimised))?;
    let (major, minor) = arch.ptx_version();
    let assembly = raw_module.with_extension("s");
    run(toolchain
        .llvm_tool("llc")
        .arg("-O3")
        .arg(format!("-mcpu={arch}"))
        .arg(format!("-mattr=+ptx{major}{minor}"))
        // The chain of inlined calls would need a section of strings, and PTX 7.2.
        .arg("-line-info-inlined-at=false")
        .arg(&optimised)
        .arg("-o")
        .arg(&assembly))?;
    let ptx = compact(&fs::read_to_string(&assembly).map_err(Error::io(&assembly))?);
    fs::write(ptx_path, &ptx).map_err(Error::io(ptx_path))?;
    fs::write(&key_path, key).map_err(Error::io(&key_path))?;
    Ok(ptx)
}

/// What PTX is made from, as a hash.
fn key(module: &str, toolchain: &Toolchain, arch: Arch) -> String {
    let mut hasher = DefaultHasher::new();
    (module, &toolchain.llvm_bin, arch.ptx_version(), arch.target_cpu(), STEPS).hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Runs a tool.
pub(crate) fn run(command: &mut Command) -> Result<Output, Error> {
    let output = command.output().map_err(Error::io(command.get_program()))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Error::Tool { command: format!("{command:?}"), output: text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_is_made_again_when_what_it_is_made_from_changes() {
        let toolchain = |bin: &str| Toolchain { channel: "a".into(), sysroot: "b".into(), llvm_bin: bin.into() };
        let first = key("module", &toolchain("bin"), Arch::Sm80);
        assert_eq!(first, key("module", &toolchain("bin"), Arch::Sm80));
        assert_ne!(first, key("other", &toolchain("bin"), Arch::Sm80));
        assert_ne!(first, key("module", &toolchain("other"), Arch::Sm80));
        assert_ne!(first, key("module", &toolchain("bin"), Arch::Sm89));
    }

    #[test]
    fn kept_ptx_is_returned_for_its_module_alone() {
        let folder = std::env::temp_dir().join(format!("cuda_builder-lower-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // Tools that do not exist: whatever must be made anew is an error.
        let toolchain = Toolchain { channel: "a".into(), sysroot: "b".into(), llvm_bin: folder.join("none") };
        let (module, ptx) = (folder.join("k.ll"), folder.join("k.ptx"));
        fs::write(&module, "; a module").unwrap();
        fs::write(&ptx, "// kept").unwrap();
        let without_a_key = lower(&toolchain, Arch::Sm80, &module, &ptx);
        fs::write(ptx.with_extension("key"), key("; a module", &toolchain, Arch::Sm80)).unwrap();
        let kept = lower(&toolchain, Arch::Sm80, &module, &ptx);
        fs::write(&module, "; another module").unwrap();
        let of_another = lower(&toolchain, Arch::Sm80, &module, &ptx);
        fs::remove_dir_all(&folder).unwrap();
        assert!(without_a_key.is_err() && of_another.is_err());
        assert_eq!(kept.unwrap(), "// kept");
    }
}
