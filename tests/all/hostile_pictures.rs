//! Picture files that are damaged, cut short, too large or of rare kinds: what Pillow 13 refuses is refused, and what it
//! reads has the pixels that it gives.

use pascaline::Error;
use qwen3_vl::preprocess::{MAX_PIXELS, Picture, PictureHeader};
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pictures")
}

fn file(name: &str) -> Vec<u8> {
    fs::read(folder().join(name)).unwrap()
}

fn refused(bytes: &[u8]) -> String {
    match Picture::from_bytes("p", bytes) {
        Err(Error::Image { file, reason }) if file == "p" => reason,
        other => panic!("{:?}", other.map(|picture| (picture.height, picture.width))),
    }
}

const WITHOUT_A_WHOLE_END: [&str; 9] = [
    "baseline.jpg",
    "progressive.jpg",
    "restarts.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "turned.jpg",
    "lossy.webp",
    "lossless.webp",
    "alpha.webp",
];

/// Pillow refuses each of them one byte before the end already. Bytes after the end are no part of the picture.
#[test]
fn a_picture_is_refused_wherever_it_is_cut() {
    for name in WITHOUT_A_WHOLE_END {
        let whole = file(name);
        let picture = Picture::from_bytes(name, &whole).unwrap();
        let sides = if name == "turned.jpg" { (40, 24) } else { (24, 40) };
        assert_eq!((picture.height, picture.width, picture.pixels.len()), (sides.0, sides.1, 40 * 24 * 3));
        for len in 0..whole.len() {
            refused(&whole[..len]);
        }
        let more = [&whole[..], b"what a camera appends"].concat();
        assert_eq!(Picture::from_bytes(name, &more).unwrap(), picture, "{name}");
    }
}

/// Bytes of a pixel: its colours, those of the upright copy if it is turned, RGB if it is grey, and six of a progressive file's coefficients.
#[test]
fn headers_state_what_decoding_takes() {
    for (name, each) in [("baseline.jpg", 3 + 6), ("grey.jpg", 1 + 3 + 6), ("turned.jpg", 3 + 3 + 6)] {
        let header = PictureHeader::read(name, &file(name), MAX_PIXELS).unwrap();
        assert_eq!(header.bytes, 24 * 40 * each, "{name}");
    }
}

/// Damaged in its data, with an end as if it were whole: decoders that are lenient would fill up the rest.
#[test]
fn a_picture_with_damaged_data_is_refused() {
    for name in ["baseline.jpg", "grey.jpg", "cmyk.jpg"] {
        let (mut bytes, start_of_image) = (file(name), [0xff, 0xd8]);
        let at = bytes.len() - 60;
        bytes[at..at + 2].copy_from_slice(&start_of_image);
        refused(&bytes);
    }
    let whole = file("lossy.webp");
    for cut in [40, 100, whole.len() / 2] {
        let mut bytes = whole[..whole.len() - cut].to_vec();
        let data = (bytes.len() - 20) & !1;
        bytes.truncate(20 + data);
        bytes[16..20].copy_from_slice(&(data as u32).to_le_bytes());
        let container = bytes.len() as u32 - 8;
        bytes[4..8].copy_from_slice(&container.to_le_bytes());
        refused(&bytes);
    }
}

/// An end marker inside a segment, such as that of a thumbnail, is not the picture's; and what a chunk announces must fit
/// its container.
#[test]
fn an_end_is_looked_for_in_its_place() {
    let whole = file("baseline.jpg");
    let thumbnail = [0xff, 0xe1, 0, 6, 0xff, 0xd8, 0xff, 0xd9];
    let with_thumbnail = [&whole[..2], &thumbnail, &whole[2..]].concat();
    assert_eq!(Picture::from_bytes("p", &with_thumbnail).unwrap(), Picture::from_bytes("p", &whole).unwrap());
    // bytes that fill up to a marker
    let filled = [&whole[..whole.len() - 2], &[0xff, 0xff, 0xd9]].concat();
    assert_eq!(Picture::from_bytes("p", &filled).unwrap(), Picture::from_bytes("p", &whole).unwrap());
    let reason = refused(&with_thumbnail[..with_thumbnail.len() - 2]);
    assert!(reason.contains("no end marker"), "{reason}");
    let mut webp = file("lossy.webp");
    let length = u32::from_le_bytes(webp[16..20].try_into().unwrap()) + 100;
    webp[16..20].copy_from_slice(&length.to_le_bytes());
    assert!(refused(&webp).contains("the WebP file is cut short"));
    // a container of 30 bytes whose only chunk has 100
    let small = [b"RIFF", &30u32.to_le_bytes()[..], b"WEBPVP8L", &100u32.to_le_bytes(), &[0; 18]].concat();
    assert!(refused(&small).contains("the WebP file is cut short"));
}

