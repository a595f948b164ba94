//! What rustc leaves out of the LLVM module of a device crate.
//!
//! - **Convergence.** rustc emits `asm!` without LLVM's `convergent`, so that LLVM may move or duplicate a `.sync`
//!   instruction across a divergent branch. Here every call of inline assembly with side effects becomes `convergent`,
//!   and so does every function definition. LLVM strips the attribute again from functions that do not need it.
//! - **Launch bounds.** `#[kernel]` leaves a static `__kernel_record_<name>` beside each kernel: max_threads,
//!   min_blocks, cluster and the bit mask of the parameters that are tensor maps. They become `"nvvm.maxntid"`,
//!   `"nvvm.minctasm"` and `"nvvm.cluster_dim"`, and the static is deleted.
//! - **Tensor maps by value.** TMA needs them on a 64-byte boundary, and `align(64)` on a kernel argument crashes
//!   rustc: `alignstack(64)` on the parameter places it.
//! - **Line tables.** `emissionKind: DebugDirectivesOnly` keeps `.file` and `.loc` in the PTX without the DWARF
//!   sections and without `debug` in `.target`, which would turn off ptxas's optimiser.
//!
//! The marks are made on LLVM's text, one line a function header or instruction, since its syntax is stable where the
//! C++ interface is not reachable from Rust.

use std::collections::BTreeMap;

use layout::Arch;

use crate::error::Error;
use crate::llvm_text::{closing, split_list, string_constant};

/// The prefix of the statics that `#[kernel]` leaves.
const RECORD_PREFIX: &str = "@__kernel_record_";

/// What `#[kernel]` recorded; 0 stands for what is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Record {
    max_threads: u32,
    min_blocks: u32,
    cluster: u32,
    tensor_maps: u32,
}

/// Marks an LLVM module.
///
/// # Errors
/// [`Error::Mark`] if a record is malformed, has no kernel, or asks for what the architecture or the parameter cannot
/// have.
pub fn mark(module: &str, arch: Arch) -> Result<String, Error> {
    let mut records = BTreeMap::new();
    for line in module.lines().filter(|line| line.starts_with(RECORD_PREFIX)) {
        let (name, record) = parse_record(line)?;
        records.insert(name, record);
    }
    let mut marked = String::with_capacity(module.len() + module.len() / 64);
    for line in module.lines() {
        if line.starts_with(RECORD_PREFIX) {
            continue;
        } else if line.starts_with("define ") {
            mark_definition(line, &mut records, arch, &mut marked)?;
        } else if line.starts_with(' ') && line.contains(" asm sideeffect ") {
            mark_assembly(line, &mut marked);
        } else if line.starts_with('!') && line.contains("DICompileUnit(") {
            marked.push_str(&line.replace("emissionKind: LineTablesOnly", "emissionKind: DebugDirectivesOnly"));
        } else {
            marked.push_str(line);
        }
        marked.push('\n');
    }
    match records.pop_first() {
        Some((kernel, _)) => Err(Error::Mark { kernel, reason: "its record has no kernel beside it".into() }),
        None => Ok(marked),
    }
}

fn parse_record(line: &str) -> Result<(String, Record), Error> {
    let (name, value) = line[RECORD_PREFIX.len()..].split_once(" = ").unwrap_or((line, ""));
    let bytes = if value.contains("zeroinitializer") { Some(vec![0; 16]) } else { string_constant(value) };
    let Some(Ok(bytes)) = bytes.map(<[u8; 16]>::try_from) else {
        return Err(Error::Mark { kernel: name.into(), reason: format!("its record is not four u32: {value}") });
    };
    let field = |index: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * index + byte]));
    Ok((name.into(), Record { max_threads: field(0), min_blocks: field(1), cluster: field(2), tensor_maps: field(3) }))
}

/// Appends a function header with `convergent` and, for a kernel, the attributes of its record.
fn mark_definition(
    line: &str,
    records: &mut BTreeMap<String, Record>,
    arch: Arch,
    marked: &mut String,
) -> Result<(), Error> {
    let open = line.find('@').and_then(|at| line[at..].find('(').map(|open| at + open));
    let Some((open, close)) = open.and_then(|open| Some((open, closing(line, open)?))) else {
        marked.push_str(line);
        return Ok(());
    };
    let name = line[..open].rsplit('@').next().unwrap_or_default();
    let record = if line.contains(" ptx_kernel ") { records.remove(name) } else { None };
    let error = |reason: String| Error::Mark { kernel: name.into(), reason };

    marked.push_str(&line[..=open]);
    let parameters = split_list(&line[open + 1..close]);
    let tensor_maps = record.map_or(0, |record| record.tensor_maps);
    if tensor_maps.checked_shr(parameters.len() as u32).unwrap_or(0) != 0 {
        return Err(error(
            "LLVM has fewer parameters than the record; slices and zero-sized types cannot be passed".into(),
        ));
    }
    for (index, parameter) in parameters.iter().enumerate() {
        if index > 0 {
            marked.push(',');
        }
        if index < 32 && tensor_maps & 1 << index != 0 {
            let trimmed = parameter.trim_start();
            let ty = ["[8 x i128]", "[16 x i64]"].into_iter().find(|ty| trimmed.starts_with(ty)).ok_or_else(|| {
                error(format!(
                    "parameter {index} is called a tensor map but is passed as `{trimmed}`, not as 128 bytes"
                ))
            })?;
            *marked += &format!("{}{ty} alignstack(64){}", if index > 0 { " " } else { "" }, &trimmed[ty.len()..]);
        } else {
            marked.push_str(parameter);
        }
    }

    // Function attributes stand after `unnamed_addr` and before the first attribute group.
    let tail = &line[close..];
    let group = tail.find(" #").or_else(|| tail.find(" !")).or_else(|| tail.find(" {")).unwrap_or(tail.len());
    marked.push_str(&tail[..group]);
    marked.push_str(" convergent");
    if let Some(Record { max_threads, min_blocks, cluster, .. }) = record {
        if max_threads != 0 {
            *marked += &format!(" \"nvvm.maxntid\"=\"{max_threads}\"");
        }
        if min_blocks != 0 {
            *marked += &format!(" \"nvvm.minctasm\"=\"{min_blocks}\"");
        }
        // A cluster of one block is none.
        if cluster > 1 {
            if arch < Arch::Sm90a {
                return Err(error(format!("a cluster needs {}; this build is for {arch}", Arch::Sm90a)));
            }
            *marked += &format!(" \"nvvm.cluster_dim\"=\"{cluster},1,1\"");
        }
    }
    marked.push_str(&tail[group..]);
    Ok(())
}

