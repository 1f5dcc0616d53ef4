//! Memory, copies and graphs on a CUDA device: the real one, else the virtual GPU.

use crate::common;
use crate::common::process::in_own_process;
use pascaline::cuda::occupancy::{Multiprocessor, Resources};
use pascaline::cuda::{CudaDevice, Graph, trace};
use pascaline::memory::{self, CHUNK, DeviceBuffer, LayerStream, PinnedBuffer, Statistics};
use pascaline::{DType, Device, Error, Tensor, ops};
use pascaline_driver::faults;

fn cuda() -> CudaDevice {
    match common::cuda_device() {
        Device::Cuda(device) => device,
        Device::Cpu => unreachable!("a CUDA device was asked for"),
    }
}

fn statistics(device: &CudaDevice) -> Statistics {
    memory::pool(device).unwrap().statistics()
}

fn ramp(count: usize) -> Vec<f32> {
    (0..count).map(|i| (i % 251) as f32 * 0.25).collect()
}

#[test]
fn buffers_come_from_the_pool_and_go_back() {
    in_own_process!();
    let device = cuda();
    memory::pool(&device).unwrap().trim().unwrap(); // holes that other tests left may fit better than the one made here
    let before = statistics(&device);
    let ((), entries) = memory::trace(|| {
        let x = DeviceBuffer::uninitialized(&device, 1 << 20).unwrap();
        let nothing = DeviceBuffer::uninitialized(&device, 0).unwrap();
        assert_eq!((nothing.address(), nothing.bytes()), (0, 0));
        assert!(x.address().is_multiple_of(256));
        assert_eq!(statistics(&device).live, before.live + (1 << 20));
        let address = x.address();
        drop(x);
        let again = DeviceBuffer::uninitialized(&device, 1 << 20).unwrap();
        assert_eq!(again.address(), address, "the same stream gets it again at once");
    });
    assert_eq!(entries.len(), 4);
    assert_eq!(statistics(&device).live, before.live);
    memory::pool(&device).unwrap().audit().unwrap();
}

#[test]
fn copies_keep_their_bytes() {
    in_own_process!();
    let device = cuda();
    for count in [1, 1000, CHUNK / 4, CHUNK / 4 + 1, 5 * CHUNK / 4 + 3] {
        let values = ramp(count);
        let x = Tensor::from_slice(&values, [count], &Device::Cuda(device.clone())).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), values, "{count}");
    }
    let mut buffer = DeviceBuffer::uninitialized(&device, 4096).unwrap();
    let mut pinned = PinnedBuffer::new(&device, 4096).unwrap();
    pinned.fill(7);
    buffer.upload_async(0, pinned).unwrap();
    let download = buffer.download_async(16, 1024).unwrap();
    assert_eq!(download.wait().unwrap()[..], [7u8; 1024]);
    let outside = buffer.upload_async(1, PinnedBuffer::new(&device, 4096).unwrap());
    assert!(matches!(outside, Err(Error::Unsupported { op: "upload", .. })));
}

#[test]
fn hand_overs_between_streams_keep_their_bytes() {
    in_own_process!();
    let device = cuda();
    let other = device.with_new_stream().unwrap();
    let before = statistics(&device);
    for round in 0..200u32 {
        let values = vec![round; 3000];
        let x = Tensor::from_slice(&values, [3000], &Device::Cuda(device.clone())).unwrap();
        let y = x.to_device(&Device::Cuda(other.clone())).unwrap();
        drop(x); // its memory is free for `device` only after the copy
        let scratch = Tensor::from_slice(&vec![!round; 3000], [3000], &Device::Cuda(device.clone())).unwrap();
        assert_eq!(y.to_vec::<u32>().unwrap(), values);
        assert_eq!(scratch.to_vec::<u32>().unwrap()[2999], !round);
    }
    assert_eq!(statistics(&device).live, before.live);
    memory::pool(&device).unwrap().audit().unwrap();
}

