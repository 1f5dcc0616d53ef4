//! Videos: the frames of animated pictures, and of video files by the program ffmpeg, which is looked for and run, never linked.
//!
//! Frames are sampled at a rate; a video that would have more frames than its budget is sampled at a lower one, so that its whole
//! length is seen.

use super::media::Visual;
use super::picture::{MAX_DECODED, MAX_PIXELS, MAX_SIDE, Picture};
use image::codecs::{gif::GifDecoder, webp::WebPDecoder};
use image::{AnimationDecoder, Frames, ImageDecoder, ImageFormat, Limits};
use pascaline::{Error, Result, format_bytes};
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// How many frames of a video are seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameSampling {
    /// Frames per second.
    pub rate: f64,
    /// The most frames of a video; above 0.
    pub most: usize,
}

impl Default for FrameSampling {
    /// Two frames per second, as the published processors, and at most 64.
    fn default() -> Self {
        Self { rate: 2.0, most: 64 }
    }
}

/// The most frames of an animated picture that are decoded.
const MAX_FRAMES: usize = 20_000;
/// Larger frames are shrunk by ffmpeg to this width or height, before the model's own resize.
const MAX_FRAME_SIDE: usize = 1920;

impl FrameSampling {
    /// The number of frames of so many seconds, and their rate.
    fn of(&self, seconds: f64) -> (usize, f64) {
        let wanted = (seconds * self.rate).round().max(1.0);
        let most = self.most.max(1);
        if wanted <= most as f64 { (wanted as usize, self.rate) } else { (most, most as f64 / seconds) }
    }

    fn check(&self, name: &str) -> Result<()> {
        match self.rate > 0.0 && self.rate.is_finite() && self.most > 0 {
            true => Ok(()),
            false => Err(wrong(name, format!("{} frames at {} per second", self.most, self.rate))),
        }
    }
}

fn wrong(name: &str, reason: impl Into<String>) -> Error {
    Error::Image { file: name.to_owned(), reason: reason.into() }
}

impl Visual {
    /// A picture file, or a video if it is an animated GIF or WebP file.
    ///
    /// # Errors
    /// As [`Picture::from_bytes`].
    pub fn from_bytes(name: &str, bytes: &[u8], sampling: &FrameSampling) -> Result<Self> {
        match animation(name, bytes, sampling)? {
            Some(video) => Ok(video),
            None => Ok(Self::Image { name: name.to_owned(), picture: Picture::from_bytes(name, bytes)? }),
        }
    }

    /// A video: a folder of pictures, an animated picture, or any file that the program ffmpeg reads, which must be
    /// installed for it.
    ///
    /// # Errors
    /// [`Error::Image`].
    pub fn video_file(file: &Path, sampling: &FrameSampling) -> Result<Self> {
        let name = file.display().to_string();
        sampling.check(&name)?;
        if file.is_dir() {
            return Self::video(file, sampling.rate);
        }
        let mut beginning = Vec::new();
        let read =
            super::files::open_regular(file).and_then(|file| file.take(64).read_to_end(&mut beginning));
        read.map_err(|error| wrong(&name, error.to_string()))?;
        if matches!(image::guess_format(&beginning), Ok(ImageFormat::Gif | ImageFormat::WebP)) {
            let bytes = super::files::read_at_most(file, super::json::MAX_PICTURE)
                .map_err(|error| wrong(&name, error.to_string()))?;
            return animation(&name, &bytes, sampling)?
                .ok_or_else(|| wrong(&name, "it is a still picture, and no video"));
        }
        with_ffmpeg(&name, file, sampling)
    }
}

