//! An sm_61 GPU in software, under the CUDA driver API.