#[test]
fn after_out_of_memory_old_tensors_and_new_work_are_right() {
    in_own_process!();
    let device = cuda();
    let on = Device::Cuda(device.clone());
    let x = Tensor::from_slice(&ramp(4096), [4, 1024], &on).unwrap();
    let expected = ops::softmax(&x).unwrap().to_vec::<f32>().unwrap();
    faults::script("cuMemAlloc:1+=2,cuMemAllocFromPoolAsync:1+=2").unwrap();
    let refused = Tensor::uninitialized([64 << 20], DType::F32, &on);
    faults::clear();
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(ops::softmax(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    assert!(Tensor::uninitialized([1 << 20], DType::F32, &on).is_ok());
    // Refused by the driver itself, not by a script.
    let too_much = DeviceBuffer::uninitialized(&device, 2 * device.properties().memory_bytes);
    assert!(matches!(too_much, Err(Error::OutOfMemory { .. })), "{too_much:?}");
    assert_eq!(ops::softmax(&x).unwrap().to_vec::<f32>().unwrap(), expected);
    memory::pool(&device).unwrap().audit().unwrap();
}

#[test]
fn leaks_say_where_their_tensors_were_made() {
    in_own_process!();
    let device = cuda();
    let (x, line) = (Tensor::zeros([1000], DType::F32, &Device::Cuda(device.clone())).unwrap(), line!());
    let leaks = memory::pool(&device).unwrap().leaks();
    let of_x = leaks.iter().find(|leak| leak.bytes == 4000).expect("x is live");
    let site = of_x.site.map(|site| (site.file().ends_with("memory_device.rs"), site.line()));
    assert_eq!(site, cfg!(debug_assertions).then_some((true, line)));
    drop(x);
    assert!(memory::pool(&device).unwrap().leaks().len() < leaks.len());
}

#[test]
fn a_limit_on_the_device_is_kept() {
    in_own_process!();
    let device = cuda();
    memory::pool(&device).unwrap().trim().unwrap();
    memory::set_limit(&device, statistics(&device).reserved + (8 << 20)).unwrap();
    let refused = DeviceBuffer::uninitialized(&device, 16 << 20);
    let fits = DeviceBuffer::uninitialized(&device, 4 << 20);
    memory::set_limit(&device, usize::MAX).unwrap();
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert!(fits.is_ok());
}

#[test]
fn a_graph_replays_what_was_captured() {
    in_own_process!();
    let device = cuda();
    let on = Device::Cuda(device.clone());
    let before = statistics(&device).live;
    let values = ramp(2048);
    let mut x = Tensor::from_slice(&values, [2, 1024], &on).unwrap();
    let direct = |x: &Tensor| {
        let y = ops::softmax(&ops::softmax(x).unwrap()).unwrap();
        y.to_vec::<f32>().unwrap()
    };
    let expected = direct(&x);
    let (captured, names) = trace(|| {
        Graph::capture(&device, || {
            let y = ops::softmax(&x)?;
            ops::softmax(&y) // `y` is dropped here: its memory stays with the graph
        })
    });
    let (graph, y) = captured.unwrap();
    assert_eq!((graph.nodes(), names.len()), (2, 2));
    assert_eq!(graph.kept(), 2, "the input and the graph's own pool");
    graph.launch().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    // New input in the same place.
    let reversed: Vec<f32> = values.iter().rev().copied().collect();
    let other = Tensor::from_slice(&reversed, [2, 1024], &on).unwrap();
    ops::copy_into(x.view_mut().unwrap(), &other).unwrap();
    let expected = direct(&x);
    graph.launch().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    // The graph's memory outlives the tensors, and nobody else gets it.
    drop(x);
    let strangers: Vec<_> = (0..8).map(|_| Tensor::zeros([2, 1024], DType::F32, &on).unwrap()).collect();
    graph.launch().unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    for stranger in &strangers {
        assert!(stranger.to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
    }
    drop((graph, y, strangers, other));
    assert_eq!(statistics(&device).live, before, "all of it goes back");
}

/// Work that another thread queues during a capture waits for its end, runs, and is not part of the graph.
#[test]
fn other_threads_stay_out_of_a_capture() {
    in_own_process!();
    let device = cuda();
    let on = Device::Cuda(device.clone());
    let x = Tensor::from_slice(&ramp(2048), [2, 1024], &on).unwrap();
    let softmax = |x: &Tensor| ops::softmax(x).unwrap().to_vec::<f32>().unwrap();
    let expected = softmax(&x);
    let (started, start) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let mut other = None;
        let (graph, y) = Graph::capture(&device, || {
            other = Some(scope.spawn(|| {
                started.send(()).unwrap();
                softmax(&Tensor::from_slice(&ramp(2048), [2, 1024], &on).unwrap())
            }));
            start.recv().unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20)); // time for the other thread to interfere, if it could
            ops::softmax(&x)
        })
        .unwrap();
        assert_eq!(other.unwrap().join().unwrap(), expected);
        assert_eq!(graph.nodes(), 1);
        graph.launch().unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), expected);
    });
}

