// Self-attention in fp32 on a CPU, forward and backward, by our own kernel
// (kernels/cpu/attention.h). It works in place on qkv and its gradient and never materialises the
// scores. The same input gives the same bits with any number of threads. Torch's threads share the
// heads of all sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "echelon/kernels/cpu/attention.h"
#include "echelon/nn/attention_mask.h"

namespace echelon {

inline constexpr std::int64_t attention_cpu_widest_head = kernels::cpu::attention_widest_head;

struct Attended {
  at::Tensor out;  // [batch, tokens, heads * head width]
  at::Tensor lse;  // [batch, heads, tokens]: log2 of the sum of a row's 2^score, for backward
};

// `qkv` is [batch, tokens, (heads + 2 * kv_heads) * head width], float and contiguous: a token's
// queries, then its keys, then its values. `kv_heads` divides `heads` (kernels/attention.h says
// which query heads share a key/value head).
Attended attention_cpu(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                       const AttentionMask& mask = {});

// The gradient of qkv.
at::Tensor attention_cpu_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                                  const Attended& attended, std::int64_t heads,
                                  std::int64_t kv_heads, const AttentionMask& mask = {});

}  // namespace echelon
