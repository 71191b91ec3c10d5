"""The decode step on a GPU: CUDA graphs and Triton kernels. Not yet verified on a GPU."""
