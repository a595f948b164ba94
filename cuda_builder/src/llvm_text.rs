//! Finding one's way in a line of LLVM assembly. Quotes within a string are escaped there, so a string ends at the next
//! quote.

/// The index of the bracket that closes the one at `open`.
pub(crate) fn closing(text: &str, open: usize) -> Option<usize> {
    let (mut depth, mut quoted) = (0, false);
    for (index, byte) in text.bytes().enumerate().skip(open) {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// Splits at the commas outside brackets and strings.
pub(crate) fn split_list(text: &str) -> Vec<&str> {
    let (mut parts, mut start, mut depth, mut quoted) = (Vec::new(), 0, 0, false);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    if !text[start..].trim().is_empty() {
        parts.push(&text[start..]);
    }
    parts
}

/// The bytes of the first `c"..."` constant of a line.
pub(crate) fn string_constant(text: &str) -> Option<Vec<u8>> {
    let start = text.find(" c\"")? + 3;
    let end = start + text[start..].find('"')?;
    let mut bytes = Vec::new();
    let mut rest = text[start..end].bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => {
                let mut digit = || (rest.next()? as char).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_within_strings_do_not_count() {
        let text = r#"f(i32 range(i32 0, 5) %a, ")", [2 x i64] %b) tail"#;
        assert_eq!(closing(text, 1), Some(text.len() - " tail".len() - 1));
        assert_eq!(closing("(", 0), None);
    }

    #[test]
    fn lists_split_at_outer_commas_alone() {
        assert_eq!(split_list(r#"i32 range(i32 0, 5) %a, ptr %"x,y""#), ["i32 range(i32 0, 5) %a", r#" ptr %"x,y""#]);
        assert!(split_list("").is_empty());
    }

    #[test]
    fn string_constants_are_unescaped() {
        assert_eq!(
            string_constant(r#"@x = constant [4 x i8] c"\80A\00\5C", align 4"#),
            Some(vec![0x80, b'A', 0, b'\\'])
        );
    }
}
