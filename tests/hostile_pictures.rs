//! Picture files that are damaged, cut short, too large or of rare kinds: what Pillow 13 refuses is refused, and what it
//! reads has the pixels that it gives.

use pascaline::Error;
use qwen3_vl::preprocess::{MAX_PIXELS, Picture};
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/pictures")
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

/// Pillow refuses each of them one byte before the end already. What follows the end is no part of the picture.
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
    let chunk = |name: &[u8], data: &[u8]| {
        let named = [name, data].concat();
        let crc = named.iter().fold(!0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
        });
        [&(data.len() as u32).to_be_bytes(), &named[..], &(!crc).to_be_bytes()].concat()
    };
    let size = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[depth, colour, 0, 0, 0]].concat();
    [b"\x89PNG\r\n\x1a\n".to_vec(), chunk(b"IHDR", &size), chunk(b"IDAT", b""), chunk(b"IEND", b"")].concat()
}

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
    assert!(reason.contains("bytes decoded"), "{reason}");
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
