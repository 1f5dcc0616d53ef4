//! Q3_K, a type of files: w = d·(scale − 32)·q, q from −4 to 3, with a 6-bit scale for each 16 values.

use super::Format;
use super::host::{DeviceStorage, FileType, half_at, twos};

pub(super) const TYPE: FileType = FileType {
    id: 11,
    name: "Q3_K",
    block: 256,
    bytes: 110,
    scales: &[108],
    centre: 0.0,
    storage: DeviceStorage::Converted(Format::Q4K),
    decode: |block, values| {
        let (high, low, scales, d) = (&block[..32], &block[32..96], &block[96..108], half_at(block, 108));
        for (i, value) in values.iter_mut().enumerate() {
            let j = i / 16;
            let scale = (scales[j % 8] >> (j / 8 * 4) & 15) | (scales[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
            let q = twos(low, i) | (high[i % 32] >> (i / 32) & 1) << 2;
            *value = d * (f64::from(scale) - 32.0) * (f64::from(q) - 4.0);
        }
    },
    encode: None,
};
