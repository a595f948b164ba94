//! `vprintf`: text by the rules of C.

use super::Fault;
use super::access::{Noted, Way};
use crate::program::{D, Order, Space, W};
use crate::registers::lanes;
use crate::turn::Turn;

/// Bytes of a string, and of a number's width or precision, at most.
const MAX_TEXT: usize = 1 << 12;

/// Bytes of `N` at a generic address.
fn read<const N: usize>(turn: &mut Turn<'_, '_>, lane: usize, address: u64) -> Result<[u8; N], Box<Fault>> {
    let way = Way { space: Space::Generic, order: Order::Weak, noted: Noted::Alone };
    let mut bytes = [0; N];
    turn.read(way, lane, address, &mut bytes)?;
    Ok(bytes)
}

/// The string at a generic address, up to its zero.
pub(super) fn text(turn: &mut Turn<'_, '_>, lane: usize, address: u64) -> Result<String, Box<Fault>> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_TEXT {
        match read::<1>(turn, lane, address + bytes.len() as u64)? {
            [0] => break,
            [byte] => bytes.push(byte),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Prints for each lane, in their order, and gives it the number of its arguments.
pub(super) fn print(turn: &mut Turn<'_, '_>, format: D, arguments: D, d: W) -> Result<(), Box<Fault>> {
    let (formats, arguments) = (*turn.registers.double(format), *turn.registers.double(arguments));
    for lane in lanes(turn.mask) {
        let format = text(turn, lane, formats[lane])?;
        let mut list = Arguments { turn, lane, next: arguments[lane], count: 0 };
        let line = list.formatted(&format)?;
        let count = list.count;
        turn.cluster.print(&line);
        turn.registers.set_word(d, &[count; 32], 1 << lane);
    }
    Ok(())
}

/// The arguments of a lane, each at a multiple of its size.
struct Arguments<'p, 't, 'a> {
    turn: &'p mut Turn<'t, 'a>,
    lane: usize,
    next: u64,
    count: u32,
}

impl Arguments<'_, '_, '_> {
    fn word(&mut self) -> Result<u32, Box<Fault>> {
        let address = self.next.next_multiple_of(4);
        (self.next, self.count) = (address + 4, self.count + 1);
        Ok(u32::from_le_bytes(read(self.turn, self.lane, address)?))
    }

    fn double(&mut self) -> Result<u64, Box<Fault>> {
        let address = self.next.next_multiple_of(8);
        (self.next, self.count) = (address + 8, self.count + 1);
        Ok(u64::from_le_bytes(read(self.turn, self.lane, address)?))
    }

    fn formatted(&mut self, format: &str) -> Result<String, Box<Fault>> {
        let (mut out, mut rest) = (String::new(), format);
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let Some((mut specification, letter, after)) = Specification::of(&rest[at + 1..]) else {
                out.push_str(&rest[at..]);
                return Ok(out);
            };
            rest = after;
            if letter == '%' {
                out.push('%');
                continue;
            }
            if specification.width_is_argument {
                let width = self.word()? as i32;
                specification.left |= width < 0;
                specification.width = width.unsigned_abs() as usize;
            }
            if specification.precision_is_argument {
                specification.precision = usize::try_from(self.word()? as i32).ok();
            }
            let converted = self.converted(&specification, letter)?;
            out.push_str(&specification.padded(&converted, letter));
        }
        Ok(out + rest)
    }

    /// The argument as text, with its sign, not yet padded.
    fn converted(&mut self, specification: &Specification, letter: char) -> Result<String, Box<Fault>> {
        Ok(match letter {
            'd' | 'i' => {
                let value = if specification.wide { self.double()? as i64 } else { (self.word()? as i32).into() };
                let value = specification.narrowed(value);
                specification.signed(value < 0, &specification.digits(value.unsigned_abs(), 10))
            }
            'u' | 'o' | 'x' | 'X' => {
                let value = if specification.wide { self.double()? } else { self.word()?.into() };
                let value = value & specification.mask();
                let radix = match letter {
                    'u' => 10,
                    'o' => 8,
                    _ => 16,
                };
                let digits = specification.digits(value, radix);
                let text = match (specification.alternate && value != 0, radix) {
                    (true, 16) => format!("0x{digits}"),
                    (true, 8) => format!("0{digits}"),
                    _ => digits,
                };
                if letter == 'X' { text.to_uppercase() } else { text }
            }
            'c' => char::from(self.word()? as u8).to_string(),
            's' => {
                let address = self.double()?;
                let text = text(self.turn, self.lane, address)?;
                text.chars().take(specification.precision.unwrap_or(MAX_TEXT)).collect()
            }
            'p' => format!("{:#x}", self.double()?),
            _ => {
                let value = f64::from_bits(self.double()?);
                let text = specification.float(value.abs(), letter.to_ascii_lowercase());
                let text = specification.signed(value.is_sign_negative(), &text);
                if letter.is_ascii_uppercase() { text.to_uppercase() } else { text }
            }
        })
    }
}

