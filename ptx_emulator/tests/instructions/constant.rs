//! Constant expressions: values and types as PTX defines them, in every place where a constant may stand.

use ptx_emulator::{Error, Module};

use crate::{doubles, kernel, launch, per_thread};

fn value(expression: &str) -> i64 {
    doubles(&format!("mov.b64 %rd0, {expression};"), 0, 0, 0) as i64
}

/// The values are those that ptxas 13.5 gives.
#[test]
fn operators_have_their_values_types_and_order() {
    for (expression, expected) in [
        ("1<<4", 16),
        ("(1+2)*3", 9),
        ("1+2*3", 7),
        ("4-2-1", 1),
        ("16/4/2", 2),
        ("1<<2<<1", 8),
        ("2+3<<1", 10),
        ("7&3|8^1", 11),
        ("1|2==2", 1),
        ("5>3>1", 0),
        ("3&&0", 0),
        ("1||0&&0", 1),
        ("2&&0||1", 1),
        ("!5+1", 1),
        ("!-1", 0),
        ("!!5", 1),
        ("~1&3", 2),
        ("- -5", 5),
        ("3*-2", -6),
        ("1-(-1)", 2),
        ("-8/3", -2),
        ("1?2:3?4:5", 2),
        ("0?2:0?4:5", 5),
        ("1 ? 2 : 3 + 1", 2),
        ("WARP_SZ*2-1", 63),
        ("0x1F + 0b11 + 017 + 4U", 53),
        // Signed, unless an operand is unsigned.
        ("-1>>1", -1),
        ("-1<1", 1),
        ("-1<1U", 0),
        ("(1U-2)<0", 0),
        ("-1/2U", i64::MAX),
        ("0xFFFFFFFFFFFFFFFF>>63", 1),
        ("0xFFFFFFFFFFFFFFFF==-1", 1),
        ("-0x8000000000000000>>63", 1),
        ("(-1&-1U)>>1", i64::MAX),
        ("(-1^0)>>1", -1),
        ("(.u64)-1>>63", 1),
        ("(.s64)0xFFFFFFFFFFFFFFFF>>63", -1),
        // Comparisons and logical operators are signed, `~` and `%` are not.
        ("(1U<2)-3>>1", -1),
        ("(!5U)-1>>1", -1),
        ("(~0)>>1", i64::MAX),
        ("-8 % 3", 2),
        ("8 % -3", 8),
        ("(8 % 3 - 3)>>1", i64::MAX),
        // A shift has the type of its left operand.
        ("(-1<<1U)>>1", -1),
        ("(1U<<1)-4>>1", i64::MAX),
        ("1<<65", 2),
        ("-1>>64", -1),
        // The one of the two that is taken keeps its type.
        ("(1?-1:2U)>>1", -1),
        ("9223372036854775807+1", i64::MIN),
        ("-9223372036854775808/-1", 0),
    ] {
        assert_eq!(value(expression), expected, "{expression}");
    }
    for (expression, expected) in
        [("1.5+2.25", 3.75), ("-(1.5)", -1.5), ("1.5*2.0-1.0/4.0", 2.75), (".5", 0.5), ("5.", 5.0), ("2.5e-1", 0.25)]
    {
        assert_eq!(f64::from_bits(value(expression) as u64), expected, "{expression}");
    }
    assert_eq!((value("1.5<2.0"), value("1.5==2.0")), (1, 0));
}

#[test]
fn constants_stand_in_operands_offsets_sizes_and_vectors() {
    let ptx = kernel(
        ".shared .align 4 .b8 unused[2*2], tile[(1<<4)+16];",
        "mov.u32 %r1, tile; st.shared.b32 [tile+4*2], 1<<4|3; ld.shared.b32 %r2, [%r1+1<<3];
        st.global.b32 [%rd9], %r2;
        mov.b64 %rd1, tile+(2*4); sub.s64 %rd1, %rd1, 4+4; cvt.u32.u64 %r3, %rd1; sub.u32 %r3, %r3, %r1;
        st.global.b32 [%rd9+1*4], %r3;
        mov.b64 %rd2, {2-1, 1+1}; mov.b64 {%r4, %r5}, %rd2; add.u32 %r4, %r4, %r5; st.global.b32 [%rd9+4+4], %r4;
        setp.eq.u32 %p1, 2+2, 4; selp.b32 %r6, 10-3, 1, %p1; st.global.b32 [%rd9+-4+16], %r6;
        bar.sync 1-1, WARP_SZ;",
    );
    assert_eq!(launch(&ptx, 32, 0, 4).unwrap_or_else(|error| panic!("{error}")), [19, 0, 3, 7]);
}

#[test]
fn a_pair_of_registers_is_no_expression() {
    let body = "setp.lt.u32 %p1|%p2, %r9, 2|1; selp.b32 %r0, 1, 0, %p1; @%p2 mov.b32 %r0, 1<<1;";
    assert_eq!(per_thread(body, 5), [1, 1, 1, 2, 2]);
}

#[test]
fn expressions_without_a_value_are_errors() {
    for expression in [
        "1/0",
        "1 % 0",
        "0 && 1/0",
        "1.0/0.0",
        "1.5+2",
        "1?2.5:3.5",
        "!1.5",
        "~1.5",
        "-0f3F800000",
        "(1",
        "1+",
        "1<<",
        "08",
        "1?2",
        "(.f64)1",
        "18446744073709551616",
        "0f3F800000+0f3F800000",
    ] {
        let error = Module::parse(&kernel("", &format!("mov.b64 %rd1, {expression};"))).expect_err(expression);
        assert!(matches!(error, Error::Syntax { .. }), "{expression}: {error}");
    }
}
