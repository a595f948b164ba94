//! What every family of problems does: draw a problem, run it twice, and find simpler problems.

use ferrotile::{Arch, Gpu, Stream};
use rand::RngExt;

use super::outcome::Stop;
use super::sizes::Random;

/// What problems are drawn for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scope {
    /// The architecture whose kernels run.
    pub(crate) arch: Arch,
    /// The largest length.
    pub(crate) most: usize,
    /// The most multiplications of a problem.
    pub(crate) work: usize,
}

impl Scope {
    /// Multiplications of the least and the largest limit: what the emulator does in about a second, and the reference
    /// in some 50 ms.
    const WORK: [[f64; 2]; 2] = [[12.0, 21.0], [14.0, 24.0]];

    /// The scope of one problem on a device: few of them are large.
    pub(crate) fn draw(gpu: &Gpu, random: &mut Random) -> Scope {
        let [least, largest] = Scope::WORK[usize::from(!gpu.is_emulated())];
        let most = if gpu.is_emulated() { 400 } else { 5000 };
        Scope { arch: gpu.arch(), most, work: random.random_range(least..largest).exp2() as usize }
    }
}

/// Where problems run: a device, and two streams for the two runs of each.
pub(crate) struct Bench {
    /// The device.
    pub(crate) gpu: Gpu,
    /// The streams.
    pub(crate) streams: [Stream; 2],
}

impl Bench {
    /// Streams of a device.
    pub(crate) fn new(gpu: &Gpu) -> ferrotile::Result<Bench> {
        Ok(Bench { gpu: gpu.clone(), streams: [gpu.new_stream()?, gpu.new_stream()?] })
    }
}

/// Problems of one family.
pub(crate) trait Family: Clone {
    /// A random problem.
    fn draw(random: &mut Random, scope: &Scope) -> Self;

    /// Runs the problem twice, and compares the runs with each other and with the reference. Returns the largest share
    /// of its limit that an error has.
    fn run(&self, bench: &Bench) -> Result<f64, Stop>;

    /// Problems that are a step simpler, the largest steps first; some may not be problems at all.
    fn simpler(&self) -> Vec<Self>;

    /// Takes out what reaches the ends of the types.
    fn tame(&mut self);
}

/// A problem's simpler neighbours: copies with one change each.
pub(crate) struct Simpler<P> {
    from: P,
    found: Vec<P>,
}

impl<P: Clone> Simpler<P> {
    /// The neighbours of a problem, none so far.
    pub(crate) fn of(from: &P) -> Simpler<P> {
        Simpler { from: from.clone(), found: Vec::new() }
    }

    /// The problem itself.
    pub(crate) fn problem(&self) -> &P {
        &self.from
    }

    /// Adds the neighbour that a change makes.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut P)) {
        let mut changed = self.from.clone();
        change(&mut changed);
        self.found.push(changed);
    }

    /// Adds neighbours whose `field` has another of the values. The simplest value stands first; the present
    /// value and those behind it are left out.
    pub(crate) fn each<V: PartialEq>(&mut self, field: impl Fn(&mut P) -> &mut V, values: impl IntoIterator<Item = V>) {
        let mut from = self.from.clone();
        let present = field(&mut from);
        for value in values {
            if value == *present {
                break;
            }
            self.change(|problem| *field(problem) = value);
        }
    }

    /// Adds neighbours with a smaller size: at least `least`, and multiples of `step`.
    pub(crate) fn size(&mut self, field: impl Fn(&mut P) -> &mut usize, least: usize, step: usize) {
        let size = *field(&mut self.from.clone());
        let smaller = [least, size / 4, size / 2, size * 3 / 4, size.saturating_sub(1)];
        let smaller = smaller.map(|size| (size / step * step).max(least));
        self.each(field, smaller.into_iter().filter(move |&smaller| smaller < size));
    }

    /// All of them.
    pub(crate) fn all(self) -> Vec<P> {
        self.found
    }
}
