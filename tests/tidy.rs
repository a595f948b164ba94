//! Rules about the source tree itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The longest source file, in lines.
const MAX_LINES: usize = 600;

/// The width of lines of comments and documents, in characters, which is that of code (`rustfmt.toml`).
const MAX_WIDTH: usize = 120;

/// The deepest path, in segments.
const MAX_SEGMENTS: usize = 5;

/// File and folder names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 8] = ["utils", "util", "common", "base", "helpers", "helper", "misc", "shared_code"];

/// Extensions of files that are built from others.
const GENERATED: [&str; 5] = ["ptx", "cubin", "ll", "bc", "fatbin"];

/// The root of the source tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is a folder of the tree")
}

/// Every file of the tree, relative to the root, without what version control ignores.
fn files(root: &Path) -> Vec<PathBuf> {
    fn visit(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("folders of the tree are readable").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let hidden = name.to_string_lossy().starts_with('.') && name != ".cargo" && name != ".ci";
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if hidden || (is_folder && (name == "target" || name == "bundle" || path.join("CACHEDIR.TAG").exists())) {
                continue;
            }
            if is_folder {
                visit(root, &path, files);
            } else {
                files.push(path.strip_prefix(root).expect("the path is below the root").to_owned());
            }
        }
    }
    let mut files_found = Vec::new();
    visit(root, root, &mut files_found);
    files_found.sort();
    files_found
}

/// The Rust files and their texts.
fn sources(root: &Path) -> Vec<(PathBuf, String)> {
    let rust = files(root).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| (path.clone(), fs::read_to_string(root.join(path)).expect("source files are text"))).collect()
}

fn assert_none(what: &str, offenders: Vec<String>) {
    assert!(offenders.is_empty(), "{what}:\n{}", offenders.join("\n"));
}

#[test]
fn the_change_log_starts_at_the_version_of_the_workspace() {
    let root = root();
    let text = fs::read_to_string(root.join("CHANGELOG.md")).expect("there is a CHANGELOG.md");
    assert_eq!(top_version(&text), Some(env!("CARGO_PKG_VERSION")), "the first heading of CHANGELOG.md with a version");
}

/// The version in the first heading of the second level that has one: `## 0.1.0 - 2026-01-01` or `## [0.1.0]`.
fn top_version(text: &str) -> Option<&str> {
    let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
    let mut words = headings.filter_map(|heading| heading.split_whitespace().next());
    words
        .by_ref()
        .map(|word| word.trim_matches(['[', ']', 'v']))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
}

#[test]
fn paths_named_in_the_architecture_exist() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("there is an ARCHITECTURE.md");
    let named = paths_in(&text);
    assert!(named.len() > 5, "ARCHITECTURE.md names the parts of the tree: {named:?}");
    assert_none(
        "ARCHITECTURE.md names paths that do not exist",
        named.into_iter().filter(|path| !root.join(path).exists()).collect(),
    );
}

/// In other documents a code span with a slash may be a case of a benchmark, so it counts as a path where it starts
/// with a folder of the tree.
#[test]
fn paths_named_in_documents_exist() {
    let root = root();
    let documents = files(root).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let missing = documents.flat_map(|document| {
        let text = fs::read_to_string(root.join(&document)).expect("documents are text");
        let starts_in_tree = |path: &String| path.split_once('/').is_some_and(|(folder, _)| root.join(folder).is_dir());
        // The family that CONTRIBUTING.md adds for an example.
        let named = paths_in(&text).into_iter().filter(|path| starts_in_tree(path) && !path.contains("convolution"));
        let missing = named.filter(|path| !root.join(path).exists());
        missing.map(|path| format!("{}: {path}", document.display())).collect::<Vec<_>>()
    });
    assert_none("documents name paths that do not exist", missing.collect());
}

/// Code spans that are paths of the tree: they have a slash or a known extension and nothing that paths of the tree
/// lack.
fn paths_in(text: &str) -> Vec<String> {
    let spans = text.split('`').skip(1).step_by(2);
    let is_path = |span: &&str| {
        let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        let known = [".rs", ".toml", ".md"].iter().any(|extension| span.ends_with(extension));
        plain && !span.starts_with(['/', '-']) && (span.contains('/') || known) && !span.starts_with("target/")
    };
    spans.filter(is_path).map(str::to_owned).collect()
}

#[test]
fn source_files_are_short() {
    let root = root();
    let long = sources(root).into_iter().map(|(path, text)| (path, text.lines().count()));
    let offenders = long.filter(|(_, lines)| *lines > MAX_LINES);
    assert_none(
        "files that are too long",
        offenders.map(|(path, lines)| format!("{}: {lines}", path.display())).collect(),
    );
}

