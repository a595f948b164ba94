//! Which lanes of a warp are where: the paths that its lanes take after they part, and how they meet again.
//!
//! A path is a set of lanes at one instruction. A branch that only some of its lanes take makes two paths of it. The
//! old path becomes the place where the two meet: at the immediate post-dominator of the branch, with the lanes that
//! did not exit in between. The paths are a forest. Those without children run, one after another, in any order; a path
//! that waits for lanes of another path lets that path run.

/// No instruction, or no parent.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It can run.
    Ready,
    /// It waits for its children to meet.
    Meeting { children: u32 },
    /// The path is at an instruction that other lanes of the warp must execute together with its own.
    Converging,
    /// It waits at a barrier of the block until that was completed another time.
    Barrier { id: u32, completions: u32 },
    /// No path.
    Free,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Path {
    pub(crate) at: u32,
    pub(crate) lanes: u32,
    /// Where it meets its siblings.
    pub(crate) meet: u32,
    parent: u32,
    pub(crate) state: State,
}

#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) list: Vec<Path>,
    /// The lanes that did not exit.
    pub(crate) alive: u32,
    /// Where the search for a path to run begins.
    next: usize,
}

impl Paths {
    pub(crate) fn new(lanes: u32) -> Paths {
        let root = Path { at: 0, lanes, meet: NONE, parent: NONE, state: State::Ready };
        Paths { list: vec![root], alive: lanes, next: 0 }
    }

    /// A path that can run; the one that ran last if it can.
    pub(crate) fn ready(&mut self, completions: impl Fn(u32) -> u32) -> Option<usize> {
        for path in &mut self.list {
            if let State::Barrier { id, completions: before } = path.state
                && completions(id) != before
            {
                path.state = State::Ready;
                path.at += 1;
            }
        }
        let count = self.list.len();
        let found =
            (0..count).map(|step| (self.next + step) % count).find(|&path| self.list[path].state == State::Ready)?;
        self.next = found;
        Some(found)
    }

    /// Lets another path run next, if there is one.
    pub(crate) fn rotate(&mut self) {
        self.next += 1;
    }

    /// The lanes `taken` of a path go to `target`, the others to the next instruction, and meet at `meet`.
    pub(crate) fn part(&mut self, path: usize, taken: u32, target: u32, meet: u32) {
        let Path { at, lanes, meet: outer, parent, .. } = self.list[path];
        if meet == outer {
            // They meet where the path does anyway: a sibling more.
            self.list[path].lanes = lanes & !taken;
            self.list[path].at = at + 1;
            if parent != NONE
                && let State::Meeting { children } = &mut self.list[parent as usize].state
            {
                *children += 1;
            }
            self.add(Path { at: target, lanes: taken, meet, parent, state: State::Ready });
            return;
        }
        self.list[path] = Path { at: meet, lanes: 0, meet: outer, parent, state: State::Meeting { children: 2 } };
        let parent = path as u32;
        self.add(Path { at: target, lanes: taken, meet, parent, state: State::Ready });
        self.next = self.add(Path { at: at + 1, lanes: lanes & !taken, meet, parent, state: State::Ready });
    }

    /// The lanes of a path go to a function, and meet again behind the call, at which it is.
    pub(crate) fn call(&mut self, path: usize, target: u32) {
        let caller = &mut self.list[path];
        let lanes = std::mem::take(&mut caller.lanes);
        caller.at += 1;
        caller.state = State::Meeting { children: 1 };
        let parent = path as u32;
        self.next = self.add(Path { at: target, lanes, meet: NONE, parent, state: State::Ready });
    }

    fn add(&mut self, path: Path) -> usize {
        match self.list.iter().position(|other| other.state == State::Free) {
            Some(free) => {
                self.list[free] = path;
                free
            }
            None => {
                self.list.push(path);
                self.list.len() - 1
            }
        }
    }

    /// A path is where it meets its siblings, or has no lanes left.
    pub(crate) fn end(&mut self, path: usize) {
        let mut ended = self.list[path];
        self.list[path].state = State::Free;
        while ended.parent != NONE {
            let parent = &mut self.list[ended.parent as usize];
            parent.lanes |= ended.lanes;
            let State::Meeting { children } = &mut parent.state else { return };
            *children -= 1;
            if *children > 0 {
                return;
            }
            if parent.lanes != 0 {
                parent.state = State::Ready;
                self.next = ended.parent as usize;
                return;
            }
            parent.state = State::Free;
            ended = *parent;
        }
    }

