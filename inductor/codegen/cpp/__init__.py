"""C++/OpenMP code of kernels: `kernel.print_kernel` for one, `unit.print_units` for a library."""
