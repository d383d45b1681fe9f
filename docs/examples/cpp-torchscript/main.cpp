// run MODEL.pt SHAPE FILE [SHAPE FILE ...]
//
// Runs a TorchScript file and prints its outputs. Each input is float32: its shape, as 1x3x8x8, and
// a file of its values. This suits what modelc traced, which takes and returns tensors in a row.
#include <torch/script.h>

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

torch::Tensor read_input(const std::string& shape, const std::string& path) {
  torch::Tensor tensor = torch::empty(parse_shape(shape), torch::kFloat);
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(tensor.data_ptr()), static_cast<std::streamsize>(tensor.nbytes())))
    throw std::runtime_error(path + " is shorter than " + shape);
  return tensor;
}

void print_output(const torch::Tensor& value) {
  torch::Tensor flat = value.to(torch::kDouble).contiguous().flatten();
  for (int64_t size : value.sizes()) std::printf("%lld ", static_cast<long long>(size));
  std::printf(":");
  for (int64_t index = 0; index < flat.numel(); ++index) std::printf(" %.9g", flat.data_ptr<double>()[index]);
  std::printf("\n");
}

int main(int argc, char** argv) {
  torch::NoGradGuard without_gradients;
  torch::jit::Module model = torch::jit::load(argv[1]);
  model.eval();
  std::vector<c10::IValue> inputs;
  for (int index = 2; index + 1 < argc; index += 2) inputs.push_back(read_input(argv[index], argv[index + 1]));
  c10::IValue result = model.forward(inputs);
  if (result.isTensor()) {
    print_output(result.toTensor());
  } else {
    for (const c10::IValue& value : result.toTupleRef().elements()) print_output(value.toTensor());
  }
}
