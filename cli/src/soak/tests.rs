//! The soak itself: problems are repeatable, texts are complete, and failures are found and shrunk.

use ferrotile::{Arch, Gpu};

use super::family::Bench;
use super::outcome::{Failure, Kind, Outcome};
use super::problem::{FAMILIES, Problem, shrink};

const ALL: [usize; 9] = [0, 1, 2, 3, 4, 5, 6, 7, 8];

#[test]
fn seed_and_number_determine_a_problem_and_its_text_says_all_of_it() {
    let gpu = Gpu::emulated(Arch::Sm90a);
    let mut found = [false; FAMILIES.len()];
    for index in 0..300 {
        let problem = Problem::draw(&gpu, &ALL, 5, index);
        assert_eq!(problem, Problem::draw(&gpu, &ALL, 5, index));
        let text = problem.text();
        assert!(!text.contains(['\'', '\n']), "{text}");
        assert_eq!(serde_json::from_str::<Problem>(&text).unwrap(), problem, "{text}");
        found[problem.family()] = true;
    }
    assert_eq!(found, [true; FAMILIES.len()]);
    assert!((0..20).all(|index| Problem::draw(&gpu, &[4], 5, index).family() == 4));
}

#[test]
fn a_failure_is_shrunk_to_what_it_needs() {
    let gpu = Gpu::emulated(Arch::Sm80);
    // Wrong is what has a bias and several keys.
    let fails = |problem: &Problem| {
        let text = problem.text();
        let long = serde_json::from_str::<serde_json::Value>(&text).unwrap()["attention"]["k_len"].as_u64() >= Some(17);
        if text.contains("\"bias\"") && long { Err(Failure::new(Kind::Wrong, "so")) } else { Ok(Outcome::Right(0.0)) }
    };
    let problem = (0..).map(|index| Problem::draw(&gpu, &[0], 1, index)).find(|problem| fails(problem).is_err());
    let (smallest, _, runs) = shrink(problem.unwrap(), Failure::new(Kind::Wrong, "so"), 1000, fails);
    let text = smallest.text();
    assert!(text.contains("\"k_len\":17") && text.contains("\"bias\":{") && text.contains("\"q_len\":1"), "{text}");
    assert!(!text.contains("softcap") && !text.contains("places") && runs < 1000, "{text}");
    // A failure of another kind is none.
    let other = |_: &Problem| Err(Failure::new(Kind::Panicked, "else"));
    assert_eq!(shrink(smallest.clone(), Failure::new(Kind::Wrong, "so"), 1000, other).0, smallest);
}

#[test]
fn small_problems_of_every_family_are_right() {
    let gpu = Gpu::emulated(Arch::Sm80);
    let bench = Bench::new(&gpu).unwrap();
    let heads = r#""heads":{"dtype":"f16","q_heads":2,"kv_heads":1,"head_dim":64,"value_dim":64}"#;
    let texts = [
        format!(r#"{{"attention":{{{heads},"batch":1,"q_len":3,"k_len":17,"terms":{{"mask":"causal"}},"seed":1}}}}"#),
        format!(r#"{{"varlen":{{{heads},"seqlens":[[3,5],[0,2]],"around":[1,2],"seed":1}}}}"#),
        format!(r#"{{"paged":{{{heads},"q_len":1,"k_lens":[5,0,20],"page_len":16,"seed":1}}}}"#),
        r#"{"merge":{"parts":"bf16","out":"f32","shape":[1,2,9,8],"seed":1}}"#.to_owned(),
        r#"{"gemm":{"a":"f16","b":"f16","d":"f32","layout":"nt","batch":1,"m":5,"n":9,"k":33,"seed":1}}"#.to_owned(),
        r#"{"ata":{"precision":"tf32","matrix":{"n":20,"channels":1,"diagonals":2},"frames":3,"seed":1}}"#.to_owned(),
        r#"{"cg":{"precision":"tf32","matrix":{"n":20,"channels":1,"diagonals":2},"frames":2,"excess":3,"tolerance":-3,
            "max_iterations":40,"test_every":8,"seed":1}}"#
            .to_owned(),
        r#"{"quantize":{"wide":"f16","narrow":"u8","shape":[1,2,3,9],"of_heads":true,"seed":1}}"#.to_owned(),
        r#"{"quantize":{"wide":"f32","narrow":"e4m3","shape":[2,1,3,8],"back":true,"seed":1}}"#.to_owned(),
        r#"{"rotary":{"dtype":"f16","cache":"e4m3","shape":[2,2,3,24],"kv_heads":1,"pairs":8,"seed":1}}"#.to_owned(),
    ];
    for text in texts {
        let problem: Problem = serde_json::from_str(&text).unwrap();
        let run = problem.run(&bench);
        assert!(matches!(run, Ok(Outcome::Right(share)) if share <= 1.0), "{text}: {run:?}");
    }
}
