"""Machine code of sm_61: `code` reads it, `path` follows a kernel from its beginning to its end, `multiprocessor` runs that."""
