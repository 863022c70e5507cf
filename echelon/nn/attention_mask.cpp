#include "echelon/nn/attention_mask.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>

#include <limits>

#include "echelon/base/error.h"
#include "echelon/nn/layer.h"

namespace echelon {
namespace {

void check_sizes(const at::Tensor& documents, std::int64_t samples, std::int64_t tokens) {
  const auto type = documents.scalar_type();
  if (documents.dim() != 2 || documents.size(0) != samples || documents.size(1) != tokens ||
      (type != at::kLong && type != at::kInt))
    throw InvalidArgument(fmt::format(
        "the batch's 'mask' is {} {}; attention takes [{}, {}] integers (int32 or int64), a number "
        "for each token",
        at::toString(type), documents.sizes().vec(), samples, tokens));
}

}  // namespace

AttentionMask attention_mask(const Pass& pass, bool causal) {
  AttentionMask mask{.causal = causal};
  if (!pass.batch) return mask;
  if (const auto* documents = pass.batch->find("mask")) mask.documents = *documents;
  if (const auto* runs = pass.batch->find("runs")) mask.runs = *runs;
  return mask;
}

at::Tensor documents_on_cpu(const AttentionMask& mask, std::int64_t samples, std::int64_t tokens) {
  const at::Tensor& documents = mask.documents;
  check_sizes(documents, samples, tokens);
  if (documents.numel() == 0) return documents.to(at::kInt);
  const auto [least, most] = at::aminmax(documents);
  for (const auto number : {least.item<std::int64_t>(), most.item<std::int64_t>()})
    if (number < 0 || number > std::numeric_limits<std::int32_t>::max())
      throw InvalidArgument(fmt::format(
          "the batch's 'mask' has the number {}: 0 is padding, and documents are 1, 2, 3, …",
          number));
  return documents.to(at::kInt).contiguous();
}

at::Tensor seen_keys(const AttentionMask& mask, std::int64_t tokens, at::Device device) {
  at::Tensor seen;
  if (mask.causal)
    seen = at::ones({1, 1, tokens, tokens}, at::TensorOptions(device).dtype(at::kBool)).tril_();
  if (!mask.documents.defined()) return seen;
  check_sizes(mask.documents, mask.documents.size(0), tokens);
  const at::Tensor same =
      at::eq(mask.documents.unsqueeze(1).unsqueeze(3), mask.documents.unsqueeze(1).unsqueeze(2));
  return seen.defined() ? same.logical_and(seen) : same;
}

void zero_padding(const AttentionMask& mask, at::Tensor x) {
  if (mask.documents.defined()) x.masked_fill_(mask.documents.eq(0).unsqueeze(-1), 0);
}

}  // namespace echelon
