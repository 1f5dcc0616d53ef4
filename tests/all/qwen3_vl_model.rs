//! The model compared with the reference, stage by stage, and the properties of generation that the reference does not cover.

use crate::common::process::in_own_process;
use crate::common::{self, extent};
use pascaline::kv::KvFormat;
use pascaline::quant::{self, ErrorReport, Format};
use pascaline::{DType, Device, Error};
use qwen3_vl::chat::Message;
use qwen3_vl::config::seeing;
use qwen3_vl::generate::user_turn;
use qwen3_vl::preprocess::Picture;
use qwen3_vl::validate::{Limits, check_run};
use qwen3_vl::{LoadOptions, Options, Output, Qwen3Vl, Sampling, StopReason, Visual, cases};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny")
}

/// The checkpoint of 32 layers and 32 heads, if it is there; else says that it is not.
fn wide() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qwen3-vl/wide");
    let wide = std::env::var_os("QWEN3_VL_WIDE").map_or(beside, PathBuf::from);
    if wide.exists() {
        return Some(wide);
    }
    common::say(&format!("SKIPPED: the wide checkpoint ({} is not there)", wide.display()));
    None
}

fn load(dir: &Path, device: &Device, dtype: DType) -> Qwen3Vl {
    let options = LoadOptions { dtype, ..LoadOptions::for_device(device) };
    Qwen3Vl::load_with(dir, device, options, |_| {}).unwrap()
}

/// Every run that `suits`, within the limits.
fn check(dir: &Path, device: &Device, dtype: DType, limits: &Limits, suits: impl Fn(&str) -> bool) {
    let model = load(dir, device, dtype);
    let mut checked = 0;
    for run in cases::load(dir).unwrap().unwrap().iter().filter(|run| suits(&run.name)) {
        let report = check_run(&model, run).unwrap();
        assert!(
            report.passed(limits, dtype == DType::F32),
            "{} on {device} in {dtype}: {report:#?}",
            run.name
        );
        assert!(report.prompt_ids_equal && !report.stages.is_empty());
        checked += 1;
    }
    assert!(checked > 0);
}

#[test]
fn tiny_on_the_cpu() {
    check(&tiny(), &Device::Cpu, DType::F32, &Limits::F32, |_| true);
    check(&tiny(), &Device::Cpu, DType::F16, &Limits::F16, |_| true);
}

#[test]
fn wide_on_the_cpu() {
    if let Some(wide) = wide() {
        check(&wide, &Device::Cpu, DType::F32, &Limits::F32, |_| true);
        check(&wide, &Device::Cpu, DType::F16, &Limits::F16, |name| name == "one_image");
    }
}

/// All runs take minutes on the virtual GPU, so there only the smallest are checked.
#[test]
fn on_a_cuda_device() {
    in_own_process!();
    let device = common::cuda_device();
    if format!("{device}").contains("Virtual") {
        check(&tiny(), &device, DType::F32, &Limits::F32_GPU, |name| name == "small_image");
        return;
    }
    for dir in [Some(tiny()), wide()].into_iter().flatten() {
        check(&dir, &device, DType::F32, &Limits::F32_GPU, |_| true);
        check(&dir, &device, DType::F16, &Limits::F16, |_| true);
    }
}

/// The logits of a text with matrices in `format`, against those in f32.
fn quantized_logits(device: &Device, format: Format) -> ErrorReport {
    let logits = |quantize, device: &Device| {
        let options = LoadOptions { dtype: DType::F32, quantize, ..LoadOptions::for_device(device) };
        let model = Qwen3Vl::load_with(tiny(), device, options, |_| {}).unwrap();
        let ids: Vec<u32> = (1..20).collect();
        model.trace(&ids, &[], &[], |_, _| {}).unwrap().to_vec::<f32>().unwrap()
    };
    ErrorReport::new(&logits(None, &Device::Cpu), &logits(Some(format), device))
}

