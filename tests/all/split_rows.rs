//! A model of which each of several virtual devices has a part of every layer: the tokens of one device, logits within rounding, and no
//! finding of the virtual GPU, which looks for missing waits in every order.

use crate::common::process::in_own_process;
use crate::common::several::{no_findings, three_devices, together};
use pascaline::cuda::{CudaDevice, Graph};
use pascaline::memory::Way;
use pascaline::nn::AllReduce;
use pascaline::quant::Format;
use pascaline::{DType, Device, Error, Result, Tensor, memory, ops};
use qwen3_vl::{Checkpoint, LoadOptions, Matrices, Options, Placement, Qwen3Vl, Visual};
use std::path::{Path, PathBuf};

fn cuda(device: &Device) -> CudaDevice {
    match device {
        Device::Cuda(device) => device.clone(),
        Device::Cpu => unreachable!("a virtual GPU"),
    }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn try_load(name: &str, placement: &Placement, options: LoadOptions) -> pascaline::Result<Qwen3Vl> {
    let checkpoint = Checkpoint::open(fixture(name), None)?;
    Qwen3Vl::load_placed(&checkpoint, None, placement, options, |_| {})
}

fn load(name: &str, placement: &Placement, options: LoadOptions) -> Qwen3Vl {
    try_load(name, placement, options).unwrap()
}

/// The largest difference, over the largest value.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let most = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    // NaN is no maximum, so it is looked for
    if found.iter().any(|value| value.is_nan()) { f32::NAN } else { most.fold(0.0, f32::max) / largest }
}

fn logits(model: &Qwen3Vl) -> Vec<f32> {
    let ids: Vec<u32> = (1..12).collect();
    model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec().unwrap()
}

/// The tokens of an answer about a picture, by a captured pass or launch by launch.
fn answer_by(model: &Qwen3Vl, graph: bool) -> Vec<u32> {
    let picture = [Visual::image(&fixture("qwen3-vl/tiny/cases/square.png")).unwrap()];
    let options = Options { max_new_tokens: 5, stop_at_eos: false, graph, ..Options::default() };
    let output = model.generate(&picture, "What colour?", &options).unwrap();
    assert_eq!(output.statistics.graph_launches.is_some(), graph);
    output.ids
}

fn answer(model: &Qwen3Vl) -> Vec<u32> {
    answer_by(model, true)
}

#[test]
fn parts_of_layers_give_the_same_tokens() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions { tokens_per_pass: 13, ..LoadOptions::for_device(&devices[0]) };
    for dtype in [DType::F32, DType::F16] {
        let options = LoadOptions { dtype, ..usual };
        let alone = load("qwen3-vl/tiny", &Placement::one(&devices[0], 3), options);
        let (expected, tokens) = (logits(&alone), answer(&alone));
        for (way, vision) in [(Way::Pinned, 0), (Way::Peer, 1)] {
            let placement = Placement::rows(&devices[..2], 3, vision).unwrap().by(way);
            let model = load("qwen3-vl/tiny", &placement, options);
            assert_eq!(model.ways(), [way]);
            // a sum in another order: a few units of the last place of its largest part, through three layers
            let error = difference(&logits(&model), &expected);
            assert!(error <= 1e-5, "{dtype}, {way:?}: {error:e}");
            assert_eq!(answer(&model), tokens, "{dtype}, {way:?}");
            assert_eq!(answer_by(&model, false), tokens, "{dtype}, {way:?}, launched");
            no_findings(&format!("{dtype}, {way:?}"));
        }
    }
    // each device holds a half of the layers, the first the embedding and the vision tower too
    let live = |device: &Device| match device {
        Device::Cuda(device) => memory::pool(device).unwrap().statistics().live,
        Device::Cpu => 0,
    };
    let before: Vec<_> = devices.iter().map(live).collect();
    let model = load("qwen3-vl/tiny", &Placement::rows(&devices[..2], 3, 0).unwrap(), usual);
    let taken: Vec<_> = devices.iter().map(live).zip(before).map(|(now, before)| now - before).collect();
    assert!(taken[1] > model.weight_bytes() / 2 && taken[1] < model.weight_bytes() * 6 / 10, "{taken:?}");
    assert_eq!(taken[2], 0);
}

