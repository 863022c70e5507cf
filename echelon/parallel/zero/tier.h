// Where slices live that are not kept beside the model (zero.offload): in the host's memory, or on
// disk. An array (the masters, a moment, …) has one slice a group; a run of it is brought to
// memory, used, and given back.
//
//   tier.want(next);                       // begins to come
//   at::Tensor here = tier.take(run);      // waits until it is there; on the CPU
//   …                                      // read it, change it
//   tier.give_back(run, /*changed=*/true); // is written while the program goes on
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "echelon/nn/memory.h"

namespace echelon {

class Tier {
 public:
  struct Array {
    std::string name;
    at::ScalarType type;
    MemoryKind kind;  // what it counts as where it takes memory
    bool travels;     // it is sent, or copied to a device, from where it lies
  };
  struct Run {
    int array = 0;
    int group = 0;
    std::int64_t begin = 0, numel = 0;  // elements; begins at a multiple of `grain`
  };
  static constexpr std::int64_t grain = 4096;
  // That wait to be written at most, unless one run is more.
  static constexpr std::int64_t most_writing = std::int64_t{16} << 20;

  virtual ~Tier() = default;
  const std::vector<Array>& arrays() const { return arrays_; }
  int find(const std::string& name) const;  // -1: there is none of that name
  std::int64_t numel(int group) const { return numels_[std::size_t(group)]; }

  virtual void want(const Run& run) = 0;
  virtual at::Tensor take(const Run& run) = 0;
  virtual at::Tensor blank(const Run& run) = 0;  // as take, but all of it will be written
  virtual void give_back(const Run& run, bool changed) = 0;

  // What is between the two is lost with the process; `updates` is how many there are then.
  virtual void begin_update(std::int64_t updates) = 0;
  virtual void end_update(std::int64_t updates) = 0;

  // What a process that was killed had left in its place, in words; empty: nothing.
  virtual std::string left_behind() const { return {}; }
  virtual std::string description() const = 0;
  double waited() const { return waited_; }  // seconds, since the beginning
  std::uint64_t bytes() const;

 protected:
  Tier(std::vector<Array> arrays, std::vector<std::int64_t> numels)
      : arrays_(std::move(arrays)), numels_(std::move(numels)) {}
  std::vector<Array> arrays_;
  std::vector<std::int64_t> numels_;  // by group
  double waited_ = 0;
};

// Zeros, as a tensor of so many bytes on the CPU; from what travels others may read.
using ByteMemory = std::function<at::Tensor(std::int64_t bytes, bool travels)>;

// Everything stays in memory.
std::unique_ptr<Tier> host_tier(std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                const ByteMemory& memory);

// One file of this rank in `folder`, which is removed in the end. Throws InvalidArgument where
// there is no room for it. A process that is killed leaves the file, with a mark that says whether
// it was in the middle of an update; the next one says so and begins anew.
std::unique_ptr<Tier> disk_tier(const std::string& folder, int rank, int ranks,
                                std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                ByteMemory memory);

}  // namespace echelon