/// Copies between the captured stream and others, whose events would become part of the capture, wait for its end, too.
#[test]
fn events_of_other_threads_stay_out_of_a_capture() {
    in_own_process!();
    let device = cuda();
    let beside = device.with_new_stream().unwrap();
    let mut source = DeviceBuffer::uninitialized(&device, 64).unwrap();
    source.upload(0, &[7; 64]).unwrap();
    let mut layers = LayerStream::new(&device, 64).unwrap();
    for byte in 0..3 {
        let mut layer = PinnedBuffer::new(&device, 64).unwrap();
        layer.fill(byte);
        layers.push(layer).unwrap();
    }
    let mut copied = || -> Result<(), Error> {
        let mut copy = DeviceBuffer::uninitialized(&beside, 64)?;
        copy.copy_from(0, &source, 0, 64)?;
        let mut bytes = [0; 64];
        copy.download(0, &mut bytes)?;
        assert_eq!(bytes, [7; 64]);
        Ok(())
    };
    let mut streamed = || layers.layer(0).map(drop);
    for work in [&mut copied as &mut (dyn FnMut() -> Result<(), Error> + Send), &mut streamed] {
        let (started, start) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let mut other = None;
            let (graph, memory) = Graph::capture(&device, || {
                other = Some(scope.spawn(|| {
                    started.send(()).unwrap();
                    work()
                }));
                start.recv().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(20)); // time for the other thread to interfere, if it could
                let mut memory = DeviceBuffer::uninitialized(&device, 64)?;
                memory.fill(1).map(|()| memory)
            })
            .unwrap();
            other.unwrap().join().unwrap().unwrap();
            assert_eq!(graph.nodes(), 1);
            drop((graph, memory));
        });
    }
}

#[test]
fn what_has_no_place_in_a_capture_is_refused() {
    in_own_process!();
    let device = cuda();
    let on = Device::Cuda(device.clone());
    let x = Tensor::from_slice(&ramp(64), [64], &on).unwrap();
    let host_copy = Graph::capture(&device, || x.to_vec::<f32>());
    assert!(matches!(host_copy, Err(Error::Unsupported { op: "download", .. })), "{host_copy:?}");
    let nested = Graph::capture(&device, || Graph::capture(&device, || Ok(())).map(drop));
    assert!(matches!(nested, Err(Error::Unsupported { op: "Graph::capture", .. })), "{nested:?}");
    let beside = device.with_new_stream().unwrap();
    let nested =
        Graph::capture(&device, || Graph::capture(&beside, || ops::scale(&x, 2.0)).map(drop)).map(drop);
    assert!(matches!(nested, Err(Error::Unsupported { op: "Graph::capture", .. })), "{nested:?}");
    assert_eq!(x.to_vec::<f32>().unwrap(), ramp(64), "the stream works on");
}

