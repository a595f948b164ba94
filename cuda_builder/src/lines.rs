//! Which lines of Rust the `.loc` lines of the PTX name: those of the kernels.
//!
//! A kernel reaches memory through `core` and `cuda_std`, whose functions are inlined. Where a tool points at such an
//! instruction, a line of `core` says nothing to the author of the kernel. PTX could name the whole chain of inlined
//! calls, but only from version 7.2 on.
//!
//! So an instruction of these crates gets the line of the call in the kernel. A location that rustc has inlined already
//! becomes that of its call. A function that LLVM will inline loses its locations, and LLVM then takes that of the
//! call.

use std::collections::{HashMap, HashSet};

/// The folders of the crate whose functions are one instruction each: in its workspace, and as a package. A version may
/// follow.
const DEVICE_LIBRARY: [&str; 2] = ["cuda_std", "ferrotile-cuda-std"];

/// Where rustc's libraries lie, as paths name it.
const LIBRARIES: &str = "/rustc/";

/// The module in which instructions of the libraries have the lines of their calls.
pub(crate) fn at_calls(module: &str) -> String {
    let metadata = Metadata::read(module);
    let mut text = String::with_capacity(module.len());
    let mut in_library = false;
    for line in module.lines() {
        if line.starts_with("define ") {
            let scope = attached(line);
            in_library = scope.is_some_and(|scope| metadata.is_of_library(scope));
            match scope {
                Some(scope) if in_library => text.push_str(&line.replacen(&format!(" !dbg {scope}"), "", 1)),
                _ => text.push_str(line),
            }
        } else if in_library {
            let scope = attached(line);
            text.push_str(&scope.map_or(line.to_owned(), |scope| line.replacen(&format!(", !dbg {scope}"), "", 1)));
        } else {
            match location(line) {
                Some((head, fields)) => text.extend([head, metadata.of_call(fields), ")"]),
                None => text.push_str(line),
            }
        }
        if line == "}" {
            in_library = false;
        }
        text.push('\n');
    }
    text
}

/// What the module says about its places.
#[derive(Default)]
struct Metadata<'a> {
    /// The files of the libraries.
    files: HashSet<&'a str>,
    /// The file of each function and block.
    scopes: HashMap<&'a str, &'a str>,
    /// The fields of each location.
    locations: HashMap<&'a str, &'a str>,
}

impl<'a> Metadata<'a> {
    fn read(module: &'a str) -> Self {
        let mut metadata = Metadata::default();
        for line in module.lines().filter(|line| line.starts_with('!')) {
            let Some((number, node)) = line.split_once(" = ") else { continue };
            let node = node.strip_prefix("distinct ").unwrap_or(node);
            if let Some(fields) = node.strip_prefix("!DIFile(") {
                if is_library(fields) {
                    metadata.files.insert(number);
                }
            } else if node.starts_with("!DISubprogram(") || node.starts_with("!DILexicalBlock") {
                if let Some(file) = reference(node, " file: ") {
                    metadata.scopes.insert(number, file);
                }
            } else if let Some((_, fields)) = location(line) {
                metadata.locations.insert(number, fields);
            }
        }
        metadata
    }

    fn is_of_library(&self, scope: &str) -> bool {
        self.scopes.get(scope).is_some_and(|file| self.files.contains(file))
    }

    /// The fields of the call that a location of a library was inlined at, or its own.
    fn of_call(&self, mut fields: &'a str) -> &'a str {
        // Calls are finitely many, unless the text is damaged.
        for _ in 0..self.locations.len() {
            let scope = reference(fields, "scope: ");
            let call = reference(fields, "inlinedAt: ").and_then(|call| self.locations.get(call));
            match (scope, call) {
                (Some(scope), Some(call)) if self.is_of_library(scope) => fields = call,
                _ => break,
            }
        }
        fields
    }
}

/// `!7 = distinct !DILocation(line: 1, scope: !2)` as what stands before the fields, and the fields.
fn location(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix('!')?.trim_start_matches(|digit: char| digit.is_ascii_digit()).strip_prefix(" = ")?;
    let fields = rest.strip_prefix("distinct ").unwrap_or(rest).strip_prefix("!DILocation(")?.strip_suffix(')')?;
    Some((&line[..line.len() - fields.len() - 1], fields))
}

/// The number of a node that is attached as the place of a function or instruction.
fn attached(line: &str) -> Option<&str> {
    reference(line, " !dbg ")
}

/// The `!7` behind the last `field`: names in quotes stand before the numbers.
fn reference<'a>(text: &'a str, field: &str) -> Option<&'a str> {
    let rest = &text[text.rfind(field)? + field.len()..];
    let digits = rest.strip_prefix('!')?.trim_start_matches(|digit: char| digit.is_ascii_digit());
    Some(&rest[..rest.len() - digits.len()])
}