    /// Lets the lanes that wait to meet others go on alone, because a lane that spins may spin for what the waiting
    /// lanes do. The others then meet where the released lanes would have met their next ones.
    pub(crate) fn release(&mut self) {
        for waiting in 0..self.list.len() {
            let Path { at, lanes, meet, parent, state } = self.list[waiting];
            if !matches!(state, State::Meeting { .. }) || lanes == 0 {
                continue;
            }
            self.list[waiting].lanes = 0;
            if parent != NONE
                && let State::Meeting { children } = &mut self.list[parent as usize].state
            {
                *children += 1;
            }
            self.add(Path { at, lanes, meet, parent, state: State::Ready });
        }
    }

    /// Makes one path of those of a group that are at one instruction and meet in one place. Returns the paths that are
    /// left.
    pub(crate) fn unite(&mut self, group: &[usize]) -> Vec<usize> {
        let mut left: Vec<usize> = Vec::with_capacity(group.len());
        for &path in group {
            let Path { at, lanes, meet, parent, .. } = self.list[path];
            let same = |&other: &usize| {
                let there = self.list[other];
                (there.at, there.meet, there.parent) == (at, meet, parent)
            };
            let Some(other) = left.iter().copied().find(same) else {
                left.push(path);
                continue;
            };
            self.list[other].lanes |= lanes;
            self.list[path].state = State::Free;
            if parent != NONE
                && let State::Meeting { children } = &mut self.list[parent as usize].state
            {
                *children -= 1;
            }
        }
        left
    }

    /// Lanes of a path exit.
    pub(crate) fn exit(&mut self, path: usize, lanes: u32) {
        self.alive &= !lanes;
        self.list[path].lanes &= !lanes;
        if self.list[path].lanes == 0 {
            self.end(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_part_and_meet() {
        let mut paths = Paths::new(0xFF);
        let root = paths.ready(|_| 0).unwrap();
        paths.part(root, 0x0F, 10, 20);
        let first = paths.ready(|_| 0).unwrap();
        assert_eq!((paths.list[first].lanes, paths.list[first].at), (0xF0, 1));
        paths.end(first);
        let second = paths.ready(|_| 0).unwrap();
        assert_eq!((paths.list[second].lanes, paths.list[second].at), (0x0F, 10));
        paths.exit(second, 0x01);
        paths.end(second);
        let met = paths.ready(|_| 0).unwrap();
        assert_eq!((paths.list[met].lanes, paths.list[met].at, paths.alive), (0xFE, 20, 0xFE));
    }

    #[test]
    fn a_loop_that_lanes_leave_one_by_one_needs_no_more_paths() {
        let mut paths = Paths::new(u32::MAX);
        let mut most = 0;
        for round in 0..31 {
            let path = paths.ready(|_| 0).unwrap();
            paths.list[path].at = 5;
            paths.part(path, 1 << round, 9, 9);
            for path in 0..paths.list.len() {
                if paths.list[path].state == State::Ready && paths.list[path].at == 9 {
                    paths.end(path);
                }
            }
            most = most.max(paths.list.len());
        }
        assert!(most <= 3, "{most}");
        let last = paths.ready(|_| 0).unwrap();
        paths.end(last);
        let met = paths.ready(|_| 0).unwrap();
        assert_eq!(paths.list[met].lanes, u32::MAX);
    }

    #[test]
    fn lanes_that_wait_to_meet_others_may_go_on_without_them() {
        let mut paths = Paths::new(0xFF);
        // A loop whose exit is where its lanes meet: one lane leaves it.
        paths.part(0, 0xFE, 3, 10);
        let left = paths.ready(|_| 0).unwrap();
        paths.end(left);
        let spinning = paths.ready(|_| 0).unwrap();
        assert_eq!(paths.list[spinning].lanes, 0xFE);
        paths.release();
        paths.rotate();
        let free = paths.ready(|_| 0).unwrap();
        assert_eq!((paths.list[free].lanes, paths.list[free].at), (0x01, 10));
        // Nobody waits any more.
        let count = paths.list.len();
        paths.release();
        assert_eq!(paths.list.len(), count);
        // The others meet, catch up, and are one path with it again.
        paths.end(spinning);
        let met = paths.list.iter().position(|path| path.lanes == 0xFE && path.state == State::Ready).unwrap();
        assert_eq!(paths.list[met].at, 10);
        let united = paths.unite(&[free, met]);
        assert_eq!((united.as_slice(), paths.list[free].lanes), (&[free][..], 0xFF));
    }

    #[test]
    fn all_lanes_may_exit_on_their_paths() {
        let mut paths = Paths::new(0b11);
        paths.part(0, 0b01, 7, 20);
        for _ in 0..2 {
            let path = paths.ready(|_| 0).unwrap();
            let lanes = paths.list[path].lanes;
            paths.exit(path, lanes);
        }
        assert_eq!(paths.ready(|_| 0), None);
        assert_eq!(paths.alive, 0);
    }
}
