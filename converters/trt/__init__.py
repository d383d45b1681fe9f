"""What the TensorRT target is made of: driver, options, network, build, child process, runner.

No module of this package imports `tensorrt` when it is imported itself: without a CUDA driver even
`Runtime(logger)` gives an object that crashes the process, so the driver is asked first.
"""
