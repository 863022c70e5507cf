#include "tests/nn/user_module.h"

#include <torch/csrc/api/include/torch/nn/modules/activation.h>
#include <torch/csrc/api/include/torch/nn/modules/batchnorm.h>
#include <torch/csrc/api/include/torch/nn/modules/container/sequential.h>
#include <torch/csrc/api/include/torch/nn/modules/dropout.h>
#include <torch/csrc/api/include/torch/nn/modules/linear.h>
#include <torch/csrc/api/include/torch/serialize.h>

#include "echelon/nn/module_layer.h"
#include "echelon/nn/sync_batch_norm.h"

namespace echelon {
namespace {

namespace nn = torch::nn;

nn::AnyModule made(const part::Linear& part) {
  return nn::AnyModule(nn::Linear(part.in, part.out));
}
nn::AnyModule made(const part::SyncBatchNorm& part) {
  return nn::AnyModule(echelon::SyncBatchNorm(part.features));
}
nn::AnyModule made(const part::BatchNorm& part) {
  return nn::AnyModule(nn::BatchNorm1d(part.features));
}
nn::AnyModule made(const part::Dropout& part) { return nn::AnyModule(nn::Dropout(part.rate)); }
nn::AnyModule made(const part::Tanh&) { return nn::AnyModule(nn::Tanh()); }

}  // namespace

UserModule::UserModule(std::string name, const std::vector<part::Any>& parts)
    : name_(std::move(name)), net_(std::make_shared<nn::SequentialImpl>()) {
  for (const auto& part : parts)
    net_->push_back(std::visit([](const auto& one) { return made(one); }, part));
}

std::unique_ptr<Layer> UserModule::layer() const {
  return module_layer(name_, nn::Sequential(net_));
}

std::vector<at::Tensor> UserModule::parameters() const { return net_->parameters(); }

at::Tensor UserModule::buffer(const std::string& name) const { return net_->named_buffers()[name]; }

at::Tensor UserModule::forward(const at::Tensor& x) const { return net_->forward(x); }

void UserModule::eval() const { net_->eval(); }

void UserModule::save(const std::filesystem::path& path) const {
  torch::save(nn::Sequential(net_), path.string());
}

void UserModule::load(const std::filesystem::path& path) const {
  nn::Sequential net(net_);
  torch::load(net, path.string());
}

std::size_t UserModule::children() const { return net_->children().size(); }

}  // namespace echelon
