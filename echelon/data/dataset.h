// Training data: samples by index. A batch is any list of indices; sampler.h decides which samples
// a step uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "echelon/data/batch.h"

namespace echelon {

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;  // on the CPU
  // The number of targets that a sample contributes to the mean loss: tokens of an answer, masked
  // words. A step's loss is the mean over the targets of its global batch, however they are spread
  // over ranks and micro-batches. 0: all samples have the same number; otherwise each has at least
  // one.
  virtual std::int64_t targets(std::int64_t /*index*/) const { return 0; }
};

// The user's own tensors: sample i is (inputs[i], targets[i]).
class TensorDataset : public Dataset {
 public:
  TensorDataset(at::Tensor inputs,
                at::Tensor targets);  // throws InvalidArgument unless first dimensions are equal
  std::int64_t size() const override { return inputs_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  at::Tensor inputs_, targets_;
};

// Endless random tokens for benchmarks: sample i is a pure function of (seed, i).
class RandomTokens : public Dataset {
 public:
  RandomTokens(std::int64_t vocab, std::int64_t length, std::uint64_t seed)
      : vocab_(vocab), length_(length), seed_(seed) {}
  std::int64_t size() const override { return std::int64_t{1} << 40; }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  std::int64_t vocab_, length_;
  std::uint64_t seed_;
};

}  // namespace echelon
