//! Qwen3-VL, compared with the reference's results: two small random-weight checkpoints in the published layout, `tiny`
//! in the repository and `wide` (32 layers, 32 heads) beside it where it is there (`QWEN3_VL_WIDE` names another place).

use pascaline::{Error, Result};
use qwen3_vl::cases::{self, Run};
use qwen3_vl::chat::Message;
use qwen3_vl::config::seeing;
use qwen3_vl::generate::user_turn;
use qwen3_vl::preprocess::{Bounds, Patches, Picture, smart_resize};
use qwen3_vl::{ControlTokens, Processor, Prompt, Visual, pictures};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The checkpoints to test, each with its runs.
fn checkpoints() -> Vec<(Processor, Vec<Run>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = vec![root.join("fixtures/qwen3-vl/tiny")];
    let wide = std::env::var_os("QWEN3_VL_WIDE")
        .map_or(root.join("../../shared/fixtures/qwen3-vl/wide"), PathBuf::from);
    match wide.exists() {
        true => found.push(wide),
        false => drop(writeln!(
            std::io::stderr(),
            "SKIPPED: the wide checkpoint ({} is not there)",
            wide.display()
        )),
    }
    let load = |dir: &PathBuf| (qwen3_vl::processor(dir).unwrap(), cases::load(dir).unwrap().unwrap());
    found.iter().map(load).collect()
}

/// Every run, with its prompt as prepared from its question and picture files.
fn prepared() -> Vec<(String, Run, Prompt)> {
    let mut prepared = Vec::new();
    for (processor, runs) in checkpoints() {
        for run in runs {
            let visuals: Vec<_> = run.visuals().unwrap();
            let messages = [user_turn(&visuals, &run.question)];
            if run.video.is_none() {
                // that of a video is given with its timestamps, which come later
                assert_eq!(processor.render(&messages, &[]).unwrap(), run.prompt, "{}", run.name);
            }
            let prompt = processor.prepare(&messages, &visuals).unwrap();
            prepared.push((
                format!("{} of {} layers", run.name, processor.config.text.num_hidden_layers),
                run,
                prompt,
            ));
        }
    }
    assert!(prepared.len() >= 8);
    prepared
}

#[test]
fn tokens_grids_and_positions_are_the_references() {
    for (name, run, prompt) in prepared() {
        assert_eq!(prompt.ids, run.input_ids().unwrap(), "{name}");
        let grids: Vec<_> = prompt.patches.iter().map(|patches| patches.grid).collect();
        assert_eq!(grids, run.grids().unwrap(), "{name}");
        if !run.has("position_ids") {
            assert_eq!(run.images.len(), 0, "{name}: only text runs go without position_ids");
            continue;
        }
        let flat = run.tensors.read_i64("position_ids").unwrap();
        for (axis, want) in flat.chunks(prompt.ids.len()).enumerate() {
            let found: Vec<i64> =
                prompt.positions.axes.iter().map(|position| position[axis].into()).collect();
            assert_eq!(found, want, "{name}, axis {axis}");
        }
    }
}

#[test]
fn pixels_are_the_references() {
    let mut compared = 0;
    for (name, run, prompt) in prepared() {
        let Some(want) = run.pixel_values().unwrap() else { continue };
        let found: Vec<f32> = prompt.patches.iter().flat_map(|patches| &patches.values).copied().collect();
        assert_eq!(found.len(), want.len(), "{name}");
        let differing = found.iter().zip(&want).filter(|(found, want)| found != want).count();
        assert_eq!(differing, 0, "{name}: {differing} of {} values differ", want.len());
        compared += want.len();
    }
    assert!(compared > 0);
}

#[test]
fn text_is_decoded_as_the_reference_does() {
    for (processor, runs) in checkpoints() {
        for run in runs {
            let Some(text) = &run.generated_text else { continue };
            assert_eq!(processor.tokenizer.decode(&run.generated_ids), *text, "{}", run.name);
        }
    }
}

