#include "echelon/comm/arguments.h"

#include <fmt/format.h>

#include <numeric>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"

namespace echelon {

DataType same_type(const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() != input.scalar_type())
    throw InvalidArgument(
        fmt::format("the output is of type {}, the input of type {}: they must be the same",
                    at::toString(output.scalar_type()), at::toString(input.scalar_type())));
  return data_type(output.scalar_type());
}

void expect_elements(const char* operation, const char* what, const at::Tensor& tensor,
                     std::size_t wanted) {
  if (!tensor.defined())
    throw InvalidArgument(
        fmt::format("{}: {} is no tensor where {} elements are needed", operation, what, wanted));
  if (elements(tensor) != wanted)
    throw InvalidArgument(fmt::format("{}: {} has {} elements where {} are needed", operation, what,
                                      elements(tensor), wanted));
}

void expect_rank(const char* operation, const char* what, int rank, int size) {
  if (rank < 0 || rank >= size)
    throw InvalidArgument(fmt::format("{}: {} {} is no rank of this communicator: 0 … {}",
                                      operation, what, rank, size - 1));
}

void expect_pieces(const char* operation, std::vector<std::size_t>& counts, const at::Tensor& whole,
                   int ranks) {
  const std::size_t all = elements(whole), parts = std::size_t(ranks);
  if (counts.empty()) {
    if (all % parts != 0)
      throw InvalidArgument(
          fmt::format("{}: {} elements do not divide evenly over {} ranks; give the counts",
                      operation, all, ranks));
    counts.assign(parts, all / parts);
  }
  const std::size_t sum = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (counts.size() != parts || sum != all)
    throw InvalidArgument(fmt::format(
        "{}: {} counts that add up to {} were given for {} ranks and a tensor of {} elements",
        operation, counts.size(), sum, ranks, all));
}

}  // namespace echelon
