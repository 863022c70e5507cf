#include "echelon/nn/stack.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/base/random.h"
#include "echelon/nn/elsewhere.h"
#include "echelon/nn/layer_error.h"
#include "echelon/nn/low_rank.h"
#include "echelon/nn/memory.h"
#include "echelon/nn/parallel_over.h"
#include "echelon/nn/tensor_group.h"

namespace echelon {

void Parameter::add_grad(const at::Tensor& part) {
  if (!trainable) return;
  if (grad_beta() == 0) {
    grad.copy_(part.view_as(grad));
  } else {
    grad.add_(part.view_as(grad));
  }
}

void Parameter::zero_unwritten_grad() {
  if (trainable && !std::exchange(grad_written, true)) grad.zero_();
}

ValueSource parts_of(ValueSource wholes) {
  return [wholes = std::move(wholes)](const Parameter& parameter, at::Tensor out) {
    if (!parameter.split.is_part()) return wholes(parameter, out);
    const at::Tensor whole = at::empty(parameter.whole_shape(), out.options().device(at::kCPU));
    wholes(parameter, whole);
    out.copy_(part_of(whole, parameter.split));
  };
}

ValueSource random_values(std::uint64_t seed) {
  return parts_of([seed](const Parameter& parameter, at::Tensor out) {
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
      parallel_over(host.view({-1}), 1 << 14, [&](std::int64_t begin, std::int64_t end) {
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
  });
}

Stack::~Stack() = default;

Stack& Stack::add(std::unique_ptr<Layer> layer) {
  layers_.push_back(std::move(layer));
  layers_.back()->declare(*this);
  return *this;
}

Stack& Stack::recompute(Recompute what) {
  recompute_ = what;
  return *this;
}

void Stack::keep(const std::vector<bool>& layers) {
  if (layers.size() != layers_.size()) throw Error("Stack::keep takes a mark for every layer");
  use_parts();
  kept_ = layers;
  for (auto& p : parameters_) {
    p.layer = declared_in(p);
    p.here = has(p.layer);
    p.counted = counts(p);
    p.copied = false;
    p.value.reset();
    p.grad.reset();
  }
  for (const auto& tie : ties_) {
    Parameter& p = *find(tie.name);
    if (!has(tie.owner) || !has(tie.user)) p.copied = true;
    if (p.here || !has(tie.user)) continue;
    p.here = true;
    p.counted = false;
    p.layer = tie.user;
  }
}

void Stack::split(const std::map<std::string, Split>& splits, std::shared_ptr<TensorGroup> group) {
  use_parts();
  if (group_) throw Error("Stack::split comes once: its parameters are parts already");
  group_ = std::move(group);
  for (auto& p : parameters_) {
    if (const auto it = splits.find(p.name); it != splits.end()) p.split = it->second;
    p.shape = part_shape(std::move(p.shape), p.split);
    p.group = group_;
    p.counted = p.counted && counts(p);
    p.value.reset();
    p.grad.reset();
  }
}

void Stack::share_batch(const std::shared_ptr<BatchRanks>& ranks) {
  batch_ranks_ = ranks;
  for (int l = 0; l < size(); ++l) layer(l).share_batch(has(l) ? ranks : nullptr);
}

// A parameter that is whole on every rank of a tensor group is counted by the first rank.
bool Stack::counts(const Parameter& parameter) const {
  return parameter.split.is_part() || !group_ || group_->rank() == 0;
}

int Stack::declared_in(const Parameter& parameter) const {
  for (const auto& tie : ties_)
    if (tie.name == parameter.name) return tie.owner;
  return parameter.layer;
}

int Stack::lowest_trainable() const {
  int lowest = size();
  for (const auto& p : parameters_)
    if (p.trainable) lowest = std::min(lowest, declared_in(p));
  return lowest == size() ? 0 : lowest;  // a model that does not train at all: as any other
}

std::vector<const Parameter*> Stack::tied_across() const {
  std::vector<const Parameter*> across;
  for (const auto& p : parameters_)
    if (p.here && p.copied) across.push_back(&p);
  return across;
}

std::vector<bool> Stack::runs_again() const {
  std::vector<bool> all;
  for (const auto& layer : layers_)
    all.push_back(recompute_ == Recompute::full && layer != layers_.back() &&
                  layer->keeps_more_than_input());
  return all;
}

Parameter* Stack::parameter(std::string name, std::vector<std::int64_t> shape, Init init,
                            bool decay, bool trainable, Splits splits) {
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
  p.update.decay = decay;
  p.splits = splits;
  p.layer = size() - 1;
  const bool frozen =
      low_rank_ && !is_low_rank(p) && !(low_rank_->also_trains && low_rank_->also_trains(p));
  p.trainable = trainable && !frozen;
  by_name_.emplace(p.name, &p);
  return &p;
}

Parameter* Stack::tied(const std::string& name, Splits splits) {
  Parameter* p = find(name);
  if (p == nullptr) {
    throw InvalidArgument(
        fmt::format("a layer ties itself to {}, which no earlier layer declares", name));
  }
  if (p->splits != splits) p->splits = Splits::no;
  ties_.push_back({name, p->layer, size() - 1});
  return p;
}

const LowRank* Stack::low_rank(const std::string& product) const {
  if (!low_rank_) return nullptr;
  const auto it = low_rank_->products.find(product);
  return it == low_rank_->products.end() ? nullptr : &it->second;
}

Parameter* Stack::find(const std::string& name) {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

std::int64_t Stack::parameter_count() const {
  std::int64_t n = 0;
  for (const auto& p : parameters_) {
    const auto whole = p.whole_shape();
    n += std::accumulate(whole.begin(), whole.end(), std::int64_t{1}, std::multiplies<>());
  }
  return n;
}

namespace {

constexpr const char* no_memory =
    "this parameter or gradient has memory only while a layer runs, since the ranks share the model "
    "out: call trainer.gather() on every rank, or trainer.master() for one parameter";

// A tensor whose memory is attached later and may change.
at::Tensor without_memory(std::int64_t numel, const at::TensorOptions& options) {
  const auto bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  const c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                             c10::DataPtr(nullptr, options.device()), /*allocator=*/nullptr,
                             /*resizable=*/false);
  const at::Tensor tensor = at::empty({0}, options).set_(storage, 0, {numel}, {1});
  refuse_memory(tensor, no_memory);
  return tensor;
}

void point(const at::Tensor& tensor, void* data) {
  tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(data, tensor.device()));
}

void attach(const at::Tensor& tensor, const at::Tensor& memory, at::Tensor& kept) {
  if (memory.numel() < tensor.numel() || memory.scalar_type() != tensor.scalar_type() ||
      memory.device() != tensor.device() || !memory.is_contiguous())
    throw Error("memory of another size, type or device was attached to a group of parameters");
  kept = memory;
  allow_memory(tensor);
  point(tensor, memory.data_ptr());
}

at::Tensor detach(const at::Tensor& tensor, at::Tensor& kept) {
  point(tensor, nullptr);
  refuse_memory(tensor, no_memory);
  return std::exchange(kept, {});
}

}  // namespace

void Stack::lay_out(const Allocation& allocation) {
  use_parts();
  std::vector<const Parameter*> described;
  for (const auto& p : parameters_)
    if (p.here) described.push_back(&p);
  units_ = echelon::lay_out(described);
  groups_ = make_shard_groups(units_, allocation.shards, allocation.smallest);
  for (const auto& unit : units_)
    for (const auto& segment : unit.segments)
      find(segment.name)->begin = unit.begin + segment.offset;
}

void Stack::allocate(at::Device device, at::ScalarType type, Gradients gradients,
                     const Allocation& allocation) {
  device_ = device;
  type_ = type;
  lay_out(allocation);

  std::int64_t trainable = 0, frozen = 0;
  for (const auto& unit : units_) (unit.trainable ? trainable : frozen) += unit.numel;
  const auto options = at::TensorOptions(device).dtype(type);
  const auto place = [&](MemoryKind kind, bool pooled, const Memory& memory, at::ScalarType of,
                         at::Tensor& all, std::vector<at::Tensor>& by_group) {
    MemoryScope scope(kind);
    if (!pooled) all = memory ? memory(trainable, of) : at::zeros({trainable}, options.dtype(of));
    for (const auto& group : groups_)
      by_group.push_back(pooled ? without_memory(group.numel, options.dtype(of))
                                : all.narrow(0, group.begin, group.numel));
  };
  for (auto* all : {&values_, &grads_, &sums_}) all->reset();
  for (auto* by_group : {&values_of_, &grads_of_, &sums_of_}) by_group->clear();
  for (auto* memory : {&attached_values_, &attached_grads_, &attached_sums_})
    memory->assign(groups_.size(), {});
  fp32_sums_ = gradients == Gradients::fp32_sums;
  summed_.assign(units_.size(), false);
  place(MemoryKind::parameters, allocation.sliced_values, allocation.values, type, values_,
        values_of_);
  const bool pooled = allocation.sliced_gradients;
  if (gradients != Gradients::no)
    place(MemoryKind::gradients, pooled, fp32_sums_ ? Memory() : allocation.gradients, type, grads_,
          grads_of_);
  if (fp32_sums_)
    place(MemoryKind::gradients, pooled, allocation.gradients, at::kFloat, sums_, sums_of_);
  {
    MemoryScope scope(MemoryKind::parameters);
    frozen_ = at::zeros({frozen}, options);
  }
  for (const auto& unit : units_) {
    const auto group = std::find_if(groups_.begin(), groups_.end(), [&](const ShardGroup& g) {
      return unit.begin >= g.begin && unit.begin < g.begin + g.numel;
    });
    const auto index = std::size_t(group - groups_.begin());
    for (const auto& segment : unit.segments) {
      Parameter& p = *find(segment.name);
      const auto view = [&](const at::Tensor& of, std::int64_t first) {
        return of.narrow(0, p.begin - first, segment.numel).view(segment.shape);
      };
      if (!unit.trainable) {
        p.value = view(frozen_, 0);
        continue;
      }
      p.value = view(values_of_[index], group->begin);
      if (gradients != Gradients::no) p.grad = view(grads_of_[index], group->begin);
    }
  }
  for (int l = 0; l < size(); ++l) layer(l).bind(device, type);
}

void Stack::forget_layout() {
  use_parts();
  share_batch(nullptr);
  kept_.clear();
  group_.reset();
  for (auto& p : parameters_) {
    p.layer = declared_in(p);
    p.shape = p.whole_shape();
    p.split = {};
    p.group.reset();
    p.here = p.counted = true;
    p.copied = p.grad_written = false;
    p.value.reset();
    p.grad.reset();
  }
  units_.clear();
  groups_.clear();
  summed_.clear();
  for (auto* all : {&values_, &grads_, &frozen_, &sums_}) all->reset();
  for (auto* by_group :
       {&values_of_, &grads_of_, &sums_of_, &attached_values_, &attached_grads_, &attached_sums_})
    by_group->clear();
}

int Stack::group_of(const Parameter& parameter) const { return group_at(parameter.begin); }

int Stack::group_at(std::int64_t begin) const {
  const auto behind = std::upper_bound(
      groups_.begin(), groups_.end(), begin,
      [](std::int64_t first, const ShardGroup& group) { return first < group.begin; });
  return int(behind - groups_.begin()) - 1;
}

at::Tensor Stack::within(const std::vector<at::Tensor>& by_group, std::int64_t begin,
                         std::int64_t numel) const {
  const auto group = std::size_t(group_at(begin));
  return by_group[group].narrow(0, begin - groups_[group].begin, numel);
}

at::Tensor Stack::sum_of(const Parameter& parameter) const {
  return within(fp32_sums_ ? sums_of_ : grads_of_, parameter.begin, parameter.numel());
}

std::vector<int> Stack::groups_of(int layer) const {
  std::set<int> all;
  const auto add = [&](const Parameter& p) {
    if (p.trainable && p.here) all.insert(group_of(p));
  };
  for (const auto& p : parameters_)
    if (p.layer == layer) add(p);
  for (const auto& tie : ties_)
    if (tie.user == layer) add(*find(tie.name));
  return {all.begin(), all.end()};
}

void Stack::attach_values(int group, const at::Tensor& memory) {
  attach(values_of_[std::size_t(group)], memory, attached_values_[std::size_t(group)]);
}

void Stack::attach_grads(int group, const at::Tensor& memory) {
  attach(grads_of_[std::size_t(group)], memory, attached_grads_[std::size_t(group)]);
}

// The first gradients added to attached sums overwrite them.
void Stack::attach_sums(int group, const at::Tensor& memory) {
  attach(sums_of_[std::size_t(group)], memory, attached_sums_[std::size_t(group)]);
  for (std::size_t i = 0; i < units_.size(); ++i)
    if (units_[i].trainable && group_at(units_[i].begin) == group) summed_[i] = false;
}

at::Tensor Stack::detach_values(int group) {
  return detach(values_of_[std::size_t(group)], attached_values_[std::size_t(group)]);
}

at::Tensor Stack::detach_grads(int group) {
  return detach(grads_of_[std::size_t(group)], attached_grads_[std::size_t(group)]);
}

at::Tensor Stack::detach_sums(int group) {
  return detach(sums_of_[std::size_t(group)], attached_sums_[std::size_t(group)]);
}

void Stack::forget_grads(int group) {
  const auto& place = groups_[std::size_t(group)];
  const at::Tensor all = group_grads(group);
  for (const auto& unit : units_) {
    if (!unit.trainable || unit.begin < place.begin || unit.begin >= place.begin + place.numel)
      continue;
    const auto first = unit.begin - place.begin;
    for (std::size_t i = 0; i < unit.segments.size(); ++i) {
      const auto& segment = unit.segments[i];
      find(segment.name)->grad_written = false;
      const auto end = segment.offset + segment.numel;
      const auto next = i + 1 < unit.segments.size() ? unit.segments[i + 1].offset : unit.numel;
      if (end < next) all.narrow(0, first + end, next - end).zero_();
    }
  }
}

void Stack::load(const ValueSource& source) {
  at::NoGradGuard no_grad;
  for (auto& p : parameters_)
    if (p.here) source(p, p.value);
}

void Stack::use_whole(std::vector<at::Tensor> values) {
  use_parts();
  kept_of_parts_ = std::exchange(kept_, {});
  group_of_parts_ = std::exchange(group_, nullptr);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    const auto whole = p.whole_shape();
    parts_.push_back({std::exchange(p.value, std::move(values[i])), std::exchange(p.shape, whole),
                      std::exchange(p.split, {}), std::exchange(p.group, nullptr),
                      std::exchange(p.here, true)});
  }
  show();
}

void Stack::use_parts() {
  if (!uses_whole()) return;
  kept_ = std::move(kept_of_parts_);
  group_ = std::move(group_of_parts_);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = parameters_[i];
    Part& part = parts_[i];
    p.value = std::move(part.value);
    p.shape = std::move(part.shape);
    p.split = part.split;
    p.group = std::move(part.group);
    p.here = part.here;
  }
  parts_.clear();
  show();
}

