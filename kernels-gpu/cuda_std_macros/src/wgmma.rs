//! The expansion of `wgmma_accumulators!`.

use std::fmt::Write;

use proc_macro2::{Span, TokenStream};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, LitInt, Result, Token};

/// The types of an instruction: the number that `cuda_std::ptx::wgmma` gives the pair, the suffix, K, and whether the
/// operands have a choice of order.
struct Types {
    number: u32,
    suffix: &'static str,
    k: u32,
    transposable: bool,
}

const fn types(number: u32, suffix: &'static str, k: u32) -> Types {
    Types { number, suffix, k, transposable: k == 16 }
}

const F16: Types = types(0, "f16.f16", 16);
const BF16: Types = types(1, "bf16.bf16", 16);
const TF32: Types = types(2, "tf32.tf32", 8);
const FP8: [Types; 4] =
    [types(3, "e4m3.e4m3", 32), types(4, "e4m3.e5m2", 32), types(5, "e5m2.e4m3", 32), types(6, "e5m2.e5m2", 32)];

/// An accumulator type: its PTX name, what a register is in Rust, the elements in it, and what it can accumulate.
struct Accumulator {
    dtype: &'static str,
    name: &'static str,
    register: &'static str,
    elements: usize,
    types: Vec<Types>,
}

/// Expands `wgmma_accumulators!(steps: 1, 2)`.
pub(crate) fn expand(arguments: TokenStream) -> Result<TokenStream> {
    let Steps(steps) = syn::parse2(arguments)?;
    let mut text = String::new();
    let f32 = Accumulator {
        dtype: "F32",
        name: "f32",
        register: "f32",
        elements: 1,
        types: [F16, BF16, TF32].into_iter().chain(FP8).collect(),
    };
    let f16 = Accumulator {
        dtype: "F16",
        name: "f16",
        register: "u32",
        elements: 2,
        types: [F16].into_iter().chain(FP8).collect(),
    };
    for accumulator in [f32, f16] {
        for n in (8..=256).step_by(8) {
            accumulator.implement(n, &steps, &mut text);
        }
    }
    text.parse().map_err(|error| Error::new(Span::call_site(), format!("the expansion is malformed: {error}")))
}

/// The numbers of k-steps of a group.
struct Steps(Vec<u32>);

impl Parse for Steps {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name: Ident = input.parse()?;
        if name != "steps" {
            return Err(Error::new(name.span(), "expected `steps`"));
        }
        input.parse::<Token![:]>()?;
        let list = Punctuated::<LitInt, Token![,]>::parse_terminated(input)?;
        let steps = list.iter().map(|literal| match literal.base10_parse() {
            Ok(steps @ 1..=16) => Ok(steps),
            _ => Err(Error::new(literal.span(), "a group has 1 to 16 k-steps")),
        });
        Ok(Steps(steps.collect::<Result<_>>()?))
    }
}

/// Where a group has its operand A.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Shared,
    Registers,
}

/// Whether a group adds to its accumulators.
#[derive(Clone, Copy, PartialEq)]
enum Sum {
    /// It does, or at run time does not: the registers are read and written.
    Added,
    /// Its first instruction does not: the registers are written alone. As operands that are read they would have to be
    /// moved there, and from there, while the group is in flight.
    New,
}

/// One of the forms of a group.
#[derive(Clone, Copy)]
struct Form {
    source: Source,
    sum: Sum,
}

