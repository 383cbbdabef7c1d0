"""Our library of kernels: GEMMs, convolutions, attention."""
