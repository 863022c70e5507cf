#include "python/reduction.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <numeric>

#include "echelon/base/error.h"
#include "echelon/comm/communicator.h"

namespace echelon::python {
namespace {

using Op = c10d::ReduceOp;

bool is_bitwise(const Op& op) { return op == Op::BAND || op == Op::BOR || op == Op::BXOR; }

ReduceOp native(const Op& op) {
  switch (Op::RedOpType(op)) {
    case Op::SUM:
      return ReduceOp::sum;
    case Op::AVG:
      return ReduceOp::average;
    case Op::PRODUCT:
      return ReduceOp::product;
    case Op::MIN:
      return ReduceOp::min;
    case Op::MAX:
      return ReduceOp::max;
    default:
      throw InvalidArgument(
          "backend echelon computes SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR and BXOR; multiply "
          "before the call instead of using PREMUL_SUM");
  }
}

// For a sum, a complex number is two real numbers.
Elements to_reduce(const at::Tensor& tensor) {
  const std::size_t parts = tensor.is_complex() ? 2 : 1;
  return {data_type(c10::toRealValueType(tensor.scalar_type())),
          std::size_t(tensor.numel()) * parts};
}

void* data(const at::Tensor& tensor) { return tensor.numel() ? tensor.data_ptr() : nullptr; }

at::Tensor gathered(Group& group, const at::Tensor& tensor, const CallOptions& call) {
  const at::Tensor all = at::empty({group.size(), tensor.numel()}, tensor.options());
  const auto [type, count] = to_move(tensor);
  group.all_gather(type, data(tensor), data(all),
                   std::vector<std::size_t>(std::size_t(group.size()), count), call);
  return all;
}

at::Tensor folded(Group& group, const at::Tensor& tensor, const Op& op, const CallOptions& call) {
  const at::Tensor all = gathered(group, tensor, call);
  const at::Tensor result = all[0];
  for (int r = 1; r < group.size(); ++r) {
    if (op == Op::BAND)
      result.bitwise_and_(all[r]);
    else if (op == Op::BOR)
      result.bitwise_or_(all[r]);
    else
      result.bitwise_xor_(all[r]);
  }
  return result.view(tensor.sizes());
}

}  // namespace

Elements to_move(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kLong:
    case at::kInt:
    case at::kChar:
    case at::kByte:
    case at::kBool:
      return {data_type(tensor.scalar_type()), std::size_t(tensor.numel())};
    default:
      return {DataType::u8, tensor.nbytes()};
  }
}

void check_reduction(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (is_bitwise(op)) {
    TORCH_CHECK(at::isIntegralType(tensor.scalar_type(), true), "Cannot use ReduceOp.",
                op == Op::BAND ? "BAND" : (op == Op::BOR ? "BOR" : "BXOR"),
                " with tensors of type ", tensor.scalar_type(), ": bits are those of integers");
    return;
  }
  check(to_reduce(tensor).type, native(op));
  TORCH_CHECK(!tensor.is_complex() || op == Op::SUM || op == Op::AVG,
              "complex tensors have a sum and an average, but no order and no product here");
}

void all_reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op,
                const CallOptions& call) {
  if (is_bitwise(op)) {
    tensor.copy_(folded(group, tensor, op, call));
    return;
  }
  const auto [type, count] = to_reduce(tensor);
  group.all_reduce(type, native(op), data(tensor), data(tensor), count, call);
}

void reduce(Group& group, const at::Tensor& tensor, const c10d::ReduceOp& op, int root,
            const CallOptions& call) {
  if (is_bitwise(op)) {
    const at::Tensor result = folded(group, tensor, op, call);
    if (group.rank() == root) tensor.copy_(result);
    return;
  }
  const auto [type, count] = to_reduce(tensor);
  group.reduce(type, native(op), data(tensor), group.rank() == root ? data(tensor) : nullptr, count,
               root, call);
}

void reduce_scatter(Group& group, const at::Tensor& output, const at::Tensor& input,
                    std::span<const std::int64_t> counts, const c10d::ReduceOp& op,
                    const CallOptions& call) {
  if (is_bitwise(op)) {
    const auto mine = counts.begin() + group.rank();
    const std::int64_t before = std::accumulate(counts.begin(), mine, std::int64_t{0});
    const at::Tensor all = folded(group, input, op, call).view({-1});
    output.copy_(all.narrow(0, before, *mine).view(output.sizes()));
    return;
  }
  const std::size_t parts = input.is_complex() ? 2 : 1;
  std::vector<std::size_t> elements;
  for (const auto count : counts) elements.push_back(std::size_t(count) * parts);
  group.reduce_scatter(to_reduce(input).type, native(op), data(input), data(output), elements,
                       call);
}

void all_reduce_sparse(Group& group, const at::Tensor& tensor, const CallOptions& call) {
  const at::Tensor mine = tensor.coalesce();
  const at::Tensor indices = mine._indices().contiguous(), values = mine._values().contiguous();
  const auto ranks = std::size_t(group.size());

  // Each rank's number of elements and shape: sparse dimensions, dense dimensions, sizes.
  std::vector<std::int64_t> about = {values.size(0), mine.sparse_dim(), mine.dense_dim()};
  about.insert(about.end(), mine.sizes().begin(), mine.sizes().end());
  std::vector<std::int64_t> all_about(about.size() * ranks);
  group.all_gather(DataType::i64, about.data(), all_about.data(),
                   std::vector<std::size_t>(ranks, about.size()), call);
  std::vector<std::size_t> index_counts, value_counts;
  std::int64_t entries = 0;
  const std::size_t row = values.size(0)
                              ? to_move(values).count / std::size_t(values.size(0))
                              : to_move(at::empty(values.sizes().slice(1), values.options())).count;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto its = std::span(all_about).subspan(r * about.size(), about.size());
    if (!std::equal(about.begin() + 1, about.end(), its.begin() + 1))
      throw InvalidArgument(fmt::format(
          "sparse all_reduce: rank {} has a tensor of other sizes or dimensions than rank {}", r,
          group.rank()));
    entries += its[0];
    index_counts.push_back(std::size_t(its[0] * mine.sparse_dim()));
    value_counts.push_back(std::size_t(its[0]) * row);
  }

  std::vector<std::int64_t> value_sizes = values.sizes().vec();
  value_sizes[0] = entries;
  const at::Tensor all_values = at::empty(value_sizes, values.options());
  const at::Tensor all_indices = at::empty({entries * mine.sparse_dim()}, indices.options());
  group.all_gather(DataType::i64, data(indices), data(all_indices), index_counts, call);
  group.all_gather(to_move(values).type, data(values), data(all_values), value_counts, call);

  std::vector<at::Tensor> columns;  // each rank's, of sparse_dim rows
  std::int64_t start = 0;
  for (const std::size_t count : index_counts) {
    columns.push_back(all_indices.narrow(0, start, std::int64_t(count))
                          .view({mine.sparse_dim(), std::int64_t(count) / mine.sparse_dim()}));
    start += std::int64_t(count);
  }
  const at::Tensor sum =
      at::_sparse_coo_tensor_unsafe(at::cat(columns, 1), all_values, mine.sizes()).coalesce();
  tensor.copy_(sum);
}

}  // namespace echelon::python
