//! What cust makes and this library uses, and the other way round.

use std::ptr;

use cust::context::legacy::{self, ContextStack};
use cust::context::{Context, CurrentContext};
use cust::device::Device;
use cust::event::EventStatus;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream as CustStream, StreamFlags};
use ferrotile::{
    AttentionTensors, Buffer, BufferSlice, BufferSliceMut, Error, Gpu, StreamRef, TensorMut, TensorRef, attention,
};
use half::f16;
use tests::expect_error;

use crate::call::{LEN, SHAPE, bits, expected_bits, host_inputs, options};
use crate::contexts::{attention_on, on_new_thread};
use crate::driver::set_current_context;
use crate::words::{PTX, add_word, kernel};
use crate::{Outcome, Tests, expect_equal, test};

const CARD: &str = "cust knows cards alone";

pub(crate) const TESTS: Tests = &[
    test("a_context_comes_in_and_goes_out", context).on_a_card(CARD),
    test("a_stream_comes_in", stream).on_a_card(CARD),
    test("a_stream_in_another_context_is_refused", foreign_stream).on_a_card(CARD),
    test("streams_events_and_modules_go_out", handles).on_a_card(CARD),
    test("memory_comes_in_as_slices", slices).on_a_card(CARD),
    test("memory_changes_hands", owned).on_a_card(CARD).alone(),
    test("an_emulated_device_has_nothing_of_cust", nothing),
];

/// Runs on a thread where the primary context is current, as cust's functions need it.
fn with_cust(gpu: &Gpu, body: impl FnOnce() -> Outcome + Send) -> Outcome {
    on_new_thread(|| {
        let _primary = Context::new(Device::get_device(gpu.ordinal())?)?;
        body()
    })
}

fn context(gpu: &Gpu) -> Outcome {
    on_new_thread(|| {
        let of_cust = Context::new(Device::get_device(gpu.ordinal())?)?;
        expect_equal("the card", &Gpu::from_cust(&of_cust)?.ordinal(), &gpu.ordinal())?;
        let ours = gpu.cust_context().ok_or("a card has a context")?;
        expect_equal("the context", &ours.as_raw(), &of_cust.as_raw())?;
        set_current_context(ptr::null_mut());
        CurrentContext::set_current(ours)?;
        let memory = DeviceBuffer::from_slice(&[7_u32])?;
        expect_equal("the word", &memory.as_host_vec()?, &[7])
    })
}

fn stream(gpu: &Gpu) -> Outcome {
    with_cust(gpu, || {
        let stream = CustStream::new(StreamFlags::DEFAULT, None)?;
        let borrowed = StreamRef::try_from(&stream)?;
        expect_equal("the device", &borrowed.ordinal(), &gpu.ordinal())?;
        expect_equal("the handle", &borrowed.as_raw(), &stream.as_inner().cast())?;
        attention_on(gpu, borrowed)?;
        // Also where no context is current.
        set_current_context(ptr::null_mut());
        attention_on(gpu, StreamRef::try_from(&stream)?)
    })
}

fn foreign_stream(gpu: &Gpu) -> Outcome {
    let ordinal = gpu.ordinal();
    on_new_thread(move || {
        let context = legacy::Context::create_and_push(legacy::ContextFlags::SCHED_AUTO, Device::get_device(ordinal)?)?;
        let stream = CustStream::new(StreamFlags::DEFAULT, None)?;
        let is_right = |error: &Error| *error == Error::ForeignContext { ordinal };
        expect_error(StreamRef::try_from(&stream), is_right)?;
        stream.synchronize()?;
        drop(stream);
        ContextStack::pop()?;
        drop(context);
        Ok(())
    })
}

fn handles(gpu: &Gpu) -> Outcome {
    with_cust(gpu, || {
        let stream = gpu.new_stream()?;
        let of_cust = stream.as_cust().ok_or("a card has streams of cust")?;
        expect_equal("the stream", &of_cust.as_inner().cast(), &stream.as_ref().as_raw())?;
        expect_equal("its flags", &of_cust.get_flags()?, &StreamFlags::NON_BLOCKING)?;
        let event = gpu.new_event()?;
        let event = event.as_cust().ok_or("a card has events of cust")?;
        event.record(of_cust)?;
        event.synchronize()?;
        expect_equal("the event", &event.query()?, &EventStatus::Ready)?;
        let module = gpu.load_ptx(PTX)?;
        let module = module.as_cust().ok_or("a card has modules of cust")?;
        module.get_function("add_word")?;
        Ok(of_cust.synchronize()?)
    })
}

fn slices(gpu: &Gpu) -> Outcome {
    let expected = expected_bits(gpu)?;
    with_cust(gpu, || {
        let [q, k, v] = host_inputs().map(|values| DeviceBuffer::from_slice(&bits(&values)));
        let (q, k, v) = (q?, k?, v?);
        let mut out = DeviceBuffer::from_slice(&vec![u16::MAX; LEN])?;
        // cust copies on the legacy default stream, with which the library's streams are not ordered.
        // SAFETY: that stream always lives.
        unsafe { StreamRef::from_raw(ptr::null_mut(), gpu) }.synchronize()?;
        let read = |memory| {
            // SAFETY: the memory is in the primary context and outlives the work, which is waited for.
            TensorRef::of_slice(unsafe { BufferSlice::from_cust(gpu, memory) }.cast::<f16>(), SHAPE)
        };
        // SAFETY: as above.
        let written = unsafe { BufferSliceMut::from_cust(gpu, &mut out) }.cast::<f16>();
        let written = TensorMut::of_slice(written, SHAPE)?;
        let stream = gpu.new_stream()?;
        let tensors = AttentionTensors::new(read(&q)?, read(&k)?, read(&v)?, written);
        attention(&stream, tensors, &options().params(), &options().options())?;
        stream.synchronize()?;
        expect_equal("the bits", &out.as_host_vec()?, &expected)
    })
}

fn owned(gpu: &Gpu) -> Outcome {
    with_cust(gpu, || {
        let stream = gpu.new_stream()?;
        let of_cust = DeviceBuffer::from_slice(&[1_u32, 2])?;
        // SAFETY: cust allocated it in the primary context, and not asynchronously.
        let ours = unsafe { Buffer::from_cust(gpu, of_cust) };
        gpu.synchronize()?;
        add_word(&kernel(gpu, "add_word")?, stream.as_ref(), &ours, 10)?;
        let of_cust = ours.into_cust_blocking()?;
        let mut words = [0; 2];
        of_cust.copy_to(&mut words)?;
        expect_equal("the words", &words, &[11, 2])?;
        let empty = Buffer::<u32>::zeroed(gpu, 0)?.into_cust_blocking()?;
        // SAFETY: it has no memory.
        let empty = unsafe { Buffer::from_cust(gpu, empty) };
        expect_equal("the length of nothing", &empty.len(), &0)
    })
}

fn nothing(_: &Gpu) -> Outcome {
    let gpu = Gpu::emulated(ferrotile::Arch::Sm80);
    let (stream, event, module) = (gpu.new_stream()?, gpu.new_event()?, gpu.load_ptx(PTX)?);
    let is_none = stream.as_cust().is_none() && event.as_cust().is_none() && module.as_cust().is_none();
    expect_equal("no handles", &(is_none && gpu.cust_context().is_none()), &true)?;
    let refused = Buffer::<u32>::zeroed(&gpu, 2)?.into_cust_blocking();
    expect_error(refused, |error| matches!(error, Error::Unsupported { op: "Buffer::into_cust_blocking", .. }))
}
