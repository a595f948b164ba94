//! Splits an LLVM module by kernels, so that the passes run on all cores and a change of one kernel costs its group
//! alone.
//!
//! A group is some kernels and what they reach. The groups follow from the names of the kernels: they are the same on
//! every machine, and a kernel that comes or goes changes the groups around it alone. Kernels of a group share the
//! work on what they both call. That makes groups cheaper than single kernels, for which LLVM also orders some
//! instructions differently: a function with one caller is inlined at another time.
//!
//! A group names its metadata by numbers of its own, so that its text says nothing about other kernels.

use std::collections::HashMap;

/// The fewest kernels of a group.
const MIN_KERNELS: usize = 4;

/// The most kernels of a group.
const MAX_KERNELS: usize = 12;

/// A kernel whose name has a hash that this divides ends its group.
const MEAN_KERNELS: u32 = 6;

/// The module as modules of some kernels each. A module that exports more than kernels stays whole.
pub(crate) fn split(module: &str) -> Vec<String> {
    let parts = Parts::read(module);
    if parts.exports_more_than_kernels {
        return vec![module.to_owned()];
    }
    let names: Vec<&str> = parts.kernels.iter().map(|&kernel| parts.symbols[kernel].name).collect();
    let mut start = 0;
    let groups = group_ends(&names).into_iter().map(|end| {
        let group = parts.module_of(&parts.kernels[start..end]);
        start = end;
        group
    });
    groups.collect()
}

/// Where each group of kernels ends; one group at least.
fn group_ends(kernels: &[&str]) -> Vec<usize> {
    // FNV-1a: what it must do is to be the same everywhere.
    let hash = |name: &str| {
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
    };
    let (mut ends, mut start) = (Vec::new(), 0);
    for (index, name) in kernels.iter().enumerate() {
        let end = index + 1;
        let (size, left) = (end - start, kernels.len() - end);
        let is_end = size == MAX_KERNELS || (size >= MIN_KERNELS && hash(name).is_multiple_of(MEAN_KERNELS));
        if is_end && left >= MIN_KERNELS {
            ends.push(end);
            start = end;
        }
    }
    ends.push(kernels.len());
    ends
}

/// A function or variable.
struct Symbol<'a> {
    name: &'a str,
    /// Its definition or declaration.
    text: &'a str,
}

/// What a module consists of.
#[derive(Default)]
struct Parts<'a> {
    /// Target, types and whatever else stands before the symbols.
    head: Vec<&'a str>,
    /// In their order.
    symbols: Vec<Symbol<'a>>,
    /// The symbols that each symbol names.
    references: Vec<Vec<usize>>,
    /// Which symbols are kernels.
    kernels: Vec<usize>,
    attributes: Vec<&'a str>,
    named_metadata: Vec<&'a str>,
    /// What stands behind `!7 = `, by number.
    metadata: HashMap<u32, &'a str>,
    exports_more_than_kernels: bool,
}

impl<'a> Parts<'a> {
    fn read(module: &'a str) -> Self {
        let mut parts = Parts::default();
        let (mut at, mut function) = (0, None);
        for line in module.split_inclusive('\n') {
            let start = at;
            at += line.len();
            if let Some((name, start)) = function {
                if line.starts_with('}') {
                    parts.symbols.push(Symbol { name, text: &module[start..at] });
                    function = None;
                }
            } else if line.starts_with("define ") {
                function = Some((first_symbol(line).unwrap_or_default(), start));
                if line.contains(" ptx_kernel ") {
                    parts.kernels.push(parts.symbols.len());
                } else {
                    parts.exports_more_than_kernels |= !is_local(line);
                }
            } else if line.starts_with('@') {
                parts.exports_more_than_kernels |= !is_local(line) && !line.contains(" = external ");
                parts.symbols.push(Symbol { name: first_symbol(line).unwrap_or_default(), text: line });
            } else if line.starts_with("declare ") {
                parts.symbols.push(Symbol { name: first_symbol(line).unwrap_or_default(), text: line });
            } else if line.starts_with("attributes ") {
                parts.attributes.push(line);
            } else if let Some((number, text)) = numbered(line) {
                parts.metadata.insert(number, text);
            } else if line.starts_with('!') {
                parts.named_metadata.push(line);
            } else if !line.starts_with(';') && !line.trim().is_empty() {
                parts.head.push(line);
            }
        }
        let indices: HashMap<&str, usize> =
            parts.symbols.iter().enumerate().map(|(index, symbol)| (symbol.name, index)).collect();
        parts.references = parts.symbols.iter().map(|symbol| references(symbol.text, &indices)).collect();
        parts
    }

