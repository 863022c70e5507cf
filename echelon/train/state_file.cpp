// The state of a run as one safetensors file: for every trainable parameter "master/NAME" and one
// tensor for each of the optimiser's states ("exp_avg/NAME", ...), frozen parameters and buffers as
// "fixed/NAME", and in the metadata how many steps and updates there were; in fp16 also the loss
// scale and how many good steps it has had. The sampler is a function of the step and needs
// nothing.
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "echelon/base/error.h"
#include "echelon/nn/tensor_file.h"
#include "echelon/train/trainer.h"

namespace echelon {
namespace {

template <class T>
T number(const safetensors::Reader& reader, const std::string& key) {
  const auto it = reader.header().metadata.find(key);
  T value = -1;
  if (it != reader.header().metadata.end()) {
    const auto& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) value = -1;
  }
  if (!(value >= 0))  // nor NaN
    throw Corrupt(fmt::format("{} is no state of a run: its metadata has no {}",
                              reader.path().string(), key));
  return value;
}

}  // namespace

// One tensor of the state: how it is had, and how it is put back.
struct Trainer::StateItem {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType type;
  std::function<at::Tensor()> get;
  std::function<void(const at::Tensor&)> put;
};

// In the order of the file. Where ranks share the state out, get() is for all of them to call.
std::vector<Trainer::StateItem> Trainer::state_items() const {
  std::vector<StateItem> all;
  const auto in_place = [&](const std::string& name, const at::Tensor& view) {
    all.push_back({name, view.sizes().vec(), view.scalar_type(), [view] { return view; },
                   [view](const at::Tensor& value) { at::Tensor(view).copy_(value); }});
  };
  const auto each_trainable = [&](const auto& fn) {
    for (const auto& unit : stack_.units())
      if (unit.trainable)
        for (const auto& segment : unit.segments) fn(unit, segment);
  };
  if (zero_) {
    const auto& kinds = zero_->kinds();
    for (std::size_t kind = 0; kind < kinds.size(); ++kind)
      each_trainable([&](const FlatUnit&, const Segment& segment) {
        const Parameter* parameter = stack_.find(segment.name);
        all.push_back({kinds[kind] + "/" + segment.name, segment.shape, master_type(stack_.type()),
                       [this, kind, parameter] { return zero_->whole(kind, *parameter); },
                       [this, kind, parameter](const at::Tensor& value) {
                         zero_->put(kind, *parameter, value);
                       }});
      });
  } else {
    for (const auto& [kind, flat] : update_->state())
      each_trainable([&](const FlatUnit& unit, const Segment& segment) {
        in_place(kind + "/" + segment.name,
                 flat.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape));
      });
  }
  for (const auto& parameter : stack_.parameters())
    if (!parameter.trainable) in_place("fixed/" + parameter.name, parameter.value);
  for (const auto& [name, buffer] : stack_.buffers()) in_place("fixed/" + name, buffer);
  return all;
}

std::int64_t saved_step(const std::filesystem::path& state) {
  return number<std::int64_t>(safetensors::Reader(state), "step");
}

void Trainer::save(const std::filesystem::path& path) {
  if (servers_ && ranks_)
    throw InvalidArgument("a state is saved between spells of staleness, not within one");
  if (servers_) fetch_state();
  std::vector<NamedTensor> tensors;
  for (const auto& item : state_items())
    tensors.push_back({item.name, item.shape, item.type, item.get});
  if (zero_ && ranks_->rank() != 0) {
    for (const auto& tensor : tensors)
      if (!tensor.name.starts_with("fixed/")) tensor.make();  // this rank's part
    return;
  }
  std::map<std::string, std::string> metadata = {
      {"format", "pt"},
      {"step", std::to_string(step_)},
      {"updates", std::to_string(static_cast<std::int64_t>(owner().updates()))}};
  if (const auto* scaling = owner().loss_scale()) {
    const auto [scale, good_steps] = scaling->state();
    metadata["loss_scale"] = fmt::format("{}", scale);
    metadata["good_steps"] = std::to_string(good_steps);
  }
  write_tensors(path, tensors, metadata);
  if (servers_) {
    servers_->saved(step_);
    if (begun_) update_.reset();
  }
}

void Trainer::restore(const std::filesystem::path& path) {
  at::NoGradGuard no_grad;
  const safetensors::Reader reader(path);
  const auto step = number<std::int64_t>(reader, "step"),
             updates = number<std::int64_t>(reader, "updates");
  // A state of another precision has none; the scale then begins anew.
  LossScale* scaling = owner().loss_scale();
  if (scaling && !reader.header().metadata.contains("loss_scale")) scaling = nullptr;
  LossScale::State scale;
  if (scaling)
    scale = {number<double>(reader, "loss_scale"), number<std::int64_t>(reader, "good_steps")};
  const auto wanted = state_items();
  for (const auto& item : wanted) {
    const auto* entry = reader.find(item.name);
    if (entry == nullptr || entry->shape != item.shape ||
        tensor_of(reader, *entry).scalar_type() != item.type) {
      throw InvalidArgument(fmt::format(
          "{} does not fit this job: {} is {}", path.string(), item.name,
          entry == nullptr ? "missing"
                           : fmt::format("{} [{}]", entry->dtype, fmt::join(entry->shape, ", "))));
    }
  }
  for (const auto& entry : reader.header().entries) {
    const bool known = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const StateItem& item) { return item.name == entry.name; });
    if (!known)
      throw InvalidArgument(
          fmt::format("{} does not fit this job: it has {}, which this job has not", path.string(),
                      entry.name));
  }
  for (const auto& item : wanted) item.put(tensor_of(reader, *reader.find(item.name)));
  owner().restart(static_cast<double>(updates));
  if (scaling) scaling->restore(scale);
  scales_.clear();
  owner().publish();
  alike_ = false;
  step_ = step;
}

}  // namespace echelon
