// Training data: samples by index. A batch is any list of indices; sampler.h decides which samples
// a step uses.
//
//   class Rings : public Dataset {
//    public:
//     std::int64_t size() const override { return 4096; }
//     Batch get(std::span<const std::int64_t> indices) const override;  // the same sample always
//   };
//
// size() and get() are all that a dataset needs. The other functions describe data that are more
// than equally large samples in random order; each has a default that says they are not.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "echelon/data/batch.h"

namespace echelon {

class Dataset {
 public:
  // Samples [first, first + samples) of a dataset that is a mixture. Of every sum of all weights
  // samples that are drawn, `weight` are of this part.
  struct Part {
    std::int64_t first = 0, samples = 0, weight = 1;
  };

  virtual ~Dataset() = default;
  virtual std::int64_t size() const = 0;
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;  // on the CPU

  // The number of targets that a sample contributes to the mean loss: tokens of an answer, masked
  // words. A step's loss is the mean over the targets of its global batch, however they are spread
  // over ranks and micro-batches. 0: all samples have the same number; otherwise each has at least
  // one.
  virtual std::int64_t targets(std::int64_t /*index*/) const { return 0; }

  // The tokens of a sample. Samples of similar lengths are then put into one step, and padded to
  // the longest of its global batch. 0: all samples are alike; otherwise each has at least one.
  virtual std::int64_t length(std::int64_t /*index*/) const { return 0; }
  // The most that length() returns and that samples are padded to; 0: any number.
  virtual std::int64_t max_length() const { return 0; }
  // The samples, each padded to `length` tokens, which none of them exceeds. Required where
  // length() is not 0. get() pads to the longest of its indices.
  virtual Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const;

  // Forms of each sample that take turns: epoch e draws index i as i + (e % variants()) * size().
  // The words that masked-language modelling hides differ from epoch to epoch in this way.
  virtual std::int64_t variants() const { return 1; }

  // The parts of a mixture, which follow each other and cover all samples. Each has its own order
  // and its own epochs. Empty: one part.
  virtual std::vector<Part> parts() const { return {}; }

  // Whether neighbours may be alike, as in records that are sorted by their label. The first
  // samples then do not represent the dataset, and a validation of fewer samples than it has uses a
  // fixed random choice (evaluation_order). A dataset with parts() need not override this.
  virtual bool may_be_sorted() const { return false; }

  // Samples are used in the order of their indices, and each once: they come from a stream
  // (stream.h).
  virtual bool in_sequence() const { return false; }

  // Whether several threads may call get() at the same time. Otherwise calls are made one after
  // another, though not always from the same thread.
  virtual bool concurrent() const { return false; }
};

// The user's own tensors: sample i is (inputs[i], targets[i]).
class TensorDataset : public Dataset {
 public:
  TensorDataset(at::Tensor inputs,
                at::Tensor targets);  // throws InvalidArgument unless first dimensions are equal
  std::int64_t size() const override { return inputs_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;
  bool concurrent() const override { return true; }

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
  bool concurrent() const override { return true; }

 private:
  std::int64_t vocab_, length_;
  std::uint64_t seed_;
};

}  // namespace echelon