/// What stands between `%` and the letter of a conversion.
#[derive(Debug, Clone, Default)]
struct Specification {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    width_is_argument: bool,
    precision: Option<usize>,
    precision_is_argument: bool,
    /// `ll`, `l`, `j`, `z`, `t`: 64 bits.
    wide: bool,
    /// `h` and `hh`: how many of them.
    short: usize,
}

impl Specification {
    /// The specification, its letter, and what follows; none where there is no known letter.
    fn of(text: &str) -> Option<(Specification, char, &str)> {
        let mut it = Specification::default();
        let flags = text.len() - text.trim_start_matches(['-', '+', ' ', '#', '0']).len();
        for flag in text[..flags].chars() {
            match flag {
                '-' => it.left = true,
                '+' => it.plus = true,
                ' ' => it.space = true,
                '#' => it.alternate = true,
                _ => it.zero = true,
            }
        }
        let number = |text: &str| {
            let length = text.len() - text.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
            (text[..length].parse().unwrap_or(0).min(MAX_TEXT), length)
        };
        let mut rest = &text[flags..];
        if let Some(after) = rest.strip_prefix('*') {
            (it.width_is_argument, rest) = (true, after);
        } else {
            let (width, length) = number(rest);
            (it.width, rest) = (width, &rest[length..]);
        }
        if let Some(after) = rest.strip_prefix('.') {
            if let Some(after) = after.strip_prefix('*') {
                (it.precision_is_argument, rest) = (true, after);
            } else {
                let (precision, length) = number(after);
                (it.precision, rest) = (Some(precision), &after[length..]);
            }
        }
        let sizes = rest.len() - rest.trim_start_matches(['h', 'l', 'j', 'z', 't']).len();
        it.short = rest[..sizes].matches('h').count();
        it.wide = sizes > it.short;
        let letter = rest[sizes..].chars().next()?;
        let known = "diuoxXcspfFeEgGaA%".contains(letter);
        known.then(|| (it, letter, &rest[sizes + letter.len_utf8()..]))
    }

    fn narrowed(&self, value: i64) -> i64 {
        match self.short {
            0 => value,
            1 => (value as i16).into(),
            _ => (value as i8).into(),
        }
    }

    fn mask(&self) -> u64 {
        match self.short {
            0 => u64::MAX,
            1 => 0xFFFF,
            _ => 0xFF,
        }
    }

    /// With as many digits as the precision asks for.
    fn digits(&self, value: u64, radix: u32) -> String {
        let digits = match radix {
            10 => value.to_string(),
            8 => format!("{value:o}"),
            _ => format!("{value:x}"),
        };
        if value == 0 && self.precision == Some(0) {
            return String::new();
        }
        format!("{digits:0>width$}", width = self.precision.unwrap_or(1))
    }

    fn signed(&self, negative: bool, text: &str) -> String {
        let sign = match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        format!("{sign}{text}")
    }

