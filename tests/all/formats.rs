//! The types of GGUF files and the quantised formats name and describe the same.

use kernels_gpu::quant::formats::{DeviceStorage, Format, GgmlType};

#[test]
fn numbers_and_names_are_unique_and_blocks_hold_their_scales() {
    for ty in GgmlType::ALL {
        let name = format!("{ty:?}"); // as it is declared
        assert_eq!((GgmlType::of_id(ty.id()), GgmlType::of_name(&name)), (Some(ty), Some(ty)));
        assert!(ty.descriptor().scales.iter().all(|at| at + 2 <= ty.block_bytes()), "{ty:?}");
    }
    assert_eq!(GgmlType::Q6_K.bytes(512), 420);
    assert_eq!(GgmlType::of_id(4), None, "withdrawn from the format");
}

/// A format's type in files says that it is stored as it is, and as many values make a block.
#[test]
fn formats_and_types_say_the_same() {
    for format in Format::ALL {
        let Some(file) = &format.descriptor().file else { continue };
        assert_eq!(file.storage, DeviceStorage::AsIs(format));
        assert_eq!(file.block, format.descriptor().block, "{format:?}");
        assert!(file.name.eq_ignore_ascii_case(format.descriptor().name), "{format:?}");
    }
}
