//! `--json`: what is printed has the fields that `docs/json.md` has, of these types, and no others.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::program::{Scratch, assert_refused, assert_succeeded, f32s, ferrotile};

/// The document.
const DOCUMENT: &str = include_str!("../../../docs/json.md");

/// The types of the fields of one command, by path.
type Fields = BTreeMap<String, String>;

/// What the document says of a command.
fn documented(command: &str) -> Fields {
    let heading = format!("\n## ferrotile {command}\n");
    let section = DOCUMENT.split_once(&heading).unwrap_or_else(|| panic!("{command} is documented")).1;
    let section = section.split("\n## ").next().unwrap();
    let lines = section.lines().filter_map(|line| line.strip_prefix("| `"));
    lines
        .map(|line| {
            let (field, rest) = line.split_once("` | ").unwrap();
            (field.to_owned(), rest.split_once(" |").unwrap().0.to_owned())
        })
        .collect()
}

/// Whether a value has a type of the document.
fn has_type(value: &Value, documented: &str) -> bool {
    documented.split(" or ").any(|name| match (name, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) => true,
        ("object", Value::Object(_)) | ("null", Value::Null) => true,
        ("number", Value::Number(_)) => true,
        ("integer", Value::Number(number)) => number.is_u64(),
        (name, Value::Array(values)) => {
            let of = name.strip_prefix("array of ").and_then(|of| of.strip_suffix('s'));
            of.is_some_and(|of| values.iter().all(|value| has_type(value, of)))
        }
        _ => false,
    })
}

/// Every field of a value by its path, and the fields of its fields.
fn fields<'v>(value: &'v Value, path: &str, found: &mut Vec<(String, &'v Value)>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                found.push((path.clone(), value));
                fields(value, &path, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, &format!("{path}[]"), found)),
        _ => {}
    }
}

/// Fails where the value has a field that is not documented, lacks one that is, or has one of another type.
pub(crate) fn assert_documented(command: &str, value: &Value) {
    let (documented, mut found) = (documented(command), Vec::new());
    fields(value, "", &mut found);
    for (path, value) in &found {
        let dtype = documented.get(path).unwrap_or_else(|| panic!("{command}: {path} is not documented"));
        assert!(has_type(value, dtype), "{command}: {path} is {value}, documented as {dtype}");
    }
    let lacking = documented.keys().find(|path| !found.iter().any(|(found, _)| found == *path));
    assert_eq!(lacking, None, "{command}: documented and not printed");
}

/// What a command prints, which must be JSON alone.
fn printed(args: &[&str]) -> Value {
    let output = ferrotile(&[args, &["--json"]].concat());
    assert_succeeded(&output);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn results_have_the_fields_that_are_documented() {
    let scratch = Scratch::new("json");
    let path = |name: &str| scratch.path(name).to_str().unwrap().to_owned();
    let write = |name: &str, shape: &[usize]| {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|index| (index % 7) as f32 / 8.0).collect();
        scratch.write(name, &f32s(shape, &values)).to_str().unwrap().to_owned()
    };
    let (q, out, lse) = (write("q.npy", &[1, 2, 4, 8]), path("o.npy"), path("lse.npy"));
    let inputs = ["--q", &q, "--k", &q, "--v", &q, "--dtype", "f16", "--out", &out, "--check"];
    let with_lse = [&["attention", "--device", "emulator", "--lse", &lse], &inputs[..]].concat();
    let result = printed(&with_lse);
    assert_documented("attention", &result);
    assert_eq!((&result["out"]["shape"], &result["out"]["dtype"]), (&json!([1, 2, 4, 8]), &json!("f16")));
    let values: Vec<_> = result["check"].as_array().unwrap().iter().map(|check| &check["values"]).collect();
    assert_eq!(values, ["files", "given"]);
    let on_cpu = printed(&[&["attention", "--device", "cpu"], &inputs[..]].concat());
    assert_eq!((&on_cpu["device"], &on_cpu["kernel"], &on_cpu["lse"]), (&json!("CPU"), &json!(null), &json!(null)));

    let a = write("a.npy", &[4, 8]);
    let gemm = ["gemm", "--device", "emulator", "--a", &a, "--b", &a, "--layout", "nt", "--dtype", "f16"];
    let result = printed(&[&gemm[..], &["--out", &path("d.npy"), "--check"]].concat());
    assert_documented("gemm", &result);
    assert_eq!((&result["m"], &result["n"], &result["k"]), (&json!(4), &json!(4), &json!(8)));

    let identity: Vec<f32> = (0..400).map(|index| if index % 21 == 0 { 1.0 } else { 0.0 }).collect();
    let matrix = scratch.write("m.npy", &f32s(&[20, 20], &identity)).to_str().unwrap().to_owned();
    let x = write("x.npy", &[20]);
    let ata = ["ata", "--device", "emulator", "--matrix", &matrix, "--x", &x, "--out", &path("y.npy"), "--check"];
    assert_documented("ata", &printed(&ata));

    let (narrow, factors) = (path("u.npy"), path("f.npy"));
    let quantize = ["quantize", "--device", "emulator", "--x", &q, "--dtype", "u8", "--out", &narrow];
    assert_documented("quantize", &printed(&[&quantize[..], &["--descale", &factors]].concat()));
    let dequantize = ["dequantize", "--device", "cpu", "--x", &narrow, "--descale", &factors, "--out", &path("w.npy")];
    assert_documented("dequantize", &printed(&dequantize));

    assert_documented("demo", &printed(&["demo", "--device", "cpu"]));
    // The fields of a card, which need one, are those of `docs/json.md` where there is one.
    let mut info = printed(&["info"]);
    if info["devices"] == json!([]) {
        let card = json!({"name": "", "ordinal": 0, "compute_capability": "", "memory_bytes": 0, "multiprocessors": 0,
            "arch": ""});
        info["devices"] = json!([card]);
    }
    assert_documented("info", &info);
}

#[test]
fn the_file_of_a_benchmark_is_what_compare_reads() {
    let scratch = Scratch::new("json_bench");
    let row = json!({"family": "gemm", "case": "64x64x64/f16", "impl": "a", "us": 2.0, "tflops": 1.0, "p90_us": 2.5,
        "mean_us": 2.1, "std_us": 0.1, "gb_per_s": 3.0});
    let report = json!({"device": "card", "rows": [row]});
    assert_documented("bench", &report);
    let file =
        |name: &str, report: &Value| scratch.write(name, report.to_string().as_bytes()).to_str().unwrap().to_owned();
    let whole = file("whole.json", &report);
    let result = printed(&["compare", &whole, &whole]);
    assert_documented("compare", &result);
    assert_eq!((&result["means"][0]["ratio"], &result["cases"][0]["our_us"]), (&json!(1.0), &json!(2.0)));
    // What may be absent is not missed, and everything else is.
    for (field, dtype) in documented("bench") {
        let mut less = report.clone();
        let object = if let Some(field) = field.strip_prefix("rows[].") {
            less["rows"][0].as_object_mut().unwrap().remove(field)
        } else {
            less.as_object_mut().unwrap().remove(&field)
        };
        assert!(object.is_some(), "{field}");
        let output = ferrotile(&["compare", &file("less.json", &less), &whole]);
        if dtype.ends_with("or absent") {
            assert_succeeded(&output);
        } else {
            assert_refused(&output, "not a file of benchmark results");
        }
    }
}

#[test]
fn errors_are_text_with_json_too() {
    let args = ["gemm", "--a", "absent.npy", "--b", "absent.npy", "--out", "d.npy", "--json"];
    assert_refused(&ferrotile(&args), "absent.npy");
}
