//! Q5_1, a type of files: w = d·q + m, q from 0 to 31. A block has d, m, a word of fifth bits and 16 bytes of nibbles.

use super::Format;
use super::host::{DeviceStorage, FileType, five, half_at};

pub(super) const TYPE: FileType = FileType {
    id: 7,
    name: "Q5_1",
    block: 32,
    bytes: 24,
    scales: &[0, 2],
    exponent: None,
    centre: -15.5,
    storage: DeviceStorage::Converted(Format::Q6K), // of normal values the type loses 3.8 %, the conversion 1.8 %
    decode: |block, values| {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (i, value) in values.iter_mut().enumerate() {
            *value = d * f64::from(five(&block[4..], i)) + m;
        }
    },
    encode: None,
};
