//! PTX text to words and punctuation.

/// One token. Words keep their dots and `::`, so an opcode, a directive, a register and a number are one word each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A directive, opcode, name, register or number.
    Word(&'a str),
    /// A string without its quotes.
    Text(&'a str),
    /// One character of punctuation.
    Mark(char),
    /// The end of the text.
    End,
}

/// How an error names a token.
pub(super) fn show(token: Token<'_>) -> String {
    match token {
        Token::Word(word) => format!("`{word}`"),
        Token::Text(text) => format!("\"{text}\""),
        Token::Mark(mark) => format!("`{mark}`"),
        Token::End => "the end of the text".to_owned(),
    }
}

/// Reads tokens one after another and counts lines.
#[derive(Clone)]
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    next: Option<(Token<'a>, u32)>,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str) -> Self {
        Lexer { text, at: 0, line: 1, next: None }
    }

    /// The next token, which stays.
    pub(crate) fn peek(&mut self) -> Token<'a> {
        if self.next.is_none() {
            self.next = Some(self.read());
        }
        self.next.map_or(Token::End, |next| next.0)
    }

    /// The next token, and the line it stands on.
    pub(crate) fn take(&mut self) -> (Token<'a>, u32) {
        match self.next.take() {
            Some(next) => next,
            None => self.read(),
        }
    }

    /// The line of the next token.
    pub(crate) fn line(&mut self) -> u32 {
        self.peek();
        self.next.map_or(self.line, |next| next.1)
    }

    /// The opcode that was just taken, with the modifiers that may follow it after spaces: `ld .global`.
    pub(crate) fn with_modifiers(&mut self, opcode: &'a str) -> &'a str {
        let mut end = self.at;
        while let Token::Word(word) = self.peek()
            && word.starts_with('.')
        {
            self.take();
            end = self.at;
        }
        // The token behind it may have been looked at already.
        let start = opcode.as_ptr() as usize - self.text.as_ptr() as usize;
        self.text.get(start..end).unwrap_or(opcode)
    }

    fn read(&mut self) -> (Token<'a>, u32) {
        self.skip_space();
        let (rest, line) = (&self.text[self.at..], self.line);
        let Some(first) = rest.chars().next() else { return (Token::End, line) };
        if let Some(quoted) = rest.strip_prefix('"') {
            let length = quoted.find(['"', '\n']).unwrap_or(quoted.len());
            let closed = quoted[length..].starts_with('"');
            self.at += 1 + length + usize::from(closed);
            return (Token::Text(&quoted[..length]), line);
        }
        let length = word_length(rest.as_bytes());
        if length == 0 {
            self.at += first.len_utf8();
            return (Token::Mark(first), line);
        }
        self.at += length;
        (Token::Word(&rest[..length]), line)
    }

    fn skip_space(&mut self) {
        loop {
            let rest = &self.text.as_bytes()[self.at..];
            let length = match rest {
                [b'\n', ..] => {
                    self.line += 1;
                    1
                }
                [b' ' | b'\t' | b'\r', ..] => 1,
                [b'/', b'/', ..] => rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len()),
                [b'/', b'*', ..] => {
                    let end = rest.windows(2).skip(2).position(|pair| pair == b"*/").map_or(rest.len(), |at| at + 4);
                    self.line += rest[..end].iter().filter(|&&byte| byte == b'\n').count() as u32;
                    end
                }
                _ => return,
            };
            self.at += length;
        }
    }
}

/// The name and the modifiers of an opcode, between which there may be spaces and comments.
pub(crate) fn opcode_parts(opcode: &str) -> Vec<&str> {
    if !opcode.contains([' ', '\t', '\n', '\r', '/']) {
        return opcode.split('.').collect();
    }
    let mut lexer = Lexer::new(opcode);
    let mut parts = Vec::new();
    while let (Token::Word(word), _) = lexer.take() {
        parts.extend(word.strip_prefix('.').unwrap_or(word).split('.'));
    }
    parts
}

