//! Plans of sizes from nothing to beyond everything: made, or refused by a typed error.

use ferrotile::{
    AtaOptions, AtaPlan, BatchedSizes, CgOptions, CgPlan, Dtype, Error, GemmLayout, GemmOptions, GemmPlan, GemmProblem,
    Gpu, Layout, Mask, PagedSizes, Precision, SymmetricBlockMatrix, VarlenSizes,
};
use ndarray::Array3;
use tests::request::Request;

use crate::{Outcome, Tests, test};

/// Around what 31, 32 and 64 bits count.
const SIZES: [usize; 9] = [0, 1, 5, 1 << 16, (1 << 30) + 1, 1 << 31, 1 << 32, 1 << 62, usize::MAX];

/// The trials.
pub(crate) const TESTS: Tests = &[test("are_planned_or_refused", any_size)];

/// Every two of these places at every two sizes, the others at 5.
fn pairs<const PLACES: usize>() -> impl Iterator<Item = [usize; PLACES]> {
    (0..PLACES * PLACES).flat_map(|places| {
        SIZES.into_iter().flat_map(move |one| {
            SIZES.into_iter().map(move |other| {
                let mut sizes = [5; PLACES];
                (sizes[places / PLACES], sizes[places % PLACES]) = (one, other);
                sizes
            })
        })
    })
}

/// Counts what is made; the error of what is refused names an argument.
fn count<T>(made: &mut usize, plan: ferrotile::Result<T>) -> Outcome {
    match plan {
        Ok(_) => *made += 1,
        Err(Error::Argument { .. } | Error::TooLarge { .. } | Error::Unsupported { .. }) => (),
        Err(other) => return Err(format!("{other} ({other:?})").into()),
    }
    Ok(())
}

fn any_size(gpu: &Gpu) -> Outcome {
    let mut made = 0;
    let window = Mask::Window { left: usize::MAX, right: usize::MAX };
    for (mask, max_workspace_bytes) in [(Mask::Full, 0), (Mask::Causal, usize::MAX), (window, 1 << 20)] {
        let options = Request { mask, max_workspace_bytes, ..Request::new(Layout::Bhsd) };
        for [batch, q_heads, kv_heads, q_len, k_len] in pairs() {
            let problem = BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim: 64 };
            count(&mut made, options.plan(gpu, Dtype::F16, problem))?;
        }
        for [members, q_heads, q_total, k_total, max_q_len, max_k_len] in pairs() {
            let (kv_heads, head_dim) = (q_heads, 64);
            let problem =
                VarlenSizes { batch: members, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim };
            count(&mut made, options.plan(gpu, Dtype::F16, problem))?;
        }
        for [batch, q_heads, q_len, pages, table_len] in pairs() {
            let (kv_heads, head_dim, page_len) = (q_heads, 64, 16);
            let problem = PagedSizes { batch, q_heads, kv_heads, q_len, head_dim, pages, page_len, table_len };
            count(&mut made, options.plan(gpu, Dtype::F16, problem))?;
        }
    }
    for max_workspace_bytes in [0, usize::MAX] {
        for [batch, m, n, k] in pairs() {
            for layout in [GemmLayout::Nt, GemmLayout::Tn] {
                let problem = GemmProblem { batch, ..GemmProblem::new([m, n, k], Dtype::F16, Dtype::F16, Dtype::F32) };
                let options = GemmOptions { max_workspace_bytes, ..GemmOptions::new(layout) };
                let odd = GemmProblem { a_aligned: false, ..problem };
                count(&mut made, GemmPlan::new(gpu, &problem, &options))?;
                count(&mut made, GemmPlan::new(gpu, &odd, &options))?;
            }
        }
    }
    let stream = gpu.new_stream()?;
    let matrix = SymmetricBlockMatrix::from_diagonals(40, &[0], Array3::ones((2, 1, 40)).view())?;
    let matrix = matrix.upload_blocking(stream.as_ref(), Precision::Tf32)?;
    let options = CgOptions { graph: false, ..CgOptions::default() };
    for frames in SIZES {
        count(&mut made, AtaPlan::new(&matrix, frames, &AtaOptions::default()))?;
        // Its vectors are allocated.
        if !(1 << 16..1 << 62).contains(&frames) {
            count(&mut made, CgPlan::new(&matrix, frames, &options))?;
        }
    }
    if made == 0 { Err("everything was refused".into()) } else { Ok(()) }
}