#[test]
fn comments_and_documents_are_as_wide_as_code() {
    let root = root();
    // Rows of tables cannot be broken.
    let is_wide =
        |line: &str| line.chars().count() > MAX_WIDTH && !line.trim_start_matches(['/', '!', ' ']).starts_with('|');
    let comments = sources(root)
        .into_iter()
        .flat_map(|(path, text)| lines_with(&path, &text, |line| line.trim_start().starts_with("//") && is_wide(line)));
    let documents = files(root).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let prose = documents.flat_map(|path| {
        let text = fs::read_to_string(root.join(&path)).expect("documents are text");
        lines_with(&path, &text, is_wide)
    });
    assert_none("lines that are too wide", comments.chain(prose).collect());
}

#[test]
fn paths_are_shallow_and_say_what_is_inside() {
    let root = root();
    let says_nothing = |path: &Path| {
        path.iter()
            .any(|part| EMPTY_NAMES.iter().any(|name| Path::new(part).file_stem().is_some_and(|stem| stem == *name)))
    };
    // What other compilers made is input of a test, and no build of this tree makes it.
    let is_generated = |path: &Path| {
        !path.starts_with("tests/foreign/ptx")
            && path.extension().is_some_and(|extension| GENERATED.iter().any(|generated| extension == *generated))
    };
    let offends = |path: &PathBuf| path.iter().count() > MAX_SEGMENTS || says_nothing(path) || is_generated(path);
    let offenders = files(root).into_iter().filter(offends).map(|path| path.display().to_string());
    assert_none("paths that are too deep, say nothing, or are of generated files", offenders.collect());
}

#[test]
fn nothing_is_left_to_be_written() {
    let root = root();
    // Put together here so that this file does not offend.
    let marks = [concat!("to", "do!("), concat!("unim", "plemented!("), concat!("FIX", "ME"), concat!("TO", "DO")];
    let offenders = sources(root)
        .into_iter()
        .flat_map(|(path, text)| lines_with(&path, &text, |line| marks.iter().any(|mark| line.contains(mark))));
    assert_none("code that is left to be written", offenders.collect());
}

#[test]
fn entry_names_are_written_in_the_catalogue_alone() {
    let root = root();
    let attention = variants::attention::ATTENTION.iter().chain(variants::study::ATTENTION_STUDY);
    let attention = attention.map(|config| config.name);
    let ata = variants::ata::ATA.iter().chain(variants::study::ATA_STUDY).map(|config| config.name);
    let cg = variants::cg::CG.iter().map(|config| config.name);
    let names: Vec<String> = attention.chain(ata).chain(cg).map(|name| format!("\"{name}\"")).collect();
    let outside = sources(root).into_iter().filter(|(path, _)| !path.starts_with("kernels-gpu/variants"));
    let offenders = outside.flat_map(|(path, text)| {
        lines_with(&path, &text, |line| {
            let is_comment = line.trim_start().starts_with("//");
            !is_comment && names.iter().any(|name| line.contains(name.as_str()))
        })
    });
    assert_none("entry names as literals outside the catalogue", offenders.collect());
}

/// Files that import each other in a circle can be read, moved and tested only together.
#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let (mut circles, mut imports) = (Vec::new(), 0);
    let mut crates = BTreeMap::<PathBuf, BTreeMap<Vec<String>, String>>::new();
    for (path, text) in sources(root()) {
        let segments: Vec<_> = path.iter().map(|segment| segment.to_string_lossy().into_owned()).collect();
        let Some(src) = segments.iter().position(|segment| segment == "src") else { continue };
        let mut module = segments[src + 1..].to_vec();
        let file = module.pop().expect("a file has a name");
        let name = file.trim_end_matches(".rs");
        module.extend((!["lib", "main", "mod"].contains(&name)).then(|| name.to_owned()));
        crates.entry(segments[..src].iter().collect()).or_default().insert(module, text);
    }
    for (name, files) in &crates {
        let graph: BTreeMap<_, _> =
            files.iter().map(|(module, text)| (module.clone(), imported(module, text, files))).collect();
        imports += graph.values().map(Vec::len).sum::<usize>();
        circles.extend(circle(&graph).map(|circle| format!("{}: {circle}", name.display())));
    }
    assert_none("circles", circles);
    assert!(imports > 500, "{imports} imports were found");
}

