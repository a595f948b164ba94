//! A reader of PTX modules: what tests and gates ask of them, not a full parser.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::error::Error;

/// A PTX module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// `.version`, as (major, minor).
    pub version: (u32, u32),
    /// `.target`, such as `sm_90a`, with what stands behind a comma.
    pub target: String,
    /// The entry points, in the order of the text.
    pub entries: Vec<Entry>,
    /// The `.func` that are defined here.
    pub functions: Vec<String>,
    /// The `.func` that are declared but not defined here.
    pub extern_functions: Vec<String>,
    /// Of each function that is called by its name, the entries and functions that do.
    pub callers: BTreeMap<String, BTreeSet<String>>,
}

/// An entry point of a module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its parameters in order.
    pub parameters: Vec<Parameter>,
    /// `.maxntid`: the most threads of a block, along x.
    pub max_threads: Option<u32>,
    /// `.minnctapersm`: how many blocks must fit on one multiprocessor.
    pub min_blocks: Option<u32>,
    /// `.reqnctapercluster`: the blocks of a cluster along x, y and z.
    pub cluster: Option<[u32; 3]>,
    /// How often each opcode with its modifiers stands in the body.
    pub opcodes: BTreeMap<String, usize>,
    /// Whether the body declares or accesses `.local` memory.
    pub uses_local: bool,
}

/// A parameter of an entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u32,
    /// Its alignment.
    pub align_bytes: u32,
}

impl Module {
    /// Reads a module.
    ///
    /// # Errors
    /// [`Error::Ptx`] if the text lacks `.version` or `.target`, or if an entry is cut short.
    pub fn parse(text: &str) -> Result<Module, Error> {
        let text = without_comments(text);
        let directive = |name: &str| {
            let value = text.lines().find_map(|line| line.trim().strip_prefix(name)).map(str::trim);
            value.ok_or_else(|| Error::Ptx(format!("no {name}")))
        };
        let version = directive(".version ")?;
        let version =
            version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let mut module = Module {
            version: version.ok_or_else(|| Error::Ptx("`.version` is not two numbers".into()))?,
            target: directive(".target ")?.to_owned(),
            entries: Vec::new(),
            functions: Vec::new(),
            extern_functions: Vec::new(),
            callers: BTreeMap::new(),
        };
        let mut rest = &text[..];
        while let Some((at, is_entry)) = next_function(rest) {
            let header = &rest[at..];
            let name = function_name(header, is_entry).ok_or_else(|| Error::Ptx("a function without a name".into()))?;
            let end = header.find(['{', ';']).ok_or_else(|| Error::Ptx(format!("{name} has no end")))?;
            if header.as_bytes()[end] == b';' {
                // LLVM declares what never returns, a panic for one, without `.extern`.
                module.extern_functions.push(name.to_owned());
                rest = &header[end..];
                continue;
            }
            let close = body_end(header, end).ok_or_else(|| Error::Ptx(format!("the body of {name} has no end")))?;
            for called in calls(&header[end..=close]) {
                module.callers.entry(called.to_owned()).or_default().insert(name.to_owned());
            }
            if is_entry {
                module.entries.push(Entry::parse(name, &header[..end], &header[end..=close]));
            } else {
                module.functions.push(name.to_owned());
            }
            rest = &header[close..];
        }
        let Module { functions, extern_functions, .. } = &mut module;
        extern_functions.retain(|name| !functions.contains(name));
        Ok(module)
    }

    /// The entry of that name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// The names of the entries that call a function, by way of others too, in the order of the text.
    pub fn kernels_that_call(&self, function: &str) -> Vec<&str> {
        let mut found = BTreeSet::new();
        let mut open = vec![function];
        while let Some(function) = open.pop() {
            let callers = self.callers.get(function).into_iter().flatten();
            open.extend(callers.map(String::as_str).filter(|caller| found.insert(*caller)));
        }
        self.entries.iter().map(|entry| entry.name.as_str()).filter(|name| found.contains(name)).collect()
    }
}

