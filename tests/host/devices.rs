//! Calls that mix two cards: a typed error that names what is elsewhere, before anything is enqueued.

use ferrotile::{Arch, AttentionTensors, Buffer, Error, Event, Gpu, LaunchConfig, PinnedBuffer, TensorRef, attention};
use half::f16;
use libtest_mimic::Trial;
use tests::expect_error;
use tests::{Device, card_trial, device, device_trial};

use crate::call::{Call, SHAPE, options, plan};
use crate::words::{PTX, add_word};
use crate::{Outcome, beside_others, expect_equal, plans};

/// The trials; one of them needs a second card and is ignored without it.
pub(crate) fn trials() -> Vec<Trial> {
    let only_one = matches!(device(), Device::Gpu(gpu) if second(gpu).is_none());
    let two_cards = device_trial("devices/what_is_on_another_card_is_named", |gpu| {
        another_card(gpu, &second(gpu).ok_or("there is no second card")?)
    });
    let emulated = || another_card(&Gpu::emulated(Arch::Sm80), &Gpu::emulated(Arch::Sm90a));
    vec![
        device_trial("devices/a_tensor_that_is_elsewhere_is_named", foreign_tensor),
        card_trial("devices/a_card_that_is_opened_again_is_the_same", "the driver opens it", same_card),
        Trial::test("devices/an_emulated_block_without_an_end_is_an_error", endless),
        Trial::test("devices/what_is_on_another_emulated_device_is_named", emulated),
        if only_one { two_cards.with_ignored_flag(true) } else { two_cards },
    ]
}

/// Another card than the one under test.
fn second(gpu: &Gpu) -> Option<Gpu> {
    Gpu::all().ok()?.into_iter().find(|other| other.ordinal() != gpu.ordinal())
}

/// Checks that an error says that `what` is elsewhere.
fn is_elsewhere(what: &'static str) -> impl Fn(&Error) -> bool {
    move |error| matches!(error, Error::WrongDevice { what: got, .. } if *got == what)
}

/// No second card is needed to claim that a tensor is on one.
fn foreign_tensor(gpu: &Gpu) -> Outcome {
    let stream = gpu.new_stream()?;
    let mut call = Call::new(stream.as_ref())?;
    let before = call.out.download_blocking(&stream)?.len();
    for (index, what) in ["Q", "K", "V"].into_iter().enumerate() {
        let mut inputs = call.tensors()?;
        let moved = inputs[index];
        // SAFETY: the call is refused, so the memory is not used.
        inputs[index] = unsafe { TensorRef::from_raw(gpu.ordinal() + 1, moved.as_raw(), SHAPE, *moved.strides()) }?;
        let mut out = Buffer::<f16>::zeroed(gpu, before)?;
        let [q, k, v] = inputs;
        let written = ferrotile::TensorMut::contiguous(&mut out, SHAPE)?;
        let tensors = AttentionTensors::new(q, k, v, written);
        let refused = attention(&stream, tensors, &options().params(), &options().options());
        expect_error(refused, is_elsewhere(what))?;
        let untouched = out.download_blocking(&stream)?.iter().all(|x| x.to_bits() == 0);
        expect_equal("the output is untouched", &untouched, &true)?;
    }
    call.enqueue(&plan(gpu)?, stream.as_ref())?;
    crate::call::check(&call.out.download_blocking(&stream)?)
}

/// On the architecture that no other trial emulates, since the limit is the device's.
fn endless() -> Outcome {
    let gpu = Gpu::emulated(Arch::Sm89);
    let text = ".version 7.0 .target sm_80 .address_size 64 .visible .entry endless() { AGAIN: bra AGAIN; }";
    let kernel = gpu.load_ptx(text)?.kernel("endless")?;
    gpu.limit_instructions(10_000)?;
    let config = LaunchConfig { grid: [1; 3], block: [32, 1, 1], cluster: [1; 3], shared_bytes: 0, overlaps: false };
    let stream = gpu.new_stream()?;
    // SAFETY: the kernel has no parameters and touches no memory.
    let launched = unsafe { kernel.launch(stream.as_ref(), &config, &[]) };
    expect_error(
        launched,
        |error| matches!(error, Error::Emulator { problem } if problem.contains("10000 instructions")),
    )
}

fn same_card(gpu: &Gpu) -> Outcome {
    let again = Gpu::new(gpu.ordinal())?;
    expect_equal("the card", &(again.ordinal(), again.name()), &(gpu.ordinal(), gpu.name()))?;
    expect_equal("the driver is known", &(gpu.driver_version() >= (11, 0)), &true)?;
    expect_equal("multiprocessors and memory", &(gpu.multiprocessors() > 0 && gpu.memory_bytes() > 1 << 30), &true)?;
    // Memory of one handle on a stream of the other.
    let buffer = Buffer::<u32>::zeroed(&again, 4)?;
    expect_equal("the buffer", &buffer.download_blocking(&gpu.new_stream()?)?, &[0; 4])?;
    let absent = Gpu::new(1000);
    expect_error(absent, |error| matches!(error, Error::NoDevice { ordinal: 1000, count } if *count > gpu.ordinal()))
}

fn another_card(gpu: &Gpu, other: &Gpu) -> Outcome {
    let _running = beside_others();
    let (here, there) = (gpu.new_stream()?, other.new_stream()?);
    let mut buffer = Buffer::<u32>::zeroed(gpu, 1)?;
    let mut far = Buffer::<u32>::zeroed(other, 1)?;
    let mut pinned = PinnedBuffer::<u32>::zeroed(other, 1)?;
    expect_error(buffer.download_blocking(&there), is_elsewhere("buffer"))?;
    expect_error(buffer.overwrite_blocking(&there, &[1]), is_elsewhere("buffer"))?;
    expect_error(buffer.fill_bytes(&there, 1), is_elsewhere("buffer"))?;
    expect_error(buffer.copy_to_pinned(&there, &mut pinned), is_elsewhere("buffer"))?;
    expect_error(buffer.copy_to_pinned(&here, &mut pinned), is_elsewhere("pinned buffer"))?;
    expect_error(buffer.copy_from_pinned(&here, &pinned), is_elsewhere("pinned buffer"))?;
    let add = gpu.load_ptx(PTX)?.kernel("add_word")?;
    expect_error(add_word(&add, there.as_ref(), &far, 1), is_elsewhere("kernel"))?;
    let (start, end) = (gpu.new_event()?, other.new_event()?);
    expect_error(start.record(there.as_ref()), is_elsewhere("event"))?;
    start.record(here.as_ref())?;
    end.record(there.as_ref())?;
    expect_error(Event::elapsed_ms(&start, &end), is_elsewhere("event"))?;
    let graph = here.capture(|_| Ok(()))?;
    // SAFETY: the graph uses nothing.
    expect_error(unsafe { graph.launch(there.as_ref()) }, is_elsewhere("graph"))?;
    // Waiting across cards is allowed; emulated devices know nothing of each other.
    let waited = there.as_ref().wait_for(&start);
    if gpu.is_emulated() {
        expect_error(waited, is_elsewhere("event"))?
    } else {
        waited?
    }
    plans::on_another_device(gpu, other)?;
    far.overwrite_blocking(&there, &[9])?;
    expect_equal("the other card's buffer", &far.download_blocking(&there)?, &[9])?;
    expect_equal("this card's buffer", &buffer.download_blocking(&here)?, &[0])
}
