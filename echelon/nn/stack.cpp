#include "echelon/nn/stack.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/nn/memory.h"

namespace echelon {

void Parameter::add_grad(const at::Tensor& part) {
  if (grad_beta() == 0) {
    grad.copy_(part.view_as(grad));
  } else {
    grad.add_(part.view_as(grad));
  }
}

void Parameter::zero_unwritten_grad() {
  if (trainable && !std::exchange(grad_written, true)) grad.zero_();
}

ValueSource random_values(std::uint64_t seed) {
  return [seed](const Parameter& parameter, at::Tensor out) {
    switch (parameter.init.kind) {
      case Init::Kind::zeros:
        out.zero_();
        return;
      case Init::Kind::ones:
        out.fill_(1);
        return;
      case Init::Kind::given:
        out.copy_(parameter.init.given);
        return;
      case Init::Kind::normal:
        break;
    }
    const Key key = derive_key(seed, parameter.name);
    const auto fill = [&]<class T>(at::Tensor host, T*) {
      T* data = host.data_ptr<T>();
      at::parallel_for(0, host.numel(), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
        fill_normal(key, static_cast<std::uint64_t>(begin),
                    std::span(data + begin, static_cast<std::size_t>(end - begin)), 0,
                    parameter.init.stddev);
      });
    };
    const bool wide = out.scalar_type() == at::kDouble;
    const bool in_place =
        out.is_cpu() && out.is_contiguous() && (wide || out.scalar_type() == at::kFloat);
    at::Tensor host = in_place ? out : at::empty(out.sizes(), wide ? at::kDouble : at::kFloat);
    wide ? fill(host, static_cast<double*>(nullptr)) : fill(host, static_cast<float*>(nullptr));
    if (!in_place) out.copy_(host);
  };
}

Stack::~Stack() = default;

Stack& Stack::add(std::unique_ptr<Layer> layer) {
  layers_.push_back(std::move(layer));
  layers_.back()->declare(*this);
  return *this;
}

Parameter* Stack::parameter(std::string name, std::vector<std::int64_t> shape, Init init,
                            bool decay, bool trainable) {
  if (find(name) != nullptr) {
    throw InvalidArgument(fmt::format(
        "two parameters of the model are named {}; give the layers distinct names", name));
  }
  // A second layer over the same module would train a copy that nobody reads.
  for (const auto& other : parameters_) {
    if (init.given.defined() && other.init.given.defined() && init.given.numel() > 0 &&
        init.given.const_data_ptr() == other.init.given.const_data_ptr()) {
      throw InvalidArgument(fmt::format(
          "{} and {} are the same tensor: a module can be in one layer only", other.name, name));
    }
  }
  Parameter& p = parameters_.emplace_back();
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.init = std::move(init);
  p.decay = decay;
  p.trainable = trainable;
  p.layer = size() - 1;
  return &p;
}

Parameter* Stack::tied(const std::string& name) {
  Parameter* p = find(name);
  if (p == nullptr) {
    throw InvalidArgument(
        fmt::format("a layer ties itself to {}, which no earlier layer declares", name));
  }
  ties_.push_back({name, p->layer, size() - 1});
  return p;
}

Parameter* Stack::find(const std::string& name) {
  const auto it = std::find_if(parameters_.begin(), parameters_.end(),
                               [&](const Parameter& p) { return p.name == name; });
  return it == parameters_.end() ? nullptr : &*it;
}

std::int64_t Stack::parameter_count() const {
  std::int64_t n = 0;
  for (const auto& p : parameters_) n += p.numel();
  return n;
}

void Stack::allocate(at::Device device, at::ScalarType type, Gradients gradients,
                     const Memory& gradient_memory) {
  device_ = device;
  type_ = type;
  std::vector<const Parameter*> described;
  for (const auto& p : parameters_) described.push_back(&p);
  units_ = lay_out(described);

  std::int64_t trainable = 0, frozen = 0;
  for (const auto& unit : units_) (unit.trainable ? trainable : frozen) += unit.numel;
  const auto options = at::TensorOptions(device).dtype(type);
  {
    MemoryScope scope(MemoryKind::parameters);
    values_ = at::zeros({trainable}, options);
    frozen_ = at::zeros({frozen}, options);
  }
  if (gradients == Gradients::yes) {
    MemoryScope scope(MemoryKind::gradients);
    grads_ = gradient_memory ? gradient_memory(trainable, type) : at::zeros({trainable}, options);
  }
  for (const auto& unit : units_) {
    for (const auto& segment : unit.segments) {
      Parameter& p = *find(segment.name);
      const auto begin = unit.begin + segment.offset;
      p.value =
          (unit.trainable ? values_ : frozen_).narrow(0, begin, segment.numel).view(segment.shape);
      if (unit.trainable && grads_.defined())
        p.grad = grads_.narrow(0, begin, segment.numel).view(segment.shape);
    }
  }
  for (auto& layer : layers_) layer->bind(device, type);
}

void Stack::load(const ValueSource& source) {
  at::NoGradGuard no_grad;
  for (auto& p : parameters_) source(p, p.value);
}

void Stack::begin_step() {
  for (auto& p : parameters_) p.grad_written = false;
}

void Stack::zero_unwritten_grads(std::int64_t begin, std::int64_t end) {
  for (auto& p : parameters_) {
    if (!p.trainable) continue;
    const auto at = p.grad.storage_offset() - grads_.storage_offset();
    if (at >= begin && at < end) p.zero_unwritten_grad();
  }
}

std::vector<std::pair<std::string, at::Tensor>> Stack::buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& layer : layers_) {
    for (auto& buffer : layer->buffers()) all.push_back(std::move(buffer));
  }
  return all;
}

bool Stack::capturable() const {
  return std::all_of(layers_.begin(), layers_.end(),
                     [](const auto& layer) { return layer->capturable(); });
}

at::Tensor Stack::infer(const at::Tensor& input, const at::Tensor& target) {
  at::NoGradGuard no_grad;
  at::Tensor x = input;
  for (auto& layer : layers_) {
    Pass pass;
    pass.training = false;
    if (layer == layers_.back()) pass.target = target;
    x = layer->forward(x, pass);
  }
  return x;
}

}  // namespace echelon
