//! Q2_K, a type of files: w = d·scale·q − d_min·min, q from 0 to 3, with a scale and a minimum of 4 bits for each 16 values.
//!
//! A super-block of 256 values has 16 bytes with a scale in the low half and a minimum in the high half, 64 bytes of quants, d and
//! d_min. Byte 32·h + l of the quants, bits 2·i and 2·i + 1: value 128·h + 32·i + l.

use super::Format;
use super::host::{DeviceStorage, FileType, half_at, twos};

pub(super) const TYPE: FileType = FileType {
    id: 10,
    name: "Q2_K",
    block: 256,
    bytes: 84,
    scales: &[80, 82],
    centre: 1.5,
    storage: DeviceStorage::Converted(Format::Q4K),
    decode: |block, values| {
        let (d, d_min) = (half_at(block, 80), half_at(block, 82));
        for (i, value) in values.iter_mut().enumerate() {
            let (scale, min) = (f64::from(block[i / 16] & 15), f64::from(block[i / 16] >> 4));
            *value = d * scale * f64::from(twos(&block[16..80], i)) - d_min * min;
        }
    },
    encode: None,
};
