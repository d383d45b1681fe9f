// run MODEL.aoti.pt2 SHAPE FILE [SHAPE FILE ...]
//
// Runs an AOTInductor package and prints its outputs. Each input is float32: its shape, as 1x3x8x8,
// and a file of its values. A package is machine code: run none whose maker you do not trust, and
// none with sizes that it was not exported for, which it does not check.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

std::vector<int64_t> parse_shape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) shape.push_back(std::stoll(size));
  return shape;
}

at::Tensor read_input(const std::string& shape, const std::string& path) {
  at::Tensor tensor = at::empty(parse_shape(shape), at::kFloat);
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes())))
    throw std::runtime_error(path + " is shorter than " + shape);
  return tensor;
}

void print_output(const at::Tensor& value) {
  at::Tensor flat = value.to(at::kDouble).contiguous().flatten();
  for (int64_t size : value.sizes()) std::printf("%lld ", static_cast<long long>(size));
  std::printf(":");
  for (int64_t index = 0; index < flat.numel(); ++index) std::printf(" %.9g", flat.data_ptr<double>()[index]);
  std::printf("\n");
}

int main(int argc, char** argv) {
  at::NoGradGuard without_gradients;
  torch::inductor::AOTIModelPackageLoader model(argv[1]);
  std::vector<at::Tensor> inputs;
  for (int index = 2; index + 1 < argc; index += 2) inputs.push_back(read_input(argv[index], argv[index + 1]));
  for (const at::Tensor& value : model.run(inputs)) print_output(value);
}