/// Weights and activations in 8 bits lose 0.4 % each in the root mean square of a product of normal values, weights in 6,
/// 5 and 4 bits 1.7, 3.5 and 8 % (the formats' errors, which tests/quant.rs compares with the published ones). Errors of one product
/// after the other add up like independent ones: with the 13 products between a token and its logits in three layers,
/// 2, 6, 13 and 29 %. Twice that is allowed, as norms and softmax may amplify; a wrong scale or a swapped block gives 100 %.
#[test]
fn quantized_matrices_change_logits_as_much_as_their_formats_lose() {
    in_own_process!();
    for device in [Device::Cpu, common::cuda_device()] {
        for (format, limit) in [
            (Format::Q8_0, 0.04),
            (Format::Q6K, 0.12),
            (Format::Q5K, 0.26),
            (Format::Q4_0, 0.58),
            (Format::Q4K, 0.58),
            (Format::Iq4Nl, 0.58),
            (Format::Iq4Xs, 0.58),
            (Format::Mxfp4, 0.82), // it loses 11 %
        ] {
            let report = quantized_logits(&device, format);
            common::say(&format!("{} on {device}: {report}", quant::name(format)));
            assert!(report.relative_rms <= limit, "{} on {device}: {report}", quant::name(format));
            assert!(report.relative_rms > 1e-5, "nothing was quantised");
        }
    }
}

/// A decoded token reads as many bytes as the format takes, so a model fits where its bytes do.
#[test]
fn a_quantized_model_takes_as_little_as_its_format() {
    let bytes = |quantize| {
        let options = LoadOptions { dtype: DType::F32, quantize, ..LoadOptions::for_device(&Device::Cpu) };
        Qwen3Vl::load_with(tiny(), &Device::Cpu, options, |_| {}).unwrap().weight_bytes() as f64
    };
    let (plain, q8_0, q4_0) = (bytes(None), bytes(Some(Format::Q8_0)), bytes(Some(Format::Q4_0)));
    assert!(
        (q8_0 / plain - 8.5 / 32.0).abs() < 1e-3 && (q4_0 / plain - 4.5 / 32.0).abs() < 1e-3,
        "{q8_0} {q4_0} {plain}"
    );
}

fn picture(name: &str) -> Visual {
    Visual::image(&tiny().join("cases").join(name)).unwrap()
}

fn options(max_new_tokens: usize) -> Options {
    Options { max_new_tokens, ..Options::default() }
}

fn answer(model: &Qwen3Vl, visuals: &[Visual], text: &str, options: &Options) -> Output {
    model.generate(visuals, text, options).unwrap()
}

/// Logits and so tokens do not depend on how a prompt is cut into passes, images included.
#[test]
fn a_prompt_in_pieces_gives_the_same_answer() {
    let visuals = [picture("wide.png"), picture("square.png")];
    let whole = answer(&load(&tiny(), &Device::Cpu, DType::F32), &visuals, "Compare.", &options(12));
    for tokens_per_pass in [1, 7, 20] {
        let pieces = LoadOptions { tokens_per_pass, ..LoadOptions::for_device(&Device::Cpu) };
        let model = Qwen3Vl::load_with(tiny(), &Device::Cpu, pieces, |_| {}).unwrap();
        let found = answer(&model, &visuals, "Compare.", &options(12));
        assert_eq!(found.ids, whole.ids, "{tokens_per_pass} tokens per pass");
    }
}

fn with_cache(dir: &Path, device: &Device, cache: KvFormat) -> Qwen3Vl {
    let options = LoadOptions { dtype: DType::F32, cache, ..LoadOptions::for_device(device) };
    Qwen3Vl::load_with(dir, device, options, |_| {}).unwrap()
}

/// The formats, and the least that each must move the logits: if it moves them less, nothing was rounded.
const CACHES: [(KvFormat, f64); 4] =
    [(KvFormat::F16, 1e-5), (KvFormat::Float16(4), 5e-6), (KvFormat::BF16, 1e-4), (KvFormat::Q8_0, 1e-4)];