/// Whether `filename: "..", directory: ".."` is of a library.
fn is_library(fields: &str) -> bool {
    let strings: Vec<&str> = fields.split('"').skip(1).step_by(2).take(2).collect();
    let is_version = |text: &str| {
        text.strip_prefix('-').is_some_and(|number| number.starts_with(|digit: char| digit.is_ascii_digit()))
    };
    let of_device_library = |part: &str| {
        let mut rests = DEVICE_LIBRARY.iter().filter_map(|name| part.strip_prefix(name));
        rests.any(|rest| rest.is_empty() || is_version(rest))
    };
    strings.iter().any(|path| path.starts_with(LIBRARIES) || path.split('/').any(of_device_library))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"define void @kernel() #0 !dbg !1 {
  call void @wrapper(), !dbg !10
  call void asm sideeffect "x", ""(), !dbg !11, !srcloc !20
  ret void, !dbg !13
}
define void @wrapper() #0 !dbg !2 {
  ret void, !dbg !12, !noundef !20
}
!1 = distinct !DISubprogram(name: "kernel", scope: !5, file: !6, line: 8, unit: !9)
!2 = distinct !DISubprogram(name: "file: !6", scope: !5, file: !7, line: 3, unit: !9)
!3 = distinct !DISubprogram(name: "add", scope: !5, file: !8, line: 4, unit: !9)
!4 = !DILexicalBlock(scope: !2, file: !7, line: 5, column: 1)
!6 = !DIFile(filename: "kernels/src/lib.rs", directory: ".")
!7 = !DIFile(filename: "kernels-gpu/cuda_std/src/word.rs", directory: ".")
!8 = !DIFile(filename: "src/ops.rs", directory: "/rustc/0123/library/core")
!10 = !DILocation(line: 10, column: 5, scope: !1)
!11 = !DILocation(line: 44, column: 1, scope: !3, inlinedAt: !14)
!12 = !DILocation(line: 45, column: 1, scope: !4)
!13 = distinct !DILocation(line: 77, column: 1, scope: !1)
!14 = distinct !DILocation(line: 46, column: 1, scope: !4, inlinedAt: !13)
"#;

    #[test]
    fn lines_of_libraries_become_those_of_their_calls() {
        let lines = at_calls(MODULE);
        assert_eq!(lines.lines().count(), MODULE.lines().count());
        for expected in [
            "\ndefine void @wrapper() #0 {\n  ret void, !noundef !20\n}\n",
            "define void @kernel() #0 !dbg !1 {\n  call void @wrapper(), !dbg !10\n",
            "\n!11 = !DILocation(line: 77, column: 1, scope: !1)\n",
            "\n!14 = distinct !DILocation(line: 77, column: 1, scope: !1)\n",
            "\n!10 = !DILocation(line: 10, column: 5, scope: !1)\n",
        ] {
            assert!(lines.contains(expected), "{expected} is not in:\n{lines}");
        }
    }

    #[test]
    fn libraries_are_known_by_their_paths() {
        for (fields, expected) in [
            (r#"filename: "a/cuda_std-0.1.0/src/lib.rs", directory: "/registry""#, true),
            (r#"filename: "ferrotile-cuda-std-0.1.0/src/word.rs", directory: ".""#, true),
            (r#"filename: "ferrotile-cuda-std-macros-0.1.0/src/lib.rs", directory: ".""#, false),
            (r#"filename: "cuda_std_macros/src/lib.rs", directory: ".""#, false),
            (r#"filename: "src/lib.rs", directory: "/rustc/01/library/core", checksum: "x""#, true),
            (r#"filename: "src/rustc/lib.rs", directory: ".""#, false),
        ] {
            assert_eq!(is_library(fields), expected, "{fields}");
        }
    }
}
