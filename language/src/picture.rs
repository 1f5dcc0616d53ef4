//! Picture files → 8-bit RGB, as Pillow's `convert("RGB")` makes it.
//!
//! A truncated file is refused, as Pillow does: decoders would fill in the missing part, and the answer would be about a
//! picture that nobody sent.

use super::files::read_at_most;
use super::json::MAX_PICTURE;
use image::metadata::Orientation;
use image::{DynamicImage, GrayImage, ImageDecoder, ImageFormat, ImageReader, Limits, RgbImage};
use pascaline::{Error, Result};
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};
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

/// The files that are read, for messages.
pub const ACCEPTED: &str = "PNG, JPEG, WebP, GIF, BMP or TIFF";

/// The format of a file that is read.
fn format(bytes: &[u8]) -> Result<ImageFormat, String> {
    use ImageFormat::{Bmp, Gif, Jpeg, Png, Tiff, WebP};
    match image::guess_format(bytes) {
        Ok(format @ (Bmp | Gif | Jpeg | Png | Tiff | WebP)) => Ok(format),
        Ok(other) => Err(format!("{} is not read; the file may be {ACCEPTED}", other.to_mime_type())),
        Err(_) => Err(format!("the file is no picture that is read: it may be {ACCEPTED}")),
    }
}

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
    /// Decodes a file of one of the [`ACCEPTED`] formats; of an animated one the first frame. An EXIF orientation is applied, transparency is dropped.
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
        Self::decode_while(name, bytes, pixels, &|| true)
    }

    /// As [`from_bytes_up_to`](Self::from_bytes_up_to), for as long as `goes_on` says so, which is asked every few
    /// kilobytes of a file that is no JPEG.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Image`] when `goes_on` ends it.
    pub fn decode_while(name: &str, bytes: &[u8], pixels: u64, goes_on: &dyn Fn() -> bool) -> Result<Self> {
        let most = pixels.min(MAX_PIXELS);
        let image = format(bytes).and_then(|format| match format {
            ImageFormat::Jpeg => jpeg(bytes, most),
            format => other(bytes, format, most, goes_on),
        });
        let image = image.map_err(|reason| Error::Image { file: name.to_owned(), reason })?;
        let (width, height) = (image.width() as usize, image.height() as usize);
        Ok(Self { height, width, pixels: to_rgb(image, bytes) })
    }
}

/// A picture file's header: what decoding the file gives and takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureHeader {
    /// Rows of the upright picture.
    pub height: usize,
    /// Columns of the upright picture.
    pub width: usize,
    /// The most bytes of memory that decoding takes, the picture included.
    pub bytes: usize,
}

impl PictureHeader {
    /// Reads the header of a file. Nothing else of it is decoded, and may be damaged.
    ///
    /// # Errors
    /// [`Error::Image`] if it has no such header, or states more than [`Picture::from_bytes_up_to`] accepts.
    pub fn read(name: &str, bytes: &[u8], pixels: u64) -> Result<Self> {
        let most = pixels.min(MAX_PIXELS);
        let header = format(bytes).and_then(|format| match format {
            ImageFormat::Jpeg => open_jpeg(bytes, most).map(|opened| opened.header),
            format => open_other(Watched::new(bytes, &|| true), format, most).map(|(_, _, header)| header),
        });
        header.map_err(|reason| Error::Image { file: name.to_owned(), reason })
    }
}

/// A file that ends with an error once it is no longer wanted: a decoder is a loop over its input. All decoders read it, as each is
/// compiled anew for each type of input.
pub(crate) struct Watched<'a> {
    file: Cursor<&'a [u8]>,
    goes_on: &'a dyn Fn() -> bool,
}

impl<'a> Watched<'a> {
    pub(crate) fn new(bytes: &'a [u8], goes_on: &'a dyn Fn() -> bool) -> Self {
        Self { file: Cursor::new(bytes), goes_on }
    }
}

/// The most bytes that are read without asking whether to go on. A PNG's largest ratio makes 4 MB of them.
const WATCHED_PIECE: usize = 4096;

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let piece = self.fill_buf()?;
        let count = piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&piece[..count]);
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Watched<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if !(self.goes_on)() {
            return Err(io::Error::other("it is no longer wanted"));
        }
        let rest = self.file.fill_buf()?;
        Ok(&rest[..rest.len().min(WATCHED_PIECE)])
    }

    fn consume(&mut self, count: usize) {
        self.file.consume(count);
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// A JPEG whose header has been read and is within the limits.
struct OpenedJpeg<'a> {
    decoder: JpegDecoder<ZCursor<&'a [u8]>>,
    options: DecoderOptions,
    size: (u32, u32),
    orientation: Orientation,
    grey: bool,
    header: PictureHeader,
}

