#include "echelon/parallel/zero/tier.h"

#include <c10/core/ScalarType.h>

#include <utility>

namespace echelon {

int Tier::find(const std::string& name) const {
  for (std::size_t i = 0; i < arrays_.size(); ++i)
    if (arrays_[i].name == name) return static_cast<int>(i);
  return -1;
}

std::uint64_t Tier::bytes() const {
  std::uint64_t elements = 0, all = 0;
  for (const auto numel : numels_) elements += std::uint64_t(numel);
  for (const auto& array : arrays_) all += elements * c10::elementSize(array.type);
  return all;
}

namespace {

class HostTier final : public Tier {
 public:
  HostTier(std::vector<Array> arrays, std::vector<std::int64_t> numels, const ByteMemory& memory)
      : Tier(std::move(arrays), std::move(numels)) {
    std::int64_t all = 0;
    for (const auto numel : numels_) {
      first_.push_back(all);
      all += numel;
    }
    for (const auto& array : arrays_) {
      MemoryScope scope(array.kind);
      flat_.push_back(
          memory(all * std::int64_t(c10::elementSize(array.type)), array.travels).view(array.type));
    }
  }

  void want(const Run&) override {}
  at::Tensor take(const Run& run) override {
    return flat_[std::size_t(run.array)].narrow(0, first_[std::size_t(run.group)] + run.begin,
                                                run.numel);
  }
  at::Tensor blank(const Run& run) override { return take(run); }
  void give_back(const Run&, bool) override {}
  void begin_update(std::int64_t) override {}
  void end_update(std::int64_t) override {}
  std::string description() const override { return "the host's memory"; }

 private:
  std::vector<std::int64_t> first_;  // by group
  std::vector<at::Tensor> flat_;     // by array
};

}  // namespace

std::unique_ptr<Tier> host_tier(std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                const ByteMemory& memory) {
  return std::make_unique<HostTier>(std::move(arrays), std::move(numels), memory);
}

}  // namespace echelon
