//! The integration tests of the library and of the model, in one executable.
//!
//! Tests that change the state of their process run in one of their own (`common/process.rs`).

mod common;

mod adapter;
mod adapter_places;
mod bad_input_attention;
mod bad_input_fused;
mod bad_input_matmul;
mod bad_input_memory_ops;
mod bad_input_paged;
mod bad_input_sparse_attention;
mod bad_input_training;
mod batch;
mod batch_fault;
mod block_mask;
mod circles;
mod documented;
mod experts;
mod fault_matrix;
mod fault_messages;
mod float16;
mod footprint;
mod formats;
mod gguf_bad_files;
mod gguf_model;
mod gguf_quantized;
mod gguf_written;
mod hostile_pictures;
mod hostile_session;
mod hostile_tokenizer;
mod int8_attention;
mod interrupted;
mod layers;
mod memory;
mod memory_device;
mod memory_fault;
mod moe;
mod ops;
mod out_of_memory;
mod own_kernel;
mod plan_peak;
mod ptx;
mod quant;
mod qwen3;
mod qwen3_vl;
mod qwen3_vl_deviations;
mod qwen3_vl_files;
mod qwen3_vl_model;
mod qwen3_vl_offload;
mod sparse_prefill;
mod split_fault;
mod split_model;
mod split_rows;
mod split_rows_fault;
mod tensor;
