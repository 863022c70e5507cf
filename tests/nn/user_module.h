// A user's module made of torch's own modules, for tests that train one but do not include torch's
// module headers, which take longer to compile than the test itself.
//
//   const UserModule net("net", {part::Linear{6, 4}, part::BatchNorm{4}, part::Linear{4, 1}});
//   stack.add(net.layer());
//
// The parts are named by their index: net.0.weight, net.1.running_mean.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "echelon/nn/layer.h"

namespace torch::nn {
class SequentialImpl;
}

namespace echelon {

namespace part {
struct Linear {
  std::int64_t in, out;
};
struct BatchNorm {
  std::int64_t features;
};
struct SyncBatchNorm {
  std::int64_t features;
};
struct Dropout {
  double rate;
};
struct Tanh {};
using Any = std::variant<Linear, BatchNorm, SyncBatchNorm, Dropout, Tanh>;
}  // namespace part

class UserModule {
 public:
  UserModule(std::string name, const std::vector<part::Any>& parts);
  std::unique_ptr<Layer> layer() const;
  std::vector<at::Tensor> parameters() const;        // as autograd sees them
  at::Tensor buffer(const std::string& name) const;  // such as 1.running_mean
  at::Tensor forward(const at::Tensor& x) const;     // as a user calls it
  void eval() const;
  void save(const std::filesystem::path& path) const;  // torch::save
  void load(const std::filesystem::path& path) const;  // torch::load
  std::size_t children() const;

 private:
  std::string name_;
  std::shared_ptr<torch::nn::SequentialImpl> net_;
};

}  // namespace echelon
