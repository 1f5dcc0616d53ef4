//! The program ffmpeg, which reads video files: it is looked for and run, never linked.

use super::frames::{Bounds, FrameSampling, wrong};
use super::media::Visual;
use super::picture::{MAX_PIXELS, Picture};
use pascaline::{Error, Result};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Larger frames are shrunk to this width or height, before the model's own resize.
const MAX_FRAME_SIDE: usize = 1920;
/// What is read of a stranger's file. The formats left out name other files, as playlists do, or are no videos.
const FORMATS: &str = "asf,avi,flv,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,mpeg,mpegts,ogg";
/// How often it is seen whether ffmpeg has ended, and whether anybody waits for it.
const LOOK: Duration = Duration::from_millis(10);

/// The frames of a file. They are shrunk so that all have room.
pub(super) fn frames(
    name: &str,
    file: &Path,
    sampling: &FrameSampling,
    mut bounds: Bounds,
) -> Result<Visual> {
    let file = std::path::absolute(file).map_err(|error| wrong(name, error.to_string()))?;
    let (told, _, ()) = run(name, &mut reading(&file, &bounds), &bounds, |_| Ok(()))?;
    if !told.contains("Video:") {
        return Err(wrong(name, format!("ffmpeg finds no video in it: {}", last_line(&told))));
    }
    let seconds = match seconds(&told) {
        Some(seconds) => seconds,
        None => measured(name, &file, &bounds)?,
    };
    let (count, rate) = sampling.of(seconds);
    let side = (bounds.bytes / 3 / count).isqrt().clamp(1, MAX_FRAME_SIDE);
    // rounded up, so that a frame is the one that is shown at its time, and not half an interval later
    let scale = format!(
        "fps={rate:.6}:round=up,scale=w='min({side},iw)':h='min({side},ih)':force_original_aspect_ratio=decrease"
    );
    let mut command = reading(&file, &bounds);
    command.args(["-v", "error", "-an", "-sn", "-vf", &scale, "-frames:v", &count.to_string()]);
    command.args(["-f", "image2pipe", "-c:v", "ppm", "pipe:1"]).stdout(Stdio::piped());
    let asked = bounds;
    let (told, is_well, frames) = run(name, &mut command, &asked, |out| {
        let mut frames = Vec::new();
        if let Some(out) = out {
            let mut out = BufReader::new(out);
            // to the end, so that ffmpeg is not stopped by a closed pipe
            while let Some(frame) = portable_pixmap(name, &mut out, &mut bounds)? {
                if frames.len() < count {
                    frames.push(frame);
                }
            }
        }
        Ok(frames)
    })?;
    match is_well && !frames.is_empty() {
        true => Ok(Visual::Video { name: name.to_owned(), frames, rate }),
        false => Err(wrong(name, format!("ffmpeg can't read it: {}", last_line(&told)))),
    }
}

/// ffmpeg with a file to read.
fn reading(file: &Path, bounds: &Bounds) -> Command {
    let mut command = Command::new("ffmpeg");
    // files alone: a playlist must not make it fetch from a network
    command.args(["-nostdin", "-hide_banner", "-protocol_whitelist", "file,pipe"]);
    if bounds.is_strange {
        command.args(["-threads", "1", "-format_whitelist", FORMATS]);
    }
    command.arg("-i").arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs ffmpeg while `read`, which gets its output, is content and somebody waits. Returns what it says, whether it ended well, and what
/// was read.
fn run<T>(
    name: &str,
    command: &mut Command,
    bounds: &Bounds,
    read: impl FnOnce(Option<ChildStdout>) -> Result<T>,
) -> Result<(String, bool, T)> {
    let mut child = command.spawn().map_err(|error| absent(name, &error))?;
    let (out, errors) = (child.stdout.take(), child.stderr.take());
    let (has_failed, goes_on) = (&AtomicBool::new(false), bounds.goes_on);
    let (status, told, read) = thread::scope(|scope| {
        let status = scope.spawn(move || {
            loop {
                match child.try_wait()? {
                    Some(status) => return Ok(status),
                    None if goes_on() && !has_failed.load(Ordering::Relaxed) => thread::sleep(LOOK),
                    None => {
                        child.kill()?;
                        return child.wait();
                    }
                }
            }
        });
        let told = scope.spawn(move || {
            let mut text = Vec::new();
            if let Some(mut errors) = errors {
                let _ = errors.by_ref().take(1 << 16).read_to_end(&mut text); // ffmpeg may have ended
                let _ = std::io::copy(&mut errors, &mut std::io::sink());
            }
            String::from_utf8_lossy(&text).into_owned()
        });
        let read = read(out);
        has_failed.store(read.is_err(), Ordering::Relaxed);
        (status.join(), told.join().unwrap_or_default(), read)
    });
    bounds.check(name)?;
    let unknown = || std::io::Error::other("its exit status is unknown");
    let status = status.unwrap_or_else(|_| Err(unknown())).map_err(|error| wrong(name, error.to_string()))?;
    Ok((told, status.success(), read?))
}

fn absent(name: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::NotFound => wrong(
            name,
            "video files are read by the program ffmpeg, which is not installed; a folder of pictures, or an animated GIF or WebP file, needs none",
        ),
        _ => wrong(name, format!("ffmpeg can't be run: {error}")),
    }
}