bool Stack::has_values() const {
  if (uses_whole()) return true;
  for (int l = 0; l < size(); ++l)
    if (!has(l)) return false;
  return !pools_values() || std::all_of(attached_values_.begin(), attached_values_.end(),
                                        [](const at::Tensor& memory) { return memory.defined(); });
}

void Stack::show() {
  for (auto& layer : layers_) layer->show();
}

void Stack::withhold() {
  if (!pools_values() && !pools_grads()) return;
  for (auto& layer : layers_) layer->withhold(pools_values());
}

PartsInUse::PartsInUse(Stack& stack) : stack_(stack) {
  if (stack_.users_of_parts_++ > 0) return;
  if (stack_.uses_whole()) {
    for (const auto& p : stack_.parameters()) whole_.push_back(p.value);
    stack_.use_parts();
  } else if (stack_.pools_values()) {
    stack_.show();
  }
}

PartsInUse::~PartsInUse() {
  if (--stack_.users_of_parts_ > 0) return;
  if (whole_.empty())
    stack_.withhold();
  else
    stack_.use_whole(std::move(whole_));
}

PartsAside::PartsAside(Stack& stack)
    : stack_(stack), users_(std::exchange(stack.users_of_parts_, 0)) {
  stack_.withhold();
}

PartsAside::~PartsAside() {
  stack_.users_of_parts_ = users_;
  if (stack_.uses_whole())
    stack_.use_parts();  // gathered meanwhile: training continues with the parts
  else if (stack_.pools_values())
    stack_.show();
}

