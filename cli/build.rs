//! Tells the program which commit it was built from, by the variables `FERROTILE_GIT_HASH` and `FERROTILE_GIT_DIRTY`.
//! Both are `unknown` where this folder belongs to no repository, as in a packaged crate.

use std::path::Path;
use std::process::Command;

/// What the program is made of, relative to the repository: changes elsewhere leave a build clean.
const PARTS: [&str; 8] =
    ["Cargo.lock", "Cargo.toml", "rust-toolchain.toml", "cli", "cuda_builder", "host", "kernels-gpu", "ptx_emulator"];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // A package that lies unpacked in another repository is none of its files.
    let hash =
        git(&root, &["ls-files", "--error-unmatch", "cli/build.rs"]).and_then(|_| git(&root, &["rev-parse", "HEAD"]));
    let status = [&["status", "--porcelain", "--"][..], &PARTS].concat();
    let dirty = hash.as_ref().and_then(|_| git(&root, &status)).map(|status| !status.is_empty());
    if hash.is_some() {
        // What `rev-parse` and `status` depend on. The log of HEAD grows with every commit and checkout.
        let logs = git(&root, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| root.join(path));
        let parts = PARTS.iter().map(|part| root.join(part));
        for path in parts.chain(logs).filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    println!("cargo::rustc-env=FERROTILE_GIT_HASH={}", hash.as_deref().unwrap_or("unknown"));
    println!("cargo::rustc-env=FERROTILE_GIT_DIRTY={}", dirty.map_or("unknown".to_owned(), |dirty| dirty.to_string()));
}

/// What git prints, without the end of its last line; `None` where it fails or there is none.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