/// The other files of the crate that a file names by `crate::` and `super::`, but for the root, which re-exports, and
/// for what its tests name.
fn imported(module: &[String], text: &str, files: &BTreeMap<Vec<String>, String>) -> Vec<Vec<String>> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: String = code.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let mut imported = Vec::new();
    for start in ["crate::", "super::"].iter().flat_map(|word| code.match_indices(word)).map(|(start, _)| start) {
        if code[..start].ends_with(|before: char| before.is_alphanumeric() || "_:$".contains(before)) {
            continue;
        }
        let mut paths = Vec::new();
        let _ = tree(&code[start..], Vec::new(), &mut paths);
        for path in paths {
            let up = path.iter().take_while(|&&segment| segment == "super").count();
            let from = if up == 0 { 0 } else { module.len().saturating_sub(up) };
            let mut full = module[..from].to_vec();
            full.extend(path[up.max(1)..].iter().map(|&segment| segment.to_owned()));
            while !full.is_empty() && !files.contains_key(&full) {
                full.pop();
            }
            if !full.is_empty() && full != module && !imported.contains(&full) {
                imported.push(full);
            }
        }
    }
    imported
}

/// Finds the paths of the path, or of the tree of a `use`, at the start of the text; returns the text behind them.
fn tree<'t>(mut text: &'t str, mut path: Vec<&'t str>, found: &mut Vec<Vec<&'t str>>) -> &'t str {
    loop {
        if let Some(mut rest) = text.strip_prefix('{') {
            while !rest.trim_start().starts_with(['}', '$']) && !rest.trim_start().is_empty() {
                let behind = tree(rest.trim_start(), path.clone(), found);
                rest = behind.split_once([',', '}']).map_or("", |(skipped, _)| &behind[skipped.len()..]);
                rest = rest.strip_prefix(',').unwrap_or(rest);
            }
            return rest.trim_start().strip_prefix('}').unwrap_or("");
        }
        let end = text.find(|next: char| !next.is_alphanumeric() && next != '_').unwrap_or(text.len());
        path.push(&text[..end]);
        match text[end..].strip_prefix("::") {
            Some(rest) => text = rest,
            None => {
                found.push(path);
                return &text[end..];
            }
        }
    }
}

/// The first circle of a graph.
fn circle(graph: &BTreeMap<Vec<String>, Vec<Vec<String>>>) -> Option<String> {
    fn visit<'g>(
        graph: &'g BTreeMap<Vec<String>, Vec<Vec<String>>>,
        node: &'g Vec<String>,
        trail: &mut Vec<&'g Vec<String>>,
        done: &mut Vec<&'g Vec<String>>,
    ) -> Option<String> {
        if let Some(start) = trail.iter().position(|&before| before == node) {
            return Some(
                trail[start..].iter().chain([&node]).map(|name| name.join("::")).collect::<Vec<_>>().join(" -> "),
            );
        }
        if done.contains(&node) {
            return None;
        }
        trail.push(node);
        let found = graph.get(node)?.iter().find_map(|next| visit(graph, next, trail, done));
        trail.pop();
        done.push(node);
        found
    }
    let mut done = Vec::new();
    graph.keys().find_map(|node| visit(graph, node, &mut Vec::new(), &mut done))
}

#[test]
fn imports_and_circles_are_found() {
    let texts = [
        ("a", "use crate::b::{self, C, c::{D, E as F}}; // crate::e\nfn f() { crate::d::g() }"),
        ("b", "use super::d;\n#[cfg(test)]\nmod tests { use crate::a; }"),
        ("d", "use crate::{Root, b as other};"),
        ("e", ""),
    ];
    let files: BTreeMap<_, _> = texts.map(|(name, text)| (vec![name.to_owned()], text.to_owned())).into();
    let named = |name: &str| {
        let module = [name.to_owned()];
        imported(&module, &files[&module[..]], &files).concat().concat()
    };
    assert_eq!(["a", "b", "d", "e"].map(named), ["bd", "d", "b", ""]);
    let graph = files.iter().map(|(module, text)| (module.clone(), imported(module, text, &files))).collect();
    assert_eq!(circle(&graph).as_deref(), Some("b -> d -> b"));
}

fn lines_with(path: &Path, text: &str, offends: impl Fn(&str) -> bool) -> Vec<String> {
    let numbered = text.lines().enumerate().filter(|(_, line)| offends(line));
    numbered.map(|(index, line)| format!("{}:{}: {}", path.display(), index + 1, line.trim())).collect()
}

#[test]
fn versions_are_found_in_headings() {
    assert_eq!(top_version("# Changes\n\n## Unreleased\n\n## [0.2.0] - 2026-01-01\n\n## 0.1.0\n"), Some("0.2.0"));
    assert_eq!(top_version("# 0.1.0\n"), None);
}

#[test]
fn paths_are_found_in_code_spans() {
    let text = "`host/src/lib.rs` and `a::b` in `README.md`, not `cargo test`, `/usr/bin` or plain x/y; `cli/`";
    assert_eq!(paths_in(text), ["host/src/lib.rs", "README.md", "cli/"]);
}
