//! `cargo xtask new-kernel`.
//!
//! The folder `xtask/template` is the crate, and works where it lies. A new crate is a copy under another name, with
//! the paths of this clone, its toolchain file and its lock file.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::workspace::{self, root, target};

/// Arguments of `cargo xtask new-kernel`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The folder of the crate, whose last component becomes its name
    path: PathBuf,
    /// Checks, tests and runs the crate, also with what docs/kernel_of_your_own.md adds to it
    #[arg(long)]
    verify: bool,
}

/// The name of the template's package, and what stands for the paths of this clone.
const TEMPLATE_NAME: &str = "own-kernel";
const TEMPLATE_PATH: &str = "\"../../";

/// The page that walks through the crate.
const PAGE: &str = "docs/kernel_of_your_own.md";

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let folder = std::path::absolute(&arguments.path)?;
    let name = crate_name(&folder)?;
    ensure!(!folder.exists(), "{} is there already: name a folder that is not", folder.display());
    for file in template_files()? {
        let text = fs::read_to_string(template().join(&file)).with_context(|| file.display().to_string())?;
        workspace::write(&folder.join(&file), &fill_in(&text, name, root()))?;
    }
    for file in ["rust-toolchain.toml", "Cargo.lock"] {
        fs::copy(root().join(file), folder.join(file)).with_context(|| file.to_owned())?;
    }
    println!("{} is a crate with a kernel of its own. There,\n", folder.display());
    println!("  cargo test    runs the kernel in the emulator");
    println!("  cargo run     runs it on a card, or in the emulator where there is none\n");
    println!("{} explains it.", root().join(PAGE).display());
    if arguments.verify { verify(&folder) } else { Ok(()) }
}

/// The name of the package: that of the folder.
fn crate_name(folder: &Path) -> Result<&str> {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_name = name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_".contains(c));
    ensure!(is_name, "`{name}` is no name of a package: take small letters, digits, `-` and `_`, a letter first");
    ensure!(name != "kernels", "the package with the kernels is called `kernels` already: take another name");
    Ok(name)
}

fn template() -> PathBuf {
    root().join("xtask/template")
}

/// The files of the template, relative to its folder, without what a build leaves there.
fn template_files() -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(template().join(&folder))? {
            let path = folder.join(entry?.file_name());
            if path == Path::new("target") || path == Path::new("Cargo.lock") {
                continue;
            }
            if template().join(&path).is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// A file of the template as the crate of this name has it.
fn fill_in(text: &str, name: &str, root: &Path) -> String {
    let root = root.to_string_lossy().replace('\\', "/");
    text.replace(TEMPLATE_PATH, &format!("\"{root}/"))
        .replace(TEMPLATE_NAME, name)
        .replace(&TEMPLATE_NAME.replace('-', "_"), &name.replace('-', "_"))
}

/// Does with the crate what its author does, and then what the page says.
fn verify(folder: &Path) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        // rustup's, which takes the toolchain that the crate names.
        let mut cargo = Command::new("cargo");
        workspace::leave(&mut cargo);
        // What the crate depends on is compiled once for all crates that are verified.
        cargo.env("CARGO_TARGET_DIR", target().join("new-kernel")).current_dir(folder);
        workspace::run(cargo.args(arguments))
    };
    let check = || -> Result<()> {
        cargo(&["fmt", "--all", "--check"])?;
        cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?;
        cargo(&["test", "--workspace"])
    };
    check()?;
    cargo(&["run"])?;
    for Block { file, code } in blocks(&fs::read_to_string(root().join(PAGE))?) {
        let Some(file) = file else { continue };
        let path = folder.join(file);
        let before = fs::read_to_string(&path).with_context(|| format!("{PAGE} adds to {file}"))?;
        workspace::write(&path, &format!("{before}\n{code}"))?;
    }
    check()
}

/// A block of Rust on a page.
#[derive(Debug, PartialEq, Eq)]
struct Block<'a> {
    /// The file of the crate that the page adds the block to, which the first line of the block names:
    /// `// kernels/src/lib.rs`. Other blocks are from the template.
    file: Option<&'a str>,
    code: String,
}

/// The blocks of Rust on a page.
fn blocks(page: &str) -> Vec<Block<'_>> {
    let blocks = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next());
    blocks
        .map(|block| {
            let file =
                block.lines().next().and_then(|line| line.strip_prefix("// ")).filter(|file| file.ends_with(".rs"));
            let code = if file.is_some() { block.split_inclusive('\n').skip(1).collect() } else { block.to_owned() };
            Block { file, code }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_its_own_name_and_the_paths_of_the_clone() {
        let text = "name = \"own-kernel\"\nx = { path = \"../../host\" }\nuse own_kernel::Kernels;\n";
        let expected = "name = \"my-sum\"\nx = { path = \"/a b/host\" }\nuse my_sum::Kernels;\n";
        assert_eq!(fill_in(text, "my-sum", Path::new("/a b")), expected);
    }

    #[test]
    fn the_template_names_what_is_there() {
        let files = template_files().unwrap();
        for file in ["Cargo.toml", "build.rs", "kernels/src/lib.rs", "src/main.rs", ".gitignore"] {
            assert!(files.iter().any(|path| path == Path::new(file)), "{file}: {files:?}");
        }
        let manifest = fs::read_to_string(template().join("Cargo.toml")).unwrap();
        let paths: Vec<_> = manifest.split(TEMPLATE_PATH).skip(1).filter_map(|rest| rest.split('"').next()).collect();
        assert!(paths.len() >= 3, "{manifest}");
        for path in paths {
            assert!(root().join(path).join("Cargo.toml").is_file(), "{path}");
        }
    }

    #[test]
    fn names_that_cargo_refuses_are_refused() {
        for name in ["/a/my-sum", "/a/sum_2"] {
            assert!(crate_name(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["/a/2sum", "/a/My", "/a/my sum", "/a/kernels", "/"] {
            assert!(crate_name(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn what_the_page_shows_is_in_the_crate() {
        let page = fs::read_to_string(root().join(PAGE)).unwrap();
        let texts: Vec<_> = template_files().unwrap().iter().map(|file| template().join(file)).collect();
        let texts: Vec<_> = texts.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
        let blocks = blocks(&page);
        assert!(blocks.iter().any(|block| block.file.is_some()) && blocks.iter().any(|block| block.file.is_none()));
        for Block { code, .. } in blocks.iter().filter(|block| block.file.is_none()) {
            assert!(texts.iter().any(|text| text.contains(code)), "no file of the template has\n{code}");
        }
    }

    #[test]
    fn a_block_names_the_file_that_it_is_added_to() {
        let page = "Text.\n\n```rust\n// src/lib.rs\nfn f() {}\n```\n\n```sh\ncargo\n```\n\n```rust\nfn g() {}\n```\n";
        let expected = [(Some("src/lib.rs"), "fn f() {}\n"), (None, "fn g() {}\n")];
        assert_eq!(blocks(page), expected.map(|(file, code)| Block { file, code: code.to_owned() }));
    }
}