/// By hand from the reference's definition with the published limits.
#[test]
fn sizes_are_rounded_as_the_reference_does() -> Result<()> {
    let bounds = Bounds { factor: 32, min_pixels: 65_536, max_pixels: 16_777_216, frames: 1, group: 1 };
    for (size, want) in [
        ((512, 512), (512, 512)),
        ((496, 528), (512, 512)), // 15.5 → 16 and 16.5 → 16: halves go to the even neighbour
        ((560, 592), (576, 576)), // 17.5 → 18 and 18.5 → 18
        ((8192, 8192), (4096, 4096)), // above the limit
        ((4100, 4200), (4032, 4128)), // rounds to 4096 × 4192, above the limit, so floor after scaling
        ((10, 10), (256, 256)),   // small images grow
        ((1, 200), (32, 3648)),   // the limit of the aspect ratio
        ((100, 300), (160, 448)), // ceil after scaling
    ] {
        assert_eq!(smart_resize("test", size, bounds)?, want, "{size:?}");
    }
    for size in [(1, 201), (201, 1), (0, 5)] {
        assert!(matches!(smart_resize("test", size, bounds), Err(Error::Image { .. })), "{size:?}");
    }
    let none = Bounds { frames: 0, ..bounds };
    assert!(matches!(smart_resize("test", (512, 512), none), Err(Error::Image { .. })));
    // what is rounded to a limit is inside it
    assert_eq!(smart_resize("test", (520, 504), Bounds { max_pixels: 512 * 512, ..bounds })?, (512, 512));
    assert_eq!(smart_resize("test", (250, 262), bounds)?, (256, 256));
    Ok(())
}

#[test]
fn patches_must_be_whole_tokens() -> Result<()> {
    let vision = checkpoints().remove(0).0.config.vision.unwrap().sizes();
    let tokens =
        |grid: [usize; 3], values: usize| Patches { grid, values: vec![0.0; values] }.tokens(&vision);
    let len = vision.patch_len;
    assert_eq!(tokens([2, 4, 6], 48 * len)?, 12);
    for (grid, values) in [
        ([0, 2, 2], 0),
        ([1, 0, 2], 0),
        ([1, 2, 0], 0),
        ([1, 3, 2], 6 * len),
        ([1, 2, 3], 6 * len),
        ([1, 2, 2], 4 * len - 1),
        ([usize::MAX, 2, 2], 4 * len),
    ] {
        assert!(matches!(tokens(grid, values), Err(Error::Shape { .. })), "{grid:?} of {values}");
    }
    Ok(())
}

/// A control token that a text spells is text, if that is asked for.
#[test]
fn control_tokens_in_texts_are_text() -> Result<()> {
    let (processor, _) = checkpoints().remove(0);
    let messages = [Message::user(0, "a<|im_end|>b")];
    let tokenizer = &processor.tokenizer;
    let ends = |spelled: ControlTokens| -> Result<(usize, bool)> {
        let ids = processor.prepare_with(&messages, &[], &[], spelled)?.ids;
        let is_end = |id: &&u32| tokenizer.control(**id).as_deref() == Some("<|im_end|>");
        Ok((ids.iter().filter(is_end).count(), tokenizer.decode(&ids).contains("a<|im_end|>b")))
    };
    assert_eq!(ends(ControlTokens::Recognized)?, (2, false));
    assert_eq!(ends(ControlTokens::AsText)?, (1, true));
    Ok(())
}

/// A video's groups are runs of their own, and there are as many as its grid says.
#[test]
fn runs_of_pads_are_counted() -> Result<()> {
    let (processor, _) = checkpoints().remove(0);
    let pad = seeing(&processor.config).unwrap().image_token_id;
    assert_eq!(processor.positions(&[pad], [[1, 2, 2]].into_iter())?.axes, [[0; 3]]);
    let found = processor.positions(&[pad], [[2, 2, 2]].into_iter());
    assert!(matches!(found, Err(Error::Prompt { .. })), "{found:?}");
    Ok(())
}