/// Every stage of a run with each cache, within the limits for what the cache loses.
fn check_caches(dir: &Path, device: &Device, limits: Limits, suits: impl Fn(&str) -> bool) {
    let layers = load(dir, &Device::Cpu, DType::F32).config().text.num_hidden_layers;
    for (cache, least) in CACHES {
        let (model, limits) = (with_cache(dir, device, cache), limits.with_cache(cache, layers));
        let mut checked = 0;
        for run in cases::load(dir).unwrap().unwrap().iter().filter(|run| suits(&run.name)) {
            let report = check_run(&model, run).unwrap();
            assert!(report.passed(&limits, false), "{} with a cache in {cache}: {report:#?}", run.name);
            let Some(worst) = report.worst("logits") else { continue }; // of the largest there are only tokens
            let equal =
                report.generated_ids.iter().zip(&run.generated_ids).take_while(|(a, b)| a == b).count();
            common::say(&format!(
                "{} with a cache in {cache} on {device}: logits {worst:.1e} of {:.1e}, {equal} of {} tokens",
                run.name,
                limits.stage,
                run.generated_ids.len()
            ));
            assert!(worst >= least, "{} with a cache in {cache}: {worst:e}", run.name);
            checked += 1;
        }
        assert!(checked > 0);
    }
}

#[test]
fn rounded_caches_stay_close_on_the_cpu() {
    if !extent::all() {
        extent::left_out("runs of the small checkpoints with each format of the cache on the CPU but two");
    }
    let chosen = |name: &str| extent::all() || ["text", "one_image"].contains(&name);
    check_caches(&tiny(), &Device::Cpu, Limits::F32, chosen);
    if let Some(wide) = wide().filter(|_| extent::all()) {
        check_caches(&wide, &Device::Cpu, Limits::F32, |name| name == "one_image");
    }
}

#[test]
fn rounded_caches_stay_close_on_a_cuda_device() {
    in_own_process!();
    let device = common::cuda_device();
    let virtually = format!("{device}").contains("Virtual");
    check_caches(&tiny(), &device, Limits::F32_GPU, |name| !virtually || name == "small_image");
}

#[test]
fn a_cache_takes_as_little_as_its_format() {
    let bytes = |cache| {
        answer(&with_cache(&tiny(), &Device::Cpu, cache), &[], "Hello?", &options(4)).statistics.cache_bytes
    };
    let whole = bytes(KvFormat::F32);
    assert_eq!((2 * bytes(KvFormat::F16), 2 * bytes(KvFormat::BF16)), (whole, whole));
    assert_eq!(bytes(KvFormat::Q8_0) * 64, whole * 17); // 8.5 of 32 bits
    let refused = LoadOptions { cache: KvFormat::Float16(9), ..LoadOptions::for_device(&Device::Cpu) };
    let refused = Qwen3Vl::load_with(tiny(), &Device::Cpu, refused, |_| {}).err();
    assert!(matches!(refused, Some(Error::Unsupported { argument: "cache", .. })), "{refused:?}");
}

/// On a GPU the pass of a token is replayed; tokens are those of single launches, whatever chooses them, and beyond the
/// angles that are made at a time.
#[test]
fn a_replayed_pass_gives_the_same_answer() {
    in_own_process!();
    let device = common::cuda_device();
    for cache in [KvFormat::F32, KvFormat::BF16, KvFormat::Q8_0] {
        replays(&with_cache(&tiny(), &device, cache));
    }
}