    /// The module of some kernels and what they reach.
    fn module_of(&self, kernels: &[usize]) -> String {
        let mut is_reached = vec![false; self.symbols.len()];
        let mut found = kernels.to_vec();
        while let Some(symbol) = found.pop() {
            if !std::mem::replace(&mut is_reached[symbol], true) {
                found.extend(&self.references[symbol]);
            }
        }
        let mut numbers = Numbers::default();
        let mut text = self.head.concat();
        for (symbol, _) in self.symbols.iter().zip(&is_reached).filter(|(_, is_reached)| **is_reached) {
            numbers.rewrite(symbol.text, &mut text);
        }
        text.extend(self.attributes.iter().copied());
        for line in &self.named_metadata {
            numbers.rewrite(line, &mut text);
        }
        let mut next = 0;
        while let Some(&number) = numbers.order.get(next) {
            // A number without a node is an error of the module, which LLVM reports.
            if let Some(node) = self.metadata.get(&number) {
                text += &format!("!{next} = ");
                numbers.rewrite(node, &mut text);
            }
            next += 1;
        }
        text
    }
}

/// The numbers of metadata in the order in which a text has them.
#[derive(Default)]
struct Numbers {
    /// The number that each number of the module has become.
    new: HashMap<u32, u32>,
    /// The numbers of the module, in the order of the new ones.
    order: Vec<u32>,
}

impl Numbers {
    /// Appends a text with every `!7` outside of strings replaced by its new number.
    fn rewrite(&mut self, text: &str, rewritten: &mut String) {
        let bytes = text.as_bytes();
        let (mut copied, mut at, mut quoted) = (0, 0, false);
        while at < bytes.len() {
            match bytes[at] {
                b'"' => quoted = !quoted,
                b'!' if !quoted => {
                    let digits = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                    let end = at + 1 + digits;
                    if let Ok(number) = text[at + 1..end].parse() {
                        let new = *self.new.entry(number).or_insert_with(|| {
                            self.order.push(number);
                            self.order.len() as u32 - 1
                        });
                        rewritten.push_str(&text[copied..=at]);
                        rewritten.push_str(&new.to_string());
                        (copied, at) = (end, end);
                        continue;
                    }
                }
                _ => {}
            }
            at += 1;
        }
        rewritten.push_str(&text[copied..]);
    }
}

/// Whether nothing outside of the module can name the symbol of this line.
fn is_local(line: &str) -> bool {
    // Behind `define` or `=` stands the linkage.
    let rest = line.strip_prefix("define ").or_else(|| line.split_once(" = ").map(|(_, rest)| rest)).unwrap_or(line);
    let linkage = rest.split(' ').next().unwrap_or_default();
    ["internal", "private", "linkonce", "linkonce_odr", "available_externally"].contains(&linkage)
}

/// `!7 = node` as the number and the node.
fn numbered(line: &str) -> Option<(u32, &str)> {
    let (number, node) = line.strip_prefix('!')?.split_once(" = ")?;
    Some((number.parse().ok()?, node))
}

/// The name behind the first `@`.
fn first_symbol(text: &str) -> Option<&str> {
    name_at(&text[text.find('@')? + 1..])
}

/// The name of a symbol at the start of a text, with or without quotes.
fn name_at(text: &str) -> Option<&str> {
    let name = match text.strip_prefix('"') {
        Some(quoted) => quoted.split('"').next()?,
        None => {
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || "-$._".contains(c);
            &text[..text.find(|c| !is_of_name(c)).unwrap_or(text.len())]
        }
    };
    (!name.is_empty()).then_some(name)
}

