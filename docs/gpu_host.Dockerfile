# The host that finishes TensorRT engines: docs/gpu_host.md.
#
#   docker build -f docs/gpu_host.Dockerfile -t modelc-gpu .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD/out:/work/out" modelc-gpu build-trt out/
#
# It needs the NVIDIA Container Toolkit on the host and a driver of r580 or later (CUDA 13). As of 2026-11-25 this file has not
# been built by its authors, who have neither a GPU nor Docker at hand.
FROM python:3.12-slim-bookworm

# What the toolkit mounts from the host: libcuda.so.1 and nvidia-smi.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    PIP_NO_CACHE_DIR=1 \
    HOME=/tmp

COPY . /src
# torch and TensorRT for the same CUDA: the engine reads and writes torch's tensors. tensorrt's libraries come from NVIDIA's index.
RUN pip install torch==2.13.0 -c /src/constraints.txt \
 && pip install --extra-index-url https://pypi.nvidia.com tensorrt==11.4.0.106 tensorrt-rtx-cu13==1.7.1.116 \
 && pip install -c /src/constraints.txt /src \
 && rm -rf /src

WORKDIR /work
ENTRYPOINT ["modelc"]
CMD ["doctor"]