fn replays(model: &Qwen3Vl) {
    for (sampling, count) in [
        (Sampling::GREEDY, 5),
        (Sampling { temperature: 1.5, seed: 3, ..Sampling::GREEDY }, 5),
        (Sampling { presence_penalty: 1.0, ..Sampling::GREEDY }, 4),
    ] {
        let run = |graph| {
            let options = Options { sampling: sampling.clone(), stop_at_eos: false, graph, ..options(count) };
            answer(model, &[], "Hello?", &options)
        };
        let (replayed, single) = (run(true), run(false));
        assert_eq!(replayed.ids, single.ids, "{sampling:?}");
        let launches = replayed.statistics.graph_launches.expect("a graph");
        let layers = model.config().text.num_hidden_layers;
        assert!((6 * layers..9 * layers + 6).contains(&launches), "{launches} launches");
        assert_eq!(single.statistics.graph_launches, None);
    }
}

/// Tokens that were guessed and checked several at a time are those that come one at a time, whatever chooses them. The
/// session holds none of the guesses that were wrong.
#[test]
fn guesses_change_no_token() {
    in_own_process!();
    let choices = [
        (Sampling::GREEDY, "One two three four. One two three"),
        (Sampling { temperature: 1e-4, seed: 5, ..Sampling::GREEDY }, "a b a b a b a b"),
        (Sampling { frequency_penalty: 0.01, ..Sampling::GREEDY }, "Hello hello hello hello"),
    ];
    // on the CPU beyond the angles that are made at a time
    for (device, count, choices) in
        [(Device::Cpu, 300, &choices[..]), (common::cuda_device(), 20, &choices[..2])]
    {
        let model = load(&tiny(), &device, DType::F32);
        for (sampling, text) in choices {
            let prompt = model.processor.prepare(&[user_turn(&[], text)], &[]).unwrap();
            let run = |prompt_lookup, graph| {
                let sampling = sampling.clone();
                let options =
                    Options { sampling, stop_at_eos: false, prompt_lookup, graph, ..options(count) };
                let mut session = model.session().unwrap();
                let go_on = |_: &str| ControlFlow::Continue(());
                let first = model.generate_from(&mut session, &prompt, &options, go_on).unwrap();
                let again = model.generate_from(&mut session, &prompt, &options, go_on).unwrap();
                assert_eq!((&again.ids, again.statistics.prefill_tokens), (&first.ids, 1));
                first
            };
            let one = run(false, true);
            assert_eq!(one.statistics.guessed_tokens, 0);
            for graph in [true, false] {
                let several = run(true, graph);
                assert_eq!((&several.ids, &several.text), (&one.ids, &one.text), "{device}, {text}");
                assert!(several.statistics.guessed_tokens > 0, "{device}, {text}");
                assert!(several.statistics.right_guesses <= several.statistics.guessed_tokens);
            }
        }
    }
}

/// Tokens in the cache are not computed again, and the answer is as without a cache: for a longer conversation, the
/// same one, another picture, another text, a shorter one.
#[test]
fn a_conversation_continues_in_its_cache() {
    let model = load(&tiny(), &Device::Cpu, DType::F32);
    let mut session = model.session().unwrap();
    let conversation = |turns: &[(&[Visual], &str)]| -> Vec<Message> {
        let mut messages = Vec::new();
        for (visuals, text) in turns {
            messages.push(user_turn(visuals, text));
            messages.push(Message::text("assistant", "Yes."));
        }
        messages.pop();
        messages
    };
    let (square, wide) = (vec![picture("square.png")], vec![picture("wide.png")]);
    let mut cached = Vec::new();
    for turns in [
        vec![(&square[..], "First?")],
        vec![(&square, "First?"), (&wide, "Second?")],
        vec![(&square, "First?"), (&wide, "Second?"), (&[], "Third?")],
        vec![(&square, "First?"), (&wide, "Second?"), (&[], "Third?")],
        vec![(&square, "First?"), (&square, "Second?")],
        vec![(&wide, "First?")],
        vec![(&[], "First?")],
    ] {
        let visuals: Vec<Visual> = turns.iter().flat_map(|(visuals, _)| visuals.iter().cloned()).collect();
        let prompt = model.processor.prepare(&conversation(&turns), &visuals).unwrap();
        let go_on = |_: &str| ControlFlow::Continue(());
        let kept = model.generate_from(&mut session, &prompt, &options(6), go_on).unwrap();
        let fresh = model.generate_from(&mut model.session().unwrap(), &prompt, &options(6), go_on).unwrap();
        assert_eq!(kept.ids, fresh.ids, "{} turns", turns.len());
        assert_eq!(fresh.statistics.prefill_tokens, prompt.ids.len());
        cached.push(prompt.ids.len() - kept.statistics.prefill_tokens);
    }
    assert_eq!(cached[0], 0);
    assert!(cached[1] > 10 && cached[2] > cached[1], "{cached:?}");
    assert!(cached[3] > cached[2], "{cached:?}"); // all but the last token
    assert!(cached[4] < cached[3] && cached[4] > 10, "{cached:?}"); // another second picture
    assert!(cached[5] < 6 && cached[6] < 6, "{cached:?}"); // the very first picture is another one
}