#[test]
fn blocks_of_files_are_divided() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions::for_device(&devices[0]);
    let rows = Placement::rows(&devices[..2], 4, 0).unwrap();
    for file in ["model-Q8_0.gguf", "model-Q4_0.gguf"] {
        let name = format!("qwen3-vl-gguf/{file}");
        let one = Placement::one(&devices[0], 4);
        let expected = logits(&load(&name, &one, usual));
        let error = difference(&logits(&load(&name, &rows, usual)), &expected);
        // Both round activations to 8 bits after sums whose last bits differ. Where one becomes another quant, all that follow
        // may, so the results differ by as much as either does from that of activations in f32.
        let unrounded = logits(&load(&name, &one, LoadOptions { keep_quantized: false, ..usual }));
        let rounding = difference(&expected, &unrounded);
        assert!(error <= rounding && rounding <= 0.03, "{file}: {error:e}, {rounding:e}");
        no_findings(file);
    }
    // half of a row of the attention's output is 128 values
    let error = try_load("qwen3-vl-gguf/model-Q6_K.gguf", &rows, usual).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("layer 0 self_attn.o_proj: 128 columns, blocks of 256 in q6_k"), "{error}");
    let quantized = Matrices::Quantized(Format::Q8_0).apply(usual);
    let rows = Placement::rows(&devices[..2], 3, 0).unwrap();
    let error = try_load("qwen3-vl/tiny", &rows, quantized).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("layer 0 mlp.down_proj: 80 columns, blocks of 32 in q8_0"), "{error}");
}

#[test]
fn what_does_not_divide_is_refused() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions::for_device(&devices[0]);
    let live = || match &devices[2] {
        Device::Cuda(device) => memory::pool(device).unwrap().statistics().live,
        Device::Cpu => unreachable!("a virtual GPU"),
    };
    let before = live();
    let rows = Placement::rows(&devices, 3, 0).unwrap();
    let error = try_load("qwen3-vl/tiny", &rows, usual).map(|_| ()).unwrap_err();
    let Error::Unsupported { op, value, reason, .. } = &error else { panic!("{error}") };
    assert_eq!(*op, "row split");
    assert_eq!(value, "num_attention_heads 4, num_key_value_heads 2, intermediate_size 160");
    assert!(reason.contains("the 3 devices"), "{reason}");
    assert_eq!(live(), before, "nothing was loaded");
    let streamed = LoadOptions { gpu_layers: Some(1), ..usual };
    let rows = Placement::rows(&devices[..2], 3, 0).unwrap();
    let error = try_load("qwen3-vl/tiny", &rows, streamed).map(|_| ()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { argument: "gpu_layers", .. }), "{error}");
    let error = try_load("qwen3-vl/tiny", &Placement::rows(&devices[..2], 4, 0).unwrap(), usual);
    assert!(error.map(|_| ()).unwrap_err().to_string().contains("the model has 3 decoder layers"));
    assert!(Placement::rows(&[devices[0].clone(), Device::Cpu], 3, 0).is_err());
}

#[test]
fn sums_have_the_same_bits_on_every_device() {
    in_own_process!();
    let devices = three_devices();
    // the order counts: from the left the sum is 1, from the right 0
    let parts = [[1e8f32, 2.0], [-1e8, 3.0], [1.0, 5.0]];
    for way in [Way::Peer, Way::Pinned] {
        let sums = AllReduce::new(&devices, Some(way)).unwrap();
        for _ in 0..3 {
            let on = |(part, device): (&[f32; 2], &Device)| Tensor::from_slice(part, [1, 2], device).unwrap();
            let all: Vec<_> = parts.iter().zip(&devices).map(on).collect();
            let found = sums.sum(all.clone()).unwrap();
            for (sum, device) in found.iter().zip(&devices) {
                assert_eq!(sum.device(), *device);
                assert_eq!(sum.to_vec::<f32>().unwrap(), [1.0, 10.0], "{way:?} on {device}");
            }
            let side_by_side = sums.gather_columns(all.clone()).unwrap();
            assert_eq!(side_by_side.device(), devices[0]);
            assert_eq!(side_by_side.to_vec::<f32>().unwrap(), parts.concat());
            for copy in sums.broadcast(&all[0]).unwrap() {
                assert_eq!(copy.to_vec::<f32>().unwrap(), parts[0]);
            }
        }
        let one = Tensor::from_slice(&[1.0f32], [1, 1], &devices[0]).unwrap();
        assert!(sums.sum(vec![one.clone()]).unwrap_err().to_string().contains("there are 3 devices"));
        let other = |device| Tensor::zeros([1, 2], DType::F32, device).unwrap();
        let odd = vec![one, other(&devices[1]), other(&devices[2])];
        assert!(matches!(sums.sum(odd), Err(Error::Shape { .. })));
        no_findings("sums");
    }
    let twice = [devices[0].clone(), devices[0].clone()];
    assert!(AllReduce::new(&twice, None).unwrap_err().to_string().contains("one comes twice"));
    assert!(
        AllReduce::new(&[devices[0].clone(), Device::Cpu], None).is_err()
            && AllReduce::new(&[], None).is_err()
    );
}