impl Entry {
    fn parse(name: &str, header: &str, body: &str) -> Entry {
        let (parameters, directives) = match (header.find('('), header.rfind(')')) {
            (Some(open), Some(close)) => (&header[open + 1..close], &header[close + 1..]),
            _ => ("", header),
        };
        let numbers = |directive: &str| {
            let (_, value) = directives.split_once(directive)?;
            let value = value.trim_start().split(['.', '\n']).next()?;
            value.split(',').map(|number| number.trim().parse().ok()).collect::<Option<Vec<u32>>>()
        };
        let first = |directive| numbers(directive).and_then(|values| values.first().copied());
        let opcodes = opcodes(body);
        let uses_local =
            body.contains(".local") || opcodes.keys().any(|opcode| opcode.split('.').any(|part| part == "local"));
        Entry {
            name: name.to_owned(),
            parameters: parameters.split(',').filter_map(Parameter::parse).collect(),
            max_threads: first(".maxntid"),
            min_blocks: first(".minnctapersm"),
            cluster: numbers(".reqnctapercluster")
                .map(|values| std::array::from_fn(|i| values.get(i).copied().unwrap_or(1))),
            opcodes,
            uses_local,
        }
    }

    /// How many instructions have the opcode `prefix` with any further modifiers: `mma.sync` counts
    /// `mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32`, and `mma` does not count `mmax`.
    pub fn count(&self, prefix: &str) -> usize {
        let matches = |opcode: &str| {
            opcode.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', ':']))
        };
        self.opcodes.iter().filter(|(opcode, _)| matches(opcode)).map(|(_, count)| count).sum()
    }

    /// How many loads and stores name no state space, so that the hardware finds out at run time where each address
    /// lies.
    pub fn generic_accesses(&self) -> usize {
        let is_generic = |opcode: &str| {
            let mut parts = opcode.split('.');
            matches!(parts.next(), Some("ld" | "st"))
                && !parts.any(|part| {
                    matches!(part.split("::").next(), Some("global" | "shared" | "local" | "param" | "const"))
                })
        };
        self.opcodes.iter().filter(|(opcode, _)| is_generic(opcode)).map(|(_, count)| count).sum()
    }
}

impl Parameter {
    /// Reads `.param .align 64 .b8 name[128]` or `.param .u64 .ptr .align 1 name`.
    fn parse(text: &str) -> Option<Parameter> {
        let mut words = text.split_whitespace().skip_while(|word| *word != ".param").skip(1).peekable();
        let (mut align_bytes, mut unit_bytes, mut is_pointer) = (None, None, false);
        while let Some(word) = words.next_if(|word| word.starts_with('.')) {
            match word {
                ".ptr" => is_pointer = true,
                // Behind `.ptr` stands the alignment of what the pointer points to.
                ".align" if is_pointer => drop(words.next()),
                ".align" => align_bytes = Some(words.next()?.parse().ok()?),
                word => {
                    let bits = word.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>();
                    unit_bytes = unit_bytes.or(bits.ok().map(|bits| bits / 8));
                }
            }
        }
        let (name, length) = match words.next()?.split_once('[') {
            Some((name, length)) => (name, length.trim_end_matches(']').parse().ok()?),
            None => (text.split_whitespace().next_back()?, 1),
        };
        let unit_bytes = unit_bytes?;
        Some(Parameter {
            name: name.to_owned(),
            size_bytes: unit_bytes * length,
            align_bytes: align_bytes.unwrap_or(unit_bytes),
        })
    }
}

/// Where each entry stands in PTX of [`CudaBuilder`](crate::CudaBuilder), by name, in the order of the text.
///
/// Any one entry makes a module of its own, together with the text before the first entry and the text after the last.
/// Entries share nothing else: declarations stand before the first, file names of the line tables after the last.
pub fn entry_ranges(ptx: &str) -> Vec<(&str, Range<usize>)> {
    const ENTRY: &str = "\n.visible .entry ";
    let starts: Vec<usize> = ptx.match_indices(ENTRY).map(|(at, _)| at + 1).collect();
    let Some(&last) = starts.last() else { return Vec::new() };
    let end = ptx[last..].find("\n\t.file").map_or(ptx.len(), |length| last + length + 1);
    let ends = starts[1..].iter().copied().chain([end]);
    let name = |start: usize| ptx[start + ENTRY.len() - 1..].split('(').next().unwrap_or_default();
    starts.iter().zip(ends).map(|(&start, end)| (name(start), start..end)).collect()
}