/// Which symbols a text names. An `@` in the text of inline assembly is followed by no symbol.
fn references(text: &str, indices: &HashMap<&str, usize>) -> Vec<usize> {
    let names = text.match_indices('@').filter_map(|(at, _)| name_at(&text[at + 1..]));
    let mut references: Vec<usize> = names.filter_map(|name| indices.get(name).copied()).collect();
    references.sort_unstable();
    references.dedup();
    references
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODULE: &str = r#"; ModuleID = 'x'
source_filename = "x"
target triple = "nvptx64-nvidia-cuda"

@text = private unnamed_addr constant [3 x i8] c"!4\00", !guid !2
@"quoted name" = internal global i32 0

define internal void @helper() #0 !dbg !3 {
  call void asm sideeffect "@p bra !4;", ""(), !dbg !4
  ret void
}
define ptx_kernel void @first() #0 !dbg !5 {
  call void @helper(), !dbg !6
  ret void
}
define ptx_kernel void @second() #0 {
  %a = load i32, ptr @"quoted name"
  ret void
}
declare void @llvm.trap() #1

attributes #0 = { nounwind }
!llvm.ident = !{!0}
!0 = !{!"rustc"}
!2 = !{i64 1}
!3 = distinct !DISubprogram(name: "helper", unit: !7)
!4 = !DILocation(line: 4, scope: !3)
!5 = distinct !DISubprogram(name: "!6", unit: !7)
!6 = !DILocation(line: 6, scope: !5)
!7 = distinct !DICompileUnit()
"#;

    #[test]
    fn a_group_has_what_its_kernels_reach() {
        let parts = Parts::read(MODULE);
        assert!(!parts.exports_more_than_kernels);
        let [first, second] = [0, 1].map(|kernel| parts.module_of(&parts.kernels[kernel..=kernel]));
        let expected = r#"source_filename = "x"
target triple = "nvptx64-nvidia-cuda"
define internal void @helper() #0 !dbg !0 {
  call void asm sideeffect "@p bra !4;", ""(), !dbg !1
  ret void
}
define ptx_kernel void @first() #0 !dbg !2 {
  call void @helper(), !dbg !3
  ret void
}
attributes #0 = { nounwind }
!llvm.ident = !{!4}
!0 = distinct !DISubprogram(name: "helper", unit: !5)
!1 = !DILocation(line: 4, scope: !0)
!2 = distinct !DISubprogram(name: "!6", unit: !5)
!3 = !DILocation(line: 6, scope: !2)
!4 = !{!"rustc"}
!5 = distinct !DICompileUnit()
"#;
        assert_eq!(first, expected);
        assert!(second.contains("@second") && second.contains("\n@\"quoted name\" = "), "{second}");
        assert!(!second.contains("helper") && !second.contains("@text"), "{second}");
    }

    #[test]
    fn a_module_that_exports_more_than_kernels_stays_whole() {
        assert_eq!(split(MODULE).len(), 1);
        let exported = MODULE.replace("define internal", "define");
        assert_eq!(split(&exported), [exported]);
    }

    #[test]
    fn groups_stay_where_a_kernel_comes_or_goes() {
        let names: Vec<String> = (0..200).map(|number| format!("kernel_{number}")).collect();
        let groups = |names: &[String]| {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (mut groups, mut start) = (Vec::new(), 0);
            for end in group_ends(&names) {
                groups.push(names[start..end].join(" "));
                start = end;
            }
            groups
        };
        let all = groups(&names);
        // The last group takes what is too little for another one.
        let sizes = MIN_KERNELS..MAX_KERNELS + MIN_KERNELS;
        assert!(all.len() > 10 && all.iter().all(|group| sizes.contains(&group.split(' ').count())), "{all:?}");
        let without = groups(&[&names[..100], &names[101..]].concat());
        let kept = all.iter().filter(|group| without.contains(group)).count();
        assert!(kept + 5 >= all.len(), "{kept} of {}", all.len());
        assert_eq!(group_ends(&[]), [0]);
    }
}