/// Also of three devices, whose part is in one graph.
#[test]
fn captured_sums_are_those_that_are_launched() {
    in_own_process!();
    let devices = three_devices();
    let gpus: Vec<_> = devices.iter().map(cuda).collect();
    for way in [Way::Peer, Way::Pinned] {
        let sums = AllReduce::new(&devices, Some(way)).unwrap();
        let mut inputs: Vec<_> =
            devices.iter().map(|device| Tensor::zeros([2, 3], DType::F32, device).unwrap()).collect();
        // twice as much is added again, beside what the first has alone
        let (graph, found) = Graph::capture_over(&gpus, || {
            let first = sums.broadcast(&inputs[0])?;
            let once = sums.sum(inputs.clone())?;
            let twice =
                sums.sum(once.iter().zip(&first).map(|(a, b)| ops::add(a, b)).collect::<Result<_>>()?)?;
            let all = sums.gather_columns(twice.clone())?;
            Ok((twice, all))
        })
        .unwrap();
        assert!(graph.nodes() >= 3 * 6, "{}", graph.nodes());
        for round in 0..3 {
            for (number, input) in inputs.iter_mut().enumerate() {
                let values: Vec<f32> = (0..6).map(|at| (100 * round + 10 * number + at) as f32).collect();
                input.view_mut().unwrap().write(&values).unwrap();
            }
            graph.launch().unwrap();
            let expected: Vec<f32> = (0..6)
                .map(|at| {
                    let [a, b, c] = [0, 10, 20].map(|own| (100 * round + own + at) as f32);
                    3.0 * (a + b + c + a)
                })
                .collect();
            // what is queued on any of them follows the graph
            for twice in &found.0 {
                assert_eq!(twice.to_vec::<f32>().unwrap(), expected, "{way:?}, round {round}");
            }
            let rows: Vec<f32> = expected.chunks(3).flat_map(|row| row.repeat(3)).collect();
            assert_eq!(found.1.to_vec::<f32>().unwrap(), rows, "{way:?}, round {round}");
        }
        no_findings(&format!("{way:?}"));
    }
    // a capture that fails leaves the streams as they were
    let failed: Result<(Graph, ())> = Graph::capture_over(&gpus, || devices[1].synchronize());
    assert!(failed.is_err());
    let twice = [gpus[0].clone(), gpus[0].clone()];
    assert!(matches!(Graph::capture_over(&twice, || Ok(())), Err(Error::Unsupported { .. })));
    assert!(matches!(Graph::capture_over(&[], || Ok(())), Err(Error::Unsupported { .. })));
    for device in &devices {
        assert_eq!(Tensor::full(2.5, [1], device).unwrap().to_vec::<f32>().unwrap(), [2.5]);
    }
    no_findings("failed captures");
}

#[test]
fn many_requests_share_the_parts() {
    in_own_process!();
    let devices = three_devices();
    let usual = LoadOptions { dtype: DType::F32, ..LoadOptions::for_device(&devices[0]) };
    let expected = together(50, &load("qwen3-vl/tiny", &Placement::one(&devices[0], 3), usual));
    assert_eq!(expected.len(), 3);
    let rows = Placement::rows(&devices[1..], 3, 0).unwrap();
    assert_eq!(together(50, &load("qwen3-vl/tiny", &rows, usual)), expected);
    no_findings("a batch");
}
