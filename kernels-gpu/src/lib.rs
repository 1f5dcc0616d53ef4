//! Pascaline's GPU kernels, their launch contracts, and the layouts host and device share.
