//! Joins PTX of some kernels each to the PTX of all.

use std::collections::{HashMap, HashSet};

/// The PTX of all kernels: one header, declarations once, the kernels in their order, one table of files.
///
/// None where a function beside the kernels has a body: two groups may have made different functions of it.
pub(crate) fn join(groups: &[String]) -> Option<String> {
    if let [group] = groups {
        return Some(group.clone());
    }
    let (mut header, mut declarations, mut kernels) = (String::new(), String::new(), String::new());
    let (mut declared, mut files) = (HashSet::new(), Files::default());
    for group in groups {
        let group = Group::read(group)?;
        if header.is_empty() {
            header = group.header;
        }
        for declaration in group.declarations {
            if declared.insert(declaration) {
                declarations.push_str(declaration);
            }
        }
        let numbers: HashMap<&str, usize> =
            group.files.iter().map(|&(number, path)| (number, files.number(path))).collect();
        for line in group.kernels.split_inclusive('\n') {
            match location(line).and_then(|(number, rest)| Some((numbers.get(number)?, rest))) {
                Some((number, rest)) => kernels += &format!("\t.loc\t{number} {rest}"),
                None => kernels.push_str(line),
            }
        }
    }
    let files = files.paths.iter().enumerate().map(|(index, path)| format!("\t.file\t{} {path}", index + 1));
    Some([header, declarations, kernels, files.collect()].concat())
}

/// The parts of a group's PTX.
#[derive(Default)]
struct Group<'a> {
    header: String,
    declarations: Vec<&'a str>,
    kernels: &'a str,
    /// Numbers and paths; a path ends with its line.
    files: Vec<(&'a str, &'a str)>,
}

impl<'a> Group<'a> {
    fn read(ptx: &'a str) -> Option<Self> {
        let mut group = Group::default();
        let (mut at, mut statement, mut kernels) = (0, None, None);
        for line in ptx.split_inclusive('\n') {
            let start = at;
            at += line.len();
            if let Some(file) = line.strip_prefix("\t.file\t") {
                group.files.push(file.split_once(' ')?);
                kernels = kernels.map(|(first, last)| (first, if group.files.len() == 1 { start } else { last }));
            } else if kernels.is_some() || line.starts_with(".visible .entry ") {
                // Functions stand between kernels too.
                if line.contains(".func ") {
                    return None;
                }
                let (first, _) = kernels.unwrap_or((start, at));
                kernels = Some((first, at));
            } else if [".version ", ".target ", ".address_size "].iter().any(|word| line.starts_with(word)) {
                group.header.push_str(line);
            } else {
                let first = *statement.get_or_insert(start);
                if line.starts_with('{') {
                    return None;
                }
                if line.trim_end().ends_with(';') {
                    group.declarations.push(&ptx[first..at]);
                    statement = None;
                }
            }
        }
        let (first, last) = kernels.unwrap_or((ptx.len(), ptx.len()));
        group.kernels = &ptx[first..last];
        Some(group)
    }
}

/// The files of all groups.
#[derive(Default)]
struct Files<'a> {
    paths: Vec<&'a str>,
    numbers: HashMap<&'a str, usize>,
}

impl<'a> Files<'a> {
    fn number(&mut self, path: &'a str) -> usize {
        *self.numbers.entry(path).or_insert_with(|| {
            self.paths.push(path);
            self.paths.len()
        })
    }
}

/// `.loc 1 2 3` as the number of the file and the rest.
fn location(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("\t.loc\t")?.split_once(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = ".version 8.0\n.target sm_80\n.address_size 64\n";
    const PRINT: &str = ".extern .func  (.param .b32 r) vprintf\n(\n\t.param .b64 p\n)\n;\n";
    const SHARED: &str = ".extern .shared .align 16 .b8 a[];\n";

    fn kernel(name: &str, location: &str) -> String {
        format!(".visible .entry {name}(\n)\n{{\n\t.loc\t{location}\n\tret;\n}}\n")
    }

    #[test]
    fn groups_share_header_declarations_and_files() {
        let first = [HEADER, PRINT, SHARED, &kernel("a", "1 5 0"), "\t.file\t1 \"x.rs\"\n"].concat();
        let table = "\t.file\t1 \"y.rs\"\n\t.file\t2 \"x.rs\"\n";
        let second = [HEADER, SHARED, &kernel("b", "1 6 0"), &kernel("c", "2 7 0"), table].concat();
        let all = [HEADER, PRINT, SHARED, &kernel("a", "1 5 0"), &kernel("b", "2 6 0"), &kernel("c", "1 7 0")].concat();
        let joined = join(&[first.clone(), second]).unwrap();
        assert_eq!(joined, all + "\t.file\t1 \"x.rs\"\n\t.file\t2 \"y.rs\"\n");
        assert_eq!(join(&[HEADER.into(), HEADER.into()]).unwrap(), HEADER);
        assert_eq!(join(std::slice::from_ref(&first)), Some(first));
    }

    #[test]
    fn groups_with_functions_are_not_joined() {
        let function = ".func helper()\n{\n\tret;\n}\n";
        let before = [HEADER, function, &kernel("a", "1 5 0")].concat();
        let between = [HEADER, &kernel("a", "1 5 0"), function, &kernel("b", "1 5 0")].concat();
        for group in [before, between] {
            assert_eq!(join(&[HEADER.into(), group]), None);
        }
    }
}
