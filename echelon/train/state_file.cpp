// The state of a run as one safetensors file: for every trainable parameter "master/NAME" and one
// tensor for each of the optimiser's states ("exp_avg/NAME", ...), frozen parameters and buffers as
// "fixed/NAME", and in the metadata how many steps and updates there were. The sampler is a
// function of the step and needs nothing.
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

// Every tensor of the state with its name; views, so that they can be written and read in place.
std::vector<std::pair<std::string, at::Tensor>> views(const Stack& stack,
                                                      const MasterUpdate& update) {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const auto& [kind, flat] : update.state()) {
    for (const auto& unit : stack.units()) {
      if (!unit.trainable) continue;
      for (const auto& segment : unit.segments) {
        all.emplace_back(
            kind + "/" + segment.name,
            flat.narrow(0, unit.begin + segment.offset, segment.numel).view(segment.shape));
      }
    }
  }
  for (const auto& parameter : stack.parameters()) {
    if (!parameter.trainable) all.emplace_back("fixed/" + parameter.name, parameter.value);
  }
  for (const auto& [name, buffer] : stack.buffers()) all.emplace_back("fixed/" + name, buffer);
  return all;
}

std::int64_t number(const safetensors::Reader& reader, const std::string& key) {
  const auto it = reader.header().metadata.find(key);
  std::int64_t value = -1;
  if (it != reader.header().metadata.end()) {
    const auto& text = it->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) value = -1;
  }
  if (value < 0)
    throw Corrupt(fmt::format("{} is no state of a run: its metadata has no {}",
                              reader.path().string(), key));
  return value;
}

}  // namespace

std::int64_t saved_step(const std::filesystem::path& state) {
  return number(safetensors::Reader(state), "step");
}

void Trainer::save(const std::filesystem::path& path) {
  if (servers_ && ranks_)
    throw InvalidArgument("a state is saved between spells of staleness, not within one");
  if (servers_) fetch_state();
  std::vector<NamedTensor> tensors;
  for (const auto& [name, view] : views(stack_, *update_)) {
    tensors.push_back(
        {name, view.sizes().vec(), view.scalar_type(), [view = view] { return view; }});
  }
  write_tensors(path, tensors,
                {{"format", "pt"},
                 {"step", std::to_string(step_)},
                 {"updates", std::to_string(static_cast<std::int64_t>(update_->updates()))}});
  if (servers_) {
    servers_->saved(step_);
    if (begun_) update_.reset();
  }
}

void Trainer::restore(const std::filesystem::path& path) {
  at::NoGradGuard no_grad;
  const safetensors::Reader reader(path);
  const auto step = number(reader, "step"), updates = number(reader, "updates");
  const auto wanted = views(stack_, *update_);
  for (const auto& [name, view] : wanted) {
    const auto* entry = reader.find(name);
    if (entry == nullptr || entry->shape != view.sizes().vec() ||
        tensor_of(reader, *entry).scalar_type() != view.scalar_type()) {
      throw InvalidArgument(fmt::format(
          "{} does not fit this job: {} is {}", path.string(), name,
          entry == nullptr ? "missing"
                           : fmt::format("{} [{}]", entry->dtype, fmt::join(entry->shape, ", "))));
    }
  }
  for (const auto& entry : reader.header().entries) {
    const bool known = std::any_of(wanted.begin(), wanted.end(),
                                   [&](const auto& item) { return item.first == entry.name; });
    if (!known)
      throw InvalidArgument(
          fmt::format("{} does not fit this job: it has {}, which this job has not", path.string(),
                      entry.name));
  }
  for (const auto& [name, view] : wanted)
    at::Tensor(view).copy_(tensor_of(reader, *reader.find(name)));
  update_->restart(static_cast<double>(updates));
  update_->publish();
  alike_ = false;
  step_ = step;
}

}  // namespace echelon