/// Appends a call of inline assembly with `convergent` behind its arguments:
/// `call i32 asm sideeffect "template", "constraints"(arguments) convergent #7, !dbg !8`.
fn mark_assembly(line: &str, marked: &mut String) {
    let arguments = line.find(" asm sideeffect ").and_then(|start| {
        let (fourth_quote, _) = line[start..].match_indices('"').nth(3)?;
        closing(line, start + fourth_quote + 1)
    });
    match arguments {
        Some(close) => {
            marked.push_str(&line[..=close]);
            marked.push_str(" convergent");
            marked.push_str(&line[close + 1..]);
        }
        None => marked.push_str(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &str =
        r#"@__kernel_record_scale = constant [16 x i8] c"\80\00\00\00\02\00\00\00\02\00\00\00\04\00\00\00", align 4"#;
    const KERNEL: &str = "define ptx_kernel void @scale(ptr noundef %out, float range(i32 0, 5) %x, [8 x i128] %0) unnamed_addr #1 !dbg !9 {";

    #[test]
    fn kernels_get_their_bounds_and_the_record_goes() {
        let marked = mark(&format!("{RECORD}\n{KERNEL}\n}}"), Arch::Sm90a).unwrap();
        assert_eq!(
            marked,
            "define ptx_kernel void @scale(ptr noundef %out, float range(i32 0, 5) %x, [8 x i128] alignstack(64) %0) unnamed_addr \
             convergent \"nvvm.maxntid\"=\"128\" \"nvvm.minctasm\"=\"2\" \"nvvm.cluster_dim\"=\"2,1,1\" #1 !dbg !9 {\n}\n"
        );
    }

    #[test]
    fn a_zero_record_sets_nothing() {
        let record = "@__kernel_record_scale = constant [16 x i8] zeroinitializer, align 4";
        let marked = mark(&format!("{record}\n{KERNEL}"), Arch::Sm80).unwrap();
        assert_eq!(marked, KERNEL.replace(" #1", " convergent #1") + "\n");
    }

    #[test]
    fn assembly_with_side_effects_is_convergent() {
        for (line, expected) in [
            (
                r#"  %4 = call i32 asm sideeffect "(${0}) ;", "=&r,r"(i32 %_8) #21, !dbg !934"#,
                r#"  %4 = call i32 asm sideeffect "(${0}) ;", "=&r,r"(i32 %_8) convergent #21, !dbg !934"#,
            ),
            (
                r#"  tail call void asm sideeffect alignstack "x", "l,~{memory}"(ptr %map)"#,
                r#"  tail call void asm sideeffect alignstack "x", "l,~{memory}"(ptr %map) convergent"#,
            ),
            (
                r#"  %5 = call float asm "ex2", "=&r,r"(float %f) #22"#,
                r#"  %5 = call float asm "ex2", "=&r,r"(float %f) #22"#,
            ),
        ] {
            assert_eq!(mark(line, Arch::Sm80).unwrap().trim_end(), expected);
        }
    }

    #[test]
    fn line_tables_become_directives() {
        let marked = mark("!9 = distinct !DICompileUnit(file: !8, emissionKind: LineTablesOnly)", Arch::Sm80).unwrap();
        assert!(marked.contains("emissionKind: DebugDirectivesOnly"));
    }

    #[test]
    fn records_that_do_not_fit_are_refused() {
        let reason = |module: &str, arch| match mark(module, arch) {
            Err(Error::Mark { reason, .. }) => reason,
            other => panic!("{other:?}"),
        };
        assert!(reason(RECORD, Arch::Sm90a).contains("no kernel"));
        assert!(reason(&format!("{RECORD}\n{KERNEL}"), Arch::Sm80).contains("needs sm_90a"));
        let pointer = KERNEL.replace("[8 x i128]", "ptr");
        assert!(reason(&format!("{RECORD}\n{pointer}"), Arch::Sm90a).contains("not as 128 bytes"));
        let two = KERNEL.replace(", [8 x i128] %0", "");
        assert!(reason(&format!("{RECORD}\n{two}"), Arch::Sm90a).contains("fewer parameters"));
        assert!(reason("@__kernel_record_f = constant [1 x i8] c\"a\"", Arch::Sm80).contains("not four u32"));
    }
}