/// The text with comments blanked.
fn without_comments(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('/') {
        plain.push_str(&rest[..start]);
        let comment = &rest[start..];
        let length = if comment.starts_with("//") {
            comment.find('\n').unwrap_or(comment.len())
        } else if comment.starts_with("/*") {
            plain.push(' ');
            comment.find("*/").map_or(comment.len(), |end| end + 2)
        } else {
            plain.push('/');
            1
        };
        rest = &comment[length..];
    }
    plain.push_str(rest);
    plain
}

/// The next `.entry` or `.func` of the text, and whether it is an entry.
fn next_function(text: &str) -> Option<(usize, bool)> {
    let entry = text.find(".entry ").map(|at| (at, true));
    let function = text.find(".func ").map(|at| (at, false));
    [entry, function].into_iter().flatten().min()
}

/// The name in a header; a function with a result has `(result)` before it.
fn function_name(header: &str, is_entry: bool) -> Option<&str> {
    let mut rest = header.split_once(' ')?.1.trim_start();
    if !is_entry && rest.starts_with('(') {
        rest = rest.split_once(')')?.1.trim_start();
    }
    rest.split(|c: char| c == '(' || c == ';' || c == '{' || c.is_whitespace()).next().filter(|name| !name.is_empty())
}

/// The index of the brace that closes the one at `open`.
fn body_end(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (index, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(index);
        }
    }
    None
}

/// The functions that a body calls by their names, once for each call.
fn calls(body: &str) -> impl Iterator<Item = &str> {
    body.split(';').filter_map(|statement| {
        let is_call = |word: &str| word == "call" || word.starts_with("call.");
        let opcode = statement.split_whitespace().find(|word| is_call(word))?;
        let mut operands = statement.split_once(opcode)?.1.trim_start();
        if operands.starts_with('(') {
            // The registers of the result.
            operands = operands.split_once(')')?.1.trim_start_matches(',').trim_start();
        }
        let name = operands.split(|c: char| c == ',' || c.is_whitespace()).next()?;
        (!name.is_empty() && !name.starts_with('%')).then_some(name)
    })
}