#[test]
fn sixteen_bits_become_eight_as_in_pillow() {
    let grey = |name: &str| -> Vec<u8> {
        let picture = Picture::open(&folder().join(name)).unwrap();
        assert_eq!((picture.height, picture.width), (1, 7));
        let pixels = picture.pixels.as_chunks::<3>().0;
        assert!(pixels.iter().all(|[r, g, b]| r == g && g == b), "{name}: {pixels:?}");
        pixels.iter().map(|pixel| pixel[0]).collect()
    };
    // of 0, 1, 200, 255, 256, 4660 and 65535
    assert_eq!(grey("grey16.png"), [0, 1, 200, 255, 255, 255, 255]);
    assert_eq!(grey("grey16_transparent.png"), [0, 1, 200, 255, 255, 255, 255]);
    assert_eq!(grey("grey16_alpha.png"), [0, 0, 0, 0, 1, 18, 255]);
    assert_eq!(grey("rgb16.png"), [0, 0, 0, 0, 1, 18, 255]);
}

/// A PNG file that announces an image and has no pixels.
fn png_without_pixels(width: u32, height: u32, depth: u8, colour: u8) -> Vec<u8> {
    png_with(width, height, depth, colour, &[])
}

/// The same, with a chunk of its own before the pixels if it is not empty.
fn png_with(width: u32, height: u32, depth: u8, colour: u8, exif: &[u8]) -> Vec<u8> {
    let chunk = |name: &[u8], data: &[u8]| {
        let named = [name, data].concat();
        let crc = named.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
        });
        [&(data.len() as u32).to_be_bytes(), &named[..], &(!crc).to_be_bytes()].concat()
    };
    let size = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, colour, 0, 0, 0]].concat();
    let exif = if exif.is_empty() { Vec::new() } else { chunk(b"eXIf", exif) };
    let signature = b"\x89PNG\r\n\x1a\n".to_vec();
    [signature, chunk(b"IHDR", &size), exif, chunk(b"IDAT", b""), chunk(b"IEND", b"")].concat()
}

/// EXIF data of one entry: the picture's orientation, a quarter turn.
const SIDEWAYS: &[u8] = b"MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";

/// A JPEG file that announces so many pixels; its data is that of a smaller one.
fn jpeg_of(name: &str, width: u16, height: u16) -> Vec<u8> {
    let mut bytes = file(name);
    let frame = if name == "progressive.jpg" { 0xc2 } else { 0xc0 };
    let at = bytes.windows(2).position(|pair| pair == [0xff, frame]).unwrap();
    bytes[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    bytes[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

/// The memory that a file of a few bytes can claim is bounded before it is allocated, the conversion to RGB included.
#[test]
fn pixels_are_budgeted_before_they_are_decoded() {
    for (depth, colour) in [(1, 0), (8, 0), (8, 2), (8, 6), (16, 6)] {
        let reason = refused(&png_without_pixels(20_000, 20_000, depth, colour));
        assert!(reason.contains(&MAX_PIXELS.to_string()) || reason.contains("limit"), "{reason}");
    }
    // below the pixel limit, but four times 16 bits and three bytes each
    let reason = refused(&png_without_pixels(11_000, 11_000, 16, 6));
    assert!(reason.contains(&format!("{} bytes decoded", 11_000 * 11_000 * (8 + 3))), "{reason}");
    // turning a picture upright takes a copy of it
    let reason = refused(&png_with(8000, 8000, 16, 6, SIDEWAYS));
    assert!(reason.contains(&format!("{} bytes decoded", 8000 * 8000 * (2 * 8 + 3))), "{reason}");
    let png = file("grey16.png"); // of 1 × 7 pixels
    assert!(Picture::from_bytes_up_to("p", &png, 7).is_ok());
    assert!(
        Picture::from_bytes_up_to("p", &png, 6).unwrap_err().to_string().contains("at most 6 are allowed")
    );
    for name in ["baseline.jpg", "progressive.jpg"] {
        let reason = refused(&jpeg_of(name, 30_000, 30_000));
        assert!(reason.contains(&MAX_PIXELS.to_string()), "{name}: {reason}");
        refused(&jpeg_of(name, 65_000, 10));
    }
}

/// A pipe that nobody writes to is no picture, and is not waited for.
#[cfg(unix)]
#[test]
fn only_ordinary_files_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [&*pipe, folder.path(), Path::new("/dev/zero")] {
        let refused = Picture::open(path);
        assert!(matches!(refused, Err(Error::Image { .. })), "{}: {refused:?}", path.display());
    }
}
