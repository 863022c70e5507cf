// Causal self-attention in fp32 on a CPU, forward and backward, on qkv and its gradient as they lie
// and without the scores in memory (attention_cpu.cpp has the algorithm). The same input gives the
// same bits with any number of threads. Torch's threads share the heads of all sequences.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace echelon {

inline constexpr std::int64_t attention_cpu_widest_head = 256;

struct Attended {
  at::Tensor out;  // [batch, tokens, width]
  at::Tensor lse;  // [batch, heads, tokens]: log2 of the sum of a row's 2^score, for the backward
};

// `qkv` is [batch, tokens, 3 * width], float and contiguous.
Attended attention_cpu(const at::Tensor& qkv, std::int64_t heads);

// The gradient for qkv.
at::Tensor attention_cpu_backward(const at::Tensor& grad_out, const at::Tensor& qkv,
                                  const Attended& attended, std::int64_t heads);

}  // namespace echelon
