// Runs an OpenVINO IR on the CPU in float32, as modelc judges it; feeds are in the order of its inputs.
#include <openvino/openvino.hpp>

#include "program.hpp"

namespace {

using modelc::DType;
using modelc::Record;
using modelc::Tensor;

struct Pair {
  DType dtype;
  ov::element::Type type;
};

const std::vector<Pair>& pairs() {
  static const std::vector<Pair> all = {
      {DType::Bool, ov::element::boolean}, {DType::UInt8, ov::element::u8},
      {DType::Int8, ov::element::i8},      {DType::Int16, ov::element::i16},
      {DType::Int32, ov::element::i32},    {DType::Int64, ov::element::i64},
      {DType::Float16, ov::element::f16},  {DType::BFloat16, ov::element::bf16},
      {DType::Float32, ov::element::f32},  {DType::Float64, ov::element::f64},
      {DType::UInt16, ov::element::u16},   {DType::UInt32, ov::element::u32},
      {DType::UInt64, ov::element::u64}};
  return all;
}

ov::element::Type element_type(DType dtype) {
  for (const Pair& one : pairs())
    if (one.dtype == dtype) return one.type;
  throw std::runtime_error("OpenVINO has no such dtype");
}

DType dtype_of(const ov::element::Type& type) {
  for (const Pair& one : pairs())
    if (one.type == type) return one.dtype;
  throw std::runtime_error("a tensor is of " + type.get_type_name());
}

Record describe_port(const std::string& kind, const ov::Output<const ov::Node>& port) {
  Record record{kind, std::to_string(static_cast<int>(dtype_of(port.get_element_type())))};
  for (const std::string& name : port.get_names()) record.push_back(name);
  if (record.size() == 2) record.push_back(port.get_node()->get_friendly_name());
  return record;
}

Tensor copy_output(const ov::Tensor& value) {
  Tensor made;
  made.dtype = dtype_of(value.get_element_type());
  for (size_t dim : value.get_shape()) made.dims.push_back(static_cast<int64_t>(dim));
  made.data.resize(modelc::byte_count(made.dtype, made.dims));
  if (made.data.size() != value.get_byte_size()) throw std::runtime_error("an output is not dense");
  if (!made.data.empty()) std::memcpy(made.data.data(), value.data(), made.data.size());
  return made;
}

class OpenVinoModel : public modelc::Model {
 public:
  OpenVinoModel(const std::string& path, int threads) {
    ov::AnyMap config{ov::hint::inference_precision(ov::element::f32),
                      ov::hint::execution_mode(ov::hint::ExecutionMode::ACCURACY)};
    if (threads > 0) config.insert(ov::inference_num_threads(threads));
    compiled_ = core_.compile_model(path, "CPU", config);
    request_ = compiled_.create_infer_request();
  }

  std::vector<Record> describe() override {
    std::vector<Record> records;
    for (const auto& port : compiled_.inputs()) records.push_back(describe_port("input", port));
    for (const auto& port : compiled_.outputs()) records.push_back(describe_port("output", port));
    return records;
  }

  std::vector<Tensor> run(const std::vector<Tensor>& feed) override {
    if (feed.size() != compiled_.inputs().size()) throw std::runtime_error("wrong number of inputs");
    for (size_t index = 0; index < feed.size(); ++index) {
      const Tensor& given = feed[index];
      ov::Tensor made(element_type(given.dtype), ov::Shape(given.dims.begin(), given.dims.end()));
      if (!given.data.empty()) std::memcpy(made.data(), given.data.data(), given.data.size());
      request_.set_input_tensor(index, made);
    }
    request_.infer();
    std::vector<Tensor> outputs;
    for (size_t index = 0; index < compiled_.outputs().size(); ++index)
      outputs.push_back(copy_output(request_.get_output_tensor(index)));
    return outputs;
  }

 private:
  ov::Core core_;
  ov::CompiledModel compiled_;
  ov::InferRequest request_;
};

std::unique_ptr<modelc::Model> open(const std::string& path, int threads) {
  return std::make_unique<OpenVinoModel>(path, threads);
}

}  // namespace

int main(int argc, char** argv) {
  return modelc::serve(argc, argv, ov::get_openvino_version().buildNumber, open);
}