/// The frames of an animated GIF or WebP file; `None` for other files and still pictures.
fn animation(name: &str, bytes: &[u8], sampling: &FrameSampling) -> Result<Option<Visual>> {
    sampling.check(name)?;
    let open = || -> Result<Option<Frames<'_>>, image::ImageError> {
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(MAX_DECODED);
        Ok(match image::guess_format(bytes) {
            Ok(ImageFormat::Gif) => {
                let mut decoder = GifDecoder::new(Cursor::new(bytes))?;
                decoder.set_limits(limits)?;
                Some(decoder.into_frames())
            }
            Ok(ImageFormat::WebP) => {
                let mut decoder = WebPDecoder::new(Cursor::new(bytes))?;
                decoder.set_limits(limits)?;
                decoder.has_animation().then(|| decoder.into_frames())
            }
            _ => None,
        })
    };
    let text = |error: image::ImageError| wrong(name, error.to_string());
    let Some(frames) = open().map_err(text)? else { return Ok(None) };
    let mut ends = Vec::new(); // the time at which each frame ends, in seconds
    let mut end = 0.0;
    for frame in frames {
        let (numerator, denominator) = frame.map_err(text)?.delay().numer_denom_ms();
        let delay = f64::from(numerator) / f64::from(denominator.max(1));
        end += if delay <= 10.0 { 0.1 } else { delay / 1e3 }; // as browsers show frames without a time
        ends.push(end);
        if ends.len() > MAX_FRAMES {
            return Err(wrong(name, format!("it has more than {MAX_FRAMES} frames")));
        }
    }
    if ends.len() < 2 {
        return Ok(None);
    }
    let (count, rate) = sampling.of(end);
    let mut found: Vec<Picture> = Vec::with_capacity(count);
    let mut bytes_left = MAX_DECODED as usize;
    let Some(frames) = open().map_err(text)? else { return Ok(None) };
    for (index, frame) in frames.enumerate() {
        let frame = frame.map_err(text)?;
        let ends_at = ends.get(index).copied().unwrap_or(end);
        let last = index + 1 == ends.len();
        let mut shown = 0;
        while found.len() + shown < count && (last || (found.len() + shown) as f64 / rate < ends_at) {
            shown += 1;
        }
        if shown == 0 {
            continue;
        }
        let buffer = image::DynamicImage::ImageRgba8(frame.into_buffer()).into_rgb8();
        let (width, height) = (buffer.width() as usize, buffer.height() as usize);
        let picture = Picture { height, width, pixels: buffer.into_raw() };
        for _ in 0..shown {
            bytes_left = bytes_left
                .checked_sub(picture.pixels.len())
                .ok_or_else(|| too_large(name, MAX_DECODED as usize))?;
            found.push(picture.clone());
        }
    }
    Ok(Some(Visual::Video { name: name.to_owned(), frames: found, rate }))
}

fn too_large(name: &str, most: usize) -> Error {
    wrong(name, format!("its frames take more than {}; fewer frames take less", format_bytes(most)))
}

