//! What the PTX of a device crate depends on, known before anything is compiled.
//!
//! The same inputs give the same PTX, in whatever folder the crate lies: rustc names sources relative to the workspace
//! (`-Ztrim-paths`). So the key of the inputs is made of contents and of paths within packages. It covers
//!
//! - the sources and manifests of the crate and of the packages that it takes by path,
//! - name, version, source and features of all packages that it takes,
//! - the settings of the workspace and of cargo's configuration that reach the compiler,
//! - the toolchain, the architecture, and this crate's own steps.
//!
//! A crate may depend on more: on environment variables, on files elsewhere, on what its build script finds. The
//! inputs are not known then ([`Inputs::find`] returns none), or turn out incomplete ([`Inputs::cover`]). cargo decides
//! alone in that case, and only the passes of LLVM are saved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use kernel_cache::{Key, KeyBuilder};

use crate::error::Error;
use crate::toolchain::Toolchain;
use crate::toolchain::run;

/// The tables of the workspace's manifest that reach the compiler, by the starts of their names. Device code is always
/// built in release.
const WORKSPACE_TABLES: [&str; 5] = ["profile.release", "patch", "replace", "workspace.lints", "workspace.package"];

/// The tables of cargo's configuration that reach the compiler, by the starts of their names.
const CONFIGURATION_TABLES: [&str; 6] = ["build", "patch", "profile", "source", "target", "unstable"];

/// The inputs of one device crate.
#[derive(Debug)]
pub(crate) struct Inputs {
    /// The parts of the key, in order.
    parts: Vec<Vec<u8>>,
    /// The files among the inputs.
    pub(crate) files: Vec<PathBuf>,
}

impl Inputs {
    /// The inputs of the crate `name` in `folder`, if they can be known.
    ///
    /// # Errors
    /// [`Error::Io`] if a source cannot be read.
    pub(crate) fn find(
        toolchain: &Toolchain,
        name: &str,
        folder: &Path,
        workspace: &Path,
        target: &str,
    ) -> Result<Option<Inputs>, Error> {
        let mut tree = toolchain.cargo();
        tree.current_dir(folder).args(["tree", "--package", name, "--target", target, "--edges", "normal,build"]);
        tree.args(["--prefix", "none", "--no-dedupe", "--color", "never", "--format", "{p}|{f}"]);
        // Where cargo cannot say, or says it in a form of its own, the build itself reports what is wrong.
        let Ok(output) = run(&mut tree) else { return Ok(None) };
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.dedup();

        let canonical = |path: &Path| fs::canonicalize(path).ok();
        let mut inputs = Inputs { parts: Vec::new(), files: Vec::new() };
        let mut crate_is_listed = false;
        for line in lines {
            let Some(package) = Package::parse(line) else { return Ok(None) };
            inputs.add_part(&package.name);
            inputs.add_part(package.features);
            let Some(path) = package.path else { continue };
            crate_is_listed |= canonical(path) == canonical(folder);
            // The folder within the workspace stands in the names of sources.
            inputs.add_part(path.strip_prefix(workspace).unwrap_or(Path::new("")).to_string_lossy().as_ref());
            if !inputs.add_package(path)? {
                return Ok(None);
            }
        }
        if !crate_is_listed {
            return Ok(None);
        }
        inputs.add_settings(folder, workspace)?;
        inputs.files.extend(["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"].map(|file| workspace.join(file)));
        inputs.files.retain(|file| file.is_file());
        inputs.files.sort();
        inputs.files.dedup();
        Ok(Some(inputs))
    }

    /// Adds the inputs to a key.
    pub(crate) fn add_to(&self, key: KeyBuilder) -> KeyBuilder {
        self.parts.iter().fold(key.add(self.parts.len().to_string()), |key, part| key.add(part))
    }

    /// Whether all these sources are among the inputs, or are of the toolchain.
    pub(crate) fn cover(&self, sources: &[PathBuf], toolchain: &Toolchain) -> bool {
        sources.iter().all(|source| self.files.contains(source) || source.starts_with(&toolchain.sysroot))
    }

