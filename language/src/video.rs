//! Videos: the frames of animated pictures, of folders, and of files that the program ffmpeg reads.
//!
//! Frames are sampled at a rate; a video that would have more frames than its budget is sampled at a lower one, so that its whole
//! length is seen.

use super::ffmpeg;
use super::frames::{Bounds, wrong};
use super::media::Visual;
use super::picture::{MAX_SIDE, Picture, PictureHeader, Watched};
use image::codecs::{gif::GifDecoder, webp::WebPDecoder};
use image::{AnimationDecoder, Frames, ImageDecoder, ImageFormat, Limits};
use pascaline::Result;
use std::io::{Read, Write};
use std::path::Path;

pub use super::frames::FrameSampling;

/// The most frames of an animated picture that are decoded.
const MAX_FRAMES: usize = 20_000;

impl Visual {
    /// A picture file, or a video if it is an animated GIF or WebP file.
    ///
    /// # Errors
    /// As [`Picture::from_bytes`].
    pub fn from_bytes(name: &str, bytes: &[u8], sampling: &FrameSampling) -> Result<Self> {
        match animation(name, bytes, sampling, Bounds::OWN)? {
            Some(video) => Ok(video),
            None => Ok(Self::Image { name: name.to_owned(), picture: Picture::from_bytes(name, bytes)? }),
        }
    }

    /// A video: a folder of pictures, an animated picture, or any file that the program ffmpeg reads, which must be
    /// installed for it.
    ///
    /// # Errors
    /// [`Error::Image`](pascaline::Error::Image).
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
            return animation(&name, &bytes, sampling, Bounds::OWN)?
                .ok_or_else(|| wrong(&name, "it is a still picture, and no video"));
        }
        ffmpeg::frames(&name, file, sampling, Bounds::OWN)
    }

    /// A stranger's video, from memory: an animated GIF or WebP file, or a file that ffmpeg reads if `by_ffmpeg`. Its frames take up to
    /// `most_bytes`; ffmpeg shrinks them to that. `goes_on` is asked often, and ends it.
    ///
    /// # Errors
    /// [`Error::Image`](pascaline::Error::Image).
    pub fn video_while(
        name: &str,
        bytes: &[u8],
        sampling: &FrameSampling,
        most_bytes: usize,
        by_ffmpeg: bool,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self> {
        let bounds = || Bounds { bytes: most_bytes, goes_on, is_strange: true };
        if let Some(video) = animation(name, bytes, sampling, bounds())? {
            return Ok(video);
        }
        if image::guess_format(bytes).is_ok_and(|format| format != ImageFormat::Avif) {
            return Err(wrong(name, "it is a still picture, and no video"));
        }
        if !by_ffmpeg {
            return Err(wrong(
                name,
                "it is no animated GIF or WebP file, and other videos are not read here",
            ));
        }
        let unwritable = |error: std::io::Error| wrong(name, format!("for ffmpeg: {error}"));
        let mut file = tempfile::NamedTempFile::new().map_err(unwritable)?;
        file.write_all(bytes).and_then(|()| file.flush()).map_err(unwritable)?;
        ffmpeg::frames(name, file.path(), sampling, bounds())
    }

    /// A video whose frames are picture files, `rate` of them a second, as [`Picture::decode_while`] reads them with at most
    /// `pixels` pixels each. They take up to `most_bytes`.
    ///
    /// # Errors
    /// [`Error::Image`](pascaline::Error::Image).
    pub fn video_of_pictures(
        name: &str,
        files: &[Vec<u8>],
        rate: f64,
        pixels: u64,
        most_bytes: usize,
        goes_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Self> {
        FrameSampling { rate, most: files.len() }.check(name)?;
        let mut bounds = Bounds { bytes: most_bytes, goes_on, is_strange: true };
        let mut decode = |file: &Vec<u8>| {
            bounds.check(name)?;
            bounds.take(name, PictureHeader::read(name, file, pixels)?.bytes)?;
            Picture::decode_while(name, file, pixels, goes_on)
        };
        let frames = files.iter().map(&mut decode).collect::<Result<_>>()?;
        Ok(Self::Video { name: name.to_owned(), frames, rate })
    }
}

/// The frames of an animated GIF or WebP file; `None` for other files and still pictures.
fn animation(
    name: &str,
    bytes: &[u8],
    sampling: &FrameSampling,
    mut bounds: Bounds,
) -> Result<Option<Visual>> {
    sampling.check(name)?;
    let most = bounds.bytes;
    let open = || -> Result<Option<Frames<'_>>, image::ImageError> {
        let mut limits = Limits::default();
        limits.max_image_width = Some(MAX_SIDE);
        limits.max_image_height = Some(MAX_SIDE);
        limits.max_alloc = Some(most as u64);
        Ok(match image::guess_format(bytes) {
            Ok(ImageFormat::Gif) => {
                let mut decoder = GifDecoder::new(Watched::new(bytes, &|| true))?;
                decoder.set_limits(limits)?;
                Some(decoder.into_frames())
            }
            Ok(ImageFormat::WebP) => {
                let mut decoder = WebPDecoder::new(Watched::new(bytes, &|| true))?;
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
        bounds.check(name)?;
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
    let Some(frames) = open().map_err(text)? else { return Ok(None) };
    for (index, frame) in frames.enumerate() {
        bounds.check(name)?;
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
            bounds.take(name, picture.pixels.len())?;
            found.push(picture.clone());
        }
    }
    Ok(Some(Visual::Video { name: name.to_owned(), frames: found, rate }))
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
}