/// Calls that would draw a stream into another's capture, whose graph would not keep that stream's memory.
#[test]
fn a_capture_draws_no_other_stream_in() {
    in_own_process!();
    let device = cuda();
    let beside = device.with_new_stream().unwrap();
    let [on, there] = [&device, &beside].map(|device| Device::Cuda(device.clone()));
    let x = Tensor::from_slice(&ramp(64), [64], &on).unwrap();
    let far = x.to_device(&there).unwrap();
    let (outside, inside) = (device.event().unwrap(), device.event().unwrap());
    outside.record(beside.stream()).unwrap();
    type Work<'a> = &'a dyn Fn() -> Result<(), Error>;
    let drawn: [(&str, Work); 4] = [
        ("a copy to the other stream", &|| x.to_device(&there).map(drop)),
        ("a copy from the other stream", &|| far.to_device(&on).map(drop)),
        ("a wait for an event of the capture", &|| {
            inside.record(device.stream())?;
            beside.stream().wait(&inside)
        }),
        ("a wait for an event outside the capture", &|| device.stream().wait(&outside)),
    ];
    for (name, work) in drawn {
        let refused = Graph::capture(&device, work).map(drop);
        assert!(matches!(refused, Err(Error::Unsupported { op: "Stream::wait", .. })), "{name}: {refused:?}");
        // the capture goes on without it
        let (graph, y) = Graph::capture(&device, || {
            assert!(work().is_err(), "{name}");
            ops::scale(&x, 2.0)
        })
        .unwrap();
        assert_eq!(graph.nodes(), 1, "{name}");
        assert_eq!(far.to_vec::<f32>().unwrap(), ramp(64), "{name}: the other stream runs");
        graph.launch().unwrap();
        let doubled: Vec<f32> = ramp(64).iter().map(|value| 2.0 * value).collect();
        assert_eq!(y.to_vec::<f32>().unwrap(), doubled, "{name}");
    }
    assert!(beside.stream().wait(&inside).is_err(), "the event is the graph's until it is recorded again");
    inside.record(device.stream()).unwrap();
    beside.stream().wait(&inside).unwrap();
}

#[test]
fn a_graph_over_two_streams_keeps_the_memory_of_both() {
    in_own_process!();
    let device = cuda();
    let beside = device.with_new_stream().unwrap();
    let [on, there] = [&device, &beside].map(|device| Device::Cuda(device.clone()));
    let x = Tensor::from_slice(&ramp(2048), [2048], &on).unwrap();
    let (graph, y) = Graph::capture_over(&[device.clone(), beside.clone()], || {
        let far = ops::scale(&x, 2.0)?.to_device(&there)?;
        ops::scale(&far, 3.0)
    })
    .unwrap();
    drop(x);
    let stranger = |device| Tensor::zeros([2048], DType::F32, device).unwrap();
    let strangers: Vec<_> = (0..8).map(|i| stranger([&on, &there][i % 2])).collect();
    graph.launch().unwrap();
    let wanted: Vec<f32> = ramp(2048).iter().map(|value| 6.0 * value).collect();
    assert_eq!(y.to_vec::<f32>().unwrap(), wanted);
    for stranger in &strangers {
        assert!(stranger.to_vec::<f32>().unwrap().iter().all(|&value| value == 0.0));
    }
}

#[test]
fn a_device_that_is_not_there_takes_no_memory() {
    in_own_process!();
    cuda();
    assert!(matches!(Device::cuda(u32::MAX), Err(Error::NoDevice { .. }))); // a list of so many would take 32 GiB
}

#[test]
fn occupancy_is_the_drivers() {
    in_own_process!();
    let device = cuda();
    let multiprocessor = device.properties().multiprocessor;
    if device.properties().capability == (6, 1) {
        assert_eq!(multiprocessor, Multiprocessor::SM_61);
    }
    for spec in kernels_gpu::KERNELS.iter().copied().flatten() {
        let resources @ Resources { registers, shared_bytes } = device.kernel_resources(spec.name).unwrap();
        for threads in (32..=spec.threads()).step_by(32) {
            let ours = multiprocessor.resident_blocks(threads, registers, shared_bytes);
            let drivers = device.blocks_per_multiprocessor(spec.name, threads).unwrap();
            assert_eq!(ours, drivers, "{} with {threads} threads: {resources:?}", spec.name);
        }
    }
}
