// Attention on a GPU over runs of tokens: each run of equal numbers in a row of the mask is a
// sequence of its own, and LibTorch's kernels for sequences of various lengths (flash in bf16 and
// fp16, memory-efficient attention in fp32) compute only within runs. Padding is such a run too.
//
// The kernels read where runs begin on the device, so a recorded graph takes the documents of each
// batch; only the number of runs a row is fixed, which data/document_runs.h rounds up.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace echelon {

// Queries, keys and values of all tokens of a batch, [samples * tokens, heads, head width], with
// equal numbers of heads.
struct TokenHeads {
  at::Tensor q, k, v;
};

struct AttentionRuns {
  at::Tensor begins;    // [samples, runs + 1], int32, within a row; the last is the row's length
  std::int64_t tokens;  // of a row
  bool causal;
};

// Returns [samples * tokens, heads, head width] and appends four tensors to `saved`.
at::Tensor attention_over_runs(const TokenHeads& heads, const AttentionRuns& runs,
                               std::vector<at::Tensor>& saved);

// The gradients of the queries, keys and values. `saved` points at the first of those tensors.
TokenHeads attention_over_runs_backward(const at::Tensor& grad_out, const TokenHeads& heads,
                                        const at::Tensor& out, const AttentionRuns& runs,
                                        const at::Tensor* saved);

}  // namespace echelon