fn open_jpeg(bytes: &[u8], most: u64) -> Result<OpenedJpeg<'_>, String> {
    if !jpeg_ends(bytes) {
        return Err("the JPEG is cut short: it has no end marker".into());
    }
    // Lenient decoding fills up what damaged data lacks.
    let side = MAX_SIDE as usize;
    let options = DecoderOptions::default().set_strict_mode(true).set_max_width(side).set_max_height(side);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|error| error.to_string())?;
    let (width, height) = decoder.dimensions().ok_or(NO_FRAME)?;
    let size = (width as u32, height as u32); // of 16 bits in the file
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    let orientation = orientation.unwrap_or(Orientation::NoTransforms);
    let grey = decoder.input_colorspace() == Some(ColorSpace::Luma);
    let mut header = check_size(size, if grey { 1 } else { 3 }, orientation, most)?;
    header.bytes += 6 * header.height * header.width; // a progressive file's coefficients
    Ok(OpenedJpeg { decoder, options, size, orientation, grey, header })
}

const NO_FRAME: &str = "the JPEG has no frame";

fn jpeg(bytes: &[u8], most: u64) -> Result<DynamicImage, String> {
    let OpenedJpeg { mut decoder, options, size: (width, height), orientation, grey, .. } =
        open_jpeg(bytes, most)?;
    let out = if grey { ColorSpace::Luma } else { ColorSpace::RGB };
    decoder.set_options(options.jpeg_set_out_colorspace(out));
    let pixels = decoder.decode().map_err(|error| error.to_string())?;
    let mut image = match grey {
        true => GrayImage::from_raw(width, height, pixels).map(DynamicImage::ImageLuma8),
        false => RgbImage::from_raw(width, height, pixels).map(DynamicImage::ImageRgb8),
    }
    .ok_or(NO_FRAME)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// The decoder of a file other than a JPEG that has read the header, which is within the limits.
fn open_other(
    file: Watched<'_>,
    format: ImageFormat,
    most: u64,
) -> Result<(impl ImageDecoder, Orientation, PictureHeader), String> {
    let text = |error: image::ImageError| error.to_string();
    let mut reader = ImageReader::with_format(file, format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_DECODED);
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(text)?;
    let orientation = decoder.orientation().map_err(text)?;
    let mut header =
        check_size(decoder.dimensions(), decoder.color_type().bytes_per_pixel(), orientation, most)?;
    if format == ImageFormat::WebP {
        header.bytes += 4 * header.height * header.width; // the planes that it is decoded into
    }
    Ok((decoder, orientation, header))
}

fn other(
    bytes: &[u8],
    format: ImageFormat,
    most: u64,
    goes_on: &dyn Fn() -> bool,
) -> Result<DynamicImage, String> {
    if format == ImageFormat::WebP && !webp_ends(bytes) {
        return Err("the WebP file is cut short".into());
    }
    let (decoder, orientation, _) = open_other(Watched::new(bytes, goes_on), format, most)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(|error| error.to_string())?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// Checks the memory that decoding is about to allocate.
fn check_size(
    (width, height): (u32, u32),
    bytes_per_pixel: u8,
    orientation: Orientation,
    most: u64,
) -> Result<PictureHeader, String> {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    let pixels = u64::from(width) * u64::from(height);
    if pixels > most {
        return Err(format!("{width} × {height} pixels, at most {most} are allowed"));
    }
    let copies = if orientation == Orientation::NoTransforms { 1 } else { 2 };
    let converted = if bytes_per_pixel == 3 { 0 } else { 3 };
    let bytes = pixels * (u64::from(bytes_per_pixel) * copies + converted);
    if bytes > MAX_DECODED {
        return Err(format!("it takes {bytes} bytes decoded, at most {MAX_DECODED} are allowed"));
    }
    let (width, height, bytes) = (width as usize, height as usize, bytes as usize);
    Ok(match orientation {
        Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH => {
            PictureHeader { height: width, width: height, bytes }
        }
        _ => PictureHeader { height, width, bytes },
    })
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
