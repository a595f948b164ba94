//! Operands of a statement, registers resolved.

use crate::program::{Reg, Special};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Reg(Reg),
    /// An integer in two's complement of 64 bits.
    Int(u64),
    /// Bits of `0f` and `0d` numbers.
    F32(u32),
    F64(u64),
    Special(Special),
    /// Clocks, which have no fixed value: their width in bits.
    Clock(u32),
    /// An address of a variable in shared or local memory, or of a parameter.
    Symbol(Symbol),
    /// A name that is none of these: a label.
    Name(String),
    Address(Base, i64),
    /// An address and coordinates: `[map, {x, y}]`.
    Tensor(Base, i64, Vec<Operand>),
    Vector(Vec<Operand>),
    /// `a|b`.
    Pair(Box<Operand>, Box<Operand>),
    Sink,
    /// `!p`.
    Not(Reg),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbol {
    pub(crate) space: SymbolSpace,
    pub(crate) address: u32,
}

impl Symbol {
    /// The address so many bytes behind it.
    pub(crate) fn behind(self, bytes: u64) -> Symbol {
        Symbol { address: self.address.wrapping_add(bytes as u32), ..self }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SymbolSpace {
    Shared,
    Local,
    Param,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Reg(Reg),
    Symbol(Symbol),
    None,
}

/// The value of a number as PTX writes it, without its sign.
pub(crate) fn number(text: &str) -> Option<Operand> {
    if let Some(hex) = text.strip_prefix("0f").or(text.strip_prefix("0F")) {
        return (hex.len() == 8).then(|| u32::from_str_radix(hex, 16).ok().map(Operand::F32))?;
    }
    if let Some(hex) = text.strip_prefix("0d").or(text.strip_prefix("0D")) {
        return (hex.len() == 16).then(|| u64::from_str_radix(hex, 16).ok().map(Operand::F64))?;
    }
    let is_hex = text.starts_with("0x") || text.starts_with("0X");
    if text.contains('.') || !is_hex && text.contains(['e', 'E']) {
        return text.parse::<f64>().ok().map(|value| Operand::F64(value.to_bits()));
    }
    let digits = text.strip_suffix('U').unwrap_or(text);
    let radix = |prefix: &[&str], radix| {
        let rest = prefix.iter().find_map(|prefix| digits.strip_prefix(prefix))?;
        u64::from_str_radix(rest, radix).ok()
    };
    let octal = || (digits.len() > 1).then(|| radix(&["0"], 8))?;
    let value = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => radix(&["0x", "0X"], 16),
        [b'0', b'b' | b'B', ..] => radix(&["0b", "0B"], 2),
        [b'0', _, ..] => octal(),
        _ => digits.parse().ok(),
    };
    value.map(Operand::Int)
}

/// The special register of this name.
pub(crate) fn special(name: &str) -> Option<Operand> {
    let fixed = match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NwarpId,
        "%lanemask_eq" => Special::LanemaskEq,
        "%lanemask_le" => Special::LanemaskLe,
        "%lanemask_lt" => Special::LanemaskLt,
        "%lanemask_ge" => Special::LanemaskGe,
        "%lanemask_gt" => Special::LanemaskGt,
        "%cluster_ctarank" => Special::ClusterCtarank,
        "%cluster_nctarank" => Special::ClusterNctarank,
        "%dynamic_smem_size" => Special::DynamicSharedBytes,
        "%total_smem_size" => Special::TotalSharedBytes,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NsmId,
        // A launch is the only one that its threads can see.
        "%gridid" => return Some(Operand::Int(1)),
        "%clock" | "%clock_hi" | "%globaltimer_lo" | "%globaltimer_hi" => return Some(Operand::Clock(32)),
        "%clock64" | "%globaltimer" => return Some(Operand::Clock(64)),
        _ => {
            let (name, axis) = name.split_once('.')?;
            let axis = match axis {
                "x" => 0,
                "y" => 1,
                "z" => 2,
                _ => return None,
            };
            match name {
                "%tid" => Special::Tid(axis),
                "%ntid" => Special::Ntid(axis),
                "%ctaid" => Special::Ctaid(axis),
                "%nctaid" => Special::Nctaid(axis),
                "%cluster_ctaid" => Special::ClusterCtaid(axis),
                "%cluster_nctaid" => Special::ClusterNctaid(axis),
                "%clusterid" => Special::ClusterId(axis),
                "%nclusterid" => Special::NclusterId(axis),
                _ => return None,
            }
        }
    };
    Some(Operand::Special(fixed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_every_notation() {
        for (text, value) in [
            ("0", Operand::Int(0)),
            ("42", Operand::Int(42)),
            ("0x1F", Operand::Int(31)),
            ("0xffffffffffffffff", Operand::Int(u64::MAX)),
            ("0b101", Operand::Int(5)),
            ("017", Operand::Int(15)),
            ("7U", Operand::Int(7)),
            ("0f3F800000", Operand::F32(0x3F80_0000)),
            ("0d3FF0000000000000", Operand::F64(1f64.to_bits())),
            ("1.5", Operand::F64(1.5f64.to_bits())),
            ("15e-1", Operand::F64(1.5f64.to_bits())),
            ("0x1e3", Operand::Int(0x1E3)),
        ] {
            assert_eq!(number(text), Some(value), "{text}");
        }
        for text in ["", "0f12", "0x", "0xg", "9a", "99999999999999999999", "0d1", "1.2.3"] {
            assert_eq!(number(text), None, "{text}");
        }
    }
}