/// The same frames at another rate: the texts between them differ, and the video is seen again as a whole.
#[test]
fn a_video_is_kept_whole_or_not_at_all() {
    let model = load(&tiny(), &Device::Cpu, DType::F32);
    let mut session = model.session().unwrap();
    let frame = |shade| Picture { height: 64, width: 96, pixels: vec![shade; 64 * 96 * 3] };
    let frames: Vec<_> = [10, 200, 90, 30].map(frame).to_vec();
    for (rate, text, kept) in [(2.0, "One?", false), (2.0, "Two?", true), (0.5, "Two?", false)] {
        let video = [Visual::Video { name: "clip".into(), frames: frames.clone(), rate }];
        let prompt = model.processor.prepare(&[user_turn(&video, text)], &video).unwrap();
        let go_on = |_: &str| ControlFlow::Continue(());
        let found = model.generate_from(&mut session, &prompt, &options(6), go_on).unwrap();
        let fresh = model.generate_from(&mut model.session().unwrap(), &prompt, &options(6), go_on).unwrap();
        assert_eq!(found.ids, fresh.ids, "{rate} {text}");
        let cached = prompt.ids.len() - found.statistics.prefill_tokens;
        let pads =
            prompt.ids.iter().filter(|id| **id == seeing(model.config()).unwrap().video_token_id).count();
        assert_eq!(cached > pads, kept, "{cached} of {}", prompt.ids.len());
    }
}