    /// Whether a source differs from what [`record`](Self::record) wrote and yet looks older than the record. cargo
    /// would take it for unchanged, and the cache would keep a stale module under the key of new sources. Without a
    /// record nobody knows.
    ///
    /// # Errors
    /// [`Error::Io`] if a source cannot be read.
    pub(crate) fn may_look_unchanged(&self, record: &Path) -> Result<bool, Error> {
        let recorded = fs::read_to_string(record).ok().zip(fs::metadata(record).and_then(|file| file.modified()).ok());
        let Some((text, recorded_at)) = recorded else { return Ok(true) };
        let hashes = recorded_hashes(&text);
        for file in &self.files {
            let modified = fs::metadata(file).and_then(|file| file.modified()).map_err(Error::io(file))?;
            if modified > recorded_at {
                continue;
            }
            if let Some(hash) = hashes.get(file.as_path())
                && *hash != content_hash(file)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Adds what the sources are to the record of a target folder, which all its crates share: they compile some
    /// libraries once for all.
    ///
    /// # Errors
    /// [`Error::Io`] if a source cannot be read or the record cannot be written.
    pub(crate) fn record(&self, record: &Path) -> Result<(), Error> {
        let text = fs::read_to_string(record).unwrap_or_default();
        let mut lines: BTreeMap<&Path, String> =
            recorded_hashes(&text).into_iter().map(|(file, hash)| (file, hash.to_owned())).collect();
        for file in &self.files {
            lines.insert(file, content_hash(file)?);
        }
        let text: String = lines.iter().map(|(file, hash)| format!("{hash} {}\n", file.display())).collect();
        fs::write(record, text).map_err(Error::io(record))
    }

    fn add_part(&mut self, part: impl AsRef<[u8]>) {
        self.parts.push(part.as_ref().to_vec());
    }

    /// Adds manifest and sources of a package. Returns whether they are all that its compilation reads.
    fn add_package(&mut self, path: &Path) -> Result<bool, Error> {
        let manifest = self.add_file(path.join("Cargo.toml"), path)?;
        let names_a_build_script =
            manifest.lines().any(|line| line.strip_prefix("build").is_some_and(|rest| rest.trim().starts_with('=')));
        let mut is_all = !names_a_build_script && !path.join("build.rs").exists();
        let mut folders = vec![path.join("src")];
        while let Some(folder) = folders.pop() {
            let Ok(items) = fs::read_dir(&folder) else { continue };
            let mut items: Vec<_> = items.flatten().collect();
            items.sort_by_key(fs::DirEntry::path);
            for item in items {
                let kind = item.file_type().map_err(Error::io(item.path()))?;
                if kind.is_dir() {
                    folders.push(item.path());
                } else if kind.is_file() {
                    // `env!` and `option_env!` read what is not here.
                    is_all &= !self.add_file(item.path(), path)?.contains("env!(");
                } else {
                    is_all = false;
                }
            }
        }
        Ok(is_all)
    }

    /// Adds a file under its name within `root` and returns what it says.
    fn add_file(&mut self, path: PathBuf, root: &Path) -> Result<String, Error> {
        let content = fs::read(&path).map_err(Error::io(&path))?;
        let name = path.strip_prefix(root).unwrap_or(&path).components();
        self.add_part(name.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/"));
        self.add_part(&content);
        self.files.push(path);
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    /// Adds what concerns all packages: tables of the workspace's manifest, and cargo's configuration.
    fn add_settings(&mut self, folder: &Path, workspace: &Path) -> Result<(), Error> {
        let manifest = workspace.join("Cargo.toml");
        let text = fs::read_to_string(&manifest).map_err(Error::io(&manifest))?;
        self.add_part(tables(&text, &WORKSPACE_TABLES));
        let homes =
            [std::env::var_os("CARGO_HOME").map(PathBuf::from), std::env::home_dir().map(|home| home.join(".cargo"))];
        let local = folder.ancestors().map(|ancestor| ancestor.join(".cargo"));
        for configuration in local.chain(homes.into_iter().flatten()) {
            for file in ["config.toml", "config"].map(|name| configuration.join(name)) {
                if let Ok(text) = fs::read_to_string(&file) {
                    self.add_part(tables(&text, &CONFIGURATION_TABLES));
                    self.files.push(file);
                }
            }
        }
        Ok(())
    }
}

/// The hash of each file of a record.
fn recorded_hashes(text: &str) -> BTreeMap<&Path, &str> {
    text.lines().filter_map(|line| line.split_once(' ')).map(|(hash, file)| (Path::new(file), hash)).collect()
}

fn content_hash(file: &Path) -> Result<String, Error> {
    let content = fs::read(file).map_err(Error::io(file))?;
    Ok(Key::builder("file").add(content).finish().to_string())
}

/// A line of `cargo tree`.
#[derive(Debug, PartialEq, Eq)]
struct Package<'a> {
    /// Name, version and source, without the path.
    name: String,
    features: &'a str,
    /// The folder of a package that is taken by path.
    path: Option<&'a Path>,
}

impl<'a> Package<'a> {
    /// Reads `syn v3.0.1|full,parsing` or `layout v0.1.0 (/folder)|`, with `(proc-macro)` before or behind the folder.
    fn parse(line: &'a str) -> Option<Package<'a>> {
        let (package, features) = line.rsplit_once('|')?;
        let path = package.split(" (").skip(1).map(|part| Path::new(part.trim_end().trim_end_matches(')')));
        let path = path.filter(|path| path.is_absolute()).last();
        let name = match path {
            Some(path) => package.replace(path.to_str()?, "path"),
            None => package.to_owned(),
        };
        name.contains(" v").then_some(Package { name, features, path })
    }
}

/// The tables of a manifest whose names start so, and what stands before the first table.
fn tables(manifest: &str, names: &[&str]) -> String {
    let mut is_wanted = true;
    let mut wanted = String::new();
    for line in manifest.lines() {
        if let Some(header) = line.trim_start().strip_prefix('[') {
            let header = header.trim_start_matches('[').trim_start();
            is_wanted = names.iter().any(|name| header.starts_with(name));
        }
        if is_wanted {
            wanted.push_str(line);
            wanted.push('\n');
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_tree_are_read() {
        let parse = |line| Package::parse(line).unwrap();
        let library = parse("layout v0.1.0 (/a b/layout)|");
        assert_eq!((library.name.as_str(), library.path), ("layout v0.1.0 (path)", Some(Path::new("/a b/layout"))));
        let macros = parse("cuda_std_macros v0.1.0 (proc-macro) (/w/macros)|full");
        assert_eq!((macros.path, macros.features), (Some(Path::new("/w/macros")), "full"));
        let registry = parse("syn v3.0.10|default,full");
        assert_eq!((registry.name.as_str(), registry.path, registry.features), ("syn v3.0.10", None, "default,full"));
        let git = parse("thing v1.0.0 (https://host/thing?rev=1#0123abcd)|");
        assert_eq!((git.name.as_str(), git.path), ("thing v1.0.0 (https://host/thing?rev=1#0123abcd)", None));
        assert_eq!(Package::parse("error: no such package"), None);
    }

    #[test]
    fn only_the_tables_that_reach_the_compiler_count() {
        let manifest = "a = 1\n[workspace]\nmembers = []\n[workspace.lints.rust]\nb = 1\n[dependencies]\nc = 1\n\
                        [profile.release]\nlto = true\n[[bin]]\nd = 1\n";
        let expected = "a = 1\n[workspace.lints.rust]\nb = 1\n[profile.release]\nlto = true\n";
        assert_eq!(tables(manifest, &WORKSPACE_TABLES), expected);
    }
}
