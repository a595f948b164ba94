//! What a request for attention asks to compute: one problem, or sequences of several lengths.

use ferrotile::{BatchedSizes, Gpu, Layout, VarlenSizes};

use crate::files::tensor::{Half, Stored};
use crate::problems::attention::{HostAttention, Solution, nothing_compared};
use crate::problems::on_card;
use crate::problems::request::Request;
use crate::problems::varlen::HostVarlen;
use crate::problems::verdict::Verdicts;

/// What a request asks to compute: one problem, or sequences of several lengths.
pub(crate) trait Task<T: Half, O: Stored>: Sized {
    /// The task with the files' own elements.
    type Own;

    /// The sizes, in words.
    fn understood(&self) -> String;

    /// Checks the request, whoever computes.
    fn check_request(&self, request: &Request) -> ferrotile::Result<()>;

    /// The shape of O.
    fn out_shape(&self) -> Vec<usize>;

    /// The shape of the LSE.
    fn lse_shape(&self) -> Vec<usize>;

    /// O and LSE by a kernel; calls `started` with its name before it runs.
    fn solve_on_card(&self, gpu: &Gpu, request: &Request, started: &dyn Fn(&str)) -> ferrotile::Result<Solution<O>>;

    /// O and LSE on the CPU, rounded where a kernel rounds.
    fn solve_on_cpu(&self, request: &Request) -> Solution<O>;

    /// Compares O with the f64 reference.
    fn check(&self, own: Option<&Self::Own>, solution: &Solution<O>, request: &Request) -> Verdicts;
}

impl<T: Half, O: Stored> Task<T, O> for HostAttention<T, O> {
    type Own = HostAttention<f64>;

    fn understood(&self) -> String {
        let BatchedSizes { batch, q_heads, kv_heads, q_len, k_len, head_dim } = self.sizes;
        let layout = match self.layout {
            Layout::Bhsd => "bhsd",
            Layout::Bshd => "bshd",
        };
        format!(
            "batch {batch}, heads {q_heads} (of keys {kv_heads}), rows {q_len}, keys {k_len}, head dimension {head_dim} \
             (of values {}), layout {layout}",
            self.value_dim
        )
    }

    fn check_request(&self, request: &Request) -> ferrotile::Result<()> {
        self.request(request).check(self.sizes.head_dim)
    }

    fn out_shape(&self) -> Vec<usize> {
        HostAttention::out_shape(self).to_vec()
    }

    fn lse_shape(&self) -> Vec<usize> {
        vec![self.sizes.batch, self.sizes.q_heads, self.sizes.q_len]
    }

    fn solve_on_card(&self, gpu: &Gpu, request: &Request, started: &dyn Fn(&str)) -> ferrotile::Result<Solution<O>> {
        on_card::solve(gpu, self, request, started)
    }

    fn solve_on_cpu(&self, request: &Request) -> Solution<O> {
        HostAttention::solve_on_cpu(self, &request.params)
    }

    fn check(&self, own: Option<&HostAttention<f64>>, solution: &Solution<O>, request: &Request) -> Verdicts {
        let nothing = nothing_compared(&HostAttention::out_shape(self), own.is_some());
        self.compare(own, &solution.out, request, 0, nothing)
    }
}

impl<T: Half, O: Stored> Task<T, O> for HostVarlen<T, O> {
    type Own = HostVarlen<f64>;

    fn understood(&self) -> String {
        let VarlenSizes { batch, q_heads, kv_heads, q_total, k_total, max_q_len, max_k_len, head_dim } = self.sizes;
        format!(
            "{batch} sequences, heads {q_heads} (of keys {kv_heads}), rows {q_total} (the longest {max_q_len}), keys \
             {k_total} (the longest {max_k_len}), head dimension {head_dim} (of values {})",
            self.value_dim
        )
    }

    fn check_request(&self, request: &Request) -> ferrotile::Result<()> {
        self.request(request).check(self.sizes.head_dim)
    }

    fn out_shape(&self) -> Vec<usize> {
        vec![self.sizes.q_total, self.sizes.q_heads, self.value_dim]
    }

    fn lse_shape(&self) -> Vec<usize> {
        vec![self.sizes.q_heads, self.sizes.q_total]
    }

    fn solve_on_card(&self, gpu: &Gpu, request: &Request, started: &dyn Fn(&str)) -> ferrotile::Result<Solution<O>> {
        on_card::solve_sequences(gpu, self, request, started)
    }

    fn solve_on_cpu(&self, request: &Request) -> Solution<O> {
        let VarlenSizes { q_heads, q_total, .. } = self.sizes;
        let mut solution = Solution { out: Vec::new(), lse: vec![0.0; q_heads * q_total] };
        for (rows, sequence) in self.each() {
            let Solution { out, lse } = sequence.solve_on_cpu(&request.params);
            solution.out.extend(out);
            for (head, lse) in lse.chunks_exact(rows.len().max(1)).enumerate() {
                solution.lse[head * q_total..][rows.clone()].copy_from_slice(lse);
            }
        }
        solution
    }

    /// Each sequence has a limit of its own.
    fn check(&self, own: Option<&HostVarlen<f64>>, solution: &Solution<O>, request: &Request) -> Verdicts {
        let row_elems = self.sizes.q_heads * self.value_dim;
        let own_sequences = own.map(|own| own.each().map(|(_, sequence)| sequence).collect::<Vec<_>>());
        self.each().enumerate().fold(
            nothing_compared(&Task::<T, O>::out_shape(self), own.is_some()),
            |verdicts, (index, (rows, sequence))| {
                let elements = rows.start * row_elems..rows.end * row_elems;
                let own = own_sequences.as_ref().map(|sequences| &sequences[index]);
                sequence.compare(own, &solution.out[elements.clone()], request, elements.start, verdicts)
            },
        )
    }
}
