//! Pascaline's GPU kernels. Each op is one file with its kernels and their launch contracts ([`KernelSpec`]).
//!
//! On the host this crate is a library of launch contracts: kernel names, block sizes, parameter types. `cuda_builder`
//! compiles it for `nvptx64` to the PTX modules.

#![allow(rustdoc::broken_intra_doc_links)] // shapes, as [rows] or [n, k], read like links
#![allow(rustdoc::private_intra_doc_links)] // contracts are stated once, at the function that several kernels share
#![cfg_attr(target_arch = "nvptx64", no_std)]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, core_float_math))]

pub mod activate;
pub mod activate_backward;
pub mod adamw8bit;
pub mod attention;
pub mod cast;
pub mod column_sum;
pub mod copy;
pub mod cross_entropy;
pub mod device;
pub mod elementwise;
pub mod embedding;
pub mod embedding_backward;
pub mod empty;
pub mod experts;
pub mod float16;
pub mod kv;
pub mod layer_norm;
pub mod matmul;
pub mod norm_backward;
pub mod optimizer;
pub mod peak;
pub mod probe;
pub mod quant;
pub mod reduce;
pub mod rms_norm;
pub mod rope;
pub mod rope_append;
pub mod softmax;
pub mod softmax_backward;
pub mod transpose;

use cuda_std::KernelInfo;

/// The contracts of every kernel in the PTX, one slice per op.
pub const KERNELS: &[&[KernelInfo]] = &[
    activate::KERNELS,
    activate_backward::KERNELS,
    adamw8bit::KERNELS,
    attention::backward::KERNELS,
    attention::chosen::choose::KERNELS,
    attention::chosen::prefill::KERNELS,
    attention::chosen::sums::KERNELS,
    attention::decode::of_f16::KERNELS,
    attention::decode::of_f32::KERNELS,
    attention::int8::prefill::KERNELS,
    attention::int8::round::KERNELS,
    attention::paged::decode::KERNELS,
    attention::paged::prefill::KERNELS,
    attention::prefill::MERGE,
    attention::prefill::of_f16::KERNELS,
    attention::prefill::of_f32::KERNELS,
    attention::prefill::of_f32_d80::KERNELS,
    attention::sparse::backward::KERNELS,
    attention::sparse::block_mean::KERNELS,
    attention::sparse::decode::KERNELS,
    attention::sparse::prefill::COMBINE,
    attention::sparse::prefill::KERNELS,
    cast::KERNELS,
    column_sum::KERNELS,
    copy::KERNELS,
    cross_entropy::KERNELS,
    elementwise::KERNELS,
    embedding::KERNELS,
    embedding_backward::KERNELS,
    &[empty::empty.info()],
    experts::KERNELS,
    float16::convert::KERNELS,
    layer_norm::KERNELS,
    matmul::dequant_linear::KERNELS,
    matmul::experts::KERNELS,
    matmul::reduce::KERNELS,
    matmul::regtile::strided::KERNELS,
    matmul::regtile::tile128::KERNELS,
    matmul::regtile::wide128::KERNELS,
    matmul::regtile::tile64x128::KERNELS,
    matmul::regtile::tile64::KERNELS,
    matmul::regtile::tile32::KERNELS,
    matmul::regtile::tile64_coded::KERNELS,
    matmul::vector::KERNELS,
    norm_backward::KERNELS,
    optimizer::KERNELS,
    &[peak::peak_fma.info(), peak::peak_dp4a.info()],
    probe::KERNELS,
    quant::decode::KERNELS,
    quant::encode::KERNELS,
    quant::experts::KERNELS,
    quant::formats::KERNELS,
    quant::lora::KERNELS,
    quant::norm::KERNELS,
    quant::scaled::KERNELS,
    &[quant::straight_through::quant_straight_through_f32.info()],
    quant::tile::KERNELS,
    quant::vector::experts::KERNELS,
    quant::vector::one::KERNELS,
    quant::vector::quantized::KERNELS,
    reduce::KERNELS,
    rms_norm::KERNELS,
    rope::KERNELS,
    rope_append::of_f16::KERNELS,
    rope_append::of_f32::KERNELS,
    softmax::KERNELS,
    softmax_backward::KERNELS,
    transpose::KERNELS,
];