#[test]
fn a_video_is_a_folder_of_pictures() -> Result<()> {
    let png = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/qwen3-vl/tiny/cases/small.png");
    let folder = tempfile::tempdir().unwrap();
    let refused = |rate: f64| matches!(Visual::video(folder.path(), rate), Err(Error::Image { .. }));
    std::fs::write(folder.path().join("notes.txt"), "no picture").unwrap();
    assert!(refused(1.0));
    for name in ["b.PNG", "a.png"] {
        std::fs::copy(&png, folder.path().join(name)).unwrap();
    }
    match Visual::video(folder.path(), 0.5)? {
        Visual::Video { frames, rate, .. } => assert_eq!((frames.len(), rate), (2, 0.5)),
        other => panic!("{other:?}"),
    }
    for rate in [0.0, -1.0, f64::INFINITY, f64::NAN] {
        assert!(refused(rate), "{rate}");
    }
    Ok(())
}

#[test]
fn a_video_is_announced_by_its_times() -> Result<()> {
    let (processor, _) = checkpoints().remove(0);
    let frame = |shade: u8| Picture { height: 64, width: 96, pixels: vec![shade; 64 * 96 * 3] };
    let frames = vec![frame(0), frame(100), frame(200)];
    let video = Visual::Video { name: "clip".into(), frames, rate: 2.0 };
    let messages = [Message { role: "user".into(), content: vec![video.part()] }];
    let prompt = processor.prepare(&messages, &[video])?;
    // three frames are two groups, the last frame repeated; 64 × 96 is below the fewest pixels of a video
    let [groups, rows, cols] = prompt.patches[0].grid;
    assert_eq!(groups, 2);
    assert!(groups * 2 * rows * cols * 256 >= pictures(&processor).unwrap().videos.min_pixels);
    let pads = seeing(&processor.config).unwrap().video_token_id;
    assert_eq!(prompt.ids.iter().filter(|&&id| id == pads).count(), groups * rows * cols / 4);
    let text = processor.tokenizer.decode(&prompt.ids);
    assert!(text.contains("<0.2 seconds>") && text.contains("<1.0 seconds>"), "{text}");
    // the second group starts anew after the text between them
    let first: Vec<_> =
        prompt.ids.iter().enumerate().filter(|(_, id)| **id == pads).map(|(at, _)| at).collect();
    let second = first[rows * cols / 4];
    let [t, h, w] = prompt.positions.axes[second];
    assert!(t == h && h == w && prompt.positions.axes[second - 1] == [t - 1; 3]);
    // both frames of a patch differ in the first group and are equal in the second
    let patch = &prompt.patches[0].values[..1536];
    assert!(patch[..256].iter().all(|&v| v == -1.0) && patch[256..512].iter().all(|&v| v > -1.0));
    let last = &prompt.patches[0].values[prompt.patches[0].values.len() - 1536..];
    assert_eq!(last[..256], last[256..512]);
    Ok(())
}

#[test]
fn placeholders_and_pictures_must_fit() {
    let (processor, _) = checkpoints().remove(0);
    let picture = || Visual::from(Picture { height: 40, width: 40, pixels: vec![9; 40 * 40 * 3] });
    for (messages, visuals) in [
        (vec![Message::user(2, "two")], vec![picture()]),
        (vec![Message::user(0, "none")], vec![picture()]),
        (vec![Message::user(0, "a forged <|image_pad|>")], vec![]),
        (vec![Message::user(1, "a forged <|video_pad|>")], vec![picture()]),
    ] {
        let found = processor.prepare(&messages, &visuals);
        assert!(matches!(found, Err(Error::Prompt { .. })), "{messages:?}: {found:?}");
    }
}
