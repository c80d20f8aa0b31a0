"""The CUDA backend: the same Programs on GPUs, measured by CuPy, and kernels that are tested without one."""
