//! Pictures, videos and models as people have them: budgets of tokens, formats, short names, what is in the cache.

use crate::common::program::{pascaline, run, stderr, stdout};
use image::codecs::gif::GifEncoder;
use image::{Delay, Frame, ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/qwen3-vl/tiny");

fn picture(folder: &Path, name: &str, [width, height]: [u32; 2]) -> PathBuf {
    let path = folder.join(name);
    let shade = |x: u32, y: u32| Rgb([(x * 7 % 256) as u8, (y * 5 % 256) as u8, 90]);
    RgbImage::from_fn(width, height, shade).save(&path).expect("a picture");
    path
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// The report of an answer of one token.
fn generated(arguments: &[&str]) -> (Value, String) {
    let usual =
        ["generate", "-m", TINY, "--device", "cpu", "-p", "What is it?", "-n", "1", "--greedy", "--json"];
    let output = run(&[&usual, arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", stderr(&output));
    (serde_json::from_str(&stdout(&output)).expect("JSON"), stderr(&output))
}

fn prompt_tokens(report: &Value) -> usize {
    report["prompt_ids"].as_array().expect("ids").len()
}

#[test]
fn media_pictures_are_shrunk_to_their_budget_and_this_is_said_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let photograph = picture(folder.path(), "photo.png", [640, 480]);
    let photograph = text(&photograph);
    let (without, _) = generated(&[]);
    let tokens = |limits: &str| {
        let (report, said) = generated(&["--image", photograph, "--image-tokens", limits]);
        (prompt_tokens(&report) - prompt_tokens(&without), said)
    };
    // 640 × 480 is 300 tokens of 32 × 32; two more are around them
    let (whole, said) = tokens("1,400");
    assert!(!said.contains("shrunk"), "{said}");
    let (shrunk, said) = tokens("1,100");
    assert_eq!(said.matches("640 × 480 pixels shrunk to 352 × 256, 88 tokens").count(), 1, "{said}");
    assert_eq!((whole, shrunk), (302, 90));
    let (enlarged, _) = tokens("400,500");
    assert!((400..=502).contains(&enlarged), "{enlarged}");
    for wrong in ["0", "200,100", "a,b", "1,2,3", ""] {
        let output = run(&["generate", "-m", TINY, "-p", "x", "--image-tokens", wrong]);
        assert_eq!(output.status.code(), Some(2), "{wrong}: {}", stderr(&output));
    }
}

#[test]
fn media_a_photograph_has_1280_tokens_at_most_on_every_small_card() {
    for (card, most) in [("mx330", f64::INFINITY), ("gtx1060", 10.0), ("gtx1070", 10.0), ("gtx1080ti", 10.0)]
    {
        let output = run(&["fit", "--card", card, "--image", "4032x3024", "--json", "-q"]);
        assert_eq!(output.status.code(), Some(0), "{card}: {}", stderr(&output));
        let plan: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        let patches = plan["patches"].as_u64().expect("patches");
        assert!((4 * 1100..=4 * 1280).contains(&patches), "{card}: {patches}");
        let rows = plan["rows"].as_array().expect("rows");
        let first = |row: &Value| row["estimate"]["first_token"].as_f64().unwrap_or(f64::INFINITY);
        let row = rows.iter().find(|row| row["model"] == "2B" && row["matrices"] == "Q4_K_M").expect("a row");
        assert!(row["fits"] == true && first(row) <= most, "{card}: {row}");
    }
    let output =
        run(&["fit", "--card", "gtx1060", "--image", "4032x3024", "--image-tokens", "256", "--json", "-q"]);
    let plan: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert!(plan["patches"].as_u64() <= Some(4 * 256), "{plan}");
}

#[test]
fn media_formats_of_one_picture_give_one_answer_and_others_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let flat = RgbImage::from_pixel(64, 96, Rgb([200, 40, 40]));
    let ids: Vec<Value> = [("png", ImageFormat::Png), ("bmp", ImageFormat::Bmp), ("tiff", ImageFormat::Tiff)]
        .into_iter()
        .map(|(name, format)| {
            let path = folder.path().join(format!("a.{name}"));
            flat.save_with_format(&path, format).expect("a picture");
            let whole = fs::read(&path).expect("a file");
            let found = generated(&["--image", text(&path)]).0["generated_ids"].clone();
            fs::write(&path, &whole[..whole.len() / 2]).expect("a shorter file");
            let output = run(&["generate", "-m", TINY, "-p", "x", "--image", text(&path)]);
            assert_eq!(output.status.code(), Some(1), "half of a {name} is read");
            found
        })
        .collect();
    assert!(ids.iter().all(|found| *found == ids[0]), "{ids:?}");
    let url = format!("file://{}", text(&picture(folder.path(), "b c.png", [64, 64])).replace(' ', "%20"));
    generated(&["--image", &url]);

    let other = folder.path().join("a.avif");
    fs::write(&other, b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf").expect("a file");
    let output = run(&["generate", "-m", TINY, "-p", "x", "--image", text(&other)]);
    assert!(stderr(&output).contains("PNG, JPEG, WebP, GIF, BMP or TIFF"), "{}", stderr(&output));
}

#[test]
fn media_an_animated_picture_is_a_video() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.gif");
    let mut encoder = GifEncoder::new(File::create(&path).expect("a file"));
    for grey in [0, 60, 120, 180] {
        let image = RgbaImage::from_pixel(64, 64, Rgba([grey, grey, grey, 255]));
        let delay = Delay::from_numer_denom_ms(500, 1);
        encoder.encode_frame(Frame::from_parts(image, 0, 0, delay)).expect("a frame");
    }
    drop(encoder);
    let gif = text(&path);
    let as_image = generated(&["--image", gif]).0;
    let as_video = generated(&["--video", gif]).0;
    assert_eq!(as_image["prompt_ids"], as_video["prompt_ids"]);
    let fewer = generated(&["--video", gif, "--max-frames", "2"]).0;
    assert!(prompt_tokens(&fewer) < prompt_tokens(&as_video));
    let faster = generated(&["--video", gif, "--fps", "4"]).0;
    assert!(prompt_tokens(&faster) > prompt_tokens(&as_video));
}

/// A stand-in for ffmpeg, which writes two frames of 64 × 64 pixels.
#[cfg(unix)]
#[test]
fn media_video_files_are_read_by_ffmpeg_where_it_is_installed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let movie = folder.path().join("movie.mp4");
    fs::write(&movie, "a movie").expect("a file");
    let generate = |path: &Path| {
        let arguments =
            ["generate", "-m", TINY, "--device", "cpu", "-p", "x", "-n", "1", "--greedy", "--json"];
        let mut command = pascaline(&arguments);
        command.args(["--video", text(&movie)]).env("PATH", path);
        command.output().expect("the program starts")
    };
    let output = generate(&folder.path().join("nothing"));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("ffmpeg, which is not installed"), "{}", stderr(&output));

    let program = folder.path().join("ffmpeg");
    let script = "#!/bin/sh\n\
        case \"$*\" in\n\
        *ppm*) for f in 1 2; do printf 'P6\\n64 64\\n255\\n'; /usr/bin/head -c 12288 /dev/zero; done;;\n\
        *) echo '  Duration: 00:00:01.00, start: 0.0' >&2; echo '  Stream #0:0: Video: h264' >&2; exit 1;;\n\
        esac\n";
    fs::write(&program, script).expect("a script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
    let output = generate(folder.path());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
    assert!(prompt_tokens(&report) > 10);
}

#[test]
fn media_habits_of_other_programs_are_understood() {
    let bare = run(&[]);
    assert_eq!((bare.status.code(), stderr(&bare).as_str()), (Some(0), ""));
    assert!(stdout(&bare).contains("Usage:"));
    let (report, _) = generated(&["--dtype", "Q8_0", "--cache", "F16"]);
    assert!(report["generated_ids"].is_array());
    let folder = tempfile::tempdir().expect("a folder");
    let system = folder.path().join("system.txt");
    fs::write(&system, "Be brief.\n").expect("a file");
    let from_file = generated(&["--system", &format!("@{}", text(&system))]).0;
    assert_eq!(from_file["prompt_ids"], generated(&["--system", "Be brief."]).0["prompt_ids"]);
    for limit in ["1GB", "1GiB", "1g", "1024MB", "1073741824B"] {
        let output = run(&["fit", TINY, "--card", "p40", "--memory-limit", limit, "--json", "-q"]);
        let plan: Value = serde_json::from_str(&stdout(&output)).expect("JSON");
        assert_eq!(plan["limit"], 1 << 30, "{limit}");
    }
    for limit in ["1iB", "GB", "1TB"] {
        let output = run(&["fit", TINY, "--card", "p40", "--memory-limit", limit]);
        assert_eq!(output.status.code(), Some(2), "{limit}");
    }
    let usual = ["generate", "-m", TINY, "--device", "virtual", "-p", "x", "-n", "1"];
    let output = run(&[&usual[..], &["--gpu-layers", "99"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(!stderr(&output).contains("99 layers"), "{}", stderr(&output));
    let gguf = folder.path().join("model.gguf");
    fs::write(&gguf, b"GGUF\x03\0\0\0").expect("a file");
    let to = folder.path().join("out");
    let output = run(&["quantize", text(&gguf), "--to", text(&to), "--type", "q4_0"]);
    assert!(stderr(&output).contains("that is a GGUF file"), "{}", stderr(&output));
}

#[test]
fn media_models_of_the_cache_are_listed_and_removed() {
    let cache = tempfile::tempdir().expect("a folder");
    let hold = |folder: &str, bytes: usize| {
        let blobs = cache.path().join(folder).join("blobs");
        fs::create_dir_all(&blobs).expect("a folder");
        fs::write(blobs.join("a"), vec![0; bytes]).expect("a file");
    };
    hold("models--Qwen--Qwen3-VL-2B-Instruct", 3000);
    hold("models--someone--other--name", 70);
    hold("datasets--someone--data", 9);
    let models = |arguments: &[&str]| {
        let mut command = pascaline(&[&["models"], arguments].concat());
        command.env("HF_HUB_CACHE", cache.path()).output().expect("the program starts")
    };
    let list = || -> Value { serde_json::from_str(&stdout(&models(&["--json"]))).expect("JSON") };
    let found = list();
    assert_eq!(found["bytes"], 3070);
    assert_eq!(found["models"][0]["name"], "Qwen/Qwen3-VL-2B-Instruct");
    assert_eq!(found["models"][1]["name"], "someone/other--name");
    assert!(stdout(&models(&[])).contains("Qwen/Qwen3-VL-2B-Instruct"));

    let output = models(&["rm", "2b"]);
    assert_eq!(output.status.code(), Some(2), "nobody was asked");
    assert_eq!(list()["bytes"], 3070);
    assert_eq!(models(&["rm", "2b", "--yes"]).status.code(), Some(0));
    assert_eq!(list()["bytes"], 70);
    assert_eq!(models(&["rm", "2b", "--yes"]).status.code(), Some(1));
    assert_eq!(models(&["rm", "../x", "--yes"]).status.code(), Some(2));
    assert!(cache.path().join("datasets--someone--data").exists());
}
