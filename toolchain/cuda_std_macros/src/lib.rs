//! The attributes of cuda_std: #[kernel] and #[gpu_only].
