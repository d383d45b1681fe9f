// run MODEL.xml SHAPE FILE [SHAPE FILE ...]
//
// Runs an OpenVINO IR and prints its outputs. Each input is float32: its shape, as 1x3x8x8, and a
// file of its values. Some CPUs compute in bfloat16 by default; modelc judges in float32, as here.
#include <cstdio>
#include <fstream>
#include <openvino/openvino.hpp>
#include <sstream>
#include <string>

ov::Shape parse_shape(const std::string& text) {
  ov::Shape shape;
  std::istringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) shape.push_back(std::stoul(size));
  return shape;
}

ov::Tensor read_input(const std::string& shape, const std::string& path) {
  ov::Tensor tensor(ov::element::f32, parse_shape(shape));
  std::ifstream stream(path, std::ios::binary);
  if (!stream.read(static_cast<char*>(tensor.data()), static_cast<std::streamsize>(tensor.get_byte_size())))
    throw std::runtime_error(path + " is shorter than " + shape);
  return tensor;
}

void print_output(const ov::Tensor& value) {
  for (size_t size : value.get_shape()) std::printf("%zu ", size);
  std::printf(":");
  for (size_t index = 0; index < value.get_size(); ++index) std::printf(" %.9g", value.data<float>()[index]);
  std::printf("\n");
}

int main(int argc, char** argv) {
  ov::Core core;
  ov::CompiledModel model = core.compile_model(argv[1], "CPU", ov::hint::inference_precision(ov::element::f32));
  ov::InferRequest request = model.create_infer_request();
  for (int index = 2; index + 1 < argc; index += 2)
    request.set_input_tensor(index / 2 - 1, read_input(argv[index], argv[index + 1]));
  request.infer();
  for (size_t index = 0; index < model.outputs().size(); ++index) print_output(request.get_output_tensor(index));
}
