//! Progress of what may take more than two seconds. It is drawn on stderr where that is a terminal, and nowhere else,
//! and leaves nothing behind.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};

/// How often the time is drawn anew while no step ends.
const TICK: Duration = Duration::from_millis(200);

/// A bar of `len` steps, with the message of the present one and the time.
pub(crate) fn bar(len: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} {elapsed} {msg}").expect("the template is valid");
    shown(ProgressBar::new(len as u64).with_style(style))
}

/// What is being done, and for how long, where nobody knows how much of it is left. Dropping it takes it away.
pub(crate) fn spinner(what: impl Into<Cow<'static, str>>) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("the template is valid");
    shown(ProgressBar::new_spinner().with_style(style).with_message(what))
}

fn shown(bar: ProgressBar) -> ProgressBar {
    // indicatif draws nothing where stderr is not a terminal.
    let bar = bar.with_finish(ProgressFinish::AndClear);
    bar.enable_steady_tick(TICK);
    bar
}