impl Accumulator {
    /// Appends the implementation for `n` columns.
    fn implement(&self, n: usize, steps: &[u32], text: &mut String) {
        let Accumulator { dtype, register, .. } = self;
        let registers = n / 2 / self.elements;
        let arms = |source, sum| self.arms(n, steps, Form { source, sum });
        let shared = arms(Source::Shared, Sum::Added);
        let from_registers = arms(Source::Registers, Sum::Added);
        let new_shared = arms(Source::Shared, Sum::New);
        let new_from_registers = arms(Source::Registers, Sum::New);
        let named = list(0..registers);
        let names: String = (0..registers).map(|i| format!("d{i}, ")).collect();
        let operands: String = (0..registers).map(|i| format!("inout(reg32) self[{i}],")).collect();
        let d = format!(
            "let mut d = [const {{ MaybeUninit::<{register}>::uninit() }}; {registers}]; let [{names}] = &mut d;"
        );
        let done = "core::mem::transmute::<_, Self>(d)";
        let unused = "_ => {}";
        // Writing to a string does not fail.
        let _ = write!(
            text,
            r#"
            impl sealed::Sealed for [{register}; {registers}] {{}}
            #[allow(clippy::undocumented_unsafe_blocks, reason = "the callers are functions of this module")]
            impl Accumulator for [{register}; {registers}] {{
                const COLUMNS: u32 = {n};
                const DTYPE: Dtype = Dtype::{dtype};
                #[inline(always)]
                unsafe fn group<P: Product, const STEPS: usize>(d: &mut Self, a: u64, b: u64, scale_d: u32) {{
                    let [{names}] = d;
                    unsafe {{ match const {{ case::<P>(STEPS) }} {{ {shared} {unused} }} }}
                }}
                #[inline(always)]
                unsafe fn group_registers<P: Product, const STEPS: usize>(
                    d: &mut Self, a: &[[u32; 4]; STEPS], b: u64, scale_d: u32,
                ) {{
                    let [{names}] = d;
                    unsafe {{ match const {{ case::<P>(STEPS) }} {{ {from_registers} {unused} }} }}
                }}
                #[inline(always)]
                unsafe fn product<P: Product, const STEPS: usize>(a: u64, b: u64) -> Self {{
                    unsafe {{ {d} match const {{ case::<P>(STEPS) }} {{ {new_shared} {unused} }} {done} }}
                }}
                #[inline(always)]
                unsafe fn product_registers<P: Product, const STEPS: usize>(
                    a: &[[u32; 4]; STEPS], b: u64,
                ) -> Self {{
                    unsafe {{ {d} match const {{ case::<P>(STEPS) }} {{ {new_from_registers} {unused} }} {done} }}
                }}
                #[inline(always)]
                unsafe fn wait_group<const PENDING: u32>(&mut self) {{
                    unsafe {{
                        asm!("wgmma.wait_group.sync.aligned {{pending}}; // {named}", {operands}
                            pending = const PENDING, options(nostack));
                    }}
                }}
                #[inline(always)]
                fn settle(&mut self) {{
                    unsafe {{ asm!("// {named}", {operands} options(nostack)) }}
                }}
            }}"#
        );
    }

    /// The arms that choose the group by types and number of k-steps, the number of the types in bits 8 and up of their
    /// pattern.
    fn arms(&self, n: usize, steps: &[u32], form: Form) -> String {
        let mut arms = String::new();
        for types in &self.types {
            for &steps in steps {
                let group = self.group(n, types, steps, form);
                let _ = write!(arms, "{} => {group},", types.number << 8 | steps);
            }
        }
        arms
    }

    /// One `asm!`: a fence, `steps` instructions, a commit.
    fn group(&self, n: usize, types: &Types, steps: u32, Form { source, sum }: Form) -> String {
        let registers = n / 2 / self.elements;
        let a_registers = if source == Source::Registers { 4 * steps as usize } else { 0 };
        let d = list(0..registers);
        let (first, direction) = match sum {
            Sum::Added => ("setp.ne.u32 p, {scale_d}, 0;", "inout"),
            Sum::New => ("setp.ne.u32 p, 0, 0;", "out"),
        };
        let mut template = format!("{{{{ .reg .pred p, q; .reg .b64 at, bt; {first}");
        // Named once for all arms: there are 321,000 operands, and rustc takes long to check the type of a `d[7]`.
        let mut operands: String = (0..registers).map(|i| format!("{direction}(reg32) *d{i},")).collect();
        operands.extend((0..a_registers).map(|i| format!("in(reg32) a[{i}],")));
        if steps > 1 {
            // A later step's descriptor differs in its lower half alone, which holds the address.
            template += " setp.eq.u32 q, 0, 0; .reg .b32 low, b_low, b_high; mov.b64 {{b_low, b_high}}, {b};";
            if source == Source::Shared {
                template += " .reg .b32 a_low, a_high; mov.b64 {{a_low, a_high}}, {a};";
            }
        }
        template += " wgmma.fence.sync.aligned;";
        for step in 0..steps {
            let (at, bt, scale_d) = if step == 0 { ("{a}", "{b}", "p") } else { ("at", "bt", "q") };
            if step > 0 {
                let _ = write!(template, " add.u32 low, b_low, {{b{step}}}; mov.b64 bt, {{{{low, b_high}}}};");
                let _ = write!(operands, "b{step} = const k_step(P::B, {step}),");
            }
            let a = match source {
                Source::Registers => {
                    let first = registers + 4 * step as usize;
                    format!("{{{{{}}}}}", list(first..first + 4))
                }
                Source::Shared => {
                    if step > 0 {
                        let _ = write!(template, " add.u32 low, a_low, {{a{step}}}; mov.b64 at, {{{{low, a_high}}}};");
                        let _ = write!(operands, "a{step} = const k_step(P::A, {step}),");
                    }
                    at.to_owned()
                }
            };
            let orders = match (types.transposable, source) {
                (false, _) => "",
                (true, Source::Shared) => ", {order_a}, {order_b}",
                (true, Source::Registers) => ", {order_b}",
            };
            let _ = write!(
                template,
                " wgmma.mma_async.sync.aligned.m64n{n}k{}.{}.{} {{{{{d}}}}}, {a}, {bt}, {scale_d}, {{sign_a}}, {{sign_b}}{orders};",
                types.k, self.name, types.suffix
            );
        }
        template += " wgmma.commit_group.sync.aligned; }}";
        operands += "b = in(reg64) b,";
        if sum == Sum::Added {
            operands += "scale_d = in(reg32) scale_d,";
        }
        operands += "sign_a = const sign(P::NEGATE_A), sign_b = const sign(P::NEGATE_B),";
        if types.transposable {
            operands += "order_b = const order(P::B),";
        }
        let mut cast = String::new();
        if source == Source::Registers {
            cast = format!("let a = &*a.as_ptr().cast::<[u32; {a_registers}]>();");
        } else {
            operands += "a = in(reg64) a,";
            if types.transposable {
                operands += "order_a = const order(P::A),";
            }
        }
        format!("{{ {cast} asm!(\"{template}\", {operands} options(nostack)) }}")
    }
}