/// The bytes of the word that `text` starts with: ASCII only, so that a cut after it is a character boundary.
///
/// A directive ends before the next dot, as in `.visible.entry`; only an opcode has dots inside. A `%` begins a name.
/// In a decimal number with an exponent a sign may stand: `1.5e-3`.
fn word_length(text: &[u8]) -> usize {
    let is_digit = |at: usize| text.get(at).is_some_and(u8::is_ascii_digit);
    let is_directive = text.first() == Some(&b'.') && !is_digit(1);
    let is_decimal = match text.get(1) {
        Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D' | b'b' | b'B') => false,
        _ => is_digit(0) || text.first() == Some(&b'.') && is_digit(1),
    };
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += match byte {
            b'.' if is_directive && at > 0 => break,
            b'%' if at > 0 => break,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'$' | b'%' | b'.' => 1,
            b':' if text.get(at + 1) == Some(&b':') => 2,
            b'+' | b'-' if is_decimal && matches!(text[at - 1], b'e' | b'E') && is_digit(at + 1) => 1,
            _ => break,
        };
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<(Token<'_>, u32)> {
        let mut lexer = Lexer::new(text);
        std::iter::from_fn(|| Some(lexer.take()).filter(|token| token.0 != Token::End)).collect()
    }

    #[test]
    fn words_keep_dots_and_double_colons() {
        use Token::{Mark, Word};
        let text = "W: ld.shared::cta.b32 %r1, [%rd2+-4]; // c\n/* a\nb */ .file \"x y\"";
        let found: Vec<_> = tokens(text).into_iter().map(|token| token.0).collect();
        let expected = [
            Word("W"),
            Mark(':'),
            Word("ld.shared::cta.b32"),
            Word("%r1"),
            Mark(','),
            Mark('['),
            Word("%rd2"),
            Mark('+'),
            Mark('-'),
            Word("4"),
            Mark(']'),
            Mark(';'),
            Word(".file"),
            Token::Text("x y"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn directives_end_before_a_dot_and_names_begin_at_a_percent_sign() {
        let words = |text: &'static str| -> Vec<_> { tokens(text).into_iter().map(|token| token.0).collect() };
        let word = |words: &[&'static str]| words.iter().map(|word| Token::Word(word)).collect::<Vec<_>>();
        assert_eq!(words(".visible.entry k"), word(&[".visible", ".entry", "k"]));
        assert_eq!(words(".shared.align 16.b8"), word(&[".shared", ".align", "16.b8"]));
        assert_eq!(words(".param::entry.b8 .5 5."), word(&[".param::entry", ".b8", ".5", "5."]));
        assert_eq!(words("mov.u32%r1"), word(&["mov.u32", "%r1"]));
        assert_eq!(words("8 % 3"), word(&["8", "%", "3"]));
        assert_eq!(words("1.5e-3 1e+9 1E4"), word(&["1.5e-3", "1e+9", "1E4"]));
        for text in ["0x1e-3", "%e-3", "1e-x"] {
            assert!(words(text).contains(&Token::Mark('-')), "{text}");
        }
    }

    #[test]
    fn modifiers_of_an_opcode_may_stand_apart() {
        assert_eq!(opcode_parts("ld.global.b32"), ["ld", "global", "b32"]);
        assert_eq!(opcode_parts("ld /* a.b */ .global\n.relaxed.b32"), ["ld", "global", "relaxed", "b32"]);
        let mut lexer = Lexer::new("ld .global // c\n .b32 %r1");
        let (Token::Word(opcode), _) = lexer.take() else { panic!("no word") };
        assert_eq!(lexer.with_modifiers(opcode), "ld .global // c\n .b32");
        assert_eq!(lexer.take(), (Token::Word("%r1"), 2));
    }

    #[test]
    fn lines_are_counted_through_comments() {
        assert_eq!(
            tokens("a\n/* \n\n */ b // x\nc"),
            [(Token::Word("a"), 1), (Token::Word("b"), 4), (Token::Word("c"), 5)]
        );
    }

    #[test]
    fn unclosed_comments_strings_and_foreign_letters_end_quietly() {
        for text in ["/* never", "\"open", "/", "ü::", ":", "a::"] {
            assert!(tokens(text).len() < 4, "{text}");
        }
    }
}
