//! Picture files → 8-bit RGB, as Pillow's `convert("RGB")` makes it.
//!
//! A truncated file is refused, as Pillow does: decoders would fill in the missing part, and the answer would be about a
//! picture that nobody sent.

use super::files::read_at_most;
use super::json::MAX_PICTURE;
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use pascaline::{Error, Result};
use std::io::Cursor;
use std::path::Path;
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// The largest side of a picture file in pixels.
pub const MAX_SIDE: u32 = 32_768;
/// The most pixels of a picture file. A progressive JPEG takes 9 bytes for each while it is decoded.
pub const MAX_PIXELS: u64 = 1 << 27;
/// The most bytes that a picture may take as it is decoded, turned upright and made into RGB.
pub const MAX_DECODED: u64 = 1 << 30;

/// 8-bit RGB, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// [height, width, 3]
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Decodes a PNG, JPEG or WebP file. An EXIF orientation is applied, transparency is dropped.
    ///
    /// # Errors
    /// [`Error::Image`] if it is none of these, damaged or cut short, or larger than [`MAX_SIDE`], [`MAX_PIXELS`] or
    /// [`MAX_DECODED`].
    pub fn open(file: &Path) -> Result<Self> {
        let name = file.display().to_string();
        let wrong = |reason: String| Error::Image { file: name.clone(), reason };
        let bytes = read_at_most(file, MAX_PICTURE).map_err(|error| wrong(error.to_string()))?;
        Self::from_bytes(&name, &bytes)
    }

    /// As [`open`](Self::open), from memory; errors use `name`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self> {
        Self::from_bytes_up_to(name, bytes, MAX_PIXELS)
    }

    /// As [`from_bytes`](Self::from_bytes), with at most `pixels` pixels if that is less than [`MAX_PIXELS`].
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn from_bytes_up_to(name: &str, bytes: &[u8], pixels: u64) -> Result<Self> {
        let most = pixels.min(MAX_PIXELS);
        let image = match image::guess_format(bytes) {
            Ok(ImageFormat::Jpeg) => jpeg(bytes, most),
            Ok(format) => other(bytes, format, most),
            Err(error) => Err(error.to_string()),
        };
        let image = image.map_err(|reason| Error::Image { file: name.to_owned(), reason })?;
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, pixels: to_rgb(image, bytes) })
    }
}

fn jpeg(bytes: &[u8], most: u64) -> Result<DynamicImage, String> {
    if !jpeg_ends(bytes) {
        return Err("the JPEG is cut short: it has no end marker".into());
    }
    // Lenient decoding fills up what damaged data lacks.
    let side = MAX_SIDE as usize;
    let options = DecoderOptions::default().set_strict_mode(true).set_max_width(side).set_max_height(side);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let missing = || "the JPEG has no frame".to_owned();
    let (width, height) = decoder.dimensions().ok_or_else(missing)?;
    let (width, height) = (width as u32, height as u32); // of 16 bits in the file
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    let orientation = orientation.unwrap_or(Orientation::NoTransforms);
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let (out, bytes_per_pixel) = if grey { (ColorSpace::Luma, 1) } else { (ColorSpace::RGB, 3) };
    check_size(width, height, bytes_per_pixel, orientation, most)?;
    decoder.set_options(options.jpeg_set_out_colorspace(out));
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let mut image = match grey {
        true => GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8),
        false => RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8),
    }
    .ok_or_else(missing)?;
    image.apply_orientation(orientation);
    Ok(image)
}

fn other(bytes: &[u8], format: ImageFormat, most: u64) -> Result<DynamicImage, String> {
    if format == ImageFormat::WebP && !webp_ends(bytes) {
        return Err("the WebP file is cut short".into());
    }
    let text = |error: image::ImageError| error.to_string();
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(text)?;
    let orientation = decoder.orientation().map_err(text)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, decoder.color_type().bytes_per_pixel(), orientation, most)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(text)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// Checks the memory that decoding is about to allocate.
fn check_size(
    width: u32,
    height: u32,
    bytes_per_pixel: u8,
    orientation: Orientation,
    most: u64,
) -> Result<(), String> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels > most {
        return Err(format!("{width} × {height} pixels, at most {most} are allowed"));
    }
    let copies = if orientation == Orientation::NoTransforms { 1 } else { 2 };
    let converted = if bytes_per_pixel == 3 { 0 } else { 3 };
    let bytes = pixels * (u64::from(bytes_per_pixel) * copies + converted);
    match bytes > MAX_DECODED {
        true => Err(format!("it takes {bytes} bytes decoded, at most {MAX_DECODED} are allowed")),
        false => Ok(()),
    }
}

/// Whether the end marker is there. A marker is `ff` and a byte that is neither `00` nor `ff`; its segment is skipped by
/// its length. After a start of scan follows entropy-coded data, in which `00` follows each `ff`.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2; // after the start of image
    while let Some(&[first, second]) = bytes.get(at..at + 2).and_then(|pair| pair.as_array()) {
        match (first, second) {
            (0xff, 0xd9) => return true,
            (0xff, 0xff) => at += 1,
            // markers without a length: stuffing, restarts, start of image, temporary
            (0xff, 0x00 | 0x01 | 0xd0..=0xd8) => at += 2,
            (0xff, _) => match bytes.get(at + 2..at + 4) {
                Some(&[high, low]) => at += 2 + usize::from(u16::from_be_bytes([high, low])),
                _ => return false,
            },
            _ => at += 1,
        }
    }
    false
}

/// Whether everything is there that the container and its chunks announce.
fn webp_ends(bytes: &[u8]) -> bool {
    let length = |at: usize| {
        let field = bytes.get(at..at + 4)?.as_array()?;
        Some(u32::from_le_bytes(*field) as usize)
    };
    let Some(end) = length(4).and_then(|length| length.checked_add(8)) else { return false };
    let mut at = 12;
    while at + 8 <= end.min(bytes.len()) {
        let Some(length) = length(at + 4) else { return false };
        at += 8 + length.next_multiple_of(2);
        // Some files omit the last chunk's padding byte.
        if at > end.next_multiple_of(2) {
            return false;
        }
    }
    end <= bytes.len()
}

/// Alpha is dropped and grey is repeated. 16-bit values keep their upper 8 bits, except that 16-bit grey is clipped to 255:
/// Pillow reads it as integers, not as a brightness.
fn to_rgb(image: DynamicImage, file: &[u8]) -> Vec<u8> {
    let high = |value: u16| (value >> 8) as u8;
    let clipped = |value: u16| value.min(255) as u8;
    match image {
        DynamicImage::ImageRgb16(image) => image.into_raw().into_iter().map(high).collect(),
        DynamicImage::ImageRgba16(image) => {
            let pixels = image.as_raw().as_chunks::<4>().0;
            pixels.iter().flat_map(|&[r, g, b, _]| [high(r), high(g), high(b)]).collect()
        }
        DynamicImage::ImageLuma16(image) => {
            image.into_raw().into_iter().flat_map(|grey| [clipped(grey); 3]).collect()
        }
        DynamicImage::ImageLumaA16(image) => {
            // Grey with one transparent value comes with an alpha channel that the file does not have.
            const COLOUR_TYPE: usize = 25; // in a PNG's first chunk
            let grey_alone = file.get(COLOUR_TYPE) == Some(&0);
            let byte = |grey| if grey_alone { clipped(grey) } else { high(grey) };
            image.as_raw().as_chunks::<2>().0.iter().flat_map(|&[grey, _]| [byte(grey); 3]).collect()
        }
        other => other.into_rgb8().into_raw(),
    }
}