std::string Stack::name_of(int layer) const {
  std::string name = layers_[std::size_t(layer)]->name();
  if (name.empty()) {
    // The common prefix of all its parameters' names, up to a dot.
    bool first = true;
    for (const auto& p : parameters_) {
      if (declared_in(p) != layer) continue;
      const std::string whole = p.name + ".";
      const auto same = std::mismatch(whole.begin(), whole.end(), name.begin(), name.end());
      name = first ? whole : whole.substr(0, std::size_t(same.first - whole.begin()));
      first = false;
    }
    name.resize(name.find_last_of('.') == std::string::npos ? 0 : name.find_last_of('.'));
  }
  return name.empty() ? fmt::format("layer {}", layer) : fmt::format("layer {} ({})", layer, name);
}

void Stack::begin_step() {
  for (auto& p : parameters_) p.grad_written = false;
  std::fill(summed_.begin(), summed_.end(), false);
}

void Stack::add_to_sums(std::int64_t begin, std::int64_t end) {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& unit = units_[i];
    if (!unit.trainable || unit.begin < begin || unit.begin >= end) continue;
    at::Tensor sum = within(sums_of_, unit.begin, unit.numel);
    const at::Tensor part = within(grads_of_, unit.begin, unit.numel);
    // The first time, covers the whole unit: gradients that no backward writes sum to zero.
    const bool first = !summed_[i];
    summed_[i] = true;
    std::int64_t begins = 0, ends = 0;  // a run of written gradients
    const auto add = [&] {
      if (ends > begins)
        sum.narrow(0, begins, ends - begins).add_(part.narrow(0, begins, ends - begins));
    };
    for (const auto& segment : unit.segments) {
      Parameter& p = *find(segment.name);
      if (first) p.zero_unwritten_grad();
      if (!std::exchange(p.grad_written, false) || first) continue;
      if (segment.offset > (ends + segment_alignment - 1) / segment_alignment * segment_alignment) {
        add();
        begins = segment.offset;
      }
      ends = segment.offset + segment.numel;
    }
    first ? void(sum.copy_(part)) : add();
  }
}