/// The frames of a file that ffmpeg reads.
fn with_ffmpeg(name: &str, file: &Path, sampling: &FrameSampling) -> Result<Visual> {
    let file = std::path::absolute(file).map_err(|error| wrong(name, error.to_string()))?;
    let seconds = duration(name, &file)?;
    let (count, rate) = sampling.of(seconds);
    let scale = format!(
        "fps={rate:.6},scale=w='min({MAX_FRAME_SIDE},iw)':h='min({MAX_FRAME_SIDE},ih)':force_original_aspect_ratio=decrease"
    );
    let mut child = ffmpeg()
        .args(["-v", "error", "-i"])
        .arg(&file)
        .args(["-an", "-sn", "-vf", &scale, "-frames:v", &count.to_string()])
        .args(["-f", "image2pipe", "-c:v", "ppm", "pipe:1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| absent(name, &error))?;
    let mut errors = child.stderr.take();
    let complaints = std::thread::spawn(move || {
        let mut text = Vec::new();
        if let Some(errors) = &mut errors {
            let _ = errors.by_ref().take(1 << 16).read_to_end(&mut text); // ffmpeg may have ended
            let _ = std::io::copy(errors, &mut std::io::sink());
        }
        text
    });
    let mut frames = Vec::new();
    let mut left = MAX_DECODED as usize;
    let read = match child.stdout.take() {
        Some(out) => {
            let mut out = BufReader::new(out);
            loop {
                match portable_pixmap(name, &mut out, &mut left) {
                    Ok(Some(frame)) if frames.len() < count => frames.push(frame),
                    Ok(_) => break Ok(()),
                    Err(error) => break Err(error),
                }
            }
        }
        None => Ok(()),
    };
    if read.is_err() {
        let _ = child.kill(); // it may have ended
    }
    let status = child.wait().map_err(|error| wrong(name, error.to_string()))?;
    let complaints = complaints.join().unwrap_or_default();
    read?;
    match status.success() && !frames.is_empty() {
        true => Ok(Visual::Video { name: name.to_owned(), frames, rate }),
        false => Err(wrong(name, format!("ffmpeg can't read it: {}", last_line(&complaints)))),
    }
}

fn ffmpeg() -> Command {
    let mut command = Command::new("ffmpeg");
    // files alone: a playlist must not make it fetch from a network
    command.args(["-nostdin", "-hide_banner", "-protocol_whitelist", "file,pipe"]).stdin(Stdio::null());
    command
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

/// A video's length in seconds, from what ffmpeg says of the file.
fn duration(name: &str, file: &Path) -> Result<f64> {
    let told = ffmpeg().arg("-i").arg(file).output().map_err(|error| absent(name, &error))?;
    let text = String::from_utf8_lossy(&told.stderr);
    if !text.contains("Video:") {
        return Err(wrong(name, format!("ffmpeg finds no video in it: {}", last_line(&told.stderr))));
    }
    Ok(seconds(&text).unwrap_or(1.0))
}

/// Reads `Duration: HH:MM:SS.FF`; `None` for formats that have none.
fn seconds(text: &str) -> Option<f64> {
    let (_, rest) = text.split_once("Duration: ")?;
    let (time, _) = rest.split_once(',')?;
    let mut seconds = 0.0;
    for part in time.trim().split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    (seconds > 0.0).then_some(seconds)
}

fn last_line(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
    line.trim().chars().filter(|c| !c.is_control()).take(300).collect()
}

/// The next picture of a stream of binary PPM files, `P6 WIDTH HEIGHT 255` and the pixels; `None` at its end.
fn portable_pixmap(name: &str, from: &mut impl BufRead, left: &mut usize) -> Result<Option<Picture>> {
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
    *left = left.checked_sub(bytes).ok_or_else(|| too_large(name, MAX_DECODED as usize))?;
    let mut pixels = vec![0; bytes];
    from.read_exact(&mut pixels).map_err(unreadable)?;
    Ok(Some(Picture { height, width, pixels }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::codecs::gif::GifEncoder;
    use image::{Delay, Frame, RgbaImage};

    /// A GIF whose frames are grey values, each shown for so many milliseconds.
    fn gif(frames: &[(u8, u32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = GifEncoder::new(&mut bytes);
        for &(grey, milliseconds) in frames {
            let image = RgbaImage::from_pixel(6, 4, image::Rgba([grey, grey, grey, 255]));
            let delay = Delay::from_numer_denom_ms(milliseconds, 1);
            encoder.encode_frame(Frame::from_parts(image, 0, 0, delay)).unwrap();
        }
        drop(encoder);
        bytes
    }

    fn greys(visual: &Visual) -> (Vec<u8>, f64) {
        match visual {
            Visual::Video { frames, rate, .. } => {
                (frames.iter().map(|frame| frame.pixels[0]).collect(), *rate)
            }
            Visual::Image { .. } => panic!("a still picture"),
        }
    }

    #[test]
    fn an_animated_picture_is_a_video() {
        let bytes = gif(&[(0, 1000), (100, 500), (200, 500)]);
        let read = |rate, most| Visual::from_bytes("a.gif", &bytes, &FrameSampling { rate, most }).unwrap();
        assert_eq!(greys(&read(2.0, 64)), (vec![0, 0, 100, 200], 2.0));
        assert_eq!(greys(&read(1.0, 64)), (vec![0, 100], 1.0));
        // the whole length is seen within the budget
        assert_eq!(greys(&read(8.0, 2)), (vec![0, 100], 1.0));
        let still = Visual::from_bytes("b.gif", &gif(&[(50, 100)]), &FrameSampling::default()).unwrap();
        assert!(matches!(still, Visual::Image { .. }));
        assert!(Visual::from_bytes("a.gif", &bytes[..bytes.len() / 2], &FrameSampling::default()).is_err());
        assert!(Visual::from_bytes("a.gif", &bytes, &FrameSampling { rate: f64::NAN, most: 1 }).is_err());
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
        let mut left = 100;
        let first = portable_pixmap("v", &mut stream, &mut left).unwrap().unwrap();
        assert_eq!((first.width, first.height, &first.pixels[..]), (2, 1, &b"abcdef"[..]));
        assert_eq!(portable_pixmap("v", &mut stream, &mut left).unwrap().unwrap().pixels, b"xyz");
        assert!(portable_pixmap("v", &mut stream, &mut left).is_err());
        assert!(portable_pixmap("v", &mut b"".as_slice(), &mut left).unwrap().is_none());
        assert!(portable_pixmap("v", &mut b"P5\n1 1\n255\nx".as_slice(), &mut left).is_err());
        assert!(portable_pixmap("v", &mut b"P6\n9 9\n255\n".as_slice(), &mut 9).is_err());
    }
}
