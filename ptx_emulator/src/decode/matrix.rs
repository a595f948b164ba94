//! `ldmatrix`, `wmma` and `mma`.

use layout::fragment::WmmaShape;

use super::{Args, Form, Result, refuse};
use crate::program::{Element, Fragment, Mma, MmaKind, Op, Part, Space, W, Wmma};

pub(super) fn ldmatrix(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let known = form.flag("sync") && form.flag("aligned") && form.flag("m8n8") && form.flag("b16");
    let count = form.one_of(&[("x1", 1), ("x2", 2), ("x4", 4)]);
    let transposed = form.flag("trans");
    let (true, Some(count)) = (known && (form.flag("shared") || form.flag("shared::cta")), count) else {
        return refuse("the form is not covered");
    };
    Ok(Op::Ldmatrix { transposed, d: args.words(0, &[count])?, address: args.address(1, Space::Shared)? })
}

pub(super) fn stmatrix(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    args.exactly(2)?;
    let known = form.flag("sync") && form.flag("aligned") && form.flag("m8n8") && form.flag("b16");
    let count = form.one_of(&[("x1", 1), ("x2", 2), ("x4", 4)]);
    let transposed = form.flag("trans");
    let (true, Some(count)) = (known && (form.flag("shared") || form.flag("shared::cta")), count) else {
        return refuse("the form is not covered");
    };
    Ok(Op::Stmatrix { transposed, s: args.words(1, &[count])?, address: args.address(0, Space::Shared)? })
}

pub(super) fn wmma(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    let operation = form.one_of(&[("load", 0), ("store", 1), ("mma", 2)]);
    let shapes =
        [("m16n16k16", WmmaShape::M16N16K16), ("m32n8k16", WmmaShape::M32N8K16), ("m8n32k16", WmmaShape::M8N32K16)];
    let synchronous = form.flag("sync") && form.flag("aligned");
    let (true, Some(operation), Some(shape)) = (synchronous, operation, form.one_of(&shapes)) else {
        return refuse("the form is not covered");
    };
    if operation == 2 { multiply(form, args, shape) } else { fragment(form, args, shape, operation == 0) }
}

fn fragment(form: &mut Form<'_>, args: &mut Args<'_>, shape: WmmaShape, load: bool) -> Result<Op> {
    let parts: &[_] = if load { &[("a", Part::A), ("b", Part::B), ("c", Part::C)] } else { &[("d", Part::C)] };
    let (Some(part), Some(row_major)) = (form.one_of(parts), form.one_of(&[("row", true), ("col", false)])) else {
        return refuse("the form is not covered");
    };
    let spaces = [("global", Space::Global), ("shared", Space::Shared), ("shared::cta", Space::Shared)];
    let space = form.one_of(&spaces).unwrap_or(Space::Generic);
    let counts = if part == Part::C {
        if !form.flag("f32") {
            return refuse("accumulators are covered in f32");
        }
        8
    } else {
        factor_registers(form, shape, part)?
    };
    args.between(2, 3)?;
    let (registers, address) = if load { (0, 1) } else { (1, 0) };
    let stride = if args.len() == 3 { Some(args.word(2)?) } else { None };
    let registers = args.words(registers, &[counts])?;
    let address = args.address(address, space)?;
    let fragment = Box::new(Fragment { part, shape, row_major, registers, space, address, stride });
    Ok(if load { Op::FragmentLoad(fragment) } else { Op::FragmentStore(fragment) })
}

/// The registers that a factor has: 8 in f16, those that hold different elements in bf16.
fn factor_registers(form: &mut Form<'_>, shape: WmmaShape, part: Part) -> Result<usize> {
    let distinct = if part == Part::A { shape.a_registers() } else { shape.b_registers() };
    match form.one_of(&[("f16", 8), ("bf16", distinct as usize)]) {
        Some(count) => Ok(count),
        None => refuse("factors are covered in f16 and bf16"),
    }
}

/// The layouts of the factors say how they were loaded; the registers are the same for both.
fn multiply(form: &mut Form<'_>, args: &mut Args<'_>, shape: WmmaShape) -> Result<Op> {
    let mut layouts = 0;
    while matches!(form.modifiers.first(), Some(&("row" | "col"))) {
        form.modifiers.remove(0);
        layouts += 1;
    }
    let element = match form.modifiers[..] {
        ["f32", "f32"] => Element::F16,
        ["f32", "bf16", "bf16", "f32"] => Element::Bf16,
        _ => return refuse("the types are not covered"),
    };
    form.modifiers.clear();
    if layouts != 2 {
        return refuse("the layouts of the factors are missing");
    }
    args.exactly(4)?;
    let (a_count, b_count) = match element {
        Element::F16 => (8, 8),
        Element::Bf16 => (shape.a_registers() as usize, shape.b_registers() as usize),
    };
    let d = eight(&args.words(0, &[8])?);
    let (a, b) = (eight(&args.words(1, &[a_count])?), eight(&args.words(2, &[b_count])?));
    Ok(Op::Wmma(Box::new(Wmma { shape, element, d, a, b, c: eight(&args.words(3, &[8])?) })))
}

/// The registers, repeated up to eight.
fn eight(registers: &[W]) -> [W; 8] {
    std::array::from_fn(|at| registers[at % registers.len()])
}

pub(super) fn mma(form: &mut Form<'_>, args: &mut Args<'_>) -> Result<Op> {
    if !(form.next_is("sync") && form.next_is("aligned")) {
        return refuse("the form is not covered");
    }
    if let Some(op) = super::general::integer_mma(form, args)? {
        return Ok(op);
    }
    let e4m3 = |ty: &str| match ty {
        "e4m3" => Some(true),
        "e5m2" => Some(false),
        _ => None,
    };
    let kind = match form.modifiers[..] {
        ["m16n8k16", "row", "col", "f32", "f16", "f16", "f32"] => MmaKind::Half(Element::F16),
        ["m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"] => MmaKind::Half(Element::Bf16),
        ["m16n8k8", "row", "col", "f32", "tf32", "tf32", "f32"] => MmaKind::Tf32,
        ["m16n8k32", "row", "col", "f32", a, b, "f32"] => match (e4m3(a), e4m3(b)) {
            (Some(a_e4m3), Some(b_e4m3)) => MmaKind::Quarter { a_e4m3, b_e4m3 },
            _ => return refuse("the types are not covered"),
        },
        _ => return refuse("the shape or the types are not covered"),
    };
    form.modifiers.clear();
    args.exactly(4)?;
    let four = |words: Vec<W>| -> [W; 4] { std::array::from_fn(|at| words[at]) };
    let d = four(args.words(0, &[4])?);
    let a = four(args.words(1, &[4])?);
    let b = args.words(2, &[2])?;
    Ok(Op::Mma(Box::new(Mma { kind, d, a, b: [b[0], b[1]], c: four(args.words(3, &[4])?) })))
}
