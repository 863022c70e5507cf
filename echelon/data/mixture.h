// Several datasets as one, drawn from by weight.
//
//   Mixture data({{code, 7}, {prose, 2}, {maths, 1}});  // of ten samples, seven are code
//
// The weights hold exactly: of every 10 samples that are drawn, 7, 2 and 1 (Sampler). A small
// dataset begins its next epoch while a large one is in its first. All must give batches with the
// same tensors: names, types and sizes are compared when the mixture is made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "echelon/data/dataset.h"

namespace echelon {

class Mixture : public Dataset {
 public:
  struct Source {
    std::shared_ptr<const Dataset> data;
    std::int64_t weight = 1;
  };
  explicit Mixture(
      std::vector<Source> sources);  // throws InvalidArgument if they do not go together

  std::int64_t size() const override { return size_; }
  std::vector<Part> parts() const override { return parts_; }
  std::int64_t variants() const override { return variants_; }
  Batch get(std::span<const std::int64_t> indices) const override;
  Batch get_padded(std::span<const std::int64_t> indices, std::int64_t length) const override;
  std::int64_t targets(std::int64_t index) const override;
  std::int64_t length(std::int64_t index) const override;
  std::int64_t max_length() const override;
  bool concurrent() const override;

 private:
  struct Place {
    std::size_t source;
    std::int64_t index;  // in it
  };
  Place place_of(std::int64_t index) const;

  std::vector<Source> sources_;
  std::vector<Part> parts_;
  std::int64_t size_ = 0, variants_ = 1;
};

}  // namespace echelon
