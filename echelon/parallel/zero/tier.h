// Storage for offloaded slices (zero.offload): host memory or disk. An array (the masters, a
// moment, …) has one slice per group. To use a run of an array, take it into memory and give it
// back:
//
//   tier.want(next);                       // starts to read it
//   at::Tensor here = tier.take(run);      // waits until it is in CPU memory
//   …                                      // read it, change it
//   tier.give_back(run, /*changed=*/true); // writes it in the background
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
    MemoryKind kind;  // how its memory is accounted
    bool travels;     // it is sent, or copied to a device, from its memory
  };
  struct Run {
    int array = 0;
    int group = 0;
    std::int64_t begin = 0, numel = 0;  // elements; `begin` is a multiple of `grain`
  };
  static constexpr std::int64_t grain = 4096;
  // The most bytes that wait to be written, unless a single run is larger.
  static constexpr std::int64_t most_writing = std::int64_t{16} << 20;

  virtual ~Tier() = default;
  const std::vector<Array>& arrays() const { return arrays_; }
  int find(const std::string& name) const;  // -1: no array has this name
  std::int64_t numel(int group) const { return numels_[std::size_t(group)]; }

  virtual void want(const Run& run) = 0;
  virtual at::Tensor take(const Run& run) = 0;
  virtual at::Tensor blank(const Run& run) = 0;  // like take, but all of it will be written
  virtual void give_back(const Run& run, bool changed) = 0;

  // A process that dies between these calls loses its state. `updates`: the number of updates after
  // this one.
  virtual void begin_update(std::int64_t updates) = 0;
  virtual void end_update(std::int64_t updates) = 0;

  // Describes what a killed process left in this place; empty: nothing.
  virtual std::string left_behind() const { return {}; }
  virtual std::string description() const = 0;
  double waited() const { return waited_; }  // seconds spent waiting, in total
  std::uint64_t bytes() const;

 protected:
  Tier(std::vector<Array> arrays, std::vector<std::int64_t> numels)
      : arrays_(std::move(arrays)), numels_(std::move(numels)) {}
  std::vector<Array> arrays_;
  std::vector<std::int64_t> numels_;  // by group
  double waited_ = 0;
};

// Allocates a zeroed CPU tensor of this many bytes. If it `travels`, other processes
// or a GPU can read it directly.
using ByteMemory = std::function<at::Tensor(std::int64_t bytes, bool travels)>;

// Keeps everything in host memory.
std::unique_ptr<Tier> host_tier(std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                const ByteMemory& memory);

// Keeps everything in one file per rank in `folder`; the file is removed at the end. Throws
// InvalidArgument if the disk is too full. A killed process leaves the file behind, with a mark
// that says whether it was in the middle of an update. The next process reports this and starts
// afresh.
std::unique_ptr<Tier> disk_tier(const std::string& folder, int rank, int ranks,
                                std::vector<Tier::Array> arrays, std::vector<std::int64_t> numels,
                                ByteMemory memory);

}  // namespace echelon