/// Counts the opcodes of a body.
fn opcodes(body: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    // `.loc`, `.file` and labels end without a semicolon: they are cut off the front of the statement they precede.
    let code: String =
        body.lines().filter(|line| !line.trim_start().starts_with(".loc")).flat_map(|l| [l, "\n"]).collect();
    for statement in code.split(';') {
        let words = statement.split_whitespace().map(|word| word.trim_start_matches(['{', '}']));
        let mut words = words.skip_while(|word| word.is_empty() || word.ends_with(':') || word.starts_with('@'));
        if let Some(opcode) = words.next().filter(|word| !word.starts_with('.')) {
            *counts.entry(opcode.to_owned()).or_default() += 1;
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
//
// Generated by LLVM NVPTX Back-End
//
.version 8.0
.target sm_90a
.address_size 64
.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0
);
.func panic
()
.noreturn;
.func helper(.param .b32 a);
.extern .shared .align 16 .b8 smem[];
.visible .entry scale(
	.param .u64 .ptr .align 1 scale_param_0,
	.param .f32 scale_param_1,
	.param .align 64 .b8 scale_param_2[128]
)
.maxntid 128
.minnctapersm 2
.explicitcluster
.reqnctapercluster 2, 1, 1
{
	.reg .b32 	%r<11>;
	.loc	1 13 0                          // src/lib.rs:13:0
// %bb.0:
	ld.param.b64 	%rd2, [scale_param_0];
	// begin inline asm
	{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], 0; @p bra D; bra W; D: }
	// end inline asm
$L__BB0_1:
	@%p1 ld.shared.v4.b32 	{%r1, %r2, %r3, %r4}, [%r5];
	mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1};
	mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1};
	st.b32 [%rd2], %r1; /* two
	lines */ st.volatile.global.b32 [%rd2], %r1;
	ret;
}
.visible .entry empty()
{
	.local .align 16 .b8 	__local_depot0[128];
	{ // callseq 0, 0
	call.uni (retval0), vprintf, (param0);
	}
	@%p1 call.uni
	helper,
	(
	param0
	);
	call (retval0), %rd1, (param0), prototype_0;
	ret;
}
.func helper(.param .b32 a) { call.uni panic, (); ret; }
"#;

    #[test]
    fn module_and_entries_are_read() {
        let module = Module::parse(SAMPLE).unwrap();
        assert_eq!((module.version, module.target.as_str()), ((8, 0), "sm_90a"));
        assert_eq!(module.functions, ["helper"]);
        assert_eq!(module.extern_functions, ["vprintf", "panic"]);
        let names: Vec<_> = module.entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["scale", "empty"]);
        assert_eq!(module.entry("other"), None);
        assert!(Module::parse(".version 8.0").is_err());
    }

    #[test]
    fn entries_stand_where_their_ranges_say() {
        let text = "head\n.visible .entry a(\n)\n{\n}\n.visible .entry ab()\n{\n}\n\t.file\t1 \"x\"\n";
        let ranges = entry_ranges(text);
        let texts: Vec<_> = ranges.iter().map(|(name, range)| (*name, &text[range.clone()])).collect();
        assert_eq!(texts, [("a", ".visible .entry a(\n)\n{\n}\n"), ("ab", ".visible .entry ab()\n{\n}\n")]);
        assert_eq!((&text[..ranges[0].1.start], &text[ranges[1].1.end..]), ("head\n", "\t.file\t1 \"x\"\n"));
        assert!(entry_ranges("head\n").is_empty());
    }

    #[test]
    fn callers_of_a_function_are_found_through_others() {
        let mut module = Module::parse(SAMPLE).unwrap();
        for function in ["vprintf", "panic", "helper"] {
            assert_eq!(module.kernels_that_call(function), ["empty"], "{function}");
        }
        assert!(module.kernels_that_call("scale").is_empty());
        // One that calls itself.
        module.callers.entry("helper".into()).or_default().insert("helper".into());
        assert_eq!(module.kernels_that_call("panic"), ["empty"]);
    }

    #[test]
    fn launch_bounds_and_parameters_are_read() {
        let module = Module::parse(SAMPLE).unwrap();
        let scale = module.entry("scale").unwrap();
        assert_eq!((scale.max_threads, scale.min_blocks, scale.cluster), (Some(128), Some(2), Some([2, 1, 1])));
        let parameters: Vec<_> =
            scale.parameters.iter().map(|p| (p.name.as_str(), p.size_bytes, p.align_bytes)).collect();
        assert_eq!(parameters, [("scale_param_0", 8, 8), ("scale_param_1", 4, 4), ("scale_param_2", 128, 64)]);
        let empty = module.entry("empty").unwrap();
        assert_eq!((empty.max_threads, empty.min_blocks, empty.cluster), (None, None, None));
        assert!(empty.parameters.is_empty());
    }

    #[test]
    fn instructions_are_counted() {
        let module = Module::parse(SAMPLE).unwrap();
        let scale = module.entry("scale").unwrap();
        assert_eq!(scale.count("mma.sync"), 2);
        assert_eq!(scale.count("mma.sync.aligned.m16n8k16.row.col.f32.f16"), 1);
        assert_eq!(scale.count("mm"), 0);
        assert_eq!(scale.count("mbarrier.try_wait"), 1);
        assert_eq!(scale.count("bra"), 2);
        assert_eq!(scale.count("ret"), 1);
        assert_eq!(scale.opcodes.values().sum::<usize>(), 10);
    }

    #[test]
    fn local_memory_and_generic_accesses_are_seen() {
        let module = Module::parse(SAMPLE).unwrap();
        assert!(!module.entry("scale").unwrap().uses_local);
        assert_eq!(module.entry("scale").unwrap().generic_accesses(), 1);
        assert!(module.entry("empty").unwrap().uses_local);
    }
}
