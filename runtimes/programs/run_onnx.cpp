// Runs an ONNX file on the CPU through ONNX Runtime's C API; feeds are in the order of its inputs.
#include <onnxruntime_c_api.h>

#include "program.hpp"

namespace {

using modelc::DType;
using modelc::Record;
using modelc::Tensor;

const OrtApi* api() {
  static const OrtApi* found = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  return found;
}

void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::string text = api()->GetErrorMessage(status);
  api()->ReleaseStatus(status);
  throw std::runtime_error(text);
}

struct Pair {
  DType dtype;
  ONNXTensorElementDataType type;
};

constexpr Pair kPairs[] = {
    {DType::Bool, ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL},
    {DType::UInt8, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
    {DType::Int8, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},
    {DType::Int16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16},
    {DType::Int32, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32},
    {DType::Int64, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
    {DType::Float16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16},
    {DType::BFloat16, ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16},
    {DType::Float32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT},
    {DType::Float64, ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE},
    {DType::UInt16, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16},
    {DType::UInt32, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32},
    {DType::UInt64, ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64},
};

ONNXTensorElementDataType element_type(DType dtype) {
  for (const Pair& one : kPairs)
    if (one.dtype == dtype) return one.type;
  throw std::runtime_error("ONNX Runtime has no such dtype");
}

DType dtype_of(ONNXTensorElementDataType type) {
  for (const Pair& one : kPairs)
    if (one.type == type) return one.dtype;
  throw std::runtime_error("a tensor has the ONNX type " + std::to_string(type));
}

struct Port {
  std::string name;
  DType dtype = DType::Float32;
};

class Values {  // releases what it holds
 public:
  explicit Values(size_t count) : held(count, nullptr) {}
  ~Values() {
    for (OrtValue* value : held)
      if (value != nullptr) api()->ReleaseValue(value);
  }
  std::vector<OrtValue*> held;
};

Tensor copy_output(OrtValue* value) {
  int is_tensor = 0;
  check(api()->IsTensor(value, &is_tensor));
  if (!is_tensor) throw std::runtime_error("an output is a sequence or a map");
  OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api()->GetTensorTypeAndShape(value, &info));
  ONNXTensorElementDataType type{};
  size_t rank = 0;
  check(api()->GetTensorElementType(info, &type));
  check(api()->GetDimensionsCount(info, &rank));
  Tensor made;
  made.dims.resize(rank);
  check(api()->GetDimensions(info, made.dims.data(), rank));
  api()->ReleaseTensorTypeAndShapeInfo(info);
  made.dtype = dtype_of(type);
  made.data.resize(modelc::byte_count(made.dtype, made.dims));
  void* place = nullptr;
  check(api()->GetTensorMutableData(value, &place));
  if (!made.data.empty()) std::memcpy(made.data.data(), place, made.data.size());
  return made;
}

class OnnxModel : public modelc::Model {
 public:
  OnnxModel(const std::string& path, int threads) {
    if (api() == nullptr) throw std::runtime_error("the library lacks version 1 of the C API");
    check(api()->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "modelc", &env_));
    check(api()->CreateSessionOptions(&options_));
    if (threads > 0) {
      check(api()->SetIntraOpNumThreads(options_, threads));
      check(api()->SetInterOpNumThreads(options_, 1));
    }
    check(api()->CreateSession(env_, path.c_str(), options_, &session_));
    check(api()->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory_));
    inputs_ = ports(api()->SessionGetInputCount, api()->SessionGetInputName, api()->SessionGetInputTypeInfo);
    outputs_ = ports(api()->SessionGetOutputCount, api()->SessionGetOutputName, api()->SessionGetOutputTypeInfo);
  }

  ~OnnxModel() override {
    if (memory_ != nullptr) api()->ReleaseMemoryInfo(memory_);
    if (session_ != nullptr) api()->ReleaseSession(session_);
    if (options_ != nullptr) api()->ReleaseSessionOptions(options_);
    if (env_ != nullptr) api()->ReleaseEnv(env_);
  }

  std::vector<Record> describe() override {
    std::vector<Record> records;
    for (const Port& one : inputs_) records.push_back(record("input", one));
    for (const Port& one : outputs_) records.push_back(record("output", one));
    return records;
  }

  std::vector<Tensor> run(const std::vector<Tensor>& feed) override {
    if (feed.size() != inputs_.size()) throw std::runtime_error("wrong number of inputs");
    Values inputs(feed.size()), outputs(outputs_.size());
    char none = 0;  // the library takes no null pointer, even for no bytes
    for (size_t index = 0; index < feed.size(); ++index) {
      const Tensor& given = feed[index];
      void* data = given.data.empty() ? &none : const_cast<char*>(given.data.data());
      check(api()->CreateTensorWithDataAsOrtValue(memory_, data, given.data.size(), given.dims.data(),
                                                  given.dims.size(), element_type(given.dtype),
                                                  &inputs.held[index]));
    }
    std::vector<const char*> input_names, output_names;
    for (const Port& one : inputs_) input_names.push_back(one.name.c_str());
    for (const Port& one : outputs_) output_names.push_back(one.name.c_str());
    check(api()->Run(session_, nullptr, input_names.data(), inputs.held.data(), inputs.held.size(),
                     output_names.data(), output_names.size(), outputs.held.data()));
    std::vector<Tensor> found;
    for (OrtValue* value : outputs.held) found.push_back(copy_output(value));
    return found;
  }

 private:
  static Record record(const char* kind, const Port& port) {
    return {kind, std::to_string(static_cast<int>(port.dtype)), port.name};
  }

  template <typename Count, typename Name, typename Type>
  std::vector<Port> ports(Count get_count, Name get_name, Type get_type) {
    OrtAllocator* allocator = nullptr;
    check(api()->GetAllocatorWithDefaultOptions(&allocator));
    size_t count = 0;
    check(get_count(session_, &count));
    std::vector<Port> found(count);
    for (size_t index = 0; index < count; ++index) {
      char* name = nullptr;
      check(get_name(session_, index, allocator, &name));
      found[index].name = name;
      check(api()->AllocatorFree(allocator, name));
      OrtTypeInfo* info = nullptr;
      check(get_type(session_, index, &info));
      const OrtTensorTypeAndShapeInfo* tensor = nullptr;
      check(api()->CastTypeInfoToTensorInfo(info, &tensor));
      if (tensor == nullptr) throw std::runtime_error(found[index].name + " is a sequence or a map");
      ONNXTensorElementDataType type{};
      check(api()->GetTensorElementType(tensor, &type));
      found[index].dtype = dtype_of(type);
      api()->ReleaseTypeInfo(info);
    }
    return found;
  }

  OrtEnv* env_ = nullptr;
  OrtSessionOptions* options_ = nullptr;
  OrtSession* session_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  std::vector<Port> inputs_, outputs_;
};

std::unique_ptr<modelc::Model> open(const std::string& path, int threads) {
  return std::make_unique<OnnxModel>(path, threads);
}

}  // namespace

int main(int argc, char** argv) {
  return modelc::serve(argc, argv, OrtGetApiBase()->GetVersionString(), open);
}
