// Runs a TorchScript archive with torch::jit::load; feeds are named by forward's parameters.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/version.h>

#include "torch_tensors.hpp"

namespace {

using modelc::kSeparator;
using modelc::Record;
using modelc::Tensor;

std::string join(const std::string& path, const std::string& part) {
  return path.empty() ? part : path + kSeparator + part;
}

// The keys directly below a path, in the order of the feed.
std::vector<std::string> keys_below(const std::vector<Tensor>& feed, const std::string& path) {
  std::vector<std::string> keys;
  const std::string start = path + kSeparator;
  for (const Tensor& tensor : feed) {
    if (tensor.name.compare(0, start.size(), start) != 0) continue;
    std::string key = tensor.name.substr(start.size(), tensor.name.find(kSeparator, start.size()) - start.size());
    if (keys.empty() || keys.back() != key) keys.push_back(key);
  }
  return keys;
}

bool has_value(const std::vector<Tensor>& feed, const std::string& path) {
  for (const Tensor& tensor : feed)
    if (tensor.name == path) return true;
  return !keys_below(feed, path).empty();
}

std::string field_name(const c10::TupleType& type, size_t index) {
  auto schema = type.schema();
  return schema ? schema->arguments()[index].name() : std::to_string(index);
}

// The value of this type from the tensors whose names begin with the path.
c10::IValue build(const c10::TypePtr& type, const std::string& path, const std::vector<Tensor>& feed) {
  if (auto optional = type->cast<c10::OptionalType>())
    return has_value(feed, path) ? build(optional->getElementType(), path, feed) : c10::IValue();
  if (auto tuple = type->cast<c10::TupleType>()) {
    std::vector<c10::IValue> elements;
    for (size_t index = 0; index < tuple->elements().size(); ++index) {
      bool by_index = has_value(feed, join(path, std::to_string(index)));
      std::string key = by_index ? std::to_string(index) : field_name(*tuple, index);
      elements.push_back(build(tuple->elements()[index], join(path, key), feed));
    }
    return tuple->schema() ? c10::ivalue::Tuple::createNamed(std::move(elements), tuple)
                           : c10::ivalue::Tuple::create(std::move(elements));
  }
  if (auto list = type->cast<c10::ListType>()) {
    c10::impl::GenericList made(list->getElementType());
    for (size_t index = 0; has_value(feed, join(path, std::to_string(index))); ++index)
      made.push_back(build(list->getElementType(), join(path, std::to_string(index)), feed));
    return made;
  }
  if (auto dict = type->cast<c10::DictType>()) {
    c10::impl::GenericDict made(dict->getKeyType(), dict->getValueType());
    for (const std::string& key : keys_below(feed, path))
      made.insert(key, build(dict->getValueType(), join(path, key), feed));
    return made;
  }
  for (const Tensor& tensor : feed)
    if (tensor.name == path) return modelc::to_torch(tensor);
  throw std::runtime_error("no input is bound to " + path + ", which is " + type->str());
}

std::string key_text(const c10::IValue& key) {
  if (key.isString()) return key.toStringRef();
  return key.isInt() ? std::to_string(key.toInt()) : "?";
}

// Collect the tensors of a value with their paths, without None and numbers.
void collect(const c10::IValue& value, const std::string& path, std::vector<Tensor>& found) {
  if (value.isTensor()) {
    found.push_back(modelc::from_torch(path, value.toTensor()));
  } else if (value.isTuple()) {
    const auto& elements = value.toTupleRef().elements();
    auto type = value.type()->expect<c10::TupleType>();
    for (size_t index = 0; index < elements.size(); ++index)
      collect(elements[index], join(path, field_name(*type, index)), found);
  } else if (value.isList()) {
    auto elements = value.toListRef();
    for (size_t index = 0; index < elements.size(); ++index)
      collect(elements[index], join(path, std::to_string(index)), found);
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict())
      collect(entry.value(), join(path, key_text(entry.key())), found);
  }
}

class TorchScriptModel : public modelc::Model {
 public:
  explicit TorchScriptModel(const std::string& path) : module_(torch::jit::load(path, at::kCPU)) {
    module_.eval();
  }

  std::vector<Record> describe() override {
    std::vector<Record> records;
    const auto& arguments = schema().arguments();
    for (size_t index = 1; index < arguments.size(); ++index) {  // the first is self
      const auto& one = arguments[index];
      records.push_back({"parameter", one.name(), one.type()->str(), one.default_value() ? "" : "required",
                         one.kwarg_only() ? "keyword" : ""});
    }
    return records;
  }

  std::vector<Tensor> run(const std::vector<Tensor>& feed) override {
    at::NoGradGuard without_gradients;
    std::unordered_map<std::string, c10::IValue> values;
    const auto& arguments = schema().arguments();
    for (size_t index = 1; index < arguments.size(); ++index)
      if (has_value(feed, arguments[index].name()))
        values[arguments[index].name()] = build(arguments[index].type(), arguments[index].name(), feed);
    std::vector<Tensor> outputs;
    collect(module_.forward({}, values), "", outputs);
    return outputs;
  }

 private:
  const c10::FunctionSchema& schema() { return module_.get_method("forward").function().getSchema(); }

  torch::jit::Module module_;
};

std::unique_ptr<modelc::Model> open(const std::string& path, int threads) {
  modelc::limit_threads(threads);
  return std::make_unique<TorchScriptModel>(path);
}

}  // namespace

int main(int argc, char** argv) { return modelc::serve(argc, argv, TORCH_VERSION, open); }