#[test]
fn text_comes_in_whole_characters_and_ends_where_it_should() {
    let model = load(&tiny(), &Device::Cpu, DType::F32);
    let visuals = [picture("square.png")];
    let prompt =
        model.processor.prepare(&[user_turn(&visuals, "What colour is the circle?")], &visuals).unwrap();
    let run = |options: &Options, stop_after: usize| {
        let mut pieces: Vec<String> = Vec::new();
        let output = model.generate_from(&mut model.session().unwrap(), &prompt, options, |piece| {
            pieces.push(piece.to_owned());
            if pieces.len() == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let output = output.unwrap();
        assert_eq!(pieces.concat(), output.text);
        (pieces.len(), output)
    };
    let (pieces, whole) = run(&options(24), usize::MAX);
    assert_eq!(whole.stop_reason, StopReason::MaxNewTokens);
    assert_eq!(whole.text, model.processor.tokenizer.decode(&whole.ids));
    assert!(pieces > 5);

    // "ne0…\u{11}…\u{12} to1…": a stop string that is cut by tokens
    let (_, stopped) =
        run(&Options { stop: vec!["absent".into(), "\u{12} to1".into()], ..options(24) }, usize::MAX);
    assert_eq!(stopped.stop_reason, StopReason::StopString);
    assert!(
        whole.text.starts_with(&stopped.text) && whole.text[stopped.text.len()..].starts_with("\u{12} to1")
    );
    assert!(stopped.ids.len() < whole.ids.len());

    let (_, cancelled) = run(&options(24), 3);
    assert_eq!(cancelled.stop_reason, StopReason::Cancelled);

    let (_, none) = run(&options(0), usize::MAX);
    assert!(none.ids.is_empty() && none.text.is_empty());
}

#[test]
fn a_stop_token_ends_the_answer() {
    let mut model = load(&tiny(), &Device::Cpu, DType::F32);
    model.processor.generation.eos_token_ids = vec![7];
    let run = |stop_at_eos| {
        answer(
            &model,
            &[],
            "Count the warps in a block of 256 threads.",
            &Options { stop_at_eos, ..options(24) },
        )
    };
    let ended = run(true);
    assert_eq!((ended.stop_reason, ended.ids.last()), (StopReason::Eos, Some(&7)));
    assert!(run(false).ids.len() == 24 && ended.ids.len() < 24);
}

#[test]
fn a_seed_fixes_the_answer() {
    let model = load(&tiny(), &Device::Cpu, DType::F32);
    let run = |seed| {
        let sampling = Sampling { temperature: 2.0, seed, ..Sampling::GREEDY };
        answer(&model, &[], "Hello?", &Options { sampling, stop_at_eos: false, ..options(20) }).ids
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// A prompt that `receive` ends in its middle stays in the cache as far as it came, and the next goes on from there.
#[test]
fn a_prompt_goes_on_where_it_was_ended() {
    const PASS: usize = 8;
    let pieces = LoadOptions { tokens_per_pass: PASS, ..LoadOptions::for_device(&Device::Cpu) };
    let model = Qwen3Vl::load_with(tiny(), &Device::Cpu, pieces, |_| {}).unwrap();
    let text = "Count the warps in a block of 256 threads, and say how many there are.";
    for visuals in [vec![], vec![picture("square.png")]] {
        let prompt = model.processor.prepare(&[user_turn(&visuals, text)], &visuals).unwrap();
        let whole = answer(&model, &visuals, text, &options(6));
        // a call before each image, and one before each pass
        let calls = visuals.len() + prompt.ids.len().div_ceil(PASS);
        assert!(calls > 4);
        for last in 0..calls {
            let mut session = model.session().unwrap();
            let mut call = 0;
            let ended = model.generate_from(&mut session, &prompt, &options(6), |_| {
                call += 1;
                if call > last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            let ended = ended.unwrap();
            assert_eq!(
                (ended.stop_reason, ended.ids.len()),
                (StopReason::Cancelled, 0),
                "after {last} calls"
            );
            let go_on = |_: &str| ControlFlow::Continue(());
            let found = model.generate_from(&mut session, &prompt, &options(6), go_on).unwrap();
            assert_eq!(found.ids, whole.ids, "after {last} calls");
            if visuals.is_empty() {
                assert_eq!(found.statistics.prefill_tokens, prompt.ids.len() - last * PASS);
            }
        }
    }
}

#[test]
fn an_answer_ends_with_the_context() {
    let mut model = load(&tiny(), &Device::Cpu, DType::F32);
    let whole = answer(&model, &[], "Hello?", &Options { stop_at_eos: false, ..options(8) });
    let prompt = whole.statistics.prompt_tokens;
    model.processor.config.text.max_position_embeddings = prompt + 5;
    let options = Options { stop_at_eos: false, ..options(8) };
    let cut = answer(&model, &[], "Hello?", &options);
    assert_eq!((cut.stop_reason, &cut.ids[..]), (StopReason::ContextFull, &whole.ids[..5]));
    model.processor.config.text.max_position_embeddings = prompt;
    let found = model.generate(&[], "Hello?", &options);
    assert!(matches!(found, Err(Error::Prompt { .. })), "{found:?}");
}

#[test]
fn a_prompt_beyond_the_models_length_is_refused() {
    let model = load(&tiny(), &Device::Cpu, DType::F32);
    let found = model.generate(&[], &"word ".repeat(5000), &options(1));
    assert!(matches!(found, Err(Error::Prompt { .. })), "{found:?}");
}
