// Runs an AOTInductor package with AOTIModelPackageLoader; feeds are in the order of its inputs.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/version.h>

#include "torch_tensors.hpp"

namespace {

class AotiModel : public modelc::Model {
 public:
  explicit AotiModel(const std::string& path) : loader_(path) {}

  std::vector<modelc::Record> describe() override { return {}; }  // a package names nothing

  std::vector<modelc::Tensor> run(const std::vector<modelc::Tensor>& feed) override {
    at::NoGradGuard without_gradients;
    std::vector<at::Tensor> inputs;
    for (const modelc::Tensor& tensor : feed) inputs.push_back(modelc::to_torch(tensor));
    std::vector<modelc::Tensor> outputs;
    for (const at::Tensor& value : loader_.run(inputs))
      outputs.push_back(modelc::from_torch(std::to_string(outputs.size()), value));
    return outputs;
  }

 private:
  torch::inductor::AOTIModelPackageLoader loader_;
};

std::unique_ptr<modelc::Model> open(const std::string& path, int threads) {
  modelc::limit_threads(threads);
  return std::make_unique<AotiModel>(path);
}

}  // namespace

int main(int argc, char** argv) { return modelc::serve(argc, argv, TORCH_VERSION, open); }
