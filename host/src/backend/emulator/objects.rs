//! The objects of an emulated device, and captures as the driver has them: which streams and events take part in a
//! capture, what a capture refuses, and what spoils it.
//!
//! A capture starts on one stream. Another stream joins it by waiting for an event that was recorded in it. At its end
//! the first stream must have waited for the last work of every other. A capture that was spoiled gives no graph.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::Instant;

use ptx_emulator::{LaunchShape, Module};

use crate::backend::{Handle, Kept};
use crate::error::{Error, Result};

#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) table: HashMap<usize, Object>,
    pub(super) captures: HashMap<usize, Capture>,
    /// The number of the last object or capture.
    pub(super) last: usize,
}

#[derive(Debug)]
pub(super) enum Object {
    /// The capture that it takes part in.
    Stream(Option<usize>),
    Event(Recorded),
    Module(Arc<Module>),
    Function(Arc<Function>),
    Graph(Arc<Vec<Work>>),
}

#[derive(Debug)]
pub(super) struct Function {
    pub(super) module: Arc<Module>,
    pub(super) name: String,
}

/// One piece of work, with everything that the work needs, except the memory that it refers to.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Fill {
        address: u64,
        value: u8,
        bytes: usize,
    },
    ToDevice {
        destination: u64,
        source: usize,
        bytes: usize,
    },
    ToHost {
        destination: usize,
        source: u64,
        bytes: usize,
    },
    OnDevice {
        destination: u64,
        source: u64,
        bytes: usize,
    },
    Launch {
        function: Arc<Function>,
        shape: LaunchShape,
        params: Vec<Vec<u8>>,
    },
    Graph(Arc<Vec<Work>>),
    /// Nothing to do: what other work needs, as long as it may be done.
    Keep(#[expect(dead_code, reason = "it is kept, and nothing else")] Arc<Kept>),
}

pub(super) fn dead(what: &str) -> Error {
    Error::Emulator { problem: format!("the {what} is not one of this device") }
}

/// How many pieces of work of each stream of a capture come before something.
pub(super) type Before = HashMap<usize, u64>;

/// When an event was recorded last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Recorded {
    #[default]
    Never,
    At(Instant),
    /// In a capture, behind this work.
    Captured {
        capture: usize,
        before: Before,
    },
}

impl Recorded {
    /// The time; `None` for an event that was never recorded.
    ///
    /// # Errors
    /// [`Error::Emulator`] for an event of a capture, which is never reached.
    pub(super) fn time(&self) -> Result<Option<Instant>> {
        match self {
            Recorded::Never => Ok(None),
            Recorded::At(time) => Ok(Some(*time)),
            Recorded::Captured { .. } => Err(refused("an event that was last recorded in a capture is never reached")),
        }
    }
}

/// What is recorded, from the start of a capture to its end.
#[derive(Debug)]
pub(super) struct Capture {
    /// The stream that it started on.
    first: usize,
    /// The thread that started it, whose calls may spoil it.
    thread: ThreadId,
    /// In the order in which it was enqueued, which is one that the graph allows.
    work: Vec<Work>,
    /// What comes before the next work of each stream that takes part.
    streams: HashMap<usize, Before>,
    spoiled: bool,
}

fn refused(problem: &str) -> Error {
    Error::Emulator { problem: problem.to_owned() }
}

impl Objects {
    /// The capture that a live stream takes part in.
    pub(super) fn capture_of(&self, stream: Handle) -> Result<Option<usize>> {
        match self.table.get(&stream.0.addr()) {
            Some(Object::Stream(capture)) => Ok(*capture),
            _ => Err(dead("stream")),
        }
    }

    /// Whether any stream is being captured.
    pub(super) fn are_capturing(&self) -> bool {
        !self.captures.is_empty()
    }

    fn spoil(&mut self, captures: impl IntoIterator<Item = usize>) {
        for capture in captures {
            if let Some(capture) = self.captures.get_mut(&capture) {
                capture.spoiled = true;
            }
        }
    }

    /// Refuses a call that `does` something which the thread may not do while it captures, and spoils its captures.
    pub(super) fn refuse_in_capture(&mut self, does: &str) -> Result<()> {
        let here = thread::current().id();
        let of_thread = self.captures.iter().filter(|(_, capture)| capture.thread == here);
        let of_thread: Vec<usize> = of_thread.map(|(&number, _)| number).collect();
        if of_thread.is_empty() {
            return Ok(());
        }
        self.spoil(of_thread);
        Err(refused(&format!("a thread that captures a stream {does}, which spoils the capture")))
    }

    /// Refuses to wait for a stream that is captured, and spoils the capture.
    pub(super) fn refuse_to_wait(&mut self, stream: Handle) -> Result<()> {
        match self.capture_of(stream)? {
            None => Ok(()),
            Some(capture) => {
                self.spoil([capture]);
                Err(refused("a stream that is captured cannot be waited for, which spoils the capture"))
            }
        }
    }