/// The operands of these numbers, as a template names them: `{0}, {1}`.
fn list(operands: std::ops::Range<usize>) -> String {
    operands.map(|i| format!("{{{i}}}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn group(steps: u32, source: Source, sum: Sum) -> String {
        let accumulator = Accumulator { dtype: "F16", name: "f16", register: "u32", elements: 2, types: vec![F16] };
        accumulator.group(8, &F16, steps, Form { source, sum })
    }

    #[test]
    fn a_group_is_a_fence_its_steps_and_a_commit() {
        assert_eq!(
            group(1, Source::Shared, Sum::Added),
            "{  asm!(\"{{ .reg .pred p, q; .reg .b64 at, bt; setp.ne.u32 p, {scale_d}, 0; wgmma.fence.sync.aligned; \
             wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {{{0}, {1}}}, {a}, {b}, p, {sign_a}, {sign_b}, {order_a}, \
             {order_b}; wgmma.commit_group.sync.aligned; }}\", inout(reg32) *d0,inout(reg32) *d1,b = in(reg64) \
             b,scale_d = in(reg32) scale_d,sign_a = const sign(P::NEGATE_A), sign_b = const sign(P::NEGATE_B),order_b = \
             const order(P::B),a = in(reg64) a,order_a = const order(P::A), options(nostack)) }"
        );
    }

    #[test]
    fn later_steps_add_and_move_along_k() {
        let two = group(2, Source::Registers, Sum::Added);
        assert!(two.contains("{{{0}, {1}}}, {{{2}, {3}, {4}, {5}}}, {b}, p, {sign_a}, {sign_b}, {order_b};"), "{two}");
        assert!(two.contains("add.u32 low, b_low, {b1}; mov.b64 bt, {{low, b_high}};"), "{two}");
        assert!(two.contains("{{{0}, {1}}}, {{{6}, {7}, {8}, {9}}}, bt, q, {sign_a}, {sign_b}, {order_b};"), "{two}");
        assert!(two.contains("in(reg32) a[7]") && !two.contains("a[8]"), "{two}");
    }

    #[test]
    fn a_new_sum_reads_no_accumulator() {
        let new = group(2, Source::Shared, Sum::New);
        assert!(new.contains("setp.ne.u32 p, 0, 0;") && new.contains("setp.eq.u32 q, 0, 0;"), "{new}");
        assert!(new.contains("out(reg32) *d1") && !new.contains("inout") && !new.contains("scale_d ="), "{new}");
    }

    #[test]
    fn every_shape_has_an_implementation() {
        let text = expand(quote!(steps: 1)).unwrap().to_string();
        for (registers, n) in [(4, 8), (12, 24), (128, 256)] {
            assert!(text.contains(&format!("impl Accumulator for [f32 ; {registers}]")), "{registers}");
            assert!(text.contains(&format!(".m64n{n}k8.f32.tf32.tf32 ")), "{n}");
        }
        assert_eq!(text.matches("impl Accumulator for").count(), 64);
        assert!(text.contains(".m64n256k32.f16.e5m2.e4m3 ") && !text.contains(".f16.bf16"));
    }

    #[test]
    fn misuse_is_refused() {
        let error = |arguments| expand(arguments).expect_err("the arguments are refused").to_string();
        assert!(error(quote!(step: 1)).contains("expected `steps`"));
        assert!(error(quote!(steps: 17)).contains("1 to 16"));
    }
}
