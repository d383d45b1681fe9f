"""TensorRT-RTX as the strict double, with the engines of `runtime_engine`."""

import runtime_engine

runtime_engine.use_cpu_memory()
globals().update(runtime_engine.names_of_double(magic=b"vtrt", version="1.7.1.116"))