    /// Starts a capture.
    pub(super) fn begin_capture(&mut self, stream: Handle) -> Result<()> {
        if let Some(capture) = self.capture_of(stream)? {
            self.spoil([capture]);
            return Err(refused("a stream that is captured starts another capture, which spoils the first"));
        }
        self.last += 1;
        let (number, first) = (self.last, stream.0.addr());
        let streams = HashMap::from([(first, Before::new())]);
        let thread = thread::current().id();
        self.captures.insert(number, Capture { first, thread, work: Vec::new(), streams, spoiled: false });
        self.table.insert(first, Object::Stream(Some(number)));
        Ok(())
    }

    /// Records work of a stream that is captured; gives it back where the stream is not.
    pub(super) fn record(&mut self, stream: Handle, work: Work) -> Result<Option<Work>> {
        let Some(number) = self.capture_of(stream)? else { return Ok(Some(work)) };
        let stream = stream.0.addr();
        let capture = self.intact(number)?;
        *capture.streams.entry(stream).or_default().entry(stream).or_default() += 1;
        capture.work.push(work);
        Ok(None)
    }

    /// A capture that is under way and not spoiled.
    fn intact(&mut self, number: usize) -> Result<&mut Capture> {
        self.captures
            .get_mut(&number)
            .filter(|capture| !capture.spoiled)
            .ok_or_else(|| refused("the capture was spoiled by an earlier call"))
    }

    fn event(&mut self, event: Handle) -> Result<&mut Recorded> {
        match self.table.get_mut(&event.0.addr()) {
            Some(Object::Event(recorded)) => Ok(recorded),
            _ => Err(dead("event")),
        }
    }

    /// Records an event behind the work of a stream.
    pub(super) fn record_event(&mut self, event: Handle, stream: Handle) -> Result<()> {
        let recorded = match self.capture_of(stream)? {
            None => Recorded::At(Instant::now()),
            Some(number) => {
                let before = self.intact(number)?.streams.get(&stream.0.addr()).cloned().unwrap_or_default();
                Recorded::Captured { capture: number, before }
            }
        };
        *self.event(event)? = recorded;
        Ok(())
    }

    /// When an event was recorded, for a call that waits for it on the host.
    pub(super) fn reached(&mut self, event: Handle) -> Result<Option<Instant>> {
        let recorded = self.event(event)?.clone();
        if let Recorded::Captured { capture, .. } = recorded {
            self.spoil([capture]);
        }
        recorded.time()
    }

    /// Puts an event before the next work of a stream, which joins the capture of the event.
    pub(super) fn wait_event(&mut self, stream: Handle, event: Handle) -> Result<()> {
        let recorded = self.event(event)?.clone();
        let of_stream = self.capture_of(stream)?;
        match (of_stream, recorded) {
            (_, Recorded::Never) | (None, Recorded::At(_)) => Ok(()),
            (Some(capture), Recorded::At(_)) => {
                self.spoil([capture]);
                Err(refused("work that is captured waits for an event outside the capture, which spoils it"))
            }
            (Some(here), Recorded::Captured { capture, .. }) if here != capture => {
                self.spoil([here, capture]);
                Err(refused("work of one capture waits for an event of another, which spoils both"))
            }
            (_, Recorded::Captured { capture, before }) => {
                let own = self.intact(capture)?.streams.entry(stream.0.addr()).or_default();
                for (of, count) in before {
                    let known = own.entry(of).or_default();
                    *known = count.max(*known);
                }
                self.table.insert(stream.0.addr(), Object::Stream(Some(capture)));
                Ok(())
            }
        }
    }

    /// Ends the capture that started on the stream, and gives what it has recorded. It is over in any case.
    pub(super) fn end_capture(&mut self, stream: Handle) -> Result<Vec<Work>> {
        let capture = match self.capture_of(stream)?.and_then(|number| self.captures.remove_entry(&number)) {
            Some((_, capture)) if capture.first == stream.0.addr() => capture,
            Some((number, capture)) => {
                self.captures.insert(number, Capture { spoiled: true, ..capture });
                return Err(refused("a capture ends on another stream than it started on"));
            }
            None => return Err(refused("the stream is not captured")),
        };
        for number in capture.streams.keys() {
            if let Some(Object::Stream(of_stream)) = self.table.get_mut(number) {
                *of_stream = None;
            }
        }
        if capture.spoiled {
            return Err(refused("the capture was spoiled by an earlier call"));
        }
        let known = &capture.streams[&capture.first];
        let has_waited = |(stream, own): (&usize, &Before)| own.get(stream) <= known.get(stream);
        if capture.streams.iter().all(has_waited) {
            Ok(capture.work)
        } else {
            Err(refused("a capture ends before its stream has waited for the work of another one that takes part"))
        }
    }
}