/// The length of a video whose file does not state it, as those that were written to a pipe: its packets are read, and not decoded.
fn measured(name: &str, file: &Path, bounds: &Bounds) -> Result<f64> {
    let mut command = reading(file, bounds);
    command.args(["-map", "0:v:0", "-c", "copy", "-f", "null", "-"]);
    let (told, _, ()) = run(name, &mut command, bounds, |_| Ok(()))?;
    let ends = told.rsplit_once("time=").and_then(|(_, rest)| clock(rest.split_whitespace().next()?));
    ends.ok_or_else(|| wrong(name, format!("ffmpeg can't tell how long it is: {}", last_line(&told))))
}

/// Reads `Duration: HH:MM:SS.FF`; `None` for files that do not state it.
fn seconds(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("Duration: ")?;
    clock(rest.split_once(',')?.0)
}

/// Reads `HH:MM:SS.FF`.
fn clock(time: &str) -> Option<f64> {
    let mut seconds = 0.0;
    for part in time.trim().split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    (seconds > 0.0).then_some(seconds)
}

fn last_line(text: &str) -> String {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
    line.trim().chars().filter(|c| !c.is_control()).take(300).collect()
}

/// The next picture of a stream of binary PPM files, `P6 WIDTH HEIGHT 255` and the pixels; `None` at its end.
fn portable_pixmap(name: &str, from: &mut impl BufRead, bounds: &mut Bounds) -> Result<Option<Picture>> {
    let unreadable = |error: std::io::Error| wrong(name, format!("ffmpeg's frames: {error}"));
    let damaged = || wrong(name, "ffmpeg's frames are none");
    if from.fill_buf().map_err(unreadable)?.is_empty() {
        return Ok(None);
    }
    let mut words: Vec<String> = Vec::new();
    while words.len() < 4 {
        let mut line = Vec::new();
        from.by_ref().take(64).read_until(b'\n', &mut line).map_err(unreadable)?;
        if line.last() != Some(&b'\n') {
            return Err(damaged());
        }
        words.extend(String::from_utf8_lossy(&line).split_whitespace().map(str::to_owned));
    }
    let [magic, width, height, most] = &words[..] else { return Err(damaged()) };
    let (Ok(width), Ok(height)) = (width.parse::<usize>(), height.parse::<usize>()) else {
        return Err(damaged());
    };
    if magic != "P6" || most != "255" || width.saturating_mul(height) as u64 > MAX_PIXELS {
        return Err(damaged());
    }
    let bytes = width * height * 3;
    bounds.take(name, bytes)?;
    let mut pixels = vec![0; bytes];
    from.read_exact(&mut pixels).map_err(unreadable)?;
    Ok(Some(Picture { height, width, pixels }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(bytes: usize) -> Bounds<'static> {
        Bounds { bytes, goes_on: &|| true, is_strange: true }
    }

    #[test]
    fn the_length_is_read_from_what_ffmpeg_says() {
        assert_eq!(seconds("  Duration: 00:01:05.50, start: 0.0, bitrate: 1"), Some(65.5));
        assert_eq!(seconds("  Duration: N/A, start"), None);
        assert_eq!(seconds(""), None);
    }

    #[test]
    fn frames_of_a_pipe_are_read_one_by_one() {
        let mut stream = b"P6\n2 1\n255\nabcdefP6 1 1\n255\nxyzP6\n9 9\n255\nshort".as_slice();
        let mut left = bounds(100);
        let first = portable_pixmap("v", &mut stream, &mut left).unwrap().unwrap();
        assert_eq!((first.width, first.height, &first.pixels[..]), (2, 1, &b"abcdef"[..]));
        assert_eq!(portable_pixmap("v", &mut stream, &mut left).unwrap().unwrap().pixels, b"xyz");
        assert!(portable_pixmap("v", &mut stream, &mut left).is_err());
        assert!(portable_pixmap("v", &mut b"".as_slice(), &mut left).unwrap().is_none());
        assert!(portable_pixmap("v", &mut b"P5\n1 1\n255\nx".as_slice(), &mut left).is_err());
        assert!(portable_pixmap("v", &mut b"P6\n9 9\n255\n".as_slice(), &mut bounds(9)).is_err());
    }
}
