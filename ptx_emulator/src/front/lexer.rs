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

/// The bytes of the word that `text` starts with: ASCII only, so that a cut after it is a character boundary.
fn word_length(text: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'$' | b'%' | b'.' => 1,
            b':' if text.get(at + 1) == Some(&b':') => 2,
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