    /// A number that is not negative, by `f`, `e`, `g` or `a`.
    fn float(&self, value: f64, letter: char) -> String {
        if !value.is_finite() {
            return if value.is_nan() { "nan".to_owned() } else { "inf".to_owned() };
        }
        let precision = self.precision.unwrap_or(6);
        match letter {
            'f' => format!("{value:.precision$}"),
            'e' => exponential(value, precision),
            'a' => hexadecimal(value),
            _ => {
                let digits = precision.max(1);
                let scientific = exponential(value, digits - 1);
                let exponent: i32 =
                    scientific.split_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0);
                let text = if exponent < -4 || exponent >= digits as i32 {
                    scientific
                } else {
                    format!("{value:.after$}", after = (digits as i32 - 1 - exponent) as usize)
                };
                if self.alternate { text } else { without_zeros(&text) }
            }
        }
    }

    fn padded(&self, text: &str, letter: char) -> String {
        let missing = self.width.saturating_sub(text.chars().count());
        // Zeros stand between the sign and the digits, of numbers that no precision makes longer.
        let is_integer = "diuoxX".contains(letter);
        let is_number = text.ends_with(|last: char| last.is_ascii_hexdigit()) && !"cs".contains(letter);
        if self.zero && !self.left && is_number && !(is_integer && self.precision.is_some()) {
            let digits = text.trim_start_matches(['-', '+', ' ']);
            let digits = digits.strip_prefix("0x").or(digits.strip_prefix("0X")).unwrap_or(digits);
            let sign = &text[..text.len() - digits.len()];
            return format!("{sign}{}{digits}", "0".repeat(missing));
        }
        let spaces = " ".repeat(missing);
        if self.left { format!("{text}{spaces}") } else { format!("{spaces}{text}") }
    }
}

/// With a sign and two digits in the exponent at least.
fn exponential(value: f64, precision: usize) -> String {
    let text = format!("{value:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn hexadecimal(value: f64) -> String {
    let bits = value.to_bits();
    let (exponent, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    let (first, exponent) = match (exponent, fraction) {
        (0, 0) => (0, 0),
        (0, _) => (0, -1022),
        _ => (1, exponent - 1023),
    };
    format!("0x{first}{point}{digits}p{exponent:+}")
}

/// Without the zeros at the end of the fraction.
fn without_zeros(text: &str) -> String {
    let (digits, exponent) = text.find('e').map_or((text, ""), |at| text.split_at(at));
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { digits };
    format!("{digits}{exponent}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(format: &str, value: f64) -> String {
        let (specification, letter, _) = Specification::of(format).unwrap();
        let text = specification.float(value.abs(), letter.to_ascii_lowercase());
        specification.padded(&specification.signed(value.is_sign_negative(), &text), letter)
    }

    #[test]
    fn floats_are_written_as_c_writes_them() {
        for (format, value, expected) in [
            ("f", 1.5, "1.500000"),
            ("8.3f", -2.0 / 3.0, "  -0.667"),
            ("-8.2f|", 1.0, "1.00    "),
            ("+.0f", 2.5, "+2"),
            ("e", 12345.678, "1.234568e+04"),
            (".2e", 0.00012, "1.20e-04"),
            ("g", 100000.0, "100000"),
            ("g", 1000000.0, "1e+06"),
            ("g", 0.0001, "0.0001"),
            ("g", 0.00001234, "1.234e-05"),
            (".3g", 2.0 / 3.0, "0.667"),
            ("g", 0.0, "0"),
            ("08.3f", -1.25, "-001.250"),
            ("a", 1.0, "0x1p+0"),
            ("a", 0.15625, "0x1.4p-3"),
            ("6f", f64::INFINITY, "   inf"),
            ("06f", f64::NAN, "   nan"),
        ] {
            assert_eq!(float(format, value), expected, "%{format} of {value}");
        }
    }
}
