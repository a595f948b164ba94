//! The two runs of a problem: on two streams at once, by function, plan or graph, into outputs of their own.

use ferrotile::{Graph, Stream, StreamRef};
use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::family::Bench;
use super::memory::Output;
use super::outcome::{Failure, Stop, refusal};
use super::placement::Placement;
use super::sizes::Random;

/// Workspace that plans may have, where they may have some.
pub(crate) const WORKSPACE_BYTES: usize = 64 << 20;

/// How the library is called.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Call {
    /// A plan, and its run.
    #[default]
    Plan,
    /// The function that takes tensors alone.
    Function,
    /// A run of a plan that a graph has captured, and replays.
    Graph,
}

impl Call {
    /// Most calls are those of plans.
    pub(crate) fn draw(random: &mut Random) -> Call {
        [Call::Plan, Call::Plan, Call::Function, Call::Graph][random.random_range(0..4)]
    }
}

/// What one run writes.
pub(crate) trait Outputs {
    /// Its elements.
    type Elements;

    /// Waits for the stream and returns the elements, after a check that nothing else was written.
    fn read(&self, stream: &Stream) -> Result<Self::Elements, Failure>;

    /// Checks that two runs gave the same bits.
    fn check_same(&self, runs: [&Self::Elements; 2]) -> Result<(), Failure>;

    /// Waits for the stream and checks that nothing at all was written.
    fn check_untouched(&self, stream: &Stream) -> Result<(), Failure>;
}

impl<T: Cell, const RANK: usize> Outputs for Output<T, RANK> {
    type Elements = Vec<T>;

    fn read(&self, stream: &Stream) -> Result<Vec<T>, Failure> {
        Output::read(self, stream)
    }

    fn check_same(&self, [first, second]: [&Vec<T>; 2]) -> Result<(), Failure> {
        Output::check_same(self, [first, second])
    }

    fn check_untouched(&self, stream: &Stream) -> Result<(), Failure> {
        Output::check_untouched(self, stream)
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    type Elements = (A::Elements, B::Elements);

    fn read(&self, stream: &Stream) -> Result<Self::Elements, Failure> {
        Ok((self.0.read(stream)?, self.1.read(stream)?))
    }

    fn check_same(&self, [first, second]: [&Self::Elements; 2]) -> Result<(), Failure> {
        self.0.check_same([&first.0, &second.0])?;
        self.1.check_same([&first.1, &second.1])
    }

    fn check_untouched(&self, stream: &Stream) -> Result<(), Failure> {
        self.0.check_untouched(stream)?;
        self.1.check_untouched(stream)
    }
}

/// Makes something for each of the two streams.
pub(crate) fn each<R>(bench: &Bench, make: impl Fn(&Stream) -> ferrotile::Result<R>) -> ferrotile::Result<[R; 2]> {
    let [first, second] = &bench.streams;
    Ok([make(first)?, make(second)?])
}

/// Enqueues `run` on both streams, then reads both; returns what the first wrote, which the second has to equal.
///
/// Each run has outputs of its own and a workspace of `workspace_bytes`. A call that the library refuses must have
/// written nothing; `asked` says whether it may refuse.
pub(crate) fn twice<O: Outputs>(
    bench: &Bench,
    (call, asked): (Call, bool),
    outputs: [O; 2],
    workspace_bytes: usize,
    run: impl Fn(StreamRef<'_>, &mut O, &mut Output<u8, 1>) -> ferrotile::Result<()>,
) -> Result<O::Elements, Stop> {
    let dense = Placement::default();
    let workspaces = each(bench, |stream| Output::new(bench, stream, "the workspace", &dense, [workspace_bytes]))?;
    let mut runs = outputs.into_iter().zip(workspaces).collect::<Vec<_>>();
    // A graph outlives its launch: it is dropped when both streams have been waited for.
    let mut graphs: Vec<Graph> = Vec::new();
    for (stream, (outputs, workspace)) in bench.streams.iter().zip(&mut runs) {
        let done = match call {
            Call::Plan | Call::Function => run(stream.as_ref(), outputs, workspace),
            Call::Graph => stream.capture(|stream| run(stream, outputs, workspace)).and_then(|graph| {
                // SAFETY: the tensors live until both streams have been waited for, and so does the graph.
                let done = unsafe { graph.launch(stream.as_ref()) };
                graphs.push(graph);
                done
            }),
        };
        if let Err(error) = done {
            outputs.check_untouched(stream)?;
            return Err(refusal(asked, error));
        }
    }
    let mut read = Vec::new();
    for (stream, (outputs, workspace)) in bench.streams.iter().zip(&runs) {
        workspace.read(stream)?;
        read.push(outputs.read(stream)?);
    }
    drop(graphs);
    let (second, first) = (read.pop().expect("two runs"), read.pop().expect("two runs"));
    runs[0].0.check_same([&first, &second])?;
    Ok(first)
}