void Stack::zero_unwritten_grads(std::int64_t begin, std::int64_t end) {
  for (auto& p : parameters_) {
    if (!p.trainable || !p.here) continue;
    if (p.begin >= begin && p.begin < end) p.zero_unwritten_grad();
  }
}

std::vector<std::pair<std::string, at::Tensor>> Stack::buffers() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (int l = 0; l < size(); ++l)
    if (has(l))
      for (auto& buffer : layers_[std::size_t(l)]->buffers()) all.push_back(std::move(buffer));
  return all;
}

bool Stack::capturable() const {
  return (!group_ || group_->recordable()) &&
         std::all_of(layers_.begin(), layers_.end(),
                     [](const auto& layer) { return layer->capturable(); });
}

Stack& Stack::reads(std::vector<std::string> names) {
  if (names.empty()) throw InvalidArgument("the first layer must read at least one tensor");
  reads_ = std::move(names);
  return *this;
}

Tensors Stack::inputs_of(const Batch& batch) const {
  Tensors inputs;
  for (const auto& name : reads_) inputs.push_back(batch.at(name));
  return inputs;
}

Pass Stack::pass_for(int layer, std::shared_ptr<const Batch> micro_batch) const {
  Pass pass;
  const at::Tensor& input = micro_batch->at(reads_.front());
  if (layer + 1 == size()) pass.target = micro_batch->target;
  pass.samples = input.dim() > 0 ? input.size(0) : 1;
  pass.tokens = input.dim() > 1 ? input.size(1) : 1;
  pass.batch = std::move(micro_batch);
  if (!group_ || !group_->rows_are_split()) return pass;
  const auto rows = pass.samples * pass.tokens, ranks = std::int64_t(group_->size());
  if (rows % ranks != 0) {
    const auto step = ranks / std::gcd(pass.tokens, ranks), fewer = pass.samples / step * step;
    throw InvalidArgument(fmt::format(
        "the {} rows of a micro-batch ({} samples of {} tokens) do not divide over {} ranks: {}{} "
        "samples would",
        rows, pass.samples, pass.tokens, ranks, fewer > 0 ? fmt::format("{} or ", fewer) : "",
        fewer + step));
  }
  pass.rows_are_split = true;
  pass.first_row = rows / ranks * group_->rank();
  return pass;
}

at::Tensor Stack::infer(
    const Batch& batch,
    const std::function<void(const at::Tensor& output, const at::Tensor& target)>& observe) {
  if (!has_values())
    throw InvalidArgument(
        "this process has only a part of the model's parameters: call trainer.infer() on every rank, "
        "or trainer.gather() on every rank and then Stack::infer");
  at::NoGradGuard no_grad;
  const auto shared = std::make_shared<const Batch>(batch);
  Tensors x = inputs_of(batch);
  for (int l = 0; l < size(); ++l) {
    Pass pass = pass_for(l, shared);
    pass.training = false;
    pass.observe = observe;
    x = in_layer(*this, l, "forward", x, [&] { return layer(l).forward_all(x, pass); });
  }
  return only_output(std::move(x));
}

at::Tensor only_output(Tensors outputs) {
  if (outputs.size() != 1)
    throw InvalidArgument(fmt::format(
        "the last layer gave {} tensors; it must give one, the loss or the model's output",
        outputs.size()));
  return std::move(outputs.front());
}

}  // namespace echelon
