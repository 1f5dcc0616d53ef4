//! The seam under cust: the CUDA driver API's symbols, served by libcuda or by the virtual GPU.
